"""Where: keeps the rows for which a Spark condition is true, and acks the dropped rows."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial

import numpy as np
import pyarrow as pa
from pyspark.sql import Column as SparkColumn
from pyspark.sql import DataFrame

from acker_client.spark.anchoring.anchors import Rows
from acker_client.spark.anchoring.derive import derive
from acker_client.spark.anchoring.tally import Tally
from acker_client.spark.driver import conditions
from acker_client.spark.driver.columns import user_schema
from acker_client.spark.operators.declared import Transform, check_name, refuse_untracked
from acker_client.spark.operators.flags import FLAG, flagged, without_flag
from acker_client.spark.plan_check import fusing, plan
from acker_client.spark.worker.chain import TakeRows
from acker_client.spark.worker.condition import Expression, rows_where


def where(condition: str | SparkColumn, *, name: str = "where") -> Transform:
    """Keep the rows for which ``condition`` (SQL, or a Column) is true; ack the others."""
    if not isinstance(condition, (str, SparkColumn)):
        raise TypeError(
            f'where: the condition is a {type(condition).__name__}; give SQL, as where("qty > 0"), or a Column, as'
            " where(F.col('qty') > 0). For a condition in Python use an @operator that yields nothing for what it drops"
        )
    if isinstance(condition, str) and not condition.strip():
        raise ValueError('where: the condition is empty; give SQL, as where("qty > 0")')
    check_name("where", name)

    def keep(df: DataFrame) -> DataFrame:
        refuse_untracked(df, "where")
        ahead = flagged(df, condition, "where")
        # Behind a chain, a condition that Spark evaluates would cost the rows a way to the JVM and back.
        applied = fusing.applied_to(df)
        found = conditions.on_arrow(df, ahead, FLAG) if applied else None
        rows = df if found else ahead
        upstream = plan.guard(rows, name, kind="operator")
        joined = applied if applied and found else fusing.arriving(rows, upstream)
        return fusing.extend(joined, upstream, WhereStep(name, found), "operator", user_schema(df))

    return keep


@dataclass(frozen=True, slots=True)
class WhereStep:
    """Drops the rows for which the ``condition`` is not true. If it is None, Spark has put its value into a column."""

    name: str
    condition: Expression | None = None

    def start(self, tally: Tally) -> TakeRows:
        return partial(self._take_rows, tally)

    def _take_rows(self, tally: Tally, rows: Rows) -> Iterator[Rows]:
        if self.condition is None:
            rows, flags = without_flag(rows)
        else:
            flags = rows_where(self.condition, rows.data)
        kept, data = np.flatnonzero(flags).astype(np.int64), rows.data
        if len(kept) < len(rows):
            data = data.filter(pa.array(flags))
        yield derive(tally, rows, data.columns, data.schema.names, parents=kept)
