"""Rebalance: which partitions one consumer of a group owns, releases and claims, by ZooKeeper's content. Pure.

Decides only from ZooKeeper's current content. A decision may be late, or repeated; the next one corrects it. Only a
partition's owner node says which consumer owns it, and only one consumer can create that node. So two consumers that
see different states may both claim a partition, but never both own it.

owned     partitions that are assigned to this source, which may read and commit them
revoked   partitions that this source has to release, and may commit until then
released  partitions that this source has released, and whose nodes have to be deleted
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from acker_client.source.zookeeper.assignor import Assignor, Subscriptions, in_order


@dataclass(frozen=True, slots=True)
class GroupSeen:
    """ZooKeeper's content at one moment. ``owners``: the consumer that each partition's owner node names, whichever
    session created the node. ``own``: partitions whose node was created by this consumer in its current session."""

    subscriptions: Subscriptions
    owners: Mapping[str, str]
    own: frozenset[str]


@dataclass(frozen=True, slots=True)
class Decision:
    """The next steps. ``lost``, ``revoked``: partitions to report to the source. ``found``: partitions that an earlier
    claim got although its answer was lost; owned from now on. ``claim``: free partitions to claim in one transaction.
    ``surplus``: own nodes to delete."""

    lost: tuple[str, ...] = ()
    revoked: tuple[str, ...] = ()
    found: tuple[str, ...] = ()
    claim: tuple[str, ...] = ()
    surplus: tuple[str, ...] = ()


class Rebalance:
    """The partitions of one consumer."""

    __slots__ = ("_assign", "_consumer", "_disowned", "_owned", "_released", "_revoked")

    def __init__(self, consumer: str, assign: Assignor) -> None:
        self._consumer, self._assign = consumer, assign
        self._owned: set[str] = set()
        self._revoked: set[str] = set()
        self._released: set[str] = set()
        self._disowned: set[str] = set()

    @property
    def held(self) -> frozenset[str]:
        """Partitions that this source may commit: owned, or revoked and not released yet."""
        return frozenset(self._owned | self._revoked)

    @property
    def released(self) -> frozenset[str]:
        """Released partitions whose nodes may still exist."""
        return frozenset(self._released)

    def decide(self, seen: GroupSeen, partitions: Iterable[str]) -> Decision:
        """Return the next steps, and update the state: drop lost partitions, mark revoked ones, and own found ones.

        ``partitions``: all partitions of this source's input. Partitions that others own count too, even if this input
        has not found them yet. Otherwise consumers would share out different sets, and some partitions would stay
        without an owner."""
        known = set(partitions)
        lost = (self.held - seen.own) | self._disowned
        self._forget_partitions(lost)
        self._released &= seen.own
        if self._consumer not in seen.subscriptions:
            return Decision(lost=_sorted(lost))
        others = {partition for partition, owner in seen.owners.items() if owner != self._consumer}
        share = set(self._assign(known | others, seen.subscriptions, seen.owners)[self._consumer]) & known
        revoked = self._owned - share
        self._owned -= revoked
        self._revoked |= revoked
        unknown = seen.own - self.held - self._released - lost
        found = unknown & share
        self._owned |= found
        # A ``Handover`` names a partition in one list only, so lost partitions are claimed in the next decision.
        claim = share - self.held - seen.owners.keys() - lost
        return Decision(
            _sorted(lost),
            _sorted(revoked),
            _sorted(found),
            _sorted(claim),
            _sorted((unknown - share) | (lost & seen.own)),
        )

    def claimed(self, partitions: Iterable[str]) -> None:
        """Note that the nodes of these partitions were created."""
        self._owned.update(partitions)

    def release_partitions(self, partitions: Iterable[str]) -> None:
        """Mark partitions as released, after the source has stopped using them. Ignores partitions that are lost."""
        released = set(partitions) & self.held
        self._forget_partitions(released)
        self._released |= released

    def deleted(self, partitions: Iterable[str]) -> None:
        """Note that the nodes of these released partitions are deleted."""
        self._released.difference_update(partitions)

    def disown(self, partitions: Iterable[str]) -> None:
        """Report these partitions as lost in the next decision, because a commit of them was fenced."""
        self._disowned |= set(partitions) & self.held

    def lose_all(self) -> tuple[str, ...]:
        """Drop all partitions, because the session and its nodes are gone. Returns the partitions that were held."""
        lost = _sorted(self.held)
        self._owned, self._revoked, self._released, self._disowned = set(), set(), set(), set()
        return lost

    def _forget_partitions(self, partitions: Iterable[str]) -> None:
        for each in (self._owned, self._revoked, self._disowned):
            each.difference_update(partitions)


def _sorted(partitions: Iterable[str]) -> tuple[str, ...]:
    return tuple(in_order(partitions))
