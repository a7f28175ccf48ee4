"""One name used twice: by two jobs with two checkpoints, and by two drivers at the same time."""

from __future__ import annotations

import itertools
import json
import shutil
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from acker_client.source import CheckpointError, Kafka, Ranges
from acker_client.source.checkpoints.checkpoint_file import CheckpointFile
from acker_client.source.kafka.broker import Broker, CommittedOffset
from acker_client.source.kafka.commits import Commits
from acker_client.source.kafka.connection import Unreachable, library
from acker_client.source.kafka.input import RENEW_AGAIN_S, RENEW_S, KafkaInput
from acker_client.source.kafka.names import At, KafkaConnection
from acker_client.source.kafka.offset_metadata import MOVED, CommitMetadata, RunId
from acker_client.source.records.input import Committed
from acker_client.source.records.stores import Committer
from tests.source.executors import NO_SPARK, Cluster, frame_of, save_all
from tests.source.kafka_broker import MockKafka
from tests.source.logs import MemoryCheckpoint


@dataclass
class Jobs:
    """Makes jobs over one topic, which end at its end. Each has its checkpoint in ``folder``."""

    kafka: MockKafka
    topic: str
    folder: Path

    def job(self, checkpoint: Any = None, *, name: str = "orders", group: str | None = None, **more: Any) -> Kafka:
        options = {"stop": "end", "environment": Cluster(self.folder).environment(), "batch_records": 310, **more}
        kept = self.folder / checkpoint if isinstance(checkpoint, str) and checkpoint != "kafka" else checkpoint
        group = self.topic if group is None else group
        return Kafka(
            self.topic, bootstrap_servers=self.kafka.servers, name=name, group_id=group, checkpoint=kept, **options
        )

    def offset(self, group: str | None = None) -> int:
        return self.kafka.committed(self.topic if group is None else group, self.topic)[0][0]

    def metadata(self) -> dict[str, Any]:
        return dict(json.loads(self.kafka.committed(self.topic, self.topic)[0][1]))


@pytest.fixture
def jobs(kafka: MockKafka, tmp_path: Path) -> Callable[[int], Jobs]:
    return lambda records: Jobs(kafka, kafka.new_topic(records), tmp_path)


def one_batch(job: Kafka) -> None:
    """Run a job for one batch, and end it."""
    batches = job.batches(NO_SPARK)
    batch = next(batches)
    save_all(batch)
    batch.done()
    batches.close()


# -- two jobs, one after the other


def test_a_second_job_under_a_used_name_is_refused_and_the_first_job_reads_each_record(
    jobs: Callable[[int], Jobs],
) -> None:
    two = jobs(1_010)
    one_batch(two.job("a.ckpt"))
    assert two.offset() == 310
    with pytest.raises(CheckpointError) as refused:
        two.job("b.ckpt").run(NO_SPARK, save_all)
    identity = json.loads((two.folder / "a.ckpt").read_text())["identity"]
    for said in (f"{two.topic}/0", f"Group '{two.topic}'", "'orders'", identity, "b.ckpt", "group_id of its own"):
        assert said in str(refused.value)
    again = two.job("a.ckpt").run(NO_SPARK, save_all)
    assert (again.acked, again.checkpoint) == (700, f"4 partitions of {two.topic}, 0 offsets behind the end")


def test_a_new_checkpoint_under_a_used_name_is_refused_and_each_way_out_works(jobs: Callable[[int], Jobs]) -> None:
    two = jobs(100)
    assert two.job("a.ckpt").run(NO_SPARK, save_all).acked == 100
    for _ in range(2):
        with pytest.raises(CheckpointError, match="two checkpoints for one name"):
            two.job("b.ckpt").run(NO_SPARK, save_all)
    # A group of its own: from its own checkpoint, which is new.
    own = two.job("b.ckpt", group=f"{two.topic}-b").run(NO_SPARK, save_all)
    assert (own.acked, two.offset(f"{two.topic}-b"), two.offset()) == (100, 100, 100)
    # Another name in the same group: from the commits.
    two.kafka.write(two.topic, 0, [b"late"])
    on_purpose = two.job("c.ckpt", name="orders-2").run(NO_SPARK, save_all)
    assert (on_purpose.acked, on_purpose.checkpoint) == (1, f"4 partitions of {two.topic}, 0 offsets behind the end")
    # The first job goes on from its own checkpoint, although the group's commits are another source's now.
    assert two.job("a.ckpt").run(NO_SPARK, save_all).acked == 1


def test_a_partition_whose_commit_another_source_has_replaced_is_read_from_its_beginning(
    jobs: Callable[[int], Jobs],
) -> None:
    two = jobs(20)
    two.kafka.write(two.topic, 1, [b"one"] * 5)
    # Reads only the first partition, and commits offset 0 of the second one.
    batches = two.job("a.ckpt", batch_records=3).batches(NO_SPARK)
    batch = next(batches)
    frame_of(batch).ack(row for row in frame_of(batch).rows() if row.value.startswith(b"0."))
    batch.done()
    batches.close()
    assert two.job("b.ckpt", name="billing").run(NO_SPARK, save_all).acked > 0
    seen: list[bytes] = []

    def process(batch: Any) -> None:
        seen.extend(row.value for row in frame_of(batch).rows())
        save_all(batch)

    two.job("a.ckpt").run(NO_SPARK, process)
    assert seen.count(b"one") == 5


@pytest.mark.long
@pytest.mark.parametrize("first_one", [None, "kafka"])
def test_a_file_and_kafkas_offsets_are_two_checkpoints(jobs: Callable[[int], Jobs], first_one: str | None) -> None:
    for first, second in ((first_one, "b.ckpt"), ("a.ckpt", first_one), ("c.ckpt", MemoryCheckpoint())):
        two = jobs(20)
        assert two.job(first).run(NO_SPARK, save_all).acked == 20
        with pytest.raises(CheckpointError, match="two checkpoints for one name"):
            two.job(second).run(NO_SPARK, save_all)
        assert two.job(first).run(NO_SPARK, save_all).acked == 0


@pytest.mark.parametrize(("first_poll", "read"), [("earliest", 20), ("latest", 3)])
def test_a_run_that_dies_in_its_first_batch_is_not_taken_for_another_job(
    jobs: Callable[[int], Jobs], first_poll: str, read: int
) -> None:
    two = jobs(20 if first_poll == "earliest" else 17)
    dies: Any = two.job("a.ckpt", first_poll=first_poll, stop=None)._new_run(NO_SPARK)
    dies.__enter__()
    dies._input.plan(0, 1)
    # The process has died: nothing is closed or saved, and its lock is gone.
    dies._partitions._checkpointing._store._lock.close()
    if first_poll == "latest":
        two.kafka.write(two.topic, 0, [b"since"] * 3)
    assert two.job("a.ckpt", first_poll=first_poll).run(NO_SPARK, save_all).acked == read


# -- checkpoints and commits of older ackers


def test_an_old_checkpoint_and_old_commits_go_on_and_get_an_identity(
    jobs: Callable[[int], Jobs], tmp_path: Path
) -> None:
    two = jobs(20)
    old = CheckpointFile(tmp_path / "a.ckpt")
    old.open("orders", "kafka")
    old.save({f"{two.topic}/0": Committed(Ranges.below(7))})
    old.close()
    assert "identity" not in json.loads((tmp_path / "a.ckpt").read_text())
    text = CommitMetadata("orders", "h:1", Ranges.below(7)).to_text(4096)
    assert json.loads(text).keys() == {"acker", "source", "by", "done", "sum", "answered"}
    two.kafka.commit(two.topic, two.topic, [(0, 7)], text)
    # A checkpoint that holds nothing was not there when an older acker committed.
    with pytest.raises(CheckpointError, match=r"a checkpoint that has no identity.*b\.ckpt, without an identity yet"):
        two.job("b.ckpt").run(NO_SPARK, save_all)
    assert two.job("a.ckpt").run(NO_SPARK, save_all).acked == 13
    identity = json.loads((tmp_path / "a.ckpt").read_text())["identity"]
    assert two.metadata()["checkpoint"] == identity
    assert two.job("a.ckpt").run(NO_SPARK, save_all).records == 0


def test_old_commits_without_a_checkpoint_go_on(jobs: Callable[[int], Jobs]) -> None:
    two = jobs(20)
    text = CommitMetadata("orders", "h:1", Ranges.below(7)).to_text(4096)
    two.kafka.commit(two.topic, two.topic, [(0, 7)], text)
    assert two.job("kafka").run(NO_SPARK, save_all).acked == 13
    assert two.metadata()["checkpoint"] == "kafka"


# -- behind the end


def test_a_source_that_goes_on_from_its_commits_counts_from_there_how_far_it_is_behind(
    jobs: Callable[[int], Jobs],
) -> None:
    two = jobs(20)
    one_batch(two.job("a.ckpt", batch_records=8))
    shutil.copy(two.folder / "a.ckpt", two.folder / "old.ckpt")
    two.job("a.ckpt").run(NO_SPARK, save_all)
    # A backup of the same checkpoint: the commits are its own, and it goes on there.
    behind = two.job("old.ckpt").run(NO_SPARK, save_all)
    assert (behind.records, behind.checkpoint) == (0, f"4 partitions of {two.topic}, 0 offsets behind the end")
    latest = two.job(group=f"{two.topic}-2", first_poll="latest").run(NO_SPARK, save_all)
    assert (latest.records, latest.checkpoint) == (0, f"4 partitions of {two.topic}, 0 offsets behind the end")


# -- two drivers at the same time


@pytest.mark.sampled(3)
@pytest.mark.parametrize("checkpoint", [None, "kafka", "copied"])
def test_of_two_drivers_under_one_name_the_later_one_stops_and_each_record_is_read(
    jobs: Callable[[int], Jobs], checkpoint: str | None, caplog: pytest.LogCaptureFixture
) -> None:
    two = jobs(40)
    given_a, given_b = (checkpoint, checkpoint) if checkpoint in (None, "kafka") else ("a.ckpt", "b.ckpt")
    options: dict[str, Any] = {"batch_records": 5, "stop": "end"}
    if checkpoint == "copied":
        one_batch(two.job("a.ckpt", batch_records=1))
        shutil.copy(two.folder / "a.ckpt", two.folder / "b.ckpt")
    first, second = two.job(given_a, **options).batches(NO_SPARK), two.job(given_b, **options).batches(NO_SPARK)
    read: set[bytes] = set()

    def step(batches: Any) -> None:
        batch = next(batches)
        values = [row.value for row in frame_of(batch).rows()]
        save_all(batch)
        batch.done()
        if batches is first:
            read.update(values)

    step(first)
    step(second)
    # Each finds the other's commits at its next one.
    step(first)
    with pytest.raises(CheckpointError, match=r"source 'orders' runs twice.*This driver stops, and the other one goes"):
        deque(map(step, itertools.repeat(second, 3)))
    while True:
        try:
            step(first)
        except StopIteration:
            break
    assert two.offset() == 40
    assert read >= {b"0.%d" % k for k in range(1, 40)}


GROUP = KafkaConnection("x:1", "orders")
PLACES = [At("clicks", number) for number in range(3)]


@dataclass
class MemoryBroker:
    """The commits of one group."""

    kept: dict[At, CommittedOffset] = field(default_factory=dict)
    connection: KafkaConnection = GROUP

    def committed(self, partitions: Iterable[At], timeout_s: float | None = None) -> dict[At, CommittedOffset]:
        return {at: self.kept[at] for at in partitions if at in self.kept}


class Driver:
    """A driver that commits more of each partition at each step, unless it was stopped."""

    def __init__(self, broker: MemoryBroker, id_: str, checkpoint: Any = None) -> None:
        self.broker, self.prefix = broker, 0
        self.commits: Any = Commits(broker, "orders", checkpoint, id_)  # type: ignore[arg-type]
        self.commits.load(PLACES)
        self.is_stopped = False

    def read(self) -> None:
        try:
            self.commits.check_runs(PLACES)
        except CheckpointError:
            self.is_stopped = True

    def write(self, places: Iterable[At]) -> None:
        self.prefix += 1
        self.broker.kept |= {at: self.commits.commit_of(Ranges.below(self.prefix)) for at in places}


STEPS = st.lists(
    st.tuples(st.sampled_from(["start", "read", "write", "die"]), st.integers(0, 5), st.sets(st.sampled_from(PLACES))),
    max_size=40,
)


@given(STEPS, st.randoms(use_true_random=False), st.booleans())
def test_however_drivers_start_commit_and_die_one_goes_on_and_all_others_stop(
    steps: list[tuple[str, int, set[At]]], chance: Any, restarts: bool
) -> None:
    broker = MemoryBroker()
    drivers, numbers = list[Driver](), itertools.count()
    # The last commit of a driver that has died since may stop a driver once. Started again, it goes on.
    excused: set[int] = set()
    # Drivers that have read, and do not know what was committed since.
    may_write: set[int] = set()

    def start() -> None:
        drivers.append(Driver(broker, f"{chance.getrandbits(16):04x}{next(numbers):04x}"))

    def live() -> list[Driver]:
        return [each for each in drivers if not each.is_stopped]

    for what, which, places in steps:
        if what == "start" or not live():
            start()
            continue
        each = live()[which % len(live())]
        first = min(live(), key=lambda driver: driver.commits._run)
        if what == "read":
            each.read()
            may_write.add(id(each))
        elif what == "write" and id(each) in may_write:
            each.write(places)
            may_write.discard(id(each))
        elif what == "die":
            drivers.remove(each)
            excused |= set(map(id, live()))
        assert not first.is_stopped or id(first) in excused
    for each in live():
        each.read()
    if restarts or not live():
        start()
    first = min(live(), key=lambda driver: driver.commits._run)
    for _ in range(3):
        for each in chance.sample(live(), len(live())):
            each.read()
            if not each.is_stopped:
                each.write(PLACES)
    assert live() == [first]


@pytest.mark.parametrize("by", ["first", "acker offsets"])
def test_a_new_commit_stops_a_driver_that_has_looked_for_new_partitions_since(by: str) -> None:
    broker = MemoryBroker()
    first = Driver(broker, "0a")
    first.write(PLACES[:2])
    second = Driver(broker, "0b")
    second.read()
    second.write(PLACES[:2])
    if by == "first":
        first.write(PLACES[:2])
    else:
        moved = CommitMetadata("orders", "h:1", Ranges.below(2), checkpoint="kafka", run=RunId(MOVED, "ab"))
        broker.kept[PLACES[0]] = CommittedOffset(2, moved.to_text(4096))
    # A partition turns up, and a driver reads the commits of its whole topic.
    assert second.commits.load(PLACES)[PLACES[0]].offset == 2
    second.read()
    assert second.is_stopped


def test_a_first_commit_of_acker_offsets_stops_a_driver_that_has_looked_for_new_partitions_since() -> None:
    broker = MemoryBroker()
    driver = Driver(broker, "0a")
    assert driver.commits.load(PLACES[:2]) == {}
    moved = CommitMetadata("orders", "h:1", Ranges.below(2), checkpoint="kafka", run=RunId(MOVED, "ab"))
    broker.kept[PLACES[0]] = CommittedOffset(2, moved.to_text(4096))
    assert driver.commits.load(PLACES)[PLACES[0]].offset == 2
    driver.read()
    assert driver.is_stopped


@dataclass
class Identified:
    """The checkpoint of a job."""

    drawn: str
    kept: str = ""

    def identity(self) -> str:
        return self.kept

    def draw_identity(self) -> str:
        self.kept = self.drawn
        return self.kept

    # Functions, because Python 3.11 takes a method that is None for one that is missing.
    open = load = save = close = staticmethod(lambda *_: None)


def test_of_two_new_jobs_that_begin_together_one_goes_on_and_can_be_started_again() -> None:
    broker, one, two = MemoryBroker(), Identified("1"), Identified("2")
    first: Any
    second: Any
    first, second = Driver(broker, "0a", one), Driver(broker, "0b", two)
    for each in (first, second):
        each.write(PLACES)
    second.read()
    # Nobody has committed since the second one.
    assert not second.is_stopped
    assert first.commits.check_runs(PLACES) == PLACES
    first.write(PLACES[:1])
    second.read()
    assert second.is_stopped
    # The first one has to commit each partition again that it got back.
    with pytest.raises(CheckpointError, match="two checkpoints for one name"):
        Driver(broker, "0c", one)
    first.write(PLACES)
    assert not Driver(broker, "0c", one).is_stopped
    with pytest.raises(CheckpointError, match="two checkpoints for one name"):
        Driver(broker, "0d", two)


def test_an_earlier_driver_with_at_most_once_emits_nothing_that_a_later_one_has_emitted(
    jobs: Callable[[int], Jobs],
) -> None:
    two = jobs(40)
    options: dict[str, Any] = {"batch_records": 5, "guarantee": "at_most_once"}
    first, second = (two.job("kafka", **options).batches(NO_SPARK) for _ in range(2))
    read: list[bytes] = []

    def step(batches: Any) -> None:
        batch = next(batches)
        read.extend(row.value for row in frame_of(batch).rows())
        save_all(batch)
        batch.done()

    step(first)
    # The first one is paused meanwhile.
    for _ in range(3):
        step(second)
    with pytest.raises(CheckpointError, match=r"began after this one.*at_most_once.*may have been emitted"):
        step(first)
    deque(map(step, itertools.repeat(second, 4)))
    assert sorted(read) == sorted(set(read)) == sorted(b"0.%d" % k for k in range(40))


@pytest.mark.parametrize("is_over", [False, True])
def test_without_retries_any_new_commit_of_another_driver_stops_a_driver(is_over: bool) -> None:
    broker = MemoryBroker()
    first, second = Driver(broker, "0a"), Driver(broker, "0b")
    first.commits.emits_once = True
    first.write(PLACES)
    broker.kept |= {PLACES[1]: second.commits.commit_of(Ranges.below(7), is_over=is_over)}
    first.read()
    assert first.is_stopped


# -- who waits for a commit


class Noting(Broker):
    """Notes when the input begins a commit of partition 0, with the end of its run, and when it waits for one."""

    def __init__(self, connection: KafkaConnection) -> None:
        super().__init__(connection)
        self.calls: list[str] = []

    def commit(self, offsets: Mapping[At, CommittedOffset]) -> None:
        for at, each in offsets.items():
            if at.number == 0:
                self.calls.append(f"commit {each.offset}" + (", over" if '"over":true' in each.metadata else ""))
        super().commit(offsets)

    def confirm(self, timeout_s: float) -> str:
        self.calls.append("wait")
        return super().confirm(timeout_s)


@pytest.mark.parametrize(
    ("guarantee", "calls"),
    [
        ("at_least_once", ["commit 3", "wait"]),
        ("at_most_once", ["commit 3", "wait"]),
        ("no_guarantee", ["commit 3"]),
    ],
)
def test_a_plan_waits_for_the_commit_of_what_is_done_unless_nothing_is_guaranteed(
    jobs: Callable[[int], Jobs], guarantee: Any, calls: list[str]
) -> None:
    two = jobs(10)
    input_: Any = KafkaInput(two.job("a.ckpt", guarantee=guarantee, stop=None).kafka, broker=Noting)
    input_.start({})
    input_.plan(5, 1)
    broker = input_._connected
    broker.calls.clear()
    input_.advance(f"{two.topic}/0", Ranges.below(3))
    input_.plan(0, 1)
    assert broker.calls == calls
    if guarantee != "no_guarantee":
        assert two.offset() == 3
    input_.advance(f"{two.topic}/0", Ranges.below(4))
    # At the end all of them wait.
    input_.close()
    assert broker.calls == [*calls, "commit 4", *(["wait"] if "wait" in calls else []), "commit 4, over", "wait"]
    assert (two.offset(), two.metadata()["over"]) == (4, True)


def test_a_commit_that_does_not_get_through_is_made_again_with_the_next_plan(jobs: Callable[[int], Jobs]) -> None:
    two = jobs(10)
    input_: Any = KafkaInput(two.job("a.ckpt", stop=None).kafka, broker=Noting)
    input_.start({})
    input_.plan(5, 1)
    input_.advance(f"{two.topic}/0", Ranges.below(3))
    broker, confirm = input_._connected, Broker.confirm
    broker.calls.clear()
    broker.confirm = lambda timeout_s: "no answer"
    input_.plan(0, 1)
    assert input_.observe()[f"{two.topic}/0"].committed == 0
    broker.confirm = lambda timeout_s: confirm(broker, timeout_s)
    input_.plan(0, 1)
    assert (broker.calls, two.offset()) == (["commit 3", "commit 3"], 3)
    assert input_.observe()[f"{two.topic}/0"].committed == 3
    # A partition that another source has now is not committed any more.
    input_.advance(f"{two.topic}/0", Ranges.below(5))
    broker.confirm = lambda timeout_s: "no answer"
    input_.revoke([f"{two.topic}/0"])
    broker.confirm = lambda timeout_s: confirm(broker, timeout_s)
    broker.calls.clear()
    input_.plan(0, 1)
    input_.close()
    assert broker.calls == []


def test_a_checkpoint_in_kafka_waits_for_its_commits_unless_nothing_is_guaranteed() -> None:
    with MockKafka() as kafka:
        topic = kafka.new_topic(10)
        for guarantee, waits in (("at_least_once", True), ("at_most_once", True), ("no_guarantee", False)):
            source = Kafka(
                topic,
                bootstrap_servers=kafka.servers,
                name="orders",
                group_id=f"{topic}-{guarantee}",
                checkpoint="kafka",
                guarantee=guarantee,  # type: ignore[arg-type]
            )
            store: Any = source.options.checkpoint
            store.open("orders", "kafka")
            input_: Any = source.input()[0]
            input_.set_checkpoint(store)
            assert store.load() == {}
            store.connection = store._broker.connection = replace(store.connection, timeout_s=0.3)
            store._limit_s = 0.0
            kafka.pause()
            try:
                if waits:
                    with pytest.raises(CheckpointError, match="what is done could not be committed"):
                        store.save({f"{topic}/0": Committed(Ranges.below(4))})
                else:
                    store.save({f"{topic}/0": Committed(Ranges.below(4))})
            finally:
                kafka.resume()
            # The end of a run waits for what is on its way.
            store.close()
            if not waits:
                assert kafka.committed(f"{topic}-{guarantee}", topic)[0][0] == 4


def opened_store(two: Jobs, waits: list[float]) -> Any:
    """Return a loaded checkpoint in Kafka that notes its waits for brokers in ``waits``, and does not wait."""
    store: Any = two.job("kafka").options.checkpoint
    store._sleep = waits.append
    store.open("orders", "kafka")
    store.load()
    return store


def test_a_checkpoint_in_kafka_outlasts_an_outage_that_is_longer_than_its_timeout(jobs: Callable[[int], Jobs]) -> None:
    two, waits = jobs(10), list[float]()
    store = opened_store(two, waits)
    broker = store._broker
    committed, confirm = broker.committed, broker.confirm

    def away(*_: object) -> Any:
        if len(waits) < 2:
            raise Unreachable("no broker")
        return committed(*_)

    broker.committed = away
    broker.confirm = lambda timeout_s: "no answer" if len(waits) < 4 else confirm(timeout_s)
    store.save({f"{two.topic}/0": Committed(Ranges.below(4))})
    assert (len(waits), two.offset()) == (4, 4)
    store.close()


def test_after_an_outage_a_checkpoint_in_kafka_does_not_undo_what_was_committed_meanwhile(
    jobs: Callable[[int], Jobs],
) -> None:
    two = jobs(10)
    store = opened_store(two, [])
    confirm = store._broker.confirm
    moved = CommitMetadata("orders", "h:1", Ranges.below(2), checkpoint="kafka", run=RunId(MOVED, "ab")).to_text(4096)

    def late(timeout_s: float) -> str:
        # The first commit arrives without an answer, and the user moves the source.
        assert confirm(timeout_s) == ""
        two.kafka.commit(two.topic, two.topic, [(0, 2)], moved)
        return "no answer"

    store._broker.confirm = late
    with pytest.raises(CheckpointError, match="were moved by `acker offsets`"):
        store.save({f"{two.topic}/0": Committed(Ranges.below(4))})
    store._broker.confirm = confirm
    store.close()
    assert two.kafka.committed(two.topic, two.topic)[0] == (2, moved)


def test_after_an_outage_a_checkpoint_in_kafka_commits_again_what_a_later_driver_has_overwritten(
    jobs: Callable[[int], Jobs],
) -> None:
    two, waits = jobs(10), list[float]()
    store = opened_store(two, waits)
    saved = {f"{two.topic}/{number}": Committed(Ranges.below(4)) for number in range(2)}
    store.save(saved)
    later = CommitMetadata("orders", "h:1", Ranges.below(2), checkpoint="kafka", run=RunId(9, "0")).to_text(4096)
    two.kafka.commit(two.topic, two.topic, [(0, 2)], later)
    confirm, commit = store._broker.confirm, store._broker.commit
    # The first try finds the commit of the later driver, and then no broker.
    store._broker.commit = lambda offsets: commit(offsets) if waits else None
    store._broker.confirm = lambda timeout_s: confirm(timeout_s) if waits else "no answer"
    store.save(saved | {f"{two.topic}/1": Committed(Ranges.below(5))})
    assert {at: offset for at, (offset, _) in two.kafka.committed(two.topic, two.topic).items()} == {0: 4, 1: 5}
    store.close()


def test_a_commit_that_a_broker_refuses_ends_a_run_with_a_checkpoint_in_kafka_at_once(
    jobs: Callable[[int], Jobs],
) -> None:
    two, waits = jobs(10), list[float]()
    store = opened_store(two, waits)
    broker, refused = store._broker, library().KafkaError(library().KafkaError.TOPIC_AUTHORIZATION_FAILED)

    def forbidden(offsets: Mapping[At, CommittedOffset]) -> None:
        broker._unconfirmed |= {at: each.offset for at, each in offsets.items()}
        broker._on_commit(refused, [])

    broker.commit = forbidden
    with pytest.raises(CheckpointError, match=r"what is done could not be committed .*authorization.*Nothing is lost"):
        store.save({f"{two.topic}/0": Committed(Ranges.below(4))})
    assert waits == []
    store.close()


# -- commits that brokers would drop


def renewing(two: Jobs, checkpoint: str | None, now: list[float]) -> tuple[Any, Any]:
    """Return a started input that has read three records, and its store."""
    job = two.job(checkpoint, stop=None)
    store: Any = job.options.checkpoint
    input_: Any = KafkaInput(job.kafka, clock=lambda: now[0])
    committed: dict[str, Committed] = {}
    if store is not None:
        store.open("orders", "kafka")
        input_.set_checkpoint(store)
        committed = store.load()
    input_.start(committed)
    input_.plan(3, 1)
    input_.advance(f"{two.topic}/0", Ranges.below(3))
    if store is not None:
        store.save({f"{two.topic}/0": Committed(Ranges.below(3))})
    input_.plan(0, 1)
    return input_, store


@pytest.mark.parametrize("checkpoint", [None, "kafka"])
def test_what_is_committed_is_committed_again_each_hour_because_brokers_drop_old_commits(
    jobs: Callable[[int], Jobs], checkpoint: str | None
) -> None:
    two, now = jobs(3), [0.0]
    input_, store = renewing(two, checkpoint, now)
    committed = {at: offset for at, (offset, _) in two.kafka.committed(two.topic, two.topic).items()}
    assert committed == {0: 3, 1: 0, 2: 0, 3: 0}
    for hours in (1, 2):
        # As if they had expired.
        two.kafka.commit(two.topic, two.topic, [(number, 0) for number in range(4)])
        now[0] = hours * RENEW_S - 0.5
        input_.plan(1, 1)
        assert two.kafka.committed(two.topic, two.topic)[0] == (0, "")
        now[0] = hours * RENEW_S + 0.5
        input_.plan(1, 1)
        found = two.kafka.committed(two.topic, two.topic)
        assert {at: offset for at, (offset, _) in found.items()} == committed
        assert all(json.loads(metadata)["source"] == "orders" for _, metadata in found.values())
    input_.close()
    if store is not None:
        store.close()


def test_a_member_of_a_group_commits_again_each_hour_also_where_it_has_read_nothing(kafka: MockKafka) -> None:
    topic, now = kafka.new_topic(3), [0.0]
    options = Kafka(topic, bootstrap_servers=kafka.servers, name="orders", group_id=topic, first_poll="latest").kafka
    input_ = KafkaInput(options, clock=lambda: now[0])
    input_.start({})
    input_.partitions()
    input_.assign({f"{topic}/{number}": Committed() for number in range(2)})
    assert not input_.plan(1, 1).parts
    # As if they had expired.
    kafka.commit(topic, topic, [(0, 0), (1, 0)])
    now[0] = RENEW_S - 0.5
    input_.plan(1, 1)
    assert kafka.committed(topic, topic)[0] == (0, "")
    input_.revoke([f"{topic}/1"])
    now[0] = RENEW_S + 0.5
    input_.plan(1, 1)
    (offset, metadata), released = (kafka.committed(topic, topic)[number] for number in range(2))
    assert (offset, json.loads(metadata)["source"]) == (3, "orders")
    assert released == (0, "")
    input_.close()


def test_a_commit_in_kafka_that_cannot_be_renewed_is_tried_again_and_stops_nothing(jobs: Callable[[int], Jobs]) -> None:
    two, now = jobs(3), [0.0]
    input_, store = renewing(two, "kafka", now)
    two.kafka.commit(two.topic, two.topic, [(0, 0)])
    two.kafka.write(two.topic, 0, [b"new"])
    broker = store._broker
    confirm, committed = broker.confirm, broker.committed

    def away(*_: object) -> Any:
        raise Unreachable("no broker")

    now[0], broker.committed = RENEW_S, away
    assert len(input_.plan(1, 1).parts) == 1
    broker.committed, broker.confirm = committed, lambda timeout_s: "no answer"
    broker.commit, commit = lambda offsets: None, broker.commit
    now[0] += RENEW_AGAIN_S
    assert input_.plan(1, 1).parts == []
    assert two.offset() == 0
    broker.commit, broker.confirm = commit, confirm
    now[0] += RENEW_AGAIN_S
    assert input_.plan(1, 1).parts == []
    assert two.offset() == 3
    assert confirm(0.0) == ""
    input_.close()
    store.close()


# -- between a start and its first commit


def test_a_start_does_not_undo_what_was_committed_after_it_had_read_the_commits(
    jobs: Callable[[int], Jobs],
) -> None:
    two = jobs(20)
    one_batch(two.job("kafka", batch_records=5))
    moved, ended, later = RunId(MOVED, "ab"), RunId(1, "0"), RunId(9, "0")
    for offset, run, says in (
        (2, moved, "by `acker offsets`"),
        (9, ended, "start it again"),
        (7, later, "start it again"),
    ):
        text = CommitMetadata(
            "orders", "h:1", Ranges.below(offset), checkpoint="kafka", run=run, is_over=run != later
        ).to_text(4096)
        store: Any = two.job("kafka").options.checkpoint
        store.open("orders", "kafka")
        store.load()
        two.kafka.commit(two.topic, two.topic, [(0, offset)], text)
        with pytest.raises(CheckpointError, match=says):
            store.sign(Committer("orders", 7, "host", 1))
        store.close()
        assert two.kafka.committed(two.topic, two.topic)[0] == (offset, text)


@pytest.mark.parametrize("checkpoint", [None, "a.ckpt"])
def test_a_start_without_a_checkpoint_in_kafka_does_not_undo_what_was_committed_meanwhile(
    jobs: Callable[[int], Jobs], checkpoint: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    two, offsets = jobs(20), Broker.offsets
    one_batch(two.job(checkpoint, batch_records=5))
    texts = []
    for offset, run, says in ((2, RunId(MOVED, "ab"), "by `acker offsets`"), (9, RunId(1, "0"), "start it again")):
        metadata = CommitMetadata.from_text(json.dumps(two.metadata()), two.offset())
        assert metadata is not None
        texts.append(replace(metadata, done=Ranges.below(offset), run=run, is_over=True).to_text(4096))

        def late(*given: Any, at: int = offset, text: str = texts[-1], **more: Any) -> Any:
            # A start asks for offsets after it has read the commits.
            two.kafka.commit(two.topic, two.topic, [(0, at)], text)
            return offsets(*given, **more)

        monkeypatch.setattr(Broker, "offsets", late)
        with pytest.raises(CheckpointError, match=says):
            one_batch(two.job(checkpoint, batch_records=5))
        assert two.kafka.committed(two.topic, two.topic)[0] == (offset, texts[-1])
        monkeypatch.setattr(Broker, "offsets", offsets)
    one_batch(two.job(checkpoint, batch_records=5))
    assert two.offset() == 14


def test_a_partition_that_turns_up_is_begun_by_the_next_plan_if_its_commits_cannot_be_compared_at_once(
    kafka: MockKafka, monkeypatch: pytest.MonkeyPatch
) -> None:
    now, first = [0.0], kafka.new_topic(1, prefix="turns")
    options = Kafka(pattern="turns-.*", bootstrap_servers=kafka.servers, name="orders", group_id=first).kafka
    input_ = KafkaInput(options, clock=lambda: now[0])
    input_.start({})
    assert len(input_.plan(10, 1).parts) == 1
    second = kafka.new_topic(1, prefix="turns")
    check_runs = Commits.check_runs

    def away(*_: object, **__: object) -> Any:
        raise Unreachable("no broker")

    monkeypatch.setattr(Commits, "check_runs", away)
    now[0] = 10.0
    assert not input_.plan(10, 1).parts
    monkeypatch.setattr(Commits, "check_runs", check_runs)
    assert [part.topic for part in input_.plan(10, 1).parts] == [second]
    assert kafka.committed(first, second).keys() == set(range(4))
    input_.close()


def test_a_driver_that_fails_while_it_starts_stops_no_other_one_under_its_name(jobs: Callable[[int], Jobs]) -> None:
    two = jobs(10)
    options: dict[str, Any] = {"batch_records": 5, "guarantee": "at_most_once"}
    first = two.job("kafka", **options).batches(NO_SPARK)
    batch = next(first)
    before = two.kafka.committed(two.topic, two.topic)
    store: Any = two.job("kafka", **options).options.checkpoint
    store.open("orders", "kafka")
    assert store.load()
    store.close()
    assert two.kafka.committed(two.topic, two.topic) == before
    save_all(batch)
    batch.done()
    deque(map(save_all, first))
    assert two.offset() == 10


class Unconfirmed(Broker):
    """A broker that takes no commit while ``is_away``."""

    is_away = True

    def commit(self, offsets: Mapping[At, CommittedOffset]) -> None:
        if not self.is_away:
            super().commit(offsets)

    def confirm(self, timeout_s: float) -> str:
        return "no answer" if self.is_away else super().confirm(timeout_s)


def test_a_first_offset_that_is_not_committed_at_once_is_committed_with_the_next_plan(
    jobs: Callable[[int], Jobs], monkeypatch: pytest.MonkeyPatch
) -> None:
    two = jobs(5)
    input_ = KafkaInput(two.job(stop=None).kafka, broker=Unconfirmed)
    input_.start({})
    assert [(part.start, part.stop) for part in input_.plan(3, 1).parts] == [(0, 3)]
    monkeypatch.setattr(Unconfirmed, "is_away", False)
    input_.plan(0, 1)
    committed = two.kafka.committed(two.topic, two.topic)
    assert {number: offset for number, (offset, _) in committed.items()} == {0: 0, 1: 0, 2: 0, 3: 0}
    input_.close()


# -- the end of a run


@pytest.mark.parametrize("checkpoint", [None, "kafka", "a.ckpt"])
def test_a_run_says_in_its_last_commit_that_it_is_over_and_a_new_run_takes_that_back(
    jobs: Callable[[int], Jobs], checkpoint: str | None
) -> None:
    two = jobs(20)
    for _ in range(2):
        batches = two.job(checkpoint, batch_records=5).batches(NO_SPARK)
        batch = next(batches)
        assert "over" not in two.metadata()
        save_all(batch)
        batch.done()
        batches.close()
        assert two.metadata()["over"] is True
    assert two.offset() == 10


def test_a_driver_goes_on_when_an_earlier_one_has_ended_meanwhile(jobs: Callable[[int], Jobs]) -> None:
    two = jobs(40)
    first, second = (two.job(batch_records=5).batches(NO_SPARK) for _ in range(2))
    save_all(next(first))
    save_all(next(second))
    first.close()
    for batch in second:
        save_all(batch)
    assert two.offset() == 40


def test_a_driver_that_was_stopped_by_an_earlier_one_does_not_write_its_end_over_the_commits_of_that_one(
    jobs: Callable[[int], Jobs],
) -> None:
    two = jobs(40)
    first, second = (two.job("kafka", batch_records=5).batches(NO_SPARK) for _ in range(2))
    for batches in (first, second):
        save_all(next(batches))
    save_all(next(first))
    with pytest.raises(CheckpointError, match="runs twice"):
        deque(map(save_all, second))
    assert ("over" not in two.metadata(), two.offset()) == (True, 5)
    first.close()
