"""Prometheus: a source's progress as metrics of the driver's process. Only this module imports prometheus_client.

Decides names and labels: one label, the source's name. Counts nothing itself and opens no port. The user registers the
collector in a registry, and each scrape asks the source for its summary.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from acker_client.extras import missing
from acker_client.source.records.summary import Summary

try:
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
    from prometheus_client.metrics_core import Metric
    from prometheus_client.registry import Collector
except ImportError as error:
    raise missing("Source.collector()", "metrics", error) from error

# field of Summary -> (name, help)
COUNTERS = {
    "records": ("acker_source_records", "Records read and emitted for the first time."),
    "acked": ("acker_source_acked", "Records of which everything derived was processed."),
    "failed": ("acker_source_failed", "Emissions that an operator, or the settling of their batch, failed."),
    "timed_out": ("acker_source_timed_out", "Emissions that took too long."),
    "lost": ("acker_source_lost", "Emissions that a failed job or a lost server interrupted."),
    "replayed": ("acker_source_replayed", "Emissions beyond the first of a record."),
    "dead_lettered": ("acker_source_dead_lettered", "Records that spent their retries, and are in the dead letters."),
    "absent": ("acker_source_absent", "Records that were planned, but do not exist."),
    "revoked": ("acker_source_revoked", "Open records whose partition went to another source."),
    "dropped": ("acker_source_dropped", "Records that were not acked, and are not retried."),
    "batches": ("acker_source_batches", "Batches handed out."),
    "short_of_replicas": (
        "acker_source_batches_short_of_replicas",
        "Batches whose tasks reported to fewer servers than asked.",
    ),
    "differed": ("acker_source_votes_differed", "Emissions about which servers disagreed."),
    "saved": ("acker_source_saved", "Emissions that a second server saved from a replay."),
}
GAUGES = {
    "open": ("acker_source_open_records", "Records that have no answer yet."),
    "holes": ("acker_source_checkpoint_holes", "Stretches of open records before done ones; a checkpoint is bounded."),
    "holes_of_fullest": (
        "acker_source_checkpoint_holes_of_fullest",
        "Holes of the partition that has the most. From 100,000 on it is paused.",
    ),
}


class SourceCollector(Collector):
    """Collects a source's current or latest summary."""

    def __init__(self, summary: Callable[[], Summary]) -> None:
        self._summary = summary

    def collect(self) -> Iterable[Metric]:
        summary = self._summary()
        for field, (name, text) in COUNTERS.items():
            counter = CounterMetricFamily(name, text, labels=["source"])
            counter.add_metric([summary.name], getattr(summary, field))
            yield counter
        for field, (name, text) in GAUGES.items():
            gauge = GaugeMetricFamily(name, text, labels=["source"])
            gauge.add_metric([summary.name], getattr(summary, field))
            yield gauge
