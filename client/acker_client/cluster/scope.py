"""Scope: the batch that rows belong to, as a value that travels with them."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class BatchScope:
    """The batch that rows belong to. The root id of its number i is ``mix64(first + i)``. Picklable."""

    session: int
    number: int
    first: int
