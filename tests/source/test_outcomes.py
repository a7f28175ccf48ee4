"""Outcomes of records: as a stream, in a store, and at a listener. All of them hear of an end before it counts."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from acker_client import Verdict
from acker_client.source import Batch, Emissions, Failures, Listener, RecordOutcome, Retry, SourceError
from acker_client.source.records.input import Answered
from tests.source.executors import NO_SPARK, Cluster, breaking, failing, frame_of, save_all
from tests.source.groups import Group, Membership, SharedCheckpoint
from tests.source.logs import Log as InMemory
from tests.source.logs import LogSource, MemoryCheckpoint, MemoryLetters, log_of
from tests.source.test_groups import Idle


class Away(Exception):
    """Whoever hears the outcomes fails here."""


def idle(seconds: float) -> None:
    raise Idle


def name_of(outcome: RecordOutcome) -> str:
    return f"{outcome.origin['partition']}{outcome.origin['offset']}"


@dataclass
class Store:
    """An ``OutcomeStore`` in memory. ``away_at``: the write that raises after its first outcome."""

    kept: list[RecordOutcome] = field(default_factory=list)
    away_at: int = -1
    writes: int = 0
    opened: int = 0

    def open(self) -> None:
        self.opened += 1

    def write(self, outcomes: Iterable[RecordOutcome]) -> None:
        self.writes += 1
        for outcome in outcomes:
            self.kept.append(outcome)
            if self.writes == self.away_at:
                raise Away

    def close(self) -> None:
        self.opened -= 1


@dataclass
class Hearing(Listener):
    """Keeps the records whose final callback has returned. ``away_at``: the call that raises."""

    ended: list[str] = field(default_factory=list)
    away_at: int = -1
    calls: int = 0

    def on_ack(self, acked: Emissions) -> None:
        self._hear(acked)

    def on_dead_letter(self, dead: Emissions, why: Failures) -> None:
        self._hear(dead)

    def _hear(self, emissions: Emissions) -> None:
        self.calls += 1
        if self.calls == self.away_at:
            raise Away
        self.ended += [f"{row['partition']}{row['offset']}" for row in emissions.origins().to_pylist()]


def source(cluster: Cluster, log: InMemory, **options: Any) -> LogSource:
    defaults = {"environment": cluster.environment(), "retry": Retry(max_retries=1, initial_s=0, cap_s=0)}
    return LogSource(log, **{**defaults, "dead_letters": MemoryLetters(), "max_dead_share": 1.0, **options})


def tries_of(outcomes: Iterable[RecordOutcome]) -> dict[str, list[tuple[str, int, bool]]]:
    """Return (verdict, attempts, is_final) of each outcome, by record."""
    found: dict[str, list[tuple[str, int, bool]]] = {}
    for each in outcomes:
        found.setdefault(name_of(each), []).append((each.verdict.name, each.attempts, each.is_final))
    return found


def done_in(checkpoint: MemoryCheckpoint) -> set[str]:
    """Return the records that the next start skips."""
    return {
        f"{name}{position}"
        for name, each in checkpoint.saved.items()
        for start, stop in zip(each.done.starts, each.done.stops, strict=True)
        for position in range(start, stop)
    }


# -- against a model


@dataclass(frozen=True)
class Story:
    """What happens to a log of records. ``fails``: how often each record fails, by number. ``faults``: for each run, at
    which outcome, write or call whoever hears them is away."""

    count: int
    batch_records: int
    max_retries: int
    fails: dict[int, int]
    faults: list[int]


stories = st.builds(
    Story,
    count=st.integers(1, 24),
    batch_records=st.integers(1, 8),
    max_retries=st.integers(0, 2),
    fails=st.dictionaries(st.integers(0, 23), st.integers(1, 4), max_size=6),
    faults=st.lists(st.integers(1, 9), max_size=4),
)


def expected(story: Story) -> dict[str, list[tuple[str, int, bool]]]:
    """Return the tries of each record without a fault, by the rules as a person would say them."""
    found = {}
    for number in range(story.count):
        fails, most = story.fails.get(number, 0), story.max_retries + 1
        tries = [("FAILED", attempt, attempt == most) for attempt in range(1, min(fails, most) + 1)]
        found[f"a{number}"] = tries if fails >= most else [*tries, ("ACKED", fails + 1, True)]
    return found


def failing_as_told(story: Story) -> Callable[[Batch], None]:
    """Fail each record as often as the story says, over all runs."""
    failed = Counter[int]()

    def process(batch: Batch) -> None:
        frame = frame_of(batch)
        rows = frame.rows()
        bad = {row.root: "bad" for row in rows if failed[int(row.value[1:])] < story.fails.get(int(row.value[1:]), 0)}
        failed.update(int(row.value[1:]) for row in rows if row.root in bad)
        frame.fail(bad)
        frame.ack(row for row in rows if row.root not in bad)

    return process


@pytest.mark.long
@given(stories)
@settings(max_examples=30)
def test_each_record_has_its_tries_and_one_final_outcome_in_the_stream_and_in_the_store(story: Story) -> None:
    with TemporaryDirectory() as folder:
        cluster, log, store, hearing = Cluster(Path(folder)), log_of(a=story.count), Store(), Hearing()
        retry = Retry(max_retries=story.max_retries, initial_s=0, cap_s=0)
        options: dict[str, Any] = {"retry": retry, "batch_records": story.batch_records, "outcomes": store}
        stream = list(source(cluster, log, listener=hearing, **options).outcomes(NO_SPARK, failing_as_told(story)))
        assert tries_of(stream) == expected(story)
        assert stream == store.kept
        assert sorted(hearing.ended) == sorted(expected(story))
        assert store.opened == 0


def leave_at(outcomes: Iterator[RecordOutcome], fault: int, checkpoint: MemoryCheckpoint, seen: set[str]) -> None:
    """Take outcomes, and leave at the ``fault``-th. Checks at each what the checkpoint says."""
    with closing(outcomes):  # type: ignore[type-var]
        for number, outcome in enumerate(outcomes, 1):
            assert done_in(checkpoint) <= seen
            if outcome.is_final:
                seen.add(name_of(outcome))
            if number == fault:
                break


@pytest.mark.sampled(3)
@pytest.mark.parametrize("how", ["loop", "store", "listener"])
@given(story=stories)
@settings(max_examples=30)
def test_no_record_counts_as_done_whose_final_outcome_was_not_heard(how: str, story: Story) -> None:
    with TemporaryDirectory() as folder:
        cluster, log, checkpoint, seen = Cluster(Path(folder)), log_of(a=story.count), MemoryCheckpoint(), set[str]()
        process = failing_as_told(story)
        options: dict[str, Any] = {"checkpoint": checkpoint, "batch_records": story.batch_records}
        options["retry"] = Retry(max_retries=story.max_retries, initial_s=0, cap_s=0)
        for fault in (*story.faults, -1):
            store, hearing = Store(away_at=fault), Hearing(away_at=fault)
            if how == "loop":
                leave_at(source(cluster, log, **options).outcomes(NO_SPARK, process), fault, checkpoint, seen)
            else:
                heard = {"outcomes": store} if how == "store" else {"listener": hearing}
                with suppress(Away):
                    source(cluster, log, **options, **heard).run(NO_SPARK, process)
                seen |= {name_of(each) for each in store.kept if each.is_final} | set(hearing.ended)
            assert done_in(checkpoint) <= seen
        assert seen == done_in(checkpoint) == {f"a{number}" for number in range(story.count)}


# -- the stream


def test_the_next_batch_begins_once_all_outcomes_of_the_last_one_are_taken(cluster: Cluster) -> None:
    log, checkpoint, batches = log_of(a=6), MemoryCheckpoint(), list[int]()

    def process(batch: Batch) -> None:
        batches.append(batch.number)
        save_all(batch)

    stream = source(cluster, log, batch_records=3, checkpoint=checkpoint).outcomes(NO_SPARK, process)
    assert [name_of(next(stream)) for _ in range(3)] == ["a0", "a1", "a2"]
    assert (batches, done_in(checkpoint)) == ([1], set())
    assert name_of(next(stream)) == "a3"
    assert (batches, done_in(checkpoint)) == ([1, 2], {"a0", "a1", "a2"})
    stream.close()
    assert done_in(checkpoint) == {"a0", "a1", "a2"}


def test_leaving_the_loop_reads_only_those_records_again_whose_outcome_was_not_taken(cluster: Cluster) -> None:
    log, checkpoint = log_of(a=6), MemoryCheckpoint()
    for outcome in source(cluster, log, checkpoint=checkpoint).outcomes(NO_SPARK, save_all):
        if name_of(outcome) == "a4":
            break
    assert done_in(checkpoint) == {"a0", "a1", "a2", "a3"}
    again = source(cluster, log, checkpoint=checkpoint).outcomes(NO_SPARK, save_all)
    assert [name_of(each) for each in again] == ["a4", "a5"]


def test_leaving_the_loop_counts_only_those_dead_letters_whose_outcome_was_taken(cluster: Cluster) -> None:
    log, checkpoint = log_of(a=6), MemoryCheckpoint()
    dying = source(cluster, log, checkpoint=checkpoint, retry=Retry(max_retries=0))
    for outcome in dying.outcomes(NO_SPARK, failing(lambda row: True)):
        if name_of(outcome) == "a4":
            break
    assert checkpoint.saved["a"].answered == Answered(records=4, dead=4)


def test_an_outcome_says_where_its_record_is_and_why_it_was_not_acked(cluster: Cluster) -> None:
    cluster.write("a.txt", "good", "bad")
    process = failing(lambda row: row.value == "bad", "items: KeyError: 'qty'\nTraceback (most recent call last):\n x")
    outcomes = cluster.source(retry=Retry(max_retries=1, initial_s=0)).outcomes(NO_SPARK, process)
    good, retried, dead = sorted(outcomes, key=lambda each: (each.origin["line"], each.attempts))
    path = f"{cluster.folder}/a.txt"
    assert good == RecordOutcome("lines", {"path": path, "line": 1}, None, Verdict.ACKED, "", 1, True)
    assert (retried.where, retried.attempts, retried.is_final) == (f"{path}:2", 1, False)
    assert (dead.where, dead.attempts, dead.is_final) == (f"{path}:2", 2, True)
    assert {retried.reason, dead.reason} == {"items: KeyError: 'qty'"}
    assert json.loads(dead.to_json()) == {
        "source": "lines", "origin": {"path": path, "line": 2}, "key": None, "verdict": "FAILED", "final": True,
        "reason": "items: KeyError: 'qty'", "attempts": 2,
    }  # fmt: skip


def test_the_letter_of_a_record_is_written_before_its_final_outcome_comes(cluster: Cluster) -> None:
    cluster.write("a.txt", "bad")
    path = cluster.folder / "dead.jsonl"
    stream = cluster.source(retry=Retry(max_retries=0)).outcomes(NO_SPARK, failing(lambda row: True))
    (outcome,) = [(each.is_final, len(path.read_text().splitlines())) for each in stream]
    assert outcome == (True, 1)


def test_a_batch_that_fails_as_a_whole_gives_each_record_an_outcome_that_is_not_final(cluster: Cluster) -> None:
    log = log_of(a=4)
    options: dict[str, Any] = {"retry": Retry(max_retries=0, initial_s=0, cap_s=0)}
    outcomes = list(source(cluster, log, **options).outcomes(NO_SPARK, breaking(lambda row: row.value == "a2")))
    assert Counter(name_of(each) for each in outcomes if each.is_final) == dict.fromkeys(("a0", "a1", "a2", "a3"), 1)
    (dead,) = [each for each in outcomes if each.is_final and each.verdict is not Verdict.ACKED]
    assert (name_of(dead), dead.attempts) == ("a2", 1)
    assert dead.reason == "the batch failed: ArithmeticError: division by zero in a where"
    assert {each.attempts for each in outcomes} == {1}


def test_outcomes_of_records_that_outlive_their_batch_come_while_nothing_is_left_to_read(cluster: Cluster) -> None:
    log, left = log_of(a=2), list[Any]()

    def process(batch: Batch) -> None:
        first, second = frame_of(batch).rows()
        frame_of(batch).ack([first])
        left.append((frame_of(batch), second))

    log.is_ended = False
    options: dict[str, Any] = {"held": False, "message_timeout_s": 60.0, "lease_s": 600.0}
    options["environment"] = replace(cluster.environment(), sleep=idle)
    stream = source(cluster, log, **options).outcomes(NO_SPARK, process)
    assert name_of(next(stream)) == "a0"
    frame, row = left.pop()
    frame.ack([row])
    assert name_of(next(stream)) == "a1"
    with pytest.raises(Idle):
        next(stream)


def test_a_source_without_retries_ends_each_record_at_its_first_try(cluster: Cluster) -> None:
    log = log_of(a=3)
    options: dict[str, Any] = {"guarantee": "no_guarantee", "dead_letters": None}
    process = failing(lambda row: row.value == "a1")
    outcomes = list(source(cluster, log, **options).outcomes(NO_SPARK, process))
    assert tries_of(outcomes) == {
        "a0": [("ACKED", 1, True)], "a1": [("FAILED", 1, True)], "a2": [("ACKED", 1, True)]
    }  # fmt: skip


def test_a_record_that_does_not_exist_has_no_outcome(cluster: Cluster) -> None:
    log = log_of(a=4)
    log.compact("a", 1, 2)
    assert [name_of(each) for each in source(cluster, log).outcomes(NO_SPARK, save_all)] == ["a0", "a3"]


def test_too_many_dead_letters_are_counted_among_records_whose_outcomes_are_not_taken_yet(cluster: Cluster) -> None:
    log = log_of(a=1000)
    options: dict[str, Any] = {"retry": Retry(max_retries=0), "max_dead_share": 0.02}
    process = failing(lambda row: int(row.value[1:]) < 15)
    outcomes = list(source(cluster, log, **options).outcomes(NO_SPARK, process))
    assert Counter(each.verdict for each in outcomes) == {Verdict.ACKED: 985, Verdict.FAILED: 15}


def test_a_partition_that_goes_to_another_source_takes_none_of_the_outcomes_along(cluster: Cluster) -> None:
    log, group = log_of(a=4, b=4), Group({"a": "x", "b": "x"})
    log.is_ended = False
    options: dict[str, Any] = {"group": Membership(group, "x"), "checkpoint": SharedCheckpoint(group, "x")}
    options["environment"] = replace(cluster.environment(), sleep=idle)
    stream = source(cluster, log, **options).outcomes(NO_SPARK, save_all)
    first = next(stream)
    group.give("a", "y")
    with suppress(Idle):
        rest = [name_of(first)]
        rest.extend(map(name_of, stream))
    assert sorted(rest) == ["a0", "a1", "a2", "a3", "b0", "b1", "b2", "b3"]
    assert group.saved["a"].done.to_runs() == [4]


def test_stop_ends_the_loop_after_the_outcomes_of_the_batch_under_way(cluster: Cluster) -> None:
    log = log_of(a=6)
    stopping = source(cluster, log, batch_records=3)

    def process(batch: Batch) -> None:
        stopping.stop()
        save_all(batch)

    assert [name_of(each) for each in stopping.outcomes(NO_SPARK, process)] == ["a0", "a1", "a2"]


def test_a_process_that_is_not_callable_is_refused_before_the_loop_begins(cluster: Cluster) -> None:
    with pytest.raises(TypeError, match=r"outcomes\(spark, 3\): give a function"):
        source(cluster, log_of(a=1)).outcomes(NO_SPARK, 3)  # type: ignore[arg-type]


def test_nothing_is_looked_up_for_outcomes_that_nobody_asked_for(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(rows: Any) -> Any:
        raise AssertionError("origins were made")

    monkeypatch.setattr("acker_client.source.engine.listeners.json_rows", refuse)
    log = log_of(a=100)
    assert source(cluster, log).run(NO_SPARK, failing(lambda row: row.value == "a7")).acked == 99


# -- the store


@pytest.mark.parametrize("given", [3, Store, "outcomes.jsonl"])
def test_outcomes_that_are_no_store_are_refused(cluster: Cluster, given: Any) -> None:
    with pytest.raises(ValueError, match=r"outcomes=.*: give a KafkaTopic, or another OutcomeStore"):
        source(cluster, log_of(), outcomes=given)


def test_a_store_that_cannot_be_opened_ends_the_run_before_anything_is_read(cluster: Cluster) -> None:
    class Closed(Store):
        def open(self) -> None:
            raise SourceError("no such topic")

    log = log_of(a=3)
    with pytest.raises(SourceError, match="no such topic"):
        source(cluster, log, outcomes=Closed()).run(NO_SPARK, save_all)
    assert log.asked == 0


def test_a_store_that_cannot_be_closed_leaves_the_checkpoint_to_the_next_source(cluster: Cluster) -> None:
    class Stuck(Store):
        def close(self) -> None:
            raise SourceError("no answer")

    log, checkpoint = log_of(a=3), cluster.folder / "checkpoint"
    with pytest.raises(SourceError, match="no answer"):
        source(cluster, log, outcomes=Stuck(), checkpoint=checkpoint).run(NO_SPARK, save_all)
    assert source(cluster, log, checkpoint=checkpoint).run(NO_SPARK, save_all).records == 0


# -- the listener


@dataclass
class Noting(Listener):
    """Notes its calls in order."""

    calls: list[str] = field(default_factory=list)
    raises: str = ""

    def _note(self, call: str) -> None:
        self.calls.append(call)
        if call == self.raises:
            raise Away

    def on_open(self, source: str) -> None:
        self._note(f"open {source}")

    def on_close(self) -> None:
        self._note("close")

    def on_assign(self, partitions: Any) -> None:
        self._note(f"assign {' '.join(partitions)}")

    def on_emit(self, batch: int, emitted: Emissions, is_replay: bool) -> None:
        self._note("emit")

    def on_ack(self, acked: Emissions) -> None:
        self._note("ack")


def test_a_listener_hears_of_the_run_from_open_to_close(cluster: Cluster) -> None:
    noting, group, log = Noting(), Group({"a": "x"}), log_of(a=2)
    options: dict[str, Any] = {"group": Membership(group, "x"), "checkpoint": SharedCheckpoint(group, "x")}
    log.is_ended = False
    stopping = source(cluster, log, listener=noting, **options)

    def process(batch: Batch) -> None:
        save_all(batch)
        stopping.stop()

    stopping.run(NO_SPARK, process)
    assert noting.calls == ["open log", "assign a", "emit", "ack", "close"]
    assert group.saved["a"].done.to_runs() == [2]


def test_a_listener_hears_of_the_end_of_a_run_that_could_not_begin(cluster: Cluster) -> None:
    class Locked(MemoryCheckpoint):
        def open(self, source: str, kind: str) -> None:
            raise SourceError("locked")

    noting = Noting()
    with pytest.raises(SourceError, match="locked"):
        source(cluster, log_of(a=2), listener=noting, checkpoint=Locked()).run(NO_SPARK, save_all)
    assert noting.calls == ["open log", "close"]


@pytest.mark.parametrize(
    ("raises", "calls", "done"),
    [
        ("open log", ["open log"], set()),
        ("emit", ["open log", "emit", "close"], set()),
        ("ack", ["open log", "emit", "ack", "close"], set()),
        ("close", ["open log", "emit", "ack", "close"], {"a0", "a1"}),
    ],
)
def test_an_exception_of_any_callback_ends_the_run_and_loses_nothing(
    cluster: Cluster, raises: str, calls: list[str], done: set[str]
) -> None:
    noting, checkpoint, log = Noting(raises=raises), MemoryCheckpoint(), log_of(a=2)
    with pytest.raises(Away):
        source(cluster, log, listener=noting, checkpoint=checkpoint).run(NO_SPARK, save_all)
    assert (noting.calls, done_in(checkpoint)) == (calls, done)
