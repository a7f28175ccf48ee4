"""``acker offsets``: show where a source of Kafka is, and move it while no driver runs."""

from __future__ import annotations

import json
import subprocess
import sys
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest

from acker_client.source import Batch, CheckpointError, Kafka
from acker_client.source.kafka.broker import LATEST, Broker
from acker_client.source.kafka.names import At
from acker_client.source.kafka.offset_metadata import CommitMetadata
from acker_command.offsets import offsets
from acker_command.options import run
from tests.source.executors import NO_SPARK, Cluster, frame_of, save_all
from tests.source.kafka_broker import MockKafka


@dataclass
class Job:
    """A source of one topic, whose name is its group. ``checkpoint``: None, "kafka", or the name of a file."""

    kafka: MockKafka
    topic: str
    folder: Path
    checkpoint: str | None
    capsys: pytest.CaptureFixture[str]
    read: list[bytes] = field(default_factory=list)

    def source(self, **more: Any) -> Kafka:
        kept: Any = self.folder / self.checkpoint if self.checkpoint not in (None, "kafka") else self.checkpoint
        options: dict[str, Any] = {"stop": "end", "environment": Cluster(self.folder).environment(), **more}
        options |= {"checkpoint": kept, "bootstrap_servers": self.kafka.servers, "name": self.topic}
        return Kafka(self.topic, **options)

    def run(self) -> list[bytes]:
        """Run the source to the end. Returns the values that it has read, sorted."""
        self.read = []

        def process(batch: Batch) -> None:
            self.read += [row.value for row in frame_of(batch).rows()]
            save_all(batch)

        self.source().run(NO_SPARK, process)
        return sorted(self.read)

    def words(self, *words: str) -> list[str]:
        is_file = self.checkpoint not in (None, "kafka")
        named = ["--checkpoint", str(self.folder / str(self.checkpoint))] if is_file else []
        return [self.topic, "--bootstrap-servers", self.kafka.servers, *named, *words]

    def printed(self, *words: str) -> str:
        ended = run(offsets, self.words(*words))
        out, err = self.capsys.readouterr()
        assert (ended, err) == (0, "")
        return str(out)

    def mistaken(self, *words: str) -> str:
        assert run(offsets, self.words(*words)) == 2
        out, err = self.capsys.readouterr()
        assert (out, err.count("\n")) == ("", 1)
        return str(err.removeprefix("acker offsets: ").strip())

    def found(self) -> dict[str, dict[str, Any]]:
        seen = json.loads(self.printed("--json"))
        return {each["partition"].rpartition("/")[2]: each for each in seen["partitions"]}


CHECKPOINTS = [None, "kafka", "a.ckpt"]


@pytest.fixture
def job(kafka: MockKafka, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Callable[..., Job]:
    def make(checkpoint: str | None, *counts: int) -> Job:
        return Job(kafka, kafka.new_topic(*(counts or (10, 5))), tmp_path, checkpoint, capsys)

    return make


def values(partition: int, first: int, stop: int) -> list[bytes]:
    return [f"{partition}.{k}".encode() for k in range(first, stop)]


def test_it_shows_where_a_source_is_in_each_partition(job: Callable[..., Job]) -> None:
    one = job("a.ckpt")
    batches = one.source(batch_records=8).batches(NO_SPARK)
    batch = next(batches)
    rows = frame_of(batch).rows()
    frame_of(batch).ack(row for row in rows if row.value not in (b"0.1", b"1.3"))
    batch.done()
    batches.close()
    lines = one.printed().splitlines()
    assert lines[:3] == [f"source {one.topic}: 4 partitions", "", lines[2]]
    assert [line.split() for line in lines[2:5]] == [
        ["partition", "earliest", "end", "committed", "checkpoint", "holes", "next"],
        [f"{one.topic}/0", "0", "10", "1", "1", "1", "1"],
        [f"{one.topic}/1", "0", "5", "3", "3", "0", "3"],
    ]
    assert len(one.printed("--partition", f"{one.topic}/1").splitlines()) == 4


@pytest.mark.sampled(3)
@pytest.mark.parametrize("checkpoint", CHECKPOINTS)
def test_after_a_move_the_next_start_reads_from_there_and_only_from_there(
    job: Callable[..., Job], checkpoint: str | None
) -> None:
    one = job(checkpoint)
    assert len(one.run()) == 15
    assert one.run() == []
    one.printed("--to", "3", "--partition", f"{one.topic}/0", "--partition", f"{one.topic}/1")
    assert one.run() == [*values(0, 3, 10), *values(1, 3, 5)]
    one.printed("--to", "earliest", "--partition", f"{one.topic}/1")
    assert one.run() == values(1, 0, 5)
    one.kafka.write(one.topic, 0, [b"skipped"] * 4)
    one.printed("--to", "latest")
    assert one.run() == []
    assert one.found()["0"]["next"] == 14
    one.printed("--to", "9", "--partition", f"{one.topic}/0")
    assert one.run() == [b"0.9", *[b"skipped"] * 4]


@pytest.mark.sampled(3)
@pytest.mark.parametrize("checkpoint", CHECKPOINTS)
def test_a_dry_run_shows_the_move_and_changes_nothing(job: Callable[..., Job], checkpoint: str | None) -> None:
    one = job(checkpoint)
    one.run()
    before = one.kafka.committed(one.topic, one.topic)
    lines = one.printed("--to", "earliest", "--dry-run").splitlines()
    assert (lines[0], lines[2].split()[-3:], lines[3].split()[-1]) == (
        f"source {one.topic}: 4 partitions",
        ["would", "move", "to"],
        "0",
    )
    assert one.kafka.committed(one.topic, one.topic) == before
    assert one.run() == []
    lines = one.printed("--to", "2", "--partition", f"{one.topic}/0").splitlines()
    assert lines[0] == f"source {one.topic}: 1 partition moved"
    assert lines[2].endswith("next  moved to")
    assert lines[3].split()[-2:] == ["10", "2"]


@pytest.mark.sampled(3)
@pytest.mark.parametrize("checkpoint", CHECKPOINTS)
def test_a_move_is_refused_while_a_driver_runs_and_changes_nothing(
    job: Callable[..., Job], checkpoint: str | None
) -> None:
    one = job(checkpoint)
    batches = one.source(batch_records=4).batches(NO_SPARK)
    save_all(next(batches))
    next(batches)
    before = one.kafka.committed(one.topic, one.topic)
    words = ("--to", "latest", *(["--stopped"] if checkpoint == "a.ckpt" else []))
    refused = one.mistaken(*words)
    assert ("is in use by another running source" if checkpoint == "a.ckpt" else "and has not ended since") in refused
    assert "! " in one.printed()
    assert one.found()["0"]["running"] is True
    assert one.kafka.committed(one.topic, one.topic) == before
    for batch in batches:
        save_all(batch)
    assert one.found()["0"]["running"] is False
    one.printed("--to", "earliest")
    assert len(one.run()) == 15


@pytest.mark.parametrize("checkpoint", [None, "kafka"])
def test_a_driver_that_runs_all_the_same_stops_and_does_not_undo_the_move(
    job: Callable[..., Job], checkpoint: str | None
) -> None:
    one = job(checkpoint)
    batches = one.source(batch_records=4).batches(NO_SPARK)
    save_all(next(batches))
    next(batches)
    one.printed("--to", "1", "--stopped", "--partition", f"{one.topic}/0", "--partition", f"{one.topic}/1")
    with pytest.raises(CheckpointError, match=r"were moved by `acker offsets` on .* while this driver ran"):
        deque(map(save_all, batches))
    assert one.found()["0"]["next"] == 1
    assert one.run() == [*values(0, 1, 10), *values(1, 1, 5)]


def test_a_move_keeps_the_id_of_the_topic_so_that_a_later_start_refuses_another_topic_of_that_name(
    job: Callable[..., Job],
) -> None:
    one = job("kafka")
    one.run()
    offset, text = one.kafka.committed(one.topic, one.topic)[0]
    own = CommitMetadata.from_text(text, offset)
    assert own is not None
    # The mock cluster gives its topics no ids.
    one.kafka.commit(one.topic, one.topic, [(0, offset)], replace(own, topic_id="first").to_text(4096))
    one.printed("--to", "3", "--partition", f"{one.topic}/0")
    offset, text = one.kafka.committed(one.topic, one.topic)[0]
    assert (offset, json.loads(text)["topic_id"]) == (3, "first")


@pytest.mark.long
def test_after_a_crash_the_user_says_that_the_driver_is_stopped(job: Callable[..., Job]) -> None:
    one = job("kafka", 30)
    program = f"""
import os
from tests.source.executors import *
from pathlib import Path
from acker_client.source import Kafka
source = Kafka({one.topic!r}, name={one.topic!r}, bootstrap_servers={one.kafka.servers!r}, checkpoint="kafka",
               stop="end", batch_records=10, environment=Cluster(Path({str(one.folder)!r})).environment())
for batch in source.batches(NO_SPARK):
    if batch.number == 3:
        os._exit(9)
    save_all(batch)
"""
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 9
    assert "If it has died" in one.mistaken("--to", "earliest")
    one.printed("--to", "earliest", "--stopped")
    assert one.run() == sorted(values(0, 0, 30))


def test_a_time_moves_to_its_first_record(job: Callable[..., Job], monkeypatch: pytest.MonkeyPatch) -> None:
    one = job("kafka")
    one.run()
    asked: list[int] = []
    ask = Broker.offsets

    def timed(self: Broker, partitions: Sequence[At], at: int, timeout_s: float | None = None) -> dict[At, int]:
        # The mock cluster has no index of times.
        if at < 0:
            return ask(self, partitions, at, timeout_s)
        asked.append(at)
        return {each: min(4, end) for each, end in ask(self, partitions, LATEST, timeout_s).items()}

    monkeypatch.setattr(Broker, "offsets", timed)
    one.printed("--to", "2026-11-22T08:30")
    assert asked == [1_795_336_200_000]
    assert [one.found()[number]["next"] for number in "012"] == [4, 4, 0]


def test_what_cannot_be_done_is_one_sentence(job: Callable[..., Job], tmp_path: Path) -> None:
    one = job("a.ckpt")
    assert "there is no checkpoint" in one.mistaken()
    one.run()
    assert f"{one.topic}/1 has the offsets 0 to 5, and 7 is not among them" in one.mistaken("--to", "7")
    assert "is no partition that source" in one.mistaken("--partition", f"{one.topic}/9")
    assert "--partition: 'orders' is no partition of a topic" in one.mistaken("--partition", "orders")
    assert "--to soon: give earliest, latest, an offset, a time like" in one.mistaken("--to", "soon")
    for beyond in ("99999999999999999999d", "999999999999d", "999999999d", "9" * 5000):
        assert f"--to {beyond}: give earliest, latest, an offset, a time like" in one.mistaken("--to", beyond)
    assert "--dry-run without --to" in one.mistaken("--dry-run")
    other = Job(one.kafka, one.topic, tmp_path, None, one.capsys)
    assert "give its file with --checkpoint" in other.mistaken("--to", "0")
    assert "topic 'no-such' does not exist" in one.mistaken("--topic", "no-such")
    assert "--command-config" in one.mistaken("--command-config", str(tmp_path / "none"))
    (tmp_path / "keystore.jks").write_bytes(b"\xfe\xed\xfe\xed")
    assert "keystore.jks: this is no text" in one.mistaken("--command-config", str(tmp_path / "keystore.jks"))
    (tmp_path / "settings").write_text("# TLS\nsecurity.protokol = ssl\n")
    assert 'No such configuration property: "security.protokol"' in one.mistaken(
        "--command-config", str(tmp_path / "settings")
    )
    nobody = [str(each).replace(one.topic, "nobody", 1) if k == 0 else each for k, each in enumerate(other.words())]
    assert run(offsets, nobody) == 2
    assert "source 'nobody' has read nothing of any topic as group 'nobody'" in one.capsys.readouterr().err


def test_a_checkpoint_is_named_by_a_url_of_a_file_too(job: Callable[..., Job]) -> None:
    one = job("a.ckpt")
    one.run()
    words = [one.topic, "--bootstrap-servers", one.kafka.servers, "--checkpoint", f"file://{one.folder}/a.ckpt"]
    assert run(offsets, [*words, "--json"]) == 0
    assert {each["checkpoint"] for each in json.loads(one.capsys.readouterr().out)["partitions"]} >= {10, 5}


@pytest.mark.parametrize("url", ["s3://bucket/orders.ckpt", "gs://bucket/orders.ckpt"])
def test_a_checkpoint_in_an_object_store_is_refused_with_what_to_do(job: Callable[..., Job], url: str) -> None:
    one = job(None)
    said = one.mistaken("--checkpoint", url)
    assert said == (
        f"--checkpoint {url}: a checkpoint in an object store can be neither shown nor moved: start the source under"
        " another name, with another checkpoint and start="
    )


def test_a_source_whose_checkpoint_is_no_file_is_told_so(job: Callable[..., Job], tmp_path: Path) -> None:
    job_with_checkpoint = job("a.ckpt")
    job_with_checkpoint.run()
    one = Job(job_with_checkpoint.kafka, job_with_checkpoint.topic, tmp_path, None, job_with_checkpoint.capsys)
    said = one.mistaken()
    assert said.endswith("A checkpoint in S3 or ZooKeeper can be neither shown nor moved")
