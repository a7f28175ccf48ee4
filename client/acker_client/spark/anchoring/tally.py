"""Tally: counts what one operator consumes and makes in one task, from the first row to the report at the end. Pure.

Decides what an operator reports to the acker. For each consumed anchor the report says that the edge is done, and which
edges its children have. The tally XORs all this into one entry for each root, as rows arrive. Also decides the report's
identity: a hash of the consumed anchors only. Partition numbers, batch boundaries and the process do not change it, so
every attempt at the same work has the same identity. A tally never sends, and reports nothing before the end.
"""

from __future__ import annotations

import pickle
from dataclasses import dataclass

import numpy as np

from acker_client.spark.anchoring import kernels
from acker_client.spark.anchoring.anchors import Anchors, Positions
from acker_protocol.ids import Column, hash64, identity_of, mix64_column
from acker_protocol.messages import ACK, FAIL, Entries, Identity, InitScope
from acker_protocol.reports import number_reasons

# The tally merges entries of the same root when more than this many entries, and more than the last merge kept, were
# added since that merge.
COMPACT_ENTRIES = 1 << 21

TRACEBACK_LENGTH_MAX = 4096
# Every message of a report carries all reasons. Once the reasons of a task are longer than this in total, further
# reasons are shortened.
REASONS_LENGTH_MAX = 1 << 16

_NONE = np.empty(0, np.uint64)


class MultipliedEdges(Exception):
    """Several rows of one task have the same edge: something between two operators made copies of a row."""


@dataclass(frozen=True, slots=True)
class Report:
    """One report of one sender. ``inits``: set if the entries are initial ack vals of a batch."""

    identity: Identity
    entries: Entries
    inits: InitScope | None = None

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing to send."""
        return not len(self.entries) and (self.inits is None or not len(self.inits.covered))


def digest_parents(
    counts: Positions, parents: Positions, kept: Column | None = None, children: Column | None = None
) -> Column:
    """Return uint64[n]: for each of n parents a digest of its children. The children's edges depend on this digest.

    ``counts``: int64[n], numbers of children; ``parents``: int64[m]; ``kept``: uint64[n], the hash of the values that a
    child keeps from its parent; ``children``: uint64[m], the hashes of the children's own values. If ``kept`` or
    ``children`` is None, its values are not digested.
    """
    digests = np.empty(len(counts), np.uint64)
    kernels.digest_counts(counts, digests)
    if kept is not None:
        digests = mix64_column(digests ^ kept)
    if children is not None:
        kernels.digest_children(parents, children, digests)
    return digests


class Tally:
    """The counts of one operator (``name``) in one task.

    ``finds_copies``: whether to look for copies of rows. Set it if the rows come from outside the chain of operators.
    ``tracking``: False if the batch is not tracked, so that no row has anchors and nothing is reported. ``dropped``:
    number of unanchored rows of a tracked batch that failed; ``dropped_because``: the first reason.
    """

    __slots__ = (
        "_chunks",
        "_folded",
        "_marks",
        "_name",
        "_reasons",
        "_reasons_length",
        "_total",
        "_unfolded",
        "dropped",
        "dropped_because",
        "hash",
        "tracking",
    )

    def __init__(self, name: str, *, finds_copies: bool = False, tracking: bool = True) -> None:
        self.hash = np.uint64(hash64(name))
        self.tracking = tracking
        self.dropped, self.dropped_because = 0, ""
        self._name = name
        self._total = np.zeros(2, np.uint64)
        self._chunks: list[tuple[Column, Column]] = []
        self._folded = 0
        self._unfolded = 0
        self._marks: list[Column] | None = [] if finds_copies else None
        self._reasons: dict[int, str] = {}
        self._reasons_length = 0

    def consume(self, anchors: Anchors, produced: Column) -> None:
        """Count the edges of ``anchors`` as consumed. ``produced``: uint64, for each edge the XOR of its children's
        edges."""
        if anchors.are_none:
            return
        n = len(anchors.roots)
        roots, vals = np.empty(n, np.uint64), np.empty(n, np.uint64)
        count = kernels.consume(anchors.roots, anchors.edges, produced, self._total, roots, vals)
        self._chunks.append(
            (roots[:count].copy(), vals[:count].copy()) if count < n // 2 else (roots[:count], vals[:count])
        )
        self._unfolded += count
        if self._marks is not None:
            # Keep eight bytes for each row until the end, because copies cannot be found otherwise.
            self._marks.append(anchors.edges.copy() if anchors.roots.all() else anchors.edges[anchors.roots != 0])
        if self._unfolded > max(COMPACT_ENTRIES, self._folded):
            self._compact()

    def derive(self, anchors: Anchors, parents: Positions, digests: Column) -> Anchors:
        """Count the rows of ``anchors`` as consumed, each with its children, and return the children's anchors.

        ``parents``: int64[m], the index of each child's parent row. The caller has checked that these rows exist.
        ``digests``: uint64[n], see :func:`digest_parents`. The children of a row are numbered in the order of
        ``parents``.
        """
        if anchors.are_none:
            return Anchors.none(len(parents), packed=anchors.offsets is not None)
        ordinals = np.zeros(len(digests), np.int64)
        produced = np.zeros(len(anchors.roots), np.uint64)
        if anchors.offsets is None:
            edges = np.empty(len(parents), np.uint64)
            kernels.thin_children(anchors.edges, parents, digests, self.hash, ordinals, edges, produced)
            children = Anchors(anchors.roots[parents], edges)
        else:
            offsets = np.zeros(len(parents) + 1, np.int64)
            np.cumsum(np.diff(anchors.offsets)[parents], out=offsets[1:])
            roots, edges = np.empty(offsets[-1], np.uint64), np.empty(offsets[-1], np.uint64)
            made = (offsets, roots, edges, produced)
            parent_columns = (anchors.offsets, anchors.roots, anchors.edges)
            kernels.packed_children(*parent_columns, parents, digests, self.hash, ordinals, *made)
            children = Anchors(roots, edges, offsets)
        self.consume(anchors, produced)
        return children

    def fail(self, root: int, reason: str, brief: str) -> None:
        """Report the tree of ``root`` as failed. The first reason for a root counts.

        The caller must also consume an edge of ``root``. ``brief`` replaces ``reason`` once the reasons of the task are
        long.
        """
        if root in self._reasons:
            return
        if self._reasons_length > REASONS_LENGTH_MAX:
            reason = brief
        else:
            self._reasons_length += len(reason)
        self._reasons[root] = reason

    def drop(self, reason: str) -> None:
        """Count an unanchored row that failed with ``reason``."""
        self.dropped += 1
        self.dropped_because = self.dropped_because or reason

    def report(self, salt: int = 0) -> Report:
        """Return the report of the task. Call it once, at the end of input. ``salt`` is added to the consumed total.

        Raises :class:`MultipliedEdges` if copies of an edge were consumed.
        """
        self._refuse_copies()
        self._compact()
        roots, vals = self._chunks[0]
        low, high = (int(part) for part in self._total)
        identity = Identity(*identity_of(self._name, (high << 64 | low) + salt))
        return Report(identity, self._entries(roots, vals))

    def account(self) -> bytes:
        """Return everything counted so far, pickled. Another tally of the same operator in the same task can
        :meth:`absorb` it."""
        if not self._chunks and not self.dropped:
            return b""
        roots, vals = self._joined()
        marks = np.concatenate(self._marks) if self._marks else _NONE
        dropped = self.dropped, self.dropped_because
        return pickle.dumps((self._total, roots, vals, marks, self._reasons, dropped), protocol=5)

    def absorb(self, account: bytes) -> None:
        """Add the counts of another tally (its :meth:`account`)."""
        if not account:
            return
        (low, high), roots, vals, marks, reasons, (dropped, because) = pickle.loads(account)
        self.dropped, self.dropped_because = self.dropped + dropped, self.dropped_because or because
        with np.errstate(over="ignore"):
            self._total[0] += low
            self._total[1] += high + np.uint64(self._total[0] < low)
        self._chunks.append((roots, vals))
        self._unfolded += len(roots)
        if self._marks is not None:
            self._marks.append(marks)
        for root, reason in reasons.items():
            self.fail(root, reason, reason.partition("\n")[0])
        if self._unfolded > max(COMPACT_ENTRIES, self._folded):
            self._compact()

    def _joined(self) -> tuple[Column, Column]:
        roots = np.concatenate([_NONE, *(chunk[0] for chunk in self._chunks)])
        return roots, np.concatenate([_NONE, *(chunk[1] for chunk in self._chunks)])

    def _compact(self) -> None:
        roots, vals = self._joined()
        count = kernels.sort_and_fold(roots, vals)
        self._chunks = [(roots[:count], vals[:count])]
        self._folded, self._unfolded = count, 0

    def _entries(self, roots: Column, vals: Column) -> Entries:
        if not self._reasons:
            return Entries(roots, vals)
        failed = np.fromiter(self._reasons, np.uint64, len(self._reasons))
        positions = np.searchsorted(mix64_column(roots), mix64_column(failed))
        order = np.argsort(positions)
        kinds = np.full(len(roots), ACK, np.uint8)
        kinds[positions] = ACK | FAIL
        reasons = list(self._reasons.values())
        return Entries(roots, vals, kinds, *number_reasons(reasons[index] for index in order.tolist()))

    def _refuse_copies(self) -> None:
        if self._marks and kernels.has_copies(np.concatenate(self._marks)):
            raise MultipliedEdges(
                f"{self._name!r} was handed several copies of one row. An untracked operation before it (a join, an"
                " explode, a UDF that returns rows) copied the row with its edge, and the edges of copies would cancel."
                " Use acker_client.spark.explode, join or branch, which give every copy its own edge."
            )
