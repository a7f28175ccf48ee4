"""Reports: folds updates per root, sorts them into wire order, computes the digest, and packs them into messages.

Decides the canonical form of a report (one entry per root, ascending by ``mix64(root id)``), its digest, and where it
may be cut (only between sections). Pure numpy; does not know who sends a report or how.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import numpy as np
import numpy.typing as npt

from acker_protocol.ids import DIGEST_SALT, MASK, SLOT_SHIFT, Column, check_column, mix64_column
from acker_protocol.messages import ACK, FAIL, RESET, Apply, Entries, Identity, InitScope, Kinds, ReasonIds

# gRPC is fastest around 1 MiB a message, and a server refuses messages above its limit.
MESSAGE_BYTES = 1 << 20
BYTES_AN_ENTRY = 17
BYTES_A_REASON = 8  # index, tag and length of a reason, without its text


def fold(roots: Column, vals: Column) -> Entries:
    """XOR ``vals: uint64[n]`` per root. Returns the entries of a report of acks or inits, in wire order."""
    check_column("roots", roots)
    check_column("vals", vals)
    order, starts = _order(roots)
    vals = np.take(vals, order)
    if len(starts) == len(roots):
        return Entries(np.take(roots, order), vals)
    return Entries(np.take(roots, order[starts]), np.bitwise_xor.reduceat(vals, starts))


def fold_updates(roots: Column, vals: Column, kinds: Kinds, fail_reasons: dict[int, str]) -> Entries:
    """Fold updates of several kinds: XOR vals and OR kinds per root. ``fail_reasons``: root -> its first reason."""
    if not len(roots):
        return Entries(roots, vals)
    order, starts = _order(roots)
    folded = roots[order[starts]]
    folded_vals = np.bitwise_xor.reduceat(vals[order], starts)
    folded_kinds = np.bitwise_or.reduceat(kinds[order], starts)
    if np.all(folded_kinds == ACK):
        return Entries(folded, folded_vals)
    failed = folded[(folded_kinds & FAIL) != 0]
    return Entries(
        folded, folded_vals, folded_kinds, *number_reasons(fail_reasons.get(int(root), "") for root in failed)
    )


def number_reasons(reasons: Iterable[str]) -> tuple[ReasonIds, tuple[str, ...]]:
    """Return the columns of ``Entries``: the index of each reason, and each reason once. What UTF-8 cannot hold (a lone
    surrogate) becomes an escape, since one such reason would keep the whole report from being sent."""
    numbers: dict[str, int] = {}
    sendable = (reason.encode(errors="backslashreplace").decode() for reason in reasons)
    reason_ids = [numbers.setdefault(reason, len(numbers)) for reason in sendable]
    return np.array(reason_ids, np.uint32), tuple(numbers)


def bare_fails(entries: Entries) -> npt.NDArray[np.bool_]:
    """Return which updates are fails without an edge. If one is lost, its root could still be ACKED, as others may ack
    all its edges. If a fail with an edge is lost, that edge stays open. Without the ack bit, the ack val is no edge."""
    if not len(entries.kinds):
        return np.zeros(len(entries), np.bool_)
    has_edge = (entries.kinds & ACK != 0) & (entries.ack_vals != 0)
    found: npt.NDArray[np.bool_] = (entries.kinds & FAIL != 0) & ~has_edge
    return found


def digest(entries: Entries) -> int:
    """Return the digest of a whole report: the sum modulo 2**64 of a hash of each entry. Reasons do not count."""
    vals = mix64_column(entries.ack_vals ^ np.uint64(DIGEST_SALT))
    if len(entries.kinds):
        vals += entries.kinds
    else:
        vals += np.uint64(ACK)
    return int(np.sum(mix64_column(entries.root_ids ^ vals), dtype=np.uint64)) & MASK


def malformed(entries: Entries, *, are_inits: bool) -> str:
    """Return a sentence that says why the columns of a message are malformed; "" if they are valid.

    Does not check the order of roots: the ledger checks it while it hashes them.
    """
    ids, kinds, reason_ids = len(entries), entries.kinds, entries.reason_ids
    if len(entries.ack_vals) == ids and not len(kinds) and not len(reason_ids):
        return ""  # a shortcut for acks and inits, which most messages hold
    if len(entries.ack_vals) != ids:
        return f"ack_vals: {len(entries.ack_vals)} for {ids} root ids"
    if are_inits and (len(kinds) or len(reason_ids)):
        return "kinds: a report of inits has neither kinds nor reasons"
    if len(kinds) not in (0, ids):
        return f"kinds: {len(kinds)} for {ids} root ids"
    if len(kinds) and not 0 < kinds.min() <= kinds.max() <= ACK | FAIL | RESET:
        return "kinds: an entry has no known bit (1 ack, 2 fail, 4 reset) or an unknown one"
    fails = int(np.count_nonzero(kinds & FAIL))
    if len(reason_ids) != fails:
        return f"reason_ids: {len(reason_ids)} for {fails} fails"
    if fails and int(reason_ids.max()) >= len(entries.reasons):
        return f"reason_ids: an index is beyond the {len(entries.reasons)} reasons"
    return ""


def section_starts(root_ids: Column) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    """Return the index of the first entry of each section, int64. ``root_ids: uint64[n]``, in wire order."""
    return _starts_of_runs(mix64_column(root_ids) >> np.uint64(SLOT_SHIFT))


def pack(
    identity: Identity,
    entries: Entries,
    inits: InitScope | None = None,
    *,
    message_bytes: int = MESSAGE_BYTES,
    report_digest: int | None = None,
) -> list[Apply]:
    """Cut a report into messages of about ``message_bytes`` at section boundaries.

    Only the last message has the numbers that ``inits`` covers: send it after the others have been answered. A report
    without entries becomes one message if it covers numbers, else no message.
    """
    total = digest(entries) if report_digest is None else report_digest
    parts = list(_cut_entries(entries, message_bytes))
    if inits is None:
        return [Apply(identity, total, part) for part in parts]
    if not parts and len(inits.covered):
        parts = [entries]
    uncovered = InitScope(inits.session, inits.batch)
    return [Apply(identity, total, part, uncovered) for part in parts[:-1]] + [
        Apply(identity, total, part, inits) for part in parts[-1:]
    ]


def _order(roots: Column) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Return the stable order that puts ``roots`` into wire order, and the start of each root's run in it."""
    bits = max(1, (len(roots) - 1).bit_length())
    # Sorts keys with the index in their low bits, since sorting numbers is five times as fast as an argsort.
    keys = mix64_column(roots)
    keys &= np.uint64(MASK << bits & MASK)
    keys |= np.arange(len(roots), dtype=np.uint64)
    keys.sort()
    order = (keys & np.uint64((1 << bits) - 1)).view(np.int64)
    starts = _starts_of_runs(np.take(roots, order))
    keys >>= np.uint64(bits)
    tops = np.take(keys, starts)
    if np.all(tops[1:] > tops[:-1]):
        return order, starts
    # Two roots share their high bits, which is rare below some million roots. Sort by all bits.
    mixed = mix64_column(roots)
    order = np.argsort(mixed, kind="stable")
    return order, _starts_of_runs(mixed[order])


def _starts_of_runs(keys: Column) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
    if not len(keys):
        return np.empty(0, np.int64)
    return np.flatnonzero(np.concatenate(([True], keys[1:] != keys[:-1])))


def _cut_entries(entries: Entries, message_bytes: int) -> Iterator[Entries]:
    if not len(entries):
        return
    if len(entries) * BYTES_AN_ENTRY <= message_bytes and not len(entries.reason_ids):
        yield entries
        return
    bounds = np.append(section_starts(entries.root_ids), len(entries))
    sizes = _bytes_before(entries, bounds)
    first, last = 0, len(bounds) - 1
    while first < last:
        # Cut at the last section boundary within message_bytes, or after one section that is larger than a message.
        after = int(np.searchsorted(sizes, sizes[first] + message_bytes, side="right")) - 1
        after = max(after, first + 1)
        yield _slice(entries, int(bounds[first]), int(bounds[after]))
        first = after


def _bytes_before(entries: Entries, bounds: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """Return an upper bound in bytes of the entries before each of ``bounds``. Counts a shared reason at each use."""
    sizes = bounds * BYTES_AN_ENTRY
    if not len(entries.reason_ids):
        return sizes
    lengths = np.array([BYTES_A_REASON + len(reason.encode()) for reason in entries.reasons], np.int64)
    before = np.zeros(len(entries.reason_ids) + 1, np.int64)
    np.cumsum(lengths[entries.reason_ids], out=before[1:])
    fails_before = np.zeros(len(entries) + 1, np.int64)
    np.cumsum((entries.kinds & FAIL) != 0, out=fails_before[1:])
    total: npt.NDArray[np.int64] = sizes + before[fails_before[bounds]]
    return total


def _slice(entries: Entries, start: int, stop: int) -> Entries:
    roots, vals = entries.root_ids[start:stop], entries.ack_vals[start:stop]
    if not len(entries.kinds):
        return Entries(roots, vals)
    failed = (entries.kinds & FAIL) != 0
    first = int(np.count_nonzero(failed[:start]))
    after = first + int(np.count_nonzero(failed[start:stop]))
    # A message carries only the reasons of its own fails.
    used, reason_ids = np.unique(entries.reason_ids[first:after], return_inverse=True)
    reasons = tuple(entries.reasons[reason_id] for reason_id in used.tolist())
    return Entries(roots, vals, entries.kinds[start:stop], reason_ids.astype(np.uint32), reasons)
