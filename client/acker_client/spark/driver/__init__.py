"""What the driver has of Spark: its session, its executors, and the stages that it planned."""
