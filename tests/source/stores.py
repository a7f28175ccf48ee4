"""Stores for tests: a store over a local folder, and filesystems that a user may bring."""

from __future__ import annotations

import io
import os
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyarrow.fs import FileInfo, FileSelector, FileSystemHandler, FileType, LocalFileSystem, SubTreeFileSystem

from acker_client.source.storage.objects import Objects
from acker_client.source.storage.store import Store


def store_over(folder: Path, *, is_flat: bool = False) -> Store:
    """Return a store whose objects are the files of a local folder. ``is_flat``: it is listed like Google's."""
    return (FlatStore if is_flat else Store)(filesystem_over(folder))


class FlatStore(Store):
    """A store whose listings of a folder leave out the folders in it."""

    __slots__ = ()

    @property
    def is_flat(self) -> bool:
        return True


def filesystem_over(folder: Path) -> Any:
    return SubTreeFileSystem(str(folder), LocalFileSystem())


def names_in(objects: Objects) -> list[str]:
    return [objects[index] for index in range(len(objects))]


def refuse_folder(store: Store, path: str) -> Objects:
    return Objects.of([])


def values_in(slices: Iterable[Any]) -> list[str]:
    """Return the values of all rows, as executors read them."""
    return [value for each in slices for rows in each.read() for value in rows.columns.column("value").to_pylist()]


class Listed(FileSystemHandler):  # type: ignore[misc]
    """A filesystem of one folder with ``count`` files, which it only lists. With one file, it does not say when that
    was changed."""

    def __init__(self, count: int) -> None:
        self.count = count

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Listed) and other.count == self.count

    def __hash__(self) -> int:
        return hash(self.count)

    def get_type_name(self) -> str:
        return "listed"

    def normalize_path(self, path: str) -> str:
        return path

    def get_file_info(self, paths: Sequence[str]) -> list[FileInfo]:
        kind = FileType.File if self.count == 1 else FileType.NotFound
        return [FileInfo(path, kind, size=4) for path in paths]

    def get_file_info_selector(self, selector: FileSelector) -> list[FileInfo]:
        return [
            FileInfo(f"{selector.base_dir}/part-{k:07d}-3f2a9c51-8e44.jsonl", FileType.File, size=k, mtime_ns=k + 1)
            for k in range(self.count)
        ]

    def _refuse(self, *_: Any) -> Any:
        raise NotImplementedError

    def open_input_file(self, path: str) -> Any:
        return pa.PythonFile(io.BytesIO(b"one\n"), "r")

    create_dir = delete_dir = delete_dir_contents = delete_root_dir_contents = delete_file = move = copy_file = _refuse
    open_input_stream = open_output_stream = open_append_stream = _refuse


def touch(path: Path, seconds: float) -> None:
    """Set the time of change of a file."""
    os.utime(path, (seconds, seconds))
