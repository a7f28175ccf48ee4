"""Persisted: a user's DataFrame, persisted for as long as its rows are tracked, with each row's place and digest.

Decides how rows are numbered: by partition and row, once the frame is materialized, because before that AQE may still
change its partitions. A frame that the user has persisted stays persisted. ``row_digest`` decides what goes into a
row's digest, ``anchoring.pages`` checks pages of rows, and ``operators`` read the frame.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import cached_property
from typing import Any

import numpy as np
from pyspark import StorageLevel
from pyspark.sql import DataFrame, SparkSession

from acker_client.spark import compat
from acker_client.spark.anchoring.anchors import Positions
from acker_client.spark.anchoring.pages import PAGE_SHIFT, Pages
from acker_client.spark.driver.query import run_uninterrupted
from acker_client.spark.driver.row_digest import row_digest
from acker_client.spark.worker.rows import struct_type

PLACE, DIGEST, PAGE = "acker_place", "acker_digest", "acker_page"
PAGE_OF_PLACE = f"shiftright({PLACE}, {PAGE_SHIFT})"
# Compressing rows that live for one batch costs more than it saves: persisting 800,000 rows took twice as long.
COMPRESSED = "spark.sql.inMemoryColumnarStorage.compressed"
# With AQE, persisting the rows would be a job of its own, and another job would read them again. There are few pages,
# and with the usual 200 shuffle partitions, counting a hundred rows took twice as long.
ONE_JOB = {"spark.sql.adaptive.enabled": "false", "spark.sql.shuffle.partitions": "1"}
# Held while a setting of the session is changed, so that no other thread here reads the changed value.
_PERSISTING = threading.Lock()
# All of this process whose rows this library keeps. Two frames with the same plan share their rows in Spark.
_using: list[Persisted] = []
_USING = threading.Lock()
# A filter names at most this many ranges of pages. If there are more, it lists the pages.
STRETCHES_MAX = 20


class Persisted:
    """Rows of ``df``, persisted and counted by :meth:`persist`, until :meth:`unpersist`."""

    def __init__(self, df: DataFrame, level: StorageLevel | None = None) -> None:
        self.spark = df.sparkSession
        self.schema = struct_type(df.schema)
        self.pages = Pages(np.empty(0, np.int64), np.empty(0, np.int64), np.empty(0, np.uint64))
        self._df = df
        self._level = level
        self._is_ours = False

    def persist(self) -> None:
        """Persist the frame, unless the user has persisted it, and count its rows. This reads the whole frame."""
        with _USING:
            is_kept = self._is_kept
            self._is_ours = not is_kept or self._is_used_by_others
            if self._is_ours:
                _using.append(self)
            if not is_kept:
                with _uncompressed(self.spark):
                    self._df.persist(*filter(None, [self._level]))
        level = self._level
        self.pages = self._count_pages(is_kept=is_kept or level is None or level.useMemory or level.useDisk)

    def unpersist(self) -> None:
        """Unpersist the frame unless others here use the same rows, also after :meth:`persist` has raised. May be
        called again."""
        if not self._is_ours:
            return
        self._is_ours = False
        with _USING:
            _using.remove(self)
            if not self._is_used_by_others:
                run_uninterrupted(self._df.unpersist)

    def read(self, pages: Positions) -> DataFrame:
        """Return the rows of these ``pages: int64[k]``, ascending: columns ``_0``, ``_1`` ..., place and digest."""
        placed = self._placed
        if len(pages) < len(self.pages.ids):
            placed = placed.where(_is_in(pages))
        return placed.selectExpr("*", f"{self._digest} as {DIGEST}")

    @cached_property
    def _placed(self) -> DataFrame:
        return self._df.toDF(*self._names).selectExpr("*", f"monotonically_increasing_id() as {PLACE}")

    def _count_pages(self, *, is_kept: bool) -> Pages:
        digests = self._placed.selectExpr(f"{PAGE_OF_PLACE} as {PAGE}", f"{self._digest} as {DIGEST}")
        # Names instead of expressions, because each Python function of Spark costs half a dozen calls to the JVM.
        grouped = digests.groupBy(PAGE).agg({"*": "count", DIGEST: "bit_xor"})
        page = f"struct({PAGE} as id, `count(1)` as rows, `bit_xor({DIGEST})` as digest)"
        # The pages come as one text: `toArrow` would open a socket, and make two dozen calls.
        java: Any = grouped.selectExpr(f"to_json(array_sort(collect_list({page})))")._jdf
        if is_kept:
            # The frame itself was planned with the user's settings when it was persisted.
            java = _with_settings(java, self.spark, ONE_JOB)
        counted = json.loads(java.collectAsList().get(0).getString(0))
        ids, rows, found = (np.array([each[name] for each in counted], np.int64) for name in ("id", "rows", "digest"))
        return Pages(ids, rows, found.view(np.uint64))

    @property
    def _is_used_by_others(self) -> bool:
        java: Any = self._df._jdf
        alive = (each._df for each in _using if each.spark.sparkContext is self.spark.sparkContext)
        return any(each is self._df or java.sameSemantics(each._jdf) for each in alive)

    @property
    def _is_kept(self) -> bool:
        java: Any = self._df._jdf
        return bool(java.storageLevel().isValid())

    @property
    def _names(self) -> list[str]:
        return [f"_{index}" for index in range(len(self.schema.fields))]

    @cached_property
    def _digest(self) -> str:
        return row_digest(PLACE, self._names, self.schema.fields)


def _with_settings(java: Any, spark: SparkSession, settings: Mapping[str, str]) -> Any:
    """Return a Dataset of the JVM in a copy of its session with other ``settings``. No other thread sees them."""
    copy: Any = spark._jsparkSession.cloneSession()
    conf = copy.conf()
    for key, value in settings.items():
        conf.set(key, value)
    dataset: Any = getattr(spark._jvm, "org.apache.spark.sql.classic.Dataset")
    return dataset.ofRows(copy, java.queryExecution().analyzed())


@contextmanager
def _uncompressed(spark: SparkSession) -> Iterator[None]:
    """Turn compression off while the block persists a frame. The block must be short: the user's other threads may use
    the same session."""
    with _PERSISTING:
        before = spark.conf.get(COMPRESSED)
        spark.conf.set(COMPRESSED, "false")
        try:
            yield
        finally:
            spark.conf.set(COMPRESSED, str(before))


def _is_in(pages: Positions) -> str:
    cuts = np.flatnonzero(np.diff(pages) != 1) + 1
    stretches = np.split(pages, cuts)
    if len(stretches) <= STRETCHES_MAX:
        between = (f"{PAGE_OF_PLACE} between {each[0]} and {each[-1]}" for each in stretches if len(each))
        return " or ".join(between) or "false"
    return f"{PAGE_OF_PLACE} in ({', '.join(f'{number}L' for number in pages.tolist())})"


def refuse(df: Any) -> str:
    """Return why ``df`` cannot be tracked as a frame, and the fix; "" if it can be."""
    if compat.is_connect(df):
        return compat.CONNECT
    if not isinstance(df, DataFrame):
        return f"a DataFrame is expected, got a {type(df).__name__}"
    if df.isStreaming:
        return (
            "a streaming DataFrame has no end: give its micro-batches, with df.writeStream.foreachBatch(tracked(...))"
        )
    return ""
