"""Anchor: what ties a record to its tree."""

from __future__ import annotations

from typing import NamedTuple


class Anchor(NamedTuple):
    """Ties a record to its tree: the root id, and the edge of the record."""

    root_id: int
    edge: int


# The anchor of a record that is not tracked. Acks and fails of it do nothing.
UNANCHORED = Anchor(0, 0)
