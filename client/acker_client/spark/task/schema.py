"""Schema: what a user writes as the schema of a source, as Arrow reads it."""

from __future__ import annotations

import pyarrow as pa
from pyspark.sql.types import StructType

from acker_client.spark.task.rows import arrow_schema, struct_type


def arrow_schema_of(schema: str | StructType) -> pa.Schema:
    """The Arrow schema of rows with a Spark schema: DDL text (``"sku string, qty int"``) or a ``StructType``."""
    return arrow_schema(struct_type(schema))
