"""Ids: how roots, edges, slots and identities are computed, the same in every process and every language.

acker.proto has the formulas. No randomness (callers draw the bases) and no I/O. All arithmetic is modulo 2**64. Scalar
functions take and return ``int``, column functions ``uint64`` arrays. ``proto/acker/v1/vectors.json`` has test vectors
for every function.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable

import numpy as np
import numpy.typing as npt

Column = npt.NDArray[np.uint64]

MASK = (1 << 64) - 1
SLOTS = 1024
SLOT_SHIFT = 54

# Entries mixed at a time. Two such blocks fit into the cache of a core.
_BLOCK = 16_384

# mix64 is the finaliser of SplitMix64 (Stafford's variant 13): bijective, and 0 maps to 0.
MULTIPLIER_1 = 0xBF58476D1CE4E5B9
MULTIPLIER_2 = 0x94D049BB133111EB
_INVERSE_1 = pow(MULTIPLIER_1, -1, 1 << 64)
_INVERSE_2 = pow(MULTIPLIER_2, -1, 1 << 64)

# Fractional digits of pi, to show that nobody chose the values for a purpose.
EDGE0_SALT = 0x243F6A8885A308D3
IDENTITY_SALT_HIGH = 0x13198A2E03707344
IDENTITY_SALT_LOW = 0xA4093822299F31D0
DIGEST_SALT = 0x082EFA98EC4E6C89

# A source draws its base below this, so that base + n does not overflow to 0 and no root id is 0.
BASE_MAX = 1 << 62


def mix64(value: int) -> int:
    """Mix a 64-bit number; bijective, ``mix64(0) == 0``."""
    value = ((value ^ (value >> 30)) * MULTIPLIER_1) & MASK
    value = ((value ^ (value >> 27)) * MULTIPLIER_2) & MASK
    return value ^ (value >> 31)


def unmix64(value: int) -> int:
    """Invert :func:`mix64`."""
    value = ((value ^ (value >> 31) ^ (value >> 62)) * _INVERSE_2) & MASK
    value = ((value ^ (value >> 27) ^ (value >> 54)) * _INVERSE_1) & MASK
    return value ^ (value >> 30) ^ (value >> 60)


def uint64(read: object) -> int:
    """Return a number that was read from text of another program. Raises ValueError unless it is a uint64."""
    # A bool is an int, too.
    if type(read) is not int or not 0 <= read <= MASK:
        raise ValueError(f"{read!r:.40} is not an unsigned 64-bit number")
    return read


def check_column(name: str, values: Column) -> None:
    """Raise TypeError unless ``values`` is an array of uint64. ``name``: the parameter's name, for the error."""
    dtype = getattr(values, "dtype", type(values).__name__)
    if dtype == np.int64:
        raise TypeError(f"{name} is int64: give {name}.view(np.uint64), which is the same 64 bits")
    if dtype != np.uint64:
        raise TypeError(f"{name} is {dtype}: give an array of np.uint64")


def mix64_column(values: Column) -> Column:
    """Mix each of ``uint64[n]``; returns a new ``uint64[n]``."""
    return _by_blocks(_mix_block, values)


def _by_blocks(change: Callable[[Column, Column, Column], None], values: Column) -> Column:
    """Return the array ``changed`` that ``change(values, changed, shifted)`` fills. ``shifted`` is scratch space.

    Works block by block, so that the passes of ``change`` hit the cache: four times as fast for a million values.
    """
    check_column("values", values)
    changed: Column = np.empty(len(values), np.uint64)
    shifted = np.empty(min(len(values), _BLOCK), np.uint64)
    for start in range(0, len(values), _BLOCK):
        block = values[start : start + _BLOCK]
        change(block, changed[start : start + _BLOCK], shifted[: len(block)])
    return changed


def _mix_block(values: Column, mixed: Column, shifted: Column) -> None:
    np.right_shift(values, np.uint64(30), out=shifted)
    np.bitwise_xor(values, shifted, out=mixed)
    np.multiply(mixed, np.uint64(MULTIPLIER_1), out=mixed)
    np.right_shift(mixed, np.uint64(27), out=shifted)
    np.bitwise_xor(mixed, shifted, out=mixed)
    np.multiply(mixed, np.uint64(MULTIPLIER_2), out=mixed)
    np.right_shift(mixed, np.uint64(31), out=shifted)
    np.bitwise_xor(mixed, shifted, out=mixed)


def unmix64_column(values: Column) -> Column:
    """Invert :func:`mix64_column`."""
    return _by_blocks(_unmix_block, values)


def _unmix_block(values: Column, unmixed: Column, shifted: Column) -> None:
    _unshift(values, 31, unmixed, shifted)
    np.multiply(unmixed, np.uint64(_INVERSE_2), out=unmixed)
    _unshift(unmixed, 27, unmixed, shifted)
    np.multiply(unmixed, np.uint64(_INVERSE_1), out=unmixed)
    _unshift(unmixed, 30, unmixed, shifted)


def _unshift(values: Column, bits: int, unshifted: Column, shifted: Column) -> None:
    """Invert ``x ^ (x >> bits)`` for ``bits`` from 22 to 32: ``y ^ (y >> bits) ^ (y >> 2 * bits)``."""
    np.right_shift(values, np.uint64(bits), out=shifted)
    np.bitwise_xor(values, shifted, out=unshifted)
    np.right_shift(shifted, np.uint64(bits), out=shifted)
    np.bitwise_xor(unshifted, shifted, out=unshifted)


def hash64(name: str) -> int:
    """Hash an operator's name to 64 bits: BLAKE2b-64 of its UTF-8, read as little-endian."""
    return int.from_bytes(hashlib.blake2b(name.encode(), digest_size=8).digest(), "little")


def session_digest(session: int) -> str:
    """Return what stands for a session in log lines. A session itself is a secret: a caller that knows it can close its
    source."""
    return hashlib.blake2b(session.to_bytes(8, "little"), digest_size=4).hexdigest()


def root_id(base: int, number: int) -> int:
    """Return the root id of a session's emission ``number``. :func:`numbers_of` inverts it, so no table is needed."""
    return mix64((base + number) & MASK)


def root_ids(base: int, numbers: Column) -> Column:
    """Return the root ids of emissions ``numbers: uint64[n]``."""
    check_column("numbers", numbers)
    return mix64_column(numbers + np.uint64(base))


def numbers_of(base: int, roots: Column) -> Column:
    """Return the emission numbers of ``roots: uint64[n]``. A root of another source gives a number out of range."""
    numbers = unmix64_column(roots)
    numbers -= np.uint64(base)
    return numbers


def edge0(root: int) -> int:
    """Return the initial edge of a root."""
    return mix64(root ^ EDGE0_SALT)


def edge0_column(roots: Column) -> Column:
    """Return the initial edges of ``roots: uint64[n]``."""
    check_column("roots", roots)
    return mix64_column(roots ^ np.uint64(EDGE0_SALT))


def child_edge(edge: int, operator_hash: int, ordinal: int, digest: int) -> int:
    """Return the edge of the ``ordinal``-th record that an operator derived from the record with ``edge``.

    ``digest`` covers all children of that record (their number and content), so that two runs with different results
    have different edges.
    """
    return mix64(edge ^ mix64((operator_hash + ordinal) & MASK) ^ digest)


def slot(root: int) -> int:
    """Return the slot of a root, the unit of placement, 0 to 1023."""
    return mix64(root) >> SLOT_SHIFT


def slot_column(roots: Column) -> npt.NDArray[np.int64]:
    """Return the slot of each of ``roots: uint64[n]``."""
    slots: npt.NDArray[np.int64] = (mix64_column(roots) >> np.uint64(SLOT_SHIFT)).view(np.int64)
    return slots


def identity_term(root: int, edge: int) -> int:
    """Return a 128-bit hash of one consumed (root, edge). A task's identity sums these modulo 2**128."""
    high = mix64(root ^ mix64(edge ^ IDENTITY_SALT_HIGH))
    low = mix64(edge ^ mix64(root ^ IDENTITY_SALT_LOW))
    return high << 64 | low


def identity_of(operator_name: str, consumed_sum: int) -> tuple[int, int]:
    """Return the identity (high, low) of a task's report. ``consumed_sum``: the sum of its `identity_term`s."""
    content = operator_name.encode() + b"\0" + (consumed_sum % (1 << 128)).to_bytes(16, "little")
    hashed = hashlib.blake2b(content, digest_size=16).digest()
    return int.from_bytes(hashed[8:], "little"), int.from_bytes(hashed[:8], "little")
