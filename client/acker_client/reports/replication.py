"""Replication: the delivery of one report to all replicas of its sections. Pure.

Decides which member gets which part of the report, and which sections are answered. The caller decides which members
are left out, and why.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np

from acker_client.pins import Mask, Pin, Pins, Share, pins_for, shares_of
from acker_client.rpc.delivery import Delivery, ReportResult
from acker_protocol.messages import Entries, Identity, InitScope
from acker_protocol.placement import Member
from acker_protocol.reports import bare_fails, digest

# Whether a member was left out of the batch of a pin, so that the member's answers do not count for that batch.
IsOut = Callable[[Pin, Member], bool]


class Replication:
    """The deliveries of one report, one for each member. Each may run in its own thread."""

    __slots__ = ("_shares", "deliveries", "has_bare_fail", "identity", "inits", "out", "pins", "roots")

    def __init__(self, identity: Identity, entries: Entries, inits: InitScope | None, pins: Sequence[Pin]) -> None:
        """Raises :class:`~acker_client.pins.NowhereToSend` if there is no pin that says where the roots live."""
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
        # The members that were left out of this report, and why.
        self.out: dict[Member, str] = {}

    @property
    def unanswered_members(self) -> list[Member]:
        """The members that were not left out and have not answered all of their part."""
        return [member for member, delivery in self.deliveries.items() if not delivery.done and member not in self.out]

    @property
    def result(self) -> ReportResult:
        """The counts so far, in sections. A section that two replicas have answered counts twice. A section that no
        replica has answered is ``unreported``."""
        counts = sum((delivery.result for delivery in self.deliveries.values()), ReportResult())
        return replace(counts, unreported=self._missing(), without=frozenset(member.id for member in self.out))

    def can_do_without(self, member: Member, is_out: IsOut = lambda pin, member: False) -> bool:
        """Whether other members have answered all sections of ``member``. If ``is_out(pin, other)``, the
        answers of ``other`` do not count for the batch of ``pin``."""
        return bool((self._answered(is_out) | ~self._shares[member].held).all())

    def drop_member(self, member: Member, why: str) -> None:
        """Leave ``member`` out of this report."""
        self.out[member] = why

    def pins_of(self, member: Member) -> Pins:
        """Return the pins of the batches whose sections ``member`` gets."""
        return self._shares[member].pins

    def _answered(self, is_out: IsOut = lambda pin, member: False) -> Mask:
        """Return bool[pins, 1024]: the sections answered by some member that was not left out of the batch."""
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
    """Whether one of the updates is a fail without an edge."""
    return bool(bare_fails(entries).any())
