"""Kernels: a task's inner loops, compiled by numba. They release the GIL and are cached on disk.

Decides the arithmetic of edges, digests and folding over columns. It is the same as in the scalar functions of
``acker_protocol.ids``. ``tally`` decides what is sent, and ``values`` knows how Arrow stores a value. Every kernel has
one signature, so that a worker process loads machine code and compiles nothing.

Root id 0 marks an unanchored row. Every kernel skips such an anchor.
"""

from __future__ import annotations

import numpy as np
from numba import njit, types

from acker_protocol.ids import IDENTITY_SALT_HIGH, IDENTITY_SALT_LOW, MULTIPLIER_1, MULTIPLIER_2

_M1, _M2 = np.uint64(MULTIPLIER_1), np.uint64(MULTIPLIER_2)
_I1, _I2 = np.uint64(pow(MULTIPLIER_1, -1, 1 << 64)), np.uint64(pow(MULTIPLIER_2, -1, 1 << 64))
_SALT_HIGH, _SALT_LOW = np.uint64(IDENTITY_SALT_HIGH), np.uint64(IDENTITY_SALT_LOW)
_ZERO, _ONE, _SEVEN, _EIGHT = np.uint64(0), np.uint64(1), np.uint64(7), np.uint64(8)
_U16, _U24, _U27, _U30, _U31, _U32 = (np.uint64(n) for n in (16, 24, 27, 30, 31, 32))
_U40, _U48, _U54, _U56, _U60, _U62 = (np.uint64(n) for n in (40, 48, 54, 56, 60, 62))

# More fractional digits of pi, after those in ``acker_protocol.ids``.
_COUNT_SALT = np.uint64(0x452821E638D01377)
_NULL_SALT = np.uint64(0xBE5466CF34E90C6C)
_BYTES_SALT = np.uint64(0xC0AC29B7C97C50DD)

_RADIX_BITS = 11
_RADIX = 1 << _RADIX_BITS
# Radix passes of sort_and_fold: none below _NO_PASSES entries, three above _THREE_PASSES, otherwise two.
_NO_PASSES = 1 << 6
_THREE_PASSES = 1 << 23

_U64S = types.Array(types.uint64, 1, "C")
_U64S_IN = types.Array(types.uint64, 1, "C", readonly=True)
_I64S = types.Array(types.int64, 1, "C")
_I64S_IN = types.Array(types.int64, 1, "C", readonly=True)
_U8S_IN = types.Array(types.uint8, 1, "C", readonly=True)


@njit(nogil=True, inline="always")
def _mix(value):  # type: ignore[no-untyped-def]
    value = (value ^ (value >> _U30)) * _M1
    value = (value ^ (value >> _U27)) * _M2
    return value ^ (value >> _U31)


@njit(nogil=True, inline="always")
def _unmix(value):  # type: ignore[no-untyped-def]
    value = (value ^ (value >> _U31) ^ (value >> _U62)) * _I2
    value = (value ^ (value >> _U27) ^ (value >> _U54)) * _I1
    return value ^ (value >> _U30) ^ (value >> _U60)


@njit(types.int64(_U64S_IN, _U64S_IN, _U64S_IN, _U64S, _U64S, _U64S), nogil=True, cache=True)
def consume(roots, edges, produced, total, folded_roots, folded_vals):  # type: ignore[no-untyped-def]
    """Fold the consumed and produced edges of each anchor into one entry. Neighbours with the same root share an entry.
    Returns the number of entries.

    ``roots``, ``edges``, ``produced`` (XOR of the children's edges): uint64[n]; ``folded_*``: uint64[n], written.
    ``total``: uint64[2] (low, high). The term of each anchor in the report's identity is added to it modulo 2**128.
    """
    low, high, count, last = total[0], total[1], 0, _ZERO
    for i in range(len(roots)):
        root, edge = roots[i], edges[i]
        if root == _ZERO:
            continue
        term = _mix(edge ^ _mix(root ^ _SALT_LOW))
        low += term
        high += _mix(root ^ _mix(edge ^ _SALT_HIGH)) + (_ONE if low < term else _ZERO)
        if root == last:
            folded_vals[count - 1] ^= edge ^ produced[i]
        else:
            folded_roots[count], folded_vals[count] = root, edge ^ produced[i]
            count, last = count + 1, root
    total[0], total[1] = low, high
    return count


@njit(types.int64(_I64S_IN, _I64S), nogil=True, cache=True)
def count_children(parents, counts):  # type: ignore[no-untyped-def]
    """Count the children of each parent into ``counts: int64[n]`` (zeros before). Return the position in
    ``parents`` of the first value that is not the index of a row, or -1 if all are."""
    for j in range(len(parents)):
        parent = parents[j]
        if parent < 0 or parent >= len(counts):
            return j
        counts[parent] += 1
    return -1


@njit(types.void(_I64S_IN, _U64S), nogil=True, cache=True)
def digest_counts(counts, digests):  # type: ignore[no-untyped-def]
    """Write into ``digests: uint64[n]`` a digest of each parent's number of children."""
    for i in range(len(counts)):
        digests[i] = _mix(np.uint64(counts[i]) ^ _COUNT_SALT)


@njit(types.void(_I64S_IN, _U64S_IN, _U64S), nogil=True, cache=True)
def digest_children(parents, hashes, digests):  # type: ignore[no-untyped-def]
    """Chain the hash of each child, in order, into the digest of its parent. Another order gives another digest."""
    for j in range(len(parents)):
        parent = parents[j]
        digests[parent] = _mix(digests[parent] ^ hashes[j])


@njit(types.void(_U64S_IN, _I64S_IN, _U64S_IN, types.uint64, _I64S, _U64S, _U64S), nogil=True, cache=True)
def thin_children(edges, parents, digests, operator_hash, ordinals, children, produced):  # type: ignore[no-untyped-def]
    """Write the edge of every child into ``children: uint64[m]``, and XOR it into its parent's ``produced: uint64[n]``.

    ``edges``, ``digests``: uint64[n] of the parents; ``parents``: int64[m], which the caller has checked; ``ordinals``:
    int64[n], the number of the next child of each parent, incremented here.
    """
    for j in range(len(parents)):
        parent = parents[j]
        ordinal = np.uint64(ordinals[parent])
        edge = _mix(edges[parent] ^ _mix(operator_hash + ordinal) ^ digests[parent])
        children[j] = edge
        produced[parent] ^= edge
        ordinals[parent] += 1


@njit(
    types.void(_I64S_IN, _U64S_IN, _U64S_IN, _I64S_IN, _U64S_IN, types.uint64, _I64S, _I64S_IN, _U64S, _U64S, _U64S),
    nogil=True,
    cache=True,
)
def packed_children(  # type: ignore[no-untyped-def]
    offsets, roots, edges, parents, digests, operator_hash, ordinals, child_offsets, child_roots, child_edges, produced
):
    """Do the same as :func:`thin_children` for rows with several anchors: a child has one edge for each root of its
    parent.

    ``offsets: int64[n + 1]`` into ``roots``, ``edges``, ``produced``; ``child_offsets: int64[m + 1]`` into
    ``child_roots``, ``child_edges``.
    """
    for j in range(len(parents)):
        parent = parents[j]
        salt = _mix(operator_hash + np.uint64(ordinals[parent])) ^ digests[parent]
        at = child_offsets[j]
        for i in range(offsets[parent], offsets[parent + 1]):
            edge = _mix(edges[i] ^ salt)
            child_roots[at], child_edges[at] = roots[i], edge
            produced[i] ^= edge
            at += 1
        ordinals[parent] += 1


@njit(nogil=True)
def _radix_pass(keys, vals, sorted_keys, sorted_vals, low_bit):  # type: ignore[no-untyped-def]
    starts = np.zeros(_RADIX + 1, np.int64)
    mask = np.uint64(_RADIX - 1)
    for i in range(len(keys)):
        starts[((keys[i] >> low_bit) & mask) + _ONE] += 1
    for digit in range(_RADIX):
        starts[digit + 1] += starts[digit]
    for i in range(len(keys)):
        digit = (keys[i] >> low_bit) & mask
        at = starts[digit]
        starts[digit] = at + 1
        sorted_keys[at], sorted_vals[at] = keys[i], vals[i]


@njit(nogil=True)
def _insertion_sort(keys, vals):  # type: ignore[no-untyped-def]
    for i in range(1, len(keys)):
        key = keys[i]
        if keys[i - 1] <= key:
            continue
        val, at = vals[i], i
        while at > 0 and keys[at - 1] > key:
            keys[at], vals[at] = keys[at - 1], vals[at - 1]
            at -= 1
        keys[at], vals[at] = key, val


@njit(nogil=True)
def _radix_pass_keys(keys, sorted_keys, low_bit):  # type: ignore[no-untyped-def]
    starts = np.zeros(_RADIX + 1, np.int64)
    mask = np.uint64(_RADIX - 1)
    for i in range(len(keys)):
        starts[((keys[i] >> low_bit) & mask) + _ONE] += 1
    for digit in range(_RADIX):
        starts[digit + 1] += starts[digit]
    for i in range(len(keys)):
        digit = (keys[i] >> low_bit) & mask
        sorted_keys[starts[digit]] = keys[i]
        starts[digit] += 1


@njit(types.int64(_U64S, _U64S), nogil=True, cache=True)
def sort_and_fold(roots, vals):  # type: ignore[no-untyped-def]
    """Sort entries in place into wire order (ascending by mix64 of the root), and fold entries of the same root. Return
    the number of entries that are left.

    After radix passes over the highest 22 (or 33) bits, the insertion sort has very little left to do.
    """
    n = len(roots)
    keys, other_keys, other_vals = roots, np.empty(n, np.uint64), np.empty(n, np.uint64)
    values = vals
    for i in range(n):
        keys[i] = _mix(keys[i])
    for low_bit in (31, 42, 53):
        if n < _NO_PASSES or (low_bit == 31 and n <= _THREE_PASSES):
            continue
        _radix_pass(keys, values, other_keys, other_vals, np.uint64(low_bit))
        keys, values, other_keys, other_vals = other_keys, other_vals, keys, values
    _insertion_sort(keys, values)
    count = 0
    for i in range(n):
        if count and keys[i] == keys[count - 1]:
            values[count - 1] ^= values[i]
        else:
            keys[count], values[count] = keys[i], values[i]
            count += 1
    for i in range(count):
        roots[i], vals[i] = _unmix(keys[i]), values[i]
    return count


@njit(types.boolean(_U64S), nogil=True, cache=True)
def has_copies(marks):  # type: ignore[no-untyped-def]
    """Whether ``marks: uint64[n]`` has duplicates. Reorders ``marks``."""
    n = len(marks)
    keys, other = marks, np.empty(n, np.uint64)
    for low_bit in (31, 42, 53):
        if n < _NO_PASSES or (low_bit == 31 and n <= _THREE_PASSES):
            continue
        _radix_pass_keys(keys, other, np.uint64(low_bit))
        keys, other = other, keys
    for i in range(1, n):
        key, at = keys[i], i
        while at > 0 and keys[at - 1] > key:
            keys[at] = keys[at - 1]
            at -= 1
        keys[at] = key
    copies = 0
    for i in range(1, n):
        copies += keys[i] == keys[i - 1]
    return copies > 0


@njit(nogil=True, inline="always")
def _is_null(validity, position):  # type: ignore[no-untyped-def]
    return len(validity) and not (validity[position >> 3] >> np.uint8(position & 7)) & 1


@njit(types.void(_U64S_IN, _U8S_IN, types.int64, _U64S), nogil=True, cache=True)
def hash_words(words, validity, first, hashes):  # type: ignore[no-untyped-def]
    """Chain a column with at most eight bytes for each value (``words: uint64[n]``) into ``hashes: uint64[n]``.

    ``validity``: Arrow's bitmap, empty when there are no nulls; ``first``: the position of the first row's bit in it.
    """
    for i in range(len(words)):
        if _is_null(validity, first + i):
            hashes[i] = _mix(_mix(hashes[i] ^ _NULL_SALT))
        else:
            hashes[i] = _mix(hashes[i] ^ words[i])


@njit(types.void(_I64S_IN, _U8S_IN, _U8S_IN, types.int64, _U64S), nogil=True, cache=True)
def hash_bytes(offsets, data, validity, first, hashes):  # type: ignore[no-untyped-def]
    """Chain a column of strings or bytes (``offsets: int64[n + 1]`` into ``data``) into ``hashes: uint64[n]``."""
    for i in range(len(hashes)):
        if _is_null(validity, first + i):
            hashes[i] = _mix(_mix(hashes[i] ^ _NULL_SALT))
            continue
        at, stop = np.uint64(offsets[i]), np.uint64(offsets[i + 1])
        state = hashes[i] ^ (stop - at) * _BYTES_SALT
        while at + _SEVEN < stop:
            word = (
                np.uint64(data[at])
                | np.uint64(data[at + _ONE]) << _EIGHT
                | np.uint64(data[at + np.uint64(2)]) << _U16
                | np.uint64(data[at + np.uint64(3)]) << _U24
                | np.uint64(data[at + np.uint64(4)]) << _U32
                | np.uint64(data[at + np.uint64(5)]) << _U40
                | np.uint64(data[at + np.uint64(6)]) << _U48
                | np.uint64(data[at + _SEVEN]) << _U56
            )
            state = (state ^ word) * _M1
            state ^= state >> _U32
            at += _EIGHT
        word, shift = _ZERO, _ZERO
        while at < stop:
            word |= np.uint64(data[at]) << shift
            shift += _EIGHT
            at += _ONE
        hashes[i] = _mix(state ^ word)


@njit(types.void(_I64S_IN, _U64S_IN, _U8S_IN, types.int64, _U64S), nogil=True, cache=True)
def hash_lists(offsets, elements, validity, first, hashes):  # type: ignore[no-untyped-def]
    """Chain a column of lists into ``hashes: uint64[n]``. ``elements``: uint64, the hashes of the lists' elements."""
    for i in range(len(hashes)):
        if _is_null(validity, first + i):
            hashes[i] = _mix(_mix(hashes[i] ^ _NULL_SALT))
            continue
        state = hashes[i] ^ np.uint64(offsets[i + 1] - offsets[i]) * _BYTES_SALT
        for j in range(offsets[i], offsets[i + 1]):
            state = _mix(state ^ elements[j])
        hashes[i] = _mix(state)
