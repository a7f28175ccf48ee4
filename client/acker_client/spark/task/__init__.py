"""What a task of Spark's runs: a chain of steps over its rows, and what it notes. Nothing here knows of plans."""
