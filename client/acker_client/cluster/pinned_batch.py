"""Pinned batch: one numbered batch of a source on the servers that hold it, from its opening to its end. Pure.

Decides when everything that its members will ever report has arrived. ``votes`` merges their reports.
"""

from __future__ import annotations

import numpy as np

from acker_client.cluster.votes import BatchVotes, Merged
from acker_client.pins import Pin
from acker_protocol.messages import OpenBatch, Outcomes, Settlement, SettleReply
from acker_protocol.placement import Member

# Reasons for leaving a member out of a batch. Roots that are LOST because of it have the same reason.
LOST_BATCH = "the server lost the batch"
WENT_WITHOUT = "a task went on without it"

NOTHING = Merged()


class PinnedBatch:
    """Not thread-safe: the caller holds the source's lock around every method.

    ``settlement``: how the batch is to end; None while it is open. ``out``: the members that were left out for good,
    and why.
    """

    __slots__ = ("_cursors", "_generations", "_heard_all", "_is_named", "out", "pin", "request", "settlement", "votes")

    def __init__(self, pin: Pin, request: OpenBatch) -> None:
        self.pin = pin
        self.request = request
        self.votes = BatchVotes(pin.first, pin.up_to, pin.placement.replicas)
        self.settlement: Settlement | None = None
        self.out: dict[Member, str] = {}
        # Per member: the generation of the registration under which the batch was opened there.
        self._generations: dict[Member, int | None] = {}
        # Per member that has settled the batch: the cursor of its last outcome, and the number of its outcomes.
        self._cursors: dict[Member, tuple[int, int]] = {}
        # The settled members whose outcomes have all arrived.
        self._heard_all: set[Member] = set()
        # Whether a watch has named the batch as settled.
        self._is_named = False

    @property
    def number(self) -> int:
        return self.request.number

    @property
    def members(self) -> tuple[Member, ...]:
        return self.pin.placement.members

    @property
    def members_to_settle(self) -> list[Member]:
        """The members that were not left out and have not settled the batch."""
        return [member for member in self.members if member not in self.out and member not in self._cursors]

    @property
    def members_not_settled(self) -> list[Member]:
        """The members that are not known to have settled the batch, including those that were left out."""
        return [member for member in self.members if member not in self._cursors]

    @property
    def is_over(self) -> bool:
        """Whether the batch was settled, and all outcomes that its members had by then have arrived."""
        is_heard = all(member in self.out or member in self._heard_all for member in self.members)
        return self.settlement is not None and is_heard

    @property
    def is_ended(self) -> bool:
        """Whether no more outcomes of the batch will come."""
        return self.is_over and (self.votes.is_over or not self.may_go_on)

    @property
    def may_go_on(self) -> bool:
        """Whether roots of the batch may still be pending after it was settled."""
        return not self.request.held and self.settlement == Settlement.DONE

    def request_for(self, member: Member) -> OpenBatch:
        """Return the request that opens the batch at ``member``. It names no slots if the batch has only one member."""
        if len(self.members) == 1:
            return self.request
        request = self.request
        slots = self.pin.placement.slots_of(self.members.index(member))
        return OpenBatch(
            request.session, request.number, request.first, request.up_to, request.held, request.limits, slots
        )

    def has_left_out(self, server: int) -> bool:
        """Whether the member with the id ``server`` was left out."""
        return any(member.id == server for member in self.out)

    def opened_on(self, member: Member, generation: int | None) -> None:
        """Note that ``member`` has opened the batch under the registration of this ``generation``."""
        self._generations[member] = generation

    def is_opened_on(self, member: Member) -> bool:
        return member in self._generations

    def is_settled_without(self, member: Member) -> bool:
        """Whether each slot of ``member`` has another replica that has settled the batch and was not left out."""
        replicas = self.pin.placement.replicas
        settled = [self.members.index(other) for other in self._cursors if other not in self.out]
        has_other = np.isin(replicas, settled).any(axis=1)
        is_its = (replicas == self.members.index(member)).any(axis=1)
        return bool((has_other | ~is_its).all())

    def was_lost_by(self, member: Member, generation: int | None) -> bool:
        """Whether ``member``, whose registration now has this ``generation``, has lost the batch. A member where the
        batch is still being opened has not lost it: it opens the batch under whatever registration it has then."""
        return self.is_opened_on(member) and self._generations[member] != generation and member not in self.out

    def count_outcomes(self, member: Member, outcomes: Outcomes) -> Merged:
        """Count ``outcomes`` that ``member`` reports. Some of them may be of other batches."""
        return self.votes.hear(self.members.index(member), outcomes)

    def leave_out_member(self, member: Member, why: str) -> Merged:
        """Leave ``member`` out for good: nothing that it reports from now on counts."""
        if member in self.out or member not in self.members:
            return NOTHING
        self.out[member] = why
        return self.votes.leave(self.members.index(member), why)

    def end_as(self, settlement: Settlement) -> None:
        """Note how the batch is to be settled, before its members are asked."""
        self.settlement = settlement

    def settled_on(self, member: Member, reply: SettleReply) -> None:
        self._cursors[member] = reply.cursor, reply.roots

    def heard_up_to(self, member: Member, generation: int | None, cursor: int) -> Merged:
        """Note that all outcomes of ``member`` under the registration ``generation`` have arrived, up to ``cursor``."""
        last, roots = self._cursors.get(member, (cursor + 1, 0))
        if cursor < last or member in self._heard_all or self._generations.get(member) != generation:
            return NOTHING
        self._heard_all.add(member)
        if member in self.out or self.may_go_on:
            return NOTHING
        return self.votes.settled(self.members.index(member), roots)

    def take_settled(self) -> bool:
        """Whether the next watch names the batch as settled: the batch is over, and no watch has named it yet."""
        is_news = self.is_over and not self._is_named
        self._is_named = self._is_named or is_news
        return is_news
