"""Inputs: how the lines reach the job. A new input is a file in this folder and a line in ``input_of``."""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pyarrow as pa

    from acker_client.source import Batch, Source
    from acker_command.demo.corpus import Corpus, Ints

SOURCES = ("files", "kafka", "kinesis", "frame")


def input_of(source: str) -> type[DemoInput]:
    """Return the input of one of ``SOURCES``. Imports late, as inputs need the packages of the extra ``spark``."""
    from acker_command.demo.inputs.files import FilesLines
    from acker_command.demo.inputs.frame import FrameLines
    from acker_command.demo.inputs.kafka import KafkaLines
    from acker_command.demo.inputs.kinesis import KinesisLines

    return dict(zip(SOURCES, (FilesLines, KafkaLines, KinesisLines, FrameLines), strict=True))[source]


class DemoInput:
    """The lines of ``text`` as the records of a source with a checkpoint file in ``folder``.

    ``packages``: the packages that it needs besides the packages of the demo. ``install``: the command that installs
    them. ``records_max``: the number of lines that it takes by default; None: all. ``place``: a text for people about
    where the lines are.
    ``columns``: SQL over the source's rows for ``value`` (a string, or its bytes), ``path`` (below ``text.root``) and
    ``line``.
    """

    packages: tuple[str, ...] = ()
    install = ""
    records_max: int | None = None
    place: str
    columns: tuple[str, ...]

    def __init__(self, text: Corpus, folder: Path, batch_records: int) -> None:
        self.text, self.folder, self.batch_records = text, folder, batch_records

    def begin(self, exits: ExitStack) -> None:
        """Put the lines where the source reads them. ``exits`` stops what was started. Raises ``DemoError``."""

    def source(self, **options: Any) -> Source:
        raise NotImplementedError

    def run(self, spark: Any, process: Callable[[Batch], None], **options: Any) -> None:
        """Process every line; return when each has its outcome."""
        self.source(checkpoint=self.folder / "checkpoint.json", **options).run(spark, process)

    def records(self, origins: pa.RecordBatch) -> Ints:
        """Return the numbers of the records that the source found at ``origins``."""
        return self.text.numbers(origins["path"], origins["line"])

    def is_at_end(self) -> bool:
        """Return whether the checkpoint is at the end of the input."""
        raise NotImplementedError

    def saved(self) -> dict[str, Any]:
        """Return ``done`` and ``mark`` of each partition in the checkpoint file."""
        partitions = json.loads((self.folder / "checkpoint.json").read_text())["partitions"]
        return {each["partition"]: each for each in partitions}
