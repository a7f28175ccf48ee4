"""The shards of a stream, their parents and children, and where to begin in a new shard. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime

from acker_client.source.kinesis.connection import LATEST, TRIM_HORIZON, Begin, ListedShard


class Lineage:
    """The shards of a stream by the last listing. ``first``: where to begin in a shard that no checkpoint contains."""

    def __init__(self, first: Begin) -> None:
        self._first = first
        self.shards: dict[str, ListedShard] = {}
        # The shards that existed when the source started. "latest" applies only to these.
        self._at_start: frozenset[str] = frozenset()
        # When the source first started with "latest", as its checkpoint says; None if no checkpoint says it.
        self.began: datetime | None = None

    def list(self, shards: Iterable[ListedShard]) -> list[ListedShard]:
        """Replace the shards with a new listing, and return the shards that it adds."""
        before, self.shards = self.shards, {shard.name: shard for shard in shards}
        return [shard for name, shard in self.shards.items() if name not in before]

    def note_start(self) -> None:
        """Note that the source starts now, so that "latest" applies to the listed shards."""
        self._at_start = frozenset(self.shards)

    def add_known(self, names: Iterable[str]) -> None:
        """Add shards that a checkpoint contains. Their descendants are then read from the beginning."""
        self._at_start -= self._descendants(names)

    def note_began(self, times: Iterable[datetime | None]) -> None:
        """Note when the source first started, by the ``times`` in a checkpoint. The earliest one counts."""
        self.began = min((each for each in (self.began, *times) if each is not None), default=None)

    def first_of(self, name: str) -> Begin:
        """Return where to begin in an unread shard. Shards that were created later are read from the beginning.

        With "latest" and a checkpoint that does not contain the shard, "now" would skip what came to it since the
        source first started.
        """
        if self._first != LATEST:
            return self._first
        if name not in self._at_start:
            return TRIM_HORIZON
        return LATEST if self.began is None else Begin.since(self.began)

    def began_with(self, now: datetime) -> datetime | None:
        """Return the time for the checkpoint at which a source with "latest" first started. ``now``: this start."""
        return now if self.began is None and self._first == LATEST else self.began

    def is_skipped(self, name: str) -> bool:
        """Whether a shard was already closed when a source with "latest" started, so that it has nothing to read."""
        return self.first_of(name) == LATEST and self.shards[name].is_closed

    def is_closed(self, name: str) -> bool:
        return name in self.shards and self.shards[name].is_closed

    def ancestors(self, name: str) -> set[str]:
        """Return the parents of a shard, their parents and so on, as far back as they are listed."""
        found: set[str] = set()
        waiting = [name]
        while waiting:
            shard = self.shards.get(waiting.pop())
            parents = set(shard.parents if shard else ()) - found
            found |= parents
            waiting += parents
        return found

    def _descendants(self, names: Iterable[str]) -> set[str]:
        """Return these shards and all shards that descend from them."""
        found = set(names)
        while more := {name for name, shard in self.shards.items() if found & set(shard.parents)} - found:
            found |= more
        return found
