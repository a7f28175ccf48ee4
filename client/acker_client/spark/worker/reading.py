"""Reading: the user's functions over partitions and batches, watched from inside a task.

Decides that one which ends before its input does leaves a note, and one that reads a partition to its end another.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

from acker_client.spark.worker.notes import NoteWriter

_END = object()


def to_its_end(
    tag: str, number: int, note_writer: NoteWriter, *, notes_empty: bool
) -> Callable[[int, Iterable[Any]], Iterator[Any]]:
    """Hands rows on, and notes when the last of a partition was asked for; ``notes_empty``: and that it has none."""

    def through(index: int, rows: Iterable[Any]) -> Iterator[Any]:
        rows = iter(rows)
        first = next(rows, _END)
        if first is _END:
            # Whoever takes an empty partition need not even look.
            note_writer.write("part", tag, rdd=number, index=index, is_empty=notes_empty)
            return iter(())
        return rest(index, first, rows)

    def rest(index: int, first: Any, rows: Iterator[Any]) -> Iterator[Any]:
        yield first
        yield from rows
        note_writer.write("part", tag, rdd=number, index=index)

    return through


class _Watched:
    """Hands the parts of an input on. ``size``: how many rows a part has."""

    def __init__(self, parts: Iterable[Any], size: Callable[[Any], int]) -> None:
        self._parts = iter(parts)
        self._size = size
        self._has_given = self._has_ended = False

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        try:
            part = next(self._parts)
        except StopIteration:
            self._has_ended = True
            raise
        self._has_given = self._has_given or self._size(part) > 0
        return part

    @property
    def is_read(self) -> bool:
        """Whether it was read until it had ended, or had no rows. Who has taken the last part and asks for no other may
        have taken only a piece of it."""
        return self._has_ended or not (self._has_given or any(map(self._size, self._parts)))


def over_batches(function: Any, name: str, tag: str, note_writer: NoteWriter) -> Any:
    """The user's function over batches, under ``name``, with a note when it ends before its input does."""

    def reading(batches: Iterable[Any]) -> Iterator[Any]:
        given = _Watched(batches, len)
        yield from function(given)
        if not given.is_read:
            note_writer.write("cut", tag, function=name)

    reading.__name__ = name
    return reading


def over_partitions(function: Any, name: str, tag: str, note_writer: NoteWriter) -> Any:
    """The same for a function over (index, rows) of a partition; ``name`` is how the note calls it."""

    def reading(index: int, rows: Iterable[Any]) -> Iterator[Any]:
        given = _Watched(rows, lambda _: 1)
        yield from function(index, given)
        if not given.is_read:
            note_writer.write("cut", tag, function=name)

    return reading


def exhausted(value: Any) -> Iterator[Any]:
    """What a function over a partition gave, read to its end where it can be iterated over; nothing comes of it."""
    if hasattr(value, "__iter__"):
        for _ in value:
            pass
    return iter(())
