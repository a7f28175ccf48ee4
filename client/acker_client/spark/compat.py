"""Supported PySpark versions, and the differences between them.

Only this module asks for the installed version, or imports private names of PySpark. Support for an old version can be
removed here without a change to the rest of the package.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pyarrow as pa
import pyspark
import pyspark.util
from py4j.protocol import Py4JError
from pyspark.sql.types import DataType, StructType

OLDEST, NEWEST = (4, 0), (4, 3)
RANGE = "pyspark>=4.0,<4.4"

# The error for every session or frame of Spark Connect.
CONNECT = (
    "Spark Connect is not supported yet: build a classic session, with SparkSession.builder.master(...) and not"
    " .remote(...), in a full pyspark"
)

# More fields than a node of a plan can have.
_FIELDS_MAX = 2**31 - 1

Batches = Iterator[Any]
Convert = Callable[[Any], Any]


def major_minor(version: str) -> tuple[int, int]:
    """Return (major, minor) of a version: (4, 3) for "4.3.0.dev1". (0, 0) for text that is no version."""
    found = re.match(r"(\d+)\.(\d+)", version)
    return (int(found[1]), int(found[2])) if found else (0, 0)


def version_problem(version: str) -> str:
    """Return why this version of PySpark is not supported and what to install; "" for a supported version."""
    if OLDEST <= major_minor(version) <= NEWEST:
        return ""
    harm = (
        "which lacks functions that the acker needs (applyInArrow over groups, among others)"
        if major_minor(version) < OLDEST
        else "which this acker was not tested with, and it reads Spark's plans, which change with each version"
    )
    return f"pyspark {version} is installed, {harm}; it works with 4.0 to 4.3: pip install '{RANGE}'"


def is_connect(given: object) -> bool:
    """Whether a session, a frame or a column belongs to Spark Connect."""
    return any(kind.__module__.startswith("pyspark.sql.connect.") for kind in type(given).__mro__)


def is_remote() -> bool:
    """Whether sessions built in this process use Spark Connect."""
    return is_remote_mode() or "SPARK_REMOTE" in os.environ


def _refuse_unsupported_pyspark() -> None:
    problem = version_problem(pyspark.__version__)
    if problem:
        raise ImportError(problem)
    # The distribution pyspark-client has the same name and version, but no JVM and no py4j.
    if pyspark.util.is_remote_only():
        raise ImportError(CONNECT)


_refuse_unsupported_pyspark()
SPARK = major_minor(pyspark.__version__)

from pyspark.sql import Column  # noqa: E402
from pyspark.sql.conversion import (  # noqa: E402
    ArrowTableToRowsConversion,
    LocalDataToArrowConversion,
)
from pyspark.sql.pandas import functions  # noqa: E402
from pyspark.sql.pandas.types import from_arrow_schema, to_arrow_schema  # noqa: E402
from pyspark.sql.utils import is_remote as is_remote_mode  # noqa: E402

# From 4.1 on, Spark can abort a job in which a repeated task returns different rows. In 4.0 the setting has no effect.
CHECKS_RERUNS = SPARK >= (4, 1)

# From 4.1 on, Spark has UDFs over Arrow arrays.
HAS_ARROW_UDFS = SPARK >= (4, 1)

# Before 4.3, Spark accepts only 32-bit offsets for strings and bytes from applyInArrow, even if it passes 64-bit ones.
GROUPS_MAY_BE_LARGE = SPARK >= (4, 3)

# Any: the type hints of this PySpark module cover only the common calls.
_UDFS: Any = functions


def arrow_schema(schema: StructType, *, large: bool) -> pa.Schema:
    """Return the Arrow schema that Spark expects from a step with this schema; timestamps are in UTC.

    ``large``: strings and bytes have 64-bit offsets.
    """
    in_utc: dict[str, Any] = {"timezone": "UTC"} if SPARK >= (4, 2) else {"timestamp_utc": True}
    return to_arrow_schema(schema, prefers_large_types=large, **in_utc)


def spark_type(field: pa.Field) -> DataType:
    """Return Spark's type for an Arrow field; a timestamp without a zone becomes TimestampNTZType.

    Raises PySparkTypeError if Spark has no such type.
    """
    return from_arrow_schema(pa.schema([field]), prefer_timestamp_ntz=True).fields[0].dataType


def values(column: pa.Array) -> list[Any]:
    """Return the values of an Arrow column as the Python objects that Arrow makes."""
    to_pylist = ArrowTableToRowsConversion._to_pylist if SPARK >= (4, 2) else type(column).to_pylist
    listed: list[Any] = to_pylist(column)
    return listed


def from_arrow(kind: DataType) -> Convert | None:
    """Return the function that converts a value of :func:`values` for a Row; None if no conversion is needed."""
    return _converter(ArrowTableToRowsConversion, kind)


def to_arrow(kind: DataType) -> Convert | None:
    """Return the function that converts a value of a Row for Arrow; None if no conversion is needed."""
    return _converter(LocalDataToArrowConversion, kind)


def _converter(conversion: Any, kind: DataType) -> Convert | None:
    if SPARK >= (4, 1):
        convert: Convert | None = conversion._create_converter(kind, none_on_identity=True)
        return convert
    return conversion._create_converter(kind) if conversion._need_converter(kind) else None


def plan_text(plan: Any) -> str:
    """Return a plan as text. Spark's own ``treeString()`` leaves out all but the first 25 columns of a node."""
    try:
        return str(plan.treeString(True, False, _FIELDS_MAX, False, False))
    except Py4JError:  # an older version has one flag less
        return str(plan.treeString(True, False, _FIELDS_MAX, False))


def iterator_column(
    run: Callable[[Batches], Batches],
    returns: str | DataType,
    types: Sequence[pa.DataType | None],
    columns: Sequence[Column],
) -> Column:
    """Return a column that ``run`` computes in Arrow from all batches of ``columns`` in a task.

    Spark's plan shows it under the name of ``run``. ``types``: one per column; None for any type, and null for a column
    whose values are not used.
    """
    if HAS_ARROW_UDFS:
        # Spark reads the kind of a UDF from its type hints.
        run.__annotations__ = {"batches": Iterator[tuple[pa.Array, ...]], "return": Iterator[pa.Array]}
        udf = _UDFS.arrow_udf(run, returns)
        return udf.asNondeterministic()(*columns)  # type: ignore[no-any-return]
    udf = _UDFS.pandas_udf(_over_pandas(run, tuple(types)), returns)
    # pandas turns an integer column with nulls into floats, which would change the ids.
    as_text = [
        column.cast("string") if kind == pa.int64() else column for column, kind in zip(columns, types, strict=True)
    ]
    return udf.asNondeterministic()(*as_text)  # type: ignore[no-any-return]


def _over_pandas(
    run: Callable[[Batches], Batches], types: Sequence[pa.DataType | None]
) -> Callable[[Batches], Batches]:
    """Wrap ``run`` as an iterator UDF over pandas, for Spark 4.0, which has no Arrow UDFs."""
    import pandas as pd

    def over_pandas(batches: Batches) -> Batches:
        arrow = (
            [_from_pandas(column, kind) for column, kind in zip(_columns_of(batch), types, strict=True)]
            for batch in batches
        )
        for made in run(iter(arrow)):
            yield made.to_pandas()

    over_pandas.__name__ = run.__name__
    # Spark reads the kind of a UDF from its type hints.
    over_pandas.__annotations__ = {"batches": Iterator[tuple[pd.Series, ...]], "return": Iterator[pd.Series]}
    return over_pandas


def _columns_of(batch: Any) -> Sequence[Any]:
    """Return the columns of one batch. Spark passes a single column without a tuple."""
    return batch if isinstance(batch, tuple) else (batch,)


def _from_pandas(series: Any, kind: pa.DataType | None) -> pa.Array:
    if kind == pa.int64():
        return pa.array(series, pa.string(), from_pandas=True).cast(kind)
    if kind == pa.null():
        return pa.nulls(len(series))
    return pa.array(series, kind, from_pandas=True)
