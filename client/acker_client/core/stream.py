"""Stream: where the roots of a source's open stream live, now and before. Pure.

Decides when the stream is pinned anew, and which pins are still needed. The numbers of emissions go on behind each pin,
so that a root tells by its id which pin it has, in every process.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType

import numpy as np
import numpy.typing as npt

from acker_client.core.pins import STREAM_NUMBERS, Pin, same_server
from acker_client.core.stream_votes import MISSED, StreamVotes
from acker_client.core.votes import lost_for
from acker_client.core.watched import NO_SLOTS, Mask, only
from acker_protocol.ids import SLOT_SHIFT, SLOTS, Column, mix64_column, root_id
from acker_protocol.messages import Outcomes
from acker_protocol.placement import Member, Placement

NOTHING_MISSED: Mapping[Member, Column] = MappingProxyType({})


@dataclass(slots=True)
class StreamPin:
    """One pin of the stream, and what its members say."""

    pin: Pin
    votes: StreamVotes
    # Under which registration each of its members was opened.
    generations: Mapping[Member, int | None]
    # Who has left, or lost it.
    out: set[Member] = field(default_factory=set)
    # How many roots of each slot were initialised under it and have no outcome yet.
    pending: npt.NDArray[np.int64] = field(default_factory=lambda: np.zeros(SLOTS, np.int64))

    # Slots of which no member knows anything any more.
    nowhere: Mask = field(default_factory=NO_SLOTS.copy)

    @property
    def is_needed(self) -> bool:
        return bool((self.pending > 0).any())


class Stream:
    """Not thread-safe: the caller holds a lock around every method."""

    def __init__(self, session: int, base: int) -> None:
        self._session = session
        self._base = base
        self._pins: list[StreamPin] = []
        self._numbers = itertools.count()

    def new_root(self) -> int:
        """The root id of the next emission. One step of a counter: no lock is needed for it."""
        return root_id(self._base, next(self._numbers))

    @property
    def pins(self) -> tuple[Pin, ...]:
        """Oldest first."""
        return tuple(each.pin for each in self._pins)

    @property
    def members(self) -> set[Member]:
        """Who holds roots of it, or is to hold what is emitted now."""
        return {member for each in self._pins for member in each.pin.placement.members if member not in each.out}

    @property
    def current(self) -> Pin:
        return self._pins[-1].pin

    def is_placed_on(self, placement: Placement) -> bool:
        """Whether what is emitted now lives on the very members of ``placement``."""
        if not self._pins:
            return False
        now = self.current.placement
        return now.members == placement.members and np.array_equal(now.replicas, placement.replicas)

    def pin(self, placement: Placement, generations: Mapping[Member, int | None]) -> None:
        """What is emitted from now on lives on ``placement``, under these registrations of its members."""
        start = self.current.first - self._base + STREAM_NUMBERS if self._pins else 0
        pin = Pin(self._session, 0, self._base + start, STREAM_NUMBERS, placement)
        self._pins.append(StreamPin(pin, StreamVotes(placement.replicas), generations))
        self._numbers = itertools.count(start)

    def initialised(self, root_ids: Column, missed: Mapping[Member, Column] = NOTHING_MISSED) -> list[Outcomes]:
        """Inits of these roots have been answered, but for those that were ``missed`` by a member; what is final."""
        for each, own in self._of_pins(self._pins, root_ids):
            each.pending += np.where(each.nowhere, 0, _by_slot(root_ids[own]))
        finals = [final for member, roots in missed.items() for final in self._missed(member, roots)]
        return [final for final in (*finals, *self._unheard(missed)) if len(final)]

    def _missed(self, member: Member, root_ids: Column) -> Iterator[Outcomes]:
        for each, own in self._of_pins(self._pins, root_ids):
            # The pin may call it otherwise.
            for index in same_server(member, each.pin.placement.members):
                final = each.votes.missed(index, root_ids[own])
                each.pending -= _by_slot(final.root_ids)
                yield final

    def _unheard(self, missed: Mapping[Member, Column]) -> Iterator[Outcomes]:
        """LOST of what all its members have missed, and had left before: it was emitted after that was reported."""
        if not missed:
            return
        roots, times = np.unique(np.concatenate(list(missed.values())), return_counts=True)
        for each, own in self._of_pins(self._pins, roots):
            slots = mix64_column(roots[own]) >> np.uint64(SLOT_SHIFT)
            is_unheard = each.nowhere[slots] & (times[own] == each.pin.placement.replicas.shape[1])
            yield lost_for(MISSED, roots[own][is_unheard])

    def hear(self, is_here: Callable[[Member], bool], outcomes: Outcomes) -> list[Outcomes]:
        """The server of the members that are ``is_here`` reports ``outcomes``; those that are final now."""
        heard = []
        here = [each for each in self._pins if any(map(is_here, each.pin.placement.members))]
        for each, own in self._of_pins(here, outcomes.root_ids):
            members = each.pin.placement.members
            index = members.index(next(filter(is_here, members)))
            final = each.votes.hear(index, outcomes if own.all() else only(outcomes, own))
            each.pending -= _by_slot(final.root_ids)
            heard.append(final)
        return heard

    def leave(self, member: Member, why: str) -> tuple[list[Outcomes], Mask]:
        """``member`` is gone for good: outcomes, and the slots that nobody knows any more."""
        return self._out([(each, member) for each in self._pins if member in each.pin.placement.members], why)

    def lose(self, is_here: Callable[[Member], bool], generation: int | None, why: str) -> tuple[list[Outcomes], Mask]:
        """The server of the members that are ``is_here`` has lost what it knew; ``generation`` is of its registration
        now."""
        lost = [
            (each, member)
            for each in self._pins
            for member in filter(is_here, each.pin.placement.members)
            if each.generations.get(member) != generation
        ]
        found = self._out(lost, why)
        # It goes on there, under the new registration, until the stream is pinned anew.
        if any(each is self._pins[-1] for each, _ in lost):
            now = self._pins[-1]
            kept = {member: generation if is_here(member) else old for member, old in now.generations.items()}
            self.pin(now.pin.placement, kept)
        return found

    def _out(self, lost: Sequence[tuple[StreamPin, Member]], why: str) -> tuple[list[Outcomes], Mask]:
        heard, nowhere = [], NO_SLOTS
        for each, member in lost:
            final, slots = each.votes.leave(each.pin.placement.members.index(member), why)
            each.pending -= _by_slot(final.root_ids)
            each.nowhere |= slots
            each.pending[slots] = 0
            each.out.add(member)
            heard.append(final)
            nowhere = nowhere | slots
        return heard, nowhere

    def forget_ended(self) -> list[Pin]:
        """Drop older pins of which no root is pending; gives them."""
        ended = [each.pin for each in self._pins[:-1] if not each.is_needed]
        self._pins = [each for each in self._pins[:-1] if each.is_needed] + self._pins[-1:]
        return ended

    def _of_pins(self, pins: list[StreamPin], root_ids: Column) -> list[tuple[StreamPin, Mask]]:
        """Which roots are of which of ``pins``; those that a user has chosen count as of the newest."""
        if not pins:
            return []
        if len(pins) == 1:
            return [(pins[0], np.ones(len(root_ids), np.bool_))]
        parts = [(each, each.pin.has(root_ids)) for each in pins]
        parts[-1][1][:] |= ~np.logical_or.reduce([own for _, own in parts])
        return [(each, own) for each, own in parts if own.any()]


def _by_slot(root_ids: Column) -> npt.NDArray[np.int64]:
    slots = (mix64_column(root_ids) >> np.uint64(SLOT_SHIFT)).astype(np.intp)
    return np.bincount(slots, minlength=SLOTS)
