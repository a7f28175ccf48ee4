"""Prometheus: a source's progress as metrics of the driver's process. Only this module imports prometheus_client.

Decides names and labels: the source's name, and for the gauges of partitions the topic and the partition, of at most
``PARTITIONS_MAX`` partitions. Counts nothing itself and opens no port. The user registers the collector in a registry,
and each scrape asks the source for its summary.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from acker_client.extras import missing
from acker_client.source.records.summary import PartitionState, Summary

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
    "absent": ("acker_source_absent", "Records that do not exist, or are untracked."),
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
    "held_back": ("acker_source_held_back_records", "Planned records that wait for an earlier record of their key."),
    "holes": ("acker_source_checkpoint_holes", "Stretches of open records before done ones; a checkpoint is bounded."),
    "holes_of_fullest": (
        "acker_source_checkpoint_holes_of_fullest",
        "Holes of the partition that has the most. From 100,000 on it is paused.",
    ),
}
# field of PartitionState -> (name, help)
PARTITION_GAUGES = {
    "position": ("acker_source_partition_position", "The position that is read next."),
    "committed": ("acker_source_partition_committed", "The position from which a restart goes on."),
    "end": ("acker_source_partition_end", "The position after the last record there is, if the input knows it."),
    "lag": ("acker_source_partition_lag", "Positions from the committed one to the end."),
    "holes": ("acker_source_partition_holes", "Stretches of open records before done ones."),
}
# Gauges of all partitions together: name -> help.
TOTALS = {
    "acker_source_partitions": "Partitions that the source reads.",
    "acker_source_partitions_left_out": "Partitions without gauges of their own. The first 1,000 by name have some.",
    "acker_source_lag": "Positions from the committed ones to the ends, over all partitions.",
}
PARTITIONS_MAX = 1_000


class SourceCollector(Collector):
    """Collects a source's current or latest summary, and the states of its partitions if its input shows them."""

    def __init__(self, summary: Callable[[], Summary], states: Callable[[], Sequence[PartitionState]]) -> None:
        self._summary = summary
        self._states = states

    def describe(self) -> Iterable[Metric]:
        """Name no metrics, because a registry refuses a second collector that names the same ones."""
        return ()

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
        yield from _partitions(summary.name, self._states())


def _partitions(source: str, states: Sequence[PartitionState]) -> Iterable[Metric]:
    if not states:
        return
    lags = [each.lag for each in states if each.lag is not None]
    values = (len(states), max(0, len(states) - PARTITIONS_MAX), sum(lags) if lags else None)
    for (name, text), total in zip(TOTALS.items(), values, strict=True):
        gauge = GaugeMetricFamily(name, text, labels=["source"])
        if total is not None:
            gauge.add_metric([source], total)
        yield gauge
    for field, (name, text) in PARTITION_GAUGES.items():
        gauge = GaugeMetricFamily(name, text, labels=["source", "topic", "partition"])
        for each in states[:PARTITIONS_MAX]:
            if (value := getattr(each, field)) is not None:
                gauge.add_metric([source, each.topic, each.name], value)
        yield gauge
