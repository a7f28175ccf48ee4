"""``Parts``, compared with a model that keeps every position of every partition in sets."""

from __future__ import annotations

import json
from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from acker_client.source.records.input import Answered, Chosen
from acker_client.source.records.parts import Parts
from acker_client.source.records.ranges import Ranges


@dataclass(frozen=True)
class Stretch:
    partition: str
    start: int
    stop: int


class PartsBesideTheirTwin(RuleBasedStateMachine):
    """Partitions grow, with gaps. Records are done in any order. Restarts begin with what was saved."""

    @initialize()
    def begin(self) -> None:
        self.exists: dict[str, set[int]] = {}
        self.done: dict[str, set[int]] = {}
        self.end: dict[str, int] = {}
        self.start({})

    def start(self, done: dict[str, Ranges]) -> None:
        self.parts: Parts[Stretch] = Parts(done)
        self.open: dict[int, tuple[str, int]] = {}
        self.finished_below = 0

    @rule(partition=st.sampled_from("abc"), gap=st.integers(0, 3), length=st.integers(1, 6))
    def plan(self, partition: str, gap: int, length: int) -> None:
        start = self.end.get(partition, 0) + gap
        self.exists.setdefault(partition, set()).update(range(start, start + length))
        self._plan(partition, start, start + length)

    def _plan(self, partition: str, start: int, stop: int) -> None:
        first = self.parts.planned
        numbers = self.parts.add_parts([Stretch(partition, start, stop)])
        done = self.done.setdefault(partition, set())
        expected = {first + k: (partition, start + k) for k in range(stop - start) if start + k not in done}
        assert numbers.tolist() == list(expected)
        self.open |= expected
        self.end[partition] = stop

    @precondition(lambda self: self.open)
    @rule(data=st.data())
    def finish(self, data: st.DataObject) -> None:
        numbers = sorted(data.draw(st.sets(st.sampled_from(sorted(self.open)), min_size=1)))
        self.parts.finish(Ranges.of(np.array(numbers, np.int64)))
        for number in numbers:
            partition, position = self.open.pop(number)
            self.done[partition].add(position)
        self.parts.forget_parts(min(self.open, default=self.parts.planned))

    @rule()
    def restart(self) -> None:
        """Check that a restart plans exactly the existing positions that are not done."""
        written = {name: json.dumps(done.to_runs()) for name, done in self.parts.done.items()}
        self.start({name: Ranges.from_runs(json.loads(runs)) for name, runs in written.items()})
        ends, self.end = self.end, {}
        for partition, end in ends.items():
            prefix = self.parts.done[partition].prefix if partition in self.parts.done else 0
            if prefix < end:
                self._plan_again(partition, prefix, end)
            else:
                self.end[partition] = end
        assert sorted(self.open.values()) == sorted(
            (name, position) for name in ends for position in self.exists[name] - self.done[name]
        )

    def _plan_again(self, partition: str, prefix: int, end: int) -> None:
        # An input may leave out positions that it knows not to exist.
        for position in sorted(self.exists[partition]):
            if prefix <= position < end:
                self._plan(partition, position, position + 1)
        self.end[partition] = end

    @invariant()
    def agree(self) -> None:
        assert self.parts.all_answered == sum(self.parts.answered.values(), Answered())
        for partition, done in self.parts.done.items():
            positions = np.arange(self.end[partition])
            missing = set(positions.tolist()) - self.exists[partition]
            assert set(positions[done.contains(positions)].tolist()) == self.done[partition] | missing
        for number, (partition, position) in self.open.items():
            (chosen,) = self.parts.chosen(np.array([number]))
            assert (chosen.part.partition, chosen.positions.tolist()) == (partition, [position])


TestPartsBesideTheirTwin = PartsBesideTheirTwin.TestCase
TestPartsBesideTheirTwin.settings = settings(max_examples=60, stateful_step_count=25, deadline=None)


def test_one_open_record_holds_up_its_own_partition_only() -> None:
    parts: Parts[Stretch] = Parts({})
    parts.add_parts([Stretch("a", 0, 100), Stretch("b", 0, 100)])
    parts.finish(Ranges.of(np.array([k for k in range(200) if k != 7])))
    assert (parts.done["a"].to_runs(), parts.done["b"].to_runs()) == ([7, 1, 92], [100])
    assert (parts.most_holes, parts.take_changed(), parts.take_changed()) == (1, {"a", "b"}, set())


def test_a_part_is_chosen_whole_or_by_its_offsets() -> None:
    parts: Parts[Stretch] = Parts({})
    numbers = parts.add_parts([Stretch("a", 10, 13), Stretch("a", 20, 22)])
    whole, some = parts.chosen(numbers[[0, 1, 2, 4]])
    assert (whole.offsets, len(whole), whole.positions.tolist()) == (None, 3, [10, 11, 12])
    assert some.offsets is not None
    assert (some.offsets.tolist(), some.positions.tolist()) == ([1], [21])
    assert isinstance(whole, Chosen)


def test_parts_that_overlap_or_are_empty_are_an_error_of_the_input() -> None:
    parts: Parts[Stretch] = Parts({"a": Ranges.below(5)})
    for start, stop in ((4, 8), (6, 6)):
        with pytest.raises(ValueError, match="is empty, or begins below 5"):
            parts.add_parts([Stretch("a", start, stop)])


def test_forgotten_and_unplanned_records_are_a_lookup_error() -> None:
    parts: Parts[Stretch] = Parts({})
    parts.add_parts([Stretch("a", 0, 5), Stretch("a", 5, 10)])
    parts.forget_parts(6)
    for record in (4, 10):
        with pytest.raises(LookupError):
            parts.chosen(np.array([record]))
    assert len(parts.chosen(np.array([5]))) == 1


def test_a_partition_that_was_revoked_begins_where_it_is_assigned_or_as_a_new_one() -> None:
    parts: Parts[Stretch] = Parts({})
    for partition in "ab":
        parts.add_parts([Stretch(partition, 0, 10)])
    parts.finish(Ranges.of(np.array([0, 1, 5, 10, 11, 15])))
    parts.revoke("a")
    parts.revoke("b")
    parts.assign({"a": Ranges.from_runs([2, 3, 1])})
    assert parts.add_parts([Stretch("a", 2, 8)]).tolist() == [20, 21, 22, 24, 25]
    assert parts.add_parts([Stretch("b", 4, 8)]).tolist() == [26, 27, 28, 29]
    assert parts.numbers_of(["a"]).tolist() == [*range(10), *range(20, 26)]
    assert {name: done.to_runs() for name, done in parts.done.items()} == {"a": [2, 3, 1], "b": [4]}
