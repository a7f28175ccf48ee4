"""Rows of a frame as an input. The frame here is a list. tests/spark/test_frame.py tests frames of Spark."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from acker_client.source import CheckpointError, Frame
from acker_client.source.frame import frame as frame_module
from acker_client.source.frame.environment import PersistedFrame
from acker_client.source.frame.input import FrameInput, FrameSlice
from tests.source.driven import Driven


@dataclass(frozen=True)
class Listed:
    """A frame whose partition p has ``rows[p]`` rows "p.0", "p.1" ... in the column ``name``."""

    rows: tuple[int, ...]
    seed: int = 0

    @property
    def counted(self) -> Mapping[int, tuple[int, int]]:
        return {number: (rows, hash((self.seed, rows))) for number, rows in enumerate(self.rows) if rows}

    @property
    def columns(self) -> Sequence[str]:
        return ("name", "raw")

    def read_rows(self, slices: Sequence[FrameSlice], columns: Sequence[str]) -> pa.Table:
        names = names_of(slices)
        table = pa.table({"name": names, "raw": pa.array([b"\xff"] * len(names))})
        return table.select(list(columns))


def names_of(slices: Sequence[FrameSlice]) -> list[str]:
    assert [each.start for each in slices] == [0, *(each.stop for each in slices)][: len(slices)]
    assert all(each.stop - each.start == len(each.rows) for each in slices)
    return [f"{each.partition}.{row}" for each in slices for row in each.rows.tolist()]


@pytest.mark.parametrize(
    ("options", "records"),
    [
        ({}, 500_000),
        ({"max_uncommitted": 1000}, 1000),
        ({"max_uncommitted_per_partition": 7}, 500_000),
        ({"batch_records": 20, "max_uncommitted": 1000}, 20),
        ({"batch_records": None}, None),
    ],
)
def test_a_batch_of_a_frame_is_no_larger_than_what_may_be_uncommitted(
    options: dict[str, int], records: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(frame_module, "_checked_key", lambda df, key, name: ())
    frame: Any = None  # nothing of Spark is asked before the run begins
    assert Frame(frame, name="rows", **options).options.batch_records == records  # type: ignore[arg-type]


def test_an_error_of_spark_while_rows_are_read_is_not_its_own_cause(monkeypatch: pytest.MonkeyPatch) -> None:
    def rows(*given: Any) -> Any:
        raise OSError("no space left")

    monkeypatch.setattr("acker_client.spark.operators.read_frame.rows_of_persisted", rows)
    persisted: Any = SimpleNamespace(pages=SimpleNamespace(partitions=dict))
    with pytest.raises(OSError, match="no space left") as raised:
        PersistedFrame(persisted).read_rows([], [])
    assert raised.value.__cause__ is None


@given(st.lists(st.integers(0, 30), min_size=1, max_size=5), st.integers(1, 40), st.data())
def test_every_row_is_planned_once_and_a_restart_plans_exactly_those_that_are_not_done(
    rows: list[int], records_max: int, data: st.DataObject
) -> None:
    frame = Listed(tuple(rows))
    driven = Driven(FrameInput(frame))
    records = driven.drain(records_max)
    everything = [f"{partition}.{row}" for partition, count in enumerate(rows) for row in range(count)]
    names = names_of(driven.slices(records))
    assert sorted(names) == sorted(everything)
    assert [":".join(map(str, row.values())) for row in driven.origins(records).to_pylist()] == [
        name.replace(".", ":") for name in names
    ]
    finished = data.draw(st.sets(st.sampled_from(records.tolist()))) if len(records) else set()
    driven.finish(sorted(finished))
    committed = driven.committed()
    again = Driven(FrameInput(frame), committed)
    left = again.drain(records_max)
    assert sorted(names_of(again.slices(left))) == sorted(names[record] for record in set(range(len(names))) - finished)
    again.finish(left)
    assert again.description == f"end of the frame ({len(names)} {'row' if len(names) == 1 else 'rows'})"


def test_a_batch_takes_some_of_each_partition_so_that_no_task_is_idle() -> None:
    driven = Driven(FrameInput(Listed((100, 0, 300, 100))))
    parts = [(each.partition, len(each.rows)) for each in driven.slices(driven.plan(50))]
    assert parts == [(0, 10), (2, 30), (3, 10)]
    assert len(driven.drain(50)) == 450


def test_a_row_is_named_by_its_key_and_is_what_it_was_in_the_frame() -> None:
    driven = Driven(FrameInput(Listed((3,)), key=["name"]))
    records = driven.drain()
    assert driven.origins(records[1:]).to_pylist() == [{"name": "0.1"}, {"name": "0.2"}]
    (original,) = driven.originals(records[2:])
    assert (original.origin, original.value) == ({"key": {"name": "0.2"}}, {"name": "0.2", "raw": {"base64": "/w=="}})


def test_a_checkpoint_of_another_frame_is_refused() -> None:
    driven = Driven(FrameInput(Listed((5, 5))))
    driven.finish(driven.drain()[:2])
    committed = driven.committed()
    for other in (Listed((5, 5), seed=1), Listed((6, 5)), Listed((0, 5))):
        with pytest.raises(
            CheckpointError, match=r"partition 0 of the frame is not what it was .*remove the checkpoint"
        ):
            FrameInput(other).start(committed)
    changed = {name: replace(each, mark={}) for name, each in committed.items()}
    with pytest.raises(CheckpointError, match="partition 0"):
        FrameInput(Listed((5, 5))).start(changed)
