"""Kernels: the tracker's inner loop, compiled by numba where it is installed (the extra `spark` brings it).

The loop passes over the outcomes once; the tracker's numpy code does so a dozen times. The numpy code defines the
right results.
"""

from __future__ import annotations

import numpy as np
from numba import njit, types

from acker_protocol.ids import MULTIPLIER_1, MULTIPLIER_2
from acker_protocol.messages import Verdict

_I1, _I2 = np.uint64(pow(MULTIPLIER_1, -1, 1 << 64)), np.uint64(pow(MULTIPLIER_2, -1, 1 << 64))
_U27, _U30, _U31, _U54, _U60, _U62 = (np.uint64(n) for n in (27, 30, 31, 54, 60, 62))
_PENDING, _ACKED, _FINISHED = np.uint8(0), np.uint8(Verdict.ACKED), np.uint8(3)

_U64S_IN = types.Array(types.uint64, 1, "C", readonly=True)
_U8S_IN = types.Array(types.uint8, 1, "C", readonly=True)
_I64S_IN = types.Array(types.int64, 1, "C", readonly=True)
_U8S = types.Array(types.uint8, 1, "C")
_I64S = types.Array(types.int64, 1, "C")


@njit(
    types.UniTuple(types.int64, 2)(  # type: ignore[no-untyped-call]
        _U64S_IN, _U8S_IN, types.uint64, types.uint64, types.uint64, _U8S, _I64S_IN, types.int64, _U8S, _I64S, _I64S
    ),
    nogil=True,
    cache=True,
)
def apply_outcomes(  # type: ignore[no-untyped-def]
    roots, verdicts, base, emitted, start, states, record_of, record_start, record_states, records, where
):
    """Apply outcomes to the emissions from ``start`` on.

    Returns the number of outcomes that took effect, and the number of foreign roots.

    ``roots: uint64[n]``, ``verdicts: uint8[n]``: the outcomes. ``states: uint8[m]`` (written), ``record_of: int64[m]``:
    the emissions. ``record_states: uint8[k]`` (written): the records from ``record_start`` on. ``records``, ``where``
    (int64[n], written): for each outcome that took effect, its record and its place in ``roots``.
    """
    counted, foreign, size = 0, 0, np.uint64(len(states))
    for i in range(len(roots)):
        value = roots[i]
        value = (value ^ (value >> _U31) ^ (value >> _U62)) * _I2
        value = (value ^ (value >> _U27) ^ (value >> _U54)) * _I1
        number = (value ^ (value >> _U30) ^ (value >> _U60)) - base
        if number >= emitted:
            foreign += 1
            continue
        index = number - start
        if index >= size or states[index] != _PENDING:
            continue
        verdict, record = verdicts[i], record_of[index]
        states[index] = verdict
        if verdict == _ACKED:
            record_states[np.uint64(record - record_start)] = _FINISHED
        records[counted] = record
        where[counted] = i
        counted += 1
    return counted, foreign
