"""Branch: copies of a frame for several consumers. A row is done when all its copies are done."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
from pyspark.sql import DataFrame

from acker_client.spark.anchoring.anchors import Rows
from acker_client.spark.anchoring.tally import Tally, digest_parents
from acker_client.spark.anchoring.values import digest_rows
from acker_client.spark.commit_evidence.following import analyzed
from acker_client.spark.driver.columns import user_schema
from acker_client.spark.operators.declared import check_name, refuse_untracked
from acker_client.spark.plan_check import fusing, plan
from acker_client.spark.worker.chain import TakeRows

# Spark's functions that give another value in each evaluation, and yet count as deterministic.
_CLOCK = re.compile(r"\b(current_timestamp|localtimestamp|current_date|current_time|now)\(")


def branch(df: DataFrame, copies: int, *, name: str = "branch", cache: bool | None = None) -> tuple[DataFrame, ...]:
    """Return ``copies`` frames with the same rows, one for each consumer. A row is done when all its copies are done.

    Spark evaluates the input once for each copy that is used, unless it is cached for the batch. ``cache=True`` caches
    it, ``False`` never does. By default it is cached if an earlier batch used several copies, or if the boundaries of
    its tasks may move between evaluations (orderBy, repartition without a number), or if Spark computes the time for it
    (``current_timestamp()``). If two evaluations compute different values, the rows are replayed, and the input is
    cached from the next batch on.
    """
    refuse_untracked(df, "branch")
    if not isinstance(copies, int) or isinstance(copies, bool) or copies < 1:
        raise ValueError(f"branch: copies={copies!r}; give how many frames you need, as branch(df, 2)")
    check_name("branch", name)
    upstream = plan.guard(df, name)
    batch: Any = upstream.batch
    if cache is None:
        cache = upstream.moving_boundaries or batch.once.must_cache("branch", name) or _asks_the_clock(df)
    if cache:
        df, upstream = batch.keep_cached(df), replace(upstream, moving_boundaries=False, moves=False)
    applied, schema = fusing.chain_of(df, upstream), user_schema(df)
    steps = (BranchStep(name, index, copies) for index in range(copies))
    return tuple(fusing.extend(applied, upstream, step, "branch", schema) for step in steps)


def _asks_the_clock(df: DataFrame) -> bool:
    """Whether Spark computes the time for the rows of ``df``, which differs in each evaluation."""
    applied = fusing.applied_to(df)
    if applied is None:
        return _CLOCK.search(analyzed(df)) is not None
    # The steps of a chain are Python. What Spark computes lies below them.
    return applied.chain.entry.from_outside and _CLOCK.search(analyzed(applied.base)) is not None


@dataclass(frozen=True, slots=True)
class BranchStep:
    """Makes ``copies`` of each row and passes on copy ``index``.

    The steps of all copies send the same report, provided that they get the same rows.
    """

    name: str
    index: int
    copies: int

    def start(self, tally: Tally) -> TakeRows:
        return partial(self._take_rows, tally)

    def _take_rows(self, tally: Tally, rows: Rows) -> Iterator[Rows]:
        n, copies = len(rows), self.copies
        # All first copies, then all second copies: a slice is one branch, and copy k of a row is its k-th child.
        parents = np.tile(np.arange(n), copies)
        # The values count, because Spark evaluates the input for each copy. A function such as row_number may rank ties
        # differently the second time, and a row that each copy drops because of the other's value must not be done.
        values = None if rows.anchors.are_none else digest_rows(rows.data.columns, n)
        digests = digest_parents(np.full(n, copies, np.int64), parents, values)
        children = tally.derive(rows.anchors, parents, digests)
        yield Rows(rows.data, children.slice(self.index * n, (self.index + 1) * n))
