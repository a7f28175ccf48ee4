"""State file: the whole state of a shard, on disk between two runs of a server.

Decides the file's format. The file is written whole or not at all. It is used only once: the server that reads it also
deletes it, so old state cannot come back after a crash. Does not know what the arrays mean, and keeps at most one part
in memory.

    acker-state 2\\n | parts | u32 0 | 32 bytes: BLAKE2b of everything before
    part: u32 length of header | header, JSON | arrays, one after another

The name of the first part is the id of the state.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
import struct
from collections.abc import Callable, Iterable, Iterator
from itertools import chain
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import numpy.typing as npt

from acker_service.core.parts import StatePart
from acker_service.process.logs import Log

FORMAT = 2
MAGIC = b"acker-state "
DIGEST_BYTES = 32
BLOCK_BYTES = 1 << 20
# Numbers, flags and raw bytes. Objects are excluded, since they would be unpickled.
DTYPE_KINDS = "biufSU"
# How many ids of consumed states a directory remembers. Nobody restores a state file from so many restarts ago.
CONSUMED_MAX = 4096

log = Log("acker.state")


class StateError(Exception):
    """A state that cannot be served or written; the text names the file and says what to do."""


class StateDir:
    """A directory that holds the state of one server: ``acker.state`` while no server runs, a lock while a server
    runs."""

    def __init__(self, path: str) -> None:
        """Create and lock the directory. Raises :class:`StateError` if another server uses it or it is not writable."""
        self._path = Path(path)
        self._state = self._path / "acker.state"
        self._taken = self._path / "acker.state.taken"
        self._consumed = self._path / "consumed"
        self._serving = self._path / "serving"
        self._id = ""
        try:
            # Reasons of failed roots may quote records. A directory that exists keeps its mode.
            self._path.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._lock = open(self._path / "lock", "a+b")  # noqa: SIM115  held while the server runs
        except OSError as error:
            raise StateError(f"--state-dir {path}: {error.strerror}; name a writable directory") from None
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            self._lock.close()
            raise StateError(
                f"--state-dir {path}: another server uses it; stop that server, or give this one its own directory"
            ) from None

    @property
    def was_lost(self) -> bool:
        """Did the last server with this directory end without writing its state?"""
        return self._serving.exists() and not self._state.exists()

    def mark_serving(self) -> None:
        """Mark that a server with this directory runs. :meth:`write` removes the mark. Raises :class:`StateError`."""
        with _naming(self._serving, "make room or name another directory"):
            self._serving.touch()

    def read(self) -> Iterator[StatePart] | None:
        """Return the parts of the state, or None if there is none. Does not consume it. The call and the iterator raise
        :class:`StateError`."""
        if not self._state.exists():
            return None
        try:
            with open(self._state, "rb") as file:
                _check(file)
                self._id = _read_id(file)
            consumed = self._consumed_ids()
        except (_Damaged, OSError) as error:
            raise self.refusal(str(error)) from None
        if self._id in consumed:
            raise self.refusal("was served before (it was consumed), and serving it twice could report outcomes twice")
        return self._parts()

    def _parts(self) -> Iterator[StatePart]:
        try:
            with open(self._state, "rb") as file:
                _read_id(file)
                yield from _read_parts(file)
        except (_Damaged, OSError) as error:
            raise self.refusal(str(error)) from None

    def refusal(self, why: str) -> StateError:
        """Return the error for a state that cannot be served."""
        return StateError(
            f"state file {self._state}: {why}. Nothing of it was used. Move it away or start with --discard-state: "
            "then the server starts empty, and sources replay what was pending"
        )

    def consume(self) -> None:
        """Delete the state that was read, and remember its id. If this raises :class:`StateError`, the state stays for
        the next start.

        If the server is killed during this call, the state is lost, as if the server were killed later. The next server
        never finds a state that it must refuse.
        """
        unused = "the state in it was not used, and stays for the next start"
        with _naming(self._state, unused):
            os.replace(self._state, self._taken)
        try:
            with _naming(self._consumed, unused):
                ids = [*self._consumed_ids(), self._id][-CONSUMED_MAX:]
                _replace(self._consumed, lambda file: file.write("".join(f"{id}\n" for id in ids).encode()))
        except StateError:
            os.replace(self._taken, self._state)
            raise
        with _naming(self._taken, "it is marked as served; delete it"):
            self._taken.unlink()
            _sync(self._path)

    def discard(self) -> None:
        """Rename a state so that no server reads it."""
        if self._state.exists():
            aside = self._state.with_suffix(".discarded")
            with _naming(self._state, "move it away by hand"):
                self._state.replace(aside)
                _sync(self._path)
            log.warning("state_discarded", moved_to=str(aside))

    def write(self, parts: Iterable[StatePart]) -> int:
        """Write the state, whole or not at all, and return its size in bytes. Raises :class:`StateError`."""
        id = os.urandom(16).hex()
        with _naming(self._state, "the state is not kept: after the next start sources replay what was pending"):
            _replace(self._state, lambda file: _write(file, id, parts))
            self._serving.unlink(missing_ok=True)
            return self._state.stat().st_size

    def close(self) -> None:
        """Unlock the directory."""
        self._lock.close()

    def _consumed_ids(self) -> list[str]:
        return self._consumed.read_text().split() if self._consumed.exists() else []


class _Damaged(Exception):
    """A file that is damaged. The text follows the file's name in an error."""


def _write(file: BinaryIO, id: str, parts: Iterable[StatePart]) -> None:
    digest = hashlib.blake2b(digest_size=DIGEST_BYTES)

    def put(some: bytes | memoryview) -> None:
        digest.update(some)
        file.write(some)

    put(MAGIC + f"{FORMAT}\n".encode())
    for name, arrays in chain([(id, {})], parts):
        table = [{"name": key, "dtype": array.dtype.str, "shape": array.shape} for key, array in arrays.items()]
        header = json.dumps({"name": name, "arrays": table}).encode()
        put(struct.pack("<I", len(header)) + header)
        for array in arrays.values():
            put(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data)
    put(struct.pack("<I", 0))
    file.write(digest.digest())


def _check(file: BinaryIO) -> None:
    """Verify the checksum before anything of the file is used. Raises `_Damaged`."""
    _first_line(file.readline(32))
    left = os.fstat(file.fileno()).st_size - DIGEST_BYTES
    file.seek(0)
    digest = hashlib.blake2b(digest_size=DIGEST_BYTES)
    while left > 0 and (some := file.read(min(left, BLOCK_BYTES))):
        digest.update(some)
        left -= len(some)
    if left or file.read(DIGEST_BYTES + 1) != digest.digest():
        raise _Damaged("is damaged or cut short (its checksum does not match)")
    file.seek(0)


def _first_line(line: bytes) -> None:
    if not line.startswith(MAGIC) or not line.endswith(b"\n"):
        raise _Damaged("is not a state of the acker, or is cut short within its first line")
    name = line[len(MAGIC) : -1].decode("ascii", "replace")
    if name != str(FORMAT):
        raise _Damaged(f"has format {name}, and this version of the acker reads format {FORMAT} only")


def _read_id(file: BinaryIO) -> str:
    file.readline(32)
    return next(_read_parts(file))[0]


def _read_parts(file: BinaryIO) -> Iterator[StatePart]:
    """Yield the parts. Since the checksum was verified, only a bug in the writer can make parsing fail."""
    try:
        while length := struct.unpack("<I", file.read(4))[0]:
            header = json.loads(file.read(length))
            yield str(header["name"]), {row["name"]: _read_array(file, row) for row in header["arrays"]}
        if len(file.read(DIGEST_BYTES + 1)) != DIGEST_BYTES:
            raise ValueError("it has bytes after its last part")
    # numpy raises SyntaxError for some texts that name no type.
    except (struct.error, ValueError, KeyError, TypeError, SyntaxError) as error:
        raise _Damaged(f"is not whole ({error})") from None


def _read_array(file: BinaryIO, row: dict[str, Any]) -> npt.NDArray[Any]:
    dtype = np.dtype(row["dtype"])
    if dtype.kind not in DTYPE_KINDS:
        raise ValueError(f"it has an array of {dtype}")
    array: npt.NDArray[Any] = np.empty(row["shape"], dtype)
    content = array.reshape(-1).view(np.uint8)
    if file.readinto(content.data) != len(content):  # type: ignore[attr-defined]
        raise ValueError("an array is cut short")
    return array


@contextlib.contextmanager
def _naming(path: Path, consequence: str) -> Iterator[None]:
    """Raise an OSError as a :class:`StateError` with the file's name and the consequence."""
    try:
        yield
    except OSError as error:
        raise StateError(f"--state-dir: {path}: {error.strerror or error}; {consequence}") from None


def _replace(path: Path, write: Callable[[BinaryIO], object]) -> None:
    """Replace the content of ``path`` atomically; only its owner may read it. The content is on disk when this
    returns."""
    temporary = path.with_name(path.name + ".tmp")
    try:
        with open(temporary, "wb", opener=lambda name, flags: os.open(name, flags, 0o600)) as file:
            # A file that a crash left behind keeps its mode when it is opened.
            os.fchmod(file.fileno(), 0o600)
            write(file)
            file.flush()
            os.fsync(file.fileno())
        temporary.replace(path)
    except (OSError, MemoryError):
        # Frees the space of the useless file on a full disk.
        with contextlib.suppress(OSError):
            temporary.unlink()
        raise
    _sync(path.parent)


def _sync(directory: Path) -> None:
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
