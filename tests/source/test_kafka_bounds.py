"""Where a source of Kafka begins and ends in each partition, how fast it reads, and in which order by key."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from acker_client.source import Batch, Committed, Kafka, Ranges, Retry, SourceError
from acker_client.source.kafka.broker import LATEST, Broker
from acker_client.source.kafka.input import KafkaInput
from acker_client.source.kafka.keys import keys_of
from acker_client.source.kafka.names import At
from acker_client.source.kafka.topic_log import CATCH_UP_S, IDLE_S, Allowance
from tests.source.executors import NO_SPARK, Cluster, frame_of
from tests.source.kafka_broker import MockKafka

NUMBERS = itertools.count()


@pytest.fixture
def opened() -> Iterator[list[KafkaInput]]:
    """Yield a list. Inputs that a test adds to it are closed at the end."""
    inputs: list[KafkaInput] = []
    yield inputs
    for each in inputs:
        each.close()


class Timed(Broker):
    """A broker that knows the times of the topic ``timed``: the mock cluster has no index of times."""

    def offsets(
        self, partitions: Sequence[At], at: int, timeout_s: float | None = None, *, some: bool = False
    ) -> dict[At, int]:
        if at < 0:
            return super().offsets(partitions, at, timeout_s, some=some)
        ends = super().offsets(partitions, LATEST, timeout_s)
        return {each: min(end, max(0, -(-(at - 1_000_000) // 1_000))) for each, end in ends.items()}


def started(
    kafka: MockKafka, opened: list[KafkaInput], topic: str, committed: Any = None, **options: Any
) -> KafkaInput:
    given_ = {"name": "orders", "group_id": f"{topic}-{next(NUMBERS)}", "timeout_s": 10.0, **options}
    clock = given_.pop("clock", None)
    made = Kafka(topic, bootstrap_servers=kafka.servers, **given_).kafka
    input_ = KafkaInput(made, broker=Timed, **({} if clock is None else {"clock": clock}))
    opened.append(input_)
    input_.start(committed or {})
    return input_


def planned(input_: KafkaInput, records_max: int = 10_000) -> dict[int, tuple[int, int]]:
    """Return the offsets that the next plan has, by partition."""
    found: dict[int, tuple[int, int]] = {}
    for part in input_.plan(records_max, 1).parts:
        first, stop = found.get(part.number, (part.start, part.start))
        assert part.start == stop
        found[part.number] = first, part.stop
    return found


@pytest.fixture(scope="module")
def timed(kafka: MockKafka) -> str:
    """Return a topic with 20 records in each of three partitions, the k-th of them k seconds after 1,000 s."""
    topic = kafka.new_topic()
    for partition in range(3):
        for k in range(20):
            kafka.send(topic, partition, b"x", timestamp=1_000_000 + 1_000 * k)
    kafka.write(topic, 0, [])
    return topic


# -- start and stop


def test_start_gives_the_first_offset_of_each_partition_and_the_others_begin_as_first_poll_says(
    kafka: MockKafka, opened: list[KafkaInput], timed: str
) -> None:
    for start, begins in (
        (7, {0: 7, 1: 7, 2: 7}),
        ("latest", {}),
        ({f"{timed}/0": 7, f"{timed}/1": "latest"}, {0: 7, 2: 0}),
        ({f"{timed}/2": 0}, {0: 0, 1: 0, 2: 0}),
    ):
        # Partition 3 is empty, and offset 7 is beyond its end.
        options = {"start": start if not isinstance(start, int) else {f"{timed}/{n}": start for n in range(3)}}
        found = planned(started(kafka, opened, timed, stop="end", **options))
        assert {number: first for number, (first, _) in found.items()} == begins


def test_start_holds_for_partitions_that_this_source_knows_nothing_of_and_overrides_the_commits_of_others(
    kafka: MockKafka, opened: list[KafkaInput], timed: str
) -> None:
    group = f"{timed}-{next(NUMBERS)}"
    kafka.commit(group, timed, [(0, 12), (1, 12)])
    committed = {f"{timed}/1": Committed(Ranges.below(3)), f"{timed}/2": Committed()}
    start = {f"{timed}/0": 5, f"{timed}/1": 5}
    found = planned(started(kafka, opened, timed, committed, group_id=group, stop="end", start=start))
    assert found == {0: (5, 20), 1: (3, 20), 2: (0, 20)}
    # It has committed where it began, and goes on from there.
    again = planned(started(kafka, opened, timed, group_id=group, stop="end", start={f"{timed}/0": 19}))
    assert again[0] == (5, 20)


def test_a_time_begins_and_ends_at_its_first_record_in_each_partition(
    kafka: MockKafka, opened: list[KafkaInput], timed: str
) -> None:
    since, until = (datetime.fromtimestamp(1_000 + seconds, UTC) for seconds in (4.5, 15))
    found = planned(started(kafka, opened, timed, start=since, stop=until))
    assert found == {0: (5, 15), 1: (5, 15), 2: (5, 15)}
    # Without a record of that time, it is the end as it is at the start.
    late = started(kafka, opened, timed, stop=datetime.fromtimestamp(5_000, UTC))
    assert planned(late) == {0: (0, 20), 1: (0, 20), 2: (0, 20)}
    assert late.plan(100, 1).is_end


def test_stop_gives_the_end_of_each_partition_and_the_others_end_where_they_do_at_the_start(
    kafka: MockKafka, opened: list[KafkaInput]
) -> None:
    topic = kafka.new_topic(10, 10, 10)
    stop = {f"{topic}/0": 4, f"{topic}/1": 12}
    input_ = started(kafka, opened, topic, stop=stop)
    assert planned(input_) == {0: (0, 4), 1: (0, 10), 2: (0, 10)}
    # An offset that does not exist yet is waited for.
    assert not input_.plan(100, 1).is_end
    for partition in range(3):
        kafka.write(topic, partition, [b"late"] * 5)
    assert planned(input_) == {1: (10, 12)}
    assert input_.plan(100, 1).is_end
    # A source that has read further is at its end.
    beyond = started(kafka, opened, topic, {f"{topic}/0": Committed(Ranges.below(9))}, stop=4)
    assert planned(beyond) == {1: (0, 4), 2: (0, 4)}


def test_a_bound_of_a_partition_that_is_not_there_or_beyond_its_end_is_a_sentence(
    kafka: MockKafka, opened: list[KafkaInput], timed: str
) -> None:
    for options in ({"start": {f"{timed}/9": 5}}, {"stop": {f"{timed}/9": 5}}):
        with pytest.raises(SourceError, match=rf"(start|stop): {timed}/9 does not exist, topic .* has 4 partitions"):
            started(kafka, opened, timed, **options)
    with pytest.raises(
        SourceError, match=rf"start: {timed}/0 ends at offset 20, before 21: give an offset that it has"
    ):
        started(kafka, opened, timed, start={f"{timed}/0": 21}).plan(1, 1)


@pytest.mark.long
def test_a_failure_is_tried_again_however_far_the_source_has_read_since(kafka: MockKafka, tmp_path: Path) -> None:
    topic = kafka.new_topic(400)
    options: dict[str, Any] = {"bootstrap_servers": kafka.servers, "name": topic, "stop": "end", "batch_records": 40}
    options |= {"environment": Cluster(tmp_path).environment(), "retry": Retry(initial_s=9e3, cap_s=9e3)}
    tries: list[int] = []

    def process(batch: Batch) -> None:
        rows = frame_of(batch).rows()
        first = [row for row in rows if row.value == b"0.0"]
        tries.extend(batch.number for _ in first)
        frame_of(batch).fail({row.root: "not yet" for row in first if batch.number == 1})
        frame_of(batch).ack(row for row in rows if row not in first or batch.number > 1)

    summary = Kafka(topic, **options).run(NO_SPARK, process)
    assert (summary.acked, summary.dead_lettered, tries) == (400, 0, [1, 11])


# -- rate


@given(st.floats(0.1, 1_000), st.lists(st.tuples(st.floats(0, 200), st.integers(0, 10_000)), min_size=1, max_size=40))
def test_no_stretch_of_time_has_more_records_than_its_rate_allows(
    records_per_s: float, looks: list[tuple[float, int]]
) -> None:
    now_s, allowance, taken = 0.0, Allowance(records_per_s, 0.0), list[tuple[float, int]]()
    for wait_s, wanted in looks:
        now_s += wait_s
        available = allowance.available(now_s)
        count = min(available, wanted)
        allowance.spend(count)
        taken.append((now_s, count))
    for first in range(len(taken)):
        total, since_s = 0, taken[first - 1][0] if first else 0.0
        for at_s, count in taken[first:]:
            total += count
            # What was saved before, and what has come since.
            assert total <= max(1.0, records_per_s * IDLE_S) + records_per_s * (at_s - since_s) + 1e-6


def test_a_rate_is_reached_by_short_and_by_long_batches_and_an_idle_partition_saves_up_a_second() -> None:
    for every_s in (0.5, 1.0, 30.0):
        allowance, total = Allowance(100.0, 0.0), 0
        for k in range(1, 61):
            count = allowance.available(k * every_s)
            allowance.spend(count)
            total += count
        assert total == pytest.approx(100 * 60 * every_s, rel=0.05)
    idle = Allowance(100.0, 0.0)
    assert [idle.available(float(second)) for second in range(1, 100)] == [200] * 99
    assert idle.available(100 + 10 * CATCH_UP_S) == 100 * (CATCH_UP_S + IDLE_S)


def test_each_partition_has_the_rate_and_what_is_there_does_not_end_the_run(
    kafka: MockKafka, opened: list[KafkaInput]
) -> None:
    now, topic = [0.0], kafka.new_topic(100, 30)
    input_ = started(kafka, opened, topic, records_per_s=20, stop="end", clock=lambda: now[0])
    assert planned(input_) == {0: (0, 20), 1: (0, 20)}
    plan = input_.plan(100, 1)
    assert (plan.parts, plan.is_end) == ([], False)
    now[0] = 1.5
    assert planned(input_, 10) == {0: (20, 25), 1: (20, 25)}
    # What was not planned of the allowance is kept, up to a second of it.
    now[0] = 2.0
    assert planned(input_) == {0: (25, 55), 1: (25, 30)}
    now[0] = 60.0
    assert planned(input_) == {0: (55, 100)}
    assert input_.plan(100, 1).is_end


# -- order by key


def test_records_of_a_key_come_in_order_and_those_without_a_key_and_of_other_partitions_do_not_wait(
    kafka: MockKafka, tmp_path: Path
) -> None:
    topic = kafka.new_topic()
    for k in range(6):
        kafka.write(topic, 0, [b"a%d" % k], key=b"a")
        kafka.write(topic, 0, [b"b%d" % k], key=b"b")
        kafka.write(topic, 0, [b"none"], key=None)
        kafka.write(topic, 1, [b"A%d" % k], key=b"a")
    options: dict[str, Any] = {"bootstrap_servers": kafka.servers, "name": topic, "stop": "end", "ordered_by": "key"}
    options |= {"environment": Cluster(tmp_path).environment(), "retry": Retry(max_retries=2, initial_s=2.0)}
    options |= {"dead_letters": tmp_path / "dead.jsonl", "max_dead_share": 1.0, "checkpoint": "kafka"}
    handed: list[list[bytes]] = []

    def process(batch: Batch) -> None:
        rows = frame_of(batch).rows()
        handed.append([row.value for row in rows])
        bad = [row for row in rows if row.value == b"a1"]
        frame_of(batch).fail({row.root: "never" for row in bad})
        frame_of(batch).ack(row for row in rows if row not in bad)

    source = Kafka(topic, **options)
    summary = source.run(NO_SPARK, process)
    assert (summary.acked, summary.dead_lettered, summary.open, summary.held_back) == (23, 1, 0, 0)
    for first in (b"b", b"A"):
        assert [value for batch in handed for value in batch if value[:1] == first] == [
            first + b"%d" % k for k in range(6)
        ]
    of_a = [value for batch in handed for value in batch if value[:1] == b"a"]
    assert of_a == [b"a0", b"a1", b"a1", b"a1", b"a2", b"a3", b"a4", b"a5"]
    assert sorted(handed[0]) == [b"A0", b"a0", b"b0", *[b"none"] * 6]
    # The others went on while a1 waited for its retries.
    assert handed[2] == [b"b2", b"A2"]
    assert kafka.committed(topic, topic)[0][0] == 18


def test_while_keys_cannot_be_read_plans_are_empty_and_nothing_is_skipped(
    opened: list[KafkaInput], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("acker_client.source.kafka.input.PLAN_S", 0.3)
    with MockKafka() as kafka:
        topic = kafka.new_topic(50)
        input_ = started(kafka, opened, topic, stop="end", ordered_by="key", records_per_s=30)
        share_out = input_._share_out

        def pause_after_planning(records_max: int, tasks: int) -> Any:
            parts = share_out(records_max, tasks)
            kafka.pause()
            return parts

        monkeypatch.setattr(input_, "_share_out", pause_after_planning)
        try:
            plan = input_.plan(100, 2)
        finally:
            kafka.resume()
        assert (plan.parts, plan.keys, plan.is_end) == ((), (), False)
        monkeypatch.setattr(input_, "_share_out", share_out)
        found = planned(input_)
        while not found:
            """The broker answers after some plans."""
            found = planned(input_)
        assert found[0][0] == 0
        input_.close()


def test_keys_that_can_never_be_read_end_the_run_with_their_error_and_not_before_the_timeout(
    kafka: MockKafka, opened: list[KafkaInput], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    now_s = [0.0]
    topic = kafka.new_topic(200)
    options = Kafka(topic, bootstrap_servers=kafka.servers, name="orders", ordered_by="key", timeout_s=10.0).kafka
    input_ = KafkaInput(options, clock=lambda: now_s[0])
    opened.append(input_)
    input_.start({})
    read_keys = keys_of

    def refuse_one(reader: Any, part: Any) -> Any:
        if not part.at.number:
            raise SourceError("no permission to read")
        return read_keys(reader, part)

    monkeypatch.setattr("acker_client.source.kafka.input.keys_of", refuse_one)
    # Plans of one record ask for another partition each time.
    for second in range(9):
        now_s[0] = float(second)
        input_.plan(1, 1)
        assert input_.is_reachable()
    now_s[0] = 19.0
    with pytest.raises(SourceError, match="no permission to read"):
        [input_.plan(1, 1) for _ in range(4)]
    assert "again" not in caplog.text
