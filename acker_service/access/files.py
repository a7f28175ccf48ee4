"""Files: files that are read again when they change. Decides when that is. Never says what is in them."""

from __future__ import annotations

import os
from collections.abc import Sequence


class WatchedFiles:
    """Files of one purpose, which change together."""

    def __init__(self, paths: Sequence[str]) -> None:
        self.paths = tuple(paths)
        self._seen: tuple[tuple[int, ...], ...] = ()
        self._is_news = self._look_again = False

    def have_changed(self) -> bool:
        """Whether any file has changed since the last call; True at the first one. A missing file counts as a change.

        Kubernetes replaces a mounted secret by another file, so the inode is compared too.
        """
        seen = tuple(_state(path) for path in self.paths)
        self._is_news = seen != self._seen
        changed = self._is_news or self._look_again
        self._seen, self._look_again = seen, False
        return changed

    def look_again(self) -> bool:
        """Let the files count as changed at the next look, because they could not be read at the last one. Returns
        whether they had really changed then, so that a failure is logged once."""
        self._look_again = True
        return self._is_news

    def read(self) -> tuple[bytes, ...]:
        """Return the contents, in the order of the paths. Raises :class:`OSError`."""
        contents = []
        for path in self.paths:
            with open(path, "rb") as file:
                contents.append(file.read())
        return tuple(contents)


def _state(path: str) -> tuple[int, ...]:
    try:
        found = os.stat(path)
    except OSError:
        return ()
    return found.st_ino, found.st_mtime_ns, found.st_size
