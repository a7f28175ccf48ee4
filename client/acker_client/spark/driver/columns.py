"""Columns: what PySpark makes of the columns of a frame, and which of them are the tracking ones.

Decides under which names columns are handed to a Python function: PySpark looks each one up by its name, which it reads
as a path (``a.b``), a quotation or a star, in any case. Never looks at what columns hold.
"""

from __future__ import annotations

from pyspark.sql import DataFrame
from pyspark.sql.types import BinaryType, LongType, StructField, StructType

from acker_client.spark.anchoring.anchors import ANCHORS, EDGE, ROOT, THIN, TRACKING
from acker_client.spark.worker.rows import struct_type


def into_python(df: DataFrame) -> tuple[DataFrame, tuple[str, ...]]:
    """``df`` as PySpark can hand it to a Python function, and the names to give back to its columns there (none: as
    they are)."""
    names = df.columns
    is_plain = not any("." in name or "`" in name or name == "*" for name in names)
    if is_plain and len({name.lower() for name in names}) == len(names):
        return df, ()
    return df.toDF(*(f"_{index}" for index in range(len(names)))), tuple(names)


def tracking_fields(columns: tuple[str, ...]) -> list[StructField]:
    """The tracking columns of what is made of a frame with these: thin, or else packed."""
    if columns == THIN:
        return [StructField(ROOT, LongType()), StructField(EDGE, LongType())]
    return [StructField(ANCHORS, BinaryType())]


def user_schema(df: DataFrame) -> StructType:
    """Schema of ``df`` without its tracking columns."""
    return struct_type(StructType([field for field in df.schema.fields if field.name not in TRACKING]))


def quoted(name: str) -> str:
    """A column's name as Spark reads it whole, whatever is in it."""
    return "`" + name.replace("`", "``") + "`"


def nullable(field: StructField) -> StructField:
    return StructField(field.name, field.dataType, True, field.metadata)
