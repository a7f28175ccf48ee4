"""Reports in parts, with any calls between the parts: as if each part were a message of its own, in the simple twin."""

from __future__ import annotations

import copy
import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from acker_protocol.ids import mix64_column
from acker_protocol.messages import (
    NO_KINDS,
    Apply,
    ApplyReply,
    Entries,
    Identity,
    InitScope,
    Kinds,
    OpenBatch,
    Settle,
    Settlement,
    Status,
    Watch,
)
from acker_service.core import ledger, long_messages, tables
from acker_service.core.applying import Applied
from acker_service.core.batches import BatchState
from acker_service.core.dedupe import Dedupe
from acker_service.core.long_messages import Cut
from acker_service.core.shard import Shard
from tests.service.caller import SESSION, acks, inits, roots_of
from tests.service.test_lock_holds import FIRST, Between, shard_with
from tests.service.test_shard_twin import Comparison, cut, first_of, reported
from tests.service.twin import Twin

DONE = (Status.APPLIED, Status.DUPLICATE)


def shorten_parts(patch: pytest.MonkeyPatch) -> None:
    """Cut messages of a few entries into parts, and let sub-tables of a few roots grow in steps."""
    patch.setattr(long_messages, "ENTRIES_MAX", 2)
    patch.setattr(long_messages, "FAILS_MAX", 1)
    patch.setattr(long_messages, "RANGES_MAX", 1)
    patch.setattr(long_messages, "NUMBERS_MAX", 8)
    patch.setattr(ledger, "MOVED_MAX", 100)
    patch.setattr(tables, "LARGE", 10)


class InParts(Comparison):
    """Makes any calls between the parts of a message."""

    def __init__(self, chance: random.Random, first_of: Callable[[int, int], int] = first_of) -> None:
        super().__init__(chance, first_of)
        # The message that is being applied, the twin's answers to its parts so far, and the statuses of their sections.
        self._sent: Apply | None = None
        self._answers: list[ApplyReply] = []
        self._statuses: list[Kinds] = []
        self._applied: list[Entries] = []
        # Whether another call is made between two parts.
        self._is_inside = False
        self._sections = 0

    def send(self, message: Apply) -> None:
        if self._sent is not None:
            # Between two parts of another message.
            super().send(message)
            return
        self.sent.append(message)
        before = copy.deepcopy(self.twin).apply(message, self.now)
        self._sent, self._answers, self._statuses, self._applied = message, [], [], []
        self._sections = len(np.unique(mix64_column(message.entries.root_ids) >> np.uint64(54)))
        self.shard.unlocked = self._unlocked
        self.shard._applying.apply = self._mirrored(self.shard)  # type: ignore[method-assign,assignment]
        try:
            ours = self.shard.apply(message, self.now + self.moved)
        finally:
            self._sent = None
            del self.shard._applying.apply
            self.shard.unlocked = nullcontext
        self._compare(message, ours, before)

    def _compare(self, message: Apply, ours: ApplyReply, before: ApplyReply) -> None:
        if not self._answers:
            # It was refused as a whole, by what was there before or after the other calls.
            assert ours.status not in DONE
            assert ours.status in (before.status, self.twin.apply(message, self.now).status)
            return
        last = self._answers[-1]
        if ours.status not in DONE:
            assert (ours.status, ours.retry_delay_ms) == (last.status, last.retry_delay_ms)
            return
        statuses, sections = np.concatenate([NO_KINDS, *self._statuses]), self._sections
        assert len(statuses) == sections
        for name in ("root_ids", "ack_vals", "kinds", "reason_ids"):
            whole = getattr(message.entries, name)
            assert np.array_equal(np.concatenate([whole[:0], *(getattr(each, name) for each in self._applied)]), whole)
        assert {each.status for each in self._answers} <= set(DONE)
        told = ours.section_statuses if len(ours.section_statuses) else np.full(sections, int(ours.status), np.uint8)
        assert told.tolist() == statuses.tolist()
        assert ours.inits_known == sum(each.inits_known for each in self._answers)
        assert ours.inits_conflicting == sum(each.inits_conflicting for each in self._answers)

    def _mirrored(self, shard: Shard) -> Callable[[Apply], Applied]:
        """Return `Applying.apply` that also gives the twin what was applied."""
        real = shard._applying.apply

        def apply(part: Apply) -> Applied:
            applied = real(part)
            if self._is_inside:
                return applied
            is_whole = applied.entries == len(part.entries) or applied.is_last
            scope = part.inits
            if not is_whole:
                scope = InitScope(scope.session, scope.batch) if scope is not None else None
                part = Apply(part.identity, part.digest, cut(part.entries, slice(0, applied.entries)), scope)
            if not is_whole and not applied.entries:
                # Nothing was applied, as a table must grow first.
                return applied
            if scope is not None and len(scope.covered) and not applied.is_last:
                assert sum(map(len, self._statuses)) + applied.sections == self._sections, "all inits come first"
            theirs = self.twin.apply(part, self.now)
            ours = applied.reply
            self._applied.append(part.entries)
            assert (ours.status, ours.retry_delay_ms) == (theirs.status, theirs.retry_delay_ms)
            assert (ours.inits_known, ours.inits_conflicting) == (theirs.inits_known, theirs.inits_conflicting)
            assert ours.section_statuses.tolist() == theirs.section_statuses.tolist()
            self._answers.append(theirs)
            uniform = np.full(applied.sections, int(theirs.status), np.uint8)
            self._statuses.append(theirs.section_statuses if len(theirs.section_statuses) else uniform)
            return applied

        return apply

    @contextmanager
    def _unlocked(self) -> Iterator[None]:
        if not self._is_inside and self._sent is not None:
            self._is_inside = True
            for _ in range(self.chance.choice([0, 0, 1, 2])):
                self._interfere()
            self._is_inside = False
        yield

    def _interfere(self) -> None:
        assert self._sent is not None
        match self.chance.randrange(10):
            case 0 | 1:
                # As after a lost answer.
                super().send(self._sent)
            case 2:
                self._send_conflict(self._sent)
            case 3 if self._answers:
                self._restart_a_copy(self._sent)
            case 4 | 5 if self._sent.inits is not None:
                self._end_batch(self._sent.inits)
            case 6 if self._sent.inits is not None:
                self._reopen_source(self._sent.inits)
            case _:
                self.step()
        self.compare_counts()

    def _end_batch(self, scope: InitScope) -> None:
        request = Settle(scope.session, scope.batch, self.chance.choice(list(Settlement)))
        [ours], [theirs] = self.shard.settle([request], self.now + self.moved), self.twin.settle([request], self.now)
        assert (ours.status, ours.roots, ours.cursor) == (theirs.status, theirs.roots, theirs.cursor)

    def _reopen_source(self, scope: InitScope) -> None:
        """Close the source of the message and open it again, with another batch of the same number."""
        for close in (True, False):
            self.compare_watch(Watch(f"source {scope.session}", scope.session, 60_000, close=close))
        if scope.batch:
            first, up_to = self.first_of(scope.session, scope.batch), self.chance.choice([5, 30])
            self.compare_open(OpenBatch(scope.session, scope.batch, first, up_to, self.chance.random() < 0.6))

    def _send_conflict(self, message: Apply) -> None:
        """Send another report under the same identity."""
        entries = message.entries
        some = cut(entries, slice(0, self.chance.randrange(len(entries) + 1)))
        scope = InitScope(message.inits.session, message.inits.batch) if message.inits is not None else None
        super().send(Apply(message.identity, message.digest ^ 1, some, scope))

    def _restart_a_copy(self, message: Apply) -> None:
        """Compare what a server has that starts from a state saved now, when the message comes again."""
        twin: Twin = copy.deepcopy(self.twin)
        other = Comparison(random.Random(self.chance.random()), self.first_of)
        other.options, other.now, other.moved, other.sent = self.options, self.now, self.moved, list(self.sent)
        parts = list(self.shard.dump(self.now + self.moved))
        other.shard = Shard.restore(parts, incarnation=1, now=self.now + self.moved, **self.options)
        other.twin = twin
        twin.restart(self.now)
        other.compare_counts()
        other.send(message)
        for _ in range(5):
            other.step()
        other.compare_outcomes()

    def restart(self) -> None:
        if self._sent is None:
            super().restart()


@pytest.mark.slow
@given(st.integers(0, 1 << 32), st.booleans())
@settings(max_examples=20, deadline=None, phases=[Phase.generate])
def test_any_calls_between_the_parts_of_a_report_agree_with_the_simple_twin(seed: int, are_shared: bool) -> None:
    compare(seed, are_shared)


def compare(seed: int, are_shared: bool) -> None:
    with pytest.MonkeyPatch.context() as patch:
        shorten_parts(patch)
        chance = random.Random(seed)
        comparison = InParts(chance, (lambda session, number: 1) if are_shared else first_of)
        for n in range(80):
            comparison.step()
            if n % 40 == 30:
                comparison.restart()
        comparison.compare_outcomes()


def test_a_long_message_is_refused_as_a_whole_if_there_is_no_room_for_all_of_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    shorten_parts(monkeypatch)
    shard = Shard(incarnation=1, generation=2, max_pending=10)
    shard.watch(Watch("test", SESSION, 60_000), 0.0)
    some, message = inits(roots_of(range(4)), 1), inits(roots_of(range(8)), 2)
    assert shard.apply(some, 0.0).status == Status.APPLIED
    assert shard.apply(message, 0.0).status == Status.OVERLOADED
    assert shard.stats.pending == 4
    # What comes again needs no room.
    assert shard.apply(some, 0.0).status == Status.DUPLICATE
    assert shard.apply(acks(roots_of(range(2)), 3), 0.0).status == Status.APPLIED
    shard.watch(Watch("test", SESSION, 60_000, confirmed=2), 0.0)
    assert shard.apply(message, 0.0).status == Status.APPLIED


def compare_some(seeds: int) -> None:
    for seed in range(seeds):
        compare(seed, are_shared=bool(seed % 2))


@pytest.mark.parametrize("settlement", list(Settlement))
def test_a_batch_that_is_settled_between_the_parts_of_its_inits_ends_each_root_once(
    settlement: Settlement, monkeypatch: pytest.MonkeyPatch
) -> None:
    shorten_parts(monkeypatch)
    shard, roots = shard_with(OpenBatch(SESSION, 1, FIRST, 8, held=True)), roots_of(range(8), FIRST)
    report = inits(roots, 1, batch=1)
    covering = replace(report, inits=InitScope(SESSION, 1, np.array([[0, 8]], np.uint64)))
    # Nothing before it is cut and before its first part; then the settlement.
    calls = [lambda: None, lambda: None, lambda: shard.settle([Settle(SESSION, 1, settlement)], 0.0)]
    Between(shard, iter(calls))
    assert shard.apply(covering, 0.0).status == Status.UNKNOWN_BATCH
    assert shard.apply(covering, 0.0).status == Status.UNKNOWN_BATCH
    outcomes = reported(shard.watch(Watch("test", SESSION, 60_000), 0.0).outcomes)
    assert sorted(root for root, _, _ in outcomes) == sorted(roots.tolist())
    begun = "unfinished" if settlement == Settlement.DONE else "abandoned"
    assert sorted(reason for _, _, reason in outcomes) == sorted([begun] * 2 + ["unread"] * 6)
    assert shard.stats.inits == 2


def test_ranges_count_if_their_batch_opens_while_the_report_is_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    shorten_parts(monkeypatch)
    shard, roots = shard_with(), roots_of(range(4), FIRST)
    covering = replace(inits(roots, 1, batch=1), inits=InitScope(SESSION, 1, np.array([[0, 8]], np.uint64)))
    Between(shard, iter([lambda: shard.open_batch(OpenBatch(SESSION, 1, FIRST, 8, held=True), 0.0)]))
    assert shard.apply(covering, 0.0).status == Status.APPLIED
    shard.settle([Settle(SESSION, 1, Settlement.DONE)], 0.0)
    outcomes = reported(shard.watch(Watch("test", SESSION, 60_000), 0.0).outcomes)
    assert sorted((root, reason) for root, _, reason in outcomes) == [(r, "unfinished") for r in sorted(roots.tolist())]


def _record_all(self: Dedupe, identity: Identity, digest: int, applied: int, now: float) -> None:
    """A report counts as applied when one part of it is."""
    RECORD(self, identity, digest, (1 << 1024) - 1, now)


def _remember_none(self: Dedupe, identity: Identity, digest: int) -> Status | int:
    """A report that comes again between two parts is applied again."""
    known = FIND(self, identity, digest)
    return known if isinstance(known, Status) else 0


def _cover_first(message: Apply, batch: BatchState | None) -> Cut | str:
    """The covered numbers come before the inits."""
    cut = CUT(message, batch)
    return cut if isinstance(cut, str) else replace(cut, parts=cut.parts[::-1])


def _answer_to_last(replies: list[tuple[ApplyReply, int]]) -> ApplyReply:
    """The answer to the last part is the answer to the message."""
    return replies[-1][0]


RECORD, FIND, CUT = Dedupe.record_applied, Dedupe.find_applied, long_messages.cut
MUTANTS: list[tuple[Any, str, Any]] = [
    (Dedupe, "record_applied", _record_all),
    (Dedupe, "find_applied", _remember_none),
    (long_messages, "cut", _cover_first),
    (long_messages, "merged", _answer_to_last),
]


@pytest.mark.parametrize(("owner", "name", "mutant"), MUTANTS)
def test_a_shard_that_is_not_safe_between_parts_is_found(
    owner: Any, name: str, mutant: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(owner, name, mutant)
    with pytest.raises((AssertionError, KeyError)):
        compare_some(200)
