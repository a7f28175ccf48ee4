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

from acker_client.source.core.flight import Fallen
from acker_client.source.core.input import Input, Original, Origins
from acker_client.source.core.listener import Listener, Seen
from acker_client.source.core.retry import Retry
from acker_client.source.core.summary import Summary
from acker_client.source.errors import Broken, CheckpointError, InputChanged, SourceError, TooManyDeadLetters
from acker_client.source.run.batch import Batch
from acker_client.source.run.options import Options
from acker_client.source.source import Files, Source

__all__ = [
    "Batch",
    "Broken",
    "CheckpointError",
    "Fallen",
    "Files",
    "Input",
    "InputChanged",
    "Listener",
    "Options",
    "Original",
    "Origins",
    "Retry",
    "Seen",
    "Source",
    "SourceError",
    "Summary",
    "TooManyDeadLetters",
]
