"""Parts: the layout of a dumped state, a sequence of parts. Each part has a name and columns of numbers.

Decides the names, columns and types, and refuses a part that comes in the wrong place. The owner of each part fills and
reads its content. Converts states of the previous format.

    header | reasons | of each source: source, its batches with maps, its outbox in pieces | the rest, each in pieces

This is one shard. A server's state has one for the default namespace, and then for each other one the part
``namespace`` with its name and its shard.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from acker_protocol.messages import causes_of, reasons_of

Array = npt.NDArray[Any]
# The name of a part (a key of PARTS), and the part's columns.
StatePart = tuple[str, dict[str, Array]]

FORMAT = 3
FORMAT_BEFORE = 2
# Every part of a state and its columns.
PARTS = {
    "header": {"json": "u1"},
    "reasons": {"ids": "u4", "texts": "u1", "text_sizes": "u4"},
    "source": {"json": "u1", "pins": "u1"},
    "batch": {"seen": "u8", "covered": "u8"},
    "outbox": {"roots": "u8", "verdicts": "u1", "reason_ids": "u4", "texts": "u1", "text_sizes": "u4", "causes": "u1"},
    "ledger": {"keys": "u8", "vals": "u8", "flags": "u8", "ages": "i8"},
    "contents": {"keys": "u8", "ages": "f8", "maps": "u1"},
    "sessions": {"keys": "u8", "ages": "f8"},
    "sequences": {"keys": "u8", "maps": "u1"},
    "namespace": {"json": "u1"},
}


def next_part(name: str, parts: Iterator[StatePart]) -> dict[str, Array]:
    """Return the columns of the next part. Raises ValueError if another part comes, or its columns are wrong."""
    found, columns = next(parts, ("nothing", {}))
    if found != name:
        raise ValueError(f"expected part {name}, found {found}")
    check_columns(name, columns)
    return columns


def check_columns(name: str, columns: Mapping[str, Array]) -> None:
    """Raise ValueError unless ``columns`` holds the columns of the part ``name`` in their types."""
    for column, kind in PARTS[name].items():
        if column not in columns:
            raise ValueError(f"{name}.{column} is missing")
        if columns[column].dtype != np.dtype(kind):
            raise ValueError(f"{name}.{column} is {columns[column].dtype}, not {np.dtype(kind)}")


def json_column(content: Any) -> Array:
    """Return ``content`` as JSON in a column of bytes."""
    return np.frombuffer(json.dumps(content).encode(), np.uint8)


def read_json(column: Array) -> Any:
    return json.loads(column.tobytes())


def joined_texts(texts: Iterable[str]) -> dict[str, Array]:
    """Return two columns: ``texts``, the UTF-8 of all texts, and ``text_sizes``, the bytes of each."""
    encoded = [text.encode() for text in texts]
    return {
        "texts": np.frombuffer(b"".join(encoded), np.uint8),
        "text_sizes": np.array([*map(len, encoded)], np.uint32),
    }


def split_texts(columns: Mapping[str, Array]) -> list[str]:
    """Return the texts of :func:`joined_texts`. Raises ValueError if some are cut short."""
    content, sizes = columns["texts"].tobytes(), columns["text_sizes"]
    stops = np.cumsum(sizes, dtype=np.uint64).tolist()
    if len(content) != (stops[-1] if stops else 0):
        raise ValueError("texts are not as long as their sizes say")
    return [content[stop - size : stop].decode() for stop, size in zip(stops, sizes.tolist(), strict=True)]


def from_format_before(header: dict[str, Any], dumped: Iterator[StatePart]) -> Iterator[StatePart]:
    """Yield the parts after the header of a state in FORMAT_BEFORE, as FORMAT has them.

    There, the header had all reasons and pins, and the maps of all batches were one part.
    """
    ids = np.array([reason_id for reason_id, _ in header["reasons"]], np.uint32)
    yield "reasons", {"ids": ids, **joined_texts(text for _, text in header["reasons"])}
    name, maps = next(dumped)
    if name != "batches":
        raise ValueError(f"expected part batches, found {name}")
    seen, covered = _piece_reader(maps["seen"]), _piece_reader(maps["covered"])
    for source in header["sources"]:
        pins = np.frombuffer(base64.b64decode(source.get("pins", "")), np.uint8)
        content = {**source, "pieces": len(source["outbox"]), "pins_bytes": len(pins)}
        yield "source", {"json": json_column(content), "pins": pins}
        for each in source["batches"]:
            if each["words"]:
                yield "batch", {"seen": seen(each["words"]), "covered": covered(each["words"])}
        # Servers that are older than the enum Cause wrote no causes.
        every = source.get("causes") or [()] * len(source["outbox"])
        for (_, texts), numbers in zip(source["outbox"], every, strict=True):
            name, columns = next(dumped)
            if name != "outbox":
                raise ValueError(f"expected part outbox, found {name}")
            causes = np.frombuffer(causes_of(reasons_of(texts, numbers)), np.uint8)
            yield name, {**columns, **joined_texts(texts), "causes": causes}
    yield from dumped


def _piece_reader(column: Array) -> Callable[[int], Array]:
    """Return a function that returns the next ``count`` values of a column. It raises ValueError past the end."""
    at = 0

    def read_piece(count: int) -> Array:
        nonlocal at
        if at + count > len(column):
            raise ValueError("a column is shorter than its header says")
        at += count
        return column[at - count : at].copy()

    return read_piece
