"""Sources: where records come from, and how each of them ends in exactly one of two ways: acked, or dead-lettered.

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

from acker_client.source.constructors.files import Files
from acker_client.source.constructors.kafka import Kafka
from acker_client.source.constructors.parquet import Parquet
from acker_client.source.core.dead_letter import DeadLetter
from acker_client.source.core.in_flight import Failures
from acker_client.source.core.input import Chosen, Committed, Input, Original, Plan
from acker_client.source.core.listener import Emissions, Listener
from acker_client.source.core.ranges import Ranges
from acker_client.source.core.retry import Retry
from acker_client.source.core.stores import CheckpointStore, DeadLetterStore
from acker_client.source.core.summary import Summary
from acker_client.source.errors import Broken, CheckpointError, InputChanged, SourceError, TooManyDeadLetters
from acker_client.source.run.batch import Batch
from acker_client.source.run.options import CommonOptions, Options
from acker_client.source.source import Source
from acker_client.source.stores.kafka_letters import KafkaTopic
from acker_client.source.stores.kafka_offsets import KafkaOffsets

__all__ = [
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
    "Files",
    "Input",
    "InputChanged",
    "Kafka",
    "KafkaOffsets",
    "KafkaTopic",
    "Listener",
    "Options",
    "Original",
    "Parquet",
    "Plan",
    "Ranges",
    "Retry",
    "Emissions",
    "Source",
    "SourceError",
    "Summary",
    "TooManyDeadLetters",
]
