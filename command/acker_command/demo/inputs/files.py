"""Files: the lines where they are."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from acker_client.source import Files
from acker_command.demo.corpus import Corpus
from acker_command.demo.expected import Ints
from acker_command.demo.inputs.demo_input import SourceInput, SourceOptions

PATH_MAX = 4096


class FilesLines(SourceInput):
    """A partition is a file, a position a line of it."""

    def __init__(self, text: Corpus, folder: Path, batch_records: int) -> None:
        super().__init__(text, folder, batch_records)
        self.columns = ("value", f"substring(path, {len(text.root) + 1}, {PATH_MAX}) AS path", "line")
        self._first_of = text.first_of()

    @property
    def place(self) -> str:
        return "the files"

    def source(self, options: SourceOptions) -> Files:
        return Files(list(self.text.paths), **options)

    def records(self, origins: pa.RecordBatch) -> Ints:
        paths: Any = origins.column("path")
        firsts = np.array([self._first_of[path] for path in paths.dictionary.to_pylist()], np.int64)
        records: Ints = firsts[paths.indices.to_numpy()] + origins.column("line").to_numpy() - 1
        return records

    def is_at_end(self) -> bool:
        """Whether all bytes of every file are done."""
        done = {path: each["mark"]["bytes"] for path, each in self._saved().items()}
        return all(done.get(path) == os.path.getsize(path) for path in self.text.paths)
