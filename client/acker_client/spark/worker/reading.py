"""Reading: watches the user's functions over partitions and batches from inside a task.

A function leaves a note if it ends before its input. A partition that is read to its end leaves another one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

from acker_client.spark.worker.notes import NoteWriter

_END = object()


def to_its_end(
    tag: str, number: int, note_writer: NoteWriter, *, notes_empty: bool
) -> Callable[[int, Iterable[Any]], Iterator[Any]]:
    """Return a function that passes rows through, and writes a note when a partition was read to its end.
    ``notes_empty``: the note also says if the partition has no rows."""

    def through(index: int, rows: Iterable[Any]) -> Iterator[Any]:
        rows = iter(rows)
        first = next(rows, _END)
        if first is _END:
            # Noted at once, because a consumer need not iterate over an empty partition.
            note_writer.write("part", tag, rdd=number, index=index, is_empty=notes_empty)
            return iter(())
        return rest(index, first, rows)

    def rest(index: int, first: Any, rows: Iterator[Any]) -> Iterator[Any]:
        yield first
        yield from rows
        note_writer.write("part", tag, rdd=number, index=index)

    return through


class _Watched:
    """Iterates over the parts of an input, and records how far the input was read. ``size``: returns a part's number of
    rows."""

    def __init__(self, parts: Iterable[Any], size: Callable[[Any], int]) -> None:
        self._parts = iter(parts)
        self._size = size
        self._has_given = self._has_ended = self._has_failed = False

    def __iter__(self) -> Iterator[Any]:
        return self

    def __next__(self) -> Any:
        try:
            part = next(self._parts)
        except StopIteration:
            self._has_ended = True
            raise
        except BaseException:
            # A generator that has raised ends at the next question, as if it had been read to its end.
            self._has_failed = True
            raise
        self._has_given = self._has_given or self._size(part) > 0
        return part

    @property
    def is_read(self) -> bool:
        """Whether the input was read until it ended, or had no rows.

        A function that takes the last part, but does not ask for another part, may have used only some rows of the last
        part. A function that goes on after the input has raised has lost the rest.
        """
        if self._has_failed or self._has_ended:
            return not self._has_failed
        return not (self._has_given or any(map(self._size, self._parts)))


def over_batches(function: Any, name: str, tag: str, note_writer: NoteWriter) -> Any:
    """Wrap the user's function over batches, under ``name``, so that it leaves a note if it ends before its input
    does."""

    def reading(batches: Iterable[Any]) -> Iterator[Any]:
        given = _Watched(batches, len)
        yield from function(given)
        if not given.is_read:
            note_writer.write("cut", tag, function=name)

    reading.__name__ = name
    return reading


def over_partitions(function: Any, name: str, tag: str, note_writer: NoteWriter) -> Any:
    """Wrap a function over (index, rows) of a partition, as :func:`over_batches` does. ``name``: the function's name in
    the note."""

    def reading(index: int, rows: Iterable[Any]) -> Iterator[Any]:
        given = _Watched(rows, lambda _: 1)
        yield from function(index, given)
        if not given.is_read:
            note_writer.write("cut", tag, function=name)

    return reading


def exhausted(value: Any) -> Iterator[Any]:
    """Iterate to the end of what a function over a partition returned, if it is iterable. Returns an empty iterator."""
    if hasattr(value, "__iter__"):
        for _ in value:
            pass
    return iter(())
