"""Mutants: named mistakes, put into the real code while a simulation runs. Each has to be found.

What finds them is the oracle: a mistake that no seed can show would mean that the simulation does not look there.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from typing import Any
from unittest import mock

import numpy as np

from acker_client.core.pinned_batch import PinnedBatch
from acker_client.core.registration import Registration
from acker_client.core.votes import bits_of, slots_of
from acker_client.members.source_session import WENT_WITHOUT, SourceSession
from acker_client.source.run.run import Run
from acker_client.spark.core import derive
from acker_client.spark.core.tally import Report, Tally
from acker_client.spark.operators import branch, merging
from acker_protocol import reports
from acker_protocol.ids import numbers_of
from acker_protocol.messages import FAIL, NO_KINDS, NO_REASON_IDS, Entries, Identity, Status
from acker_service.core.applying import Applying
from acker_service.core.dedupe import Dedupe
from acker_service.core.shard import Shard

# Makes something else of a method or a property: takes the real one, gives the mistaken one.
Mistake = Callable[[Any], Any]


@dataclass(frozen=True)
class Mutant:
    """``name``: in a few words; ``places``: (owner, name of what is replaced, mistake); ``kind``: what has to come of
    it, "" for anything wrong."""

    name: str
    places: Sequence[tuple[Any, str, Mistake]]
    kind: str = ""

    @contextmanager
    def at_work(self) -> Iterator[None]:
        """Let the mistake be made."""
        with ExitStack() as stack:
            for owner, name, mistake in self.places:
                stack.enter_context(mock.patch.object(owner, name, mistake(getattr(owner, name))))
            yield


def _no_digest(real: Callable[..., Any]) -> Callable[..., Any]:
    return lambda counts, *_, **__: np.zeros(len(counts), np.uint64)


def _inits_twice(real: Callable[..., Any]) -> Callable[..., Any]:
    def apply(self: Applying, message: Any) -> Any:
        reply = real(self, message)
        if message.inits is not None and reply.status == Status.DUPLICATE and len(message.entries):
            # As if there were no map of what is initialised, and no identity.
            again = Identity(message.identity.high ^ 1, self._state.tick + id(message) % 1_000_003)
            real(self, replace(message, identity=again, inits=None))
        return reply

    return apply


def _cut_sections(real: Callable[..., Any]) -> Callable[..., Any]:
    def cut(entries: Entries, message_bytes: int) -> Iterator[Entries]:
        step = max(1, message_bytes // reports.BYTES_AN_ENTRY)
        bounds = [*range(0, len(entries), step), len(entries)]
        return (reports._slice(entries, start, stop) for start, stop in itertools.pairwise(bounds))

    return cut


def _half_a_section(real: Callable[..., Any]) -> Callable[..., Any]:
    """The server remembers a report as applied when it has applied the first half of it."""

    def apply(self: Applying, message: Any, batch: Any, sections: Any, fresh: int) -> Any:
        if message.inits is None and len(message.entries) > 1:
            vals = message.entries.ack_vals.copy()
            vals[len(vals) // 2 :] = 0
            message = replace(message, entries=replace(message.entries, ack_vals=vals))
        return real(self, message, batch, sections, fresh)

    return apply


def _old_generation(real: Callable[..., Any]) -> Callable[..., Any]:
    def renewed(self: Registration, request: Any, reply: Any, now: float) -> bool:
        known = self.generation
        real(self, request, reply, now)
        if known is not None:
            self.generation, self._is_lost = known, False
        return True

    return renewed


def _no_evidence(real: Callable[..., Any]) -> Callable[..., Any]:
    def judge(self: Run, batch: Any, error: Any) -> None:
        batch.error = None

    return judge


def _no_memory(real: Callable[..., Any]) -> Callable[..., Any]:
    return lambda self, *_: None


def _own_identity(real: Callable[..., Any]) -> Callable[..., Any]:
    """Every attempt reports under an identity of its own."""

    def report(self: Tally, salt: int = 0) -> Report:
        made: Report = real(self, salt)
        Tally.attempts = getattr(Tally, "attempts", 0) + 1  # type: ignore[attr-defined]
        return replace(made, identity=replace(made.identity, high=Tally.attempts))  # type: ignore[attr-defined]

    return report


def _no_fails(real: Callable[..., Any]) -> Callable[..., Any]:
    def apply(self: Applying, message: Any, *rest: Any) -> Any:
        entries = message.entries
        if len(entries.kinds) and np.any(entries.kinds & FAIL):
            entries = Entries(entries.root_ids, entries.ack_vals, NO_KINDS, NO_REASON_IDS)
        return real(self, replace(message, entries=entries), *rest)

    return apply


def _nothing(real: Callable[..., Any]) -> Callable[..., Any]:
    return lambda *_, **__: None


def _forgotten_when_sent(real: Callable[..., Any]) -> Callable[..., Any]:
    """A server forgets outcomes as soon as it has sent them."""

    def watch(self: Shard, request: Any, now: float) -> Any:
        reply = real(self, request, now)
        source = self._state.sources.get(request.session)
        if source is not None:
            self._state.room.confirm(source.outbox.confirm(reply.cursor))
        return reply

    return watch


def _left_with_those_out(real: Any) -> property:
    """A batch is settled also where a task went on without the server; who is gone would not answer."""
    return property(
        lambda self: [member for member in self.not_settled if self.out.get(member, WENT_WITHOUT) == WENT_WITHOUT]
    )


def _left_again(real: Callable[..., Any]) -> Callable[..., Any]:
    """One that is out and does not answer when the batch is settled is asked no more."""

    def leave(self: PinnedBatch, member: Any, why: str) -> Any:
        if member in self.out:
            self.out[member] = why
        return real(self, member, why)

    return leave


def _heard_when_out(real: Callable[..., Any]) -> Callable[..., Any]:
    """What a replica that is out says of roots that are open counts."""

    def hear(self: PinnedBatch, member: Any, outcomes: Any) -> Any:
        index, votes = self.members.index(member), self.votes
        # Where it was the only replica nothing is open.
        if member not in self.out or votes._votes._everybody == 1:
            return real(self, member, outcomes)
        rows = numbers_of(votes._first, outcomes.root_ids)
        is_own = rows < np.uint64(votes.up_to)
        is_own[is_own] = ~votes._votes.has_ended(rows[is_own].view(np.int64))
        bits = bits_of(votes._replicas, index)[slots_of(outcomes.root_ids)]
        votes._votes._spoken[rows[is_own].view(np.int64)] &= ~bits[is_own]
        votes._silenced.discard(index)
        merged = real(self, member, outcomes)
        votes._silenced.add(index)
        return merged

    return hear


def _children_first(real: Callable[..., Any]) -> Callable[..., Any]:
    """A task reports what it consumed, and not what it made of it."""

    def take(self: Tally, anchors: Any, produced: Any) -> None:
        real(self, anchors, np.zeros_like(produced))

    return take


MUTANTS = (
    Mutant(
        "child edges without the digest of what their parent became",
        (
            (derive, "digest_parents", _no_digest),
            (branch, "digest_parents", _no_digest),
            (merging, "digest_parents", _no_digest),
        ),
    ),
    Mutant("an init counted twice", ((Applying, "apply", _inits_twice),)),
    Mutant("a section cut in two", ((reports, "_cut", _cut_sections),)),
    Mutant("a report applied in half", ((Applying, "_apply", _half_a_section),)),
    Mutant("an old generation believed", ((Registration, "renewed", _old_generation),)),
    Mutant("a batch done without evidence", ((Run, "_judge", _no_evidence),)),
    Mutant("reports forgotten at once", ((Dedupe, "note", _no_memory),)),
    Mutant("an identity for each attempt", ((Tally, "report", _own_identity),)),
    Mutant("a fail taken for an ack", ((Applying, "_apply", _no_fails),)),
    Mutant("a conflict forgiven", ((Applying, "_spoil", _nothing),)),
    Mutant("outcomes forgotten when they were sent", ((Shard, "watch", _forgotten_when_sent),)),
    Mutant(
        "a vote of a replica that is out counted",
        (
            (PinnedBatch, "left", _left_with_those_out),
            (PinnedBatch, "leave", _left_again),
            (PinnedBatch, "hear", _heard_when_out),
        ),
        "false ACK",
    ),
    Mutant(
        "a vote of a server that a task went on without counted",
        ((SourceSession, "leave_out", _nothing),),
        "false ACK",
    ),
    Mutant("children not in the tree", ((Tally, "take", _children_first),)),
)
