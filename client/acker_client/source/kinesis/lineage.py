"""Kinesis's lineage: which shards there are, what came of what, and where one begins that nobody knows yet. Pure."""

from __future__ import annotations

from collections.abc import Iterable

from acker_client.source.kinesis.connection import LATEST, TRIM_HORIZON, Begin, ListedShard


class Lineage:
    """The shards of a stream as they were listed last. ``first``: where those begin of which no checkpoint knows."""

    def __init__(self, first: Begin) -> None:
        self._first = first
        self.shards: dict[str, ListedShard] = {}
        # Those that were there when the source came, which "latest" is about.
        self._old: frozenset[str] = frozenset()

    def list(self, shards: Iterable[ListedShard]) -> list[ListedShard]:
        """Take over a new listing; returns the shards that are new in it."""
        before, self.shards = self.shards, {shard.name: shard for shard in shards}
        return [shard for name, shard in self.shards.items() if name not in before]

    def come(self) -> None:
        """The source comes now: what is listed was there before it."""
        self._old = frozenset(self.shards)

    def know(self, names: Iterable[str]) -> None:
        """A checkpoint knows these, so that what came of them is read from its beginning."""
        self._old -= self._descendants(names)

    def first_of(self, name: str) -> Begin:
        """Where a shard begins of which nothing was read yet: what came about later is read from its beginning."""
        return TRIM_HORIZON if self._first == LATEST and name not in self._old else self._first

    def is_skipped(self, name: str) -> bool:
        """Whether a shard was closed when a source came that wants the newest only."""
        return self.first_of(name) == LATEST and self.shards[name].is_closed

    def is_closed(self, name: str) -> bool:
        return name in self.shards and self.shards[name].is_closed

    def ancestors(self, name: str) -> set[str]:
        """The shards that this one came of, as far back as they are listed."""
        found: set[str] = set()
        waiting = [name]
        while waiting:
            shard = self.shards.get(waiting.pop())
            parents = set(shard.parents if shard else ()) - found
            found |= parents
            waiting += parents
        return found

    def _descendants(self, names: Iterable[str]) -> set[str]:
        """Shards that came of these, and these themselves."""
        found = set(names)
        while more := {name for name, shard in self.shards.items() if found & set(shard.parents)} - found:
            found |= more
        return found
