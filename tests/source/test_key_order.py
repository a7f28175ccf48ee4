"""Records of one key are handed out in order, whatever fails, and records of other keys do not wait for them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from acker_client.source import Batch, Committed, Emissions, Failures, Listener, Ranges, Retry, Source
from acker_client.source.decoding.lines import ReadRows
from acker_client.source.engine.options import Options
from acker_client.source.records.balance import sliced
from acker_client.source.records.input import Chosen, Original, Plan
from acker_client.source.records.key_order import KeyOrder
from tests.source.executors import NO_SPARK, Cluster, Timers, frame_of
from tests.source.logs import MemoryCheckpoint, MemoryLetters

# -- the order alone, beside a twin that looks at each record


@dataclass
class Twin:
    """All records that are not done, by number: their keys, and whether they were emitted."""

    keys: dict[int, int] = field(default_factory=dict)
    emitted: set[int] = field(default_factory=set)

    def take(self, records_max: int) -> list[int]:
        taken: list[int] = []
        for record, key in sorted(self.keys.items()):
            is_first = not any(other < record for other, each in self.keys.items() if each == key)
            if is_first and record not in self.emitted and len(taken) < records_max:
                taken.append(record)
        self.emitted |= set(taken)
        return taken


STEPS = st.lists(
    st.tuples(
        st.sampled_from(["hold", "take", "finish", "drop"]), st.integers(0, 6), st.randoms(use_true_random=False)
    ),
    max_size=30,
)


@given(STEPS)
def test_the_first_open_record_of_each_key_may_go_and_no_other(steps: list[tuple[str, int, Any]]) -> None:
    twin, planned = Twin(), 0
    order = KeyOrder(lambda records: np.array([each for each in records.tolist() if each in twin.keys], np.int64))
    for what, count, chance in steps:
        if what == "hold":
            keys = [chance.randrange(4) for _ in range(count)]
            # Numbers of positions that are done already are left out.
            numbers = np.sort(np.array(chance.sample(range(planned, planned + 2 * count), count), np.int64))
            planned += 2 * count
            order.hold_back(numbers, np.array(keys, np.uint64))
            twin.keys |= zip(numbers.tolist(), keys, strict=True)
        elif what == "take":
            assert order.take(count).tolist() == twin.take(count)
        elif what == "finish":
            for record in [each for each in sorted(twin.emitted) if chance.random() < 0.5]:
                twin.emitted.discard(record)
                del twin.keys[record]
        else:
            dropped = [each for each in sorted(twin.keys) if chance.random() < 0.2]
            held = [each for each in dropped if each not in twin.emitted]
            assert order.drop(np.array(dropped, np.int64)).tolist() == held
            for record in dropped:
                twin.emitted.discard(record)
                del twin.keys[record]
        assert order.held_back == len(twin.keys) - len(twin.emitted)


# -- a run


@dataclass(frozen=True)
class LogPart:
    partition: str
    start: int
    stop: int


@dataclass(frozen=True)
class LogSlice:
    start: int
    stop: int
    chosen: tuple[Chosen[LogPart], ...]

    def read(self) -> Any:
        number = self.start
        for each in self.chosen:
            values = [f"{each.part.partition}:{position}" for position in each.positions.tolist()]
            columns = pa.RecordBatch.from_pydict({"value": values})
            yield ReadRows(np.arange(number, number + len(each), dtype=np.uint64), columns)
            number += len(each)


class KeyedLog:
    """Partitions of records with keys. ``logs``: the keys, by partition. Notes what it has planned."""

    kind = "log"

    def __init__(self, logs: Mapping[str, Sequence[int]], chance: Any) -> None:
        self.logs, self._chance = logs, chance
        self.planned: list[tuple[str, int]] = []
        self.done: dict[str, Ranges] = {}

    def start(self, committed: Mapping[str, Committed]) -> None:
        self.done = {name: each.done for name, each in committed.items()}
        self._next = {name: self.done.get(name, Ranges()).prefix for name in self.logs}

    def plan(self, records_max: int, tasks: int) -> Plan[LogPart]:
        parts, left = [], records_max
        for name in self._chance.sample(sorted(self.logs), len(self.logs)):
            length = min(left, len(self.logs[name]) - self._next[name], self._chance.randint(1, 6))
            if length > 0:
                parts.append(LogPart(name, self._next[name], self._next[name] + length))
                self._next[name] += length
                left -= length
        places = [(part.partition, each) for part in parts for each in range(part.start, part.stop)]
        self.planned += [place for place in places if not self._is_done(*place)]
        # Keys of two partitions are apart, as an input makes them.
        keys = [
            np.array([hash((part.partition, key)) & (2**64 - 1) for key in self.logs[part.partition]], np.uint64)
            for part in parts
        ]
        keys = [each[part.start : part.stop] for part, each in zip(parts, keys, strict=True)]
        return Plan(parts, is_end=not parts, keys=keys)

    def slices(self, chosen: Sequence[Chosen[LogPart]], tasks: int) -> list[LogSlice]:
        return sliced(chosen, tasks, LogSlice)

    def origins(self, chosen: Sequence[Chosen[LogPart]]) -> pa.RecordBatch:
        places = [(each.part.partition, position) for each in chosen for position in each.positions.tolist()]
        names = ["partition", "position"]
        return pa.RecordBatch.from_pylist([dict(zip(names, place, strict=True)) for place in places])

    def originals(self, chosen: Sequence[Chosen[LogPart]]) -> list[Original]:
        return [Original(row, None) for row in self.origins(chosen).to_pylist()]

    def advance(self, partition: str, done: Ranges) -> None:
        self.done[partition] = done

    def mark(self, partition: str, done: Ranges) -> dict[str, Any]:
        return {}

    def describe(self, done: Mapping[str, Ranges]) -> str:
        return "a log"

    def _is_done(self, name: str, position: int) -> bool:
        return name in self.done and bool(self.done[name].contains(np.array([position]))[0])


class LogSource(Source):
    def __init__(self, log: KeyedLog, **options: Any) -> None:
        super().__init__(Options(**options))
        self.log = log

    def input(self) -> tuple[Any, Any]:
        return self.log, "value string"


Place = tuple[str, int]


@dataclass
class Watcher(Listener):
    """Checks each hand-out. ``handed``: the positions of each key, in the order of their hand-outs, over all runs."""

    logs: Mapping[str, Sequence[int]]
    batch_records: int
    open_max: int
    handed: dict[Place, list[int]] = field(default_factory=dict)
    ended: set[Place] = field(default_factory=set)
    dead: set[Place] = field(default_factory=set)
    log: KeyedLog | None = None
    _in_batch: dict[int, list[Place]] = field(default_factory=dict)
    _emitted: set[Place] = field(default_factory=set)

    def begin(self, log: KeyedLog) -> None:
        self.log, self._emitted, self._in_batch = log, set(), {}

    def on_emit(self, batch: int, emitted: Emissions, is_replay: bool) -> None:
        for place in places_of(emitted):
            key = self.key_of(place)
            self.handed.setdefault(key, []).append(place[1])
            assert not [other for other in self._emitted - self.ended - {place} if self.key_of(other) == key]
            self._in_batch.setdefault(batch, []).append(place)
            self._emitted.add(place)

    def check_batch(self, batch: Batch) -> None:
        """Check that no two records of the batch have one key, and that nothing else could have gone with it."""
        assert self.log is not None
        keys = [self.key_of(place) for place in self._in_batch[batch.number]]
        assert len(set(keys)) == len(keys)
        open_places = [place for place in self.log.planned if place not in self.ended]
        assert len(open_places) <= self.open_max
        if batch.depth or batch.records == self.batch_records:
            return
        firsts = {self.key_of(place): place for place in sorted(open_places, reverse=True)}
        held_up = [place for place in firsts.values() if place not in self._emitted]
        assert held_up == []

    def on_ack(self, acked: Emissions) -> None:
        self.ended |= set(places_of(acked))

    def on_dead_letter(self, dead: Emissions, why: Failures) -> None:
        self.ended |= set(places_of(dead))
        self.dead |= set(places_of(dead))

    def key_of(self, place: Place) -> Place:
        return place[0], self.logs[place[0]][place[1]]


def places_of(some: Emissions) -> list[Place]:
    return [(row["partition"], row["position"]) for row in some.origins().to_pylist()]


LOGS = st.dictionaries(st.sampled_from("pq"), st.lists(st.integers(0, 4), min_size=1, max_size=25), min_size=1)


def run_in_order(
    logs: Mapping[str, Sequence[int]], chance: Any, batch_records: int, open_max: int, *, restarts: int
) -> Watcher:
    """Run a source over ``logs`` to its end, with every kind of failure, and as many restarts. Checks each batch."""
    watcher, checkpoint, tracking = Watcher(logs, batch_records, open_max), MemoryCheckpoint(), chance.random() < 0.7
    with TemporaryDirectory() as folder:
        cluster, timers = Cluster(Path(folder)), Timers()
        environment = replace(cluster.environment(), timer=timers.start)
        for left in reversed(range(restarts + 1)):
            log = KeyedLog(logs, chance)
            watcher.begin(log)
            options: dict[str, Any] = {"name": "log", "environment": environment, "listener": watcher}
            options |= {"tracking": tracking, "message_timeout_s": 30.0}
            options |= {"batch_records": batch_records, "max_uncommitted": open_max, "checkpoint": checkpoint}
            options |= {"dead_letters": MemoryLetters(), "max_dead_share": 1.0, "retry": Retry(2, 9, 1.0, 8.0)}
            batches = LogSource(log, **options).batches(NO_SPARK)
            for batch in batches:
                watcher.check_batch(batch)
                rows = frame_of(batch).rows()
                chance.shuffle(rows)
                cut, fate = chance.randint(0, len(rows)), chance.random()
                frame_of(batch).fail({row.root: "not this time" for row in rows[:cut] if chance.random() < 0.7})
                frame_of(batch).ack(rows[cut:])
                if left and chance.random() < 0.2:
                    break
                if fate < 0.1:
                    timers.expire()
                if fate < 0.2:
                    batch.error = ValueError("the job failed")
                else:
                    batch.done()
            batches.close()
            if left:
                # What is not in the checkpoint is read again.
                watcher.ended = {place for place in watcher.ended if is_saved(checkpoint, *place)}
    return watcher


def is_saved(checkpoint: MemoryCheckpoint, name: str, position: int) -> bool:
    saved = checkpoint.load().get(name, Committed()).done
    return bool(saved.contains(np.array([position]))[0])


@given(LOGS, st.randoms(use_true_random=False), st.integers(1, 8), st.integers(0, 20), st.integers(0, 2))
@settings(max_examples=6)
def test_records_of_a_key_are_handed_out_in_order_over_failures_replays_and_restarts_and_others_never_wait(
    logs: dict[str, list[int]], chance: Any, batch_records: int, more: int, restarts: int
) -> None:
    watcher = run_in_order(logs, chance, batch_records, batch_records + more, restarts=restarts)
    assert watcher.ended == {(name, k) for name, keys in logs.items() for k in range(len(keys))}
    assert all(positions == sorted(positions) for positions in watcher.handed.values())


@pytest.mark.long
@given(LOGS, st.randoms(use_true_random=False), st.integers(1, 8), st.integers(0, 20), st.integers(0, 4))
@settings(max_examples=200)
def test_records_of_a_key_are_handed_out_in_order_in_many_cases(
    logs: dict[str, list[int]], chance: Any, batch_records: int, more: int, restarts: int
) -> None:
    watcher = run_in_order(logs, chance, batch_records, batch_records + more, restarts=restarts)
    assert watcher.ended == {(name, k) for name, keys in logs.items() for k in range(len(keys))}
    assert all(positions == sorted(positions) for positions in watcher.handed.values())


@given(LOGS, st.randoms(use_true_random=False), st.integers(1, 8), st.integers(0, 20))
@settings(max_examples=12)
def test_records_of_a_key_are_handed_out_in_order_to_batches_that_are_open_together(
    logs: dict[str, list[int]], chance: Any, batch_records: int, more: int
) -> None:
    watcher, log = Watcher(logs, batch_records, batch_records + more), KeyedLog(logs, chance)
    watcher.begin(log)
    with TemporaryDirectory() as folder:
        options: dict[str, Any] = {"name": "log", "environment": Cluster(Path(folder)).environment()}
        options |= {"listener": watcher, "batch_records": batch_records, "max_uncommitted": batch_records + more}
        options |= {"dead_letters": MemoryLetters(), "max_dead_share": 1.0, "retry": Retry(2, 9, 1.0, 8.0)}
        with LogSource(log, **options)._begin_run(NO_SPARK) as run:
            opened: list[Batch] = []
            while not run.is_over:
                batch = run.next_batch() if len(opened) < 3 else None
                if batch is not None:
                    opened.append(batch)
                if opened and (batch is None or chance.random() < 0.4):
                    batch = opened.pop(chance.randrange(len(opened)))
                    rows = frame_of(batch).rows()
                    bad = {row.root: "not this time" for row in rows if chance.random() < 0.2}
                    frame_of(batch).fail(bad)
                    frame_of(batch).ack(row for row in rows if row.root not in bad)
                    run.settle_batch(batch, ValueError("the job failed") if chance.random() < 0.1 else None)
    assert watcher.ended == {(name, k) for name, keys in logs.items() for k in range(len(keys))}
    assert all(positions == sorted(positions) for positions in watcher.handed.values())
