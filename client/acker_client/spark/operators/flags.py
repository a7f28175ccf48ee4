"""Flags: a condition of the user's as an internal column of a frame, for the step behind it."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow.compute as pc
from pyspark.sql import Column as SparkColumn
from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import BooleanType, NullType

from acker_client.spark.anchoring.anchors import Rows

# The column between the two plan nodes of a step. The user never sees it.
FLAG = "_acker_keep"


def flagged(df: DataFrame, condition: str | SparkColumn, what: str) -> DataFrame:
    """Return ``df`` with the flag of ``condition``. Raises ValueError if that is not true or false."""
    flag = F.expr(condition) if isinstance(condition, str) else condition
    found = df.withColumn(FLAG, flag)
    kind = found.schema[FLAG].dataType
    if isinstance(kind, NullType):
        return df.withColumn(FLAG, flag.cast("boolean"))
    if not isinstance(kind, BooleanType):
        raise ValueError(
            f"{what}: the condition {condition!r} is of type {kind.simpleString()}; give one that is true or false,"
            f' as {what}("qty > 0")'
        )
    return found


def without_flag(rows: Rows) -> tuple[Rows, npt.NDArray[np.bool_]]:
    """Return the rows without their flag, and for which of them it is true."""
    flags: Any = pc.fill_null(rows.data.column(FLAG), False)
    data = rows.data.select([name for name in rows.data.schema.names if name != FLAG])
    return Rows(data, rows.anchors), flags.to_numpy(zero_copy_only=False)
