"""Picking: a select between two steps that only picks and renames columns, as a part of the second step."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from acker_client.spark.anchoring.anchors import Rows
from acker_client.spark.anchoring.tally import Tally
from acker_client.spark.worker.chain import Step, TakeRows

# The name of each picked column, and its new name.
Picks = tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class PickingStep:
    """A ``step`` that takes some columns of its input, under other names. It reports as this step."""

    step: Step
    picks: Picks

    @property
    def name(self) -> str:
        return self.step.name

    def start(self, tally: Tally) -> TakeRows:
        take_rows = self.step.start(tally)
        old, new = [name for name, _ in self.picks], [name for _, name in self.picks]

        def take_picked(rows: Rows) -> Iterable[Rows]:
            return take_rows(Rows(rows.data.select(old).rename_columns(new), rows.anchors))

        return take_picked
