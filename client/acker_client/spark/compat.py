"""Compat: the versions of PySpark that the acker works with, and what differs between them.

Decides which versions those are, and is the only module that asks which one is here, or that uses what PySpark keeps to
itself. Where a branch for an old version goes, the rest of the package does not change.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pyarrow as pa
import pyspark
import pyspark.util
from pyspark.sql.types import DataType, StructType

OLDEST, NEWEST = (4, 0), (4, 3)
RANGE = "pyspark>=4.0,<4.4"

# The error wherever a session or a frame of Spark Connect comes in.
CONNECT = (
    "Spark Connect is not supported yet: build a classic session, with SparkSession.builder.master(...) and not"
    " .remote(...), in a full pyspark"
)

Batches = Iterator[Any]
Convert = Callable[[Any], Any]


def release(version: str) -> tuple[int, int]:
    """(major, minor) of a version, as (4, 3) of "4.3.0.dev1"; (0, 0) of what is none."""
    found = re.match(r"(\d+)\.(\d+)", version)
    return (int(found[1]), int(found[2])) if found else (0, 0)


def version_problem(version: str) -> str:
    """Why this version of PySpark does not work, and what to do; nothing ("") where it does."""
    if OLDEST <= release(version) <= NEWEST:
        return ""
    harm = (
        "which lacks what the acker stands on (applyInArrow over groups, among others)"
        if release(version) < OLDEST
        else "which this acker was never tried with, and it reads Spark's plans, which change with each version"
    )
    return f"pyspark {version} is installed, {harm}; it works with 4.0 to 4.3: pip install '{RANGE}'"


def is_connect(given: object) -> bool:
    """Whether a session, a frame or a column is of Spark Connect."""
    return any(kind.__module__.startswith("pyspark.sql.connect.") for kind in type(given).__mro__)


def is_remote() -> bool:
    """Whether sessions that are built in this process are of Spark Connect."""
    return is_remote_mode() or "SPARK_REMOTE" in os.environ


def _refuse_what_is_here() -> None:
    problem = version_problem(pyspark.__version__)
    if problem:
        raise ImportError(problem)
    # The distribution pyspark-client has the name and the version, and neither a JVM nor what speaks to one.
    if pyspark.util.is_remote_only():
        raise ImportError(CONNECT)


_refuse_what_is_here()
SPARK = release(pyspark.__version__)

from pyspark.sql import Column  # noqa: E402
from pyspark.sql.conversion import (  # noqa: E402
    ArrowTableToRowsConversion,
    LocalDataToArrowConversion,
)
from pyspark.sql.pandas import functions  # noqa: E402
from pyspark.sql.pandas.types import from_arrow_schema, to_arrow_schema  # noqa: E402
from pyspark.sql.utils import is_remote as is_remote_mode  # noqa: E402

# From 4.1 on Spark can abort a job in which a task that is run again gives other rows; in 4.0 its setting does nothing.
CHECKS_RERUNS = SPARK >= (4, 1)

# Before 4.3 Spark takes strings and bytes of applyInArrow with offsets of 32 bits only, whatever it hands over.
GROUPS_MAY_BE_LARGE = SPARK >= (4, 3)

# Of this module PySpark's types know the common calls only.
_UDFS: Any = functions


def arrow_schema(schema: StructType, *, large: bool) -> pa.Schema:
    """The Arrow schema that Spark expects of a step with this schema; timestamps in UTC. ``large``: strings and bytes
    with offsets of 64 bits."""
    in_utc: dict[str, Any] = {"timezone": "UTC"} if SPARK >= (4, 2) else {"timestamp_utc": True}
    return to_arrow_schema(schema, prefers_large_types=large, **in_utc)


def spark_type(field: pa.Field) -> DataType:
    """The type of Spark for an Arrow field; a timestamp without a zone is one without a zone. Raises PySparkTypeError
    where Spark has none."""
    return from_arrow_schema(pa.schema([field]), prefer_timestamp_ntz=True).fields[0].dataType


def values(column: pa.Array) -> list[Any]:
    """The values of an Arrow column, as Arrow has them in Python."""
    to_pylist = ArrowTableToRowsConversion._to_pylist if SPARK >= (4, 2) else type(column).to_pylist
    listed: list[Any] = to_pylist(column)
    return listed


def from_arrow(kind: DataType) -> Convert | None:
    """What makes of a value of :func:`values` the value that a Row has; None where it is that already."""
    return _converter(ArrowTableToRowsConversion, kind)


def to_arrow(kind: DataType) -> Convert | None:
    """What makes of a value of a Row one that Arrow takes; None where it is that already."""
    return _converter(LocalDataToArrowConversion, kind)


def _converter(conversion: Any, kind: DataType) -> Convert | None:
    if SPARK >= (4, 1):
        convert: Convert | None = conversion._create_converter(kind, none_on_identity=True)
        return convert
    return conversion._create_converter(kind) if conversion._need_converter(kind) else None


def flag_column(run: Callable[[Batches], Batches], types: Sequence[pa.DataType], columns: Sequence[Column]) -> Column:
    """A column of booleans that ``run`` makes of batches of ``columns``, in Arrow, from a task's first batch to its
    last; Spark's plan has it by the name of ``run``. ``types``: of the columns, each int64, string or binary."""
    if SPARK >= (4, 1):
        udf = _UDFS.arrow_udf(run, "boolean", _UDFS.ArrowUDFType.SCALAR_ITER)
        return udf.asNondeterministic()(*columns)  # type: ignore[no-any-return]
    udf = _UDFS.pandas_udf(_over_pandas(run, tuple(types)), "boolean")
    # As an integer column with a null in it, an id would come as a float, which is another id.
    as_text = [
        column.cast("string") if kind == pa.int64() else column for column, kind in zip(columns, types, strict=True)
    ]
    return udf.asNondeterministic()(*as_text)  # type: ignore[no-any-return]


def _over_pandas(run: Callable[[Batches], Batches], types: Sequence[pa.DataType]) -> Callable[[Batches], Batches]:
    """``run`` as an iterator UDF over pandas, for Spark 4.0, which has none over Arrow."""
    import pandas as pd

    def over_pandas(batches: Batches) -> Batches:
        arrow = ([_from_pandas(one, kind) for one, kind in zip(_each(batch), types, strict=True)] for batch in batches)
        for flags in run(iter(arrow)):
            yield flags.to_pandas()

    over_pandas.__name__ = run.__name__
    # Spark tells the kind of a UDF from its hints.
    over_pandas.__annotations__ = {"batches": Iterator[tuple[pd.Series, ...]], "return": Iterator[pd.Series]}
    return over_pandas


def _each(batch: Any) -> Sequence[Any]:
    """The columns of one batch; a single one comes alone."""
    return batch if isinstance(batch, tuple) else (batch,)


def _from_pandas(series: Any, kind: pa.DataType) -> pa.Array:
    if kind == pa.int64():
        return pa.array(series, pa.string(), from_pandas=True).cast(kind)
    return pa.array(series, kind, from_pandas=True)
