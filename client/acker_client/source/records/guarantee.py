"""Guarantee: what a source promises of each record, and so when it is written down as done. Pure.

Those of storm-kafka-client, with its commit points: what is acked; what is planned, before it is emitted; what is
planned, now and then.
"""

from __future__ import annotations

from enum import StrEnum


class Guarantee(StrEnum):
    """AT_LEAST_ONCE: a record is done when it is acked, or in the dead letters. AT_MOST_ONCE: before it is emitted, so
    that it never is a second time, whatever becomes of it. NO_GUARANTEE: when it has been emitted, whatever becomes of
    it; what was not written down yet when a driver died is emitted again."""

    AT_LEAST_ONCE = "at_least_once"
    AT_MOST_ONCE = "at_most_once"
    NO_GUARANTEE = "no_guarantee"

    @property
    def retries(self) -> bool:
        """Whether what was not acked is tried again."""
        return self is Guarantee.AT_LEAST_ONCE
