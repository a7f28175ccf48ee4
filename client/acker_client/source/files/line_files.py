"""Which files are files of lines, by their names, and of which kind."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path, PurePath

from acker_client.source.decoding.content import Content
from acker_client.source.decoding.gz import is_gz
from acker_client.source.errors import SourceError
from acker_client.source.files.gz_file import GzFile
from acker_client.source.files.line_file import CODECS, FileMark, LineFile
from acker_client.source.files.plain_file import PlainFile
from acker_client.source.paths import Found, Paths, find_files

# Ends of names of files that are packed, or not made of lines.
PACKED = frozenset(
    {".7z", ".arrow", ".avro", ".br", ".bz2", ".deflate", ".feather", ".lz", ".lz4", ".lzma", ".lzo", ".lzo_deflate"}
    | {".orc", ".parquet", ".rar", ".snappy", ".sz", ".tar", ".tbz2", ".tgz", ".txz", ".xz", ".z", ".zip", ".zlib"}
    | {".zst", ".zstd"}
)
EXAMPLE = "orders/*.jsonl"


def line_file(partition: str, shown: str, content: Content, mark: FileMark | None) -> LineFile:
    """Return the file that is at ``content``. ``mark``: its mark in the checkpoint, if any."""
    return (GzFile if is_gz(content.path) else PlainFile)(partition, shown, content, mark)


def find_line_files(
    paths: Paths, *, asker: str = "Files", may_be_none: bool = False, own_files: Iterable[Path] = ()
) -> list[Found]:
    """Return the local files that ``paths`` name; see ``find_files``.

    Raises ``SourceError`` also for a directory, and for a file that is not made of lines.
    """
    found = find_files(
        paths,
        asker=asker,
        example=EXAMPLE,
        in_directory=lambda path: refuse_directory(path, asker),
        may_be_none=may_be_none,
        own_files=own_files,
    )
    check_names((file.shown for file in found), asker)
    return found


def check_names(shown: Iterable[str], asker: str) -> None:
    """Raise ``SourceError`` for a file that, by its name, is not made of lines."""
    for each in shown:
        name = PurePath(each)
        if name.suffix.lower() in PACKED or [suffix.lower() for suffix in name.suffixes[-2:]] == [".tar", ".gz"]:
            what = "use Parquet" if each.endswith(".parquet") else "unpack or convert it"
            raise SourceError(
                f"{asker}: {each!r} is not a file of lines, and {asker} reads {CODECS}: {what}, or narrow the pattern"
            )


def refuse_directory(path: str, asker: str) -> list[str]:
    raise SourceError(f"{asker}: {path!r} is a directory: write {os.path.join(path, '*')!r}")
