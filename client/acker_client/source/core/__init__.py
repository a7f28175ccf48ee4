"""What becomes of records, from plan to checkpoint, without Spark, a server, a thread, a clock or a disk: pure."""
