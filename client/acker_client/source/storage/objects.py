"""Objects as columns: what a listing says of each, and how two listings differ. There may be a million objects."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from acker_client.source.errors import SourceError


@dataclass(frozen=True, slots=True, eq=False)
class Objects:
    """Objects: their ``names`` (URLs or paths, large_binary), ``sizes`` (int64) and ``modified_ns`` (int64).

    ``objects[k]`` is the name of object k as text.
    """

    names: pa.LargeBinaryArray
    sizes: npt.NDArray[np.int64]
    modified_ns: npt.NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.names)

    def __getitem__(self, index: int) -> str:
        return _text(self.names[index].as_py())

    @classmethod
    def of(cls, entries: Sequence[tuple[str, int, int]]) -> Objects:
        """``entries``: (name, size, modified_ns)."""
        names, sizes, modified = zip(*entries, strict=True) if entries else ((), (), ())
        return cls(_column(names), np.array(sizes, np.int64), np.array(modified, np.int64))

    @classmethod
    def joined(cls, several: Sequence[Objects]) -> Objects:
        several = [each for each in several if len(each)]
        if len(several) < 2:
            return several[0] if several else cls.of([])
        names: Any = pa.chunked_array([each.names for each in several], pa.large_binary()).combine_chunks()
        sizes = np.concatenate([each.sizes for each in several])
        return cls(names, sizes, np.concatenate([each.modified_ns for each in several]))

    def take(self, indices: npt.NDArray[np.int64]) -> Objects:
        names: Any = self.names.take(pa.array(indices))
        return Objects(names, self.sizes[indices], self.modified_ns[indices])

    def sorted(self) -> Objects:
        indices: Any = pc.sort_indices(self.names)
        return self.take(np.asarray(indices, np.int64))

    def without(self, others: Objects) -> Objects:
        """Return the objects that ``others`` does not name."""
        if not len(others):
            return self
        is_known: Any = pc.is_in(self.names, value_set=others.names)
        return self.take(np.flatnonzero(~np.asarray(is_known)))

    def take_over(self, listed: Objects, places: npt.NDArray[np.int64]) -> Objects:
        """Take sizes and times of change from ``listed``, where these objects are at ``places`` (-1: not there). Return
        the objects that only ``listed`` has."""
        there, at = places >= 0, places[places >= 0]
        self.sizes[there], self.modified_ns[there] = listed.sizes[at], listed.modified_ns[at]
        is_new = np.ones(len(listed), np.bool_)
        is_new[at] = False
        return listed.take(np.flatnonzero(is_new))

    def check_not_own(self, own: Sequence[str], asker: str) -> None:
        """Raise ``SourceError`` if one of the objects is, or lies below, a URL that the source itself writes."""
        for url in own:
            is_own: Any = pc.equal(self.names, pa.scalar(_bytes(url), pa.large_binary()))
            is_below: Any = pc.starts_with(self.names, pattern=_bytes(f"{url.rstrip('/')}/"))
            for name in self._names_where(pc.or_(is_own, is_below)):
                raise SourceError(f"{asker}: {name!r} is written by this source: keep it out of the paths")

    def names_that_match(self, pattern: str) -> list[str]:
        """Return the names that contain a match of a regular expression."""
        return self._names_where(pc.match_substring_regex(self.names, pattern))

    def _names_where(self, is_wanted: Any) -> list[str]:
        found: Any = self.names.filter(is_wanted)
        return list(map(_text, found.to_pylist()))

    def places_of(self, names: Iterable[str]) -> npt.NDArray[np.int64]:
        """Return where each of the ``names`` is among these objects; -1 if it is not."""
        return self._places_of(_column(names))

    def places_of_all(self, others: Objects) -> npt.NDArray[np.int64]:
        """Return where each of the ``others`` is among these objects; -1 if it is not."""
        return self._places_of(others.names)

    def _places_of(self, names: pa.Array) -> npt.NDArray[np.int64]:
        places: Any = pc.fill_null(pc.index_in(names, value_set=self.names), -1)
        return np.asarray(places, np.int64)

    def differ(self, other: Objects, places: npt.NDArray[np.int64]) -> npt.NDArray[np.bool_]:
        """Return which of these objects have another size or time of change in ``other``, where they are at
        ``places``. False for one that is not there."""
        there = np.maximum(places, 0)
        if not len(other):
            return np.zeros(len(self), np.bool_)
        has_other_size, has_other_time = self.sizes != other.sizes[there], self.modified_ns != other.modified_ns[there]
        is_other: npt.NDArray[np.bool_] = (has_other_size | has_other_time) & (places >= 0)
        return is_other


class Backlog:
    """How far the objects of an input are read.

    ``known``: all that were ever listed, in the order of reading. ``is_done``: which of them are done. ``next``: the
    first one that was not opened yet. ``unfinished``: earlier ones that are empty or incomplete. ``again``: those of
    them that have changed since, and were not opened again. Iterating gives the objects to open.
    """

    def __init__(self, known: Objects) -> None:
        self.known, self.is_done = known, np.zeros(len(known), np.bool_)
        self.next = 0
        self.unfinished, self.again = set[int](), set[int]()

    def __iter__(self) -> Iterator[int]:
        yield from sorted(self.again)
        yield from (np.flatnonzero(~self.is_done[self.next :]) + self.next).tolist()

    def add(self, new: Objects, is_done: npt.NDArray[np.bool_]) -> None:
        self.known, self.is_done = Objects.joined([self.known, new]), np.append(self.is_done, is_done)

    def note_opened(self, index: int) -> None:
        self.again.discard(index)
        self.next = max(self.next, index + 1)


def _column(names: Iterable[str]) -> pa.LargeBinaryArray:
    # Binary, because the name of a local file need not be UTF-8.
    column: pa.LargeBinaryArray = pa.array(list(map(_bytes, names)), pa.large_binary())
    return column


def _bytes(name: str) -> bytes:
    return name.encode(errors="surrogateescape")


def _text(name: bytes) -> str:
    return name.decode(errors="surrogateescape")
