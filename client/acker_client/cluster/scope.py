"""Scope: which batch a record is of, and which root id it has there. A value that travels with a batch."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class BatchScope:
    """Which batch rows belong to: number i of it has root id ``mix64(first + i)``. Picklable."""

    session: int
    number: int
    first: int
