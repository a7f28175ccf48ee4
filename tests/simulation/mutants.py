"""Mutants: named mistakes, put into the real code while a simulation runs. The oracles have to find each. The docstring
of a function here states its mistake.

A mistake that no seed shows would mean that the simulation does not test that code.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from typing import Any, cast
from unittest import mock

import numpy as np

from acker_client.cluster import votes
from acker_client.cluster.callers import Callers
from acker_client.cluster.conversations import Conversations
from acker_client.cluster.membership import Cluster
from acker_client.cluster.pinned_batch import WENT_WITHOUT, PinnedBatch
from acker_client.cluster.registration import Registration
from acker_client.cluster.source_session import SourceSession
from acker_client.cluster.votes import Votes, bits_of
from acker_client.reports.sending import Sending
from acker_client.rpc.silence import Silence
from acker_client.source.engine.settling import Settling
from acker_client.spark.anchoring import derive
from acker_client.spark.anchoring.tally import Report, Tally
from acker_client.spark.operators import branch, merging
from acker_protocol import reports
from acker_protocol.ids import numbers_of, slot_column
from acker_protocol.messages import (
    FAIL,
    NO_KINDS,
    NO_REASON_IDS,
    Entries,
    Identity,
    ListedMember,
    MemberState,
    Status,
    ViewReply,
)
from acker_service.core import dumping
from acker_service.core.applying import Applying
from acker_service.core.dedupe import Dedupe
from acker_service.core.members import Seen
from acker_service.core.shard import Shard
from acker_service.core.state import State
from tests.simulation import corners, registry
from tests.simulation.case import (
    DIFFERING,
    Case,
    Cut,
    Drains,
    Fault,
    Pause,
    ServerStops,
)

# Takes a real method or property, and returns the mistaken one.
Mistake = Callable[[Any], Any]


@dataclass(frozen=True)
class Mutant:
    """``places``: (owner, name of the replaced attribute, mistake). ``kind``: the kind of violation that the mistake
    has to cause; "" for any. ``matters``: whether the mistake can show in a case. Other cases are skipped to save time.
    ``case``: returns the case of a seed."""

    name: str
    places: Sequence[tuple[Any, str, Mistake]]
    kind: str = ""
    matters: Callable[[Case], bool] = lambda case: True
    case: Callable[[int], Case] = Case.of

    @contextmanager
    def at_work(self) -> Iterator[None]:
        """Put the mistake into the code."""
        with ExitStack() as stack:
            for owner, name, mistake in self.places:
                stack.enter_context(mock.patch.object(owner, name, mistake(getattr(owner, name))))
            yield


def _no_digest(real: Callable[..., Any]) -> Callable[..., Any]:
    return lambda counts, *_, **__: np.zeros(len(counts), np.uint64)


def _inits_twice(real: Callable[..., Any]) -> Callable[..., Any]:
    def apply(self: Applying, message: Any) -> Any:
        applied = real(self, message)
        if message.inits is not None and applied.reply.status == Status.DUPLICATE and len(message.entries):
            # Imitates a server that remembers neither which roots were initialised nor the identity of the report.
            again = Identity(message.identity.high ^ 1, self._state.tick + id(message) % 1_000_003)
            return replace(real(self, replace(message, identity=again, inits=None)), reply=applied.reply)
        return applied

    return apply


def _cut_sections(real: Callable[..., Any]) -> Callable[..., Any]:
    def cut(entries: Entries, message_bytes: int) -> Iterator[Entries]:
        step = max(1, message_bytes // reports.BYTES_AN_ENTRY)
        bounds = [*range(0, len(entries), step), len(entries)]
        return (reports._slice(entries, start, stop) for start, stop in itertools.pairwise(bounds))

    return cut


def _half_a_section(real: Callable[..., Any]) -> Callable[..., Any]:
    """The server remembers a report as applied after the first half of it."""

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
            self.generation, self._lost_because = known, ""
        return True

    return renewed


def _no_evidence(real: Callable[..., Any]) -> Callable[..., Any]:
    def judge_work(self: Settling, batch: Any, error: Any = None) -> None:
        batch.error = None

    return judge_work


def _no_memory(real: Callable[..., Any]) -> Callable[..., Any]:
    return lambda self, *_: None


def _own_identity(real: Callable[..., Any]) -> Callable[..., Any]:
    """Every attempt reports under its own identity."""

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
            source.outbox.confirm(reply.cursor)
        return reply

    return watch


def _left_with_those_out(real: Any) -> property:
    """A batch is also settled on servers that a task left out of its reports, but not on servers that are gone."""
    return property(
        lambda self: [
            member for member in self.members_not_settled if self.out.get(member, WENT_WITHOUT) == WENT_WITHOUT
        ]
    )


def _left_again(real: Callable[..., Any]) -> Callable[..., Any]:
    """A server that was left out and does not answer the settlement is not asked again."""

    def leave(self: PinnedBatch, member: Any, why: str) -> Any:
        if member in self.out:
            self.out[member] = why
        return real(self, member, why)

    return leave


def _heard_when_out(real: Callable[..., Any]) -> Callable[..., Any]:
    """Reports of a replica that was left out count for open roots."""

    def hear(self: PinnedBatch, member: Any, outcomes: Any) -> Any:
        index, its = self.members.index(member), self.votes
        # A batch with one replica has no open roots once that replica is left out.
        if member not in self.out or its._votes._everybody == 1:
            return real(self, member, outcomes)
        rows = numbers_of(its._first, outcomes.root_ids)
        is_own = rows < np.uint64(its.up_to)
        is_own[is_own] = its._votes._endings[rows[is_own].view(np.int64)] == 0
        bits = bits_of(its._replicas, index)[slot_column(outcomes.root_ids)]
        its._votes._spoken[rows[is_own].view(np.int64)] &= ~bits[is_own]
        its._silenced.discard(index)
        merged = real(self, member, outcomes)
        its._silenced.add(index)
        return merged

    return hear


def _children_first(real: Callable[..., Any]) -> Callable[..., Any]:
    """A task reports what it consumed, but not the children."""

    def consume(self: Tally, anchors: Any, produced: Any) -> None:
        real(self, anchors, np.zeros_like(produced))

    return consume


# -- votes, membership, generations, epochs, away, silence


def _first_word_wins(real: Callable[..., Any]) -> Callable[..., Any]:
    """A root ends with the first report of any replica."""

    def count_reports(self: Votes, rows: Any, bits: Any, kinds: Any, outcomes: Any) -> Any:
        self._spoken[rows] = self._everybody
        return real(self, rows, bits, kinds, outcomes)

    return count_reports


def _weakest_wins(real: Any) -> Any:
    """The weakest report decides: a root is not ACKED although another replica said ACKED."""
    endings = real.copy()
    for said in range(1, 256):
        endings[said] = real[said & -said]
    return endings


def _no_loss(real: Callable[..., Any]) -> Callable[..., Any]:
    """A batch ignores that a server has registered its source anew since the batch was opened."""
    return lambda self, member, generation: False


def _old_hello(real: Callable[..., Any]) -> Callable[..., Any]:
    """Clients ignore a changed generation in a ``HelloReply``."""

    def gone(self: Cluster, member: Any, **options: Any) -> str:
        why: str = real(self, member, **options)
        return "" if why == "its server came back without its state" else why

    return gone


def _never_gone(real: Callable[..., Any]) -> Callable[..., Any]:
    return lambda self, member, **options: ""


def _any_view(real: Callable[..., Any]) -> Callable[..., Any]:
    """The view of the first server that answers counts, even if it is old."""

    def asked(self: Cluster) -> ViewReply:
        heard, self._epoch_heard = self._epoch_heard, 1
        try:
            reply: ViewReply = real(self)
        finally:
            self._epoch_heard = heard
        is_older = self._listed is not None and reply.epoch < self._listed.epoch
        return replace(reply, epoch=self._listed.epoch) if is_older and self._listed is not None else reply

    return asked


def _no_epochs(real: Callable[..., Any]) -> Callable[..., Any]:
    """A server that is not in the known view is considered gone, even if the view is old."""

    def gone(self: Cluster, member: Any, **options: Any) -> str:
        if self._listed is None:
            return cast(str, real(self, member, **options))
        known = self._epoch_heard, self._placed_on
        self._epoch_heard = self._placed_on = 0
        try:
            return cast(str, real(self, member, **options))
        finally:
            self._epoch_heard, self._placed_on = known

    return gone


def _all_is_news(real: Callable[..., Any]) -> Callable[..., Any]:
    """The first ``HelloReply`` or view that speaks against a member counts, though it may be older than the member."""
    return lambda self, member, said: True


def _no_ensembles(real: Callable[..., Any]) -> Callable[..., Any]:
    """The epochs of a ZooKeeper ensemble that has lost its data count as older."""
    return lambda ensemble, number: number


def _had_time(real: Callable[..., Any]) -> Callable[..., Any]:
    return lambda self, member, epoch: True


def _nobody_expected(real: Callable[..., Any]) -> Callable[..., Any]:
    """A server that starts, or reconnects to ZooKeeper, considers missing servers gone at once."""
    return lambda self, servers, until_ms: self


def _without(*states: MemberState) -> Mistake:
    """Members of these states are not in the view."""

    def mistake(real: Callable[..., Any]) -> Callable[..., Any]:
        return lambda self, now_ms: tuple(each for each in real(self, now_ms) if each.state not in states)

    return mistake


def _all_active(real: Callable[..., Any]) -> Callable[..., Any]:
    """Members that drain or are away are listed like all others."""
    return lambda self, now_ms: tuple(ListedMember(each.member) for each in real(self, now_ms))


def _hears_others(real: Callable[..., Any]) -> Callable[..., Any]:
    """A process that is cut off itself considers all servers gone."""
    return lambda self, address: True


def _all_silence(real: Callable[..., Any]) -> Callable[..., Any]:
    """Time without calls counts as silence."""
    return lambda self, now, begun_at: self.lasts_s(now)


def _left_anyhow(real: Callable[..., Any]) -> Callable[..., Any]:
    """A process that joined a source leaves out a silent replica that the source itself has not left out."""
    return lambda self, member: None


def _only_its_report(real: Callable[..., Any]) -> Callable[..., Any]:
    """A source's own client leaves a silent replica out of a report, but not out of the batch."""
    return lambda self, member, why: self._replication.drop_member(member, why)


def _same_registration(real: Callable[..., Any]) -> Callable[..., Any]:
    """A source that registers again after its lease expired gets the same generation."""

    def register(self: Shard, request: Any) -> Any:
        self._state.registrations = 0
        return real(self, request)

    return register


def _new_generation(real: Callable[..., Any]) -> Callable[..., Any]:
    """A server that is restarted with its state gets another generation."""

    def load(state: State, parts: Any) -> None:
        real(state, parts)
        state.generation ^= 1

    return load


def _silence_is_enough(real: Callable[..., Any]) -> Callable[..., Any]:
    """A silent server is considered gone, even if a registry lists it."""

    def gone(self: Cluster, member: Any, **options: Any) -> str:
        why: str = real(self, member, **options)
        is_silent = self.callers.silent_s(member.address) >= self.settings.replica_wait_s
        return why or ("it is silent" if is_silent and not self.is_alone else "")

    return gone


def _several(case: Case) -> bool:
    return case.servers > 1


def _registered(case: Case) -> bool:
    return case.servers > 1 and case.cluster == "zookeeper"


def _with(*kinds: type[Fault]) -> Callable[[Case], bool]:
    """Cases of several servers with a registry and a fault of one of these kinds."""
    return lambda case: _registered(case) and any(isinstance(fault, kinds) for fault in case.faults)


def _in_parts(case: Case) -> bool:
    """Cases of Spark in which a message holds few entries."""
    return case.programs is None and case.message_entries > 0


def _torn(case: Case) -> bool:
    """Cases of Spark in which executors reach different replicas, and attempts differ."""
    has_cut = any(isinstance(fault, Cut | Pause) for fault in case.faults)
    return case.programs is None and case.servers > 1 and has_cut and any(map(case.tasks.get, DIFFERING))


MUTANTS = (
    Mutant("the first vote wins", ((Votes, "count_reports", _first_word_wins),), matters=_several),
    Mutant("a negative vote overrides ACKED", ((votes, "_ENDINGS", _weakest_wins),), matters=_several),
    Mutant("a new registration taken for the old one", ((PinnedBatch, "was_lost_by", _no_loss),)),
    Mutant(
        "a generation in a greeting ignored",
        ((Cluster, "gone", _old_hello),),
        "needless task error",
        case=corners.emptied,
    ),
    Mutant("no server is ever gone", ((Cluster, "gone", _never_gone),), matters=_several),
    Mutant(
        "an older view believed",
        ((Cluster, "_asked", _any_view),),
        case=corners.late_registration,
    ),
    Mutant(
        "absence from an older view counted",
        ((Cluster, "gone", _no_epochs),),
        case=corners.newcomer,
    ),
    Mutant("old news counted against a member", ((Cluster, "_is_news_of", _all_is_news),), case=corners.newcomer),
    Mutant(
        "an ensemble without its data taken for an older one",
        ((registry, "epoch_of", _no_ensembles),),
        case=corners.data_lost,
    ),
    Mutant(
        "no time to register in a new ensemble",
        ((Cluster, "_had_time_to_register", _had_time),),
        case=corners.late_registration,
    ),
    Mutant(
        "no wait for trust after a lost session",
        ((Seen, "expecting", _nobody_expected),),
        case=corners.sessions_lost,
    ),
    Mutant(
        "a server that starts takes those it cannot see for gone",
        ((Seen, "expecting", _nobody_expected),),
        case=corners.first_back,
    ),
    Mutant(
        "an away server is treated as gone", ((Seen, "listed", _without(MemberState.AWAY)),), matters=_with(ServerStops)
    ),
    Mutant(
        "a draining server is treated as gone",
        ((Seen, "listed", _without(MemberState.DRAINING)),),
        matters=_with(Drains),
    ),
    Mutant(
        "a draining or away server is treated as active",
        ((Seen, "listed", _all_active),),
        case=corners.rolling,
    ),
    Mutant(
        "an isolated process treats all servers as gone",
        ((Callers, "hears_others_than", _hears_others),),
        case=corners.silence,
    ),
    Mutant(
        "time without a question counted as silence", ((Silence, "shown_s", _all_silence),), case=corners.seldom_asked
    ),
    Mutant(
        "silence counted where a registry lists the server",
        ((Cluster, "gone", _silence_is_enough),),
        matters=_registered,
    ),
    Mutant(
        "a silent replica left out of a joined source",
        ((Sending, "_excuse", _left_anyhow),),
        "false ACK",
        case=corners.left_out,
    ),
    Mutant(
        "a replica left out of a report alone", ((Sending, "drop_member", _only_its_report),), case=corners.unheard_fail
    ),
    Mutant("a lease that ran out unnoticed", ((Shard, "_register", _same_registration),)),
    Mutant(
        "leases not renewed while a flush waits",
        ((Conversations, "keep_leases", _nothing),),
        case=corners.long_flush,
    ),
    Mutant("another generation for a restored state", ((dumping, "load", _new_generation),)),
    Mutant(
        "child edges without the digest of what their parent became",
        (
            (derive, "digest_parents", _no_digest),
            (branch, "digest_parents", _no_digest),
            (merging, "digest_parents", _no_digest),
        ),
        case=corners.made_anew,
    ),
    Mutant("an init counted twice", ((Applying, "apply", _inits_twice),)),
    Mutant("a section cut in two", ((reports, "_cut_entries", _cut_sections),), matters=_in_parts),
    Mutant("a report applied in half", ((Applying, "_apply", _half_a_section),)),
    Mutant("an old generation believed", ((Registration, "renewed", _old_generation),)),
    Mutant("a batch done without evidence", ((Settling, "judge_work", _no_evidence),)),
    Mutant("reports forgotten at once", ((Dedupe, "record_applied", _no_memory),)),
    Mutant("an identity for each attempt", ((Tally, "report", _own_identity),)),
    Mutant("a fail taken for an ack", ((Applying, "_apply", _no_fails),)),
    Mutant("a conflict forgiven", ((Applying, "_block_acks", _nothing),)),
    Mutant("outcomes forgotten when they were sent", ((Shard, "watch", _forgotten_when_sent),)),
    Mutant(
        "votes of left-out replicas count",
        (
            (PinnedBatch, "members_to_settle", _left_with_those_out),
            (PinnedBatch, "leave_out_member", _left_again),
            (PinnedBatch, "count_outcomes", _heard_when_out),
        ),
        "false ACK",
        _torn,
    ),
    Mutant(
        "votes of servers that a task left out count",
        ((SourceSession, "leave_out_servers", _nothing),),
        "false ACK",
        _torn,
    ),
    Mutant("children not in the tree", ((Tally, "consume", _children_first),)),
)
