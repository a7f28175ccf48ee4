"""Columns: what PySpark makes of the names of a frame's columns.

Decides under which names columns are handed to a Python function: PySpark looks each one up by its name, which it reads
as a path (``a.b``), a quotation or a star, in any case. Never looks at what columns hold.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pyspark.sql import DataFrame
from pyspark.sql.types import StructField


def into_python(df: DataFrame) -> tuple[DataFrame, tuple[str, ...]]:
    """``df`` as PySpark can hand it to a Python function, and the names to give back to its columns there (none: as
    they are)."""
    names = df.columns
    is_plain = not any("." in name or "`" in name or name == "*" for name in names)
    if is_plain and len({name.lower() for name in names}) == len(names):
        return df, ()
    return df.toDF(*(f"_{index}" for index in range(len(names)))), tuple(names)


def renamed(data: Any, names: Sequence[str]) -> Any:
    """A RecordBatch or Table with these names for its columns; with no names it is left as it is."""
    return data.rename_columns(list(names)) if names else data


def quoted(name: str) -> str:
    """A column's name as Spark reads it whole, whatever is in it."""
    return "`" + name.replace("`", "``") + "`"


def nullable(field: StructField) -> StructField:
    return StructField(field.name, field.dataType, True, field.metadata)
