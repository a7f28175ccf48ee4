"""Doors: one file for each library by which a source reaches the world (Kafka, Kinesis, ZooKeeper)."""
