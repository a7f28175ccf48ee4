"""Quotas: what each namespace of a server may use. Pure.

Decides how the memory of a server is divided: each namespace has what its quotas say, and the default namespace, which
is "", has the rest.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from acker_service.core.memory import PROCESS_BYTES, REST_MIN_BYTES, SHARD_BYTES, Bounds, DoesNotFit, bounds_of

DEFAULT = ""
# Each namespace that is in use costs some 40 us a tick, and a tick comes every 50 ms.
NAMESPACES_MAX = 256


@dataclass(frozen=True, slots=True)
class Quotas:
    """What a namespace may use: ``memory_bytes`` of all its data, and the most ``sources`` and ``connections``. None
    for ``max_pending``: it follows from the memory. None for the others: the namespace has no bound of its own."""

    memory_bytes: int
    max_pending: int | None = None
    sources: int | None = None
    connections: int | None = None


@dataclass(frozen=True, slots=True)
class Allotment:
    """The part of a server that one namespace has: its quotas, and the bounds of each kind of data."""

    quotas: Quotas
    bounds: Bounds


def divide(
    max_memory: int,
    quotas: Mapping[str, Quotas],
    max_pending: int | None = None,
    max_identity_bytes: int | None = None,
) -> dict[str, Allotment]:
    """Divide the memory of a server. ``max_pending`` and ``max_identity_bytes`` are of the default namespace.

    Raises ValueError, with what to do, if the quotas do not fit together.
    """
    if len(quotas) > NAMESPACES_MAX:
        raise ValueError(f"{len(quotas)} namespaces are too many: a server has {NAMESPACES_MAX} at most")
    allotments = {name: _allotment_of(name, each) for name, each in quotas.items()}
    taken = sum(each.memory_bytes for each in quotas.values())
    try:
        bounds = bounds_of(max_memory - taken, max_pending, max_identity_bytes, PROCESS_BYTES)
    except DoesNotFit as error:
        raise ValueError(
            f"the namespaces have {_mebibytes(taken)} together, and the server needs {_mebibytes(error.needed_bytes)} "
            f"beside them, but --max-memory is {_mebibytes(max_memory)}: give them less, or the server more"
        ) from None
    return {**allotments, DEFAULT: Allotment(Quotas(max_memory - taken), bounds)}


def least_allotment() -> Allotment:
    """Return the allotment of a namespace that takes no new work."""
    return _allotment_of("", Quotas(SHARD_BYTES + REST_MIN_BYTES))


def _allotment_of(name: str, quotas: Quotas) -> Allotment:
    try:
        return Allotment(quotas, bounds_of(quotas.memory_bytes, quotas.max_pending, process_bytes=SHARD_BYTES))
    except DoesNotFit as error:
        raise ValueError(
            f"namespace {name}: needs memory={_mebibytes(error.needed_bytes)} at least"
            f"{'' if quotas.max_pending is None else ' with this max_pending'}"
        ) from None


def _mebibytes(size: int) -> str:
    return f"{-(-size >> 20)}MiB"
