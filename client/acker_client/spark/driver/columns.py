"""Columns: the names under which a frame's columns reach a Python function, and the tracking columns of a frame.

Decides these names, because PySpark looks each column up by its name and ignores case. It reads ``a.b`` as a path,
backquotes as quotes and ``*`` as all columns. Never looks at values.
"""

from __future__ import annotations

from pyspark.sql import DataFrame
from pyspark.sql.types import BinaryType, LongType, StructField, StructType

from acker_client.spark.anchoring.anchors import ANCHORS, EDGE, ROOT, THIN, TRACKING
from acker_client.spark.worker.rows import struct_type


def into_python(df: DataFrame) -> tuple[DataFrame, tuple[str, ...]]:
    """Return ``df`` with column names that PySpark can hand to a Python function, and the names to restore there.

    The names are () if PySpark can hand over the columns under their own names.
    """
    names = df.columns
    is_plain = not any("." in name or "`" in name or name == "*" for name in names)
    if is_plain and len({name.lower() for name in names}) == len(names):
        return df, ()
    return df.toDF(*(f"_{index}" for index in range(len(names)))), tuple(names)


def tracking_fields(columns: tuple[str, ...]) -> list[StructField]:
    """Return the tracking columns of a step's output, from the tracking ``columns`` of its input.

    The anchors of the output are thin if the anchors of the input are thin, otherwise packed (see ``anchors``).
    """
    if columns == THIN:
        return [StructField(ROOT, LongType()), StructField(EDGE, LongType())]
    return [StructField(ANCHORS, BinaryType())]


def user_schema(df: DataFrame) -> StructType:
    """Return the schema of ``df`` without its tracking columns."""
    return struct_type(StructType([field for field in df.schema.fields if field.name not in TRACKING]))


def quoted(name: str) -> str:
    """Quote a column's name, so that Spark reads it as one name."""
    return "`" + name.replace("`", "``") + "`"


def nullable(field: StructField) -> StructField:
    return StructField(field.name, field.dataType, True, field.metadata)
