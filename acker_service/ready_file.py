"""ReadyFile: the file that tells other programs where a server listens.

Decides that other programs never find half of the file, and what happens if the file cannot be written. Does not decide
its content.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from acker_service.ports import StartError


class ReadyFile:
    """The file with the server's addresses. It is written under a temporary name before the state is consumed, and
    renamed once the server serves."""

    def __init__(self, name: str | None) -> None:
        self._path = None if name is None else Path(name)

    def write(self, fields: dict[str, Any]) -> None:
        """Write the file under its temporary name. Raises :class:`StartError`."""
        if self._path is not None:
            with self._naming_errors(self._path):
                self._temporary(self._path).write_text(json.dumps(fields) + "\n")

    def publish(self) -> None:
        """Rename the file to its final name. Raises :class:`StartError`."""
        if self._path is not None:
            with self._naming_errors(self._path):
                self._temporary(self._path).replace(self._path)

    @staticmethod
    def _temporary(path: Path) -> Path:
        return path.with_name(path.name + ".tmp")

    @contextlib.contextmanager
    def _naming_errors(self, path: Path) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            with contextlib.suppress(OSError):
                self._temporary(path).unlink()
            raise StartError(
                f"--ready-file {path}: cannot be written ({error.strerror}); name a file in a writable directory"
            ) from None
