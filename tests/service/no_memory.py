"""A lack of memory at any point of a call: the call has done nothing, or a part that the same call completes."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable
from contextlib import nullcontext
from functools import partial
from typing import Any

import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from acker_protocol.messages import Apply, Limits, OpenBatch, Settle, Settlement, Status, Watch
from acker_service.core.accounts import Accounts
from acker_service.core.applying import Applying, _int_of
from acker_service.core.shard import Shard
from acker_service.core.state import State
from acker_service.shared_shard import SharedShard
from tests.service.caller import SESSION, acks, inits, roots_of
from tests.service.failing_memory import counted
from tests.service.test_lock_holds import shorten_steps
from tests.service.test_shard_twin import UNCOMPARED, Comparison, reported

Call = Callable[..., bool]
# A call makes some 150 allocations.
ALLOCATIONS = 200
DONE = (Status.APPLIED, Status.DUPLICATE)
# What a repeated call counts twice. The other figures must be exact.
REPEATED = {"sections_applied", "sections_duplicate", "sections_conflict", "sections_stale", "updates"}


class Unreliable:
    """A shard whose calls often find no memory, and are then made again. ``failed``: whether the last one did."""

    def __init__(self, shard: Shard, chance: random.Random, call: Call) -> None:
        self._shard, self._chance, self._call = shard, chance, call
        self.failed = False

    def __getattr__(self, name: str) -> Any:
        return getattr(self._shard, name)

    def _insist(self, name: str, *arguments: Any) -> Any:
        self.failed = False
        replies: list[Any] = []
        while not replies and self._chance.random() < 0.7:
            first, count = self._chance.randrange(ALLOCATIONS), self._chance.choice([1, 1, 3, 20])
            is_done = self._call(lambda: replies.append(getattr(self._shard, name)(*arguments)), first, count)
            if not is_done:
                self.failed = True
                # The next tick does this.
                self._shard._state.recover()
                for _ in self._shard._state.finish_others():
                    pass
            self.check()
        return replies[0] if replies else getattr(self._shard, name)(*arguments)

    def check(self) -> None:
        """Check what holds between two calls, also after one that has failed."""
        self._shard._state.recover()
        state = self._shard._state
        assert state.room.pending == int(state.ledger.pending.sum())
        batches = [batch for source in state.sources.values() for batch in source.batches.values()]
        assert state.room.reserved == sum(batch.reserved for batch in batches)
        assert state.room.unconfirmed == sum(len(source.outbox) for source in state.sources.values())
        assert state.room.maps.bytes == sum(2 * batch.seen.nbytes for batch in batches)
        chunks = [chunk for source in state.sources.values() for chunk in source.outbox._chunks]
        assert state.room.outcomes.bytes == sum(chunk._columns_bytes for chunk in chunks)

    def apply(self, message: Apply, now: float) -> Any:
        return self._insist("apply", message, now)

    def open_batch(self, request: OpenBatch, now: float) -> Any:
        return self._insist("open_batch", request, now)

    def settle(self, requests: list[Settle], now: float) -> Any:
        return self._insist("settle", requests, now)

    def watch(self, request: Watch, now: float) -> Any:
        return self._insist("watch", request, now)

    def tick(self, now: float) -> None:
        self._insist("tick", now)


class Forgetful(Comparison):
    """Compares a shard that often finds no memory with its twin, which always does."""

    shard: Any

    def __init__(self, chance: random.Random, call: Call) -> None:
        super().__init__(chance)
        self._call = call
        self.shard = Unreliable(self.shard, chance, call)

    def send(self, message: Apply) -> None:
        self.sent.append(message)
        ours, theirs = self.shard.apply(message, self.now + self.moved), self.twin.apply(message, self.now)
        if self.shard.failed and theirs.status in DONE:
            assert ours.status in DONE
        else:
            assert (ours.status, ours.retry_delay_ms) == (theirs.status, theirs.retry_delay_ms)
            assert ours.section_statuses.tolist() == theirs.section_statuses.tolist()

    def compare_watch(self, request: Watch) -> None:
        ours, theirs = self.shard.watch(request, self.now + self.moved), self.twin.watch(request, self.now)
        assert reported(ours.outcomes) == reported(theirs.outcomes)
        assert (ours.status, ours.cursor, ours.pins_crc32) == (theirs.status, theirs.cursor, theirs.pins_crc32)
        assert ours.is_new == theirs.is_new or self.shard.failed

    def compare_counts(self) -> None:
        self.shard.check()
        self.shard.failed = False
        super().compare_counts()

    def restart(self) -> None:
        self.shard = self.shard._shard
        super().restart()
        self.shard = Unreliable(self.shard, self.chance, self._call)


# A generator that Python could not end for lack of memory has nothing left to do.
ignores_generators = pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")


@ignores_generators
@pytest.mark.slow
@given(st.integers(0, 1 << 32), st.booleans())
@settings(max_examples=30, deadline=None, phases=[Phase.generate])
def test_calls_that_find_no_memory_and_are_made_again_agree_with_the_simple_twin(seed: int, in_steps: bool) -> None:
    compare(seed, in_steps)


def compare(seed: int, in_steps: bool) -> None:
    with counted() as call, pytest.MonkeyPatch.context() as patch:
        patch.setattr("tests.service.test_shard_twin.UNCOMPARED", REPEATED | UNCOMPARED)
        if in_steps:
            shorten_steps(patch)
        comparison = Forgetful(random.Random(seed), call)
        for n in range(80):
            comparison.step()
            if n % 40 == 30:
                comparison.restart()
        comparison.compare_outcomes()


def _never_finished(_: State) -> None:
    """Nobody finishes what a call has begun."""


def _counted_too_late(self: Accounts) -> None:
    """What a kernel has changed is forgotten if counting it fails."""
    found, self._uncounted = self._uncounted, None
    if found is not None:
        self._uncounted = found
        try:
            FINISH(self)
        finally:
            self._uncounted = None


def _remembered_first(self: Applying, message: Apply, batch: Any, sections: Any, fresh: int) -> Any:
    """A report counts as applied before it is: its retry is answered DUPLICATE."""
    state = self._state
    state.dedupe.record_applied(message.identity, message.digest, _int_of(sections.bits), state.now)
    return APPLY(self, message, batch, sections, fresh)


def _room_first(self: State, source: Any, batch: Any) -> None:
    """The room of a batch is reserved before the batch exists."""
    self.room.reserved += batch.reserved
    before = self.room.reserved
    ADD_BATCH(self, source, batch)
    self.room.reserved = before


FINISH, APPLY, ADD_BATCH = Accounts.finish, Applying._apply, State.add_batch
MUTANTS: list[tuple[type, str, Callable[..., Any]]] = [
    (State, "recover", _never_finished),
    (Accounts, "finish", _counted_too_late),
    (Applying, "_apply", _remembered_first),
    (State, "add_batch", _room_first),
]


@ignores_generators
@pytest.mark.slow
@pytest.mark.parametrize(("owner", "name", "mutant"), MUTANTS)
def test_a_shard_that_is_not_safe_without_memory_is_found(
    owner: type, name: str, mutant: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(owner, name, mutant)
    # Numpy and the twin raise other errors than AssertionError for a state that is not right.
    with pytest.raises((AssertionError, IndexError, KeyError, ValueError)):
        compare_some(200)


def compare_some(seeds: int) -> None:
    for seed in range(seeds):
        compare(seed, in_steps=bool(seed % 2))


@ignores_generators
@pytest.mark.slow
@pytest.mark.parametrize("count", [1, 10_000])
def test_a_report_for_which_tables_must_grow_is_applied_in_whole_sections(count: int) -> None:
    """``count`` allocations fail from a certain one on. A retry applies the other sections."""
    some = roots_of(range(12_000))
    # Half of the acks come before their inits.
    early, message, late = acks(some[:2000], 1), inits(some, 2), acks(some[2000:4000], 3)
    messages, first, halves = (early, message, late), 0, 0
    with counted() as call:
        while first < 10_000:
            shard = Shard(incarnation=1, generation=2)
            shard.watch(Watch("test", SESSION, 60_000), 0.0)
            call(partial(apply_all, shard, messages), first, count)
            shard._state.recover()
            halves += 0 < shard.stats.inits < len(some)
            assert {shard.apply(each, 0.0).status for each in messages} <= set(DONE)
            shard.tick(0.0)
            stats = shard.stats
            assert (stats.inits, stats.acked, stats.pending, stats.orphans) == (12_000, 4000, 8000, 0)
            assert stats.unconfirmed == len(shard.watch(Watch("test", SESSION, 60_000), 0.0).outcomes) == 4000
            first += 1 + first // 10
    assert halves > 3, "some reports were applied in part"


def apply_all(shard: Shard, messages: Iterable[Apply]) -> None:
    for message in messages:
        shard.apply(message, 0.0)


CALLS: dict[str, Callable[[SharedShard, int], Any]] = {
    "apply": lambda shared, n: shared.apply(acks(roots_of([n]), n)),
    "open_batch": lambda shared, n: shared.open_batch(OpenBatch(SESSION, n + 1, (n + 1) << 20, 10)),
    "settle": lambda shared, n: shared.settle(Settle(SESSION, n + 1, Settlement.DONE)),
    "watch": lambda shared, n: shared.watch(Watch("test", SESSION, 60_000 + n, wait_ms=1)),
    "close": lambda shared, n: shared.watch(Watch("test", SESSION, 60_000, close=True)),
    "open": lambda shared, n: shared.watch(Watch("test", SESSION, 60_000, Limits(n + 1))),
    "tick": lambda shared, n: shared.tick(),
    "pause": lambda shared, n: shared.shard._pause(),
}


@ignores_generators
@pytest.mark.parametrize("name", CALLS)
@pytest.mark.parametrize("count", [1, 1000])
def test_a_call_that_finds_no_memory_gives_the_lock_back(name: str, count: int) -> None:
    shared = SharedShard(Shard(incarnation=1, generation=2), clock=lambda: 1.0, max_watches=4, linger_s=0.0)
    shared.watch(Watch("test", SESSION, 60_000))
    lock = shared._lock._lock
    held = lock if name == "pause" else nullcontext()
    with counted() as call:
        for n in range(150):
            if name == "settle":
                shared.open_batch(OpenBatch(SESSION, n + 1, (n + 1) << 20, 10))
            elif name == "close":
                shared.watch(Watch("test", SESSION, 60_000))
            with held:
                call(partial(CALLS[name], shared, n), n, count)
                assert lock.locked() == (name == "pause")
            assert shared.watches == 0
            # The next settlement does what a failed one has left.
            shared.settle(Settle(SESSION, 1000, Settlement.DONE))
            assert shared.settlements == 0
