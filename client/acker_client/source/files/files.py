"""The source whose records are lines of files."""

from __future__ import annotations

from typing import Any, Unpack

from acker_client.cluster.registration import check_seconds
from acker_client.source.decoding.json_lines import JsonParser
from acker_client.source.decoding.lines import Parser, TextParser
from acker_client.source.engine.environment import arrow_schema
from acker_client.source.engine.given import options_of
from acker_client.source.engine.options import CommonOptions
from acker_client.source.engine.source import Source
from acker_client.source.files.input import FileInput
from acker_client.source.paths import Paths
from acker_client.source.records.input import Input

TEXT_SCHEMA = "value string, path string, line bigint"
FORMATS = ("text", "json")


class Files(Source):
    """Lines of files as a source.

    ``paths``: a path, a pattern (``**`` too), or several. They are read in the order given, each pattern sorted. A path
    may be a URL in an object store or distributed file system (``s3://``, ``gs://``, ``abfs://``, ``hdfs://``), or a
    path in ``filesystem``, a filesystem of pyarrow.
    ``format``: "text" gives a row ``value string, path string, line bigint`` for each line. "json" parses each line as
    an object into the columns of ``schema`` (DDL text or ``StructType``); a line that does not fit is a record that
    fails. A line that is not valid UTF-8 fails too, and its reason tells the position. A ``.gz`` is unpacked while
    it is read.

    ``follow_s``: the source does not end (see ``stop``). At this interval in seconds it looks for new files and for new
    lines in known files, even if these were renamed. A last line without a line feed waits until it is complete.
    ``options``: see ``CommonOptions``.
    """

    def __init__(
        self,
        paths: Paths,
        *,
        format: str = "text",
        schema: Any = None,
        follow_s: float | None = None,
        filesystem: Any = None,
        **options: Unpack[CommonOptions],
    ) -> None:
        super().__init__(options_of(Files, options))
        if format not in FORMATS:
            raise ValueError(f"format={format!r}: give 'text' or 'json'")
        if (schema is None) == (format == "json"):
            needed = "json needs one, like schema='sku string, qty int'" if schema is None else "text has its own"
            raise ValueError(f"schema={schema!r} with format={format!r}: {needed}")
        if follow_s is not None:
            check_seconds("follow_s", follow_s)
        self.paths = paths
        self.format = format
        self.schema = schema
        self.follow_s = follow_s
        self.filesystem = filesystem

    def input(self) -> tuple[Input[Any], Any]:
        parser: Parser = TextParser() if self.format == "text" else JsonParser(arrow_schema(self.schema))
        schema = TEXT_SCHEMA if self.format == "text" else self.schema
        input_ = FileInput(
            self.paths,
            parser,
            filesystem=self.filesystem,
            own_files=self.options.own_files,
            follow_s=self.follow_s,
            clock=self.options.clock,
        )
        return input_, schema
