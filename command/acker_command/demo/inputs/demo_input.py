"""Demo input: what the job needs of a source, whichever it is."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any, ClassVar, NotRequired, TypedDict

import pyarrow as pa

from acker_client.source import Batch, Listener, Retry, Source
from acker_command.demo.corpus import Corpus
from acker_command.demo.expected import Ints


class SourceOptions(TypedDict):
    """What the demo asks of each source, of the options that all have."""

    name: str
    checkpoint: NotRequired[Path]
    dead_letters: Path
    retry: Retry
    max_dead_share: float
    batch_records: int
    listener: Listener


class DemoInput:
    """The lines of ``text`` as the records of a source. ``folder``: where it may write; ``batch_records``: lines of a
    batch.

    ``packages``: what it needs beside the demo's own; ``install``: the command that brings them. ``records_max``: how
    many lines it takes unless asked for more, None: all. ``columns``: SQL over the source's rows for ``value`` (a
    string, or the bytes of one), ``path`` (below the input's root) and ``line``.
    """

    packages: ClassVar[tuple[str, ...]] = ()
    install: ClassVar[str] = ""
    records_max: ClassVar[int | None] = None
    columns: tuple[str, ...]

    def __init__(self, text: Corpus, folder: Path, batch_records: int) -> None:
        self.text = text
        self.folder = folder
        self.batch_records = batch_records

    @property
    def place(self) -> str:
        """Where the lines are, for people."""
        raise NotImplementedError

    def begin(self, exits: ExitStack) -> None:
        """Start what holds the lines, to be ended by ``exits``, and put them there. Raises ``DemoError``."""

    def run(self, spark: Any, process: Callable[[Batch], None], options: SourceOptions) -> None:
        """Have every line processed; returns when each has its answer."""
        raise NotImplementedError

    def records(self, origins: pa.RecordBatch) -> Ints:
        """Which lines of the input these are, int64[n], by where the source found them."""
        raise NotImplementedError

    def is_at_end(self) -> bool:
        """Whether what is written down as done is the whole input."""
        raise NotImplementedError


class SourceInput(DemoInput):
    """An input that a source reads, with its checkpoint in a file."""

    def source(self, options: SourceOptions) -> Source:
        """The source, with ``options``."""
        raise NotImplementedError

    def run(self, spark: Any, process: Callable[[Batch], None], options: SourceOptions) -> None:
        self.source({**options, "checkpoint": self._checkpoint}).run(spark, process)

    @property
    def _checkpoint(self) -> Path:
        return self.folder / "checkpoint.json"

    def _saved(self) -> Mapping[str, Mapping[str, Any]]:
        """What the checkpoint file says of each partition: ``done`` and ``mark``."""
        return {each["partition"]: each for each in json.loads(self._checkpoint.read_text())["partitions"]}
