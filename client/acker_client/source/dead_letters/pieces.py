"""Pieces: cuts what is written into parts of a bounded size. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

T = TypeVar("T")


def in_pieces(items: Iterable[T], size_of: Callable[[T], int], most: int) -> Iterator[list[T]]:
    """Yield the items in lists. A list ends with the item that brings the sum of its sizes to ``most`` or above."""
    piece: list[T] = []
    size = 0
    for item in items:
        piece.append(item)
        size += size_of(item)
        if size >= most:
            yield piece
            piece, size = [], 0
    if piece:
        yield piece
