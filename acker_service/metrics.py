"""Metrics: what the server counts, as Prometheus wants it. The only door to prometheus-client.

Decides names, units and labels; no label ever holds an id, a source's name or anything else without a bound.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator

from prometheus_client import CollectorRegistry, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, InfoMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from acker_protocol.version import VERSION
from acker_service.shared import SharedShard
from acker_service.stats import ShardStats

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
BUCKETS_S = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0, 30.0)

# field of ShardStats -> (name, help)
GAUGES = {
    "pending": ("acker_pending_roots", "Roots that were initialised and have no outcome yet."),
    "reserved": ("acker_reserved_roots", "Roots of open batches that were not initialised yet."),
    "max_pending": ("acker_pending_roots_limit", "Most roots pending, reserved or unconfirmed at once."),
    "unconfirmed": ("acker_unconfirmed_outcomes", "Outcomes that their source has not confirmed."),
    "orphans": ("acker_orphan_entries", "Entries of the ledger without an init: early acks, late acks, early fails."),
    "sources": ("acker_sources", "Sources whose lease runs."),
    "open_batches": ("acker_open_batches", "Batches that wait to be settled."),
    "identities": ("acker_identities", "Identities of reports that are remembered."),
    "sequence_sessions": ("acker_sequence_sessions", "Plain clients whose sequences are remembered."),
    "ledger_bytes": ("acker_ledger_bytes", "Memory of the ledger's tables."),
}
COUNTERS = {
    "inits": ("acker_inits", "Roots initialised."),
    "inits_known": ("acker_inits_known", "Inits that changed nothing, as their root had been initialised before."),
    "inits_conflicting": ("acker_inits_conflicting", "Of those, the ones that named another batch."),
    "updates": ("acker_updates", "Entries of reports applied, inits included."),
    "orphans_expired": ("acker_orphans_expired", "Entries without an init that aged out."),
    "orphans_dropped": ("acker_orphans_dropped", "Acks and fails of unknown roots for which there was no room."),
    "identities_dropped": ("acker_identities_dropped", "Identities forgotten early, for want of room."),
    "leases_expired": ("acker_leases_expired", "Sources that did not renew their lease."),
    "roots_dropped": ("acker_roots_dropped", "Roots of sources that closed or whose lease ran out."),
}
# (name, help, label, {field of ShardStats: value of the label})
LABELLED = (
    (
        "acker_outcomes",
        "Outcomes by verdict.",
        "verdict",
        {"acked": "acked", "failed": "failed", "timed_out": "timed_out", "lost": "lost"},
    ),
    (
        "acker_sections",
        "Sections of reports by the server's answer.",
        "status",
        {
            "sections_applied": "applied",
            "sections_duplicate": "duplicate",
            "sections_conflict": "conflict",
            "sections_stale": "stale",
        },
    ),
    (
        "acker_refused_messages",
        "Messages of reports refused as a whole, which left no trace.",
        "status",
        {
            "messages_invalid": "invalid",
            "messages_overloaded": "overloaded",
            "messages_unknown_source": "unknown_source",
            "messages_unknown_batch": "unknown_batch",
        },
    ),
)


class Metrics:
    """The metrics of one server, on a registry of its own."""

    def __init__(self, shared: SharedShard) -> None:
        self._registry = CollectorRegistry()
        self._registry.register(_ShardCollector(shared))
        self._calls = Histogram(
            "acker_call_duration_seconds",
            "Time to answer a call, by call and gRPC status; of a Watch, the waiting included.",
            ["call", "code"],
            buckets=BUCKETS_S,
            registry=self._registry,
        )

    def observe(self, call: str, code: str, duration_s: float) -> None:
        """Count one call."""
        self._calls.labels(call, code).observe(duration_s)

    def render(self) -> bytes:
        """All of it in Prometheus' text format."""
        return generate_latest(self._registry)

    def values(self) -> dict[str, float]:
        """All of it by name and labels, as the text format writes them; without histograms' buckets."""
        return {
            _sample_name(sample.name, sample.labels): float(sample.value)
            for metric in self._registry.collect()
            for sample in metric.samples
            if "le" not in sample.labels
        }


class _ShardCollector(Collector):
    def __init__(self, shared: SharedShard) -> None:
        self._shared = shared
        self._started = time.time()

    def collect(self) -> Iterator[Metric]:
        yield InfoMetricFamily("acker_build", "The version of the server.", {"version": VERSION})
        yield GaugeMetricFamily(
            "acker_start_timestamp_seconds", "When this process began to serve, in Unix time.", self._started
        )
        yield GaugeMetricFamily("acker_waiting_watches", "Watches that wait for outcomes.", self._shared.watches)
        yield GaugeMetricFamily(
            "acker_waiting_settlements", "Settlements that wait for a sweep.", self._shared.settlements
        )
        yield from _of_shard(self._shared.stats)


def _of_shard(stats: ShardStats) -> Iterable[Metric]:
    for field, (name, help) in GAUGES.items():
        yield GaugeMetricFamily(name, help, getattr(stats, field))
    for field, (name, help) in COUNTERS.items():
        yield CounterMetricFamily(name, help, getattr(stats, field))
    for name, help, label, fields in LABELLED:
        family = CounterMetricFamily(name, help, labels=[label])
        for field, value in fields.items():
            family.add_metric([value], getattr(stats, field))
        yield family


def _sample_name(name: str, labels: dict[str, str]) -> str:
    inside = ",".join(f'{key}="{value}"' for key, value in labels.items())
    return f"{name}{{{inside}}}" if inside else name
