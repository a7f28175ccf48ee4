"""Many small files: the work of a run grows with their number, and not with its square."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from acker_client.source import Batch
from acker_client.source.decoding.lines import TextParser
from acker_client.source.files.input import FileInput
from acker_client.source.records.input import Committed
from acker_client.source.records.ranges import Ranges
from tests.source.driven import Driven
from tests.source.executors import NO_SPARK, Cluster, save_all
from tests.source.logs import MemoryCheckpoint

FEW, MANY = 60, 240


def calls_of(work: Callable[[], object]) -> int:
    """Return how many functions ``work`` calls in this thread, those of C included."""
    calls = 0

    def count(frame: Any, event: str, argument: Any) -> None:
        nonlocal calls
        calls += event in ("call", "c_call")

    before = sys.getprofile()
    sys.setprofile(count)
    try:
        work()
    finally:
        sys.setprofile(before)
    return calls


def grows_in_step(few: int, many: int) -> bool:
    """Return whether MANY files cost about as much per file as FEW do. A square would cost four times that."""
    return many / MANY < 1.3 * few / FEW


def write_lines(folder: Path, count: int) -> str:
    folder.mkdir()
    for index in range(count):
        (folder / f"{index:04d}.txt").write_text("one\ntwo\n")
    return f"{folder}/*.txt"


def test_one_plan_of_many_files_calls_as_much_per_file_as_one_of_few(tmp_path: Path) -> None:
    def calls(count: int) -> int:
        driven = Driven(FileInput(write_lines(tmp_path / str(count), count), TextParser()))
        return calls_of(lambda: driven.plan(10_000))

    assert grows_in_step(calls(FEW), calls(MANY))


def test_a_run_in_many_batches_looks_only_at_the_holes_of_partitions_with_open_records(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    looks = 0
    holes: Any = Ranges.holes

    def counted(ranges: Ranges) -> int:
        nonlocal looks
        looks += 1
        return int(holes.fget(ranges))

    monkeypatch.setattr(Ranges, "holes", property(counted))
    write_lines(cluster.folder / "in", FEW)
    source = cluster.source("in/*.txt", batch_records=4, checkpoint=MemoryCheckpoint())
    assert source.run(NO_SPARK, save_all).batches == FEW // 2
    assert looks <= 6 * FEW


@pytest.mark.parametrize(("write_s", "writes"), [(0.5, 30), (2.0, 3)])
def test_a_checkpoint_that_is_slow_to_write_is_written_less_often_and_still_at_the_end(
    cluster: Cluster, write_s: float, writes: int
) -> None:
    class Slow(MemoryCheckpoint):
        def save(self, committed: Mapping[str, Committed]) -> None:
            cluster.time.sleep(write_s)
            super().save(committed)

    def process(batch: Batch) -> None:
        cluster.time.sleep(1.0)
        save_all(batch)

    checkpoint = Slow()
    write_lines(cluster.folder / "in", 60)
    summary = cluster.source("in/*.txt", batch_records=4, checkpoint=checkpoint).run(NO_SPARK, process)
    assert (summary.batches, summary.open, checkpoint.saves) == (30, 0, writes)
    assert [each.done.prefix for each in checkpoint.saved.values()] == [2] * 60


def test_a_folder_of_which_many_files_were_removed_is_scanned_once_for_all_of_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 0.0
    paths = write_lines(tmp_path / "in", 50)
    driven = Driven(FileInput(paths, TextParser(), follow_s=1.0, clock=lambda: now))
    driven.finish(driven.plan(1000))
    for path in (tmp_path / "in").iterdir():
        path.unlink()
    scans: list[str] = []
    scandir = os.scandir

    def counted(folder: str) -> Any:
        scans.append(folder)
        return scandir(folder)

    monkeypatch.setattr(os, "scandir", counted)
    now = 1.0
    driven.input.plan(10, 1)
    # The pattern scans the folder, too.
    assert scans.count(f"{tmp_path}/in") <= 2
