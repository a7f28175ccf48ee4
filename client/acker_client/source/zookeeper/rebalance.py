"""Rebalance: what one consumer of a group owns, lets go of and claims, from what it sees. Pure.

Decides from what ZooKeeper shows, never from what was there before: a look may come late, or twice, and the next one
puts right what it did. Whom a partition belongs to is decided by its owner's node alone, which one consumer creates; so
those that see different things may want the same partition, and never both have it.

owned     assigned to this source; it may read and commit them
revoked   it was asked to let go of them; it owns them until it has released them
released  it has; their nodes are to be deleted
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from acker_client.source.zookeeper.assignor import Assignor, Subscriptions, in_order


@dataclass(frozen=True, slots=True)
class GroupSeen:
    """What ZooKeeper shows at one moment. ``owners``: whose name is in a partition's owner node, whatever session made
    it; ``own``: the partitions whose node this session of this consumer made."""

    subscriptions: Subscriptions
    owners: Mapping[str, str]
    own: frozenset[str]


@dataclass(frozen=True, slots=True)
class Decision:
    """What a look comes to. ``lost``, ``revoked``: for the source; ``found``: its own already, as the answer to a claim
    was lost; ``claim``: nobody's, all of which to claim at once; ``surplus``: nodes of its own to delete."""

    lost: tuple[str, ...] = ()
    revoked: tuple[str, ...] = ()
    found: tuple[str, ...] = ()
    claim: tuple[str, ...] = ()
    surplus: tuple[str, ...] = ()


class Rebalance:
    """One consumer's side of it."""

    __slots__ = ("_assign", "_consumer", "_disowned", "_owned", "_released", "_revoked")

    def __init__(self, consumer: str, assign: Assignor) -> None:
        self._consumer, self._assign = consumer, assign
        self._owned: set[str] = set()
        self._revoked: set[str] = set()
        self._released: set[str] = set()
        self._disowned: set[str] = set()

    @property
    def held(self) -> frozenset[str]:
        """What this source may commit: owned, or revoked and not released yet."""
        return frozenset(self._owned | self._revoked)

    @property
    def released(self) -> frozenset[str]:
        """What has been released, and whose nodes are not known to be gone."""
        return frozenset(self._released)

    def look(self, seen: GroupSeen, partitions: Iterable[str]) -> Decision:
        """What to do about what is seen. From then on lost is lost, revoked is revoked, and found is owned.

        ``partitions``: all that this source's input has. What another owns there is as well, though this input has not
        heard of it yet: else the two would deal out different partitions, and some be nobody's."""
        known = set(partitions)
        lost = (self.held - seen.own) | self._disowned
        self._forget(lost)
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
        # What was lost just now is claimed at the next look: the source hears of one change at a time.
        claim = share - self.held - seen.owners.keys() - lost
        return Decision(
            _sorted(lost),
            _sorted(revoked),
            _sorted(found),
            _sorted(claim),
            _sorted((unknown - share) | (lost & seen.own)),
        )

    def claimed(self, partitions: Iterable[str]) -> None:
        """The nodes of these were created."""
        self._owned.update(partitions)

    def release(self, partitions: Iterable[str]) -> None:
        """The source has let go of these; those that it had lost already are passed over."""
        released = set(partitions) & self.held
        self._forget(released)
        self._released |= released

    def deleted(self, partitions: Iterable[str]) -> None:
        """The nodes of these, which were released, are gone."""
        self._released.difference_update(partitions)

    def disown(self, partitions: Iterable[str]) -> None:
        """A commit of these was fenced: they are lost at the next look."""
        self._disowned |= set(partitions) & self.held

    def lose_all(self) -> tuple[str, ...]:
        """The session is gone, and every node of it: nothing that is known here holds any more."""
        lost = _sorted(self.held)
        self._owned, self._revoked, self._released, self._disowned = set(), set(), set(), set()
        return lost

    def _forget(self, partitions: Iterable[str]) -> None:
        for each in (self._owned, self._revoked, self._disowned):
            each.difference_update(partitions)


def _sorted(partitions: Iterable[str]) -> tuple[str, ...]:
    return tuple(in_order(partitions))
