"""Filesystems of fsspec, where pyarrow leaves out what they say of the version of a file."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import Any

# Keys under which fsspec's filesystems give the version of a file.
_VERSIONS = ("ETag", "etag", "generation", "VersionId", "LastModified", "last_modified", "updated", "mtime", "created")


def infos_in(fsspec: Any, folder: str, *, is_recursive: bool) -> list[dict[str, Any]]:
    """Return what ``fsspec`` says of the files and folders in a folder. Raises as it does."""
    depth = None if is_recursive else 1
    found = fsspec.find(folder, maxdepth=depth, withdirs=True, detail=True)
    return [{**info, "name": path} for path, info in found.items() if path.strip("/") != folder.strip("/")]


def info_at(fsspec: Any, path: str) -> dict[str, Any]:
    """Return what ``fsspec`` says of a path; of type "nothing" if nothing is there."""
    try:
        return {**fsspec.info(path), "name": path}
    except FileNotFoundError:
        return {"name": path, "type": "nothing"}


def stamp_of(info: Mapping[str, Any]) -> int:
    """Return a number for all that fsspec says of the version of a file; 0 if it says nothing."""
    said = [f"{name} {info[name]}" for name in _VERSIONS if info.get(name) is not None]
    return int.from_bytes(hashlib.blake2b(" ".join(said).encode(), digest_size=7).digest()) if said else 0
