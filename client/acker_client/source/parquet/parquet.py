"""The source whose records are rows of Parquet files."""

from __future__ import annotations

from typing import Any, Unpack

from acker_client.cluster.registration import check_seconds
from acker_client.source.engine.environment import arrow_schema, spark_schema
from acker_client.source.engine.given import options_of
from acker_client.source.engine.options import CommonOptions
from acker_client.source.engine.source import Source
from acker_client.source.parquet.input import ParquetInput
from acker_client.source.parquet.places import schema_of
from acker_client.source.paths import Paths
from acker_client.source.records.input import Input


class Parquet(Source):
    """Rows of Parquet files as a source.

    ``paths``: a file, a directory, a pattern (``**`` too), or several. A directory stands for the ``.parquet`` files in
    and below it, sorted; columns in directory names are not supported. Files are read in the order given, row group by
    row group, and one task reads each row group. ``schema``: the columns to read, as DDL text or a ``StructType``;
    None: the columns of the first file. A column that a file lacks is null. A record with a value that does not fit its
    column fails. Nested types, decimals and timestamps are read as Spark reads them; nanoseconds are cut to
    microseconds. A file must not change: the source refuses a file that has changed since the checkpoint.

    ``follow_s``: the source does not end (see ``stop``). At this interval in seconds it looks for new files. It waits
    for a file that is no Parquet yet. Without a ``schema`` the first file must exist. ``options``: see
    ``CommonOptions``.
    """

    def __init__(
        self,
        paths: Paths,
        *,
        schema: Any = None,
        follow_s: float | None = None,
        filesystem: Any = None,
        **options: Unpack[CommonOptions],
    ) -> None:
        super().__init__(options_of(Parquet, options))
        if follow_s is not None:
            check_seconds("follow_s", follow_s)
        self.paths = paths
        self.follow_s = follow_s
        self.schema = schema
        self.filesystem = filesystem

    def input(self) -> tuple[Input[Any], Any]:
        schema = spark_schema(schema_of(self.paths, self.filesystem)) if self.schema is None else self.schema
        input_ = ParquetInput(
            self.paths,
            arrow_schema(schema),
            filesystem=self.filesystem,
            own_files=self.options.own_files,
            follow_s=self.follow_s,
            clock=self.options.clock,
        )
        return input_, schema
