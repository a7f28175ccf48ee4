"""Store: an object store or a distributed file system, and the only access to ``pyarrow.fs``.

Decides how an object is recognized: by its *tag*, which is what the store says of it when it is opened. That is the
generation (Google), the ETag with version and time of change (S3, Azure), what fsspec calls ``ukey``, or size and time
of change (HDFS and others). An object that replaces another has another tag. Never repeats a call: callers do.
"""

from __future__ import annotations

import io
import os
import pickle
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, BinaryIO

import pyarrow as pa

from acker_client.source.errors import SourceError
from acker_client.source.storage.of_fsspec import info_at, infos_in, stamp_of
from acker_client.source.storage.troubles import explain, no_bucket

if TYPE_CHECKING:
    from pyarrow.fs import FileSystem

# A read of an object fetches so much at least, and the rest is kept for the next read.
BUFFER_BYTES = 4 << 20
# How pyarrow says for Google Cloud Storage that a folder is not there, or that a file has its name.
_NO_FOLDER = ("No such file or directory '", "Cannot use file '")
# These stores show an object only once it is whole.
WHOLE = frozenset({"s3", "gcs", "abfs"})


@dataclass(frozen=True, slots=True)
class FolderEntry:
    """One path of a listing. ``modified_ns``: the time of change in nanoseconds, or, for fsspec, another number that
    differs after a change; 0 if the store has none."""

    path: str
    is_file: bool
    is_folder: bool
    size: int
    modified_ns: int


class Store:
    """A filesystem of pyarrow. Picklable; a process that unpickles the same store again gets the same object.

    ``url``: the prefix that replaces ``root`` in a path of the filesystem to make it a URL; both are "" for a
    filesystem of the user's.
    """

    __slots__ = ("_pickled", "filesystem", "root", "url")

    def __init__(self, filesystem: FileSystem, root: str = "", url: str = "") -> None:
        self.filesystem = filesystem
        self.root = root
        self.url = url
        self._pickled: bytes | None = None

    def __reduce__(self) -> tuple[Any, ...]:
        if self._pickled is None:
            self._pickled = _pickled(self.filesystem)
        return _unpickled, (self._pickled, self.root, self.url)

    def __str__(self) -> str:
        return self.url or f"the {self.type_name} filesystem"

    @property
    def type_name(self) -> str:
        """The type of the filesystem, by pyarrow's name. A part of a filesystem has the type of the whole."""
        filesystem: Any = self.filesystem
        while (whole := getattr(filesystem, "base_fs", None)) is not None:
            filesystem = whole
        return str(filesystem.type_name)

    def shown(self, path: str) -> str:
        """Return a path as a URL."""
        return self.url + path[len(self.root) :]

    def path_of(self, shown: str) -> str:
        """Return the path that ``shown`` shows."""
        return self.root + shown[len(self.url) :]

    # -- listing

    @property
    def is_flat(self) -> bool:
        """Whether a listing of a folder leaves out the folders in it. pyarrow shows a folder of Google Cloud Storage
        only if an object stands for it, which most writers do not make."""
        return self.type_name == "gcs"

    def list_folder(self, folder: str, *, is_recursive: bool = False) -> list[Any]:
        """Return what is in a folder, in no order and for :meth:`entry_of`; nothing if it is not there, or no folder.

        ``is_recursive``: also what is in the folders below it.
        """
        from pyarrow.fs import FileSelector

        self._forget_listings()
        with self._troubles(folder):
            try:
                if self._fsspec is not None:
                    return infos_in(self._fsspec, folder, is_recursive=is_recursive)
                infos: list[Any] = self.filesystem.get_file_info(FileSelector(folder, recursive=is_recursive))
            except (FileNotFoundError, NotADirectoryError):
                return []
            except OSError as error:
                if str(error).startswith(_NO_FOLDER):
                    return []
                raise
        return infos

    def entries(self, paths: Sequence[str]) -> list[FolderEntry | None]:
        """Return what is at each path; None where nothing is."""
        self._forget_listings()
        with self._troubles(paths[0] if paths else self.root):
            found = [self.entry_of(info) for info in self._infos(paths)]
        return [entry if entry.is_file or entry.is_folder else None for entry in found]

    def entry_of(self, info: Any) -> FolderEntry:
        """Return what is behind an element of ``list_folder``."""
        from pyarrow.fs import FileType

        if isinstance(info, dict):
            kind, size = info["type"], info.get("size") or 0
            return FolderEntry(str(info["name"]), kind == "file", kind == "directory", size, stamp_of(info))
        is_file, is_folder = info.type == FileType.File, info.type == FileType.Directory
        return FolderEntry(info.path, is_file, is_folder, info.size or 0, info.mtime_ns or 0)

    def _infos(self, paths: Sequence[str]) -> list[Any]:
        if self._fsspec is None:
            return list(self.filesystem.get_file_info(list(paths)))
        return [info_at(self._fsspec, path) for path in paths]

    def check_bucket(self) -> None:
        """Raise ``SourceError`` if the bucket is not there, which a listing may report as if it were empty."""
        if self.type_name in WHOLE and self.root and self.entries([self.root]) == [None]:
            raise no_bucket(self.type_name, str(self))

    # -- reading

    def open(self, path: str) -> Opened:
        """Open an object. Raises ``InputChanged`` if it is not there."""
        self._forget_listings()
        with self._troubles(path):
            file = self.filesystem.open_input_file(path)
            try:
                return Opened(self, path, file, self._tag_of(path, file))
            except BaseException:
                file.close()
                raise

    def tag(self, path: str) -> str:
        """Return the tag of the object that is at ``path`` now. Raises ``InputChanged`` if none is."""
        with self.open(path) as opened:
            return opened.tag

    def _tag_of(self, path: str, file: pa.NativeFile) -> str:
        if (fsspec := self._fsspec) is not None:
            return f"{file.size()} {fsspec.ukey(path)}"
        if tag := _tag_in(_metadata_of(file)):
            return f"{file.size()} {tag}"
        (info,) = self.filesystem.get_file_info([path])
        if info.mtime_ns is None:
            raise SourceError(
                f"{self.shown(path)}: {self} says neither an ETag nor a time of change, so a replaced file would go"
                " unnoticed: give a filesystem that does"
            )
        return f"{file.size()} modified {info.mtime_ns}"

    # -- writing

    def write(self, path: str, content: bytes) -> None:
        """Write an object, which is durable on return. Readers see all of it or nothing."""
        draft = path if self.type_name in WHOLE else _beside(path)
        with self._troubles(path):
            if self.type_name not in WHOLE:
                self.filesystem.create_dir(os.path.dirname(path), recursive=True)
            with self.filesystem.open_output_stream(draft, compression=None) as file:
                file.write(content)
            if draft != path:
                self.filesystem.move(draft, path)

    def read(self, path: str) -> bytes:
        """Return the whole content of an object. Raises ``InputChanged`` if it is not there."""
        with self._troubles(path), self.filesystem.open_input_file(path) as file:
            return bytes(file.read())

    def delete(self, path: str) -> None:
        with self._troubles(path):
            self.filesystem.delete_file(path)

    # -- errors

    @contextmanager
    def _troubles(self, path: str) -> Iterator[None]:
        try:
            yield
        except (OSError, pa.ArrowException) as error:
            raise self.explained(error, path) from None

    def explained(self, error: Exception, path: str) -> SourceError:
        """Return the error to raise for an error of the filesystem at ``path``."""
        return explain(error, self.type_name, str(self), self.shown(path))

    @property
    def _fsspec(self) -> Any:
        """The fsspec filesystem behind this one; None if it is none."""
        fsspec = getattr(getattr(self.filesystem, "handler", None), "fs", None)
        return fsspec if hasattr(fsspec, "ukey") else None

    def _forget_listings(self) -> None:
        # fsspec keeps listings, and would not see a new or a replaced object.
        if (fsspec := self._fsspec) is not None:
            fsspec.invalidate_cache()


class Opened(io.RawIOBase):
    """An open object. ``tag``: its tag when it was opened. Read it through :meth:`buffered`, or by :meth:`read_at`."""

    def __init__(self, store: Store, path: str, file: pa.NativeFile, tag: str) -> None:
        super().__init__()
        self.file = file
        self.tag = tag
        self._store = store
        self._path = path
        self._position = 0
        self.size = int(file.size())

    def buffered(self) -> BinaryIO:
        buffered: Any = io.BufferedReader(self, BUFFER_BYTES)
        return buffered  # type: ignore[no-any-return]

    @contextmanager
    def native(self) -> Iterator[pa.NativeFile]:
        """Yield the file of pyarrow, and close it."""
        with self:
            yield self.file

    def read_at(self, start: int, stop: int) -> bytes:
        """Return bytes ``start`` to ``stop``, or fewer at the end."""
        stop = min(stop, self.size)
        if start >= stop:
            return b""
        with self._store._troubles(self._path):
            return bytes(self.file.read_at(stop - start, start))

    def readinto(self, buffer: Any) -> int:
        content = self.read_at(self._position, self._position + len(buffer))
        buffer[: len(content)] = content
        self._position += len(content)
        return len(content)

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        self._position = {os.SEEK_SET: 0, os.SEEK_CUR: self._position, os.SEEK_END: self.size}[whence] + offset
        return self._position

    def tell(self) -> int:
        return self._position

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def close(self) -> None:
        if not self.closed:
            self.file.close()
        super().close()


def _metadata_of(file: pa.NativeFile) -> Mapping[str, bytes]:
    try:
        return file.metadata() or {}
    except (NotImplementedError, pa.ArrowNotImplementedError):
        return {}


def _tag_in(metadata: Mapping[str, bytes]) -> str:
    """Return what identifies an object in the metadata that its store gives; "" if nothing does."""
    if "generation" in metadata:
        return f"generation {_text(metadata['generation'])}"
    tag = _text(metadata.get("ETag", b""))
    more = [f"{name} {_text(metadata[name])}" for name in ("VersionId", "Last-Modified") if metadata.get(name)]
    return " ".join((f"etag {tag}", *more)) if tag else ""


def _text(value: bytes | str) -> str:
    return value.decode(errors="replace") if isinstance(value, bytes) else value


def _beside(path: str) -> str:
    """Return a path that no pattern matches, for a draft of ``path``."""
    folder, name = os.path.split(path)
    return os.path.join(folder, f".{name}.new")


def _pickled(filesystem: FileSystem) -> bytes:
    try:
        return pickle.dumps(filesystem)
    except Exception as error:  # noqa: BLE001 (the user's class may raise anything)
        raise SourceError(
            f"filesystem={filesystem!r} cannot be pickled ({error}), and executors need it: give one that can be, like"
            " pyarrow.fs.S3FileSystem(...)"
        ) from None


# The stores that this process has unpickled. Each keeps its connections. The key has the process id, because a worker
# that Spark forks must not use the connections of its parent.
_stores: dict[tuple[int, bytes, str, str], Store] = {}


def _unpickled(pickled: bytes, root: str, url: str) -> Store:
    key = os.getpid(), pickled, root, url
    if key not in _stores:
        store = _stores[key] = Store(pickle.loads(pickled), root, url)
        store._pickled = pickled
    return _stores[key]
