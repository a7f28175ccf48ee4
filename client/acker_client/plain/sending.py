"""Sending: one report of a plain client on its way to the servers that its roots live on.

Decides which servers it may go on without: a source's own client leaves one out of its batches before it does, and
another process waits until the source has said that it did. So no server that missed a fail is ever believed.
"""

from __future__ import annotations

from acker_client.core.backoff import Patience
from acker_client.core.replication import Replication
from acker_client.errors import Draining, UnknownBatch
from acker_client.members.replicas import ask
from acker_client.members.retrying import deliver
from acker_client.members.source_session import LOST_BATCH, WENT_WITHOUT
from acker_client.plain.state import ClientState
from acker_protocol.placement import Member


class Sending:
    """The party that one report is asked of: see :class:`acker_client.members.replicas.Party`."""

    def __init__(self, state: ClientState, replication: Replication) -> None:
        self._state = state
        self._replication = replication

    def send(self, budget_s: float) -> None:
        """Send it until every server that is not out has answered. Raises what stops it."""
        ask(self._state.cluster, self, self._call, budget_s, excuse=self._excuse)

    @property
    def left(self) -> list[Member]:
        return [member for member in self._replication.left if not self._is_out(member)]

    def covers(self, member: Member) -> bool:
        return self._replication.covers(member, lambda pin, other: self._state.is_out(pin, other.id))

    def leave(self, member: Member, why: str) -> None:
        """``member`` is out of those batches of this client's source that the report speaks of, then of the report."""
        source = self._state.source_or_none
        if source is not None:
            for pin in self._replication.pins_of(member):
                if pin.session == source.session:
                    source.leave_out(pin.batch, {member.id}, f"{WENT_WITHOUT}: {why}")
        self._replication.leave(member, why)

    @property
    def concerns_joined(self) -> bool:
        """Whether sources of other processes are to hear of it: they cannot learn who went on without it."""
        return any(pin.session in self._state.joined for pin in self._replication.pins)

    def give_up(self, why: str) -> None:
        """Go on without those that have not answered."""
        for member in self.left:
            self.leave(member, why)

    def _is_out(self, member: Member) -> bool:
        return all(self._state.is_out(pin, member.id) for pin in self._replication.pins_of(member))

    def _excuse(self, member: Member) -> str | None:
        """Why ``member`` may be left out, where sources of other processes decide. Called while it is waited for."""
        if self._state.source_or_none is not None:
            self._state.source_or_none.keep()
        joined = {pin.session for pin in self._replication.pins_of(member)} & self._state.joined.keys()
        if joined:
            self._state.learn(joined)
            return "its source has left it out" if self._is_out(member) else ""
        return None

    def _call(self, member: Member, patience: Patience) -> None:
        state, inits = self._state, self._replication.inits

        def renew(patience: Patience) -> None:
            if state.source_or_none is not None:
                state.source_or_none.renew(member, patience)

        try:
            deliver(state.cluster.calls_to(member), self._replication.deliveries[member], patience, renew)
        except (UnknownBatch, Draining):
            source = state.source_or_none
            batch = None if inits is None or source is None else source.batch(inits.batch)
            if source is None or batch is None or batch.settlement is not None:
                raise
            source.leave_out(batch.request.number, {member.id}, LOST_BATCH)
            self._replication.leave(member, LOST_BATCH)
