"""State: a shard as arrays and back.

Decides the layout of a dumped state: parts in a fixed order, each some columns of numbers, and first of all one column
of bytes with a JSON header for what is small and has structure (sources, batches, answers). What is large comes in many
parts, so that neither a stop nor a start needs room for it twice. Times are stored as time remaining or as age, so that
a state may travel to a process with another clock. Reading and writing files is not done here.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from acker_protocol.messages import Limits, Settlement
from acker_service.core.batches import Batch, limit_ticks
from acker_service.core.outbox import Outbox
from acker_service.core.sources import Settled, Source

if TYPE_CHECKING:
    from acker_service.core.shard import Shard

Array = npt.NDArray[Any]
# A name of PARTS, and columns.
Part = tuple[str, dict[str, Array]]

FORMAT = 2
# Every part of a state and its columns.
PARTS = {
    "header": {"json": "u1"},
    "batches": {"seen": "u8", "covered": "u8"},
    "outbox": {"roots": "u8", "verdicts": "u1", "reason_ids": "u4"},
    "ledger": {"keys": "u8", "vals": "u8", "flags": "u8", "ages": "i8"},
    "contents": {"keys": "u8", "ages": "f8", "maps": "u1"},
    "sessions": {"keys": "u8", "ages": "f8"},
    "sequences": {"keys": "u8", "maps": "u1"},
}


def dump(shard: Shard) -> Iterator[Part]:
    """All of a shard at its present time, part by part; it must not change until the last one was taken."""
    now, sources = shard._now, list(shard._sources.values())
    header = {
        "format": FORMAT,
        "generation": shard.generation,
        "registrations": shard.registrations,
        "counters": dataclasses.asdict(shard._counters),
        "reasons": shard._reasons.dump(),
        "sources": [_dump_source(source, now) for source in sources],
        "totals": _totals(shard),
    }
    batches = [batch for source in sources for batch in source.batches.values()]
    yield "header", {"json": np.frombuffer(json.dumps(header).encode(), np.uint8)}
    yield (
        "batches",
        {
            "seen": _joined([batch.seen for batch in batches], np.uint64),
            "covered": _joined([batch.covered for batch in batches], np.uint64),
        },
    )
    yield from (("outbox", columns) for source in sources for columns in source.outbox.dump())
    yield from (("ledger", columns) for columns in shard._ledger.dump(shard._tick))
    yield from (("contents", columns) for columns in shard._dedupe.dump_contents(now))
    yield from (("sessions", columns) for columns in shard._dedupe.dump_sessions(now))
    yield from (("sequences", columns) for columns in shard._dedupe.dump_sequences())


def load(shard: Shard, parts: Iterable[Part]) -> None:
    """Fill an empty shard, at its present time. Raises ValueError if the state is not whole."""
    try:
        _load(shard, parts)
    except (KeyError, TypeError, IndexError, OverflowError, AttributeError, json.JSONDecodeError) as error:
        raise ValueError(f"the state is not whole: {type(error).__name__}: {error}") from error
    except ValueError as error:
        raise ValueError(f"the state is not whole: {error}") from error


def _load(shard: Shard, parts: Iterable[Part]) -> None:
    left = iter(parts)
    header = json.loads(_take("header", left)["json"].tobytes())
    if header["format"] != FORMAT:
        raise ValueError(f"it has format {header['format']}, this server reads format {FORMAT}")
    shard.generation, shard.registrations = header["generation"], header["registrations"]
    _load_counters(shard, header["counters"])
    shard._reasons.load(header["reasons"])
    _load_sources(shard, header["sources"], _take("batches", left))
    for content in header["sources"]:
        outbox = shard._sources[content["session"]].outbox
        for count, reasons in content["outbox"]:
            outbox.load(count, reasons, _take("outbox", left))
        shard._unconfirmed += len(outbox)
    for name, columns in left:
        _check(name, columns)
        if name == "ledger":
            shard._ledger.load(columns, shard._tick)
        elif name == "contents":
            shard._dedupe.load_contents(columns, shard._now)
        elif name == "sessions":
            shard._dedupe.load_sessions(columns, shard._now)
        elif name == "sequences":
            shard._dedupe.load_sequences(columns, shard._now)
        else:
            raise ValueError(f"a second {name} in it")
    if _totals(shard) != header["totals"]:
        raise ValueError(f"there should be {header['totals']} in it, and there are {_totals(shard)}")
    _check_owners(shard)


def _take(name: str, parts: Iterator[Part]) -> dict[str, Array]:
    found, columns = next(parts, ("nothing", {}))
    if found != name:
        raise ValueError(f"{name} is missing, and {found} in its place")
    _check(name, columns)
    return columns


def _check(name: str, columns: Mapping[str, Array]) -> None:
    for column, kind in PARTS[name].items():
        if column not in columns:
            raise ValueError(f"{name}.{column} is missing")
        if columns[column].dtype != np.dtype(kind):
            raise ValueError(f"{name}.{column} is {columns[column].dtype}, not {np.dtype(kind)}")


def _totals(shard: Shard) -> dict[str, int]:
    dedupe = shard._dedupe
    return {
        "ledger": shard._ledger.entries,
        "contents": len(dedupe),
        "sessions": dedupe.sessions,
        "sequences": dedupe.sequences,
    }


def _load_counters(shard: Shard, counters: Mapping[str, int]) -> None:
    for field in dataclasses.fields(shard._counters):
        setattr(shard._counters, field.name, int(counters.get(field.name, 0)))
    shard._dedupe.dropped = shard._counters.identities_dropped


def _dump_source(source: Source, now: float) -> dict[str, Any]:
    return {
        "name": source.name,
        "session": source.session,
        "generation": source.generation,
        "lease_s": source.lease_s,
        "silent_s": now - source.watched,
        "freed": source.outbox.freed,
        "outbox": source.outbox.stretches(),
        "last_settled": source.last_settled,
        "settled": [[number, int(s.settlement), s.cursor, s.roots] for number, s in source.settled.items()],
        "batches": [_dump_batch(batch, now) for batch in source.batches.values()],
    }


def _dump_batch(batch: Batch, now: float) -> dict[str, Any]:
    names = ("number", "index", "first", "up_to", "held", "is_open", "inits")
    return {
        **{name: getattr(batch, name) for name in names},
        "age_s": now - batch.opened,
        "busy_s": now - batch.idle,
        "limits": [batch.limits.message_timeout_ms, batch.limits.progress_timeout_ms],
        "words": len(batch.seen),
    }


def _load_sources(shard: Shard, sources: list[dict[str, Any]], batches: Mapping[str, Array]) -> None:
    seen, covered = _taker(batches["seen"]), _taker(batches["covered"])
    for content in sources:
        # Anew: for as long as nobody served, nobody could renew it.
        lease_s = content["lease_s"]
        source = Source(content["name"], content["session"], shard._now + lease_s, content["generation"], lease_s)
        source.outbox = Outbox(content["freed"])
        source.last_settled = content["last_settled"]
        source.watched = shard._now - content.get("silent_s", 0.0)
        for number, settlement, cursor, roots in content["settled"]:
            source.settled[number] = Settled(Settlement(settlement), cursor, roots)
        shard._sources[source.session] = source
        for each in content["batches"]:
            _load_batch(shard, source, each, seen(each["words"]), covered(each["words"]))
    shard._indexes.settle_free()


def _load_batch(shard: Shard, source: Source, content: dict[str, Any], seen: Array, covered: Array) -> None:
    batch = Batch(
        source.session,
        content["number"],
        content["index"],
        shard._now - content["age_s"],
        content["first"],
        content["up_to"],
        content["held"],
        Limits(*content["limits"]),
        content["is_open"],
        content["inits"],
        seen,
        covered,
        shard._now - content.get("busy_s", content["age_s"]),
    )
    shard._indexes.claim(batch)
    source.batches[batch.number] = batch
    shard._ledger.limits[batch.index] = limit_ticks(batch.limits)
    shard._reserved += batch.reserved
    if not batch.is_open:
        shard._closing.add(batch)


def _check_owners(shard: Shard) -> None:
    """Every pending root belongs to a batch, and every source has its open stream."""
    owned = [batch.index for batch in shard._indexes]
    shard._pending = int(shard._ledger.pending.sum())
    if int(shard._ledger.pending[owned].sum()) != shard._pending:
        raise ValueError("roots in it belong to no batch")
    if any(0 not in source.batches for source in shard._sources.values()):
        raise ValueError("a source in it has no open stream")


def _joined(parts: list[Array], dtype: type[Any]) -> Array:
    return np.concatenate([*parts, np.empty(0, dtype)])


def _taker(column: Array) -> Callable[[int], Array]:
    """Hands out a column stretch by stretch. Raises ValueError when it is too short."""
    at = 0

    def take(count: int) -> Array:
        nonlocal at
        if at + count > len(column):
            raise ValueError("a column is shorter than its header says")
        at += count
        return column[at - count : at].copy()

    return take
