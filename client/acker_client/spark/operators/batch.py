"""The step that calls a user's function with whole batches.

If the function raises, or returns a value that does not fit its column, the step calls it again with each half of the
batch, down to the single rows that cause the error.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from pyspark.sql.types import StructType

from acker_client.spark.anchoring.anchors import Rows
from acker_client.spark.anchoring.derive import derive_keeping
from acker_client.spark.anchoring.tally import Tally
from acker_client.spark.operators.culprits import Culprits
from acker_client.spark.operators.declared import OnError
from acker_client.spark.worker.chain import TakeRows
from acker_client.spark.worker.returns import BatchFunction, OperatorError, checked_batch
from acker_client.spark.worker.rows import arrow_schema


@dataclass(frozen=True, slots=True)
class BatchStep:
    """A batch operator as a step; ``function`` takes a RecordBatch."""

    name: str
    function: BatchFunction
    schema: StructType
    keep: tuple[str, ...]
    on_error: OnError
    digests_values: bool
    anchored: bool = True

    def start(self, tally: Tally) -> TakeRows:
        return BatchTask(self, tally).take_rows


class BatchTask:
    """A batch operator in one task."""

    def __init__(self, step: BatchStep, tally: Tally) -> None:
        self._step = step
        self._tally = tally
        self._culprits = Culprits(step.name, step.on_error, tally)
        self._schema = arrow_schema(step.schema)

    def take_rows(self, rows: Rows) -> Iterator[Rows]:
        if not len(rows):
            return
        try:
            given = self._step.function(rows.data)
            columns, parents = checked_batch(given, self._schema, len(rows), f"operator {self._step.name!r}")
        except OperatorError:
            raise
        except Exception as error:  # noqa: BLE001  # the user's function may raise anything
            yield from self._retry_in_halves(rows, error)
            return
        self._culprits.note_fit()
        step = self._step
        yield from derive_keeping(
            self._tally,
            rows,
            columns,
            step.schema.names,
            step.keep,
            parents=parents,
            digests_values=step.digests_values,
            anchored=step.anchored,
        )

    def _retry_in_halves(self, rows: Rows, error: Exception) -> Iterator[Rows]:
        n = len(rows)
        if n == 1 or self._step.on_error == "raise":
            self._culprits.fail_single_row(rows.anchors, error)
            self._tally.consume(rows.anchors, np.zeros(len(rows.anchors.roots), np.uint64))
            return
        for start, stop in ((0, n // 2), (n // 2, n)):
            yield from self.take_rows(Rows(rows.data.slice(start, stop - start), rows.anchors.slice(start, stop)))
