"""Long messages: cuts a message into parts, between which other calls may come, and merges the answers to them.

Decides what a part may hold, and what of a message is prepared beforehand. All of that takes long, so that it should
not be done while other calls wait.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from acker_protocol.ids import Column
from acker_protocol.messages import FAIL, NO_KINDS, Apply, ApplyReply, Entries, InitScope, Kinds, Status
from acker_service.core.batches import BatchState, ascending
from acker_service.core.ledger import ENTRIES_MAX, Scratch, Sections
from acker_service.core.malformed import checked_sections
from acker_service.core.reasons import truncated

Array = npt.NDArray[np.int64]

# The most ranges of a part, and the most numbers in them. That takes some 5 ms.
RANGES_MAX, NUMBERS_MAX = 1 << 19, 1 << 25
# The most fails of a part, unless a section has more. Each may have a reason of its own (`applying.REASONS_A_CALL`).
FAILS_MAX = 1 << 11


def prepared(message: Apply) -> Apply:
    """Return the message with its ranges in ascending order and its reasons cut to their longest."""
    entries, scope = message.entries, message.inits
    if entries.reasons:
        reasons = tuple(map(truncated, entries.reasons))
        for reason in reasons:
            # A string computes this once.
            hash(reason)
        message = dataclasses.replace(message, entries=dataclasses.replace(entries, reasons=reasons))
    if scope is not None and len(scope.covered) > 1:
        message = dataclasses.replace(message, inits=dataclasses.replace(scope, covered=ascending(scope.covered)))
    return message


def is_long(message: Apply) -> bool:
    if len(message.entries) > ENTRIES_MAX or len(message.entries.reason_ids) > FAILS_MAX:
        return True
    covered = () if message.inits is None else message.inits.covered
    return len(covered) > RANGES_MAX or (len(covered) > 0 and int(np.max(covered)) > NUMBERS_MAX)


@dataclass(frozen=True, slots=True)
class Cut:
    """The parts of a message, and the sections of all of it."""

    parts: list[Apply]
    sections: Sections


def cut(message: Apply, batch: BatchState | None) -> Cut | str:
    """Cut a message into parts, or return the error sentence of a message that must be refused. ``batch``: that of its
    inits, if it is known. Other calls may change it meanwhile, as its slots only become more."""
    entries = message.entries
    sections = checked_sections(message, batch, Scratch(len(entries)).check)
    if isinstance(sections, str):
        return sections
    is_open = batch is not None and batch.is_open
    parts = [*_parts(message, sections.starts.astype(np.int64), has_ranges=is_open)]
    # Without an open batch nobody has checked the ranges, and nothing will be covered.
    return Cut(parts or [_without_ranges(rest_of(message, len(entries)))], sections)


def rest_of(message: Apply, applied: int) -> Apply:
    """Return the part of a message behind its first ``applied`` entries, which must end a section."""
    entries = message.entries
    fails = int(np.count_nonzero(entries.kinds[:applied] & FAIL))
    rest = _slice(entries, applied, len(entries), fails, len(entries.reason_ids))
    return dataclasses.replace(message, entries=rest)


def merged(replies: list[tuple[ApplyReply, int]]) -> ApplyReply:
    """Return the answer to a message from the answers to its parts, each with its number of sections. If a part was
    refused, so is the message."""
    last, _ = replies[-1]
    if len(replies) == 1 or last.status not in (Status.APPLIED, Status.DUPLICATE):
        return last
    statuses = np.concatenate([_statuses(*each) for each in replies])
    is_uniform = not np.any(statuses != statuses[:1])
    return dataclasses.replace(
        last,
        status=Status(int(statuses[0])) if is_uniform and len(statuses) else Status.APPLIED,
        section_statuses=NO_KINDS if is_uniform else statuses,
        inits_known=sum(reply.inits_known for reply, _ in replies),
        inits_conflicting=sum(reply.inits_conflicting for reply, _ in replies),
    )


def _statuses(reply: ApplyReply, sections: int) -> Kinds:
    return reply.section_statuses if len(reply.section_statuses) else np.full(sections, int(reply.status), np.uint8)


def _parts(message: Apply, starts: Array, *, has_ranges: bool) -> Iterator[Apply]:
    scope = message.inits
    entries, first, last = message.entries, 0, len(starts) - 1
    fails = np.zeros_like(starts)
    if len(entries.kinds):
        np.cumsum(np.add.reduceat(entries.kinds & FAIL != 0, starts[:-1], dtype=np.int64), out=fails[1:])
    while first < last:
        after = int(np.searchsorted(starts, starts[first] + ENTRIES_MAX, side="right")) - 1
        after = min(after, int(np.searchsorted(fails, fails[first] + FAILS_MAX, side="right")) - 1)
        after = max(after, first + 1)
        some = _slice(entries, int(starts[first]), int(starts[after]), int(fails[first]), int(fails[after]))
        yield _without_ranges(dataclasses.replace(message, entries=some))
        first = after
    # The covered numbers come last, when all inits have been applied.
    if scope is not None and has_ranges:
        nothing = rest_of(message, len(entries))
        for covered in _cut_ranges(scope.covered):
            yield dataclasses.replace(nothing, inits=InitScope(scope.session, scope.batch, covered))


def _without_ranges(message: Apply) -> Apply:
    scope = message.inits
    return message if scope is None else dataclasses.replace(message, inits=InitScope(scope.session, scope.batch))


def _cut_ranges(covered: Column) -> Iterator[Column]:
    """Yield ranges that hold the same numbers as ``covered: uint64[k, 2]``, as many at once as a part may have."""
    ranges = ascending(covered)
    # Each range begins behind the ranges before it, so that no number is counted twice.
    stops = np.maximum.accumulate(ranges[:, 1])
    starts = np.maximum(ranges[:, 0], np.concatenate([stops[:1] * np.uint64(0), stops[:-1]]))
    starts = np.minimum(starts, stops)
    pieces = (stops - starts) // np.uint64(NUMBERS_MAX) + np.uint64(1)
    places = np.repeat(np.arange(len(starts)), pieces.astype(np.intp))
    nth = np.arange(len(places)) - np.repeat(np.cumsum(pieces) - pieces, pieces.astype(np.intp)).astype(np.intp)
    starts = starts[places] + nth.astype(np.uint64) * np.uint64(NUMBERS_MAX)
    stops = np.minimum(stops[places], starts + np.uint64(NUMBERS_MAX))
    numbers, first = np.cumsum(stops - starts), 0
    while first < len(starts):
        before = int(numbers[first - 1]) if first else 0
        after = int(np.searchsorted(numbers, np.uint64(before + NUMBERS_MAX), side="right"))
        after = min(max(after, first + 1), first + RANGES_MAX)
        yield np.stack([starts[first:after], stops[first:after]], axis=1)
        first = after


def _slice(entries: Entries, start: int, stop: int, fails_before: int, fails_by_stop: int) -> Entries:
    """Return entries ``start`` to ``stop``. ``fails_before``, ``fails_by_stop``: the number of fails before each."""
    roots, vals, kinds = entries.root_ids[start:stop], entries.ack_vals[start:stop], entries.kinds
    if not len(kinds):
        return Entries(roots, vals)
    return Entries(roots, vals, kinds[start:stop], entries.reason_ids[fails_before:fails_by_stop], entries.reasons)
