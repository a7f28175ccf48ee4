"""Replication: one report on its way to all replicas of its sections. Pure.

Decides which member gets what of it, and which sections have been answered by somebody. Who is out, and why, is the
caller's to say.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np

from acker_client.pins import Mask, Pin, Pins, Share, pins_for, shares_of
from acker_client.rpc.delivery import Delivery, ReportResult
from acker_protocol.messages import FAIL, Entries, Identity, InitScope
from acker_protocol.placement import Member
from acker_protocol.reports import digest

# Whether a member is out of the batch of a pin: its answers do not count there.
IsOut = Callable[[Pin, Member], bool]


class Replication:
    """The deliveries of one report, one a member; each of them may be in a thread of its own."""

    __slots__ = ("_shares", "deliveries", "has_bare_fail", "identity", "inits", "out", "pins", "roots")

    def __init__(self, identity: Identity, entries: Entries, inits: InitScope | None, pins: Sequence[Pin]) -> None:
        """Raises :class:`~acker_client.pins.NowhereToSend` where no pin says where its roots live."""
        self.identity = identity
        self.inits = inits
        self.roots = len(entries)
        self.has_bare_fail = has_bare_fail(entries)
        self.pins = pins_for(pins, inits)
        whole = digest(entries)
        self._shares: dict[Member, Share] = {share.member: share for share in shares_of(pins, entries, inits)}
        self.deliveries = {
            member: Delivery(identity, share.entries, inits, report_digest=whole)
            for member, share in self._shares.items()
        }
        # Who is out for this report, and why.
        self.out: dict[Member, str] = {}

    @property
    def unanswered(self) -> list[Member]:
        """The members that are in and have not answered all of it."""
        return [member for member, delivery in self.deliveries.items() if not delivery.done and member not in self.out]

    @property
    def result(self) -> ReportResult:
        """The counts so far, in sections: one that went to two replicas counts twice, one that nobody has is
        ``unreported``."""
        counts = sum((delivery.result for delivery in self.deliveries.values()), ReportResult())
        return replace(counts, unreported=self._missing(), without=frozenset(member.id for member in self.out))

    def can_do_without(self, member: Member, is_out: IsOut = lambda pin, member: False) -> bool:
        """Whether other members have answered all sections of ``member``, each of a batch that the member is not out
        of: ``is_out`` says so."""
        return bool((self._answered(is_out) | ~self._shares[member].held).all())

    def drop_member(self, member: Member, why: str) -> None:
        """``member`` is out for this report."""
        self.out[member] = why

    def pins_of(self, member: Member) -> Pins:
        """The pins of the roots that ``member`` is to get something of."""
        return self._shares[member].pins

    def _answered(self, is_out: IsOut = lambda pin, member: False) -> Mask:
        """bool[pins, 1024]: the sections that some member has answered that is not out of the batch."""
        held = [
            self._shares[member].held & ~np.array([[is_out(pin, member)] for pin in self.pins])
            for member, delivery in self.deliveries.items()
            if delivery.done
        ]
        shape = next(iter(self._shares.values())).held.shape
        found: Mask = np.logical_or.reduce(held) if held else np.zeros(shape, np.bool_)
        return found

    def _missing(self) -> int:
        if len(self.deliveries) == 1:
            return next(iter(self.deliveries.values())).result.unreported
        if all(delivery.done for delivery in self.deliveries.values()):
            return 0
        wanted: Mask = np.logical_or.reduce([share.held for share in self._shares.values()])
        return int(np.count_nonzero(wanted & ~self._answered()))


def has_bare_fail(entries: Entries) -> bool:
    """Whether there is a fail without the edge of a record among updates. Without it the root could still be ACKED, if
    others ack its edges; a fail with an edge leaves that one open."""
    return bool(len(entries.kinds) and np.any((entries.kinds & FAIL != 0) & (entries.ack_vals == 0)))
