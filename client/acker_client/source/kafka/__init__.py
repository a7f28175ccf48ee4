"""Kafka: topics as a source, offsets committed to Kafka, dead letters to a topic, and anchors handed to another job.

Entry points: ``kafka.Kafka``, ``offset_store.KafkaOffsets``, ``letters_topic.KafkaTopic``, ``hand_on.hand_on``, and
the formats of values in ``values``.
``input`` commits the offsets of finished records; ``offset_store`` replaces that with ``checkpoint="kafka"``.
``broker``, ``reader`` and ``topic_writer`` talk to Kafka. ``connection`` alone imports confluent_kafka.
"""

from acker_client.source.kafka.hand_on import hand_on
from acker_client.source.kafka.kafka import Kafka
from acker_client.source.kafka.letters_topic import KafkaTopic
from acker_client.source.kafka.offset_store import KafkaOffsets
from acker_client.source.kafka.values import Avro, JsonSchema, Protobuf

__all__ = ["hand_on", "Kafka", "KafkaTopic", "KafkaOffsets", "Avro", "JsonSchema", "Protobuf"]
