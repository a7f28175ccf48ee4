"""What the driver has of Spark: its session, its executors, and the steps that it planned."""
