"""Random sink bodies: whatever a sink does, a record whose output is missing is never ACKED."""

from __future__ import annotations

import pytest

from tests.pipelines.bench import Bench
from tests.pipelines.bodies.__main__ import once
from tests.pipelines.bodies.body import Act, Body, generate

# `make bodies` runs more.
SEEDS = range(1, 21)

# Sinks that swallow an exception or do not write all rows. An early version took each of them for a delivery.
FALSE = {
    "a day of a loop fails": tuple(
        Act("parquet", (), "append", day, "barred" if not day else "", 1, "swallow" if not day else "raise")
        for day in range(3)
    ),
    "the archive makes up for the table": (Act("table", (), mishap="barred", then="swallow"), Act("parquet")),
    "groups are collected": (Act("counts by day"),),
    "a distinct is collected": (Act("distinct days"),),
    "a count, then a write that is ignored": (Act("count"), Act("parquet", (), "ignore", None, "there already")),
    "a cache, then a partition that is there": (Act("partition if not exists", ("cache and count",)),),
    "a data source that stops early": (Act("python source that stops"),),
    "a UDTF that skips the rest": (Act("parquet", ("udtf",)),),
    "a pipe that stops early": (Act("pipe that stops"),),
    "a piece of a batch": (Act("parquet", ("map a piece",)),),
}


@pytest.mark.long
@pytest.mark.parametrize("acts", FALSE.values(), ids=FALSE)
def test_what_is_not_written_is_not_acked(bench: Bench, acts: tuple[Act, ...]) -> None:
    check(bench, Body(0, records=12, slices=2, arrow_rows=10_000, acts=acts))


@pytest.mark.long
@pytest.mark.parametrize("seed", SEEDS)
def test_no_record_is_acked_whose_output_is_absent_nor_replayed_whose_output_is_there(bench: Bench, seed: int) -> None:
    check(bench, generate(seed))


def check(bench: Bench, body: Body) -> None:
    result = once(bench, body)
    assert not result.findings, (
        f"\n{body}\n    {result}\nrun it again: python -m tests.pipelines.bodies --seed {body.seed} --shrink"
    )
