"""The shard's promises: no false ACK, always an outcome, no effect of refused calls, bounded memory."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import random
import shutil
import zlib
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from acker_protocol import ids, reports
from acker_protocol.ids import Column
from acker_protocol.messages import (
    ACK,
    FAIL,
    Apply,
    Cause,
    Entries,
    Identity,
    InitScope,
    Limits,
    OpenBatch,
    Pins,
    Reason,
    Settle,
    Settlement,
    Status,
    Verdict,
    Watch,
    WatchReply,
)
from acker_service.config import OPTIONS
from acker_service.core.parts import StatePart
from acker_service.core.shard import Shard
from acker_service.state.state_file import StateDir
from tests.service.caller import acks, roots_of

SESSION = 7
FIRST = 1_000_001


def new_shard(**options: Any) -> Shard:
    return Shard(incarnation=1, generation=2, **options)


def watch(
    shard: Shard, now: float = 0.0, limits: Limits | None = None, session: int = SESSION, **options: Any
) -> dict[int, tuple[Verdict, str]]:
    """Return the source's new outcomes, and confirm them at once."""
    request = Watch("source", session, 3_600_000, limits or Limits(), **options)
    reply = shard.watch(request, now)
    assert reply.status == Status.APPLIED
    outcomes = reply.outcomes
    shard.watch(Watch("source", session, 3_600_000, request.limits, confirmed=reply.cursor, max_outcomes=1), now)
    return {
        int(root): (Verdict(verdict), outcomes.reason(n))
        for n, (root, verdict) in enumerate(zip(outcomes.root_ids, outcomes.verdicts, strict=True))
    }


def new_roots(count: int, first: int = FIRST) -> Column:
    return roots_of(range(count), first)


def updates_of(roots: Column, vals: int | Column = 1) -> Entries:
    return reports.fold(roots, np.zeros(len(roots), np.uint64) + np.asarray(vals, np.uint64))


class Sender:
    """Sends complete reports, each with its own identity."""

    def __init__(self, shard: Shard) -> None:
        self.shard, self.sequence = shard, 0

    def send(self, entries: Entries, now: float = 0.0, batch: int | None = None, covered: Any = ()) -> Status:
        self.sequence += 1
        ranges = np.array(covered, np.uint64).reshape(-1, 2)
        scope = None if batch is None else InitScope(SESSION, batch, ranges)
        message = Apply(Identity(1, self.sequence), reports.digest(entries), entries, scope)
        return self.shard.apply(message, now).status


# -- no false ACK


class Trees:
    """Random trees whose edges are distinct powers of two, so that their XOR shows exactly which edges are open."""

    def __init__(self, chance: random.Random, roots: int) -> None:
        self.chance = chance
        self.roots = [int(root) for root in new_roots(roots)]
        self.inits = dict.fromkeys(self.roots, 1)
        self.acks: list[tuple[int, int]] = [ack for root in self.roots for ack in self._grow(root)]

    def _grow(self, root: int) -> list[tuple[int, int]]:
        """Return (root, val) for each ack. The val is the XOR of the edges of a node and of its children."""
        alive, used, acks = [1], 1, []
        while alive:
            edge = alive.pop(self.chance.randrange(len(alive)))
            children = [1 << (used + k) for k in range(self.chance.choice([0, 0, 1, 2, 3]) if used < 30 else 0)]
            used += len(children)
            alive += children
            acks.append((root, edge ^ sum(children)))
        return acks


def packed(chance: random.Random, identity: Identity, entries: Entries, scope: InitScope | None) -> list[Apply]:
    """Cut a report into messages between sections. Some may be missing, repeated or in another order."""
    starts = reports.section_starts(entries.root_ids).tolist()[1:]
    cuts = sorted(chance.sample(starts, chance.randrange(len(starts) + 1)))
    digest = reports.digest(entries)
    parts = [
        Apply(identity, digest, Entries(entries.root_ids[a:b], entries.ack_vals[a:b]), scope)
        for a, b in pairwise([0, *cuts, len(entries)])
    ]
    return chance.choices(parts, k=chance.randrange(len(parts) + 2))


@given(st.integers(0, 1 << 32), st.sampled_from(["stream", "unheld", "held"]))
@settings(max_examples=60, deadline=None, phases=[Phase.generate])
def test_a_root_is_acked_exactly_when_all_of_its_tree_is_in(seed: int, kind: str) -> None:
    chance, shard = random.Random(seed), new_shard()
    trees = Trees(chance, roots=chance.randrange(1, 12))
    watch(shard)
    number = 0 if kind == "stream" else 1
    if number:
        shard.open_batch(OpenBatch(SESSION, 1, FIRST, len(trees.roots), kind == "held"), 0.0)
    messages, sent = split_into_reports(chance, trees, number)
    chance.shuffle(messages)
    applied: dict[int, set[tuple[Identity, int]]] = {root: set() for root in trees.roots}
    acked: set[int] = set()
    whole: set[int] = set()
    for message in messages:
        shard.apply(message, 0.0)
        for root in message.entries.root_ids.tolist():
            applied[root].add((message.identity, root))
        whole = {root for root in trees.roots if applied[root] == sent[root]}
        acked |= {root for root, (verdict, _) in watch(shard).items() if verdict == Verdict.ACKED}
        assert acked == (whole if kind != "held" else set())
    if kind == "held":
        shard.settle([Settle(SESSION, 1, Settlement.DONE)], 0.0)
        reported = watch(shard)
        assert {root for root, (verdict, _) in reported.items() if verdict == Verdict.ACKED} == whole
        assert reported.keys() == set(trees.roots)


def split_into_reports(
    chance: random.Random, trees: Trees, number: int
) -> tuple[list[Apply], dict[int, set[tuple[Identity, int]]]]:
    """Distribute inits and acks to tasks. Return messages, some lost or repeated, and the reports of each root."""
    messages: list[Apply] = []
    sent: dict[int, set[tuple[Identity, int]]] = {root: set() for root in trees.roots}
    work: list[tuple[InitScope | None, list[tuple[int, int]]]] = [
        (InitScope(SESSION, number), list(trees.inits.items())),
        (None, trees.acks),
    ]
    for scope, items in work:
        tasks = chance.randrange(1, 5)
        owner = {item: chance.randrange(tasks) for item in items}
        for task in range(tasks):
            mine = [item for item in items if owner[item] == task]
            if not mine:
                continue
            entries = reports.fold(np.array([r for r, _ in mine], np.uint64), np.array([v for _, v in mine], np.uint64))
            identity = Identity(scope is None, task)
            messages += packed(chance, identity, entries, scope)
            for root in entries.root_ids.tolist():
                sent[root].add((identity, root))
    return messages, sent


@pytest.mark.parametrize("held", [True, False])
@pytest.mark.parametrize("init_first", [True, False])
def test_fail_wins_over_zero_and_is_reported_at_once(held: bool, init_first: bool) -> None:
    shard, roots = new_shard(), new_roots(3)
    send = Sender(shard).send
    watch(shard)
    shard.open_batch(OpenBatch(SESSION, 1, FIRST, 3, held), 0.0)
    kinds, reasons = np.array([1 | 2, 2, 1], np.uint8), {int(root): "bad" for root in roots}
    calls: list[Callable[[], Status]] = [
        lambda: send(updates_of(roots), batch=1),
        lambda: send(reports.fold_updates(roots, np.ones(3, np.uint64), kinds, reasons)),
    ]
    for call in calls if init_first else reversed(calls):
        call()
    failed = {int(root): (Verdict.FAILED, "bad") for root in roots[:2]}
    assert watch(shard) == (failed if held else failed | {int(roots[2]): (Verdict.ACKED, "")})


# -- batches


def test_several_batches_are_settled_together_each_as_asked() -> None:
    shard = new_shard()
    send = Sender(shard).send
    watch(shard)
    for number in (1, 2, 3):
        first = FIRST + number * 100
        shard.open_batch(OpenBatch(SESSION, number, first, 4, held=number != 3), 0.0)
        send(updates_of(new_roots(3, first)), batch=number, covered=[(0, 3)])
        send(updates_of(new_roots(1, first)))
    asked = [(1, Settlement.DONE), (2, Settlement.ABANDON), (3, Settlement.DONE)]
    replies = shard.settle([Settle(SESSION, number, how) for number, how in asked], 0.0)
    assert [(reply.status, reply.roots) for reply in replies] == [(1, 4), (1, 4), (1, 2)]
    assert replies[-1].cursor == 10
    reported = watch(shard)
    verdicts = {n: [reported.get(int(root)) for root in new_roots(4, FIRST + n * 100)] for n in (1, 2, 3)}
    unfinished, abandoned = (Verdict.FAILED, "unfinished"), (Verdict.LOST, "abandoned")
    unread, acked = (Verdict.LOST, "unread"), (Verdict.ACKED, "")
    assert verdicts == {
        1: [acked, unfinished, unfinished, unread],
        2: [abandoned, abandoned, abandoned, unread],
        3: [acked, None, None, unread],
    }


def test_a_gap_inside_a_covered_range_was_never_emitted() -> None:
    shard = new_shard()
    watch(shard)
    shard.open_batch(OpenBatch(SESSION, 1, FIRST, 200), 0.0)
    even = new_roots(200)[::2]
    Sender(shard).send(updates_of(even, 0), batch=1, covered=[(0, 70), (60, 128), (190, 200), (128, 129)])
    (reply,) = shard.settle([Settle(SESSION, 1, Settlement.DONE)], 0.0)
    reported = watch(shard)
    unread = {int(root) for root in new_roots(200)[129:190] if root not in even}
    assert {root for root, outcome in reported.items() if outcome == (Verdict.LOST, "unread")} == unread
    assert {root for root, outcome in reported.items() if outcome[0] == Verdict.ACKED} == set(even.tolist())
    assert reply.roots == len(reported) == 100 + len(unread)


def test_an_init_of_a_batch_counts_once_even_after_its_root_has_ended() -> None:
    shard, roots = new_shard(), new_roots(5)
    send = Sender(shard).send
    watch(shard)
    shard.open_batch(OpenBatch(SESSION, 1, FIRST, 5, held=False), 0.0)
    send(updates_of(roots), batch=1)
    send(updates_of(roots))
    assert len(watch(shard)) == 5
    send(updates_of(roots), batch=1)
    assert (shard.stats.pending, shard.stats.inits_known) == (0, 5)


@pytest.mark.parametrize("held", [True, False])
@pytest.mark.parametrize("number", [0, 1])
def test_two_sources_of_one_root_id_are_both_answered_and_neither_is_acked(number: int, held: bool) -> None:
    shard, roots, other = new_shard(), new_roots(50), SESSION + 1
    for session in (SESSION, other):
        shard.watch(Watch(f"source {session}", session, 3_600_000), 0.0)
        if number:
            shard.open_batch(OpenBatch(session, number, FIRST, len(roots), held), 0.0)
    first, second = (
        shard.apply(Apply(Identity(session, 0), 1, updates_of(roots), InitScope(session, number)), 0.0)
        for session in (SESSION, other)
    )
    assert (first.status, first.inits_conflicting) == (Status.APPLIED, 0)
    assert (second.status, second.inits_conflicting, second.inits_known) == (Status.APPLIED, 50, 0)
    # The acks of one source's workers would have acked the trees of the other source.
    Sender(shard).send(updates_of(roots))
    lost = dict.fromkeys(roots.tolist(), (Verdict.LOST, "root_conflict"))
    assert watch(shard) == watch(shard, session=other) == lost
    for session in (SESSION, other) if number else ():
        reply = shard.settle([Settle(session, number, Settlement.DONE)], 0.0)[0]
        assert (reply.status, reply.roots, reply.cursor) == (Status.APPLIED, 50, 50)
    assert watch(shard) == watch(shard, session=other) == {}
    assert (shard.stats.pending, shard.stats.reserved, shard.stats.unconfirmed) == (0, 0, 0)


def test_one_source_that_gives_a_root_id_to_two_batches_is_answered_for_both() -> None:
    shard, roots = new_shard(), new_roots(3)
    watch(shard)
    sender = Sender(shard)
    for number in (1, 2):
        shard.open_batch(OpenBatch(SESSION, number, FIRST, 3), 0.0)
        sender.send(updates_of(roots), batch=number, covered=[(0, 3)])
    outcomes = shard.watch(Watch("source", SESSION, 3_600_000), 0.0).outcomes
    assert sorted(outcomes.root_ids.tolist()) == sorted(roots.tolist() * 2)
    assert {outcomes.reason(n) for n in range(6)} == {"root_conflict"}
    replies = shard.settle([Settle(SESSION, number, Settlement.DONE) for number in (1, 2)], 0.0)
    assert [(reply.status, reply.roots) for reply in replies] == [(Status.APPLIED, 3)] * 2


def test_room_is_reserved_so_inits_of_an_open_batch_are_never_refused() -> None:
    shard = new_shard(max_pending=10)
    send = Sender(shard).send
    watch(shard)
    assert shard.open_batch(OpenBatch(SESSION, 1, FIRST, 8), 0.0).status == Status.APPLIED
    refused = shard.open_batch(OpenBatch(SESSION, 2, FIRST + 100, 3), 0.0)
    assert (refused.status, refused.retry_delay_ms > 0) == (Status.OVERLOADED, True)
    assert send(updates_of(new_roots(3, FIRST + 200)), batch=0) == Status.OVERLOADED
    assert send(updates_of(new_roots(2, FIRST + 200)), batch=0) == Status.APPLIED
    assert send(updates_of(new_roots(8)), batch=1) == Status.APPLIED
    assert send(updates_of(new_roots(8))) == Status.APPLIED


def test_outcomes_take_room_until_they_are_confirmed() -> None:
    shard, request = new_shard(max_pending=4), Watch("source", SESSION, 60_000)
    shard.watch(request, 0.0)
    send = Sender(shard).send
    assert send(updates_of(new_roots(4), 0), batch=0) == Status.APPLIED
    assert send(updates_of(new_roots(1, FIRST + 9)), batch=0) == Status.OVERLOADED
    shard.watch(Watch("source", SESSION, 60_000, confirmed=1), 0.0)
    assert send(updates_of(new_roots(1, FIRST + 9)), batch=0) == Status.APPLIED


def test_two_servers_with_half_of_the_slots_each_answer_for_each_root_once() -> None:
    halves = bytes([0b00001111]) * 128, bytes([0b11110000]) * 128
    roots, told, reserved = new_roots(1000), [], []
    for slots in halves:
        shard = new_shard(max_pending=1000)
        watch(shard)
        assert shard.open_batch(OpenBatch(SESSION, 1, FIRST, 1000, slots=slots), 0.0).status == Status.APPLIED
        reserved.append(shard.stats.reserved)
        bits = np.unpackbits(np.frombuffer(slots, np.uint8), bitorder="little").astype(bool)
        here = roots[:600][bits[ids.mix64_column(roots[:600]) >> np.uint64(54)]]
        sender = Sender(shard)
        assert sender.send(updates_of(here, 5), batch=1, covered=[(0, 600)]) == Status.APPLIED
        assert sender.send(updates_of(here, 5)) == Status.APPLIED
        assert sender.send(updates_of(roots[:600], 5), batch=1) == Status.INVALID
        [reply] = shard.settle([Settle(SESSION, 1, Settlement.DONE)], 0.0)
        assert (reply.roots, shard.stats.reserved) == (reserved[-1], 0)
        told.append(watch(shard))
    assert sum(reserved) == 1000
    assert min(reserved) > 400
    assert not set(told[0]) & set(told[1])
    acked, unread = (Verdict.ACKED, ""), (Verdict.LOST, "unread")
    assert told[0] | told[1] == {int(root): acked if n < 600 else unread for n, root in enumerate(roots)}


def test_the_slots_of_a_batch_outlast_a_restart() -> None:
    slots = bytes([0b00001111]) * 128
    shard = new_shard()
    watch(shard)
    request = OpenBatch(SESSION, 1, FIRST, 1000, slots=slots)
    shard.open_batch(request, 0.0)
    reserved = shard.stats.reserved
    restored = Shard.restore(shard.dump(1.0), incarnation=2, now=1.0)
    assert restored.open_batch(request, 1.0).status == Status.APPLIED
    assert restored.open_batch(OpenBatch(SESSION, 1, FIRST, 1001, slots=slots), 1.0).status == Status.CONFLICT
    assert restored.stats.reserved == reserved
    assert restored.settle([Settle(SESSION, 1, Settlement.DONE)], 1.0)[0].roots == reserved


LOW, HIGH = bytes([0b00001111]) * 128, bytes([0b11110000]) * 128


def test_slots_are_added_to_an_open_batch_with_room_for_their_roots() -> None:
    shard = new_shard(max_pending=1000)
    watch(shard)
    some, more = OpenBatch(SESSION, 1, FIRST, 1000, slots=LOW), OpenBatch(SESSION, 1, FIRST, 1000, slots=HIGH)
    assert shard.open_batch(some, 0.0).status == Status.APPLIED
    of_some = shard.stats.reserved
    assert shard.open_batch(more, 0.0).status == Status.APPLIED
    assert of_some < shard.stats.reserved == 1000
    for request in (some, more, dataclasses.replace(some, slots=b"")):
        assert shard.open_batch(request, 0.0).status == Status.APPLIED
        assert shard.stats.reserved == 1000
    restored = Shard.restore(shard.dump(1.0), incarnation=2, now=1.0)
    assert restored.settle([Settle(SESSION, 1, Settlement.DONE)], 1.0)[0].roots == 1000


def test_slots_for_whose_roots_there_is_no_room_are_not_added() -> None:
    shard = new_shard(max_pending=1000)
    watch(shard)
    shard.open_batch(OpenBatch(SESSION, 1, FIRST, 1000, slots=LOW), 0.0)
    before = shard.stats.reserved
    shard.open_batch(OpenBatch(SESSION, 2, FIRST + 5000, 900 - before), 0.0)
    assert shard.open_batch(OpenBatch(SESSION, 1, FIRST, 1000), 0.0).status == Status.OVERLOADED
    assert shard.settle([Settle(SESSION, 1, Settlement.DONE)], 0.0)[0].roots == before


def test_slots_that_make_a_batch_larger_than_the_server_are_refused_for_good() -> None:
    shard = new_shard(max_pending=1000)
    watch(shard)
    shard.open_batch(OpenBatch(SESSION, 1, FIRST, 1600, slots=LOW), 0.0)
    before = shard.stats.reserved
    assert shard.open_batch(OpenBatch(SESSION, 1, FIRST, 1600), 0.0).status == Status.INVALID
    assert shard.stats.reserved == before


def test_numbers_that_were_covered_before_their_slot_came_are_unread_unless_covered_again() -> None:
    shard = new_shard()
    watch(shard)
    shard.open_batch(OpenBatch(SESSION, 1, FIRST, 1000, slots=LOW), 0.0)
    of_low, sender = shard.stats.reserved, Sender(shard)
    assert sender.send(updates_of(new_roots(0)), batch=1, covered=[(0, 1000)]) == Status.APPLIED
    shard.open_batch(OpenBatch(SESSION, 1, FIRST, 1000), 0.0)
    [reply] = shard.settle([Settle(SESSION, 1, Settlement.DONE)], 0.0)
    assert reply.roots == 1000 - of_low


# -- drain and pins


def test_a_server_that_drains_goes_on_with_what_it_has_and_takes_nothing_new() -> None:
    shard = new_shard()
    watch(shard)
    opened = OpenBatch(SESSION, 1, FIRST, 10, slots=LOW)
    shard.open_batch(opened, 0.0)
    left = shard.stats.reserved
    assert shard.left == "open batches: 1"
    assert shard.drain().status == shard.drain().status == Status.APPLIED
    assert shard.watch(Watch("new", SESSION + 1, 60_000), 0.0).status == Status.DRAINING
    assert shard.open_batch(OpenBatch(SESSION, 2, FIRST, 10), 0.0).status == Status.DRAINING
    assert shard.open_batch(OpenBatch(SESSION + 1, 1, FIRST, 10), 0.0).status == Status.DRAINING
    assert shard.open_batch(opened, 0.0).status == Status.APPLIED
    sender, root = Sender(shard), new_roots(1, FIRST + 99)
    assert sender.send(updates_of(root, 5), batch=0) == Status.APPLIED
    assert sender.send(updates_of(root, 5)) == Status.APPLIED
    assert shard.settle([Settle(SESSION, 1, Settlement.DONE)], 0.0)[0].status == Status.APPLIED
    assert shard.open_batch(opened, 0.0).status == Status.UNKNOWN_BATCH
    assert shard.left == f"unconfirmed outcomes: {left + 1}"
    assert shard.watch(Watch("source", SESSION, 60_000, confirmed=left + 1), 0.0).status == Status.APPLIED
    assert shard.left == ""


def test_the_pins_of_a_source_are_those_of_its_last_watch_that_had_any_also_after_a_restart() -> None:
    shard = new_shard()
    assert shard.pins(Pins(SESSION)).status == Status.UNKNOWN_SOURCE
    watch(shard)
    assert shard.pins(Pins(SESSION)).pins == b""
    for pins in (b"first", bytes(range(256)), b""):
        shard.watch(Watch("source", SESSION, 60_000, pins=pins), 0.0)
    assert shard.pins(Pins(SESSION)).pins == bytes(range(256))
    restored = Shard.restore(shard.dump(1.0), incarnation=2, now=1.0)
    assert restored.pins(Pins(SESSION)).pins == bytes(range(256))
    too_long = shard.watch(Watch("source", SESSION, 60_000, pins=bytes(65_537)), 0.0)
    assert too_long.status == Status.INVALID
    assert "65536" in too_long.detail


def test_a_root_that_a_source_has_emitted_names_it_also_when_its_batch_is_over_and_after_a_restart() -> None:
    shard = new_shard()
    shard.watch(Watch("source", SESSION, 60_000, pins=b"here"), 0.0)
    assert shard.open_batch(OpenBatch(SESSION, 1, 1000, 10, held=False), 0.0).status == Status.APPLIED
    assert shard.open_batch(OpenBatch(SESSION, 2, 2000, 10), 0.0).status == Status.APPLIED
    shard.settle([Settle(SESSION, 1, Settlement.DONE)], 0.0)
    restored = Shard.restore(shard.dump(1.0), incarnation=2, now=1.0)
    for each in (shard, restored):
        assert [each.pins(Pins(0, ids.mix64(number))).pins for number in (999, 1000, 1009, 1010, 2000)] == [
            *(b"", b"here", b"here", b"", b"")
        ]
        assert each.pins(Pins(0, 0)).status == Status.UNKNOWN_SOURCE


def test_the_maps_of_batches_with_few_slots_are_bounded() -> None:
    slots = bytes([1]) + bytes(127)
    shard = new_shard(max_pending=1000)
    watch(shard)
    opened = [
        shard.open_batch(OpenBatch(SESSION, number, FIRST * number, 4000, slots=slots), 0.0).status
        for number in range(1, 7)
    ]
    assert opened == [Status.APPLIED] * 4 + [Status.OVERLOADED] * 2
    assert shard.open_batch(OpenBatch(SESSION, 9, FIRST, 16_001, slots=slots), 0.0).status == Status.INVALID


def test_a_state_of_a_version_that_knew_no_slots_is_taken_for_one_with_all_of_them() -> None:
    shard = new_shard()
    watch(shard)
    shard.open_batch(OpenBatch(SESSION, 1, FIRST, 100), 0.0)
    parts = list(shard.dump(1.0))
    [(at, columns)] = [(at, columns) for at, (name, columns) in enumerate(parts) if name == "source"]
    source = json.loads(columns["json"].tobytes())
    [batch] = [batch for batch in source["batches"] if batch["number"] == 1]
    del batch["slots"], batch["roots"]
    parts[at] = ("source", {**columns, "json": np.frombuffer(json.dumps(source).encode(), np.uint8)})
    restored = Shard.restore(parts, incarnation=2, now=1.0)
    assert restored.open_batch(OpenBatch(SESSION, 1, FIRST, 100), 1.0).status == Status.APPLIED
    assert restored.settle([Settle(SESSION, 1, Settlement.DONE)], 1.0)[0].roots == 100


# -- time


@pytest.mark.slow
@pytest.mark.sampled(2)
@pytest.mark.parametrize("limits", [Limits(message_timeout_ms=3000), Limits(progress_timeout_ms=3000)])
@pytest.mark.parametrize("pending", [10, 200_000])
def test_a_root_expires_between_its_timeout_and_a_quarter_of_a_second_later(limits: Limits, pending: int) -> None:
    """Ticks come every 100 ms here. A tick scans enough cells for 1 M roots to expire in time."""
    shard, chance = new_shard(), random.Random(pending)
    send, step, now = Sender(shard).send, 0.1, 100.0
    watch(shard, now, limits)
    started: dict[int, float] = {}
    for part in np.array_split(new_roots(pending), 7):
        now += 0.4 * chance.random()
        send(updates_of(part), now, batch=0)
        started |= dict.fromkeys(part.tolist(), now)
    reported: dict[int, float] = {}
    while now < 112:
        now += step
        shard.tick(now)
        reported |= dict.fromkeys(watch(shard, now, limits), now)
    ages = np.array([reported[root] - start for root, start in started.items()])
    assert 3.0 <= ages.min() <= ages.max() <= 3.25
    assert shard.stats.timed_out == pending


def test_progress_and_resets_put_off_their_own_timeouts_only() -> None:
    shard, limits = new_shard(), Limits(message_timeout_ms=10_000, progress_timeout_ms=4000)
    send = Sender(shard).send
    watch(shard, 0.0, limits)
    roots = np.sort(new_roots(3))
    resets = reports.fold_updates(roots[2:], np.zeros(1, np.uint64), np.array([4], np.uint8), {})
    send(updates_of(roots, 1 << 40), 0.0, batch=0)
    reported: dict[int, tuple[float, str]] = {}
    for tenth in range(160):
        now = tenth / 10
        if tenth % 30 == 0:
            send(updates_of(roots[1:], tenth + 1), now)
        if tenth == 60:
            send(resets, now)
        shard.tick(now)
        reported |= {root: (now, why) for root, (_, why) in watch(shard, now, limits).items()}
    whens = [(reported[root][0] // 1, reported[root][1]) if root in reported else None for root in roots.tolist()]
    assert whens == [(4, "progress_timeout"), (10, "message_timeout"), None]
    assert shard.stats.pending == 1


def test_a_held_root_whose_tree_is_done_does_not_time_out() -> None:
    shard, roots = new_shard(), new_roots(2)
    send = Sender(shard).send
    watch(shard, 0.0)
    shard.open_batch(OpenBatch(SESSION, 1, FIRST, 2, limits=Limits(1000, 1000)), 0.0)
    send(updates_of(roots), 0.0, batch=1)
    send(updates_of(roots[:1]), 0.0)
    for now in (0.5, 1.5, 50.0):
        shard.tick(now)
    assert watch(shard, 50.0) == {int(roots[1]): (Verdict.TIMED_OUT, "message_timeout")}
    # After one ack too many, the root is not done any more, and its timeout has long passed.
    send(updates_of(roots[:1], 5), 51.0)
    shard.tick(52.1)
    assert watch(shard, 52.1) == {int(roots[0]): (Verdict.TIMED_OUT, "message_timeout")}


def test_a_source_that_falls_silent_is_forgotten_with_all_its_roots() -> None:
    shard = new_shard()
    shard.watch(Watch("source", SESSION, 2000), 0.0)
    shard.open_batch(OpenBatch(SESSION, 1, FIRST, 50), 0.0)
    send = Sender(shard).send
    send(updates_of(new_roots(20)), batch=1)
    send(updates_of(new_roots(20, FIRST + 100)), batch=0)
    send(updates_of(new_roots(5, FIRST + 100)))
    shard.tick(1.9)
    assert shard.stats.pending == 35
    shard.tick(2.0)
    stats = shard.stats
    assert (stats.pending, stats.reserved, stats.unconfirmed, stats.sources, stats.orphans) == (0, 0, 0, 0, 0)
    assert (stats.roots_dropped, stats.leases_expired) == (35, 1)
    assert shard.has_outcomes(SESSION, 0)
    assert shard.watch(Watch("source", SESSION, 2000, confirmed=5), 3.0).is_new


# -- bounded memory


def test_a_flood_of_acks_for_unknown_roots_is_bounded() -> None:
    shard, roots = new_shard(max_pending=100_000), new_roots(100)
    send = Sender(shard).send
    watch(shard)
    send(updates_of(roots), batch=0)
    for n in range(20):
        send(updates_of(new_roots(10_000, FIRST + 1000 + n * 10_000)), 0.1)
    stats = shard.stats
    assert stats.orphans == 43_750
    assert stats.orphans_dropped == 156_250
    assert stats.ledger_bytes < 50_000 * 50
    send(updates_of(roots), 0.2)
    assert len(watch(shard)) == 100
    # With this many orphans, they expire sooner than after ten minutes.
    for tenth in range(150):
        shard.tick(0.3 + tenth / 10)
    assert shard.stats.orphans == 0


def bare_fails(roots: Column, kind: int = FAIL, val: int = 0) -> Entries:
    count = len(roots)
    return reports.fold_updates(roots, np.full(count, val, np.uint64), np.full(count, kind, np.uint8), {})


# Without the ack bit, the ack val of a fail is ignored. Clients in other languages may send one.
@pytest.mark.parametrize(("kind", "val"), [(FAIL, 0), (FAIL, 5), (ACK | FAIL, 0)])
def test_a_fail_without_an_edge_is_kept_or_refused_and_never_dropped(kind: int, val: int) -> None:
    shard, roots = new_shard(max_pending=2048), new_roots(2)
    send = Sender(shard).send
    watch(shard)
    send(updates_of(new_roots(2000, FIRST + 1000)))
    assert shard.stats.orphans_dropped == 2000 - 896
    assert send(bare_fails(roots[:1], kind, val)) == Status.APPLIED
    assert send(bare_fails(new_roots(127, FIRST + 5000), kind, val)) == Status.APPLIED
    assert send(bare_fails(roots[1:], kind, val)) == Status.OVERLOADED
    # The tombstones outlive the acks, which live for a few seconds under this pressure.
    for now in range(60):
        shard.tick(float(now))
    assert shard.stats.orphans == 128
    assert send(bare_fails(roots[1:], kind, val), 60.0) == Status.APPLIED
    send(updates_of(roots), 61.0, batch=0)
    send(updates_of(roots), 61.0)
    assert {verdict for verdict, _ in watch(shard, 62.0).values()} == {Verdict.FAILED}


def test_many_different_reasons_of_tombstones_are_bounded_and_the_fail_still_counts() -> None:
    shard, count = new_shard(), 6000
    send = Sender(shard).send
    watch(shard)
    roots = new_roots(count)
    kinds, reasons = np.full(count, 2, np.uint8), {int(root): f"reason {root}" for root in roots}
    send(reports.fold_updates(roots, np.zeros(count, np.uint64), kinds, reasons))
    send(updates_of(roots), batch=0)
    reported = watch(shard)
    assert {verdict for verdict, _ in reported.values()} == {Verdict.FAILED}
    kept = sum(reason == reasons[root] for root, (_, reason) in reported.items())
    assert 4000 < kept < count
    # The reported reasons are freed, so there is room for new ones.
    later = new_roots(100, FIRST + count)
    reasons = {int(root): f"later {root}" for root in later}
    for now in (2.0, 4.0):
        send(reports.fold_updates(later, np.zeros(100, np.uint64), kinds[:100], reasons), now)
    later = new_roots(100, FIRST + 2 * count)
    send(reports.fold_updates(later, np.zeros(100, np.uint64), kinds[:100], {int(r): "x" for r in later}), 6.0)
    send(updates_of(later), 6.0, batch=0)
    assert set(watch(shard, 6.0).values()) == {(Verdict.FAILED, "x")}


def test_orphans_also_expire_after_the_longest_time_that_the_option_allows() -> None:
    longest = next(option.metadata["high"] for option in OPTIONS if option.name == "orphan_timeout_s")
    shard = new_shard(orphan_timeout_s=longest)
    shard.apply(acks(roots_of(range(5)), 0), 0.0)
    for share in range(98):
        shard.tick(share / 100 * longest)
    assert shard.stats.orphans == 5
    for share in range(98, 200):
        shard.tick(share / 100 * longest)
    assert shard.stats.orphans == 0


def test_an_identity_is_remembered_while_a_batch_that_was_open_before_it_is() -> None:
    shard = new_shard(memory_s=10.0, orphan_timeout_s=5.0)
    entries = updates_of(new_roots(3, FIRST + 50))
    message = Apply(Identity(3, 3), reports.digest(entries), entries)
    watch(shard)
    shard.open_batch(OpenBatch(SESSION, 1, FIRST, 1), 0.0)
    shard.apply(message, 1.0)
    shard.tick(100.0)
    assert shard.stats.identities == 1
    shard.settle([Settle(SESSION, 1, Settlement.DONE)], 100.0)
    shard.tick(101.0)
    assert shard.stats.identities == 0


@pytest.mark.parametrize("identity", [Identity(3, 3), Identity(3, 3, sequenced=True)])
@pytest.mark.parametrize(("timeout_ms", "age_s"), [(0, 10.0), (20_000, 25.0)])
def test_an_identity_is_remembered_for_the_longest_timeout_and_the_time_of_orphans(
    identity: Identity, timeout_ms: int, age_s: float
) -> None:
    shard = new_shard(memory_s=10.0, orphan_timeout_s=5.0)
    watch(shard, limits=Limits(timeout_ms))
    entries = updates_of(new_roots(3))
    message = Apply(identity, reports.digest(entries), entries)
    shard.apply(message, 1.0)
    shard.tick(0.9 + age_s)
    assert shard.apply(message, 1.0 + age_s).status == Status.DUPLICATE
    # The last use renews the time for which it is remembered.
    shard.tick(0.9 + 2 * age_s)
    assert shard.apply(message, 0.9 + 2 * age_s).status == Status.DUPLICATE
    shard.tick(1.1 + 3 * age_s)
    assert shard.apply(message, 1.1 + 3 * age_s).status == Status.APPLIED


@pytest.mark.long
def test_sources_beyond_the_limit_are_told_to_wait() -> None:
    shard = new_shard()
    statuses = [shard.watch(Watch("source", session, 1000), 0.0).status for session in range(1, 16_500)]
    assert statuses.count(Status.APPLIED) == (1 << 14) - 1
    assert statuses[-1] == Status.OVERLOADED
    shard.tick(2.0)
    assert shard.watch(Watch("source", 1, 1000), 2.0).status == Status.APPLIED


# -- refused calls have no effect


def _unsorted(entries: Entries) -> Entries:
    return Entries(entries.root_ids[::-1].copy(), entries.ack_vals)


def _with_zero(entries: Entries) -> Entries:
    return Entries(np.append(np.uint64(0), entries.root_ids), np.append(np.uint64(1), entries.ack_vals))


def _short(entries: Entries) -> Entries:
    return Entries(entries.root_ids, entries.ack_vals[:-1])


def _unknown_kind(entries: Entries) -> Entries:
    return Entries(entries.root_ids, entries.ack_vals, np.full(len(entries), 8, np.uint8))


def _reasonless(entries: Entries) -> Entries:
    return Entries(entries.root_ids, entries.ack_vals, np.full(len(entries), 2, np.uint8))


def _beyond_reasons(entries: Entries) -> Entries:
    count = len(entries)
    return Entries(
        entries.root_ids, entries.ack_vals, np.full(count, 2, np.uint8), np.full(count, 1, np.uint32), ("one",)
    )


DAMAGES = [_unsorted, _with_zero, _short, _unknown_kind, _reasonless, _beyond_reasons]


def busy_shard() -> Shard:
    """Return a shard whose state has something in every part."""
    shard = new_shard(max_pending=1000)
    send = Sender(shard).send
    watch(shard, 0.0, Limits(30_000), pins=b"here")
    shard.open_batch(OpenBatch(SESSION, 1, FIRST, 50), 0.0)
    shard.open_batch(OpenBatch(SESSION, 2, FIRST + 100, 50, held=False), 0.0)
    send(updates_of(new_roots(20)), batch=1, covered=[(0, 30)])
    send(updates_of(new_roots(20, FIRST + 100), 3), batch=2)
    send(updates_of(new_roots(20, FIRST + 500), 3), batch=0)
    send(updates_of(new_roots(40, FIRST + 490), 3), 0.5)
    fails = new_roots(4, FIRST + 900)
    send(reports.fold_updates(fails, np.zeros(4, np.uint64), np.full(4, 2, np.uint8), {int(r): "bad" for r in fails}))
    shard.apply(Apply(Identity(9, 4, sequenced=True), 5, updates_of(new_roots(3, FIRST + 700))), 0.625)
    shard.settle([Settle(SESSION, 2, Settlement.DONE)], 0.75)
    return shard


def state_of(shard: Shard) -> dict[tuple[int, str, str], bytes]:
    """Return the state without its counters, as bytes."""
    return {
        (n, name, column): values.tobytes()
        for n, (name, columns) in enumerate(shard.dump(1.0))
        for column, values in columns.items()
        if name != "header"
    }


@pytest.mark.parametrize("damage", DAMAGES)
@pytest.mark.parametrize("batch", [None, 0, 1])
def test_a_malformed_message_is_invalid_and_leaves_no_trace(
    damage: Callable[[Entries], Entries], batch: int | None
) -> None:
    shard = busy_shard()
    before = state_of(shard)
    scope = None if batch is None else InitScope(SESSION, batch)
    reply = shard.apply(Apply(Identity(77, 77), 1, damage(updates_of(new_roots(50))), scope), 1.0)
    assert reply.status == Status.INVALID
    assert reply.detail
    assert state_of(shard) == before


@pytest.mark.parametrize(
    ("scope", "status"),
    [
        (InitScope(SESSION + 1, 0), Status.UNKNOWN_SOURCE),
        (InitScope(SESSION, 9), Status.UNKNOWN_BATCH),
        (InitScope(SESSION, 2), Status.UNKNOWN_BATCH),
        (InitScope(SESSION, 0), Status.OVERLOADED),
        (InitScope(SESSION, 1), Status.INVALID),
        (InitScope(SESSION, 1, np.array([[0, 51]], np.uint64)), Status.INVALID),
        (InitScope(SESSION, 0, np.array([[0, 1]], np.uint64)), Status.INVALID),
    ],
)
def test_inits_that_are_refused_leave_no_trace(scope: InitScope, status: Status) -> None:
    shard = busy_shard()
    before = state_of(shard)
    reply = shard.apply(Apply(Identity(77, 77), 1, updates_of(new_roots(1000)), scope), 1.0)
    assert reply.status == status
    assert reply.detail
    assert (reply.retry_delay_ms > 0) == (status in (Status.OVERLOADED, Status.UNKNOWN_SOURCE))
    assert state_of(shard) == before


def test_a_conflict_or_a_stale_sequence_changes_nothing() -> None:
    shard, entries = new_shard(sequence_window=2), updates_of(new_roots(5))
    for sequence in (1, 5):
        shard.apply(Apply(Identity(8, sequence, sequenced=True), 1, entries), 0.0)
    before = state_of(shard)
    conflict = shard.apply(Apply(Identity(8, 5, sequenced=True), 2, entries), 1.0)
    stale = shard.apply(Apply(Identity(8, 1, sequenced=True), 1, entries), 1.0)
    assert (conflict.status, stale.status) == (Status.CONFLICT, Status.STALE)
    assert state_of(shard) == before
    assert (shard.stats.sections_conflict, shard.stats.sections_stale) == (5, 5)


def test_differing_results_of_two_attempts_are_never_acked() -> None:
    """The second attempt reports other roots under the same identity, and its write may be the one that counts."""
    shard, roots = new_shard(), new_roots(3)
    watch(shard)
    shard.open_batch(OpenBatch(SESSION, 1, FIRST, 3, True), 0.0)
    shard.apply(Apply(Identity(1, 1), 1, updates_of(roots), InitScope(SESSION, 1, np.array([[0, 3]], np.uint64))), 0.0)
    shard.apply(Apply(Identity(8, 8), 1, updates_of(roots)), 0.0)
    for _ in range(2):  # the report and its retry
        assert shard.apply(Apply(Identity(8, 8), 2, updates_of(roots[:2])), 0.0).status == Status.CONFLICT
    shard.settle([Settle(SESSION, 1, Settlement.DONE)], 0.0)
    unfinished = (Verdict.FAILED, "unfinished")
    expected = {int(roots[0]): unfinished, int(roots[1]): unfinished, int(roots[2]): (Verdict.ACKED, "")}
    assert watch(shard) == expected


class Attempts:
    """Two attempts at one task, with different results for two roots. ``roots[0]`` is pending and ``roots[1]`` is not
    initialised yet. The server has the first attempt's section of ``roots[0]``."""

    def __init__(self, shard: Shard) -> None:
        self.shard, self.roots = shard, new_roots(2)
        watch(shard)
        shard.open_batch(OpenBatch(SESSION, 1, FIRST, 2, True), 0.0)
        self._init(0, 0.0)
        self.send(1, self.roots[:1], 0.0)

    def send(self, attempt: int, roots: Column, now: float) -> Status:
        return self.shard.apply(Apply(Identity(8, 8), attempt, updates_of(roots)), now).status

    def finish(self, now: float) -> dict[int, tuple[Verdict, str]]:
        """Initialise the second root, send the rest of the first attempt, and return the outcomes."""
        self._init(1, now)
        self.send(1, self.roots[1:], now)
        self.shard.settle([Settle(SESSION, 1, Settlement.DONE)], now)
        return watch(self.shard, now)

    def _init(self, number: int, now: float) -> None:
        scope = InitScope(SESSION, 1, np.array([[number, number + 1]], np.uint64))
        entries = updates_of(self.roots[number : number + 1])
        self.shard.apply(Apply(Identity(1, 1_000_000 + number), 1, entries, scope), now)


def test_differing_results_are_refused_or_never_acked_where_very_many_updates_wait_for_their_inits() -> None:
    shard = new_shard(max_pending=2048)
    attempts, send = Attempts(shard), Sender(shard).send
    send(updates_of(new_roots(896, FIRST + 1000)))
    send(bare_fails(new_roots(128, FIRST + 5000)))
    before = state_of(shard)
    assert attempts.send(2, attempts.roots, 0.0) == Status.OVERLOADED
    assert state_of(shard) == before
    # The pending root needs no room.
    assert attempts.send(2, attempts.roots[:1], 0.0) == Status.CONFLICT
    # The acks expire, and make room.
    for now in range(60):
        shard.tick(float(now))
    assert attempts.send(2, attempts.roots, 60.0) == Status.CONFLICT
    assert set(attempts.finish(60.0).values()) == {(Verdict.FAILED, "unfinished")}


@pytest.mark.parametrize("is_known", [False, True])
def test_differing_results_are_remembered_longer_than_acks_that_wait_for_their_inits(is_known: bool) -> None:
    shard = new_shard(max_pending=2048)
    attempts, send = Attempts(shard), Sender(shard).send
    send(updates_of(new_roots(880, FIRST + 1000)))
    if is_known:
        send(updates_of(attempts.roots[1:], 0))
    assert attempts.send(2, attempts.roots, 0.0) == Status.CONFLICT
    for now in range(60):
        shard.tick(float(now))
    assert shard.stats.orphans == 1
    again = Shard.restore(shard.dump(60.0), incarnation=3, now=60.0, max_pending=2048)
    again.tick(590.0)
    attempts.shard = again
    assert set(attempts.finish(590.0).values()) == {(Verdict.FAILED, "unfinished")}


def test_a_fail_counts_for_the_whole_time_after_its_last_repetition() -> None:
    shard, roots = new_shard(), new_roots(1)
    send = Sender(shard).send
    watch(shard)
    for now in (0.0, 599.0):
        shard.tick(now)
        send(bare_fails(roots), now)
    shard.tick(1190.0)
    send(updates_of(roots), 1190.0, batch=0)
    send(updates_of(roots), 1190.0)
    assert {verdict for verdict, _ in watch(shard, 1190.0).values()} == {Verdict.FAILED}


# -- state


def test_a_restored_shard_reports_the_same_as_the_dumped_one() -> None:
    """Restore on a machine with another clock. ``test_shard_twin`` does this at random points of a run."""
    shard = busy_shard()
    again = Shard.restore(shard.dump(1.0), incarnation=3, now=5000.0, max_pending=1000)
    assert (again.incarnation, again.generation) == (3, 2)
    assert state_of(again) == state_of(shard)
    for passed in (0.0, 20.0, 29.2, 30.2, 40.0):
        shard.tick(1.0 + passed)
        again.tick(5000.0 + passed)
        assert watch(again, 5000.0 + passed, Limits(30_000)) == watch(shard, 1.0 + passed, Limits(30_000))
    assert again.stats == shard.stats


def settled_shard() -> Shard:
    """Return a shard with two FAILED roots: a user's fail with the text "unfinished", and a root that is unfinished."""
    shard, roots = new_shard(), new_roots(2)
    watch(shard)
    shard.open_batch(OpenBatch(SESSION, 1, FIRST, 2), 0.0)
    send = Sender(shard).send
    send(updates_of(roots), batch=1, covered=[(0, 2)])
    failed = roots[:1]
    send(reports.fold_updates(failed, failed, np.full(1, FAIL, np.uint8), {int(failed[0]): "unfinished"}))
    shard.settle([Settle(SESSION, 1, Settlement.DONE)], 0.0)
    return shard


def reasons_in(shard: Shard) -> tuple[Reason, ...]:
    reply = shard.watch(Watch("source", SESSION, 3_600_000), 0.0)
    assert reply.outcomes.reason_ids.tolist() == list(range(1, 1 + len(reply.outcomes)))
    return reply.outcomes.reasons


def test_a_users_fail_for_the_reason_unfinished_has_no_cause_before_and_after_a_restart() -> None:
    shard = settled_shard()
    again = Shard.restore(shard.dump(0.0), incarnation=3, now=0.0)
    assert reasons_in(shard) == reasons_in(again) == ("unfinished", Cause.UNFINISHED)


def parts_of_format_2(folder: Path) -> list[StatePart]:
    """Return the state that a server of the version before wrote: see `states/README.md`."""
    shutil.copy(Path(__file__).parent / "states/format-2.state", folder / "acker.state")
    with contextlib.closing(StateDir(str(folder))) as state_dir:
        return list(state_dir.read() or ())


def test_a_state_of_the_format_before_is_read_whole(tmp_path: Path) -> None:
    shard = Shard.restore(parts_of_format_2(tmp_path), incarnation=3, now=50.0)
    assert shard.stats.sources == 2
    assert shard.pins(Pins(SESSION)).pins == b"\0 here"
    reply = shard.watch(Watch("orders", SESSION, 3_600_000), 50.0)
    reasons = {root: reply.outcomes.reasons[at - 1] for root, at in zip(*outcome_columns(reply), strict=True)}
    first, *others = new_roots(3).tolist()
    assert reasons == {first: "défaut 語"} | dict.fromkeys(others, Cause.UNFINISHED)
    # A retry of a report is known, a fail that came before its init counts, and the batch goes on where it was.
    ack = acks(roots_of([9]), 5)
    assert shard.apply(ack, 50.0).status == Status.DUPLICATE
    late = new_roots(100, FIRST + 3)[[5]]
    entries = updates_of(late)
    assert shard.apply(Apply(Identity(1, 9), 1, entries, InitScope(SESSION, 2)), 50.0).status == Status.APPLIED
    assert shard.settle([Settle(SESSION, 2, Settlement.DONE)], 50.0)[0].roots == 100
    assert watch(shard, 50.0)[int(late[0])] == (Verdict.FAILED, "too early")
    shard.watch(Watch("orders", SESSION, 1, close=True), 50.0)
    assert (shard.stats.pending, shard.stats.reserved, shard.stats.unconfirmed) == (0, 0, 0)


def outcome_columns(reply: WatchReply) -> tuple[list[int], list[int]]:
    return reply.outcomes.root_ids.tolist(), reply.outcomes.reason_ids.tolist()


def test_the_reasons_of_a_state_that_an_older_server_wrote_are_read_by_their_texts(tmp_path: Path) -> None:
    state = parts_of_format_2(tmp_path)
    header = json.loads(state[0][1]["json"].tobytes())
    assert header["sources"][0].pop("causes") == [[0, Cause.UNFINISHED.value]]
    state[0] = ("header", {"json": np.frombuffer(json.dumps(header).encode(), np.uint8)})
    shard = Shard.restore(state, incarnation=3, now=0.0)
    assert shard.watch(Watch("orders", SESSION, 3_600_000), 0.0).outcomes.reasons[1] == Cause.UNFINISHED


@pytest.mark.parametrize("part", ["reasons", "source", "batch", "outbox"])
def test_a_state_that_lacks_a_part_is_refused(part: str) -> None:
    parts = [(name, columns) for name, columns in busy_shard().dump(1.0)]
    at = next(at for at, (name, _) in enumerate(parts) if name == part)
    with pytest.raises(ValueError, match="not whole"):
        Shard.restore(parts[:at] + parts[at + 1 :], incarnation=3, now=1.0)


@pytest.mark.parametrize(
    ("is_stream", "counts"), [(False, {"roots": 0}), (False, {"roots": 1_000_000}), (True, {"inits": 4})]
)
def test_a_state_whose_batch_counts_other_roots_than_it_can_have_is_refused(
    is_stream: bool, counts: dict[str, int]
) -> None:
    state = list(busy_shard().dump(1.0))
    at = next(at for at, (name, _) in enumerate(state) if name == "source")
    columns = state[at][1]
    content = json.loads(bytes(columns["json"]))
    batch = next(each for each in content["batches"] if (not each["number"] if is_stream else each["inits"]))
    batch.update(counts)
    state[at] = ("source", columns | {"json": np.frombuffer(json.dumps(content).encode(), np.uint8)})
    with pytest.raises(ValueError, match="not whole: batch"):
        Shard.restore(state, incarnation=3, now=1.0)


def test_no_part_of_a_dump_grows_with_the_number_of_sources() -> None:
    def largest_bytes(sources: int) -> int:
        shard = new_shard()
        for session in range(1, sources + 1):
            shard.watch(Watch(f"source {session}", session, 60_000, pins=bytes(2000)), 0.0)
            shard.open_batch(OpenBatch(session, 1, FIRST * session, 3, held=False), 0.0)
            root = new_roots(1, FIRST * session)
            shard.apply(Apply(Identity(1, session), 1, updates_of(root), InitScope(session, 1)), 0.0)
            fail = reports.fold_updates(root, root, np.full(1, FAIL, np.uint8), {int(root[0]): "x" * 4000})
            shard.apply(Apply(Identity(2, session), 1, fail), 0.0)
        rest = ("ledger", "contents")  # 40 and 160 bytes for an entry
        parts = [(name, sum(column.nbytes for column in columns.values())) for name, columns in shard.dump(1.0)]
        return max(size for name, size in parts if name not in rest)

    assert largest_bytes(50) < 1.1 * largest_bytes(5)


# -- pins


def test_the_pins_of_all_sources_are_bounded_and_a_new_source_is_refused_with_the_way_out() -> None:
    shard = new_shard(max_pins_bytes=10_000)
    pinned = [Watch("source", session, 60_000, pins=bytes(3000)) for session in range(1, 5)]
    replies = [shard.watch(request, 0.0) for request in pinned]
    assert [reply.status for reply in replies] == [Status.APPLIED] * 3 + [Status.OVERLOADED]
    assert "--max-memory" in replies[3].detail
    assert shard.stats.sources == 3
    shard.watch(Watch("source", 1, 60_000, close=True), 1.0)
    assert shard.watch(pinned[3], 1.0).status == Status.APPLIED


def test_an_open_source_keeps_its_earlier_pins_where_new_ones_find_no_room_and_learns_it() -> None:
    shard = new_shard(max_pins_bytes=10_000)
    watch(shard, pins=b"here")
    watch(shard, session=8, pins=bytes(9000))
    shard.open_batch(OpenBatch(SESSION, 1, FIRST, 2), 0.0)
    shard.settle([Settle(SESSION, 1, Settlement.ABANDON)], 0.0)
    reply = shard.watch(Watch("source", SESSION, 60_000, pins=bytes(2000)), 50.0)
    # It gets its outcomes, and its lease is renewed: nothing but the pins waits.
    assert (reply.status, len(reply.outcomes), reply.lease_ms) == (Status.APPLIED, 2, 60_000)
    assert reply.pins_crc32 == zlib.crc32(b"here")
    assert "--max-memory" in reply.detail
    assert shard.pins(Pins(SESSION)).pins == b"here"
    # Shorter and equal ones need no room.
    assert shard.watch(Watch("source", SESSION, 60_000, pins=b"her"), 50.0).pins_crc32 == zlib.crc32(b"her")
    shard.watch(Watch("source", 8, 60_000, close=True), 51.0)
    reply = shard.watch(Watch("source", SESSION, 60_000, pins=bytes(2000)), 51.0)
    assert (reply.detail, reply.pins_crc32) == ("", zlib.crc32(bytes(2000)))


def test_no_batch_whose_pins_may_find_no_room_is_opened() -> None:
    shard = new_shard(max_pins_bytes=70_000)
    watch(shard, pins=bytes(1000))
    watch(shard, session=8, pins=bytes(8000))
    reply = shard.open_batch(OpenBatch(SESSION, 1, FIRST, 2, held=False), 0.0)
    assert (reply.status, "--max-memory" in reply.detail) == (Status.OVERLOADED, True)
    # The pins of a held batch travel with its job.
    assert shard.open_batch(OpenBatch(SESSION, 1, FIRST, 2), 0.0).status == Status.APPLIED
    shard.watch(Watch("source", 8, 60_000, close=True), 0.0)
    assert shard.open_batch(OpenBatch(SESSION, 2, FIRST, 2, held=False), 0.0).status == Status.APPLIED


def test_memory_of_pins_and_reasons_is_counted_alike_before_and_after_a_restart() -> None:
    shard = settled_shard()
    watch(shard, session=9, pins=b"here")
    again = Shard.restore(shard.dump(0.0), incarnation=3, now=0.0)
    assert again.stats == shard.stats
    for each in (shard, again):
        assert each._state.room.pins.bytes > 0
        assert each._state.room.reasons.bytes > 0
        each.tick(4000.0)
        room = each._state.room
        assert (each.stats.sources, room.pins.bytes, room.reasons.bytes, room.outcomes.bytes) == (0, 0, 0, 0)


def test_a_restored_lease_starts_anew() -> None:
    shard = new_shard()
    shard.watch(Watch("test", 7, 10_000), 0.0)
    again = Shard.restore(shard.dump(9.9), incarnation=3, now=5000.0)
    again.tick(5009.9)
    assert again.stats.sources == 1
    again.tick(5010.1)
    assert again.stats.sources == 0


COLUMNS = [(name, column) for name, columns in busy_shard().dump(1.0) for column in columns]


@pytest.mark.parametrize(("name", "column"), COLUMNS)
def test_a_state_that_is_not_whole_is_refused(name: str, column: str) -> None:
    state = dict(busy_shard().dump(1.0))
    values = state[name][column]
    assert len(values)
    others = {key: each for key, each in state[name].items() if key != column}
    damaged = [
        {key: columns for key, columns in state.items() if key != name},
        *(state | {name: others | each} for each in ({}, {column: values[:-1]}, {column: values.astype(np.float32)})),
    ]
    for each in damaged:
        with pytest.raises(ValueError, match="not whole"):
            Shard.restore(each.items(), incarnation=3, now=0.0)
    with pytest.raises(ValueError, match="not whole"):
        Shard.restore([*state.items(), (name, state[name])], incarnation=3, now=0.0)
