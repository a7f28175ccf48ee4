"""Culprits: what becomes of a row whose function raises: its tree fails, with the exception as reason.

Decides that the first traceback of a task travels with its reason. A task prints none: each attempt at a record would
print it again, so the driver logs it, once.
"""

from __future__ import annotations

import traceback

from acker_client.error_text import REASON_LENGTH_MAX
from acker_client.spark.anchoring.anchors import Anchors
from acker_client.spark.anchoring.tally import TRACEBACK_LENGTH_MAX, Tally
from acker_client.spark.operators.declared import OnError


class Culprits:
    """The rows of one operator in one task that raised: fails their trees."""

    def __init__(self, name: str, on_error: OnError, tally: Tally) -> None:
        self._name = name
        self._on_error = on_error
        self._tally = tally
        self._is_first = True

    def fail(self, anchors: Anchors, row: int, error: Exception) -> None:
        """Fail the trees of one row; raises ``error`` again where the operator is to raise, or the row has no tree."""
        roots = [root for root, _ in anchors.of(row)]
        if self._on_error == "raise" or not roots:
            raise error
        brief = f"{self._name}: {type(error).__name__}"
        reason = f"{brief}: {error}"[:REASON_LENGTH_MAX]
        if self._is_first:
            self._is_first = False
            shown = "".join(traceback.format_exception(error))
            reason = f"{reason}\n{shown[-TRACEBACK_LENGTH_MAX:]}"
        for root in roots:
            self._tally.fail(root, reason, brief)
