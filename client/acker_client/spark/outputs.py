"""Output locations in which no batch overwrites the rows of another.

Each batch writes into a folder of its own, named by ``batch.id``, and a write becomes visible there all at once. The
output of an abandoned batch is removed, because its records are replayed in batches with other ids. This module does
not decide what is acked: the evidence of the sink does.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from functools import partial
from os import PathLike, fspath
from typing import Any, Protocol

from pyspark.sql import DataFrame, SparkSession

from acker_client.spark.commit_evidence import turns
from acker_client.spark.commit_evidence.following import record_unplaced
from acker_client.spark.commit_evidence.witness import frame_step
from acker_client.spark.driver.query import run_uninterrupted

_PART = re.compile(r"[A-Za-z0-9_.]*")
# Spark does not read files and folders whose names begin with an underscore.
_WRITING = "_writing"


class BatchOfOutput(Protocol):
    """The part of a source's ``Batch`` that this module uses."""

    @property
    def id(self) -> str: ...
    @property
    def lane(self) -> int: ...
    @property
    def written(self) -> dict[str, object]: ...
    def on_abandon(self, step: Callable[[], object]) -> None: ...


def write_parquet(
    rows: DataFrame,
    folder: str | PathLike[str],
    batch: BatchOfOutput,
    *,
    part: str = "",
    partition_by: Sequence[str] = (),
) -> None:
    """Write ``rows`` as Parquet into ``folder/batch=ID``, and remove them if ``batch`` is abandoned. For use in a sink.

    One rename makes all rows visible together. A store without rename, such as S3, shows them file by file. A failed
    write may be repeated. A successful write may be repeated too, for instance if the sink fails later: the same rows
    replace themselves. ``part`` names the write, for a batch that writes more than once into ``folder`` (letters,
    digits, ``_`` and ``.``). Raises ``ValueError`` if this batch has written other rows to the same place.
    """
    if not _PART.fullmatch(part):
        raise ValueError(f"part={part!r}: give letters, digits, _ and .")
    name = f"batch={batch.id}{part and '-'}{part}"
    place, draft = f"{fspath(folder)}/{name}", f"{fspath(folder)}/{_WRITING}/{name}"
    # Only threads of this batch write to this place, so this is no wait for another batch.
    with turns.turn(turns.folder(place), []):
        _write(rows, place, draft, batch, partition_by)


def _write(rows: DataFrame, place: str, draft: str, batch: BatchOfOutput, partition_by: Sequence[str]) -> None:
    """Write ``rows`` into ``draft``, and rename it to ``place``. The caller has the turn of ``place``."""
    spark = rows.sparkSession
    what = (frame_step(rows), tuple(partition_by))
    is_there = _Files(spark, place).exists()
    if is_there and batch.written.get(place) != what:
        raise ValueError(f"this batch has written {place} before: name each of its writes, as part='items'")
    batch.on_abandon(partial(_remove, spark, (draft, place)))
    batch.written[place] = what
    writer = rows.write.mode("overwrite").option("partitionOverwriteMode", "static").partitionBy(*partition_by)
    writer.parquet(draft)
    try:
        if is_there:
            _Files(spark, place).delete()
        if not _Files(spark, draft).rename(place):
            raise OSError(f"{draft} could not be renamed to {place}")
    except Exception as error:
        # Record the failure: if the sink swallows this error, it has delivered nothing, although the write succeeded.
        record_unplaced(writer, error, "parquet", draft)
        raise


def delta_options(batch: BatchOfOutput, write: str = "") -> dict[str, str]:
    """Return ``txnAppId`` and ``txnVersion`` for a write of ``batch`` into a Delta table.

    Delta skips a write whose version is not above the last version of its app. A retry therefore changes nothing if the
    first write was committed without the driver's knowledge. The app is the run of the source, the version is the
    number of the batch. A source with ``concurrency=n`` has n apps, since a batch may be written before one with a
    lower number. ``write`` names each write of a batch that writes more than once into one table; without ``write``,
    Delta would skip all writes but the first, and the batch is not done.
    """
    run, _, number = batch.id.rpartition("-")
    app = f"{run}.{batch.lane}" if batch.lane else run
    return {"txnAppId": f"{app}-{write}" if write else app, "txnVersion": number}


class _Files:
    """A path in any file system that Hadoop supports."""

    def __init__(self, spark: SparkSession, path: str) -> None:
        # py4j does not type its Java objects.
        jvm: Any = spark._jvm
        context: Any = spark.sparkContext._jsc
        self._path_of: Any = jvm.org.apache.hadoop.fs.Path
        self._path = self._path_of(path)
        self._system: Any = self._path.getFileSystem(context.hadoopConfiguration())

    def exists(self) -> bool:
        return bool(self._system.exists(self._path))

    def rename(self, to: str) -> bool:
        return bool(self._system.rename(self._path, self._path_of(to)))

    def delete(self) -> None:
        self._system.delete(self._path, True)


def _remove(spark: SparkSession, places: Sequence[str]) -> None:
    for place in places:
        run_uninterrupted(_Files(spark, place).delete)
