"""Random faults in any order: every record is acked or dead-lettered, and no record is acked without its write."""

from __future__ import annotations

import contextlib
import json
import threading
from dataclasses import dataclass, field

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from acker_client import AckerClient, Settings
from acker_client.cluster.watched import WatchResult
from acker_client.source import Batch, Emissions, Retry, SourceError
from acker_client.source.engine.watcher import Watcher
from acker_testing import LocalServer
from tests.source.executors import NO_SPARK, Cluster, Frame, Log, Row, frame_of

FAULTS = [
    "fine",
    "fails",
    "drops",
    "breaks",
    "swallows",
    "reads half",
    "loses server",
    "restarts",
    "loses and dies",
    "away",
    "away for long",
]


@dataclass
class Judge(Log):
    """Collects the root ids of acked records."""

    acked_roots: list[int] = field(default_factory=list)

    def on_ack(self, acked: Emissions) -> None:
        super().on_ack(acked)
        self.acked_roots += acked.roots.tolist()


@dataclass
class Job:
    """User code that meets the k-th fault in the k-th batch. ``committed``: roots whose rows were durably written."""

    cluster: Cluster
    faults: list[str]
    committed: set[int] = field(default_factory=set)

    def process(self, batch: Batch) -> None:
        fault = self.faults[batch.number - 1] if batch.number <= len(self.faults) else "fine"
        frame = frame_of(batch)
        rows = frame.rows(slice(0, 1 if fault == "reads half" else None))
        victims, others = rows[::3], [row for index, row in enumerate(rows) if index % 3]
        if fault == "fails":
            frame.fail({row.root: "bad" for row in victims})
        kept = others if fault in ("fails", "drops") else rows
        frame.ack(kept)
        if fault in ("breaks", "swallows", "loses and dies"):
            self._fail(frame, fault)
            return
        self.committed |= {row.root for row in kept}
        self._server(fault)

    def _fail(self, frame: Frame, fault: str) -> None:
        """Fail the write. The user code swallows the exception if the fault is "swallows"."""
        if fault == "loses and dies":
            self.cluster.server.start(with_state=False)
        frame.evidence.error = OSError("no commit")
        if fault != "swallows":
            raise OSError("no commit")

    def _server(self, fault: str) -> None:
        if fault == "loses server":
            self.cluster.server.start(with_state=False)
        elif fault == "restarts":
            self.cluster.server.start(with_state=True)
        elif fault == "away":
            self.cluster.stop_for(7.0)
        elif fault == "away for long":
            # Longer than the lease, but shorter than the deadline after which the source stops with an error.
            self.cluster.stop_for(50.0)


@pytest.mark.long
@given(
    st.integers(1, 60),
    st.lists(st.sampled_from(FAULTS), max_size=12),
    st.integers(1, 25),
    st.sampled_from([Retry(max_retries=1, initial_s=1, cap_s=4), Retry(max_retries=20, initial_s=0, cap_s=0)]),
)
@settings(max_examples=40, deadline=None)
def test_every_record_is_acked_once_or_dead_lettered_once_and_never_acked_without_its_write(
    tmp_path_factory: pytest.TempPathFactory, lines: int, faults: list[str], batch_records: int, retry: Retry
) -> None:
    cluster = Cluster(tmp_path_factory.mktemp("faults"))
    cluster.write("a.txt", *(str(k) for k in range(lines)))
    judge = Judge()
    source = cluster.source(
        listener=judge, retry=retry, batch_records=batch_records, checkpoint=cluster.folder / "c", deadline_s=60.0
    )
    job = Job(cluster, faults)
    summary = source.run(NO_SPARK, job.process)
    assert sorted(judge.acked + judge.dead) == list(range(lines))
    assert set(judge.acked_roots) <= job.committed
    assert (summary.acked, summary.dead_lettered, summary.open) == (len(judge.acked), len(judge.dead), 0)
    assert summary.records + summary.replayed == summary.acked + summary.failed + summary.timed_out + summary.lost
    assert len(list((cluster.folder / "dead.jsonl").open())) == len(judge.dead)
    partitions = json.loads((cluster.folder / "c").read_text())["partitions"]
    assert [(file["done"], file["mark"]["complete"]) for file in partitions] == [([lines], True)]


@pytest.mark.slow
@given(st.lists(st.sampled_from(["fine", "fails", "breaks", "loses server"]), max_size=6), st.integers(0, 6))
@settings(max_examples=25, deadline=None)
def test_a_run_that_dies_anywhere_is_finished_by_the_next_one(
    tmp_path_factory: pytest.TempPathFactory, faults: list[str], dies_at: int
) -> None:
    cluster = Cluster(tmp_path_factory.mktemp("faults"))
    cluster.write("a.txt", *(str(k) for k in range(30)))
    done: set[str] = set()

    def run(faults: list[str], dies_at: int) -> None:
        job = Job(cluster, faults)

        def process(batch: Batch) -> None:
            if batch.number == dies_at:
                raise KeyboardInterrupt
            job.process(batch)

        judge = Judge()
        source = cluster.source(
            listener=judge,
            retry=Retry(max_retries=50, initial_s=0, cap_s=0),
            batch_records=7,
            checkpoint=cluster.folder / "c",
        )
        with contextlib.suppress(KeyboardInterrupt):
            source.run(NO_SPARK, process)
        done.update(str(record) for record in judge.acked)

    run(faults, dies_at)
    first = set(done)
    seen: list[Row] = []

    def finish(batch: Batch) -> None:
        rows = frame_of(batch).rows()
        seen.extend(rows)
        frame_of(batch).ack(rows)

    summary = cluster.source(checkpoint=cluster.folder / "c").run(NO_SPARK, finish)
    assert [int(row.value) for row in seen] == [k for k in range(30) if str(k) not in first]
    assert summary.acked == len(seen) == 30 - len(first)


def test_the_death_of_the_watchers_thread_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    server = LocalServer()
    client = AckerClient(Settings(("in-memory:1",)), connect=server.connect)
    client.open_source("lines")
    watched = threading.Event()

    def watch(wait_s: float) -> WatchResult:
        watched.set()
        raise RuntimeError("a bug of ours")

    monkeypatch.setattr(client, "watch", watch)
    threading.excepthook, before = lambda arguments: None, threading.excepthook
    try:
        watcher = Watcher(client)
        assert watched.wait(30)
        with pytest.raises(SourceError, match="a bug of ours"):
            _take_for_ever(watcher)
    finally:
        threading.excepthook = before
        watcher.stop()
        client.close()


def _take_for_ever(watcher: Watcher) -> None:
    while True:
        watcher.next_result(0.01)
