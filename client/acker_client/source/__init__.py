"""Sources of records. Each record ends in exactly one of two ways: it is acked, or it becomes a dead letter.

    from acker_client.source import Files, Retry

    source = Files("orders/*.jsonl", name="orders", checkpoint="orders.ckpt", dead_letters="dead.jsonl")
    print(source.run(spark, lambda batch: save(batch.df.transform(items))))

Needs the extra `spark` where it runs (pyarrow and PySpark); importing it needs pyarrow only.
"""

from __future__ import annotations

from acker_client.extras import missing

try:
    import pyarrow  # noqa: F401 (so that one error names the extra)
except ImportError as error:
    raise missing("acker_client.source", "spark", error) from error

from acker_client.source.engine.batch import Batch
from acker_client.source.engine.options import CommonOptions, Options
from acker_client.source.engine.source import Source
from acker_client.source.errors import (
    Broken,
    CheckpointError,
    Fenced,
    InputChanged,
    QueryStopped,
    SourceError,
    TooManyDeadLetters,
)
from acker_client.source.files.files import Files
from acker_client.source.frame.frame import Frame, Tracked, tracked
from acker_client.source.kafka.hand_on import hand_on
from acker_client.source.kafka.kafka import Kafka
from acker_client.source.kafka.letters_topic import KafkaTopic
from acker_client.source.kafka.offset_store import KafkaOffsets
from acker_client.source.kinesis.kinesis import Kinesis
from acker_client.source.parquet.parquet import Parquet
from acker_client.source.put_back.put_back import PutBack
from acker_client.source.records.assignment import Assignment, Handover
from acker_client.source.records.dead_letter import DeadLetter
from acker_client.source.records.guarantee import Guarantee
from acker_client.source.records.in_flight import Failures
from acker_client.source.records.input import Chosen, Committed, Input, Original, Plan, SharedInput
from acker_client.source.records.listener import Emissions, Listener
from acker_client.source.records.ranges import Ranges
from acker_client.source.records.retry import Retry
from acker_client.source.records.stores import CheckpointStore, DeadLetterStore, SharedCheckpointStore
from acker_client.source.records.summary import Summary
from acker_client.source.zookeeper.group import ZooKeeperGroup
from acker_client.source.zookeeper.offset_store import ZooKeeperOffsets

__all__ = [
    "Assignment",
    "Batch",
    "Broken",
    "CheckpointStore",
    "Chosen",
    "Committed",
    "CommonOptions",
    "DeadLetter",
    "DeadLetterStore",
    "CheckpointError",
    "Failures",
    "Fenced",
    "Files",
    "Guarantee",
    "Handover",
    "Frame",
    "Input",
    "InputChanged",
    "Kinesis",
    "Kafka",
    "KafkaOffsets",
    "KafkaTopic",
    "Listener",
    "Options",
    "Original",
    "Parquet",
    "Plan",
    "PutBack",
    "QueryStopped",
    "Ranges",
    "Retry",
    "Emissions",
    "SharedCheckpointStore",
    "SharedInput",
    "Source",
    "SourceError",
    "Summary",
    "TooManyDeadLetters",
    "ZooKeeperGroup",
    "ZooKeeperOffsets",
    "Tracked",
    "hand_on",
    "tracked",
]
