"""Sending: deliver one report of a plain client to the servers that its roots live on.

Decides which servers the client may go on without. For roots of its own source, the client first leaves the server out
of the source's batches. For roots of another source, it waits until that source has left the server out. So an ACKED
of a server that missed a fail never counts.
"""

from __future__ import annotations

from acker_client.backoff import Patience
from acker_client.cluster.pinned_batch import LOST_BATCH, WENT_WITHOUT
from acker_client.cluster.replicas import ask_members
from acker_client.errors import Closed, Draining, UnknownBatch
from acker_client.reports.replication import Replication
from acker_client.reports.state import ClientState
from acker_client.rpc.retrying import deliver
from acker_protocol.placement import Member


class Sending:
    """The sending of one report to its members: see :class:`acker_client.cluster.replicas.Party`."""

    def __init__(self, state: ClientState, replication: Replication) -> None:
        self._state = state
        self._replication = replication

    def send_report(self, budget_s: float) -> None:
        """Send the report until every server that was not left out has answered."""
        ask_members(self._state.cluster, self, self._report_to_member, budget_s, excuse=self._excuse)

    @property
    def unanswered_members(self) -> list[Member]:
        return [member for member in self._replication.unanswered_members if not self._is_out(member)]

    def can_do_without(self, member: Member) -> bool:
        return self._replication.can_do_without(member, lambda pin, other: self._state.is_out(pin, other.id))

    def drop_member(self, member: Member, why: str) -> None:
        """Leave ``member`` out of the reported batches of this client's source, and then out of the report."""
        source = self._state.source_or_none
        if source is not None:
            for pin in self._replication.pins_of(member):
                if pin.session == source.session:
                    source.leave_out_servers(pin.batch, {member.id}, f"{WENT_WITHOUT}: {why}")
        self._replication.drop_member(member, why)

    @property
    def has_to_arrive(self) -> bool:
        """Whether a root might be falsely ACKED if the report did not arrive. This is possible only if the root's
        source runs in another process, because that source cannot learn that a server was left out."""
        source, pins = self._state.source_or_none, self._replication.pins
        if any(pin.session in self._state.others.joined for pin in pins):
            return True
        is_own = source is not None and all(pin.session == source.session for pin in pins)
        return not is_own and self._replication.has_bare_fail

    def drop_unanswered(self, why: str) -> None:
        """Leave out every server that has not answered."""
        for member in self.unanswered_members:
            self.drop_member(member, why)

    def _is_out(self, member: Member) -> bool:
        return all(self._state.is_out(pin, member.id) for pin in self._replication.pins_of(member))

    def _excuse(self, member: Member) -> str | None:
        """Return why ``member`` may be left out. Return "" while a joined source still counts on it. Return None if
        only this client's own source does, so that the usual rules apply. Also renews this client's leases, and asks
        for news of joined sources."""
        if self._state.source_or_none is not None:
            self._state.source_or_none.keep_leases()
        joined = [pin for pin in self._replication.pins_of(member) if pin.session in self._state.others.joined]
        if joined:
            self._state.others.learn({pin.session for pin in joined})
        if not all(self._state.is_out(pin, member.id) for pin in joined):
            return ""
        return "its source has left it out" if self._is_out(member) else None

    def _report_to_member(self, member: Member, patience: Patience) -> None:
        state, inits = self._state, self._replication.inits

        def renew_lease(patience: Patience) -> None:
            source = state.source_or_none
            if inits is not None and (source is None or source.session != inits.session):
                raise Closed("the source of these inits was closed meanwhile")
            if source is not None:
                source.renew_lease(member, patience)

        try:
            deliver(state.cluster.calls_to(member), self._replication.deliveries[member], patience, renew_lease)
        except Closed as error:
            if state.is_closed:
                raise
            # The roots are over, so no server has to hear of them.
            self._replication.drop_member(member, str(error))
        except (UnknownBatch, Draining):
            source = state.source_or_none
            if source is None or inits is None or not source.is_unsettled(inits.batch):
                raise
            source.leave_out_servers(inits.batch, {member.id}, LOST_BATCH)
            self._replication.drop_member(member, LOST_BATCH)
