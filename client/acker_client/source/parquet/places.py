"""Where Parquet files are: which there are, and whether each one is still what it was.

A directory stands for the ``.parquet`` files in and below it. As in Spark, files and folders whose names begin with
``_`` or ``.`` are left out.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, Protocol, TypeVar

import pyarrow as pa

from acker_client.source.decoding.content import LocalContent, StoredContent
from acker_client.source.disk import to_read
from acker_client.source.errors import InputChanged, SourceError
from acker_client.source.parquet.rows import RowContent, digest_of, read_footer
from acker_client.source.paths import Found, Paths, find_files, given_paths
from acker_client.source.storage.ahead import ahead
from acker_client.source.storage.connecting import store_of
from acker_client.source.storage.listing import find_objects, objects_below
from acker_client.source.storage.objects import Objects
from acker_client.source.storage.store import Store

R = TypeVar("R")

ASKER = "Parquet"
EXAMPLE = "orders/*.parquet"


class Place(Protocol):
    """Where the files of an input are. A partition is the absolute path or URL of a file."""

    @property
    def store(self) -> Store | None:
        """The store that the files are in; None for local files."""
        ...

    @property
    def patterns(self) -> Sequence[str]:
        """The paths in the store."""
        ...

    def list(self) -> Objects:
        """Return the files, in the order of reading."""
        ...

    def shown(self, partition: str) -> str:
        """Return the path as the user wrote it."""
        ...

    def content(self, partition: str) -> RowContent: ...

    def is_same(self, partition: str, digest: str) -> bool:
        """Return whether the file still has its ``digest``. Raises ``InputChanged`` if it cannot be read."""
        ...

    def each(self, work: Callable[[int], R], indices: Iterable[int]) -> Iterator[tuple[int, R]]:
        """Yield each index with ``work(index)``, in order."""
        ...


def place_of(paths: Paths, filesystem: Any, own_files: Sequence[Path | str], *, may_be_none: bool) -> Place:
    """Return the place that ``paths`` name. ``own_files``: local paths and URLs that the source itself writes."""
    found = store_of(given_paths(paths, asker=ASKER, example=EXAMPLE), filesystem, ASKER)
    if found is None:
        local = [path for path in own_files if isinstance(path, Path)]
        return LocalPlace(paths, local, may_be_none=may_be_none)
    return StoredPlace(*found, [path for path in own_files if isinstance(path, str)], may_be_none=may_be_none)


class LocalPlace:
    """Local files."""

    store: Store | None = None
    patterns: Sequence[str] = ()

    def __init__(self, paths: Paths, own_files: Sequence[Path] = (), *, may_be_none: bool = False) -> None:
        self._paths = paths
        self._own_files = own_files
        self._may_be_none = may_be_none
        # Paths that the user wrote in another way.
        self._shown: dict[str, str] = {}

    def list(self) -> Objects:
        files = find_parquet_files(self._paths, may_be_none=self._may_be_none, own_files=self._own_files)
        self._shown = {file.path: file.shown for file in files if file.path != file.shown}
        return Objects.of([entry for file in files for entry in self._entry(file)])

    def shown(self, partition: str) -> str:
        return self._shown.get(partition, partition)

    def content(self, partition: str) -> RowContent:
        return LocalContent(partition)

    def is_same(self, partition: str, digest: str) -> bool:
        return digest_of(LocalContent(partition), self.shown(partition)) == digest

    def each(self, work: Callable[[int], R], indices: Iterable[int]) -> Iterator[tuple[int, R]]:
        return ((index, work(index)) for index in indices)

    def _entry(self, file: Found) -> Iterator[tuple[str, int, int]]:
        try:
            stat = os.stat(file.path)
        except OSError as error:
            if self._may_be_none and isinstance(error, FileNotFoundError):
                return  # renamed since, or removed
            raise InputChanged(f"{file.shown} cannot be read ({error.strerror}): {to_read(error)}") from None
        yield file.path, stat.st_size, stat.st_mtime_ns


class StoredPlace:
    """Objects in ``store``."""

    def __init__(self, store: Store, patterns: Sequence[str], own: Sequence[str], *, may_be_none: bool) -> None:
        self.store: Store = store
        self.patterns = patterns
        self._own = own
        self._may_be_none = may_be_none

    def list(self) -> Objects:
        listed = find_objects(
            self.store,
            self.patterns,
            asker=ASKER,
            in_folder=lambda store, path: _objects_in(store, path, may_be_none=self._may_be_none),
            may_be_none=self._may_be_none,
        )
        listed.check_not_own(self._own, ASKER)
        return listed

    def shown(self, partition: str) -> str:
        return partition

    def content(self, partition: str) -> RowContent:
        return StoredContent(self.store, self.store.path_of(partition), "")

    def is_same(self, partition: str, digest: str) -> bool:
        return self.store.tag(self.store.path_of(partition)) == digest

    def each(self, work: Callable[[int], R], indices: Iterable[int]) -> Iterator[tuple[int, R]]:
        return ahead(work, indices, lambda result: None)


def schema_of(paths: Paths, filesystem: Any = None) -> pa.Schema:
    """Return the columns of the first file; see ``normal_schema``."""
    place = place_of(paths, filesystem, (), may_be_none=False)
    first = place.list()[0]
    _, footer = read_footer(place.content(first), place.shown(first))
    return footer.columns


def find_parquet_files(paths: Paths, *, may_be_none: bool = False, own_files: Iterable[Path] = ()) -> list[Found]:
    """Return the local files that ``paths`` name; see ``find_files``.

    Also raises ``SourceError`` for a directory without such files, unless ``may_be_none``.
    """

    def in_directory(path: str) -> list[str]:
        return _in_directory(path, may_be_none=may_be_none)

    return find_files(
        paths,
        asker=ASKER,
        example=EXAMPLE,
        in_directory=in_directory,
        may_be_none=may_be_none,
        own_files=own_files,
    )


def _in_directory(path: str, *, may_be_none: bool) -> list[str]:
    found: list[str] = []
    for folder, below, files in os.walk(path, onerror=_refuse_folder):
        below[:] = sorted(name for name in below if _is_looked_into(path, folder, name))
        found += [os.path.join(folder, name) for name in files if _is_data(name)]
    if not found and not may_be_none:
        raise _nothing_in(path)
    return sorted(found)


def _objects_in(store: Store, path: str, *, may_be_none: bool) -> Objects:
    shown = store.shown(path)

    def into(folder: str, name: str) -> bool:
        return _is_looked_into(shown, store.shown(folder), name)

    found = objects_below(store, path, _is_data, into)
    if not len(found) and not may_be_none:
        raise _nothing_in(shown)
    return found


def _is_looked_into(path: str, folder: str, name: str) -> bool:
    """Whether a directory walks into a folder below it. Raises ``SourceError`` for one that holds a column."""
    if name[0] in "._":
        return False
    if "=" in name:
        raise SourceError(
            f"Parquet: {os.path.join(folder, name)!r} holds a column in its name, and such columns are not read: name"
            f" the files by a pattern, {os.path.join(path, '**', '*.parquet')!r}, to read them without the column"
        )
    return True


def _is_data(name: str) -> bool:
    return name[0] not in "._" and name.endswith(".parquet")


def _nothing_in(path: str) -> SourceError:
    return SourceError(f"Parquet: no file in {path!r} ends in .parquet: name the files, or a pattern")


def _refuse_folder(error: OSError) -> None:
    """Raise ``InputChanged`` for an unreadable folder, so that its files are not left out silently."""
    if not isinstance(error, FileNotFoundError):
        raise InputChanged(f"{error.filename} cannot be read ({error.strerror}): {to_read(error)}") from None
