"""Pipeline: the code that a user of the acker would write. Lines become words, then counts, then Parquet.

Faults in executors and in the sink are built in here, each behind one ``if``. The visible ``root_id`` is a copy of the
tracking column, so that the verifier finds what was written under which root. Other pipelines do not need it.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql.functions import lit, pmod

from acker_client.source import Batch
from acker_client.spark import arrow_operator, explode, group, join, operator, sink, where
from acker_client.spark.operators.group import Group
from acker_client.spark.operators.operator import Operator
from acker_command.demo.categories import CATEGORIES, NAME
from acker_command.demo.faults import OF_SPARK, Faults, Strike, mid_work

BUCKETS = 16
ORIGIN = ["root_id", "path", "line"]
SAME = ("root_id", "word")
WORD_MIN = 4


class OnPurpose(Exception):
    """Raised by the demo's faults."""


@dataclass(frozen=True, slots=True)
class DemoPipeline:
    """``categories``: the small table. ``committed``: the folder in which commits appear; ``staging``: where they are
    written first. ``columns``: SQL over the rows of the input for value, path and line."""

    categories: DataFrame
    faults: Faults
    committed: Path
    staging: Path
    columns: tuple[str, ...]

    def run(self, batch: Batch, strike: Strike | None) -> None:
        """Count the words of a batch and commit the counts; ``strike`` happens somewhere on the way."""
        rows = batch.df.selectExpr(*self.columns, "_root AS root_id", "_root", "_edge")
        rows = rows.transform(where("trim(string(value)) <> ''"))
        rows = rows.transform(texts(self.faults))
        rows = rows.transform(words(self.faults, strike))
        rows = rows.withColumn("bucket", pmod("root_id", lit(BUCKETS)))
        rows = rows.transform(counts(self.faults, strike))
        rows = rows.transform(explode("counts", ("word", "count")))
        rows = rows.transform(join(self.categories, "word", "left"))

        @sink
        def save(rows: DataFrame) -> None:
            # Named by the number of commits, because each micro-batch of a query counts its batches from 1.
            staged = self.staging / f"commit-{len(os.listdir(self.committed)):05}"
            _write(rows, staged, self.faults, strike)
            os.rename(staged, self.committed / staged.name)

        save(rows)


def table_of_categories(spark: SparkSession) -> DataFrame:
    """Return the small table: word, category."""
    return spark.createDataFrame(sorted(CATEGORIES.items()), "word string, category string")


def texts(faults: Faults) -> Operator:
    """Return a row operator that strips the text of a line. A share of the lines raises once. Bytes that are not UTF-8
    raise each time."""

    @operator("text string", keep=ORIGIN)
    def text(row: Row) -> Iterator[str]:
        if faults.is_flaky(row.root_id):
            raise OnPurpose("hiccup: the replay of this record passes")
        text = row.value if isinstance(row.value, str) else str(row.value, "utf-8")
        yield text.strip()

    return text


def words(faults: Faults, strike: Strike | None) -> Operator:
    """Return an Arrow operator that splits each text into words. Poison raises. One worker process is killed here."""

    @arrow_operator("word string", keep=ORIGIN)
    def word(lines: pa.RecordBatch) -> tuple[pa.RecordBatch, Any]:
        if strike is Strike.WORKER_KILLED and faults.claim(strike.name):
            os.kill(os.getpid(), signal.SIGKILL)
        for text in lines["text"].to_pylist():
            if faults.is_poison(text):
                raise OnPurpose(f"poison: {text}")
        split = pc.split_pattern_regex(lines["text"], "[^A-Za-z_]+")
        found = pc.list_flatten(split)
        is_long = pc.greater_equal(pc.binary_length(found), WORD_MIN)
        parents = pc.list_parent_indices(split).filter(is_long)
        return pa.record_batch({"word": pc.ascii_lower(found.filter(is_long))}), parents

    return word


def counts(faults: Faults, strike: Strike | None) -> Group:
    """Return a group operator that counts each word in each line. The row of a line descends from all its words."""

    @group("bucket", "root_id bigint, path string, line bigint, counts map<string, bigint>")
    def count(words: pa.Table) -> tuple[pa.Table, list[Any]]:
        if strike is not None and strike not in OF_SPARK:
            faults.claim(mid_work(strike))
        roots = words["root_id"].to_numpy()
        by_line = np.argsort(roots, kind="stable")
        lines, starts = np.unique(roots[by_line], return_index=True)
        # Sorted, so that a task that runs again gives the same words in the same order.
        same = words.group_by(SAME).aggregate([([], "count_all")]).sort_by([(key, "ascending") for key in SAME])
        offsets = np.append(np.searchsorted(same["root_id"].to_numpy(), lines), len(same))
        counted = pa.MapArray.from_arrays(
            pa.array(offsets, pa.int32()), same["word"].combine_chunks(), same["count_all"].combine_chunks()
        )
        given = words.take(by_line[starts]).select(ORIGIN).append_column("counts", counted)
        return given, np.split(by_line, starts[1:])

    return count


def _write(rows: DataFrame, staged: Path, faults: Faults, strike: Strike | None) -> None:
    def fail_once(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        yield from batches
        # The input is exhausted, so the step before has reported this task's work.
        if faults.claim(Strike.TASK_RERUN.name):
            raise OnPurpose("the task fails after its work")

    if strike is Strike.TASK_RERUN:
        rows = rows.mapInArrow(fail_once, rows.schema)
    rows.fillna({"category": NAME}).write.mode("overwrite").parquet(str(staged))
    if strike is Strike.WRITE_FAILED and faults.claim(strike.name):
        raise OnPurpose("the rows are written, and the commit fails")
