"""Schema: converts the schema of a source between Spark and Arrow."""

from __future__ import annotations

import pyarrow as pa
from pyspark.errors import PySparkTypeError
from pyspark.sql.types import DataType, StructField, StructType

from acker_client.spark import compat
from acker_client.spark.worker.rows import arrow_schema, struct_type


def arrow_schema_of(schema: str | StructType) -> pa.Schema:
    """Return the Arrow schema of a Spark schema: DDL text (``"sku string, qty int"``) or a ``StructType``."""
    return arrow_schema(struct_type(schema))


def spark_schema_of(schema: pa.Schema) -> StructType:
    """Return the Spark schema of an Arrow schema, in which every column may be null. Raises ``ValueError`` for a column
    with a type that Spark does not have."""
    return StructType([StructField(field.name, _spark_type(field), True) for field in schema])


def _spark_type(field: pa.Field) -> DataType:
    try:
        return compat.spark_type(field)
    except PySparkTypeError:
        raise ValueError(
            f"the column {field.name!r} is {field.type}, which Spark does not have: give a schema that names the"
            f" columns to read and gives {field.name!r} a type that Spark has"
        ) from None
