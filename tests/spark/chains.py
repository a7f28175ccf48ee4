"""Runs chains without Spark, records their reports, and adds the reports up in a plain ledger."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
from pyspark.sql.types import LongType, StringType, StructField, StructType

from acker_client import Settings
from acker_client.cluster.scope import BatchScope
from acker_client.spark.anchoring.anchors import Rows, unpack
from acker_client.spark.anchoring.tally import Report
from acker_client.spark.operators.batch import BatchStep
from acker_client.spark.operators.read import Reading, Records
from acker_client.spark.operators.row import RowStep
from acker_client.spark.operators.sink import SinkStep
from acker_client.spark.worker.chain import Arriving, Chain, Entry, Step
from acker_client.spark.worker.rows import struct_type
from acker_protocol.messages import FAIL

SETTINGS = Settings(servers=("127.0.0.1:1",))
SCOPE = BatchScope(session=7, number=3, first=1 << 40)
TEXT = StructType([StructField("number", LongType()), StructField("text", StringType())])
WORD = StructType([StructField("word", StringType())])


@dataclass(frozen=True)
class Texts:
    """A slice of texts, handed out ``at_once`` rows at a time."""

    texts: tuple[str, ...]
    start: int = 0
    at_once: int = 1000

    @property
    def stop(self) -> int:
        return self.start + len(self.texts)

    def read(self) -> Iterator[Records]:
        for at in range(0, len(self.texts), self.at_once):
            part = self.texts[at : at + self.at_once]
            numbers = np.arange(self.start + at, self.start + at + len(part), dtype=np.uint64)
            columns = pa.RecordBatch.from_pydict({"number": numbers.astype(np.int64), "text": list(part)})
            yield Records(numbers, columns, {i: "bad" for i, text in enumerate(part) if text == "unreadable"})


def split(row: Any) -> list[tuple[str]]:
    return [(word,) for word in row.text.split()]


def words(
    function: Any = split, keep: Sequence[str] = ("number",), on_error: Any = "fail", name: str = "words"
) -> RowStep:
    return RowStep(name, function, TEXT, WORD, tuple(keep), on_error)


def over_arrow(
    function: Any, keep: Sequence[str] = ("number",), on_error: Any = "fail", digests: bool = True
) -> BatchStep:
    return BatchStep("words", function, WORD, tuple(keep), on_error, digests)


def sink(name: str = "save") -> SinkStep:
    return SinkStep(name)


def reading(texts: Sequence[str], at_once: int = 1000) -> Reading:
    return Reading(SCOPE, (Texts(tuple(texts), at_once=at_once),))


def run(
    entry: Entry, steps: Iterable[Step], batches: Iterable[pa.RecordBatch] | None = None
) -> tuple[pa.Table, list[Report]]:
    """Run a chain; return its output, with tracking columns, and its reports."""
    sent: list[Report] = []
    given = [pa.RecordBatch.from_pydict({"id": [0]})] if batches is None else batches
    out = list(Chain(SETTINGS, entry, tuple(steps)).run(given, sent.append))
    return (pa.Table.from_batches(out) if out else pa.table({})), sent


def arriving(steps: Iterable[Step], table: pa.Table, at_once: int = 1000) -> tuple[pa.Table, list[Report]]:
    """Run a separate chain over rows that came through Spark, ``at_once`` rows per batch."""
    return run(Arriving(), steps, table.combine_chunks().to_batches(at_once))


def rows_of(table: pa.Table) -> Rows:
    return unpack(table.combine_chunks().to_batches()[0])


def ledger(reports: Iterable[Report]) -> dict[int, int]:
    """Return the XOR of all reported ack vals of each root. Each report identity counts once."""
    vals: dict[int, int] = {}
    seen = set()
    for report in reports:
        if report.identity in seen:
            continue
        seen.add(report.identity)
        for root, val in zip(report.entries.root_ids.tolist(), report.entries.ack_vals.tolist(), strict=True):
            vals[root] = vals.get(root, 0) ^ val
    return vals


def failed(reports: Iterable[Report]) -> dict[int, str]:
    """Return the reason of each failed root."""
    found: dict[int, str] = {}
    for report in reports:
        entries = report.entries
        if len(entries.kinds):
            roots = entries.root_ids[(entries.kinds & FAIL) != 0].tolist()
            reasons = [entries.reasons[index] for index in entries.reason_ids.tolist()]
            found.update(zip(roots, reasons, strict=True))
    return found


def ddl(text: str) -> StructType:
    """Parse a DDL schema of strings and longs without a Spark session."""
    kinds = {"long": LongType(), "string": StringType()}
    return struct_type(StructType([StructField(name, kinds[kind]) for name, kind in map(str.split, text.split(", "))]))
