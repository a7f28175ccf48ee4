"""One run of a source: the order of all that touches Spark, the server, the stores and the clock."""
