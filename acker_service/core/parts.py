"""Parts: the layout of a dumped state, a sequence of parts. Each part has a name and columns of numbers.

Decides the names, columns and types, and refuses a part that comes in the wrong place. The owner of each part fills and
reads its content.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]
# The name of a part (a key of PARTS), and the part's columns.
StatePart = tuple[str, dict[str, Array]]

FORMAT = 2
# Every part of a state and its columns.
PARTS = {
    "header": {"json": "u1"},
    "batches": {"seen": "u8", "covered": "u8"},
    "outbox": {"roots": "u8", "verdicts": "u1", "reason_ids": "u4"},
    "ledger": {"keys": "u8", "vals": "u8", "flags": "u8", "ages": "i8"},
    "contents": {"keys": "u8", "ages": "f8", "maps": "u1"},
    "sessions": {"keys": "u8", "ages": "f8"},
    "sequences": {"keys": "u8", "maps": "u1"},
}


def next_part(name: str, parts: Iterator[StatePart]) -> dict[str, Array]:
    """Return the columns of the next part. Raises ValueError if another part comes, or its columns are wrong."""
    found, columns = next(parts, ("nothing", {}))
    if found != name:
        raise ValueError(f"expected part {name}, found {found}")
    check_columns(name, columns)
    return columns


def check_columns(name: str, columns: Mapping[str, Array]) -> None:
    """Raise ValueError unless ``columns`` holds the columns of the part ``name`` in their types."""
    for column, kind in PARTS[name].items():
        if column not in columns:
            raise ValueError(f"{name}.{column} is missing")
        if columns[column].dtype != np.dtype(kind):
            raise ValueError(f"{name}.{column} is {columns[column].dtype}, not {np.dtype(kind)}")


def joined(pieces: list[Array], dtype: type[Any]) -> Array:
    """Concatenate ``pieces`` into one column. :func:`piece_reader` splits it again."""
    return np.concatenate([*pieces, np.empty(0, dtype)])


def piece_reader(column: Array) -> Callable[[int], Array]:
    """Return a function that returns the next ``count`` values of a column. It raises ValueError past the end."""
    at = 0

    def read_piece(count: int) -> Array:
        nonlocal at
        if at + count > len(column):
            raise ValueError("a column is shorter than its header says")
        at += count
        return column[at - count : at].copy()

    return read_piece
