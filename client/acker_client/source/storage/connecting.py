"""Connecting: which store paths and URLs name, and the filesystem of the user's own."""

from __future__ import annotations

import pickle
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from acker_client.source.errors import SourceError
from acker_client.source.storage.store import Store
from acker_client.source.storage.troubles import cannot_connect
from acker_client.source.storage.urls import Url, url_of
from acker_client.source.waiting import outlast

if TYPE_CHECKING:
    from pyarrow.fs import FileSystem

# How long Google's library repeats a call itself. Its own default is 15 minutes, in which a driver would say nothing.
GCS_RETRY_S = 20
# How long a start waits for a store that is away.
START_S = 20.0


def store_of(paths: Sequence[str], filesystem: Any, asker: str) -> tuple[Store, list[str]] | None:
    """Return the store that ``paths`` name, and the paths in it; None if all are local paths.

    ``filesystem``: the user's own, in which the paths are then; None: the paths say which. Raises ``SourceError``.
    """
    urls = [url_of(path) for path in paths]
    if filesystem is not None:
        return _own_store(filesystem, paths, urls, asker)
    given = [url for url in urls if url is not None]
    if not given:
        return None
    bases = dict.fromkeys((url.scheme, url.authority, url.query) for url in given)
    if len(bases) > 1 or len(given) < len(urls):
        raise SourceError(
            f"{asker}: the paths are in several places: give each bucket, and the local paths, a source of its own,"
            " or give filesystem=... and the paths in it"
        )
    store = outlast(lambda: connect(given[0]), given[0].base, START_S)
    # HDFS has no root of its own, and its paths begin with a slash.
    return store, [f"{store.root}/{url.path}".rstrip("/") or "/" for url in given]


def connect(url: Url) -> Store:
    """Return the store of a URL: its bucket, container or cluster. Raises ``SourceError``."""
    query = url.query
    if url.scheme == "gs" and "retry_limit_seconds" not in query:
        query = f"{query}&retry_limit_seconds={GCS_RETRY_S}".lstrip("&")
    end = "/" if url.scheme in ("hdfs", "viewfs") else ""
    try:
        filesystem, root = from_uri(f"{url.scheme}://{url.authority}{end}{f'?{query}' if query else ''}")
    except (OSError, ImportError, ValueError, NotImplementedError) as error:
        raise cannot_connect(error, url.scheme, url.base) from None
    return Store(filesystem, root.rstrip("/"), url.base)


def from_uri(uri: str) -> tuple[FileSystem, str]:
    """Return the filesystem of a URI, and the path in it. Raises as pyarrow does."""
    from pyarrow.fs import FileSystem

    filesystem, path = FileSystem.from_uri(uri)
    return filesystem, str(path)


def _own_store(
    filesystem: Any, paths: Sequence[str], urls: Sequence[Url | None], asker: str
) -> tuple[Store, list[str]]:
    from pyarrow.fs import FileSystem

    if not isinstance(filesystem, FileSystem):
        raise SourceError(
            f"{asker}: filesystem={filesystem!r} is no filesystem of pyarrow: give one, like"
            " pyarrow.fs.S3FileSystem(...); one of fsspec as pyarrow.fs.PyFileSystem(pyarrow.fs.FSSpecHandler(...))"
        )
    if any(urls):
        given = next(path for path, url in zip(paths, urls, strict=True) if url)
        raise SourceError(
            f"{asker}: {given!r} is a URL, and filesystem is given: write the path in that filesystem, like bucket/key"
        )
    store = Store(filesystem)
    pickle.dumps(store)  # raises SourceError if executors could not get it
    return store, list(paths)
