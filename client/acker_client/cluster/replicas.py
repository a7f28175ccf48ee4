"""Replicas: the same call to several members at once.

Decides how long to wait for a member that delays the others. ``votes`` decides what a missing answer means for a root:
a member that missed something votes no, and never a false yes.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from functools import partial
from typing import Protocol

from acker_client.backoff import Patience
from acker_client.cluster.membership import Cluster
from acker_client.errors import RETRYABLE, Unavailable, UnknownBatch
from acker_protocol.placement import Member

log = logging.getLogger("acker_client")

# Interval of checking whether members that have not answered are gone.
LOOK_S = 0.25
# The view is refreshed when a call takes longer than this.
REFRESH_S = 1.0

# Errors after which the call may succeed at another member.
_HERE_ONLY = (*RETRYABLE, UnknownBatch)


# Returns the reason to leave out a member that has not answered, "" to keep waiting, None to apply the usual rules.
Excuse = Callable[[Member], str | None]


class Party(Protocol):
    """A request to several members."""

    @property
    def unanswered_members(self) -> Sequence[Member]:
        """The members that were not left out and have not answered."""
        ...

    def can_do_without(self, member: Member) -> bool:
        """Whether the answers of other members make the answer of ``member`` unnecessary."""
        ...

    def drop_member(self, member: Member, why: str) -> None:
        """Go on without ``member``."""
        ...


def ask_members(
    cluster: Cluster,
    party: Party,
    call: Callable[[Member, Patience], None],
    budget_s: float | None = None,
    *,
    may_leave: bool = True,
    excuse: Excuse = lambda _: None,
) -> None:
    """Make ``call`` to every unanswered member, and wait until each has answered or was left out.

    Leaves a member out if it is gone. Also leaves it out if the answers of others cover its own, and it is silent or
    raises a retryable error or ``UnknownBatch``. Without ``may_leave``, only a member that is gone for all clients is
    left out: silence towards this client is not enough. Otherwise clients could leave out different members, and some
    roots would have no replica. Always waits for a member that is away for a planned restart.

    ``excuse`` overrides these rules. Raises the error of a call to a member that was not left out.
    """
    members = list(party.unanswered_members)
    if len(members) == 1 and cluster.is_alone:
        # Nothing can be left out. The excuse is asked all the same, as callers renew leases in it.
        call(members[0], cluster.patience(budget_s, meanwhile=partial(excuse, members[0])))
        return
    asking = _Asking(cluster, party, excuse, may_leave=may_leave)
    for member in members:
        asking.start_call(call, member, cluster.patience(budget_s))
    try:
        asking.await_all()
    finally:
        asking.end_deadlines()
    for error in asking.errors.values():
        raise error


class _Asking:
    """The calls under way."""

    def __init__(self, cluster: Cluster, party: Party, excuse: Excuse, *, may_leave: bool) -> None:
        self._cluster = cluster
        self._party = party
        self._excuse = excuse
        self._may_leave = may_leave
        self._since = cluster.clock()
        # When a member was last seen to be away. The wait for it starts then.
        self._away_at: dict[Member, float] = {}
        self._calls: dict[Member, Future[None]] = {}
        self._patiences: dict[Member, Patience] = {}
        self.errors: dict[Member, BaseException] = {}

    def start_call(self, call: Callable[[Member, Patience], None], member: Member, patience: Patience) -> None:
        def run() -> None:
            try:
                call(member, patience)
            except UnknownBatch:
                # The server may have lost its state since the last greeting. A new greeting shows it.
                self._cluster.greet_again(member)
                raise

        self._patiences[member] = patience
        self._calls[member] = self._cluster.side_by_side.start(run)

    def await_all(self) -> None:
        while self._calls:
            self._cluster.side_by_side.wait(list(self._calls.values()), LOOK_S)
            for member in [member for member, future in self._calls.items() if future.done()]:
                self._note_end(member, self._calls.pop(member).exception())
            if self._calls or self.errors:
                self._drop_failed_members()

    def end_deadlines(self) -> None:
        """End the deadlines of the calls that are still running, so that they stop on their own."""
        for member in self._calls:
            self._patiences[member].deadline.expire()

    def _note_end(self, member: Member, error: BaseException | None) -> None:
        if error is None:
            self._cluster.note_slow(member, is_slow=False)
            return
        self.errors[member] = error
        if not isinstance(error, _HERE_ONLY):
            raise error

    def _drop_failed_members(self) -> None:
        waited_s = self._cluster.clock() - self._since
        if waited_s >= REFRESH_S:
            self._cluster.refresh()
        # A member that has answered by now is present, however long the answer took.
        for member in [*self.errors, *(member for member, call in self._calls.items() if not call.done())]:
            why = self._excuse(member)
            if why is None:
                gone = self._cluster.gone(member, is_silence_enough=self._may_leave)
                why = gone or self._why_dispensable(member)
            if why:
                self._drop_member(member, why)

    def _why_dispensable(self, member: Member) -> str:
        """Return why not to wait for ``member`` any longer; "" to go on waiting."""
        now = self._cluster.clock()
        if self._cluster.is_away(member):
            self._away_at[member] = now
            return ""
        error, waited_s = self.errors.get(member), now - self._away_at.get(member, self._since)
        if error is None and waited_s < self._cluster.replica_wait_s(member):
            return ""
        if not self._may_leave or not self._party.can_do_without(member):
            return ""
        return f"no answer for {waited_s:.0f} s" if error is None else str(error)

    def _drop_member(self, member: Member, why: str) -> None:
        log.warning("going on without the server at %s: %s", member.address, why)
        self._party.drop_member(member, why)
        error, call = self.errors.pop(member, None), self._calls.pop(member, None)
        if call is not None:
            self._patiences[member].deadline.expire()
        if call is not None or isinstance(error, Unavailable):
            self._cluster.note_slow(member, is_slow=True)
