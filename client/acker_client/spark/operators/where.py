"""Where: keeps the rows for which a Spark condition is true, and acks the dropped rows."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial

import numpy as np
import pyarrow.compute as pc
from pyspark.sql import Column as SparkColumn
from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import BooleanType, NullType

from acker_client.spark.anchoring.anchors import Rows
from acker_client.spark.anchoring.derive import derive
from acker_client.spark.anchoring.tally import Tally
from acker_client.spark.driver.columns import user_schema
from acker_client.spark.driver.reruns import spark_checks_reruns
from acker_client.spark.operators.declared import Transform, check_name, refuse_untracked
from acker_client.spark.plan_check import fusing
from acker_client.spark.worker.chain import TakeRows

# An internal column between the two plan nodes of the step. The user never sees it.
FLAG = "_acker_keep"


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
        flag = F.expr(condition) if isinstance(condition, str) else condition
        step = WhereStep(name, not spark_checks_reruns(df.sparkSession))
        flagged = df.withColumn(FLAG, flag)
        kind = flagged.schema[FLAG].dataType
        if isinstance(kind, NullType):
            flagged = df.withColumn(FLAG, flag.cast("boolean"))
        elif not isinstance(kind, BooleanType):
            raise ValueError(
                f"where: the condition {condition!r} is of type {kind.simpleString()}; give one that is true or false,"
                ' as where("qty > 0")'
            )
        return fusing.plan_step(flagged, step, "operator", user_schema(df))

    return keep


@dataclass(frozen=True, slots=True)
class WhereStep:
    """Drops the rows whose flag is not true."""

    name: str
    digests_values: bool

    def start(self, tally: Tally) -> TakeRows:
        return partial(self._take_rows, tally)

    def _take_rows(self, tally: Tally, rows: Rows) -> Iterator[Rows]:
        flags = rows.data.column(FLAG)
        data = rows.data.select([name for name in rows.data.schema.names if name != FLAG])
        kept = np.flatnonzero(pc.fill_null(flags, False).to_numpy(zero_copy_only=False)).astype(np.int64)
        if len(kept) < len(rows):
            data = data.filter(flags)
        yield derive(
            tally,
            rows,
            data.columns,
            data.schema.names,
            parents=kept,
            digests_values=self.digests_values,
        )
