"""Figures: the part of a server's Stats that ``acker status`` shows, and the rates between two Stats. Pure.

Decides the names of the metrics that are read.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass

from acker_protocol.messages import StatsReply

_GAUGES = {
    "pending": "acker_pending_roots",
    "open_batches": "acker_open_batches",
    "sources": "acker_sources",
    "unconfirmed": "acker_unconfirmed_outcomes",
}
_REPORTS = 'acker_call_duration_seconds_count{method="Apply",code="OK"}'
_UPDATES = "acker_updates_total"
_OF_NAMESPACES = {
    "roots": "acker_namespace_roots",
    "roots_limit": "acker_namespace_roots_limit",
    "memory_bytes": "acker_namespace_memory_bytes",
    "memory_limit_bytes": "acker_namespace_memory_limit_bytes",
    "sources": "acker_namespace_sources",
    "connections": "acker_namespace_connections",
    "refused": "acker_namespace_refused_calls_total",
}
_NAMESPACE = re.compile(r'(\w+)\{namespace="([\w.-]*)"')

# The monotonic second at which a reply arrived, and the reply.
Timed = tuple[float, StatsReply]


@dataclass(frozen=True, slots=True)
class MemberFigures:
    """Figures of one server, or of all. A rate is None if the server was restarted between two replies."""

    pending: int = 0
    open_batches: int = 0
    sources: int = 0
    unconfirmed: int = 0
    reports_per_s: float | None = None
    updates_per_s: float | None = None

    def as_json(self) -> dict[str, float | None]:
        return {name: round(value, 1) if isinstance(value, float) else value for name, value in asdict(self).items()}


@dataclass(frozen=True, slots=True)
class NamespaceTotals:
    """Figures of one namespace over all servers. ``refused``: calls since each server started."""

    roots: int = 0
    roots_limit: int = 0
    memory_bytes: int = 0
    memory_limit_bytes: int = 0
    sources: int = 0
    connections: int = 0
    refused: int = 0


def of_namespaces(replies: Iterable[StatsReply]) -> dict[str, NamespaceTotals]:
    """Return the figures of each namespace, summed over servers. The default one is "". Empty if there is no other."""
    sums: dict[str, Counter[str]] = {}
    fields = {metric: field for field, metric in _OF_NAMESPACES.items()}
    for reply in replies:
        for name, value in reply.values.items():
            found = _NAMESPACE.match(name)
            if found and found[1] in fields:
                sums.setdefault(found[2], Counter())[fields[found[1]]] += int(value)
    return {namespace: NamespaceTotals(**sums[namespace]) for namespace in sorted(sums)}


def figures(first: Timed | None, second: Timed) -> MemberFigures:
    """Return one server's counts from the ``second`` reply, and its rates since the ``first``."""
    values = second[1].values
    counts = {name: int(values.get(metric, 0)) for name, metric in _GAUGES.items()}
    return MemberFigures(
        **counts, reports_per_s=_rate(_REPORTS, first, second), updates_per_s=_rate(_UPDATES, first, second)
    )


def total(each: Iterable[MemberFigures]) -> MemberFigures:
    """Return the sum over servers. Rates leave out servers without a rate. A root with two replicas counts twice."""
    them = tuple(each)
    counts: Mapping[str, int] = {name: sum(getattr(one, name) for one in them) for name in _GAUGES}
    return MemberFigures(
        **counts,
        reports_per_s=_sum(one.reports_per_s for one in them),
        updates_per_s=_sum(one.updates_per_s for one in them),
    )


def _rate(metric: str, first: Timed | None, second: Timed) -> float | None:
    if first is None or first[1].incarnation != second[1].incarnation or second[0] <= first[0]:
        return None
    return (second[1].values.get(metric, 0.0) - first[1].values.get(metric, 0.0)) / (second[0] - first[0])


def _sum(rates: Iterable[float | None]) -> float | None:
    known = [rate for rate in rates if rate is not None]
    return sum(known) if known else None
