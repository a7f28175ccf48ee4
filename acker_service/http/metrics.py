"""Metrics: the server's counters and gauges for Prometheus. The only module that imports prometheus-client.

Decides names, units and labels. No label ever holds an id of a root, a record or a session. Only names of sources come
from outside, and their number is bounded.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    ProcessCollector,
    disable_created_metrics,
    generate_latest,
)
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, InfoMetricFamily, SummaryMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from acker_protocol.messages import MemberState, Status, ViewReply
from acker_protocol.placement import parts_of
from acker_protocol.version import VERSION
from acker_service.core.stats import ShardStats, SourceStats
from acker_service.namespaces import NamespaceFigures, Namespaces
from acker_service.process.workers import Workers

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
# How many names of sources have their own series: those with most roots pending. Others are counted together as OTHER.
SOURCES_MAX = 64
OTHER = "other"
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
    "max_memory": ("acker_memory_limit_bytes", "Memory that the server may use, see --max-memory."),
}
COUNTERS = {
    "inits": ("acker_inits", "Roots initialised."),
    "inits_known": ("acker_inits_known", "Inits that changed nothing, as their root had been initialised before."),
    "inits_conflicting": ("acker_inits_conflicting", "Inits that found their root pending in another batch."),
    "updates": ("acker_updates", "Entries of reports applied, inits included."),
    "orphans_expired": ("acker_orphans_expired", "Entries without an init that aged out."),
    "orphans_dropped": ("acker_orphans_dropped", "Acks and fails of unknown roots, dropped as there was no room."),
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
)
# (name, help), in the order in which `_of_namespaces` has their values. The default namespace is "".
OF_NAMESPACES = (
    ("acker_namespace_roots", "Roots of a namespace that are pending, reserved or unconfirmed."),
    ("acker_namespace_roots_limit", "Most of these roots at once."),
    ("acker_namespace_memory_bytes", "Memory of a namespace's data, as the server counts it."),
    ("acker_namespace_memory_limit_bytes", "Memory that a namespace may use."),
    ("acker_namespace_sources", "Sources of a namespace whose lease runs."),
    ("acker_namespace_connections", "Connections with a call in the last 10 s, of callers with a name."),
)
METHODS = ("Hello", "Apply", "OpenBatch", "Settle", "Watch", "Stats", "View", "Drain", "Pins")
DONE = (Status.APPLIED.name, Status.DUPLICATE.name)
# Statuses of calls that were not done: our own, or gRPC's if there is no message.
REFUSALS = (
    *(status.name for status in Status if status.name not in DONE),
    "INVALID_ARGUMENT",
    "FAILED_PRECONDITION",
    "UNAUTHENTICATED",
    "PERMISSION_DENIED",
    "INTERNAL",
    "UNAVAILABLE",
)


class Metrics:
    """The metrics of one server, on their own registry."""

    def __init__(
        self,
        namespaces: Namespaces,
        overdue: Callable[[], int] = lambda: 0,
        view: Callable[[], ViewReply] = lambda: ViewReply(0, 0, ()),
        is_connected: Callable[[], bool] = lambda: False,
        disconnected: Callable[[], int] = lambda: 0,
        left_out: Callable[[], int] = lambda: 0,
        cut: Callable[[], int] = lambda: 0,
        unread_bytes: Callable[[], int] = lambda: 0,
    ) -> None:
        """``overdue`` returns how many calls were cancelled because their requests did not arrive, and ``cut`` how many
        because their replies were not read. ``view`` returns the last view, and ``is_connected`` whether ZooKeeper is
        connected. ``disconnected`` returns how many clients of the HTTP port were disconnected, and ``left_out`` how
        many log lines were left out. ``unread_bytes`` returns the size of the replies that their clients have not read
        yet."""
        # Holds for the whole process. The series *_created only say when each other series began.
        disable_created_metrics()  # type: ignore[no-untyped-call]
        self._registry = CollectorRegistry()
        self._registry.register(_ShardCollector(namespaces, overdue, cut, unread_bytes))
        self._registry.register(_MonitoringCollector(disconnected, left_out))
        self._registry.register(_ViewCollector(view, is_connected))
        ProcessCollector(registry=self._registry)
        self._calls = Histogram(
            "acker_call_duration_seconds",
            "Time to answer a call once a thread has it, by method and gRPC status; of a Watch, the waiting included.",
            ["method", "code"],
            buckets=BUCKETS_S,
            registry=self._registry,
        )
        self._refused = Counter(
            "acker_refused_calls",
            "Calls that the server did not carry out, by method and answer.",
            ["method", "status"],
            registry=self._registry,
        )
        self._waits = Histogram(
            "acker_call_queue_seconds",
            "How long calls waited for a thread: reports in the pool apply, health checks in health, others in call.",
            ["pool"],
            buckets=BUCKETS_S,
            registry=self._registry,
        )
        self._queued = Gauge(
            "acker_queued_calls", "Calls that wait for a thread now, by pool.", ["pool"], registry=self._registry
        )
        # Present from the start, since rate() only sees a rise from 0 and not a new series.
        for method in METHODS:
            for status in REFUSALS:
                self._refused.labels(method, status.lower())

    def observe(self, method: str, code: str, answered: str, duration_s: float) -> None:
        """Count one call. ``code``: gRPC's status; ``answered``: our own, or gRPC's if there was no message."""
        self._calls.labels(method, code).observe(duration_s)
        if answered not in DONE:
            self._refused.labels(method, answered.lower()).inc()

    def watch_pool(self, pool: Workers) -> None:
        """Measure how calls wait for the threads of a pool."""
        self._queued.labels(pool.name).set_function(lambda: pool.queued)
        pool.observe = self._waits.labels(pool.name).observe

    def collect(self) -> list[Metric]:
        """Return all metrics, in order."""
        return list(self._registry.collect())

    def render(self) -> bytes:
        """Return all metrics in Prometheus' text format."""
        return generate_latest(self._registry)

    def values(self) -> dict[str, float]:
        """Return all values by name and labels, as in the text format. Leaves out the buckets of histograms."""
        return {
            _sample_name(sample.name, sample.labels): float(sample.value)
            for metric in self.collect()
            for sample in metric.samples
            if "le" not in sample.labels
        }


class _ShardCollector(Collector):
    def __init__(
        self,
        namespaces: Namespaces,
        overdue: Callable[[], int],
        cut: Callable[[], int],
        unread_bytes: Callable[[], int],
    ) -> None:
        self._namespaces, self._overdue, self._cut, self._unread_bytes = namespaces, overdue, cut, unread_bytes
        self._started = time.time()

    def collect(self) -> Iterator[Metric]:
        yield InfoMetricFamily("acker_build", "The version of the server.", {"version": VERSION})
        yield GaugeMetricFamily(
            "acker_start_timestamp_seconds", "When this process began to serve, in Unix time.", self._started
        )
        yield GaugeMetricFamily("acker_waiting_watches", "Watches that wait for outcomes.", self._namespaces.watches)
        yield GaugeMetricFamily(
            "acker_waiting_settlements", "Settlements that wait to be applied.", self._namespaces.settlements
        )
        yield CounterMetricFamily(
            "acker_calls_overdue", "Calls cancelled as their requests did not arrive in time.", self._overdue()
        )
        yield CounterMetricFamily(
            "acker_replies_cut", "Calls cancelled as their replies were not read in time.", self._cut()
        )
        yield CounterMetricFamily(
            "acker_pauses", "How often this process stood still for a second or more.", self._namespaces.pauses
        )
        taken, waited_s = self._namespaces.lock_waits
        yield SummaryMetricFamily(
            "acker_lock_wait_seconds",
            "Waiting for the lock of a shard, which one call at a time has.",
            taken,
            waited_s,
        )
        figures = self._namespaces.figures
        yield GaugeMetricFamily(
            "acker_oldest_pending_age_seconds",
            "For how long a batch or an open stream has had roots pending, the longest of them.",
            figures.oldest_pending_age_s,
        )
        yield from _of_sources(figures.sources)
        yield from _of_shard(figures.stats)
        memory = GaugeMetricFamily(
            "acker_memory_bytes", "Memory of each kind of data that the server keeps, as it counts it.", labels=["kind"]
        )
        for kind, size in {**figures.stats.memory, "replies": self._unread_bytes()}.items():
            memory.add_metric([kind], size)
        yield memory
        if by_namespace := self._namespaces.by_namespace:
            yield from _of_namespaces(by_namespace)


class _ViewCollector(Collector):
    def __init__(self, view: Callable[[], ViewReply], is_connected: Callable[[], bool]) -> None:
        self._view, self._is_connected = view, is_connected

    def collect(self) -> Iterator[Metric]:
        view = self._view()
        ensemble, epoch = parts_of(view.epoch)
        yield GaugeMetricFamily(
            "acker_view_epoch", "Epoch of the view of all servers that this one has; 0 without ZooKeeper.", epoch
        )
        yield GaugeMetricFamily(
            "acker_view_ensemble",
            "Incarnation of the ensemble that this epoch is of: another one after ZooKeeper has lost its data.",
            ensemble,
        )
        found = GaugeMetricFamily(
            "acker_view_members",
            "Servers in that view by what they do; itself alone without ZooKeeper.",
            labels=["state"],
        )
        for state in MemberState:
            found.add_metric([state.name.lower()], sum(each.state == state for each in view.members))
        yield found
        yield GaugeMetricFamily(
            "acker_zookeeper_connected",
            "1 while this server has a connection to ZooKeeper, else 0.",
            self._is_connected(),
        )


class _MonitoringCollector(Collector):
    def __init__(self, disconnected: Callable[[], int], left_out: Callable[[], int]) -> None:
        self._disconnected, self._left_out = disconnected, left_out

    def collect(self) -> Iterator[Metric]:
        yield CounterMetricFamily(
            "acker_http_clients_disconnected",
            "Clients of the HTTP port disconnected before their answer: too many at once, or too slow.",
            self._disconnected(),
        )
        yield CounterMetricFamily(
            "acker_log_lines_left_out",
            "Log lines left out as there were too many of their event within a minute.",
            self._left_out(),
        )


def _of_sources(sources: Iterable[SourceStats]) -> Iterable[Metric]:
    by_name: dict[tuple[str, str], SourceStats] = {}
    for source in sources:
        key = (source.namespace, source.name)
        known = by_name.get(key, replace(source, pending=0))
        # If sources share a name, the one that watched last counts. The others belong to earlier runs of its driver.
        age_s = min(known.watch_age_s, source.watch_age_s)
        by_name[key] = replace(source, pending=known.pending + source.pending, watch_age_s=age_s)
    pending: dict[tuple[str, str], int] = {}
    ages: dict[tuple[str, str], float] = {}
    # The busiest come first. Names of sources that only keep their leases cannot take their place.
    for source in sorted(by_name.values(), key=lambda each: (-each.pending, each.watch_age_s)):
        key = (source.namespace, source.name) if len(ages) < SOURCES_MAX else ("", OTHER)
        pending[key] = pending.get(key, 0) + source.pending
        ages[key] = max(ages.get(key, 0.0), source.watch_age_s)
    roots = GaugeMetricFamily(
        "acker_source_pending_roots",
        f"Roots pending by name of their source: of the {SOURCES_MAX} names with most, and of all others as {OTHER}.",
        labels=["source"],
    )
    silence = GaugeMetricFamily(
        "acker_source_watch_age_seconds",
        "Since a source of this name last watched, 30 s at most while it waits for outcomes; "
        f"of those counted as {OTHER} the longest.",
        labels=["source"],
    )
    for (namespace, name), count in pending.items():
        # Sources of the default namespace have one label only.
        labels = {"source": name} | ({"namespace": namespace} if namespace else {})
        roots.add_sample(roots.name, labels, count)
        silence.add_sample(silence.name, labels, ages[namespace, name])
    yield roots
    yield silence


def _of_namespaces(every: Iterable[NamespaceFigures]) -> Iterable[Metric]:
    gauges = [GaugeMetricFamily(name, help, labels=["namespace"]) for name, help in OF_NAMESPACES]
    refused = CounterMetricFamily(
        "acker_namespace_refused_calls",
        "Calls of a namespace that were refused for want of room, or as the session is another caller's.",
        labels=["namespace", "status"],
    )
    for each in every:
        stats, quotas = each.stats, each.allotment.quotas
        values = (
            stats.pending + stats.reserved + stats.unconfirmed,
            each.allotment.bounds.max_pending,
            sum(stats.memory.values()),
            quotas.memory_bytes,
            stats.sources,
            each.connections,
        )
        for gauge, value in zip(gauges, values, strict=True):
            gauge.add_metric([each.name], value)
        for status, count in each.refused.items():
            refused.add_metric([each.name, status], count)
    yield from gauges
    yield refused


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
