"""Reading range: the offsets for which ``start``, ``first_poll`` and ``stop`` stand in each partition."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import datetime

from acker_client.source.errors import SourceError
from acker_client.source.kafka.bounds import NO_BOUNDS, Bound, OffsetBounds
from acker_client.source.kafka.broker import Broker
from acker_client.source.kafka.names import At, milliseconds


class ReadingRange:
    """The user's options about where reading begins and ends. ``broker``: returns the one to ask for times.

    In all methods, ``low`` and ``high`` are the beginnings and ends of the logs.
    """

    def __init__(
        self, first_poll: str | datetime, start: OffsetBounds, stop: OffsetBounds | None, broker: Callable[[], Broker]
    ) -> None:
        self._first_poll, self._start, self._stop, self._broker = first_poll, start, stop, broker

    def check(self, found: Sequence[At]) -> None:
        """Raise ``SourceError`` if an option names a partition that is not among those of its topic."""
        for bounds in (self._start, self._stop or NO_BOUNDS):
            for at in bounds.missing_among(found):
                count = sum(each.topic == at.topic for each in found)
                raise SourceError(
                    f"{bounds.option}: {at.name} does not exist, topic {at.topic!r} has {count} partitions"
                )

    def firsts(self, partitions: Sequence[At], low: Mapping[At, int], high: Mapping[At, int]) -> Mapping[At, int]:
        """Return the first offsets of partitions of which nothing is known."""
        first_poll = self._first_poll
        others = first_poll if isinstance(first_poll, datetime) else first_poll.removeprefix("uncommitted_")
        bounds = {at: self._start.bound_of(at) for at in partitions}
        return self._offsets_of({at: others if bound is None else bound for at, bound in bounds.items()}, low, high)

    def stops(self, partitions: Sequence[At], low: Mapping[At, int], high: Mapping[At, int]) -> Mapping[At, int]:
        """Return the offsets at which reading ends; none without an end."""
        if self._stop is None:
            return {}
        bounds = {at: self._stop.bound_of(at) for at in partitions}
        return self._offsets_of({at: "end" if bound is None else bound for at, bound in bounds.items()}, low, high)

    def takes_commits_of_others(self, at: At) -> bool:
        """Whether a partition begins at the commit of another program, if there is one."""
        is_uncommitted = isinstance(self._first_poll, str) and self._first_poll.startswith("uncommitted")
        return is_uncommitted and self._start.bound_of(at) is None

    def _offsets_of(self, bounds: Mapping[At, Bound], low: Mapping[At, int], high: Mapping[At, int]) -> dict[At, int]:
        found: dict[At, int] = {}
        for bound in set(bounds.values()):
            among = [at for at, each in bounds.items() if each == bound]
            if isinstance(bound, datetime):
                found |= self._broker().offsets(among, milliseconds(bound))
            elif isinstance(bound, int):
                found |= dict.fromkeys(among, bound)
            else:
                found |= {at: low[at] if bound == "earliest" else high[at] for at in among}
        return found


def beyond(at: At, first: int, end: int) -> SourceError:
    """Return the error for a ``start`` beyond the end of a log."""
    return SourceError(f"start: {at.name} ends at offset {end}, before {first}: give an offset that it has")
