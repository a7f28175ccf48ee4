"""State file: the whole state of a shard, on disk between two runs of a server.

Decides the file's format, that it is written whole or not at all, and that it is served once: whoever reads it consumes
it, so that a crash later cannot bring old state back. Knows nothing about what the arrays mean.

    acker-state 1\\n | u32 length of header | header, JSON | arrays, one after another | 32 bytes BLAKE2b of all before
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import struct
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import numpy.typing as npt

from acker_service.logs import Log

Arrays = dict[str, npt.NDArray[Any]]

FORMAT = 1
MAGIC = b"acker-state "
DIGEST_BYTES = 32
# Numbers, flags and raw bytes; nothing that would have to be unpickled.
DTYPE_KINDS = "biufSU"
# How many consumed states a directory remembers: more than restarts that anyone would undo.
CONSUMED_MAX = 4096

log = Log("acker.state")


class StateError(Exception):
    """A state that is not served; the text names the file and says what to do."""


class StateDir:
    """A directory that holds the state of one server: ``acker.state`` while no server runs, a lock while one does."""

    def __init__(self, path: str) -> None:
        """Make and lock the directory. Raises :class:`StateError` when another server has it or it cannot be used."""
        self._path = Path(path)
        self._state = self._path / "acker.state"
        self._consumed = self._path / "consumed"
        self._serving = self._path / "serving"
        self._id = ""
        try:
            self._path.mkdir(parents=True, exist_ok=True)
            self._lock = open(self._path / "lock", "a+b")  # noqa: SIM115  held while the server runs
        except OSError as error:
            raise StateError(f"--state-dir {path}: {error.strerror}; name a directory that can be written") from None
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            self._lock.close()
            raise StateError(
                f"--state-dir {path}: another server has it; stop that one, or give this one a directory of its own"
            ) from None

    @property
    def was_lost(self) -> bool:
        """Has the last server here ended without writing its state?"""
        return self._serving.exists() and not self._state.exists()

    def mark_serving(self) -> None:
        """Note that a server serves, until it writes its state. Raises :class:`StateError`."""
        try:
            self._serving.touch()
        except OSError as error:
            raise StateError(f"--state-dir {self._path}: {error.strerror}; make room or name another") from None

    def read(self) -> Arrays | None:
        """The arrays of the state, or None where there is none. Does not consume it. Raises :class:`StateError`."""
        if not self._state.exists():
            return None
        try:
            with open(self._state, "rb") as file:
                self._id, arrays = _read(file)
        except (_Damaged, OSError) as error:
            raise self.refusal(str(error)) from None
        if self._id in self._consumed_ids():
            raise self.refusal(
                "has been served before (it was consumed), and serving it twice could tell outcomes twice"
            )
        return arrays

    def refusal(self, why: str) -> StateError:
        """The error for a state that cannot be served."""
        return StateError(
            f"state file {self._state}: {why}. Nothing of it was used. Move it away or start with --discard-state: "
            "then the server starts empty, and sources replay what was pending"
        )

    def consume(self) -> None:
        """Delete the state that was read, and remember that it has been served."""
        ids = [*self._consumed_ids(), self._id][-CONSUMED_MAX:]
        _replace(self._consumed, lambda file: file.write("".join(f"{id}\n" for id in ids).encode()))
        self._state.unlink()
        _sync(self._path)

    def discard(self) -> None:
        """Put a state aside, under a name that no server reads."""
        if self._state.exists():
            aside = self._state.with_suffix(".discarded")
            self._state.replace(aside)
            _sync(self._path)
            log.warning("state_discarded", moved_to=str(aside))

    def write(self, arrays: Mapping[str, npt.NDArray[Any]]) -> int:
        """Write the state, whole or not at all, and return its size in bytes. Raises :class:`OSError`."""
        id = os.urandom(16).hex()
        _replace(self._state, lambda file: _write(file, id, arrays))
        self._serving.unlink(missing_ok=True)
        return self._state.stat().st_size

    def close(self) -> None:
        """Unlock the directory."""
        self._lock.close()

    def _consumed_ids(self) -> list[str]:
        return self._consumed.read_text().split() if self._consumed.exists() else []


class _Damaged(Exception):
    """What is wrong with a file, to stand after its name."""


def _write(file: BinaryIO, id: str, arrays: Mapping[str, npt.NDArray[Any]]) -> None:
    table = [{"name": name, "dtype": array.dtype.str, "shape": array.shape} for name, array in arrays.items()]
    header = json.dumps({"id": id, "arrays": table}).encode()
    digest = hashlib.blake2b(digest_size=DIGEST_BYTES)
    start = MAGIC + f"{FORMAT}\n".encode() + struct.pack("<I", len(header)) + header
    parts: list[bytes | memoryview] = [start]
    parts += [np.ascontiguousarray(array).reshape(-1).view(np.uint8).data for array in arrays.values()]
    for part in parts:
        digest.update(part)
        file.write(part)
    file.write(digest.digest())


def _read(file: BinaryIO) -> tuple[str, Arrays]:
    start = len(_first_line(file.readline(32)))
    file.seek(0)
    content = np.fromfile(file, np.uint8)
    vouched = content[:-DIGEST_BYTES]
    if content[-DIGEST_BYTES:].tobytes() != hashlib.blake2b(vouched.data, digest_size=DIGEST_BYTES).digest():
        raise _Damaged("is damaged or cut short (its checksum does not match)")
    return _arrays(vouched, start)


def _first_line(line: bytes) -> bytes:
    if not line.startswith(MAGIC) or not line.endswith(b"\n"):
        raise _Damaged("is not a state of the acker, or cut short within its first line")
    name = line[len(MAGIC) : -1].decode("ascii", "replace")
    if name != str(FORMAT):
        raise _Damaged(f"has format {name}, and this version of the acker reads format {FORMAT} only")
    return line


def _arrays(content: npt.NDArray[np.uint8], offset: int) -> tuple[str, Arrays]:
    """Cut the arrays out of what the checksum vouches for; what still does not fit was written wrongly."""
    try:
        (length,) = struct.unpack("<I", content[offset : offset + 4].tobytes())
        header = json.loads(content[offset + 4 : offset + 4 + length].tobytes())
        offset += 4 + length
        arrays: Arrays = {}
        for row in header["arrays"]:
            dtype = np.dtype(row["dtype"])
            if dtype.kind not in DTYPE_KINDS:
                raise ValueError(f"array of {dtype}")
            stop = offset + dtype.itemsize * int(np.prod(row["shape"], dtype=np.int64))
            # A copy is aligned as its dtype wants it; the bytes of the file are not.
            arrays[row["name"]] = content[offset:stop].copy().view(dtype).reshape(row["shape"])
            offset = stop
        if offset != len(content):
            raise ValueError("bytes left over")
        return str(header["id"]), arrays
    except (struct.error, ValueError, KeyError, TypeError) as error:
        raise _Damaged(f"is not whole ({error})") from None


def _replace(path: Path, write: Callable[[BinaryIO], object]) -> None:
    """Give ``path`` new content at one stroke, on disk before this returns."""
    temporary = path.with_name(path.name + ".tmp")
    with open(temporary, "wb") as file:
        write(file)
        file.flush()
        os.fsync(file.fileno())
    temporary.replace(path)
    _sync(path.parent)


def _sync(directory: Path) -> None:
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
