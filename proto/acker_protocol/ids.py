"""Ids: how roots, edges and slots are computed, the same in every process and every language.

Decides how roots, edges, slots and identities are computed (acker.proto has the formulas) and nothing else: no
randomness (bases come in from outside), no I/O. All arithmetic is modulo 2**64. Scalar functions take and return
``int``; column functions ``uint64`` arrays. ``proto/acker/v1/vectors.json`` holds vectors for every function here.
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

# Entries that are mixed at a time: two such blocks lie in a core's own cache.
_BLOCK = 16_384

# mix64 is the finaliser of SplitMix64 (Stafford's variant 13): bijective, and 0 maps to 0.
MULTIPLIER_1 = 0xBF58476D1CE4E5B9
MULTIPLIER_2 = 0x94D049BB133111EB
_INVERSE_1 = pow(MULTIPLIER_1, -1, 1 << 64)
_INVERSE_2 = pow(MULTIPLIER_2, -1, 1 << 64)

# Fractional digits of pi: constants with nothing up their sleeve.
EDGE0_SALT = 0x243F6A8885A308D3
IDENTITY_SALT_HIGH = 0x13198A2E03707344
IDENTITY_SALT_LOW = 0xA4093822299F31D0
DIGEST_SALT = 0x082EFA98EC4E6C89

# A source draws its base below this, so that base + n neither wraps nor reaches 0 and no root id is 0.
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


def check_column(name: str, values: Column) -> None:
    """Raise TypeError unless ``values`` is an array of uint64; ``name`` is what the caller calls it."""
    dtype = getattr(values, "dtype", type(values).__name__)
    if dtype == np.int64:
        raise TypeError(f"{name} is int64: give {name}.view(np.uint64), which is the same 64 bits")
    if dtype != np.uint64:
        raise TypeError(f"{name} is {dtype}: give an array of np.uint64")


def mix64_column(values: Column) -> Column:
    """Mix each of ``uint64[n]``; returns a new ``uint64[n]``."""
    return _by_blocks(_mix_block, values)


def _by_blocks(change: Callable[[Column, Column, Column], None], values: Column) -> Column:
    """What ``change(values, changed, shifted)`` writes into ``changed``, block by block, so that its passes find their
    operands in the cache: four times as fast at a million. ``shifted`` is room to work in."""
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
    """Invert ``x ^ (x >> bits)``, for ``bits`` of 22 to 32: ``y ^ (y >> bits) ^ (y >> 2 * bits)``, by steps."""
    np.right_shift(values, np.uint64(bits), out=shifted)
    np.bitwise_xor(values, shifted, out=unshifted)
    np.right_shift(shifted, np.uint64(bits), out=shifted)
    np.bitwise_xor(unshifted, shifted, out=unshifted)


def hash64(name: str) -> int:
    """Hash a name (of an operator) to 64 bits: the first 8 bytes, little-endian, of its BLAKE2b-64 in UTF-8."""
    return int.from_bytes(hashlib.blake2b(name.encode(), digest_size=8).digest(), "little")


def root_id(base: int, number: int) -> int:
    """Root id of a session's ``number``-th emission. The source inverts it; no table is kept."""
    return mix64((base + number) & MASK)


def root_ids(base: int, numbers: Column) -> Column:
    """Root ids of emissions ``numbers: uint64[n]``."""
    check_column("numbers", numbers)
    return mix64_column(numbers + np.uint64(base))


def numbers_of(base: int, roots: Column) -> Column:
    """Emission numbers of ``roots: uint64[n]``; a foreign root gives some number far out of any window."""
    numbers = unmix64_column(roots)
    numbers -= np.uint64(base)
    return numbers


def edge0(root: int) -> int:
    """Initial edge of a root."""
    return mix64(root ^ EDGE0_SALT)


def edge0_column(roots: Column) -> Column:
    """Initial edges of ``roots: uint64[n]``."""
    check_column("roots", roots)
    return mix64_column(roots ^ np.uint64(EDGE0_SALT))


def child_edge(edge: int, operator_hash: int, ordinal: int, digest: int) -> int:
    """Edge of the ``ordinal``-th record that an operator derived from a parent anchored at ``edge``.

    ``digest`` says what the parent became (how many children, and what they hold), so that two runs that differ do not
    share edges.
    """
    return mix64(edge ^ mix64((operator_hash + ordinal) & MASK) ^ digest)


def slot(root: int) -> int:
    """Slot of a root: the unit of placement, 0 to 1023."""
    return mix64(root) >> SLOT_SHIFT


def identity_term(root: int, edge: int) -> int:
    """128-bit hash of one consumed (root, edge); a task's identity sums these modulo 2**128."""
    high = mix64(root ^ mix64(edge ^ IDENTITY_SALT_HIGH))
    low = mix64(edge ^ mix64(root ^ IDENTITY_SALT_LOW))
    return high << 64 | low


def identity_of(operator_name: str, consumed_sum: int) -> tuple[int, int]:
    """(high, low) of the report of a task that ran ``operator_name`` and consumed what sums to ``consumed_sum``."""
    content = operator_name.encode() + b"\0" + (consumed_sum % (1 << 128)).to_bytes(16, "little")
    hashed = hashlib.blake2b(content, digest_size=16).digest()
    return int.from_bytes(hashed[8:], "little"), int.from_bytes(hashed[:8], "little")
