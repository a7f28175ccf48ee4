"""Parquet: the source whose records are rows of Parquet files."""

from __future__ import annotations

from typing import Any, Unpack

from acker_client.cluster.registration import check_seconds
from acker_client.source.engine.environment import arrow_schema, spark_schema
from acker_client.source.engine.given import options_of
from acker_client.source.engine.options import CommonOptions
from acker_client.source.engine.source import Source
from acker_client.source.parquet.input import ParquetInput, schema_of
from acker_client.source.paths import Paths
from acker_client.source.records.input import Input


class Parquet(Source):
    """Rows of Parquet files as a source.

    ``paths``: a file, a directory (the ``.parquet`` files in and below it, sorted; no columns in directory names), a
    pattern (``**`` too), or several; read in the order given, row group by row group, each of which one task reads.
    ``schema``: the columns to read, as DDL text or a ``StructType``; None: those of the first file. A column that a
    file lacks is null, and one whose values do not fit makes them records that fail. Nested types, decimals and
    timestamps come as Spark would read them; nanoseconds are cut to microseconds. A file must not change: one that did
    since the checkpoint is refused.

    ``follow_s``: the source does not end, and looks every so many seconds for files that are new (see ``stop``); one
    that is no Parquet yet is waited for, and without a ``schema`` the first has to be there. ``options``: see
    ``CommonOptions``.
    """

    def __init__(
        self, paths: Paths, *, schema: Any = None, follow_s: float | None = None, **options: Unpack[CommonOptions]
    ) -> None:
        super().__init__(options_of(Parquet, options))
        if follow_s is not None:
            check_seconds("follow_s", follow_s)
        self.paths = paths
        self.follow_s = follow_s
        self.schema = schema

    def input(self) -> tuple[Input[Any], Any]:
        schema = spark_schema(schema_of(self.paths)) if self.schema is None else self.schema
        own_files, clock = self.options.own_files, self.options.clock
        columns = arrow_schema(schema)
        return ParquetInput(self.paths, columns, own_files=own_files, follow_s=self.follow_s, clock=clock), schema
