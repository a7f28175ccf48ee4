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
from acker_client.spark.worker.returns import OperatorError
from acker_client.spark.worker.rows import Mismatch

# If this many single rows have no result that fits the schema before any result does, the program is at fault.
MISFITS_MAX = 100


class Culprits:
    """Fails the trees of the rows that raised, for one operator in one task."""

    def __init__(self, name: str, on_error: OnError, tally: Tally) -> None:
        self._name = name
        self._on_error = on_error
        self._tally = tally
        self._is_first = True
        # Single rows whose result did not fit the schema; None once a result of the task fits.
        self._misfits: int | None = 0

    def note_fit(self) -> None:
        """Note that a result of the task fits the schema."""
        self._misfits = None

    def fail_single_row(self, anchors: Anchors, error: Exception) -> None:
        """Fail a row that was tried alone. Raises :class:`OperatorError` at the hundredth result that does not fit if
        none has fitted in the task, and ``error`` as :meth:`fail_row` does."""
        if self._misfits is not None and isinstance(error, Mismatch):
            self._misfits += 1
            if self._misfits >= MISFITS_MAX:
                raise OperatorError(
                    f"{error}; none of the first {MISFITS_MAX} results fits: correct the declared type or the function"
                ) from error
        self.fail_row(anchors, 0, error)

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
