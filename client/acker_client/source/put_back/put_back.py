"""The source that processes dead letters again."""

from __future__ import annotations

from typing import Any, Unpack

from acker_client.cluster.registration import check_seconds
from acker_client.source.engine.environment import arrow_schema
from acker_client.source.engine.given import options_of
from acker_client.source.engine.options import CommonOptions
from acker_client.source.engine.source import Source
from acker_client.source.files.files import TEXT_SCHEMA
from acker_client.source.paths import Paths
from acker_client.source.put_back.input import LetterParser, PutBackInput
from acker_client.source.records.input import Input


class PutBack(Source):
    """Reads records again that ``acker dead-letters --put-back`` has put into files.

    ``paths``: these files. ``schema``: leave it out for records that ``Files`` reads as text. Their rows are ``value
    string, path string, line bigint`` again, with the original path and line. For JSON lines, and for inputs with
    columns such as Parquet, give the columns of the original rows. A record that becomes a dead letter again keeps its
    first origin. ``checkpoint`` is required, so that each record is read once. ``follow_s``: as for ``Files``.
    ``options``: see ``CommonOptions``.
    """

    def __init__(
        self, paths: Paths, *, schema: Any = None, follow_s: float | None = None, **options: Unpack[CommonOptions]
    ) -> None:
        super().__init__(options_of(PutBack, options))
        if self.options.checkpoint is None:
            raise ValueError("checkpoint: give one, like checkpoint='again.ckpt', so that each record is read once")
        if follow_s is not None:
            check_seconds("follow_s", follow_s)
        self.paths = paths
        self.schema = schema
        self.follow_s = follow_s

    def input(self) -> tuple[Input[Any], Any]:
        parser = LetterParser(None if self.schema is None else arrow_schema(self.schema))
        own_files, clock = self.options.own_files, self.options.clock
        input_ = PutBackInput(self.paths, parser, own_files=own_files, follow_s=self.follow_s, clock=clock)
        return input_, TEXT_SCHEMA if self.schema is None else self.schema
