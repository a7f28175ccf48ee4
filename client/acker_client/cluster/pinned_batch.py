"""Pinned batch: one numbered batch of a source at the members that it lives on, from its opening to its end. Pure.

Decides when all that its members will ever say of it has been heard. What they say is merged by its votes.
"""

from __future__ import annotations

import numpy as np

from acker_client.cluster.votes import BatchVotes, Merged
from acker_client.pins import Pin
from acker_protocol.messages import OpenBatch, Outcomes, Settlement, SettleReply
from acker_protocol.placement import Member

NOTHING = Merged()


class PinnedBatch:
    """Not thread-safe: the caller holds a lock around every method."""

    __slots__ = (
        "_cursors",
        "_generations",
        "_reached",
        "is_said",
        "out",
        "pin",
        "request",
        "settlement",
        "votes",
    )

    def __init__(self, pin: Pin, request: OpenBatch) -> None:
        self.pin = pin
        self.request = request
        self.votes = BatchVotes(pin.first, pin.up_to, pin.placement.replicas)
        self.settlement: Settlement | None = None
        # Who is out, for good, and why.
        self.out: dict[Member, str] = {}
        # Under which registration it was opened at each member.
        self._generations: dict[Member, int | None] = {}
        # Where its last outcome stands, and how many it had, at each member that has settled it.
        self._cursors: dict[Member, tuple[int, int]] = {}
        self._reached: set[Member] = set()
        self.is_said = False

    @property
    def members(self) -> tuple[Member, ...]:
        return self.pin.placement.members

    @property
    def left(self) -> list[Member]:
        """The members that are in and have not settled it."""
        return [member for member in self.members if member not in self.out and member not in self._cursors]

    @property
    def is_over(self) -> bool:
        """Whether it was settled, and all that its members had to say of it by then has been heard."""
        is_heard = all(member in self.out or member in self._reached for member in self.members)
        return self.settlement is not None and is_heard

    @property
    def is_ended(self) -> bool:
        """Whether nothing more will be heard of it."""
        return self.is_over and (self.votes.is_over or not self.may_go_on)

    @property
    def may_go_on(self) -> bool:
        """Whether roots of it may be pending after it was settled."""
        return not self.request.held and self.settlement == Settlement.DONE

    def request_for(self, member: Member) -> OpenBatch:
        """What ``member`` is asked to open; all slots where it is the only one."""
        if len(self.members) == 1:
            return self.request
        request = self.request
        slots = self.pin.placement.slots_of(self.members.index(member))
        return OpenBatch(
            request.session, request.number, request.first, request.up_to, request.held, request.limits, slots
        )

    def has_left_out(self, server: int) -> bool:
        """Whether the member with the id ``server`` is out."""
        return any(member.id == server for member in self.out)

    def opened(self, member: Member, generation: int | None) -> None:
        """``member`` has it open, under this registration."""
        self._generations[member] = generation

    def is_opened(self, member: Member) -> bool:
        return member in self._generations

    def covers(self, member: Member) -> bool:
        """Whether other members, which have settled it, hold all slots of ``member``."""
        replicas = self.pin.placement.replicas
        settled = [self.members.index(other) for other in self._cursors if other not in self.out]
        has_other = np.isin(replicas, settled).any(axis=1)
        is_his = (replicas == self.members.index(member)).any(axis=1)
        return bool((has_other | ~is_his).all())

    def was_lost_by(self, member: Member, generation: int | None) -> bool:
        """Whether a member that now has another registration, ``generation``, has lost the batch by it: not where it is
        being opened, as that is done under whatever registration there is."""
        return self.is_opened(member) and self._generations[member] != generation and member not in self.out

    @property
    def not_settled(self) -> list[Member]:
        """The members that have not settled it, as far as is known."""
        return [member for member in self.members if member not in self._cursors]

    def hear(self, member: Member, outcomes: Outcomes) -> Merged:
        """``member`` reports ``outcomes``, some of which may be of other batches."""
        return self.votes.hear(self.members.index(member), outcomes)

    def leave(self, member: Member, why: str) -> Merged:
        """``member`` is out for good."""
        if member in self.out or member not in self.members:
            return NOTHING
        self.out[member] = why
        return self.votes.leave(self.members.index(member), why)

    def settled_at(self, member: Member, reply: SettleReply) -> None:
        """``member`` has settled it."""
        self._cursors[member] = reply.cursor, reply.roots

    def reached(self, member: Member, generation: int | None, cursor: int) -> Merged:
        """All outcomes of ``member`` up to ``cursor`` of this registration have been heard."""
        last, roots = self._cursors.get(member, (cursor + 1, 0))
        if cursor < last or member in self._reached or self._generations.get(member) != generation:
            return NOTHING
        self._reached.add(member)
        if member in self.out or self.may_go_on:
            return NOTHING
        return self.votes.settled(self.members.index(member), roots)
