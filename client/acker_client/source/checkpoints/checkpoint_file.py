"""The checkpoint file: one JSON file that says how far a source is done. It is written completely or not at all.

Content: the version, the source, the kind of input, a digest over the partitions, and (for people) the last writer. The
identity too, once the input has asked for it. For each partition: the done records as run lengths, the input's mark,
and the number of answered records. This module decides which files are refused, and never which records are done. A
lock on a file beside the checkpoint lets only one process use it.
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import json
import os
import secrets
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import IO, Any

from acker_client.source.checkpoints.head import Head
from acker_client.source.disk import sync_directory, to_read, to_write
from acker_client.source.errors import CheckpointError
from acker_client.source.records.input import Answered, Committed
from acker_client.source.records.ranges import Ranges
from acker_client.source.records.stores import Committer

FORMAT = "acker-checkpoint"
VERSION = 2

# The key of the content, by version.
_CONTENT = {1: "progress", 2: "partitions"}

# The text over which the digest goes.
_COMPACT = json.JSONEncoder(sort_keys=True, separators=(",", ":"))

# Error numbers for a lock that another process holds.
_HELD = (errno.EAGAIN, errno.EACCES)


class CheckpointFile:
    """The checkpoint file of one source: a ``SignedCheckpointStore`` and an ``IdentifiedCheckpointStore``.

    ``wall``: Unix seconds.
    """

    __slots__ = ("_by", "_identity", "_lock", "_wall", "kind", "path", "source")

    def __init__(self, path: Path, wall: Callable[[], float] = time.time) -> None:
        self.path = path
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
                self.save(committed)
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
        head = self._head
        saved = head.parse(content, lambda saved: digest_of(saved.get(_CONTENT[saved["version"]])))
        self._identity = str(saved.get("identity") or "")
        try:
            return _of_version_1(saved["progress"]) if saved["version"] == 1 else _committed(saved["partitions"])
        except (KeyError, OverflowError, TypeError, ValueError) as error:
            raise head.incomplete("each partition", error) from None

    def save(self, committed: Mapping[str, Committed]) -> None:
        """Replace the checkpoint durably. After a crash at any point either the old or the new file is complete.

        Raises :class:`CheckpointError` if it cannot be written; the old one then remains.
        """
        identity = {"identity": self._identity} if self._identity else {}
        head = {
            "format": FORMAT,
            "version": VERSION,
            "source": self.source,
            "input": self.kind,
            **identity,
            **self._signature(),
        }
        draft = self.path.with_name(self.path.name + ".new")
        try:
            with open(draft, "wb") as file:
                file.writelines(content_of(head, committed))
                file.flush()
                os.fsync(file.fileno())
            os.replace(draft, self.path)
            sync_directory(self.path)
        except OSError as error:
            raise CheckpointError(
                f"checkpoint {self.path} cannot be written ({error.strerror}): {to_write(error)}. Nothing is lost: the"
                " previous checkpoint still holds, and the next start reads the records again that were done since"
            ) from None

    def _signature(self) -> dict[str, Any]:
        if self._by is None:
            return {}
        return {"by": {**asdict(self._by), "time": datetime.fromtimestamp(self._wall(), UTC).isoformat("T", "seconds")}}

    @property
    def _head(self) -> Head:
        return Head(
            str(self.path),
            FORMAT,
            _CONTENT,
            {"source": self.source, "input": self.kind},
            another="another file",
            begin_anew="remove it to read the input from its beginning",
            apart="give every source a checkpoint of its own",
        )


def _committed(partitions: list[dict[str, Any]]) -> dict[str, Committed]:
    """Parse the partitions that ``save`` wrote. Raises for other content."""
    return {
        str(each["partition"]): Committed(
            Ranges.from_runs(each["done"]), dict(each["mark"]), Answered.from_json(each.get("answered"))
        )
        for each in partitions
    }


def _of_version_1(progress: dict[str, Any]) -> dict[str, Committed]:
    """Convert version 1, which had only lines of files, and only the finished prefix of each file."""
    return {
        str(file["path"]): Committed(
            Ranges.below(int(file["lines"])),
            {"bytes": int(file["bytes"]), "complete": bool(file["complete"]), "digest": str(file["mark"])},
        )
        for file in progress["files"]
    }


def content_of(head: Mapping[str, Any], committed: Mapping[str, Committed]) -> Iterator[bytes]:
    """Yield the file's content: ``head``, one line per partition, and their digest.

    It is never in memory as a whole, because there may be a million partitions, and one may hold many numbers.
    """
    digest, comma = hashlib.blake2b(b"[", digest_size=16), ""
    yield b"{\n" + "".join(f" {json.dumps(key)}: {json.dumps(head[key])},\n" for key in head).encode()
    yield b' "partitions": ['
    for name, each in committed.items():
        done, answered = each.done.to_runs(), each.answered.to_json()
        entry = {"partition": name, "done": done, "mark": dict(each.mark), "answered": answered}
        digest.update(f"{comma}{_COMPACT.encode(entry)}".encode())
        yield f"{comma}\n  {json.dumps(entry)}".encode()
        comma = ","
    digest.update(b"]")
    yield f'\n ],\n "digest": "{digest.hexdigest()}"\n}}\n'.encode()


def digest_of(content: object) -> str:
    """Return a checksum over the content of a checkpoint."""
    return hashlib.blake2b(_COMPACT.encode(content).encode(), digest_size=16).hexdigest()
