"""Timestamps come in UTC, however rows enter a task."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from datetime import UTC, datetime
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from pyspark.sql.types import LongType, StructField, StructType

from acker_client.spark import cogroup, group
from acker_client.spark.anchoring.pages import Pages, Runs
from acker_client.spark.anchoring.zones import in_utc
from acker_client.spark.operators.batch import BatchStep
from acker_client.spark.operators.cogroup import Side
from acker_client.spark.operators.emitted import EmittedReading
from acker_client.spark.operators.read_frame import FrameReading
from acker_client.spark.worker.chain import Arriving, Entry
from tests.spark.chains import SCOPE, run

MORNING = datetime(2026, 7, 1, 5, 30, tzinfo=UTC)
HOUR = StructType([StructField("hour", LongType())])


def in_zone(zone: str | None) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays([pa.array([MORNING], pa.timestamp("us", tz=zone))], names=["at"])


def tracked(data: pa.RecordBatch) -> pa.RecordBatch:
    ids = pa.array([5], pa.int64())
    return pa.RecordBatch.from_arrays([*data.columns, ids, ids], names=[*data.schema.names, "_root", "_edge"])


def of_pages(data: pa.RecordBatch) -> pa.RecordBatch:
    place, digest = pa.array([0], pa.int64()), pa.array([9], pa.int64())
    return pa.RecordBatch.from_arrays([*data.columns, place, digest], names=[*data.schema.names, "place", "digest"])


def hours_of_entry(entry: Entry, batch: pa.RecordBatch) -> list[int]:
    step = BatchStep("hours", lambda data: pa.table({"hour": pa.compute.hour(data["at"])}), HOUR, (), "fail", True)
    return list(run(entry, [step], [batch])[0]["hour"].to_pylist())


def arriving(data: pa.RecordBatch) -> list[int]:
    return hours_of_entry(Arriving(), tracked(data))


def pages() -> tuple[Runs, Pages]:
    noted = Pages(np.array([0]), np.array([1]), np.array([9], np.uint64))
    return Runs.of([np.array([0])], [0]), noted


def read_from_a_frame(data: pa.RecordBatch) -> list[int]:
    return hours_of_entry(FrameReading(SCOPE, ("at",), *pages(), ((0, 0, 1),)), of_pages(data))


def emitted(data: pa.RecordBatch) -> list[int]:
    return hours_of_entry(EmittedReading(("at",), *pages()), of_pages(data))


def grouped(data: pa.RecordBatch) -> list[int]:
    @group("at", HOUR)
    def hours(rows: pa.Table) -> Any:
        return pa.table({"hour": pa.compute.hour(rows["at"])}), "all"

    made = hours._task(HOUR, None, ()).of_group(pa.Table.from_batches([tracked(data)]))
    return list(made["hour"].to_pylist())


def cogrouped(data: pa.RecordBatch) -> list[int]:
    @cogroup("at", HOUR)
    def hours(key: tuple[Any, ...], left: pa.Table, right: pa.Table) -> Any:
        both = {pa.compute.hour(at).as_py() for at in (key[0], left["at"][0], right["at"][0])}
        return pa.table({"hour": [both.pop()] if len(both) == 1 else [-1]}), "all"

    task = hours._task(HOUR, None, Side(), Side(is_tracked=False))
    tables = [pa.Table.from_batches([each]) for each in (tracked(data), data)]
    return list(task.of_key((data["at"][0],), *tables)["hour"].to_pylist())


@pytest.mark.parametrize("zone", ["UTC", "Europe/Berlin", "Asia/Tokyo"])
@pytest.mark.parametrize("enter", [arriving, read_from_a_frame, emitted, grouped, cogrouped])
def test_a_function_over_batches_sees_hours_of_utc_in_every_zone_of_the_session(
    enter: Callable[[pa.RecordBatch], Iterable[int]], zone: str
) -> None:
    assert enter(in_zone(zone)) == [5]


@pytest.mark.parametrize(
    "wrap",
    [
        lambda at: at,
        lambda at: pa.list_(pa.field("element", at, nullable=False)),
        lambda at: pa.large_list(at),
        lambda at: pa.struct([pa.field("at", at, nullable=False), pa.field("n", pa.int64())]),
        lambda at: pa.map_(pa.string(), pa.list_(pa.struct([("at", at)]))),
    ],
)
def test_nested_timestamps_become_utc_and_keep_their_values_and_their_nulls(wrap: Callable[[Any], Any]) -> None:
    berlin, utc = (wrap(pa.timestamp("us", tz=zone)) for zone in ("Europe/Berlin", "UTC"))
    column = pa.concat_arrays([pa.nulls(1, berlin), pa.array([None], berlin)])
    batch = pa.RecordBatch.from_arrays(
        [column, pa.array([1, 2])], schema=pa.schema([("at", berlin), pa.field("n", pa.int64(), nullable=False)])
    )
    assert in_utc(batch).schema == pa.schema([("at", utc), pa.field("n", pa.int64(), nullable=False)])
    assert in_utc(batch).to_pylist() == batch.to_pylist()


def test_timestamps_without_a_zone_stay_without() -> None:
    batch = in_zone(None)
    assert in_utc(batch) is batch
