"""Reads ranges of offsets in executors, as Arrow columns.

A position is an offset. An offset without a record (compacted away, or a transaction marker) is left out. Planned
offsets that retention has deleted are left out too, and logged as lost. Offsets that are far apart are read separately.
A value is bytes, or a struct if the source decodes it (``decoder``). A record whose value does not decode is
unreadable. Needs confluent-kafka, pyarrow and numpy; imports neither grpc nor pyspark.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from acker_client.cluster.handed_on import HandedOn, taken_up
from acker_client.source.decoding.lines import ReadRows
from acker_client.source.decoding.values import ddl_of, json_rows, json_value, jsonable
from acker_client.source.errors import SourceError
from acker_client.source.kafka.decoder import decoder_of
from acker_client.source.kafka.names import At, KafkaConnection
from acker_client.source.kafka.reader import Fetched, Gone, Reader, reader_of
from acker_client.source.kafka.values import Decoding
from acker_client.source.records.input import Chosen, Original
from acker_client.source.records.ranges import Positions
from acker_client.source.waiting import OutOfReach

log = logging.getLogger("acker_client.source.kafka")

COLUMNS = (
    "key binary, value binary, topic string, partition int, offset bigint, timestamp timestamp,"
    " headers array<struct<key: string, value: binary>>"
)
HEADERS = pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())]))
TIMESTAMP = pa.timestamp("us", tz="UTC")
SCHEMA = pa.schema(
    [
        ("key", pa.binary()),
        ("value", pa.binary()),
        ("topic", pa.string()),
        ("partition", pa.int32()),
        ("offset", pa.int64()),
        ("timestamp", TIMESTAMP),
        ("headers", HEADERS),
    ]
)
DDL = ddl_of(SCHEMA)
# The place of the value among the columns.
VALUE = SCHEMA.get_field_index("value")
# The offsets between two chosen ones are not read if the gap is larger than this.
APART = 2_000


@dataclass(frozen=True, slots=True)
class KafkaPart:
    """Offsets ``start`` up to ``stop`` of one partition of a topic."""

    topic: str
    number: int
    start: int
    stop: int

    @property
    def partition(self) -> str:
        return self.at.name

    @property
    def at(self) -> At:
        return At(self.topic, self.number)


@dataclass(frozen=True, slots=True)
class KafkaSlice:
    """The ``chosen`` offsets, in order. In the batch they have the numbers ``start`` up to ``stop``.

    ``skips_null``: a record without a value is left out. ``decoding``: None for values as bytes.
    """

    start: int
    stop: int
    chosen: tuple[Chosen[KafkaPart], ...]
    connection: KafkaConnection
    skips_null: bool
    decoding: Decoding | None = None

    def read(self) -> Iterator[ReadRows]:
        """Read the records that exist, some thousands at a time. Raises ``SourceError``."""
        reader, number = reader_of(self.connection), self.start
        for each in self.chosen:
            for offsets, fetched in read_chosen(reader, each):
                columns, unreadable = columns_of(each.part, fetched, self.decoding)
                rows = ReadRows((number + offsets).astype(np.uint64), columns, unreadable)
                yield _without_null(rows, fetched) if self.skips_null else rows
            number += len(each)


def read_chosen(reader: Reader, chosen: Chosen[KafkaPart]) -> Iterator[tuple[Positions, Fetched]]:
    """Yield the existing messages by ascending offset: each time n indices in ``chosen`` (int64[n]) and n messages."""
    part, positions = chosen.part, chosen.positions
    breaks = np.flatnonzero(np.diff(positions) > APART) + 1
    for stretch in np.split(positions, breaks):
        for found in reader.read(part.at, int(stretch[0]), int(stretch[-1]) + 1):
            if isinstance(found, Gone):
                _log_lost(part, positions, found)
                continue
            at, some = _keep_chosen(positions, found)
            if len(at):
                yield at, some


def schema_of(decoding: Decoding | None) -> pa.Schema:
    """Return the columns of the rows."""
    return SCHEMA if decoding is None else SCHEMA.set(VALUE, pa.field("value", decoding.type))


def columns_of(
    part: KafkaPart, fetched: Fetched, decoding: Decoding | None = None
) -> tuple[pa.RecordBatch, dict[int, str]]:
    """Return messages as columns, and the reason of each row that is unreadable."""
    count = len(fetched.offsets)
    times: Any = pa.array(fetched.timestamps_ms, mask=fetched.timestamps_ms < 0).cast(pa.timestamp("ms", tz="UTC"))
    headers = pa.array(fetched.headers, HEADERS) if any(fetched.headers) else pa.nulls(count, HEADERS)
    values, unreadable = pa.array(fetched.values, pa.binary()), fetched.unreadable
    if decoding is not None:
        values, reasons = decoder_of(decoding).decode(part.topic, fetched.values, fetched.headers)
        where = f"{part.topic}:{part.number}"
        unreadable = {row: f"{where}:{fetched.offsets[row]}: {why}" for row, why in reasons.items()} | unreadable
    columns = [
        pa.array(fetched.keys, pa.binary()),
        values,
        pa.repeat(pa.scalar(part.topic, pa.string()), count),
        pa.repeat(pa.scalar(part.number, pa.int32()), count),
        pa.array(fetched.offsets),
        times.cast(TIMESTAMP),
        headers,
    ]
    return pa.RecordBatch.from_arrays(columns, schema=schema_of(decoding)), unreadable


def originals_of(
    reader: Reader, chosen: Sequence[Chosen[KafkaPart]], decoding: Decoding | None = None
) -> list[Original]:
    """Read records again, and return their origin (topic, partition, offset, and the key if any), value (bytes), and
    other columns. The columns are None for a record that cannot be read. If the value decodes, the original's value is
    the whole row instead, with the bytes as ``raw``. Once the schema registry does not answer, all values are bytes.
    Raises ``OutOfReach`` if no broker answers."""
    originals: list[Original] = []
    for each in chosen:
        part, found = each.part, dict[int, Original]()
        for fetched in _read_again(reader, each):
            found |= ((offset, _original(part, fetched, row)) for row, offset in enumerate(fetched.offsets.tolist()))
            try:
                found |= {} if decoding is None else _decoded(part, fetched, decoding, found)
            except SourceError as error:
                log.warning("originals of records hold bytes in place of decoded values: %s", error)
                decoding = None
        positions = each.positions.tolist()
        originals += [found.get(offset) or Original(_origin(part, offset, None), None) for offset in positions]
    return originals


def _read_again(reader: Reader, chosen: Chosen[KafkaPart]) -> Iterator[Fetched]:
    """Yield the messages that can be read. Raises ``OutOfReach`` if no broker answers."""
    try:
        for _, fetched in read_chosen(reader, chosen):
            yield fetched
    except OutOfReach:
        raise
    except SourceError as error:
        log.warning("records of %s could not be read once more: %s", chosen.part.partition, error)


def _decoded(
    part: KafkaPart, fetched: Fetched, decoding: Decoding, plain: Mapping[int, Original]
) -> dict[int, Original]:
    """Return the originals of the rows whose value decodes, by offset, with the columns that the rows had."""
    columns, unreadable = columns_of(part, fetched, decoding)
    rows, ddl = json_rows(columns), ddl_of(columns.schema)
    return {
        offset: Original(plain[offset].origin, rows[row] | {"raw": jsonable(fetched.values[row])}, schema=ddl)
        for row, offset in enumerate(fetched.offsets.tolist())
        if row not in unreadable
    }


def are_there(reader: Reader, chosen: Chosen[KafkaPart]) -> list[bool]:
    """Whether each offset exists; True for all if they cannot be read."""
    found = np.zeros(len(chosen), np.bool_)
    try:
        for at, _ in read_chosen(reader, chosen):
            found[at] = True
    except SourceError as error:
        log.warning("records of %s could not be read once more: %s", chosen.part.partition, error)
        found[:] = True
    return found.tolist()


def taken_up_of(reader: Reader, chosen: Chosen[KafkaPart]) -> list[list[HandedOn]]:
    """Read headers again, and return the anchors that each record hands on; none if they cannot be read or parsed."""
    part = chosen.part
    found: dict[int, list[HandedOn]] = {}
    try:
        for _, fetched in read_chosen(reader, chosen):
            for offset, headers in zip(fetched.offsets.tolist(), fetched.headers, strict=True):
                if headers:
                    found[offset] = _taken_up(part, offset, headers)
    except SourceError as error:
        log.warning(
            "headers of %s could not be read once more; the handed-on anchors time out: %s", part.partition, error
        )
    return [found.get(offset, []) for offset in chosen.positions.tolist()]


def _taken_up(part: KafkaPart, offset: int, headers: Sequence[tuple[str, bytes | None]]) -> list[HandedOn]:
    try:
        return taken_up(headers)
    except ValueError as error:
        log.warning("%s:%d: %s; the anchors that came with this record time out", part.partition, offset, error)
        return []


def _original(part: KafkaPart, fetched: Fetched, row: int) -> Original:
    offset, key, value = int(fetched.offsets[row]), fetched.keys[row], fetched.values[row]
    origin = _origin(part, offset, key)
    if row in fetched.unreadable:
        return Original(origin, value)
    milliseconds, headers = int(fetched.timestamps_ms[row]), fetched.headers[row]
    columns: dict[str, Any] = {
        "timestamp": None if milliseconds < 0 else json_value(pa.scalar(milliseconds, pa.timestamp("ms", "UTC"))),
        "headers": None if headers is None else [{"key": name, "value": jsonable(each)} for name, each in headers],
    }
    return Original(origin, value, schema=DDL, columns={"key": None, **columns} if key is None else columns)


def _origin(part: KafkaPart, offset: int, key: bytes | None) -> dict[str, Any]:
    origin: dict[str, Any] = {"topic": part.topic, "partition": part.number, "offset": offset}
    return origin if key is None else origin | {"key": jsonable(key)}


def _keep_chosen(positions: Positions, fetched: Fetched) -> tuple[Positions, Fetched]:
    at = np.minimum(np.searchsorted(positions, fetched.offsets), len(positions) - 1)
    is_chosen = positions[at] == fetched.offsets
    return (at, fetched) if is_chosen.all() else (at[is_chosen], _select_rows(fetched, np.flatnonzero(is_chosen)))


def _select_rows(fetched: Fetched, rows: Positions) -> Fetched:
    kept = rows.tolist()
    return Fetched(
        fetched.offsets[rows],
        fetched.timestamps_ms[rows],
        [fetched.keys[row] for row in kept],
        [fetched.values[row] for row in kept],
        [fetched.headers[row] for row in kept],
        {index: fetched.unreadable[row] for index, row in enumerate(kept) if row in fetched.unreadable},
    )


def _without_null(rows: ReadRows, fetched: Fetched) -> ReadRows:
    """Leave out the records without a value."""
    kept = np.flatnonzero([value is not None for value in fetched.values])
    if len(kept) == len(fetched.values):
        return rows
    places = {row: index for index, row in enumerate(kept.tolist())}
    unreadable = {places[row]: reason for row, reason in rows.unreadable.items() if row in places}
    return ReadRows(rows.numbers[kept], rows.columns.take(pa.array(kept)), unreadable)


def _log_lost(part: KafkaPart, positions: Positions, gone: Gone) -> None:
    first, last = np.searchsorted(positions, (gone.start, gone.stop)).tolist()
    if first < last:
        log.error(
            "LOST: up to %d records of %s, offsets %d to %d, were deleted (retention, or delete_records) before they"
            " were done; they count as absent",
            last - first,
            part.partition,
            positions[first],
            positions[last - 1],
        )


def origins_of(chosen: Sequence[Chosen[KafkaPart]]) -> pa.RecordBatch:
    """Return the columns ``topic``, ``partition`` and ``offset`` of the chosen records."""
    topics = {topic: index for index, topic in enumerate(dict.fromkeys(each.part.topic for each in chosen))}
    lengths = np.array([len(each) for each in chosen], np.int64)
    topic_ids = np.repeat(np.array([topics[each.part.topic] for each in chosen], np.int32), lengths)
    numbers = np.repeat(np.array([each.part.number for each in chosen], np.int32), lengths)
    offsets = np.concatenate([np.empty(0, np.int64), *(each.positions for each in chosen)])
    topic = pa.DictionaryArray.from_arrays(pa.array(topic_ids), pa.array(list(topics), pa.string()))
    return pa.RecordBatch.from_arrays(
        [topic, pa.array(numbers), pa.array(offsets)], names=["topic", "partition", "offset"]
    )
