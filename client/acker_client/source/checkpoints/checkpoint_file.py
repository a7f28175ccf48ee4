"""The checkpoint file: one JSON file that says how far a source is done. It is written completely or not at all.

``content`` says what is in it. A lock on a file beside the checkpoint lets only one process use it.
"""

from __future__ import annotations

import errno
import fcntl
import os
import secrets
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import IO

from acker_client.source.checkpoints.content import Layout, content_of
from acker_client.source.disk import sync_directory, to_read, to_write
from acker_client.source.errors import CheckpointError
from acker_client.source.records.input import Committed
from acker_client.source.records.stores import Committer

# Error numbers for a lock that another process holds.
_HELD = (errno.EAGAIN, errno.EACCES)


def behind_link(path: Path) -> Path:
    """Return the file that a symbolic link leads to, which need not exist yet; another path as it is.

    Replacing the link itself would leave the file behind it as it was, for example on a volume.
    """
    return Path(os.path.realpath(path)) if path.is_symlink() else path


class CheckpointFile:
    """The checkpoint file of one source: a ``SignedCheckpointStore`` and an ``IdentifiedCheckpointStore``.

    ``wall``: Unix seconds.
    """

    __slots__ = ("_by", "_identity", "_lock", "_wall", "kind", "path", "source")

    def __init__(self, path: Path, wall: Callable[[], float] = time.time) -> None:
        self.path = behind_link(path)
        self._wall = wall
        self._by: Committer | None = None
        self._identity = ""
        self.source = ""
        self.kind = ""
        self._lock: IO[bytes] | None = None

    def __str__(self) -> str:
        return str(self.path)

    def open(self, source: str, kind: str) -> None:
        """Take the lock, so that no two sources overwrite each other's checkpoint. Raises :class:`CheckpointError`."""
        self.source, self.kind = source, kind
        try:
            lock = open(f"{self.path}.lock", "ab")  # noqa: SIM115 (it stays open)
        except OSError as error:
            raise CheckpointError(
                f"checkpoint {self.path}: its lock {self.path}.lock cannot be opened ({error.strerror}):"
                f" {to_write(error)}"
            ) from None
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            lock.close()
            if error.errno not in _HELD:
                raise CheckpointError(
                    f"checkpoint {self.path}: its lock {self.path}.lock cannot be taken ({error.strerror}): put it on a"
                    " file system that has locks"
                ) from None
            raise CheckpointError(
                f"checkpoint {self.path} is in use by another running source: stop that one, or give this one its own"
            ) from None
        self._lock = lock

    def sign(self, by: Committer) -> None:
        self._by = by

    def identity(self) -> str:
        """Return the identity of the last loaded state; "" if it has none."""
        return self._identity

    def draw_identity(self) -> str:
        """Return the identity. Writes the file again if it has none yet. Raises :class:`CheckpointError`."""
        if not self._identity:
            committed = self.load()
            if not self._identity:
                self._identity = secrets.token_hex(8)
                try:
                    self.save(committed)
                except BaseException:
                    # Otherwise a commit would name an identity that no later start finds in the checkpoint.
                    self._identity = ""
                    raise
        return self._identity

    def close(self) -> None:
        if self._lock is not None:
            self._lock.close()
            self._lock = None

    def load(self) -> dict[str, Committed]:
        """Return the last saved state, also if an older version wrote it. Raises :class:`CheckpointError`."""
        try:
            content = self.path.read_bytes()
        except FileNotFoundError:
            return {}
        except OSError as error:
            raise CheckpointError(
                f"checkpoint {self.path} cannot be read ({error.strerror}): {to_read(error)}"
            ) from None
        committed, saved = self._layout.parse(content)
        self._identity = str(saved.get("identity") or "")
        return committed

    def save(self, committed: Mapping[str, Committed]) -> None:
        """Replace the checkpoint durably. After a crash at any point either the old or the new file is complete.

        Raises :class:`CheckpointError` if it cannot be written; the old one then remains.
        """
        fields = self._layout.fields(self._identity, self._by, self._wall(), {})
        draft = self.path.with_name(self.path.name + ".new")
        try:
            with open(draft, "wb") as file:
                file.writelines(content_of(fields, committed))
                file.flush()
                os.fsync(file.fileno())
            os.replace(draft, self.path)
            sync_directory(self.path)
        except OSError as error:
            raise CheckpointError(
                f"checkpoint {self.path} cannot be written ({error.strerror}): {to_write(error)}. Nothing is lost: the"
                " previous checkpoint still holds, and the next start reads the records again that were done since"
            ) from None

    @property
    def _layout(self) -> Layout:
        return Layout(
            str(self.path),
            self.source,
            self.kind,
            another="another file",
            begin_anew="remove it to read the input from its beginning",
        )
