"""Dead letters in an object store: a folder of objects, because nothing can be appended to an object.

Each write makes a new object of JSON lines, the same lines as in a file of dead letters. It is durable before the
records of its letters count as done. The names of the objects begin with the time, so that they sort in the order of
writing, and hold a random part, so that no two drivers write the same one. A source that dies right after a write may
write the same letters again, so a letter is written at least once.
"""

from __future__ import annotations

import os
import secrets
import time
from collections.abc import Callable, Iterable
from datetime import UTC, datetime
from typing import Any

from acker_client.source.dead_letters.pieces import in_pieces
from acker_client.source.errors import SourceError
from acker_client.source.records.dead_letter import NOTHING_LOST, DeadLetter
from acker_client.source.storage.connecting import store_of
from acker_client.source.storage.listing import find_objects, objects_below
from acker_client.source.storage.objects import Objects
from acker_client.source.storage.store import Store
from acker_client.source.storage.urls import url_of
from acker_client.source.waiting import OUTAGE_S, OutOfReach, outlast

# A larger write becomes several objects.
PART_BYTES = 64 << 20
SUFFIX = ".jsonl"
# An empty object that shows at the start that letters can be written. A pattern does not match a hidden name.
PROBE = ".writable"


class DeadLetterObjects:
    """A folder of dead letters in an object store: ``dead_letters=DeadLetterObjects("bucket/dead", filesystem=...)``.

    ``url``: the folder, as a URL; ``dead_letters="s3://bucket/dead"`` is the same. With ``filesystem`` (one of
    pyarrow), the path in it. Needs the extra `spark`.
    """

    # Tests replace it: Unix seconds.
    _wall: Callable[[], float] = staticmethod(time.time)

    def __init__(self, url: str | os.PathLike[str], *, filesystem: Any = None) -> None:
        self.url = os.fspath(url)
        if filesystem is None and url_of(self.url) is None:
            raise ValueError(f"DeadLetterObjects({self.url!r}): give a URL, like s3://bucket/dead, or filesystem=...")
        self._filesystem = filesystem
        self._run = secrets.token_hex(4)
        self._written = 0
        # When the write began that is tried again.
        self._begun_s: float | None = None
        self._folder: tuple[Store, str] | None = None

    def __str__(self) -> str:
        url = url_of(self.url)
        return self.url if url is None else url.shown

    def open(self) -> None:
        """Check that letters can be written there. Raises :class:`SourceError`."""
        store, folder = self._open_folder()
        outlast(lambda: self._write(store, f"{folder}/{PROBE}", b""), f"{self}, to write dead letters", OUTAGE_S)

    def write(self, letters: Iterable[DeadLetter]) -> None:
        """Write ``letters`` as new objects, which are durable on return. Raises :class:`SourceError` if that fails.

        After an ``OutOfReach``, write the same letters again. The objects have the same names then.
        """
        store, folder = self._open_folder()
        self._begun_s = self._wall() if self._begun_s is None else self._begun_s
        number, lines = self._written, (letter.to_json().encode(errors="surrogatepass") + b"\n" for letter in letters)
        for number, part in enumerate(in_pieces(lines, len, PART_BYTES), self._written + 1):
            self._write(store, f"{folder}/{new_name(self._begun_s, self._run, number)}", b"".join(part))
        self._written, self._begun_s = number, None

    def close(self) -> None:
        """Nothing to close."""

    def _open_folder(self) -> tuple[Store, str]:
        if self._folder is None:
            self._folder = folder_of(self.url, self._filesystem)
        return self._folder

    def _write(self, store: Store, path: str, content: bytes) -> None:
        try:
            store.write(path, content)
        except SourceError as error:
            why = f"dead letters cannot be written to {self}: {error}"
            raise (
                OutOfReach(why) if isinstance(error, OutOfReach) else SourceError(f"{why}. {NOTHING_LOST}")
            ) from None


def folder_of(url: str, filesystem: Any = None) -> tuple[Store, str]:
    """Return the store of a folder, and the folder's path in it. Raises ``SourceError``."""
    found = store_of([url], filesystem, "dead letters")
    if found is None:
        raise SourceError(f"dead letters: {url!r} is no URL of a store")
    store, (folder,) = found
    return store, folder.rstrip("/")


def objects_of(store: Store, path: str) -> list[str]:
    """Return the objects of letters that ``path`` names, in the order of writing: those in a folder, or one object."""

    found = find_objects(store, [path], asker="dead letters", in_folder=_letters_in, may_be_none=True)
    return [store.path_of(found[index]) for index in range(len(found))]


def _letters_in(store: Store, folder: str) -> Objects:
    """Return the objects of letters in a folder, whose own name may look like a pattern."""
    return objects_below(
        store, folder, lambda name: name.endswith(SUFFIX) and not name.startswith("."), lambda above, name: False
    )


def new_name(now_s: float, run: str, number: int) -> str:
    """Return a name that no other object has."""
    moment = datetime.fromtimestamp(now_s, UTC)
    return f"{moment:%Y%m%dT%H%M%S}.{moment.microsecond:06d}Z-{run}-{number:06d}{SUFFIX}"
