"""The account of a task, and the judge of evidence: pure. No Spark, socket, thread or clock."""
