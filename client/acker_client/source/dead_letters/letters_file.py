"""Dead letters as a file of JSON lines. A letter is durable before its record counts as done.

``records.retry`` decides which records become dead letters, and ``engine.dead_lettering`` whether there are too many. A
source that dies right after a write may write the same letters again, so a letter is written at least once. The file is
locked during writes, so that ``put_back`` can remove letters while a source runs. A letter holds all of a record, so a
file or directory that is created here is for the user of the source alone.
"""

from __future__ import annotations

import contextlib
import fcntl
import logging
import os
import time
from collections.abc import Callable, Iterable
from io import FileIO
from pathlib import Path
from typing import IO

from acker_client.error_text import shorten
from acker_client.source.disk import open_private, sync_directory, to_write
from acker_client.source.errors import SourceError
from acker_client.source.records.dead_letter import NOTHING_LOST, DeadLetter

# A write of letters takes milliseconds. A process that holds the lock for longer is stopped, or stuck.
LONG_S = 5.0
LOOK_S = 0.05

log = logging.getLogger("acker_client.source")


class DeadLetterFile:
    """A file to which dead letters are appended: a ``DeadLetterStore``."""

    __slots__ = ("_file", "path")

    def __init__(self, path: Path) -> None:
        self.path = path
        self._file: FileIO | None = None

    def __str__(self) -> str:
        return str(self.path)

    def open(self) -> None:
        """Open the file. Creates it, and its directory, for this user alone if they do not exist. Raises
        :class:`SourceError`."""
        self._open_file()

    def _open_file(self) -> FileIO:
        if self._file is None:
            try:
                with contextlib.suppress(FileExistsError):
                    self.path.parent.mkdir(0o700)
                    sync_directory(self.path.parent)
                # Unbuffered: a buffer would keep data that could not be written, and write it on close.
                file = FileIO(self.path, "ab+", opener=open_private)
                try:
                    sync_directory(self.path)
                except OSError:
                    file.close()
                    raise
            except OSError as error:
                raise self._unwritable(error) from None
            self._file = file
        return self._file

    def write(self, letters: Iterable[DeadLetter]) -> None:
        """Append ``letters`` and return when they are on disk. Raises :class:`SourceError` if that fails."""
        lines = "".join(letter.to_json() + "\n" for letter in letters)
        file = self._locked()
        size = os.fstat(file.fileno()).st_size
        try:
            _end_torn_line(file)
            _write_all(file, lines.encode(errors="surrogatepass"))
            os.fsync(file.fileno())
        except OSError as error:
            with contextlib.suppress(OSError):
                # The records will be read again, so letters that remained here would be written twice.
                file.truncate(size)
            raise self._unwritable(error) from None
        finally:
            fcntl.flock(file, fcntl.LOCK_UN)

    def _locked(self) -> FileIO:
        """Return the file at the path, locked. ``put_back`` may have replaced the file since the last write."""
        try:
            while True:
                file = self._open_file()
                self._lock(file)
                if is_at(file, self.path):
                    return file
                self.close()
        except OSError as error:
            raise self._unwritable(error) from None

    def _lock(self, file: FileIO) -> None:
        """Wait for the lock, and log a warning if that takes long."""
        long_s = time.monotonic() + LONG_S
        while time.monotonic() < long_s:
            with contextlib.suppress(BlockingIOError):
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                return
            time.sleep(LOOK_S)
        log.warning(
            "dead letters: waiting for another process that holds %s: let it go on, or end it (fuser -v names it)",
            self.path,
        )
        fcntl.flock(file, fcntl.LOCK_EX)

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None

    def _unwritable(self, error: OSError) -> SourceError:
        return SourceError(
            f"dead letters cannot be written to {self.path} ({error.strerror}): {to_write(error)}. {NOTHING_LOST}"
        )


class DeadLetterCall:
    """A ``DeadLetterStore`` that calls a function with a list of letters. The letters must be durable on return."""

    __slots__ = ("_take",)

    def __init__(self, take: Callable[[list[DeadLetter]], object]) -> None:
        self._take = take

    def __str__(self) -> str:
        return str(getattr(self._take, "__qualname__", self._take))

    def open(self) -> None:
        """Nothing to open."""

    def write(self, letters: Iterable[DeadLetter]) -> None:
        """Call the function. Raises :class:`SourceError` if it raises."""
        try:
            self._take(list(letters))
        except Exception as error:
            raise SourceError(f"dead letters were not taken by {self} ({shorten(error)}). {NOTHING_LOST}") from error

    def close(self) -> None:
        """Nothing to close."""


def is_at(file: IO[bytes], path: Path) -> bool:
    """Whether an open file is the file that is at ``path`` now."""
    try:
        return os.path.samestat(os.fstat(file.fileno()), os.stat(path))
    except FileNotFoundError:
        return False


def _write_all(file: FileIO, content: bytes) -> None:
    left = memoryview(content)
    while left:
        left = left[file.write(left) :]


def _end_torn_line(file: FileIO) -> None:
    """End an incomplete last line, so that a crash during a write does not damage the next letter too."""
    if file.seek(0, os.SEEK_END):
        file.seek(-1, os.SEEK_END)
        if file.read(1) != b"\n":
            file.write(b"\n")
