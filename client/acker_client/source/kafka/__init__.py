"""Kafka: topics as a source, offsets committed to Kafka, dead letters to a topic, and anchors handed to another job.

Entry points: ``kafka.Kafka``, ``offset_store.KafkaOffsets``, ``letters_topic.KafkaTopic``, ``hand_on.hand_on``.
``connection`` is the only module that imports confluent_kafka.
"""
