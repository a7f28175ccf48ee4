"""The fast shard compared with its simple twin: any sequence of calls gives the same replies and the same state."""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from acker_protocol import ids, reports
from acker_protocol.ids import Column
from acker_protocol.messages import (
    Apply,
    Entries,
    Identity,
    InitScope,
    Limits,
    OpenBatch,
    Outcomes,
    Pins,
    Settle,
    Settlement,
    Verdict,
    Watch,
)
from acker_service.core.shard import Shard
from acker_service.core.stats import ShardStats
from tests.service.twin import Twin, is_here

SESSIONS = (11, 22, 33)
# Times are whole ticks (1/32 s), so that moving to another clock rounds nothing.
LIMITS = (Limits(), Limits(1000), Limits(0, 500), Limits(2000, 1000))
# Slots of a batch on this server: all of them, or some if the others live on another server.
EVEN, LOW = bytes([0b01010101]) * 128, bytes([0b00001111]) * 128
SLOTS_HERE = (b"", b"", EVEN)
MAX_PENDING = 90
UNCOMPARED = {"max_pending", "max_memory", *(f"{kind}_bytes" for kind in ShardStats().memory)}


def first_of(session: int, number: int) -> int:
    return session * 1_000_000 + number * 1000 + 1


def reported(outcomes: Outcomes) -> list[tuple[int, Verdict, str]]:
    return sorted(
        (int(root), Verdict(verdict), outcomes.reason(n))
        for n, (root, verdict) in enumerate(zip(outcomes.root_ids, outcomes.verdicts, strict=True))
    )


def cut(entries: Entries, some: slice) -> Entries:
    if not len(entries.kinds):
        return Entries(entries.root_ids[some], entries.ack_vals[some])
    fails = np.cumsum(entries.kinds & 2 != 0)
    before = int(fails[some.start - 1]) if some.start else 0
    after = int(fails[some.stop - 1]) if some.stop else 0
    return Entries(
        entries.root_ids[some],
        entries.ack_vals[some],
        entries.kinds[some],
        entries.reason_ids[before:after],
        entries.reasons,
    )


class Comparison:
    """Sends every call to the shard and to its twin. Their replies, outcomes and counts must be equal."""

    def __init__(self, chance: random.Random, first_of: Callable[[int, int], int] = first_of) -> None:
        self.chance, self.first_of = chance, first_of
        self.options: dict[str, Any] = {
            "max_pending": MAX_PENDING,
            "max_pending_per_source": chance.choice([None, 40]),
            "sequence_window": chance.choice([3, 64]),
            "orphan_timeout_s": 4.0,
            "memory_s": 1e9,
            "max_lease_s": 8.0,
        }
        self.now, self.moved = 1.0, 0.0
        self.shard = Shard(incarnation=1, generation=2, **self.options)
        self.twin = Twin(incarnation=1, generation=2, **self.options)
        self.sent: list[Apply] = []

    def step(self) -> None:
        steps = [self.watch] * 3 + [self.open_batch] * 2 + [self.settle] * 2 + [self.update] * 4 + [self.init] * 4
        self.chance.choice([*steps, self.pass_time, self.pass_time, self.send_again, self.open_again])()
        self.compare_counts()

    def pass_time(self) -> None:
        self.now += self.chance.randrange(80) / 32
        self.shard.tick(self.now + self.moved)
        self.twin.tick(self.now)

    def watch(self) -> None:
        session, limits, close = self.session(), self.chance.choice(LIMITS), not self.chance.randrange(12)
        source = self.twin._sources.get(session)
        confirmed = source.freed + len(source.outbox) * self.chance.randrange(2) if source else 0
        lease_ms = self.chance.choice([2000, 60_000])
        pins = self.chance.choice([b"", b"here", b"there"])
        self.compare_watch(Watch(f"source {session}", session, lease_ms, limits, confirmed, close=close, pins=pins))
        root = ids.mix64(self.first_of(session, self.chance.randrange(5)) + self.chance.randrange(45))
        for request in (Pins(session), Pins(0, root)):
            ours, theirs = self.shard.pins(request), self.twin.pins(request)
            assert (ours.status, ours.pins) == (theirs.status, theirs.pins)

    def compare_watch(self, request: Watch) -> None:
        ours, theirs = self.shard.watch(request, self.now + self.moved), self.twin.watch(request, self.now)
        assert reported(ours.outcomes) == reported(theirs.outcomes)
        assert (ours.status, ours.is_new, ours.cursor) == (theirs.status, theirs.is_new, theirs.cursor)
        assert ours.pins_crc32 == theirs.pins_crc32

    def open_batch(self) -> None:
        session, number = self.session(), self.chance.randrange(5)
        request = OpenBatch(
            session,
            number,
            self.first_of(session, number),
            self.chance.randrange(45),
            self.chance.random() < 0.6,
            self.chance.choice(LIMITS),
            self.chance.choice(SLOTS_HERE),
        )
        self.compare_open(request)

    def open_again(self) -> None:
        """Open a batch again with other slots, as after the loss of a server."""
        batches = [batch for source in self.twin._sources.values() for batch in source.batches.values()]
        opened = [batch.request for batch in batches if batch.number and batch.is_open]
        if opened:
            slots = self.chance.choice([b"", EVEN, LOW])
            self.compare_open(dataclasses.replace(self.chance.choice(opened), slots=slots))

    def compare_open(self, request: OpenBatch) -> None:
        ours = self.shard.open_batch(request, self.now + self.moved)
        theirs = self.twin.open_batch(request, self.now)
        assert dataclasses.replace(ours, detail="") == dataclasses.replace(theirs, detail=""), (request, ours, theirs)

    def drain(self) -> None:
        self.shard.drain()
        self.twin.is_draining = True

    def settle(self) -> None:
        request = Settle(self.session(), self.chance.randrange(5), self.chance.choice(list(Settlement)))
        ours = self.shard.settle([request], self.now + self.moved)
        theirs = self.twin.settle([request], self.now)
        assert [dataclasses.replace(reply, detail="", generation=0) for reply in ours] == [
            dataclasses.replace(reply, detail="") for reply in theirs
        ]

    def update(self) -> None:
        roots, vals = self.columns(self.first_of(self.session(), self.chance.randrange(5)))
        kinds = np.array([self.chance.choice([1, 1, 1, 1, 2, 3, 4, 5, 7]) for _ in roots], np.uint8)
        reasons = {int(root): self.chance.choice(["", "bad", "worse"]) for root in roots}
        plain = self.chance.random() < 0.4
        entries = reports.fold(roots, vals) if plain else reports.fold_updates(roots, vals, kinds, reasons)
        self.send_report(entries, None)

    def init(self) -> None:
        session, number = self.session(), self.chance.randrange(5)
        roots, vals = self.columns(self.first_of(session, number))
        if self.chance.random() < 0.5:
            here = np.array([is_here(root, EVEN) for root in roots.tolist()])
            roots, vals = roots[here], vals[here]
        entries = reports.fold(roots, vals)
        if not self.chance.randrange(4):
            number = self.chance.randrange(3)  # report roots under the number of another batch
        drawn = [self.chance.randrange(30) for _ in range(self.chance.randrange(3) if number else 0)]
        covered = [(start, start + self.chance.randrange(15)) for start in drawn]
        self.send_report(entries, InitScope(session, number, np.array(covered, np.uint64).reshape(-1, 2)))

    def send_report(self, entries: Entries, scope: InitScope | None) -> None:
        """Send a report, cut into messages between random sections."""
        identity, digest = self.identity(), reports.digest(entries)
        starts = reports.section_starts(entries.root_ids).tolist()[1:]
        cuts = sorted(self.chance.sample(starts, self.chance.randrange(len(starts) + 1))) if starts else []
        for start, stop in pairwise([0, *cuts, len(entries)]):
            silent = scope and (
                scope if stop == len(entries) else dataclasses.replace(scope, covered=scope.covered[:0])
            )
            self.send(Apply(identity, digest, cut(entries, slice(start, stop)), silent))

    def send_again(self) -> None:
        if self.sent:
            self.send(self.chance.choice(self.sent))

    def restart(self) -> None:
        """Restart with the state, on a machine whose clock differs."""
        state = self.shard.dump(self.now + self.moved)
        self.moved = max(-0.5, self.moved + self.chance.randrange(-20, 5000) / 32)
        self.shard = Shard.restore(state, incarnation=1, now=self.now + self.moved, **self.options)
        self.twin.restart(self.now)

    def send(self, message: Apply) -> None:
        self.sent.append(message)
        ours, theirs = self.shard.apply(message, self.now + self.moved), self.twin.apply(message, self.now)
        assert ours.section_statuses.tolist() == theirs.section_statuses.tolist()
        assert (ours.status, ours.retry_delay_ms, ours.inits_known, ours.inits_conflicting) == (
            theirs.status,
            theirs.retry_delay_ms,
            theirs.inits_known,
            theirs.inits_conflicting,
        )

    def compare_counts(self) -> None:
        ours, theirs = dataclasses.asdict(self.shard.stats), dataclasses.asdict(self.twin.stats)
        assert {key: ours[key] for key in ours.keys() - UNCOMPARED} == {
            key: theirs[key] for key in theirs.keys() - UNCOMPARED
        }

    def compare_outcomes(self) -> None:
        for session in self.twin._sources:
            self.compare_watch(Watch(f"source {session}", session, 60_000))

    def session(self) -> int:
        return self.chance.choice(SESSIONS)

    def columns(self, first: int) -> tuple[Column, Column]:
        count = self.chance.randrange(1, 13)
        numbers = np.array([self.chance.randrange(26) for _ in range(count)], np.uint64)
        return ids.root_ids(first, numbers), np.array([self.chance.randrange(4) for _ in range(count)], np.uint64)

    def identity(self) -> Identity:
        if self.chance.random() < 0.5:
            return Identity(self.chance.randrange(1, 3), self.chance.randrange(40), sequenced=True)
        return Identity(self.chance.randrange(20), self.chance.randrange(20))


@given(st.integers(0, 1 << 32))
@settings(max_examples=40, deadline=None, phases=[Phase.generate])
def test_any_calls_in_any_order_agree_with_the_simple_twin(seed: int) -> None:
    comparison = Comparison(random.Random(seed))
    for n in range(120):
        comparison.step()
        if n % 40 == 30:
            comparison.restart()
    comparison.compare_outcomes()


@pytest.mark.long
@given(st.integers(0, 1 << 32))
@settings(max_examples=20, deadline=None, phases=[Phase.generate])
def test_sources_and_batches_that_share_root_ids_agree_with_the_simple_twin(seed: int) -> None:
    comparison = Comparison(random.Random(seed), first_of=lambda session, number: 1)
    for n in range(120):
        comparison.step()
        if n == 70:
            comparison.restart()
        if n == 100:
            comparison.drain()
    comparison.compare_outcomes()
