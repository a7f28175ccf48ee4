"""State: a shard as arrays and back.

Decides the layout of a dumped state: columns of numbers, and one column of bytes with a JSON header for what is small
and has structure (sources, batches, answers). Times are stored as time remaining or as age, so that a state may travel
to a process with another clock. Reading and writing files is not done here.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from acker_protocol.messages import Limits, Settlement
from acker_service.batches import Batch, limit_ticks
from acker_service.outbox import Outbox
from acker_service.sources import Settled, Source

if TYPE_CHECKING:
    from acker_service.shard import Shard

Array = npt.NDArray[Any]

FORMAT = 1
COLUMNS = {
    "header": "u1",
    "ledger.keys": "u8",
    "ledger.vals": "u8",
    "ledger.flags": "u8",
    "ledger.ages": "i8",
    "dedupe.contents": "u8",
    "dedupe.contents_ages": "f8",
    "dedupe.contents_maps": "u1",
    "dedupe.sessions": "u8",
    "dedupe.sessions_ages": "f8",
    "dedupe.sequences": "u8",
    "dedupe.sequences_maps": "u1",
    "batches.seen": "u8",
    "batches.covered": "u8",
    "outbox.roots": "u8",
    "outbox.verdicts": "u1",
    "outbox.reason_ids": "u4",
}


def dump(shard: Shard) -> dict[str, Array]:
    """All of a shard at its present time; the arrays are its own no longer."""
    boxes = [source.outbox.dump() for source in shard._sources.values()]
    sources = [
        _dump_source(source, stretches, shard._now)
        for source, (stretches, _) in zip(shard._sources.values(), boxes, strict=True)
    ]
    header = {
        "format": FORMAT,
        "generation": shard.generation,
        "registrations": shard.registrations,
        "counters": dataclasses.asdict(shard._counters),
        "reasons": shard._reasons.dump(),
        "sources": sources,
    }
    batches = [batch for source in shard._sources.values() for batch in source.batches.values()]
    outcomes = [columns for _, columns in boxes]
    return {
        "header": np.frombuffer(json.dumps(header).encode(), np.uint8),
        **_prefixed("ledger", shard._ledger.dump(shard._tick)),
        **_prefixed("dedupe", shard._dedupe.dump(shard._now)),
        "batches.seen": _joined([batch.seen for batch in batches], np.uint64),
        "batches.covered": _joined([batch.covered for batch in batches], np.uint64),
        "outbox.roots": _joined([columns.root_ids for columns in outcomes], np.uint64),
        "outbox.verdicts": _joined([columns.verdicts for columns in outcomes], np.uint8),
        "outbox.reason_ids": _joined([columns.reason_ids for columns in outcomes], np.uint32),
    }


def load(shard: Shard, arrays: Mapping[str, Array]) -> None:
    """Fill an empty shard, at its present time. Raises ValueError if the state is not whole."""
    _check_columns(arrays)
    try:
        header = json.loads(arrays["header"].tobytes())
        if header["format"] != FORMAT:
            raise ValueError(f"it has format {header['format']}, this server reads format {FORMAT}")
        shard.generation, shard.registrations = header["generation"], header["registrations"]
        _load_counters(shard, header["counters"])
        shard._reasons.load(header["reasons"])
        shard._ledger.load(_section("ledger", arrays), shard._tick)
        shard._dedupe.load(_section("dedupe", arrays), shard._now)
        _load_sources(shard, header["sources"], arrays)
    except (KeyError, TypeError, IndexError, OverflowError, AttributeError, json.JSONDecodeError) as error:
        raise ValueError(f"the state is not whole: {type(error).__name__}: {error}") from error
    except ValueError as error:
        raise ValueError(f"the state is not whole: {error}") from error


def _check_columns(arrays: Mapping[str, Array]) -> None:
    for name, kind in COLUMNS.items():
        if name not in arrays:
            raise ValueError(f"the state is not whole: {name} is missing")
        if arrays[name].dtype != np.dtype(kind):
            raise ValueError(f"the state is not whole: {name} is {arrays[name].dtype}, not {np.dtype(kind)}")


def _load_counters(shard: Shard, counters: Mapping[str, int]) -> None:
    for field in dataclasses.fields(shard._counters):
        setattr(shard._counters, field.name, int(counters.get(field.name, 0)))
    shard._dedupe.dropped = shard._counters.identities_dropped


def _dump_source(source: Source, stretches: list[list[Any]], now: float) -> dict[str, Any]:
    return {
        "name": source.name,
        "session": source.session,
        "generation": source.generation,
        "lease_left_s": source.expires - now,
        "silent_s": now - source.watched,
        "freed": source.outbox.freed,
        "outbox": stretches,
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


def _load_sources(shard: Shard, sources: list[dict[str, Any]], arrays: Mapping[str, Array]) -> None:
    seen, covered = _taker(arrays["batches.seen"]), _taker(arrays["batches.covered"])
    outcomes = {name: _taker(arrays[f"outbox.{name}"]) for name in ("roots", "verdicts", "reason_ids")}
    for content in sources:
        expires = shard._now + content["lease_left_s"]
        source = Source(content["name"], content["session"], expires, content["generation"])
        count = sum(stretch[0] for stretch in content["outbox"])
        source.outbox = Outbox(content["freed"])
        source.outbox.load(content["outbox"], {name: take(count) for name, take in outcomes.items()})
        source.last_settled = content["last_settled"]
        source.watched = shard._now - content.get("silent_s", 0.0)
        for number, settlement, cursor, roots in content["settled"]:
            source.settled[number] = Settled(Settlement(settlement), cursor, roots)
        shard._sources[source.session] = source
        shard._unconfirmed += len(source.outbox)
        for each in content["batches"]:
            _load_batch(shard, source, each, seen(each["words"]), covered(each["words"]))
    shard._indexes.settle_free()
    _check_owners(shard)


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


def _prefixed(name: str, columns: Mapping[str, Array]) -> dict[str, Array]:
    return {f"{name}.{column}": values for column, values in columns.items()}


def _section(name: str, arrays: Mapping[str, Array]) -> dict[str, Array]:
    start = len(name) + 1
    return {column[start:]: values for column, values in arrays.items() if column.startswith(f"{name}.")}


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
