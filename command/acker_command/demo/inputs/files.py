"""Files: the job reads the lines from the files themselves. Each file is a partition."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from acker_client.source import Files
from acker_command.demo.corpus import Corpus
from acker_command.demo.inputs import DemoInput


class FilesLines(DemoInput):
    place = "the files"

    def __init__(self, text: Corpus, folder: Path, batch_records: int) -> None:
        super().__init__(text, folder, batch_records)
        self.columns = ("value", f"substring(path, {len(text.root) + 1}) AS path", "line")

    def source(self, **options: Any) -> Files:
        return Files(list(self.text.paths), **options)

    def is_at_end(self) -> bool:
        done = {path: each["mark"]["bytes"] for path, each in self.saved().items()}
        return done == {path: os.path.getsize(path) for path in self.text.paths}
