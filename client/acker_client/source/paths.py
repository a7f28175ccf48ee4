"""Expands the user's paths and patterns (``**`` too) to files, in the order given, each pattern sorted.

Errors name the path that was refused. Also lists the origins of records in files. Does not read any file.
"""

from __future__ import annotations

import glob
import os
import stat
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa

from acker_client.source.disk import to_read
from acker_client.source.errors import InputChanged, SourceError
from acker_client.source.records.ranges import Positions
from acker_client.source.storage.urls import instead_of_url, local_path

Paths = str | os.PathLike[str] | Sequence[str | os.PathLike[str]]


@dataclass(frozen=True, slots=True)
class Found:
    """A file of the input: its absolute path, and the path as the user wrote it, in characters that columns and logs
    can hold (see ``printable``)."""

    path: str
    shown: str


def find_files(
    paths: Paths,
    *,
    asker: str,
    example: str,
    in_directory: Callable[[str], list[str]],
    may_be_none: bool = False,
    own_files: Iterable[Path] = (),
) -> list[Found]:
    """Return the files that ``paths`` name, each file once even if several links lead to it.

    ``asker`` (the kind of source) and ``example`` are for error messages. ``in_directory`` returns the files of a
    directory. Raises ``SourceError`` for something that is not a path or not a regular file, and for one of the
    ``own_files``, which the source itself writes. Unless ``may_be_none``, also raises it for a pattern without matches
    and for a missing file.
    """
    found: dict[str, Found] = {}
    folders: dict[str, str] = {}
    for pattern in given_paths(paths, asker=asker, example=example):
        for shown in _expand(local_path(pattern), asker, in_directory, may_be_none=may_be_none):
            path = os.path.abspath(shown)
            real = _real(path, folders)
            if real not in found or _links(path, real) < _links(found[real].path, real):
                # One string in memory where the two are equal, because there may be a million files.
                name = printable(shown)
                found[real] = Found(path, path if path == name else name)
    for own in own_files:
        if (file := found.get(os.path.realpath(own))) is not None:
            raise SourceError(f"{asker}: {file.shown!r} is written by this source: keep it out of {paths!r}")
    return [file for file in found.values() if _is_there(file, asker, may_be_gone=may_be_none)]


def given_paths(paths: Paths, *, asker: str, example: str) -> list[str]:
    """Return the paths as texts. Raises ``SourceError`` for something that is not a path, and for none."""
    given = [paths] if isinstance(paths, str | os.PathLike) or not isinstance(paths, Iterable) else list(paths)
    for path in given:
        if not isinstance(path, str | os.PathLike):
            raise SourceError(f"{asker}: {path!r} is no path: name a file, or a pattern like {example!r}")
    if not given:
        raise SourceError(f"{asker}: no path was given: name a file, or a pattern like {example!r}")
    return [os.fspath(path) for path in given]


def printable(path: str) -> str:
    """Return ``path`` with each byte that is not valid UTF-8 as ``\\xff``."""
    return os.fsencode(path).decode(errors="backslashreplace")


def origins_of(stretches: Sequence[tuple[str, Positions]], what: str) -> pa.RecordBatch:
    """Return the origins of records as columns ``path`` (dictionary-encoded) and ``what`` (the number in the file).

    ``stretches``: (path, numbers) of records in one file.
    """
    paths = {shown: index for index, shown in enumerate(dict.fromkeys(shown for shown, _ in stretches))}
    lengths = np.array([len(numbers) for _, numbers in stretches], np.int64)
    path_ids = np.repeat(np.array([paths[shown] for shown, _ in stretches], np.int32), lengths)
    numbers = np.concatenate([np.empty(0, np.int64), *(numbers for _, numbers in stretches)])
    path = pa.DictionaryArray.from_arrays(pa.array(path_ids), pa.array(list(paths), pa.string()))
    return pa.RecordBatch.from_arrays([path, pa.array(numbers)], names=["path", what])


def _expand(pattern: str, asker: str, in_directory: Callable[[str], list[str]], *, may_be_none: bool) -> list[str]:
    if advice := instead_of_url(pattern):
        raise SourceError(f"{asker}: {pattern!r} is a URL that is not read: {advice}, or read it through Frame")
    if os.path.isdir(pattern):
        return in_directory(pattern)
    matches = [pattern] if os.path.exists(pattern) else sorted(glob.glob(pattern, recursive=True))
    files = [match for match in matches if not os.path.isdir(match)]
    if not files and not may_be_none:
        raise SourceError(f"{asker}: nothing matches {pattern!r} (working directory: {os.getcwd()})")
    return files


def _is_there(file: Found, asker: str, *, may_be_gone: bool) -> bool:
    """Whether the file exists. Raises ``SourceError`` if it is no regular file, or if it is missing but required."""
    shown = file.shown
    try:
        mode = os.stat(file.path).st_mode
    except OSError as error:
        if may_be_gone and isinstance(error, FileNotFoundError):
            return False
        raise InputChanged(f"{shown} cannot be read ({error.strerror}): {to_read(error)}") from None
    if not stat.S_ISREG(mode):
        raise SourceError(f"{asker}: {shown!r} is a pipe, a socket or a device: copy it into a file, or leave it out")
    return True


def _links(path: str, real: str) -> tuple[int, bool]:
    """Return a sort key for paths to one file: a path with fewer folders, or without links, comes first."""
    return path.count(os.sep), path != real


def _real(path: str, folders: dict[str, str]) -> str:
    """Return ``path`` without links. ``folders`` caches the resolved folders."""
    folder, name = os.path.split(path)
    if folder not in folders:
        folders[folder] = os.path.realpath(folder)
    real = os.path.join(folders[folder], name)
    return os.path.realpath(real) if os.path.islink(real) else real
