"""Moves dead letters out of their file into a file that the source ``PutBack`` reads.

The letters are written durably to the second file before they are removed from the first. A crash at any point
therefore loses none, and a letter that is in both files is not added again. Both files are replaced as a whole, under
the lock that a source takes to write dead letters. Lines that are no letters stay where they are. ``stored`` does the
same in an object store.
"""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext, suppress
from io import FileIO
from pathlib import Path

from acker_client.source.dead_letters.letters_file import LOOK_S, is_at
from acker_client.source.disk import open_private, sync_directory, to_read, to_write
from acker_client.source.errors import SourceError
from acker_client.source.put_back import stored
from acker_client.source.put_back.letter_lines import (
    Moved,
    ReadLine,
    Sorted,
    joined,
    lines_of,
    new_letters,
    raw_letters,
)
from acker_client.source.records.dead_letter import DeadLetter
from acker_client.source.storage.urls import local_path, url_of

# How long to wait for the lock of another process. A write of letters takes milliseconds.
WAIT_S = 10.0


def read_files(path: str) -> Iterator[tuple[str, list[ReadLine]]]:
    """Yield the files of letters that ``path`` names, and their lines: the file itself, or the objects in a folder of a
    store. Raises ``SourceError``."""
    if url_of(path) is None:
        yield path, read_letters(Path(local_path(path)))
    else:
        yield from stored.read_objects(path)


def read_letters(path: Path) -> list[ReadLine]:
    """Return the lines of a file of dead letters, in order. Raises ``SourceError`` if it cannot be read."""
    try:
        return lines_of(path.read_bytes())
    except OSError as error:
        raise SourceError(f"{path} cannot be read ({error.strerror}): {to_read(error)}") from None


def put_back(
    path: str | Path, again: str | Path, is_chosen: Callable[[DeadLetter], bool], *, wait_s: float = WAIT_S
) -> Moved:
    """Move the chosen letters from ``path`` to the end of ``again``, which is created if it does not exist.

    Raises ``SourceError``. Each letter is then still in one of the two places, or in both.
    """
    in_store = [isinstance(each, str) and url_of(each) is not None for each in (path, again)]
    if all(in_store):
        return stored.put_back(str(path), str(again), is_chosen)
    if any(in_store):
        raise SourceError(
            f"letters of {path} cannot be put back into {again}: give two URLs of stores, or two local files"
        )
    dead, other = (Path(os.path.realpath(local_path(str(each)))) for each in (path, again))
    return _put_back_locally(dead, other, is_chosen, wait_s)


def _put_back_locally(path: Path, again: Path, is_chosen: Callable[[DeadLetter], bool], wait_s: float) -> Moved:
    if path == again:
        raise SourceError(f"{path} is where the letters are: name another file to put them back into")
    with _locked(path, wait_s, is_made=False) as dead:
        letters = Sorted.of(_content(dead), is_chosen)
        if letters.moving:
            _check_owner(path, dead)
            with _locked(again, wait_s, is_made=True) as file:
                content = _content(file)
                end = b"" if not content or content.endswith(b"\n") else b"\n"
                new = new_letters(raw_letters(again, content), letters.moving)
                _replace(again, file, content + end + joined(new), owned_like=file if content else dead)
            _replace(path, dead, letters.left, owned_like=dead)
    return letters.moved


@contextmanager
def _locked(path: Path, wait_s: float, *, is_made: bool) -> Iterator[FileIO]:
    """Open and lock the file that is at ``path`` now."""
    deadline_s = time.monotonic() + wait_s
    while True:
        try:
            file = FileIO(path, "ab+" if is_made else "rb+", opener=open_private)
        except OSError as error:
            is_missing = isinstance(error, FileNotFoundError) and not is_made
            fix = to_read(error) if is_missing else to_write(error)
            raise SourceError(f"{path} cannot be opened ({error.strerror}): {fix}") from None
        with file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError as error:
                if time.monotonic() >= deadline_s:
                    raise SourceError(
                        f"{path} is in use by another process ({error.strerror}): try again once that has ended"
                    ) from None
                time.sleep(LOOK_S)
                continue
            if is_at(file, path):
                yield file
                return


def _content(file: FileIO) -> bytes:
    file.seek(0)
    return file.readall()


def _check_owner(path: Path, file: FileIO) -> None:
    """Raise ``SourceError`` if this user may not give files to the owner of ``file``. Comes before anything is written,
    as the owner could not open a file that this user leaves."""
    owner = os.fstat(file.fileno()).st_uid
    if os.geteuid() not in (0, owner):
        raise SourceError(
            f"{path} belongs to another user (uid {owner}): put its letters back as that user, or as root"
        )


def _give(file: int, like: os.stat_result) -> None:
    """Give an open file to the owner and group that ``like`` has. Raises ``PermissionError`` if that needs rights, but
    not for the group alone."""
    own = os.fstat(file)
    if (own.st_uid, own.st_gid) == (like.st_uid, like.st_gid):
        return
    with suppress(PermissionError) if own.st_uid == like.st_uid else nullcontext():
        os.fchown(file, like.st_uid, like.st_gid)


def _replace(path: Path, file: FileIO, content: bytes, *, owned_like: FileIO) -> None:
    """Replace a file as a whole and durably; keep its permissions. The owner is that of ``owned_like``, which keeps the
    file with its source if another user puts letters back."""
    draft = path.with_name(f".{path.name}.new")  # hidden, so that no pattern of a following source matches it
    try:
        with open(draft, "wb", opener=open_private) as new:
            _give(new.fileno(), os.fstat(owned_like.fileno()))
            os.fchmod(new.fileno(), os.fstat(file.fileno()).st_mode & 0o7777)
            new.write(content)
            new.flush()
            os.fsync(new.fileno())
        os.replace(draft, path)
        sync_directory(path)
    except OSError as error:
        # Another user could not write to a draft that this one leaves.
        with suppress(OSError):
            draft.unlink(missing_ok=True)
        raise SourceError(f"{path} cannot be written ({error.strerror}): {to_write(error)}") from None
