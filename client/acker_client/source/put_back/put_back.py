"""The source that processes dead letters again."""

from __future__ import annotations

from typing import Any, Unpack

from acker_client.cluster.registration import check_seconds
from acker_client.source.dead_letters.letters_table import Table
from acker_client.source.engine.environment import arrow_schema
from acker_client.source.engine.given import options_of
from acker_client.source.engine.options import CommonOptions
from acker_client.source.engine.source import Source
from acker_client.source.errors import SourceError
from acker_client.source.files.files import TEXT_SCHEMA
from acker_client.source.paths import Paths
from acker_client.source.put_back.input import LetterParser, PutBackInput, first_columns
from acker_client.source.records.input import Input


class PutBack(Source):
    """Reads records again that ``acker dead-letters --put-back`` has put into files.

    ``paths``: these files. The rows are those that the source had: with all columns of Kafka, Kinesis, Parquet, a
    frame or JSON lines, or ``value string, path string, line bigint`` with the original path and line. The first letter
    decides, so put back letters of one source at a time; a letter with other columns fails. ``schema``: the columns to
    convert the records to, whatever source they come from. Give it for columns in letters that the release 0.2.0 or an
    older one wrote, and if there is no letter yet when the source starts. A record that becomes a dead letter again
    keeps its first origin. ``checkpoint`` is required, so that each record is read once. ``follow_s``, ``filesystem``:
    as for ``Files``.
    ``options``: see ``CommonOptions``.
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
        super().__init__(options_of(PutBack, options))
        if isinstance(paths, Table):
            raise TypeError(
                f"PutBack({paths!r}): write the letters of the table to files first, like"
                f" spark.table({paths.name!r}).select('letter').write.text('again'), and give PutBack('again/*.txt')"
            )
        if self.options.checkpoint is None:
            raise ValueError("checkpoint: give one, like checkpoint='again.ckpt', so that each record is read once")
        if follow_s is not None:
            check_seconds("follow_s", follow_s)
        self.paths = paths
        self.schema = schema
        self.follow_s = follow_s
        self.filesystem = filesystem

    def input(self) -> tuple[Input[Any], Any]:
        ddl = None if self.schema is not None else first_columns(self.paths, self.filesystem)
        schema = self.schema if ddl is None else ddl
        try:
            parser = LetterParser(arrow_schema(schema) if schema else None, ddl)
        except ValueError as error:
            if ddl is None:
                raise
            raise SourceError(f"PutBack: the first letter is damaged: {error}; or give PutBack a schema") from None
        input_ = PutBackInput(
            self.paths,
            parser,
            filesystem=self.filesystem,
            own_files=self.options.own_files,
            follow_s=self.follow_s,
            clock=self.options.clock,
        )
        return input_, schema or TEXT_SCHEMA
