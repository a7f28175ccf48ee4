"""Scope: the batch and root id of a record, as a value that travels with a batch."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class BatchScope:
    """The batch that rows belong to. Its number i has root id ``mix64(first + i)``. Picklable."""

    session: int
    number: int
    first: int
