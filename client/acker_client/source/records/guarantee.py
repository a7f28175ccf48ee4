"""Guarantee: the promise of a source about each record. It determines when the record is saved as done. Pure.

The guarantees and commit points are those of storm-kafka-client.
"""

from __future__ import annotations

from enum import StrEnum


class Guarantee(StrEnum):
    """AT_LEAST_ONCE: a record is done when it is acked or in the dead letters. AT_MOST_ONCE: it is done before it is
    emitted, and never emitted twice, whatever its outcome. NO_GUARANTEE: records are done when their batch has ended,
    whatever their outcome. Records that were emitted but not saved when a driver died are emitted again."""

    AT_LEAST_ONCE = "at_least_once"
    AT_MOST_ONCE = "at_most_once"
    NO_GUARANTEE = "no_guarantee"

    @property
    def retries(self) -> bool:
        """Whether a record that was not acked is tried again."""
        return self is Guarantee.AT_LEAST_ONCE
