"""Dead letters: what was tried often enough, as a file of JSON lines, durable before it counts as done.

Never decides which record is one (``retry``), nor whether there are too many
(`in_flight`). A source that dies right after writing may write the same letters again: a letter is there at least once.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable
from io import FileIO
from pathlib import Path

from acker_client.source.core.dead_letter import DeadLetter
from acker_client.source.disk import sync_directory, to_write
from acker_client.source.errors import SourceError


class DeadLetterFile:
    """The file of dead letters, appended to: a ``DeadLetterStore``."""

    __slots__ = ("_file", "path")

    def __init__(self, path: Path) -> None:
        self.path = path
        self._file: FileIO | None = None

    def __str__(self) -> str:
        return str(self.path)

    def open(self) -> None:
        """Open the file, made if need be. Raises :class:`SourceError`."""
        self._opened()

    def _opened(self) -> FileIO:
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
        file = self._opened()
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
