"""URLs: which paths are URLs, of which store, and what to do about a URL that names none.

A query begins at the last ``?`` if ``name=value`` follows: elsewhere a ``?`` belongs to a pattern. Keys are taken
literally, and not decoded.
"""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from dataclasses import dataclass

# The schemes that name a store, and the scheme by which pyarrow knows it.
SCHEMES = {
    "s3": "s3", "s3a": "s3", "s3n": "s3", "gs": "gs", "gcs": "gs", "abfs": "abfs", "abfss": "abfss", "hdfs": "hdfs",
    "viewfs": "viewfs",
}  # fmt: skip
KNOWN = "s3://, gs://, abfs://, hdfs:// and file://"

# A scheme has at least two characters: one letter is a drive of Windows. pathlib makes one slash of two.
_URL = re.compile(r"(?P<scheme>[A-Za-z][A-Za-z0-9+.-]+):(?P<slashes>/+)(?P<rest>.*)", re.DOTALL)
_QUERY = re.compile(r"\?(?P<query>[A-Za-z_]+=[^?*\[\]]*)\Z")


@dataclass(frozen=True, slots=True)
class Url:
    """``scheme://authority/path?query`` of a store. ``authority`` may hold credentials, so ``base`` leaves them out."""

    scheme: str
    authority: str
    path: str
    query: str = ""

    @property
    def base(self) -> str:
        """The URL of the bucket, container or cluster, without credentials."""
        host = self.authority if self.scheme.startswith("abfs") else self.authority.rpartition("@")[2]
        return f"{self.scheme}://{host}"

    @property
    def shown(self) -> str:
        """The whole URL without credentials and query."""
        return f"{self.base}/{self.path}"


def url_of(path: str) -> Url | None:
    """Return the URL in a store that ``path`` is; None for a local path and for a URL that names no store."""
    scheme, slashes, rest = _split(path)
    if scheme not in SCHEMES:
        return None
    query = _QUERY.search(rest)
    rest = rest[: query.start()] if query else rest
    authority, _, key = ("", "", rest) if len(slashes) > 2 else rest.partition("/")
    return Url(SCHEMES[scheme], authority, key, query["query"] if query else "")


def local_path(path: str) -> str:
    """Return the local path that a ``file:`` URL names; any other path as it is."""
    scheme, _, rest = _split(path)
    return f"/{rest}" if scheme == "file" else path


def instead_of_url(path: str) -> str:
    """Return advice for a URL that names neither a store nor a local file; "" for any other path."""
    scheme, _, rest = _split(path)
    if not scheme or scheme == "file" or scheme in SCHEMES:
        return ""
    if scheme == "dbfs":
        mounted = f"/{rest}" if rest.startswith("Volumes/") else f"/dbfs/{rest}"
        return f"write {mounted!r}, where Databricks mounts it"
    return f"known are {KNOWN}; mount it and write the path, or copy it to one of these first"


def parts_of(pattern: str) -> Sequence[str]:
    """Return the segments of a path or pattern in a store."""
    return [segment for segment in pattern.split("/") if segment]


def _split(path: str) -> tuple[str, str, str]:
    """Return the scheme in lower case, the slashes after it, and the rest; ("", "", "") for a local path."""
    url = _URL.fullmatch(path)
    if url is None or os.path.isdir(f"{url['scheme']}:"):
        return "", "", ""
    return url["scheme"].lower(), url["slashes"], url["rest"]
