"""Local: a real shard in memory behind the client's transport interface, and time that passes only in ``sleep``.

``LocalServer`` answers like a server, since it runs the server's own shard. Needs the extra `service`.
"""

from __future__ import annotations

import secrets
import threading
import time
from collections.abc import Callable
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, TypeVar
from weakref import WeakKeyDictionary

from acker_client.backoff import Clock, Sleep
from acker_client.errors import Rejected, Unavailable
from acker_client.extras import missing
from acker_protocol import wire
from acker_protocol.messages import (
    PROTOCOL_VERSION,
    Apply,
    ApplyReply,
    DrainReply,
    Hello,
    HelloReply,
    ListedMember,
    MemberState,
    OpenBatch,
    OpenBatchReply,
    Pins,
    PinsReply,
    Settle,
    SettleReply,
    StatsReply,
    ViewReply,
    Watch,
    WatchReply,
)
from acker_protocol.placement import Member
from acker_protocol.version import VERSION

if TYPE_CHECKING:
    from acker_service.core.shard import Shard

Reply = TypeVar("Reply")

SEQUENCE_WINDOW = 64
MAX_MESSAGE_BYTES = 4 << 20
# How often a waiting watch asks the shard. In simulated time this costs nothing.
_STEP_S = 0.01
# The limits of the shards of `new_shard`.
_LIMITS: WeakKeyDictionary[Shard, dict[str, Any]] = WeakKeyDictionary()


class SimulatedTime:
    """Time that passes only when something sleeps. Give ``clock`` and ``sleep`` to clients and servers."""

    def __init__(self, now: float = 0.0) -> None:
        self._now = now

    def clock(self) -> float:
        """Return the time in seconds."""
        return self._now

    def sleep(self, seconds: float) -> None:
        """Advance the time without waiting."""
        self._now += seconds


class LocalServer:
    """A server in memory: a shard, a lock and a clock. Give ``connect`` to ``AckerClient(connect=...)``.

    ``shard``: an ``acker_service.core.shard.Shard``, or None for a new one. Any number of clients may share it. ``id``:
    the member id of this server, which knows of no other server.
    """

    def __init__(
        self,
        shard: Shard | None = None,
        *,
        id: int = 0,
        clock: Clock = time.monotonic,
        sleep: Sleep = time.sleep,
    ) -> None:
        self.shard = new_shard() if shard is None else shard
        self.id = id
        self.is_up = True
        self._clock = clock
        # Since when the server is stopped, and for how long it was stopped before. The shard does not see that time.
        self._stopped_s: float | None = None
        self._away_s = 0.0
        self._sleep = sleep
        self._lock = threading.Lock()

    def connect(self, address: str) -> LocalTransport:
        """Return a transport to this server, for any address."""
        return LocalTransport(self, address)

    def stop(self) -> None:
        """Answer no calls from now on."""
        self.is_up = False
        self._stopped_s = self._clock() if self._stopped_s is None else self._stopped_s

    def start(self, *, with_state: bool = True) -> None:
        """Answer calls again, with the state (as after a planned restart) or without it (as after a crash).

        No timeout or lease counts the time since ``stop``. A shard of ``new_shard`` keeps its limits."""
        if not with_state:
            self.shard = new_shard(**_LIMITS.get(self.shard, {}))
        if self._stopped_s is not None:
            self._away_s += self._clock() - self._stopped_s
        self._stopped_s = None
        self.is_up = True

    def ask(self, question: Callable[[Shard, float], Reply]) -> Reply:
        """Call ``question(shard, now)`` after a tick of the shard. Raises Unavailable while the server is stopped."""
        with self._lock:
            if not self.is_up:
                raise Unavailable("the local server is stopped: start() it")
            now = self._clock() - self._away_s
            self.shard.tick(now)
            return question(self.shard, now)

    def watch(self, request: Watch) -> WatchReply:
        """Answer a watch when there are outcomes, or after its wait_ms."""
        waited_until = self._clock() + request.wait_ms / 1000
        while True:
            reply = self.ask(lambda shard, now: shard.watch(request, now))
            if len(reply.outcomes) or reply.is_new or request.close or self._clock() >= waited_until:
                return reply
            self._sleep(_STEP_S)


class LocalTransport:
    """A :class:`acker_protocol.messages.Transport` to ``server``. None makes a new :class:`LocalServer`."""

    def __init__(
        self,
        server: LocalServer | Shard | None = None,
        address: str = "in-memory",
        *,
        clock: Clock = time.monotonic,
        sleep: Sleep = time.sleep,
    ) -> None:
        self.server = server if isinstance(server, LocalServer) else LocalServer(server, clock=clock, sleep=sleep)
        self.address = address

    def hello(self, hello: Hello, timeout_s: float) -> HelloReply:
        return self.server.ask(
            lambda shard, now: HelloReply(
                PROTOCOL_VERSION,
                VERSION,
                shard.incarnation,
                MAX_MESSAGE_BYTES,
                SEQUENCE_WINDOW,
                self.server.id,
                shard.generation,
                shard.is_draining,
            )
        )

    def apply(self, message: Apply, timeout_s: float) -> ApplyReply:
        try:
            arrived = wire.decode(Apply, wire.encode(message))
        except wire.Malformed as error:
            raise Rejected(f"the local server answered INVALID_ARGUMENT: {error}") from None
        return self.server.ask(lambda shard, now: shard.apply(shard.prepared(arrived), now))

    def open_batch(self, request: OpenBatch, timeout_s: float) -> OpenBatchReply:
        return self.server.ask(lambda shard, now: shard.open_batch(request, now))

    def settle(self, request: Settle, timeout_s: float) -> SettleReply:
        return self.server.ask(lambda shard, now: shard.settle([request], now))[0]

    def watch(self, request: Watch, timeout_s: float) -> WatchReply:
        return self.server.watch(request)

    def stats(self, timeout_s: float) -> StatsReply:
        def read(shard: Shard, now: float) -> StatsReply:
            values = {name: float(value) for name, value in asdict(shard.stats).items()}
            return StatsReply(shard.incarnation, VERSION, values)

        return self.server.ask(read)

    def view(self, timeout_s: float) -> ViewReply:
        def listed(shard: Shard, now: float) -> ViewReply:
            state = MemberState.DRAINING if shard.is_draining else MemberState.ACTIVE
            member = Member(self.server.id, shard.generation, self.address)
            return ViewReply(shard.incarnation, 0, (ListedMember(member, state),))

        return self.server.ask(listed)

    def drain(self, timeout_s: float) -> DrainReply:
        return self.server.ask(lambda shard, now: shard.drain())

    def pins(self, request: Pins, timeout_s: float) -> PinsReply:
        return self.server.ask(lambda shard, now: shard.pins(request))

    def close(self) -> None:
        """Do nothing: there is no connection."""


def new_shard(*, incarnation: int | None = None, generation: int | None = None, **limits: Any) -> Shard:
    """Return an empty shard. ``limits``: keyword arguments of ``Shard``. ImportError without the extra `service`."""
    try:
        from acker_service.core.shard import Shard
    except ImportError as error:
        raise missing("acker_testing", "service", error) from error
    shard = Shard(
        incarnation=secrets.randbits(64) if incarnation is None else incarnation,
        generation=secrets.randbits(64) if generation is None else generation,
        version=VERSION,
        sequence_window=SEQUENCE_WINDOW,
        **limits,
    )
    _LIMITS[shard] = limits
    return shard
