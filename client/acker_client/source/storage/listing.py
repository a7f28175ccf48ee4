"""Lists the objects that paths and patterns name, folder by folder, as columns.

Patterns mean what they mean for local files (Python's ``glob``, ``**`` too). There may be a million objects, so a
listing holds columns, and no Python object for each of them.
"""

from __future__ import annotations

import fnmatch
import itertools
import re
from collections.abc import Callable, Iterable, Iterator, Sequence

from acker_client.source.errors import SourceError
from acker_client.source.storage.objects import Objects
from acker_client.source.storage.store import FolderEntry, Store
from acker_client.source.storage.urls import parts_of

MAGIC = re.compile(r"[*?[]")
# Number of entries of a folder that are turned into columns at a time.
ENTRIES_TOGETHER = 10_000

# Whether the name of a file in a folder is wanted.
IsWanted = Callable[[str], bool]


def find_objects(
    store: Store,
    patterns: Sequence[str],
    *,
    asker: str,
    in_folder: Callable[[Store, str], Objects],
    may_be_none: bool = False,
) -> Objects:
    """Return the objects that ``patterns`` name, in the order given, each pattern sorted, and each object once.

    ``in_folder`` returns the objects that a folder stands for. Unless ``may_be_none``, raises ``SourceError`` for a
    pattern without matches.
    """
    found = Objects.of([])
    for pattern in patterns:
        matches = _matches(store, "/".join(parts_of(pattern)), pattern.startswith("/"), in_folder)
        if not len(matches):
            store.check_bucket()
            if not may_be_none:
                raise SourceError(f"{asker}: nothing matches {store.shown(pattern)!r}")
        found = Objects.joined([found, matches.without(found)])
    return found


def fixed_part(pattern: str) -> str:
    """Return the path before the first segment of a pattern that is no plain name."""
    fixed = "/".join(itertools.takewhile(lambda segment: not MAGIC.search(segment), parts_of(pattern)))
    return f"/{fixed}" if pattern.startswith("/") else fixed


def objects_below(store: Store, folder: str, is_wanted: IsWanted, into: Callable[[str, str], bool]) -> Objects:
    """Return the wanted objects in and below a folder, sorted. ``into(folder, name)``: whether to look into it."""
    if store.is_flat:
        depth = len(parts_of(folder))

        def is_below(path: str) -> bool:
            *above, name = parts_of(path)
            return is_wanted(name) and all(into("/".join(above[:at]), above[at]) for at in range(depth, len(above)))

        return _list_below(store, folder, is_below).sorted()
    found, folders = [], [folder]
    for each in folders:
        files, below = _list_folder(store, each, is_wanted)
        found.append(files)
        folders += [_join(each, name) for name in sorted(below) if into(each, name)]
    return Objects.joined(found).sorted()


def _matches(store: Store, pattern: str, is_absolute: bool, in_folder: Callable[[Store, str], Objects]) -> Objects:
    pattern = f"/{pattern}" if is_absolute else pattern
    (here,) = store.entries([pattern]) if pattern.strip("/") else (None,)
    if here is not None and here.is_file:
        return _objects(store, [here])
    if here is not None or not pattern.strip("/"):
        return in_folder(store, pattern)
    if not MAGIC.search(pattern):
        return Objects.of([])
    if store.is_flat:
        return _flat_matches(store, pattern)
    root = "/" if is_absolute else ""
    *folders, last = parts_of(pattern)
    at = [root]
    for segment in folders:
        at = list(dict.fromkeys(_step(store, at, segment)))
    return Objects.joined(list(_files_in(store, at, last))).sorted()


def _flat_matches(store: Store, pattern: str) -> Objects:
    """Expand a pattern over all objects below its fixed part, where folders are not listed."""
    fixed = fixed_part(pattern)
    depth = len(parts_of(fixed))
    segments = [None if segment == "**" else _matcher(segment) for segment in parts_of(pattern)[depth:]]
    return _list_below(store, fixed, lambda path: _fits(parts_of(path)[depth:], segments)).sorted()


def _fits(names: Sequence[str], segments: Sequence[IsWanted | None]) -> bool:
    """Whether the names of a path match the segments of a pattern. None stands for ``**``."""
    if not segments:
        return not names
    if not names:
        return False
    first, rest = segments[0], segments[1:]
    if first is not None:
        return first(names[0]) and _fits(names[1:], rest)
    if not rest:
        return not any(name.startswith(".") for name in names)
    return _fits(names, rest) or (not names[0].startswith(".") and _fits(names[1:], segments))


def _list_below(store: Store, folder: str, is_wanted: IsWanted) -> Objects:
    """Return the wanted files in and below a folder. ``is_wanted`` takes a path."""
    return Objects.joined(
        [
            _objects(store, [entry for entry in entries if entry.is_file and is_wanted(entry.path)])
            for entries in _entries(store, folder, is_recursive=True)
        ]
    )


def _step(store: Store, folders: Iterable[str], segment: str) -> Iterator[str]:
    """Yield the folders in ``folders`` that a segment of a pattern names."""
    for folder in folders:
        if segment == "**":
            yield folder
            yield from _below(store, folder)
        elif MAGIC.search(segment):
            is_match = _matcher(segment)
            yield from (_join(folder, name) for name in _list_folder(store, folder, _none)[1] if is_match(name))
        else:
            yield _join(folder, segment)


def _files_in(store: Store, folders: Sequence[str], segment: str) -> Iterator[Objects]:
    """Yield the files that the last segment of a pattern names."""
    if not MAGIC.search(segment):
        for entry in store.entries([_join(folder, segment) for folder in folders]) if folders else ():
            if entry is not None and entry.is_file:
                yield _objects(store, [entry])
        return
    if segment == "**":
        folders = list(dict.fromkeys(_step(store, folders, segment)))
    is_match = _matcher(segment)
    for folder in folders:
        yield _list_folder(store, folder, is_match)[0]


def _below(store: Store, folder: str) -> Iterator[str]:
    """Yield all folders below a folder, apart from hidden ones."""
    folders = [folder]
    for each in folders:
        below = [_join(each, name) for name in _list_folder(store, each, _none)[1] if not name.startswith(".")]
        folders += below
        yield from below


def _list_folder(store: Store, folder: str, is_wanted: IsWanted) -> tuple[Objects, list[str]]:
    """Return the wanted files of a folder, and the names of the folders in it."""
    found: list[Objects] = []
    folders: list[str] = []
    for entries in _entries(store, folder):
        folders += [_name(entry) for entry in entries if entry.is_folder]
        found.append(_objects(store, [entry for entry in entries if entry.is_file and is_wanted(_name(entry))]))
    return Objects.joined(found), folders


def _entries(store: Store, folder: str, *, is_recursive: bool = False) -> Iterator[list[FolderEntry]]:
    """Yield the entries of a folder, some at a time: each list is freed as columns take its place."""
    infos = store.list_folder(folder, is_recursive=is_recursive)
    while infos:
        some = [store.entry_of(info) for info in infos[-ENTRIES_TOGETHER:]]
        del infos[-ENTRIES_TOGETHER:]
        yield some


def _objects(store: Store, entries: Sequence[FolderEntry]) -> Objects:
    return Objects.of([(store.shown(entry.path), entry.size, entry.modified_ns) for entry in entries])


def _matcher(segment: str) -> IsWanted:
    """Return a function that says whether a name matches a segment of a pattern. As in a shell, ``*`` matches no hidden
    name."""
    match = re.compile(fnmatch.translate("*" if segment == "**" else segment)).match
    shows_hidden = segment.startswith(".")
    return lambda name: (shows_hidden or not name.startswith(".")) and match(name) is not None


def _none(name: str) -> bool:
    return False


def _name(entry: FolderEntry) -> str:
    return entry.path.rstrip("/").rpartition("/")[2]


def _join(folder: str, name: str) -> str:
    return f"{folder}{name}" if not folder or folder.endswith("/") else f"{folder}/{name}"
