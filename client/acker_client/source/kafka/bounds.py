"""Bounds: where the partitions of a source begin and end, as the user gives them. Pure.

A bound is an offset, a time, or a word. It holds for every partition, or a mapping gives one for each partition by its
name (``{"orders/0": 120}``).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from acker_client.source.kafka.names import At, Topics, milliseconds

# An offset, a time, or a word such as "earliest".
Bound = int | datetime | str


@dataclass(frozen=True, slots=True)
class OffsetBounds:
    """The bounds of one option. ``by_partition``: those of named partitions. ``others``: the bound of all others; None
    if the option says nothing about them."""

    option: str
    by_partition: tuple[tuple[At, Bound], ...] = ()
    others: Bound | None = None

    @classmethod
    def of(
        cls, option: str, given: Any, words: tuple[str, ...], topics: Topics, others: Bound | None = None
    ) -> OffsetBounds:
        """Check an option. ``others``: the bound of partitions that a mapping does not name. Raises ``ValueError``."""
        if not isinstance(given, Mapping):
            return cls(option, others=_checked(option, given, words))
        named = {}
        for name, bound in given.items():
            try:
                at = At.named(name)
            except (AttributeError, ValueError):
                raise ValueError(f"{option}: {name!r} is no partition of a topic, like 'orders/0'") from None
            if not topics.fits(at.topic):
                raise ValueError(f"{option}: {name} is not of the topics that this source reads ({topics})")
            named[at] = _checked(f"{option} of {name}", bound, words)
        return cls(option, tuple(named.items()), others)

    def bound_of(self, at: At) -> Bound | None:
        """Return the bound of a partition; None if the option says nothing about it."""
        return dict(self.by_partition).get(at, self.others)

    def names(self, at: At) -> bool:
        """Whether the option has a bound for this partition by its name."""
        return any(at == each for each, _ in self.by_partition)

    def missing_among(self, there: Iterable[At]) -> list[At]:
        """Return the named partitions that do not exist, though their topic does."""
        found = set(there)
        topics = {at.topic for at in found}
        return [at for at, _ in self.by_partition if at.topic in topics and at not in found]


NO_BOUNDS = OffsetBounds("")


def _checked(option: str, given: Any, words: tuple[str, ...]) -> Bound:
    if isinstance(given, datetime):
        milliseconds(given)
        return given
    if isinstance(given, str) and given in words:
        return given
    if isinstance(given, int) and not isinstance(given, bool) and given >= 0:
        return given
    some = "".join(f"{word!r}, " for word in words)
    raise ValueError(f"{option}={given!r}: give {some}an offset, a datetime, or a mapping like {{'orders/0': 120}}")
