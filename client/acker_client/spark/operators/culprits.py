"""Culprits: fails the trees of rows for which the user's function raised. The exception is the reason.

The reason of a task's first failure includes the traceback. The task itself prints no traceback, because each attempt
at a record would print it again. The driver logs it once.
"""

from __future__ import annotations

import traceback

from acker_client.error_text import REASON_LENGTH_MAX, safe_text
from acker_client.spark.anchoring.anchors import Anchors
from acker_client.spark.anchoring.tally import TRACEBACK_LENGTH_MAX, Tally
from acker_client.spark.operators.declared import OnError


class Culprits:
    """Fails the trees of the rows that raised, for one operator in one task."""

    def __init__(self, name: str, on_error: OnError, tally: Tally) -> None:
        self._name = name
        self._on_error = on_error
        self._tally = tally
        self._is_first = True

    def fail_row(self, anchors: Anchors, row: int, error: Exception) -> None:
        """Fail the trees of one row. An unanchored row is only dropped, because it belongs to an untracked record.

        Raises ``error`` again with ``on_error="raise"``, or if the batch is not tracked.
        """
        if self._on_error == "raise" or not self._tally.tracking:
            raise error
        roots = [root for root, _ in anchors.of(row)]
        brief = f"{self._name}: {type(error).__name__}"
        reason = f"{brief}: {safe_text(error)}"[:REASON_LENGTH_MAX]
        if not roots:
            self._tally.drop(reason)
            return
        if self._is_first:
            self._is_first = False
            shown = "".join(traceback.format_exception(error))
            reason = f"{reason}\n{shown[-TRACEBACK_LENGTH_MAX:]}"
        for root in roots:
            self._tally.fail(root, reason, brief)
