"""Moves dead letters in an object store, from one folder into another that the source ``PutBack`` reads.

The letters are written durably to a new object of the second folder before they are removed from the first. A crash at
any point therefore loses none, and a letter that is in both folders is not added again. A running source writes only
new objects, so it needs no lock. Two commands at the same time may both put a letter back. An object is
removed when all of its lines have moved.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from typing import TypeVar

from acker_client.source.dead_letters.letter_objects import folder_of, new_name, objects_of
from acker_client.source.errors import SourceError
from acker_client.source.put_back.letter_lines import (
    Moved,
    ReadLine,
    Sorted,
    joined,
    lines_of,
    new_letters,
    raw_letters,
)
from acker_client.source.records.dead_letter import DeadLetter
from acker_client.source.storage.store import Store
from acker_client.source.waiting import outlast

T = TypeVar("T")

# How long a command waits for a store that is away.
WAIT_S = 20.0


def read_objects(url: str) -> Iterator[tuple[str, list[ReadLine]]]:
    """Yield the objects of letters that ``url`` names, and their lines. Raises ``SourceError``."""
    store, folder = folder_of(url)
    for path in _wait(store, partial(objects_of, store, folder)):
        yield store.shown(path), lines_of(_wait(store, partial(store.read, path)))


def put_back(url: str, again: str, is_chosen: Callable[[DeadLetter], bool]) -> Moved:
    """Move the chosen letters from the objects at ``url`` to a new object in ``again``. Raises ``SourceError``."""
    dead, folder = folder_of(url)
    target, into = folder_of(again)
    if dead.shown(folder) == target.shown(into):
        raise SourceError(f"{dead.shown(folder)} is where the letters are: name another folder to put them back into")
    moved = Moved(0, 0)
    # The letters in the target; read when the first letter moves.
    present: set[bytes] | None = None
    for path in _wait(dead, partial(objects_of, dead, folder)):
        letters = Sorted.of(_wait(dead, partial(dead.read, path)), is_chosen)
        if letters.moving:
            present = _letters_in(target, into) if present is None else present
            if new := new_letters(present, letters.moving):
                name = new_name(time.time(), secrets.token_hex(4), 1)
                _wait(target, partial(target.write, f"{into}/{name}", joined(new)))
                present.update(new)
            left = letters.left
            _wait(dead, partial(dead.write, path, left) if left else partial(dead.delete, path))
        this = letters.moved
        kept = tuple(replace(line, place=dead.shown(path)) for line in this.kept)
        moved = Moved(moved.put_back + this.put_back, moved.left + this.left, moved.kept + kept)
    return moved


def _letters_in(store: Store, folder: str) -> set[bytes]:
    """Return the letters that a folder has, as lines."""
    paths = _wait(store, partial(objects_of, store, folder))
    return raw_letters(store.shown(folder), b"".join(_wait(store, partial(store.read, path)) for path in paths))


def _wait(store: Store, call: Callable[[], T]) -> T:
    return outlast(call, str(store), WAIT_S)
