"""Trees across jobs: a record handed on through a topic is ACKED when the second job's record of it is ACKED."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from acker_client import AckerClient
from acker_client.cluster.handed_on import HEADER, HandedOn, headers_of, taken_up
from acker_client.pins import ANY_NUMBER, NowhereToSend, Pin
from acker_client.source import Batch, Files, Kafka, Retry, SourceError, hand_on
from acker_client.source.engine.options import Options
from acker_client.source.engine.run import Run
from acker_client.source.engine.upstream import UNSENT_MAX, UpstreamTrees
from acker_client.source.kafka.hand_on import TopicMessages
from acker_client.source.kafka.input import KafkaInput
from acker_client.source.kafka.names import KafkaConnection
from acker_client.source.kafka.topic_writer import writer_of
from acker_client.source.records.input import Chosen
from acker_client.spark.anchoring.anchors import Anchors, Rows
from acker_client.spark.anchoring.tally import Tally
from acker_client.spark.operators.hand_on import HandOnStep, Message
from acker_protocol.ids import Column, edge0_column, root_ids
from acker_protocol.messages import Identity, InitScope, Settlement, Verdict
from acker_protocol.placement import Member, View, place
from acker_protocol.reports import fold
from tests.client.test_client_members import Servers
from tests.source.executors import NO_SPARK, Cluster, Log, frame_of
from tests.source.executors import Row as Line
from tests.source.kafka_broker import MockKafka

TIMEOUT_S = 60.0


@dataclass
class Topic:
    """The destination of a task. The next ``fails`` writes fail; after the next ``dies`` writes the task dies."""

    messages: TopicMessages
    fails: int = 0
    dies: int = 0
    written: list[bytes | None] = field(default_factory=list)

    def write(self, messages: Any) -> None:
        given: list[Message] = list(messages)
        if self.fails:
            self.fails -= 1
            raise SourceError("Kafka: no broker has answered")
        self.messages.write(given)
        self.written += [value for _, value, _ in given]
        if self.dies:
            self.dies -= 1
            raise RuntimeError("the executor is gone")


@dataclass
class Jobs:
    """Two jobs on one server: ``first`` hands the lines of files on to a topic, ``second`` reads and saves them."""

    cluster: Cluster
    kafka: MockKafka
    topic: str
    out: Topic
    log: Log = field(default_factory=Log)
    log_2: Log = field(default_factory=Log)
    saved: list[str] = field(default_factory=list)
    opened: ExitStack = field(default_factory=ExitStack)

    def open(self, source: Files) -> Run:
        """Return a run of the first job for the test to drive. It ends with the test."""
        return self.opened.enter_context(source._begin_run(NO_SPARK))

    def first(self, **options: Any) -> Files:
        given = {"retry": Retry(max_retries=3, initial_s=0.1), "listener": self.log, **options}
        return self.cluster.source(held=False, message_timeout_s=TIMEOUT_S, **given)

    def second(self, **options: Any) -> Kafka:
        given = {"name": "second", "max_dead_share": 1.0, "stop": "end", "first_poll": "earliest", **options}
        given = {"retry": Retry(max_retries=2, initial_s=0.1), "listener": self.log_2, **given}
        return Kafka(
            self.topic,
            bootstrap_servers=self.kafka.servers,
            acks_upstream=True,
            timeout_s=10.0,
            environment=self.cluster.environment(),
            **given,
        )

    def hand_on(self, batch: Batch, rows: list[Line] | None = None) -> None:
        """Hand rows on as a task does: write all of them, then send the report."""
        frame = frame_of(batch)
        step = HandOnStep("hand_on", self.out, None, "value", frame.plan.pins)
        lines = frame.rows() if rows is None else rows
        tally = Tally("hand_on")
        data = pa.RecordBatch.from_pydict({"value": [row.value for row in lines]})
        anchors = Anchors(np.array([r.root for r in lines], np.uint64), np.array([r.edge for r in lines], np.uint64))
        for _ in step.start(tally)(Rows(data, anchors)):
            pass
        report = tally.report()
        frame.client.report_pinned(report.identity, report.entries, None, frame.plan.pins)

    def save(self, batch: Batch) -> None:
        rows = frame_of(batch).rows()
        self.saved += [row.value.decode() for row in rows]
        frame_of(batch).ack(rows)

    def run_second(self, process: Callable[[Batch], object] | None = None, **options: Any) -> None:
        self.second(**options).run(NO_SPARK, process or self.save)


@pytest.fixture
def jobs(tmp_path: Path, kafka: MockKafka) -> Iterator[Jobs]:
    topic = kafka.new_topic(prefix="handed")
    connection = KafkaConnection.of(kafka.servers, "hand-on", None, 10.0)
    made = Jobs(Cluster(tmp_path), kafka, topic, Topic(TopicMessages(topic, connection)))
    with made.opened:
        yield made


def test_a_record_is_acked_when_the_record_of_the_second_job_is_and_not_before(jobs: Jobs) -> None:
    jobs.cluster.write("a.txt", "one", "two", "three")
    source = jobs.first(batch_records=3)
    run = jobs.open(source)
    batch = run.next_batch()
    assert batch is not None
    jobs.hand_on(batch)
    run.settle_batch(batch)
    assert jobs.log.acked == [] == jobs.log.failed

    def save(batch: Batch) -> None:
        jobs.save(batch)
        run._outcomes.take_outcomes(0.0)
        assert jobs.log.acked == [], "the second job's batch is not settled"

    jobs.run_second(save)
    assert run.next_batch() is None
    assert sorted(jobs.saved) == ["one", "three", "two"]
    assert sorted(jobs.log.acked) == [0, 1, 2]
    assert jobs.log.failed == []


def test_a_record_given_up_by_the_second_job_fails_in_the_first(jobs: Jobs) -> None:
    jobs.cluster.write("a.txt", "good", "bad")

    def process(batch: Batch) -> None:
        frame = frame_of(batch)
        rows = frame.rows()
        frame.fail({row.root: "ValueError: bad" for row in rows if row.value == b"bad"})
        frame.ack(row for row in rows if row.value != b"bad")

    first = jobs.first(retry=Retry(max_retries=0))
    run = jobs.open(first)
    batch = run.next_batch()
    assert batch is not None
    jobs.hand_on(batch)
    run.settle_batch(batch)
    jobs.run_second(process, dead_letters=jobs.cluster.folder / "second.jsonl")
    assert run.next_batch() is None
    assert jobs.log.acked == [0]
    assert jobs.log.failed == [(1, "second: ValueError: bad")]
    assert jobs.log.dead == [1]


@pytest.mark.long
def test_a_message_that_is_never_taken_up_times_out_and_is_handed_on_again(jobs: Jobs) -> None:
    jobs.cluster.write("a.txt", "one")
    run = jobs.open(jobs.first())
    for _ in range(2):
        batch = run.next_batch()
        assert batch is not None
        jobs.hand_on(batch)
        run.settle_batch(batch)
    assert jobs.log.failed == [(0, "message_timeout")]
    # The second job reads both copies. The copy whose root timed out has no effect.
    jobs.run_second()
    assert run.next_batch() is None
    assert jobs.saved == ["one", "one"]
    assert jobs.log.acked == [0]


def test_a_task_whose_write_fails_has_reported_nothing_and_its_batch_is_replayed(jobs: Jobs) -> None:
    jobs.cluster.write("a.txt", "one", "two")
    jobs.out.fails = 1
    source, tries = jobs.first(), list[int]()

    def process(batch: Batch) -> None:
        tries.append(batch.replays)
        jobs.hand_on(batch)
        jobs.run_second()

    source.run(NO_SPARK, process)
    assert tries == [0, 2]
    assert sorted(jobs.saved) == ["one", "two"]
    assert sorted(jobs.log.acked) == [0, 1]


def test_a_task_that_is_run_again_writes_the_same_edges_and_two_copies_are_acked_once(jobs: Jobs) -> None:
    jobs.cluster.write("a.txt", "one", "two")
    jobs.out.dies = 1

    def process(batch: Batch) -> None:
        rows = frame_of(batch).rows()
        with pytest.raises(RuntimeError, match="gone"):
            jobs.hand_on(batch, rows)
        jobs.hand_on(batch, rows)
        jobs.run_second()

    jobs.first().run(NO_SPARK, process)
    assert sorted(jobs.saved) == ["one", "one", "two", "two"]
    assert sorted(jobs.log.acked) == [0, 1]
    assert jobs.log.failed == []


@pytest.mark.long
@pytest.mark.parametrize(("name", "is_acked"), [("second", True), ("another", False)])
def test_a_row_that_became_two_messages_waits_for_both_and_one_read_twice_is_no_other(
    jobs: Jobs, name: str, is_acked: bool
) -> None:
    jobs.cluster.write("a.txt", "one")
    run = jobs.open(jobs.first())
    batch = run.next_batch()
    assert batch is not None
    frame = frame_of(batch)
    (row,) = frame.rows()
    # An operator made two rows of it, with edges 5 and 9.
    frame.ack([Line(row.root, row.edge ^ 5 ^ 9, None, 0, "")])
    of_5, of_9 = ([Line(row.root, edge, f"{edge}", 0, "")] for edge in (5, 9))
    jobs.hand_on(batch, of_5)
    run.settle_batch(batch)
    jobs.run_second()
    run._outcomes.take_outcomes(0.0)
    assert jobs.log.acked == [], "one of two is not both"
    jobs.hand_on(batch, of_9)
    # A source with the same name goes on with 9. One with another name begins anew and acks 5 a second time.
    jobs.run_second(name=name)
    run._outcomes.take_outcomes(0.0)
    assert jobs.log.acked == ([0] if is_acked else [])
    assert (run.next_batch() is None) == is_acked
    assert jobs.log.failed == ([] if is_acked else [(0, "message_timeout")])


def test_acks_for_servers_that_are_away_are_sent_later_under_the_same_identity(jobs: Jobs) -> None:
    run, handed = handed_on_by(jobs, 1)
    upstream = UpstreamTrees(jobs.cluster.client(), jobs.cluster.time.clock)
    jobs.cluster.stop_for(7.0)
    upstream.ack_anchors(handed)
    upstream.ack_anchors(handed)
    jobs.cluster.time.sleep(20.0)
    jobs.cluster.sleep(1.0)
    upstream.send()
    run._outcomes.take_outcomes(0.0)
    assert jobs.log.acked == [0]
    upstream.close()


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.parametrize("seed", range(6))
def test_at_random_acked_records_of_the_first_job_were_written_by_the_second(jobs: Jobs, seed: int) -> None:
    """The oracle is the set of lines that settled batches of the second job have written. Tasks die after writing, and
    writes fail. Second jobs abandon batches, crash before their checkpoint moves, and read everything again."""
    draw = random.Random(seed)
    lines = [f"{seed}-{k}" for k in range(12)]
    jobs.cluster.write("a.txt", *lines)
    settled: set[str] = set()
    jobs.log.on_ack = lambda acked: early.extend(  # type: ignore[method-assign]
        lines[k] for k in acked.records.tolist() if lines[k] not in settled
    )
    early: list[str] = []
    seconds = 0

    def second(batch: Batch) -> None:
        rows = frame_of(batch).rows()
        if draw.random() < 0.3:
            frame_of(batch).ack(row for row in rows if draw.random() < 0.5)
            raise ArithmeticError("the second job broke")
        frame_of(batch).ack(rows)
        settled.update(row.value.decode() for row in rows)

    def first(batch: Batch) -> None:
        nonlocal seconds
        rows = frame_of(batch).rows()
        jobs.out.dies, jobs.out.fails = draw.random() < 0.3, draw.random() < 0.2
        try:
            jobs.hand_on(batch, rows)
        except (RuntimeError, SourceError):
            jobs.out.dies = jobs.out.fails = 0
            if draw.random() < 0.5:
                raise
            jobs.hand_on(batch, rows)
        for _ in range(draw.choice((0, 1, 1, 2))):
            seconds += 1
            # A source with another name reads everything again, like one that crashed before its first commit.
            name = draw.choice(("second", f"second-{seconds}"))
            jobs.run_second(second, name=name, retry=Retry(max_retries=50, initial_s=0.01), batch_records=5)

    retry = Retry(max_retries=1_000, initial_s=0.1, max_interruptions=1_000)
    jobs.first(batch_records=4, retry=retry).run(NO_SPARK, first)
    assert early == []
    assert settled == set(lines)


@pytest.mark.parametrize("trouble", ["none", "stopped", "without its state"])
def test_on_several_servers_the_ack_reaches_every_replica_that_is_there(trouble: str) -> None:
    servers = Servers(3)
    source, pin, roots, children = pending_at(servers)
    headers = headers_of((pin,), roots, children, np.arange(60, dtype=np.uint64), 60)
    if trouble == "stopped":
        servers[1].stop()
    elif trouble == "without its state":
        servers[1].start(with_state=False)
    upstream = UpstreamTrees(servers.client("second"), lambda: 0.0)
    upstream.ack_anchors(each for row in headers for each in taken_up(row))
    assert ends_of(source) == Counter({Verdict.ACKED: 60})
    upstream.close()
    servers.close()


def pending_at(servers: Servers, replicas: int = 2) -> tuple[AckerClient, Pin, Column, Column]:
    """Return a source that has handed 60 records on, the pin of their batch, their roots, and the messages' edges."""
    source, executor = servers.client("source", replicas=replicas), servers.client("executor")
    session = source.open_source("first")
    pin = source.open_batch(1, 1 << 40, 60, held=False, message_timeout_s=60.0)
    roots = root_ids(1 << 40, np.arange(60, dtype=np.uint64))
    edges, children = edge0_column(roots), np.arange(1, 61, dtype=np.uint64)
    covered = InitScope(session, 1, np.array([[0, 60]], np.uint64))
    executor.report_pinned(Identity(1, 1), fold(roots, edges), covered, (pin,))
    executor.report_pinned(Identity(1, 2), fold(roots, edges ^ children), None, (pin,))
    source.settle(1, Settlement.DONE)
    return source, pin, roots, children


def ends_of(source: AckerClient) -> Counter[Verdict]:
    ended = Counter[Verdict]()
    for _ in range(10):
        ended.update(outcome.verdict for outcome in source.watch(1.0).outcomes)
        if ended.total() == 60:
            break
    return ended


# -- headers


def two_servers() -> Pin:
    view = View(3, (Member(0, 11, "a:1"), Member(1, 12, "b:1"), Member(2, 13, "c:1")))
    return Pin(7, 1, 100, 50, place(view, 7, 1, 2))


def test_headers_name_the_replicas_of_each_root_by_id_and_generation_and_no_address() -> None:
    pin = two_servers()
    roots = root_ids(100, np.arange(50, dtype=np.uint64))
    edges = np.arange(1, 51, dtype=np.uint64)
    owners = np.arange(50, dtype=np.uint64) // np.uint64(5)
    headers = headers_of((pin,), roots, edges, owners, 10)
    found = {(anchor, each.replicas) for row in headers for each in taken_up(row) for anchor in each.anchors}
    generations = [(member.id, member.generation) for member in pin.placement.members]
    replicas = pin.placement.replicas_of(roots).tolist()
    assert found == {
        ((int(root), int(edge)), tuple(generations[index] for index in those))
        for root, edge, those in zip(roots, edges, replicas, strict=True)
    }
    assert all(name == HEADER and b":1" not in value for row in headers for name, value in row)
    with pytest.raises(NowhereToSend):
        headers_of((pin,), np.array([1], np.uint64), edges[:1], owners[:1], 1)


MALFORMED = [
    *(b"", b"2[[0,1]]\n", b"1[[0,1]]\n123", b"1[[0]]\n", b"1nothing\n", b"1[[0,1]]", None),
    *(b"1[[1e999,1]]\n", b"1" + b"[" * 100_000 + b"\n", b"1[[0,1]]\n" + bytes(8) + b"12345678"),
]


@pytest.mark.parametrize("value", MALFORMED)
def test_a_header_that_is_not_to_be_understood_is_an_error_and_never_an_ack(value: bytes | None) -> None:
    with pytest.raises(ValueError, match=HEADER):
        taken_up([("other", b"x"), (HEADER, value)])


def test_a_message_with_a_header_that_is_not_understood_is_a_record_like_any_other(jobs: Jobs) -> None:
    for value in (b"9?", *filter(None, MALFORMED)):
        jobs.kafka.write(jobs.topic, 0, [b"one"], headers=[(HEADER, value)])
    jobs.run_second()
    assert set(jobs.saved) == {"one"}


def handed_on_by(jobs: Jobs, lines: int) -> tuple[Run, list[HandedOn]]:
    """Return a run of the first job that has handed this many lines on, and the content of their headers."""
    jobs.cluster.write("a.txt", *(f"{k}" for k in range(lines)))
    run = jobs.open(jobs.first())
    batch = run.next_batch()
    assert batch is not None
    jobs.hand_on(batch)
    run.settle_batch(batch)
    reader = jobs.second().input()[0]
    assert isinstance(reader, KafkaInput)
    reader.start({})
    handed = reader.taken_up([Chosen(part) for part in reader.plan(100, 1).parts])
    reader.close()
    return run, [each for found in handed for each in found]


def test_headers_with_unknown_servers_are_logged_once_and_displace_no_others(
    jobs: Jobs, caplog: pytest.LogCaptureFixture
) -> None:
    run, handed = handed_on_by(jobs, 1)
    forged = [HandedOn(((7, generation),), ((5, 5),)) for generation in range(3 * UNSENT_MAX)]
    upstream = UpstreamTrees(jobs.cluster.client(), jobs.cluster.time.clock)
    upstream.ack_anchors([*handed, *forged])
    upstream.ack_anchors(HandedOn(each.replicas, ((6, 6),)) for each in forged)
    run._outcomes.take_outcomes(0.0)
    assert jobs.log.acked == [0]
    said = [message for message in caplog.messages if "servers unknown here (ids 7; known are 0 at " in message]
    assert 1 <= len(said) == len(caplog.messages) <= 10
    upstream.close()


@pytest.mark.parametrize("replicas", [1, 2])
def test_an_ack_reaches_draining_servers(replicas: int) -> None:
    servers = Servers(3)
    source, pin, roots, children = pending_at(servers, replicas)
    upstream = UpstreamTrees(servers.client("second"), lambda: 0.0)
    for member in pin.placement.members[:2]:
        servers[member.id].ask(lambda shard, now: shard.drain())
        upstream._client._state().cluster.drains(member)
    headers = headers_of((pin,), roots, children, np.arange(60, dtype=np.uint64), 60)
    upstream.ack_anchors(each for row in headers for each in taken_up(row))
    assert ends_of(source) == Counter({Verdict.ACKED: 60})
    upstream.close()
    servers.close()


# -- options


def test_batches_that_are_not_held_need_a_timeout() -> None:
    with pytest.raises(ValueError, match="message_timeout_s"):
        Options(name="a", held=False)
    assert Pin(0, 0, 1, ANY_NUMBER, two_servers().placement).has(np.array([5], np.uint64)).all()


def test_a_hand_on_that_does_not_wait_for_all_replicas_is_refused() -> None:
    for config in ({"acks": 1}, {"request.required.acks": "0"}):
        with pytest.raises(ValueError, match="acks"):
            hand_on("topic", bootstrap_servers="localhost:1", config=config)


def test_hand_ons_of_unlike_messages_have_unlike_names_so_that_one_frame_has_one_of_them() -> None:
    one = hand_on("orders", bootstrap_servers="a:1")
    assert one.name == hand_on("orders", bootstrap_servers="a:1", config={"linger.ms": 5}).name
    others = (
        hand_on("sales", bootstrap_servers="a:1"),
        hand_on("orders", bootstrap_servers="b:1"),
        hand_on("orders", bootstrap_servers="a:1", key="sku"),
        hand_on("orders", bootstrap_servers="a:1", value="sku"),
    )
    assert len({one.name, *(other.name for other in others)}) == 5


def test_a_producer_that_has_failed_is_not_used_again(kafka: MockKafka) -> None:
    topic = kafka.new_topic(prefix="large")
    connection = KafkaConnection.of(kafka.servers, "hand-on", {"message.max.bytes": 2_000}, 10.0)
    messages, writer = TopicMessages(topic, connection), writer_of(connection)
    with pytest.raises(SourceError, match=r"[Mm]essage size too large"):
        messages.write([(None, b"small", []), (None, b"x" * 10_000, [])])
    assert writer_of(connection) is not writer
    messages.write([(None, b"small", [])])
