"""Dead letters: what was tried often enough, as JSON lines, durable before it counts as done.

Decides the format of a letter. Never decides which record is one (``retry``), nor whether there are too many
(``flight``). A source that dies right after writing may write the same letters again: a letter is there at least once.
"""

from __future__ import annotations

import base64
import contextlib
import json
import os
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import UTC, datetime
from io import FileIO
from pathlib import Path
from typing import Any

from acker_client.source.disk import sync_directory, to_write
from acker_client.source.errors import SourceError

# A line longer than this is cut in its letter; "bytes" says how long it was, and path and byte where it is.
VALUE_BYTES_MAX = 1 << 20


@dataclass(frozen=True, slots=True)
class DeadLetter:
    """One record that spent its retries: why, how often it was tried, when (Unix seconds), from where, and itself.

    ``value`` None: the input could not give it once more.
    """

    source: str
    reason: str
    failed: int
    interrupted: int
    first_s: float
    last_s: float
    path: str
    line: int
    byte: int
    value: bytes | None

    def to_json(self) -> str:
        """One line of JSON. ``value`` is the text; what is not UTF-8 stands as ``value_base64``."""
        letter: dict[str, Any] = {
            "source": self.source,
            "reason": self.reason,
            "attempts": {"failed": self.failed, "interrupted": self.interrupted},
            "first": _iso(self.first_s),
            "last": _iso(self.last_s),
            "path": self.path,
            "line": self.line,
            "byte": self.byte,
        }
        return json.dumps(letter | _value(self.value), ensure_ascii=False)


class DeadLetters:
    """The file of dead letters, appended to."""

    __slots__ = ("_file", "path")

    def __init__(self, path: Path) -> None:
        self.path = path
        self._file: FileIO | None = None

    def open(self) -> FileIO:
        """Open the file, made if need be. Raises :class:`SourceError`."""
        if self._file is None:
            try:
                # Without a buffer, which would keep what could not be written and try again when it is closed.
                file = FileIO(self.path, "ab+")
                try:
                    sync_directory(self.path)
                    _end_torn_line(file)
                except OSError:
                    file.close()
                    raise
            except OSError as error:
                raise self._unwritable(error) from None
            self._file = file
        return self._file

    def write(self, letters: Iterable[DeadLetter]) -> None:
        """Append ``letters`` and return when they are on disk. Raises :class:`SourceError` when the file cannot be
        written."""
        lines = "".join(letter.to_json() + "\n" for letter in letters)
        file = self.open()
        size = os.fstat(file.fileno()).st_size
        try:
            _write_all(file, lines.encode(errors="surrogatepass"))
            os.fsync(file.fileno())
        except OSError as error:
            with contextlib.suppress(OSError):
                # Their records are read again: half of the letters would only be there twice.
                file.truncate(size)
            raise self._unwritable(error) from None

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None

    def _unwritable(self, error: OSError) -> SourceError:
        return SourceError(
            f"dead letters cannot be written to {self.path} ({error.strerror}): {to_write(error)}. Nothing is lost:"
            " their records are not done, and are read again at the next start"
        )


def _write_all(file: FileIO, content: bytes) -> None:
    left = memoryview(content)
    while left:
        left = left[file.write(left) :]


def _end_torn_line(file: FileIO) -> None:
    """A crash in the middle of a letter must not spoil the next one, too."""
    if file.seek(0, os.SEEK_END):
        file.seek(-1, os.SEEK_END)
        if file.read(1) != b"\n":
            file.write(b"\n")


def _value(value: bytes | None) -> dict[str, Any]:
    if value is None:
        return {"value": None}
    head = value[:VALUE_BYTES_MAX]
    cut = {"bytes": len(value)} if len(value) > len(head) else {}
    try:
        return {"value": head.decode(), **cut}
    except UnicodeDecodeError:
        return {"value_base64": base64.b64encode(head).decode(), **cut}


def _iso(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).isoformat(timespec="milliseconds")
