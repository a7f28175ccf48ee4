"""Dumping: a state as a sequence of parts, and back.

Decides in which order the parts come, and what makes a state incomplete. Each part dumps and loads itself. Large parts
do it piece by piece, so that neither a stop nor a start needs twice the memory. Times are dumped as remaining time or
age, since the next process has another clock. ``acker_service.state`` reads and writes the file.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from acker_service.core import parts
from acker_service.core.batches import NO_MAP, BatchState
from acker_service.core.parts import FORMAT, FORMAT_BEFORE, StatePart
from acker_service.core.sources import SourceState
from acker_service.core.state import State
from acker_service.core.stats import Counters

Array = npt.NDArray[Any]


def dump(state: State) -> Iterator[StatePart]:
    """Yield the whole state part by part, at its present time. The state must not change before the last part.

    Finishes what calls have begun, so that a dump never holds half a settlement.
    """
    state.finish_steps()
    header = {
        "format": FORMAT,
        "generation": state.generation,
        "registrations": state.registrations,
        "counters": dataclasses.asdict(state.counters),
        "totals": _totals(state),
    }
    yield "header", {"json": parts.json_column(header)}
    yield "reasons", state.reasons.dump()
    for source in state.sources.values():
        yield from _dump_source(source, state.now)
    yield from (("ledger", columns) for columns in state.ledger.dump(state.tick))
    yield from (("contents", columns) for columns in state.dedupe.dump_contents(state.now))
    yield from (("sessions", columns) for columns in state.dedupe.dump_sessions(state.now))
    yield from (("sequences", columns) for columns in state.dedupe.dump_sequences())


def _dump_source(source: SourceState, now: float) -> Iterator[StatePart]:
    content = parts.json_column(source.dump(now))
    yield "source", {"json": content, "pins": np.frombuffer(source.pins, np.uint8)}
    for batch in source.batches.values():
        if len(batch.seen):
            yield "batch", {"seen": batch.seen.copy(), "covered": batch.covered.copy()}
    yield from (("outbox", columns) for columns in source.outbox.dump())


def load(state: State, dumped: Iterable[StatePart]) -> None:
    """Fill ``state``, which must be empty. Dumped times are relative to its present time.

    Raises ValueError if the dump is incomplete.
    """
    try:
        _load(state, iter(dumped))
    except (KeyError, TypeError, IndexError, OverflowError, AttributeError, json.JSONDecodeError) as error:
        raise ValueError(f"the state is not whole: {type(error).__name__}: {error}") from error
    except ValueError as error:
        raise ValueError(f"the state is not whole: {error}") from error


def _load(state: State, dumped: Iterator[StatePart]) -> None:
    header = parts.read_json(parts.next_part("header", dumped)["json"])
    if header["format"] not in (FORMAT, FORMAT_BEFORE):
        raise ValueError(f"it has format {header['format']}, this server reads {FORMAT_BEFORE} and {FORMAT}")
    totals = header["totals"]
    if header["format"] == FORMAT_BEFORE:
        totals["sources"] = len(header["sources"])
        dumped = parts.from_format_before(header, dumped)
    state.generation, state.registrations = header["generation"], header["registrations"]
    state.accounts.counters = Counters.load(header["counters"])
    state.dedupe.dropped = state.counters.identities_dropped
    state.reasons.load(parts.next_part("reasons", dumped))
    for name, columns in dumped:
        parts.check_columns(name, columns)
        if name == "source":
            _load_source(state, columns, dumped)
        else:
            _load_part(state, name, columns)
    state.indexes.rebuild_free()
    if _totals(state) != totals:
        raise ValueError(f"its header counts {totals}, and it holds {_totals(state)}")
    _check_owners(state)


def _load_part(state: State, name: str, columns: dict[str, Array]) -> None:
    if name == "ledger":
        state.ledger.load(columns, state.tick)
    elif name == "contents":
        state.dedupe.load_contents(columns, state.now)
    elif name == "sessions":
        state.dedupe.load_sessions(columns, state.now)
    elif name == "sequences":
        state.dedupe.load_sequences(columns, state.now)
    else:
        raise ValueError(f"it holds a second {name}")


def _load_source(state: State, columns: Mapping[str, Array], dumped: Iterator[StatePart]) -> None:
    """Load a source, and the parts after it with its batches' maps and its outcomes."""
    content, pins = parts.read_json(columns["json"]), columns["pins"].tobytes()
    if len(pins) != content["pins_bytes"] or content["session"] in state.sources:
        raise ValueError("it holds a source twice, or its pins are cut short")
    source = SourceState.load(content, pins, state.room, state.now)
    state.add_source(source)
    for each in content["batches"]:
        maps = parts.next_part("batch", dumped) if each["words"] else {"seen": NO_MAP, "covered": NO_MAP}
        if not each["words"] == len(maps["seen"]) == len(maps["covered"]):
            raise ValueError("the maps of a batch are not as long as its source says")
        batch = BatchState.load(source.session, each, maps["seen"], maps["covered"], state.now)
        if not 0 <= batch.inits <= batch.roots <= batch.up_to:
            raise ValueError(
                f"batch {batch.number} of {batch.up_to} numbers has {batch.inits} inits of {batch.roots} roots"
            )
        state.add_batch(source, batch)
    for _ in range(content["pieces"]):
        source.outbox.load(parts.next_part("outbox", dumped))


def _totals(state: State) -> dict[str, int]:
    return {
        "sources": len(state.sources),
        "ledger": state.ledger.tables.entries,
        "contents": len(state.dedupe),
        "sessions": state.dedupe.sessions,
        "sequences": state.dedupe.sequences,
    }


def _check_owners(state: State) -> None:
    """Raise ValueError if a pending root has no batch, or a source has no open stream. Sets ``room.pending``."""
    owned = [batch.index for batch in state.indexes]
    state.room.pending = int(state.ledger.pending.sum())
    if int(state.ledger.pending[owned].sum()) != state.room.pending:
        raise ValueError("it holds roots without a batch")
    if any(0 not in source.batches for source in state.sources.values()):
        raise ValueError("it holds a source without its open stream")
