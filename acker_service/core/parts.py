"""Parts: how a dumped state is laid out: parts in a fixed order, each a name and some columns of numbers.

Decides names, columns and types, and refuses a part that is not the one that has to come. What is in them is dumped and
loaded by its owner.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]
# A name of PARTS, and columns.
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


def take(name: str, parts: Iterator[StatePart]) -> dict[str, Array]:
    """The columns of the next part, which has to be ``name``. Raises ValueError."""
    found, columns = next(parts, ("nothing", {}))
    if found != name:
        raise ValueError(f"{name} is missing, and {found} in its place")
    check(name, columns)
    return columns


def check(name: str, columns: Mapping[str, Array]) -> None:
    """Raise ValueError unless ``columns`` are those of the part ``name``."""
    for column, kind in PARTS[name].items():
        if column not in columns:
            raise ValueError(f"{name}.{column} is missing")
        if columns[column].dtype != np.dtype(kind):
            raise ValueError(f"{name}.{column} is {columns[column].dtype}, not {np.dtype(kind)}")


def joined(stretches: list[Array], dtype: type[Any]) -> Array:
    """All of ``stretches`` as one column, which :func:`taker` hands out again."""
    return np.concatenate([*stretches, np.empty(0, dtype)])


def taker(column: Array) -> Callable[[int], Array]:
    """Hands out a column stretch by stretch. Raises ValueError when it is too short."""
    at = 0

    def stretch(count: int) -> Array:
        nonlocal at
        if at + count > len(column):
            raise ValueError("a column is shorter than its header says")
        at += count
        return column[at - count : at].copy()

    return stretch
