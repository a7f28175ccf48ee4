"""Namespaces: the shards of one server, one for each namespace.

Each shard has its own lock, sources, roots and bounds. So callers of one namespace cannot see the data of another one
or use up its room. The core knows nothing of namespaces. Decides when a shard is made (at its first call) and forgotten
(when the namespace is no longer declared and its sources have ended), and what the server reports of all shards
together.
"""

from __future__ import annotations

import secrets
import threading
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from acker_protocol.messages import DrainReply, Status
from acker_protocol.version import VERSION
from acker_service.config import Config
from acker_service.core.memory import SHARD_BYTES
from acker_service.core.quotas import DEFAULT, Allotment, Quotas, divide, least_allotment
from acker_service.core.shard import Shard
from acker_service.core.stats import ShardStats
from acker_service.process.connections import Connections
from acker_service.process.logs import Log
from acker_service.shared_shard import Figures, SharedShard

OVERLOADED, PERMISSION_DENIED = REFUSALS = ("overloaded", "permission_denied")

log = Log("acker.server")


class Namespace:
    """One namespace of a server. ``name``: "" for the default one, of callers without a namespace.

    ``refused``: the number of refused calls for each status of ``REFUSALS``.
    """

    def __init__(self, name: str, shared: SharedShard, connections: Connections) -> None:
        self.name, self.shared, self.connections = name, shared, connections
        self.refused = dict.fromkeys(REFUSALS, 0)
        self._lock = threading.Lock()

    def count_refusal(self, status: str) -> None:
        with self._lock:
            self.refused[status] += 1


@dataclass(frozen=True, slots=True)
class NamespaceFigures:
    """One namespace at one moment."""

    name: str
    allotment: Allotment
    stats: ShardStats
    connections: int
    refused: Mapping[str, int]


class Namespaces:
    """All namespaces of one server. Thread-safe."""

    def __init__(
        self, shards: Mapping[str, Shard], options: Config, clock: Callable[[], float], since: float | None = None
    ) -> None:
        """``shards``: by namespace; the default one is needed, and others were restored. ``clock``: in seconds.
        ``since``: the time of the clock when the shards were opened."""
        self._options, self._clock = options, clock
        self._lock = threading.Lock()
        self._is_draining = self._is_closing = False
        self._quotas: Mapping[str, Quotas] = {}
        # The lock waits of shards that were forgotten.
        self._ended_waits = (0, 0.0)
        self._allotments = self._divide({})
        self._by_name = {name: self._made(name, shard, since) for name, shard in shards.items()}
        self.default = self._by_name[DEFAULT]
        self._set_bounds()

    def of(self, name: str) -> Namespace:
        """Return a namespace, with a new shard if it is used for the first time. Raises KeyError if it is not declared
        and has no shard."""
        found = self._by_name.get(name)
        return self._make(name) if found is None else found

    def set_quotas(self, quotas: Mapping[str, Quotas]) -> None:
        """Declare the namespaces, apart from the default one. Raises ValueError, and changes nothing, if their quotas
        do not fit into the server."""
        allotments = self._divide(quotas)
        with self._lock:
            self._quotas, self._allotments = dict(quotas), allotments
            self._set_bounds()

    @property
    def every(self) -> list[Namespace]:
        """All namespaces that have a shard. The default one is first."""
        return list(self._by_name.values())

    def tick(self) -> None:
        """Tick all shards, and forget undeclared namespaces whose sources have ended. An error in one shard does not
        stop the others."""
        errors = []
        for each in self.every:
            try:
                each.shared.tick()
            except Exception as error:  # noqa: BLE001  # raised below
                errors.append(error)
            if each.name not in self._allotments and not each.shared.stats.sources:
                self._forget(each)
        if errors:
            raise errors[0]

    # -- drain and stop

    def drain(self) -> DrainReply:
        """Take no new batches and no new sources from now on, in any namespace."""
        with self._lock:
            self._is_draining = True
            for each in self.every:
                each.shared.drain()
        return DrainReply(self.default.shared.shard.incarnation, Status.APPLIED, self.left)

    @property
    def is_draining(self) -> bool:
        return self._is_draining

    @property
    def left(self) -> str:
        """Describe what a draining server still has to finish; "" when the server may end."""
        return self.stats.left

    def stop_waiting(self) -> None:
        """Answer every waiting watch now, and every later one at once."""
        with self._lock:
            self._is_closing = True
            for each in self.every:
                each.shared.stop_waiting()

    def answers(self, within_s: float) -> bool:
        """Return whether the locks of all shards get free within this time."""
        until = self._clock() + within_s
        return all(each.shared.answers(max(0.0, until - self._clock())) for each in self.every)

    # -- figures

    @property
    def stats(self) -> ShardStats:
        """The sums over all namespaces. The limits are those of the whole server."""
        with self._lock:
            return self._total(each.shared.stats for each in self.every)

    @property
    def figures(self) -> Figures:
        """The figures of all namespaces together. Cheap: does not sweep the ledgers."""
        with self._lock:
            found = [(each.name, each.shared.figures) for each in self.every]
        return Figures(
            self._total(figures.stats for _, figures in found),
            max(figures.oldest_pending_age_s for _, figures in found),
            [replace(source, namespace=name) for name, figures in found for source in figures.sources],
        )

    @property
    def by_namespace(self) -> list[NamespaceFigures]:
        """The figures of each namespace, with those that are declared and not used yet. Empty if none is declared."""
        names = dict.fromkeys([*self._by_name, *self._allotments])
        return [self._figures_of(name) for name in names] if len(names) > 1 else []

    @property
    def lock_waits(self) -> tuple[int, float]:
        """How often the locks of the shards were acquired, and the total wait for them in seconds."""
        with self._lock:
            waits = [*(each.shared.lock_waits for each in self.every), self._ended_waits]
        return sum(taken for taken, _ in waits), sum(waited_s for _, waited_s in waits)

    @property
    def watches(self) -> int:
        """How many watches wait now."""
        return sum(each.shared.watches for each in self.every)

    @property
    def settlements(self) -> int:
        """How many settlements wait for a sweep now."""
        return sum(each.shared.settlements for each in self.every)

    @property
    def pauses(self) -> int:
        """How often this process was paused."""
        return self.default.shared.pauses

    @property
    def paused_s(self) -> float:
        """How long this process was paused in all."""
        return self.default.shared.paused_s

    def _total(self, every: Iterable[ShardStats]) -> ShardStats:
        max_pending = sum(allotment.bounds.max_pending for allotment in self._allotments.values())
        return replace(ShardStats.total(every), max_pending=max_pending, max_memory=self._options.memory_bytes)

    def _figures_of(self, name: str) -> NamespaceFigures:
        allotment, found = self._allotments.get(name) or least_allotment(), self._by_name.get(name)
        if found is None:
            return NamespaceFigures(name, allotment, ShardStats(), 0, dict.fromkeys(REFUSALS, 0))
        return NamespaceFigures(name, allotment, found.shared.stats, found.connections.count, found.refused)

    def _divide(self, quotas: Mapping[str, Quotas]) -> dict[str, Allotment]:
        options = self._options
        return divide(options.memory_bytes, quotas, options.max_pending, options.max_identity_bytes)

    def _make(self, name: str) -> Namespace:
        with self._lock:
            if name not in self._quotas:
                raise KeyError(name)
            if name not in self._by_name:
                made = self._made(name, new_shard(self._options, self.default.shared.shard.incarnation, name))
                self._by_name = {**self._by_name, name: made}
                self._set_bounds()
                if self._is_draining:
                    made.shared.drain()
                if self._is_closing:
                    made.shared.stop_waiting()
            return self._by_name[name]

    def _made(self, name: str, shard: Shard, since: float | None = None) -> Namespace:
        options = self._options
        shared = SharedShard(
            shard,
            clock=self._clock,
            max_watches=options.max_watches,
            linger_s=options.linger_s,
            since=since,
            namespace=name,
        )
        return Namespace(name, shared, Connections(options.max_connections, self._clock))

    def _set_bounds(self) -> None:
        """Give each namespace its allotment. Caller holds the lock."""
        # Each waiting watch has a thread, and the threads are shared. A watch without one is answered at once.
        max_watches = self._options.max_watches // len(self._allotments)
        for each in self.every:
            allotment = self._allotments.get(each.name) or least_allotment()
            each.shared.set_bounds(allotment, max_watches)
            each.connections.most = allotment.quotas.connections or self._options.max_connections

    def _forget(self, ended: Namespace) -> None:
        with self._lock:
            if ended.name not in self._quotas:
                left = {name: each for name, each in self._by_name.items() if each is not ended}
                (taken, waited_s), (more, more_s) = self._ended_waits, ended.shared.lock_waits
                # The server's counters are the sums over its shards, and must not fall.
                self.default.shared.add_counters(ended.shared.stats)
                self._ended_waits, self._by_name = (taken + more, waited_s + more_s), left
                log.info("namespace_ended", namespace=ended.name)


def new_shard(options: Config, incarnation: int, namespace: str = DEFAULT) -> Shard:
    """Return an empty shard. Its state has a generation of its own."""
    return Shard(
        incarnation=incarnation,
        generation=secrets.randbits(64) or 1,
        version=VERSION,
        **limits_of(options, namespace),
    )


def limits_of(options: Config, namespace: str) -> dict[str, Any]:
    """Return the arguments of a new shard, with the bounds of the default namespace. ``set_bounds`` then replaces those
    bounds by the ones of the namespace."""
    bounds = options.bounds
    return {
        "max_memory": options.memory_bytes,
        "max_pending": bounds.max_pending,
        "max_pending_per_source": options.max_pending_per_source,
        "sequence_window": options.sequence_window,
        "orphan_timeout_s": options.orphan_timeout_s,
        "memory_s": options.memory_s,
        "max_identity_bytes": bounds.max_identity_bytes,
        "max_reasons_bytes": bounds.max_reasons_bytes,
        "max_pins_bytes": bounds.max_pins_bytes,
        "max_lease_s": options.max_lease_s,
        "secret": secrets.randbits(64),
        **({"process_bytes": SHARD_BYTES} if namespace else {}),
    }
