"""Outputs: where a sink writes so that no batch's rows take the place of another's.

Decides that a batch has a place of its own, named by ``batch.id``; that all of a write is seen there at once; and that
the output of an abandoned batch is removed, as its records are replayed in batches of other ids. Never decides what
is acked: that is the sink's evidence.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from functools import partial
from os import PathLike, fspath
from typing import Any, Protocol

from pyspark.sql import DataFrame, SparkSession

from acker_client.spark.commit_evidence.following import record_unplaced
from acker_client.spark.commit_evidence.witness import frame_step
from acker_client.spark.driver.query import run_uninterrupted

_PART = re.compile(r"[A-Za-z0-9_.]*")
# Spark reads nothing that begins with an underscore.
_WRITING = "_writing"


class BatchOfOutput(Protocol):
    """What is asked of a ``Batch`` of a source."""

    @property
    def id(self) -> str: ...
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
    """Write ``rows`` as Parquet into ``folder/batch=ID``, and remove them should ``batch`` be abandoned; for a sink.

    They are seen there together once all are written (one rename; a store that has none, as S3, shows them file by
    file). A write that failed may be tried again. So may one that succeeded, as in a sink that failed later on: the
    same rows take their own place. ``part``: a batch that writes more than once into ``folder`` names each write;
    letters, digits, ``_`` and ``.``. Raises ``ValueError`` for a place where this batch has written other rows.
    """
    if not _PART.fullmatch(part):
        raise ValueError(f"part={part!r}: give letters, digits, _ and .")
    name = f"batch={batch.id}{part and '-'}{part}"
    place, draft = f"{fspath(folder)}/{name}", f"{fspath(folder)}/{_WRITING}/{name}"
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
        # A sink that swallows this has delivered nothing, though the write itself succeeded.
        record_unplaced(writer, error, "parquet", draft)
        raise


def delta_options(batch: BatchOfOutput, write: str = "") -> dict[str, str]:
    """Return ``txnAppId`` and ``txnVersion`` for a write of ``batch`` into a table of Delta's.

    Delta skips a write whose version is not above the last one of its app: a second try of a write that was committed
    without the driver's knowledge changes nothing. The app is the run of the source (and ``write``, a name for each
    write of one batch into one table, as Delta would skip all but the first), the version the batch's number.
    """
    run, _, number = batch.id.rpartition("-")
    return {"txnAppId": f"{run}-{write}" if write else run, "txnVersion": number}


class _Files:
    """A path in whatever file system it is of."""

    def __init__(self, spark: SparkSession, path: str) -> None:
        # py4j gives Java objects no type that a checker could use.
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
