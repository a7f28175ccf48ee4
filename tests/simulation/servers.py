"""Servers: real shards in processes that crash, pause, drain, and restart with or without their state."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import asdict, replace
from enum import Enum
from typing import Any

from acker_client.errors import Unavailable
from acker_protocol.messages import (
    PROTOCOL_VERSION,
    HelloReply,
    ListedMember,
    MemberState,
    StatsReply,
    ViewReply,
    WatchReply,
)
from acker_protocol.placement import Member
from acker_protocol.version import VERSION
from acker_service.core.members import Registered
from acker_service.core.parts import StatePart
from acker_service.core.shard import Shard
from acker_service.core.sources import Change, SourceChange
from acker_service.shared_shard import SharedShard
from tests.simulation.registry import AGAIN_S, Place
from tests.simulation.scheduler import Scheduler
from tests.simulation.transcript import Transcript

# Short enough that servers do not take the time between ticks for a pause. Real servers tick every 0.05 s, which would
# be most of the work here.
TICK_S = 0.8
# Before a call, a server ticks if its last tick is at least this long ago.
TICK_DUE_S = 0.05
# How long a stopping server waits for calls under way.
GRACE_S = 0.2
AWAY_S = 60.0
DRAIN_S = 120.0
DRAIN_LOOK_S = 0.5

Answer = Callable[[Any, Exception | None], None]


class State(Enum):
    UP = "up"
    STOPPING = "stopping"
    DOWN = "down"
    PAUSED = "paused"


class NotedShard(Shard):
    """A shard that also keeps the changes of its sources."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.changes: list[SourceChange] = []

    def take_changes(self) -> list[SourceChange]:
        changes = super().take_changes()
        self.changes += changes
        return changes


class Server:
    """One server, with the same ``id`` over all restarts. ``place``: its registration, if there is a registry.
    ``limits``: options of its shards."""

    def __init__(
        self,
        scheduler: Scheduler,
        dice: random.Random,
        transcript: Transcript,
        id_: int,
        place: Place | None,
        **limits: Any,
    ) -> None:
        self.id = id_
        self.name = name_of(id_)
        self.address = address_of(id_)
        self.place = place
        self.state = State.DOWN
        self.shard: NotedShard
        self.lives = 0
        self.max_message_bytes = 4 << 20
        # Called with (server, reply) for each answer to a watch, before it travels.
        self.on_watched: Callable[[Server, WatchReply], None] = lambda server, reply: None
        # Called with (server, session) when the server has dropped a source whose lease ran out.
        self.on_expired: Callable[[Server, int], None] = lambda server, session: None
        # Called with (server, how it ended) when a drained server ends and loses the state of remaining work.
        self.on_left_behind: Callable[[Server, str], None] = lambda server, what: None
        # Called with the server's id when it begins to answer, and when it stops.
        self.on_up: Callable[[int], None] = lambda _: None
        self.on_down: Callable[[int], None] = lambda _: None
        self._scheduler, self._dice, self._transcript, self._limits = scheduler, dice, transcript, limits
        self._shared: SharedShard
        self._kept: list[StatePart] | None = None
        self._asleep: list[Callable[[], None]] = []
        self._answering: dict[int, Answer] = {}
        self._calls = 0
        self._ticked_at = 0.0
        self._offset = 0.0
        self._is_starting = False

    def clock(self) -> float:
        """Return the time of this process's clock. Each process starts from another zero."""
        return self._scheduler.now + self._offset

    # -- its lives

    def start(self, *, with_state: bool) -> None:
        """Start a new process. ``with_state``: it restores the state that the last one kept, if any."""
        if self.state is not State.DOWN or self._is_starting:
            return
        self.lives += 1
        self._offset = self._dice.uniform(0.0, 1e6)
        incarnation, now = self._dice.getrandbits(64), self.clock()
        # Starting consumes the state, so a later crash cannot bring it back.
        kept, self._kept = self._kept, None
        is_restored = kept is not None and with_state
        if kept is not None and is_restored:
            restored = NotedShard.restore(iter(kept), incarnation=incarnation, now=now, **self._limits)
            assert isinstance(restored, NotedShard)
            self.shard = restored
        else:
            generation = self._dice.getrandbits(64)
            self.shard = NotedShard(incarnation=incarnation, generation=generation, version=VERSION, **self._limits)
        self._shared = SharedShard(self.shard, clock=self.clock, max_watches=256, linger_s=0.004, since=now)
        how = "with its state" if is_restored else "empty"
        self._transcript.say(f"{self.name} starts {how}")
        self._is_starting = True
        self._serve_when_registered(self.lives)

    def _serve_when_registered(self, life: int) -> None:
        """Serve calls only once the server is registered."""
        if self.lives != life or not self._is_starting:
            return
        if self.place is not None:
            host, _, port = self.address.rpartition(":")
            shard = self.shard
            own = Registered(self.id, host, int(port), VERSION, shard.generation, shard.incarnation)
            if not self.place.register(own):
                self._scheduler.after(AGAIN_S, lambda: self._serve_when_registered(life), idles=True)
                return
            self._transcript.say(f"{self.name} is registered")
        self._is_starting = False
        self.state, self._ticked_at = State.UP, self._scheduler.now
        self.on_up(self.id)
        self._tick_later(life)

    def crash(self) -> None:
        """Kill the process (kill -9). Clients that wait for an answer see a broken connection."""
        if self.state is State.DOWN:
            return
        self._transcript.say(f"{self.name} dies, with all that it knew")
        self._kept = None
        if self.place is not None:
            self.place.die()
        self._end()

    def stop(self, then: Callable[[], None], *, comes_back: bool = True) -> None:
        """Stop (SIGTERM): answer calls under way, keep the state, end, and call ``then``."""
        if self.state is not State.UP:
            return
        self._transcript.say(f"{self.name} stops")
        self.state = State.STOPPING
        self.on_down(self.id)
        if self.place is not None:
            if comes_back and self.shard.is_draining and self._shared.stats.left:
                self.on_left_behind(self, "stopped while it drained")
            self.place.leave(AWAY_S if comes_back and not self.shard.is_draining else None)
        self._shared.stop_waiting()
        life = self.lives

        def end() -> None:
            if self.lives != life or self.state is not State.STOPPING:
                return
            self._kept = [_copied(part) for part in self._shared.dump()]
            self._end()
            then()

        self._scheduler.after(GRACE_S, end)

    def drain(self) -> None:
        """Take nothing new, and end when no work is left, or after DRAIN_S."""
        if self.state is not State.UP or self.shard.is_draining:
            return
        self._transcript.say(f"{self.name} drains")
        self._shared.drain()
        if self.place is not None:
            self.place.drain()
        self._look_for_end(self.lives, self._scheduler.now + DRAIN_S)

    def _look_for_end(self, life: int, until: float) -> None:
        if self.lives != life or self.state is not State.UP:
            return
        left = self._shared.stats.left
        if left and self._scheduler.now < until:
            self._scheduler.after(DRAIN_LOOK_S, lambda: self._look_for_end(life, until), self.name, idles=True)
            return
        self._transcript.say(f"{self.name} has drained{f', with {left} left' if left else ''}")
        if left:
            self.on_left_behind(self, "ended before all had left it")
        self.stop(lambda: None, comes_back=False)

    def pause(self, until: float) -> None:
        """Pause (SIGSTOP) until ``until`` (SIGCONT). The server must be up. It answers nothing and does not tick."""
        self._transcript.say(f"{self.name} stands still")
        self.state = State.PAUSED
        self._scheduler.freeze(self.name, until)
        if self.place is not None:
            self.place.silence(until)
        life = self.lives
        self._scheduler.at(until, lambda: self._resume(life))

    def _resume(self, life: int) -> None:
        """Answer the requests that came meanwhile, in any order."""
        if self.lives != life or self.state is not State.PAUSED:
            return
        self._transcript.say(f"{self.name} goes on")
        self.state = State.UP
        asleep, self._asleep = self._asleep, []
        for each in asleep:
            self._scheduler.after(0.0, each)

    def _end(self) -> None:
        self.state = State.DOWN
        self.on_down(self.id)
        self._scheduler.kill(self.name)
        self._asleep.clear()
        answering, self._answering = self._answering, {}
        for answer in answering.values():
            answer(None, Unavailable(f"{self.name} broke the connection"))

    # -- calls

    def receive(self, method: str, request: Any, answer: Answer) -> None:
        """Receive a request. Calls ``answer`` at most once, now or later."""
        if self.state is State.PAUSED:
            self._asleep.append(lambda: self.receive(method, request, answer))
            return
        if self.state is not State.UP:
            answer(None, Unavailable(f"{self.name} refused the connection"))
            return
        self._tick_if_due()
        self._calls += 1
        number = self._calls
        self._answering[number] = answer

        def serve() -> None:
            reply = self._reply(method, request)
            if isinstance(reply, WatchReply):
                self.on_watched(self, reply)
            if self._answering.pop(number, None) is not None:
                answer(reply, None)

        if method == "watch":
            self._scheduler.spawn(self.name, "a watch", serve)
        else:
            serve()

    def _reply(self, method: str, request: Any) -> Any:
        if method == "view":
            return self._view()
        reply = self._unstamped(method, request)
        return replace(reply, epoch=self.place.epoch) if self.place is not None else reply

    def _unstamped(self, method: str, request: Any) -> Any:
        shared, shard = self._shared, self.shard
        if method == "hello":
            return HelloReply(
                PROTOCOL_VERSION,
                VERSION,
                shard.incarnation,
                self.max_message_bytes,
                64,
                self.id,
                shard.generation,
                shard.is_draining,
            )
        if method == "stats":
            values = {name: float(value) for name, value in asdict(shared.stats).items()}
            return StatsReply(shard.incarnation, VERSION, values)
        return getattr(shared, method)(request)

    def _view(self) -> ViewReply:
        if self.place is not None:
            return ViewReply(self.shard.incarnation, *self.place.view())
        state = MemberState.DRAINING if self.shard.is_draining else MemberState.ACTIVE
        member = Member(self.id, self.shard.generation, self.address)
        return ViewReply(self.shard.incarnation, 0, (ListedMember(member, state),))

    # -- time

    def _tick_later(self, life: int) -> None:
        def tick() -> None:
            if self.lives == life and self.state is not State.DOWN:
                self._tick()
                self._tick_later(life)

        self._scheduler.after(TICK_S, tick, self.name, idles=True)

    def _tick_if_due(self) -> None:
        if self._scheduler.now - self._ticked_at >= TICK_DUE_S:
            self._tick()

    def _tick(self) -> None:
        self._ticked_at = self._scheduler.now
        self._shared.tick()
        for change in self.shard.changes:
            if change.change == Change.EXPIRED:
                self.on_expired(self, change.session)
        self.shard.changes.clear()

    # -- in the end

    def age(self, seconds: float) -> None:
        """Advance the clock by ``seconds`` three times, with a tick after each. No calls may follow."""
        for _ in range(3):
            self._offset += seconds
            self.shard.tick(self.clock())


def name_of(id_: int) -> str:
    return f"server {id_}"


def address_of(id_: int) -> str:
    return f"server{id_}:7070"


def _copied(part: StatePart) -> StatePart:
    name, columns = part
    return name, {key: column.copy() for key, column in columns.items()}
