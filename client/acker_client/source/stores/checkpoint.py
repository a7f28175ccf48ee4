"""Checkpoint: one JSON file that says up to where a source is done; written whole or not at all.

Decides the format (version, source, kind of input, the input's own progress, a digest over it) and which file is
refused. Never decides what progress is: the input does. One process at a time holds a checkpoint, by a lock on a file
beside it.
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import json
import os
from pathlib import Path
from typing import IO, Any

from acker_client.source.core.input import Progress
from acker_client.source.disk import sync_directory, to_read, to_write
from acker_client.source.errors import CheckpointError

FORMAT = "acker-checkpoint"
VERSION = 1

# What a system answers when another has the lock.
_HELD = (errno.EAGAIN, errno.EACCES)


class Checkpoint:
    """The checkpoint file of one source. ``kind`` names the kind of input that its progress is of."""

    __slots__ = ("_lock", "kind", "path", "source")

    def __init__(self, path: Path, *, source: str, kind: str) -> None:
        self.path = path
        self.source = source
        self.kind = kind
        self._lock: IO[bytes] | None = None

    def acquire(self) -> None:
        """Take the lock, or raise :class:`CheckpointError`: two sources on one checkpoint would undo each other's."""
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

    def release(self) -> None:
        if self._lock is not None:
            self._lock.close()
            self._lock = None

    def load(self) -> Progress | None:
        """The progress that was saved last, or None if there is none. Raises :class:`CheckpointError`."""
        try:
            content = self.path.read_bytes()
        except FileNotFoundError:
            return None
        except OSError as error:
            raise CheckpointError(
                f"checkpoint {self.path} cannot be read ({error.strerror}): {to_read(error)}"
            ) from None
        saved = self._parse(content)
        self._check(saved)
        progress: Progress = saved["progress"]
        return progress

    def save(self, progress: Progress) -> None:
        """Replace the checkpoint, durably: after a crash at any point the old one or the new one is there, whole.

        Raises :class:`CheckpointError` when it cannot be written; the old one is there then.
        """
        saved = {
            "format": FORMAT,
            "version": VERSION,
            "source": self.source,
            "input": self.kind,
            "progress": progress,
            "digest": _digest(progress),
        }
        draft = self.path.with_name(self.path.name + ".new")
        try:
            with open(draft, "wb") as file:
                file.write(json.dumps(saved, indent=1).encode() + b"\n")
                file.flush()
                os.fsync(file.fileno())
            os.replace(draft, self.path)
            sync_directory(self.path)
        except OSError as error:
            raise CheckpointError(
                f"checkpoint {self.path} cannot be written ({error.strerror}): {to_write(error)}. Nothing is lost: the"
                " one before it stands, and the next start reads again what was done since"
            ) from None

    def _parse(self, content: bytes) -> dict[str, Any]:
        try:
            saved = json.loads(content)
        except ValueError:
            saved = None
        if not isinstance(saved, dict) or saved.get("format") != FORMAT:
            raise CheckpointError(
                f"{self.path} is not a checkpoint of the acker, or is damaged: name another file, or remove it to read"
                " the input from its beginning"
            )
        return saved

    def _check(self, saved: dict[str, Any]) -> None:
        if saved.get("version") != VERSION:
            raise CheckpointError(
                f"checkpoint {self.path} has version {saved.get('version')!r}, and this acker reads version {VERSION}"
            )
        if saved.get("digest") != _digest(saved.get("progress")):
            raise CheckpointError(
                f"checkpoint {self.path} is damaged (its digest does not fit): restore it, or remove it to read the"
                " input from its beginning"
            )
        for what, expected in (("source", self.source), ("input", self.kind)):
            if saved.get(what) != expected:
                raise CheckpointError(
                    f"checkpoint {self.path} is of {what} {saved.get(what)!r}, not of {expected!r}: give every source a"
                    " checkpoint of its own"
                )


def _digest(progress: object) -> str:
    content = json.dumps(progress, sort_keys=True, separators=(",", ":")).encode()
    return hashlib.blake2b(content, digest_size=16).hexdigest()
