"""Schema: what a user writes as the schema of a source, as Arrow reads it."""

from __future__ import annotations

import pyarrow as pa
from pyspark.errors import PySparkTypeError
from pyspark.sql.types import DataType, StructField, StructType

from acker_client.spark import compat
from acker_client.spark.worker.rows import arrow_schema, struct_type


def arrow_schema_of(schema: str | StructType) -> pa.Schema:
    """The Arrow schema of rows with a Spark schema: DDL text (``"sku string, qty int"``) or a ``StructType``."""
    return arrow_schema(struct_type(schema))


def spark_schema_of(schema: pa.Schema) -> StructType:
    """The Spark schema of rows with an Arrow schema; every column may be null. Raises ``ValueError`` for a column of a
    type that Spark has not."""
    return StructType([StructField(field.name, _spark_type(field), True) for field in schema])


def _spark_type(field: pa.Field) -> DataType:
    try:
        return compat.spark_type(field)
    except PySparkTypeError:
        raise ValueError(
            f"the column {field.name!r} is {field.type}, which Spark has not: give a schema that names the columns to"
            f" read, and {field.name!r} with a type that Spark has"
        ) from None
