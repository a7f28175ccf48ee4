"""Accumulator: the calls of a plain client that were not sent yet, folded per root. Pure.

Decides how calls add up: ack vals XOR, a fail stays a fail, and only the first init of a root counts, as in the ledger.
Also decides what goes into which report: the inits of each batch into one, the updates into another. Knows neither
identities nor servers.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from operator import index
from typing import Any

import numpy as np
import numpy.typing as npt

from acker_client.error_text import REASON_LENGTH_MAX
from acker_protocol.ids import MASK, Column, mix64_column
from acker_protocol.messages import ACK, FAIL, RESET, Entries, Kinds
from acker_protocol.reports import fold, fold_updates

_SIGNED_MIN = -(1 << 63)


# A batch: the session of its source, and its number.
Batch = tuple[int, int]


@dataclass(frozen=True, slots=True)
class Draft:
    """The content of one report: inits of ``batch``, or updates if it is None."""

    entries: Entries
    batch: Batch | None = None


class Accumulator:
    """Not thread-safe: the caller holds a lock around every method. A call that raises changes nothing."""

    __slots__ = ("_column_entries", "_inits", "_kinds", "_reasons", "_updates", "_vals")

    def __init__(self) -> None:
        self._clear()

    def __len__(self) -> int:
        """Return the number of buffered roots. A root in several column calls counts once for each."""
        return len(self._vals) + self._column_entries + sum(len(inits) for inits in self._inits.values())

    def init(self, root: int, edges: int | Iterable[int], batch: Batch) -> None:
        """Start the tree of ``root`` with these edges (or with their XOR)."""
        # Asks for int first, since asking for Iterable costs more than the rest of the call.
        if isinstance(edges, int) or not isinstance(edges, Iterable):
            val = id64("edge", edges)
        else:
            val = xor(0, edges, "edges")
        self._inits_of(batch).rows.setdefault(root_id(root), val)

    def ack(self, root: int, edge: int, emitted: Iterable[int] = ()) -> None:
        """Consume ``edge`` and add its children ``emitted``, as one value in one call."""
        self._add_update(root_id(root), xor(id64("edge", edge), emitted), ACK)

    def fail(self, root: int, reason: str = "", edge: int = 0) -> None:
        """Fail the tree of ``root``. The first reason counts. ``edge``: the edge that this consumes, 0 for none."""
        root, val = root_id(root), id64("edge", edge)
        self._reasons.setdefault(root, _short(reason))
        self._add_update(root, val, FAIL | ACK if val else FAIL)

    def reset_timeout(self, root: int) -> None:
        """Start the timeout of ``root`` again."""
        self._add_update(root_id(root), 0, RESET)

    def init_columns(self, roots: npt.ArrayLike, vals: npt.ArrayLike, batch: Batch) -> None:
        """Start trees in columns. The edges in rows of the same root XOR together."""
        entries = fold(*_columns(roots, vals))
        self._inits_of(batch).columns(entries)

    def ack_columns(self, roots: npt.ArrayLike, vals: npt.ArrayLike) -> None:
        """Ack in columns. ``vals``: edges, or edges XOR the edges of their children."""
        self._columns_of_updates(fold(*_columns(roots, vals)))

    def fail_columns(
        self, roots: npt.ArrayLike, reasons: str | Sequence[str] = "", vals: npt.ArrayLike | None = None
    ) -> None:
        """Fail trees in columns, with one reason for all or one a row. ``vals``: the edges consumed, if any."""
        root_column = root_ids(roots)
        _, val_column = _columns(root_column, np.zeros(len(root_column), np.uint64) if vals is None else vals)
        if not isinstance(reasons, Iterable):
            raise ValueError(f"reasons={reasons!r}: give one string, or one a row")
        each = [reasons] * len(root_column) if isinstance(reasons, str) else list(reasons)
        if len(each) != len(root_column):
            raise ValueError(f"reasons: {len(each)} for {len(root_column)} roots; give one string, or one a row")
        kinds = np.where(val_column != 0, FAIL | ACK, FAIL).astype(np.uint8)
        first: dict[int, str] = {}
        for root, reason in zip(root_column.tolist(), each, strict=True):
            first.setdefault(root, _short(reason))
        self._columns_of_updates(fold_updates(root_column, val_column, kinds, first))

    def take_drafts(self) -> list[Draft]:
        """Return everything that is buffered as reports, inits first, batch by batch. Leaves the accumulator empty."""
        drafts = [Draft(inits.folded(), batch) for batch, inits in self._inits.items()]
        drafts.append(Draft(self._folded_updates()))
        self._clear()
        return [draft for draft in drafts if len(draft.entries)]

    def put_back(self, entries: Entries) -> None:
        """Buffer updates of ``take_drafts`` again, in front of newer ones, as the first reason of a root counts."""
        if len(entries):
            self._updates.insert(0, entries)
            self._column_entries += len(entries)

    def drop_inits(self) -> None:
        self._inits.clear()

    def _clear(self) -> None:
        self._vals: dict[int, int] = {}
        self._kinds: dict[int, int] = {}
        self._reasons: dict[int, str] = {}
        self._updates: list[Entries] = []
        self._inits: dict[Batch, _Inits] = {}
        self._column_entries = 0

    def _add_update(self, root: int, val: int, kind: int) -> None:
        self._vals[root] = self._vals.get(root, 0) ^ val
        self._kinds[root] = self._kinds.get(root, 0) | kind

    def _inits_of(self, batch: Batch) -> _Inits:
        found = self._inits.get(batch)
        if found is None:
            found = self._inits[batch] = _Inits()
        return found

    def _columns_of_updates(self, entries: Entries) -> None:
        self._rows_to_columns()
        self._updates.append(entries)
        self._column_entries += len(entries)

    def _rows_to_columns(self) -> None:
        # Keeps the order of the calls, so that the first reason of a root stays the first.
        if not self._vals:
            return
        kinds = np.fromiter(self._kinds.values(), np.uint8, len(self._kinds))
        self._updates.append(fold_updates(*_of_rows(self._vals), kinds, self._reasons))
        self._column_entries += len(self._vals)
        self._vals, self._kinds, self._reasons = {}, {}, {}

    def _folded_updates(self) -> Entries:
        self._rows_to_columns()
        chunks = self._updates
        if len(chunks) == 1:
            return chunks[0]
        roots, vals = _joined(chunks)
        if not any(len(chunk.kinds) for chunk in chunks):
            return fold(roots, vals)
        kinds = np.concatenate([_kinds(chunk) for chunk in chunks])
        return fold_updates(roots, vals, kinds, _first_reasons(chunks))


class _Inits:
    """Inits of one batch, in the order in which they came."""

    __slots__ = ("chunks", "rows")

    def __init__(self) -> None:
        self.rows: dict[int, int] = {}
        self.chunks: list[Entries] = []

    def __len__(self) -> int:
        return len(self.rows) + sum(len(chunk) for chunk in self.chunks)

    def columns(self, entries: Entries) -> None:
        self._rows_to_columns()
        self.chunks.append(entries)

    def folded(self) -> Entries:
        self._rows_to_columns()
        if len(self.chunks) == 1:
            return self.chunks[0]
        roots, vals = _joined(self.chunks)
        # np.unique keeps the first of equal values, and orders them by mix64, as on the wire.
        _, first = np.unique(mix64_column(roots), return_index=True)
        return Entries(roots[first], vals[first])

    def _rows_to_columns(self) -> None:
        if self.rows:
            self.chunks.append(fold(*_of_rows(self.rows)))
            self.rows = {}


def id64(name: str, value: int) -> int:
    """Return ``value`` as an unsigned 64-bit number. A negative one is a signed bigint of Spark."""
    if type(value) is not int:
        value = _integer(name, value)
    if not _SIGNED_MIN <= value <= MASK:
        raise ValueError(f"{name}={value}: ids have 64 bits")
    return value & MASK


def root_id(value: int) -> int:
    """Return a root id as an unsigned 64-bit number. Raises ValueError for 0, which is no root id."""
    root = id64("root", value)
    if not root:
        raise ValueError("root=0: 0 is no root id; ids.root_id(base, number) makes one")
    return root


def xor(val: int, edges: Iterable[int], name: str = "emitted") -> int:
    """Return ``val`` XOR all of ``edges``. ``name``: their name in errors."""
    # isinstance(edges, Iterable) would take a third of the time of a plain ack.
    try:
        each = iter(edges)
    except TypeError:
        raise ValueError(f"{name}={edges!r}: give edges, as in {name}=[edge]") from None
    for edge in each:
        val ^= id64("edge", edge)
    return val


def root_ids(values: npt.ArrayLike) -> Column:
    """Return a column of root ids, uint64[n]. Raises ValueError if one is 0."""
    column = column64("roots", values)
    if not column.all():
        raise ValueError("roots: 0 is no root id; ids.root_ids(base, numbers) makes them")
    return column


def column64(name: str, values: npt.ArrayLike) -> Column:
    """Return ``values`` as uint64[n]. Keeps the bits of int64, which is Spark's type."""
    array = values if isinstance(values, np.ndarray) else _array(name, values)
    if array.ndim != 1 or array.dtype.kind not in "iu" or array.dtype.itemsize != 8:
        shape = f" of shape {array.shape}" if array.ndim != 1 else ""
        raise ValueError(
            f"{name}: give one column of 64-bit integers (np.uint64 or np.int64), not {array.dtype}{shape}"
        )
    return np.ascontiguousarray(array, array.dtype.newbyteorder("=")).view(np.uint64)


def _array(name: str, values: Any) -> npt.NDArray[Any]:
    """Return a list as an array of exact 64-bit integers, without floats; anything else as numpy converts it."""
    if isinstance(values, Sequence):
        return np.array([id64(name, value) for value in values], np.uint64)
    return np.asarray(values)


def _integer(name: str, value: object) -> int:
    """Return an integer of another type, such as numpy's, as an int."""
    try:
        if not isinstance(value, bool):
            return index(value)  # type: ignore[arg-type]
    except TypeError:
        pass
    raise ValueError(f"{name}={value!r}: ids are integers of 64 bits")


def _short(reason: str) -> str:
    if not isinstance(reason, str):
        raise ValueError(f"reason={reason!r}: give a string, as str(error) is")
    return reason[:REASON_LENGTH_MAX]


def _columns(roots: npt.ArrayLike, vals: npt.ArrayLike) -> tuple[Column, Column]:
    root_column, val_column = root_ids(roots), column64("vals", vals)
    if len(root_column) != len(val_column):
        raise ValueError(f"vals: {len(val_column)} for {len(root_column)} roots; give one for each root")
    return root_column, val_column


def _of_rows(rows: dict[int, int]) -> tuple[Column, Column]:
    return np.fromiter(rows.keys(), np.uint64, len(rows)), np.fromiter(rows.values(), np.uint64, len(rows))


def _joined(chunks: list[Entries]) -> tuple[Column, Column]:
    none = np.empty(0, np.uint64)
    roots = np.concatenate([none, *(chunk.root_ids for chunk in chunks)])
    return roots, np.concatenate([none, *(chunk.ack_vals for chunk in chunks)])


def _kinds(entries: Entries) -> Kinds:
    return entries.kinds if len(entries.kinds) else np.full(len(entries), ACK, np.uint8)


def _first_reasons(chunks: list[Entries]) -> dict[int, str]:
    reasons: dict[int, str] = {}
    for chunk in chunks:
        failed = chunk.root_ids[(_kinds(chunk) & FAIL) != 0]
        for root, reason_id in zip(failed.tolist(), chunk.reason_ids.tolist(), strict=True):
            reasons.setdefault(root, chunk.reasons[reason_id])
    return reasons
