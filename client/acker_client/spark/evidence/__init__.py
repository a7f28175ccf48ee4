"""What is known of what Spark did with the rows of a batch, and whether that is enough to settle it as done."""
