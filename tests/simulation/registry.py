"""Registry: ZooKeeper as plain data, and each server's place in it, like ``zookeeper.registry`` but without kazoo.

Uses the real ``core.members``. A server that is paused or cut off from ZooKeeper loses its session after ``session_s``,
and returns with a new one. While ZooKeeper itself is away, no session ends and no view changes. When it returns, the
timeouts of all sessions start anew. ZooKeeper may also return without its data. Then the first server that reconnects
starts a later incarnation of the ensemble.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field, replace

from acker_protocol.messages import ListedMember, MemberState
from acker_protocol.placement import epoch_of
from acker_service.core import members
from acker_service.core.members import Away, Registered, Seen
from tests.simulation.scheduler import Scheduler
from tests.simulation.transcript import Transcript

# Mean delay until the watching servers learn of a change.
LATENCY_S = 0.02
# Retry interval of a server that cannot register.
AGAIN_S = 0.5
# After ZooKeeper returns without data, all servers reconnect within this time.
FRESH_S = 1.5
EPOCH_MS = 1_700_000_000_000


@dataclass
class Nodes:
    """The nodes, by server id. ``epoch`` rises with each change of ``ids``. ``ensemble``: the content of the node
    `config`; 0 if there is none."""

    epoch: int = 0
    ensemble: int = 0
    ids: dict[int, Registered] = field(default_factory=dict)
    draining: dict[int, Registered] = field(default_factory=dict)
    away: dict[int, Away] = field(default_factory=dict)
    known: dict[int, Registered] = field(default_factory=dict)


class ZooKeeper:
    """The service, with the sessions of its servers."""

    def __init__(self, scheduler: Scheduler, dice: random.Random, transcript: Transcript, session_s: float) -> None:
        self.session_s = session_s
        self.nodes = Nodes()
        self.scheduler, self.dice, self.transcript = scheduler, dice, transcript
        self._down_until = 0.0
        self._is_losing_data = False
        self._places: list[Place] = []
        # `on_gone` gets the id of a server that disappears from the list unannounced. `on_listed` gets the id of a
        # server that is listed again.
        self.on_gone: Callable[[int], None] = lambda _: None
        self.on_listed: Callable[[int], None] = lambda _: None
        # Called with the id of a server that has announced its return.
        self.on_away: Callable[[int], None] = lambda _: None
        # Called with the name of a server that is cut off, and for how many seconds.
        self.on_silence: Callable[[str, float], None] = lambda _, for_s: None

    @property
    def is_up(self) -> bool:
        return self.scheduler.now >= self._down_until

    @property
    def now_ms(self) -> int:
        return EPOCH_MS + int(self.scheduler.now * 1000)

    def go_away(self, until: float) -> None:
        """Answer no server before ``until``."""
        self.transcript.say("ZooKeeper is away")
        self._down_until = max(until, self._down_until)
        self.scheduler.at(until, self._come_back)

    def lose_data(self, until: float) -> None:
        """Answer no server before ``until``, and return without data."""
        self._is_losing_data = True
        self.go_away(until)

    def _forget(self) -> None:
        self.transcript.say("ZooKeeper has lost its data")
        self.nodes = Nodes()
        for place in self._places:
            if place.server is not None and not place.is_heard:
                self.on_gone(place.server.id)

    def join(self, place: Place) -> None:
        self._places.append(place)

    def expire(self, server: Registered) -> None:
        """End the session of a server, and delete its nodes."""
        nodes, has_ended = self.nodes, False
        if nodes.ids.get(server.id) == server:
            del nodes.ids[server.id]
            nodes.epoch += 1
            has_ended = True
        if nodes.draining.get(server.id) == server:
            del nodes.draining[server.id]
            has_ended = True
        if has_ended:
            self.transcript.say(f"ZooKeeper: the session of server {server.id} is over")
            self.on_gone(server.id)
            self.changed()

    def changed(self) -> None:
        """Notify all servers of a change, a moment later."""
        for place in self._places:
            delay_s = LATENCY_S * (0.5 + self.dice.random())
            self.scheduler.after(delay_s, place.look, place.owner, idles=True)

    def seen(self) -> Seen:
        nodes = self.nodes
        return Seen(
            epoch_of(nodes.ensemble, nodes.epoch),
            _sorted(nodes.ids),
            _sorted(nodes.draining),
            tuple(nodes.away.values()),
        )

    def _come_back(self) -> None:
        if not self.is_up:
            return
        self.transcript.say("ZooKeeper is back")
        is_fresh, self._is_losing_data = self._is_losing_data, False
        if is_fresh:
            self._forget()
        for place in self._places:
            # After data loss, servers reconnect one by one.
            delay_s = self.dice.random() * FRESH_S if is_fresh else 0.0
            self.scheduler.after(delay_s, place.come_back, place.owner, idles=True)


class Place:
    """The registration of one server, over all its restarts. ``owner``: the name of its process."""

    def __init__(self, zookeeper: ZooKeeper, owner: str) -> None:
        self.owner = owner
        self.server: Registered | None = None
        self._zookeeper = zookeeper
        self._seen = Seen()
        self._is_draining = False
        self._unheard_until = 0.0
        self._ensemble = 0
        zookeeper.join(self)

    @property
    def epoch(self) -> int:
        return self._seen.epoch

    def view(self) -> tuple[int, tuple[ListedMember, ...]]:
        """Return epoch and members as last seen. If this server drains, it is listed so at once."""
        listed = self._seen.listed(self._zookeeper.now_ms)
        if self._is_draining and self.server is not None:
            own = self.server.member
            drains = ListedMember(own, MemberState.DRAINING)
            listed = tuple(drains if each.member == own else each for each in listed)
        return self._seen.epoch, listed

    def register(self, server: Registered) -> bool:
        """Claim the server's id. False if ZooKeeper is away, or if the nodes of a dead process still exist."""
        zookeeper, nodes = self._zookeeper, self._zookeeper.nodes
        found = nodes.ids.get(server.id) or nodes.draining.get(server.id)
        if not self._can_be_heard() or found is not None:
            return False
        self._ensemble = 0
        self._agree_on_config()
        nodes.ids[server.id] = nodes.known[server.id] = server
        nodes.away.pop(server.id, None)
        nodes.epoch += 1
        self.server, self._seen = server, zookeeper.seen()
        self._expect(nodes.known.values())
        self._is_draining = False
        zookeeper.on_listed(server.id)
        zookeeper.changed()
        return True

    def drain(self) -> None:
        """Note that the server takes nothing new."""
        self._is_draining = True
        self._keep_registered()

    def leave(self, away_s: float | None) -> None:
        """End the registration. ``away_s``: the server returns with its state within this time; None: it does not."""
        server, self.server = self.server, None
        if server is None:
            return
        zookeeper = self._zookeeper
        if not self._can_be_heard():
            # The other servers notice the departure only when the session ends.
            zookeeper.scheduler.after(zookeeper.session_s, lambda: zookeeper.expire(server))
            return
        if away_s is not None:
            zookeeper.nodes.away[server.id] = Away(server.member, zookeeper.now_ms + int(away_s * 1000))
            zookeeper.on_away(server.id)
        zookeeper.nodes.known.pop(server.id, None)
        zookeeper.nodes.ids.pop(server.id, None)
        zookeeper.nodes.draining.pop(server.id, None)
        zookeeper.nodes.epoch += 1
        zookeeper.changed()

    def die(self) -> None:
        """End without telling ZooKeeper."""
        server, self.server = self.server, None
        if server is not None:
            zookeeper = self._zookeeper
            zookeeper.scheduler.after(zookeeper.session_s, lambda: zookeeper.expire(server))

    def silence(self, until: float) -> None:
        """Cut the server off from ZooKeeper until then. Also called for a server that is paused."""
        zookeeper, server = self._zookeeper, self.server
        self._unheard_until = max(until, self._unheard_until)
        zookeeper.on_silence(self.owner, until - zookeeper.scheduler.now)
        zookeeper.scheduler.at(until, self.come_back, self.owner, idles=True)
        if server is not None and until > zookeeper.scheduler.now + zookeeper.session_s:
            zookeeper.scheduler.after(zookeeper.session_s, lambda: self._expire_if_silent(server))

    def look(self) -> None:
        """Read the view. Forget servers that are no longer listed."""
        if self.server is None or not self._can_be_heard() or self._ensemble != self._zookeeper.nodes.ensemble:
            return
        nodes = self._zookeeper.nodes
        expected = self._seen.still_expecting([str(id_) for id_ in nodes.known], self._zookeeper.now_ms)
        self._seen = replace(self._zookeeper.seen(), expected=expected)
        _, listed = self.view()
        nodes.known = {id_: nodes.known[id_] for id_ in nodes.known if id_ in {each.member.id for each in listed}}

    def _expect(self, servers: Iterable[Registered]) -> None:
        zookeeper = self._zookeeper
        self._seen = self._seen.expecting(servers, zookeeper.now_ms + int(zookeeper.session_s * 1000))
        zookeeper.scheduler.after(zookeeper.session_s + 0.05, self.look, self.owner, idles=True)

    def come_back(self) -> None:
        """Continue after the server, or ZooKeeper, was out of reach."""
        if self.server is None or not self._can_be_heard():
            return
        self._expect(self._seen.serving + self._seen.draining)
        self._agree_on_config()
        self._keep_registered()
        self.look()

    def _agree_on_config(self) -> None:
        """Adopt the incarnation of the ensemble in `config`, or write a later one."""
        zookeeper, nodes = self._zookeeper, self._zookeeper.nodes
        if not nodes.ensemble:
            nodes.ensemble = members.next_ensemble(self._ensemble, zookeeper.now_ms)
        if self._ensemble and nodes.ensemble != self._ensemble:
            for known in self._seen.serving + self._seen.draining:
                nodes.known.setdefault(known.id, known)
            for away in self._seen.away:
                here = away.member.id in {*nodes.ids, *nodes.draining, *nodes.away}
                if away.until_ms > zookeeper.now_ms and not here:
                    nodes.away[away.member.id] = away
        self._ensemble = nodes.ensemble

    def _keep_registered(self) -> None:
        """Keep the node of the server in line with its state."""
        zookeeper, server = self._zookeeper, self.server
        if server is None or not self._can_be_heard():
            return
        nodes = zookeeper.nodes
        before = (nodes.ids.get(server.id), nodes.draining.get(server.id))
        if self._is_draining:
            nodes.draining[server.id] = server
            nodes.ids.pop(server.id, None)
        elif nodes.ids.get(server.id) is None:
            nodes.ids[server.id] = nodes.known[server.id] = server
            nodes.away.pop(server.id, None)
        if before != (nodes.ids.get(server.id), nodes.draining.get(server.id)):
            nodes.epoch += 1
            zookeeper.on_listed(server.id)
            zookeeper.changed()

    def _expire_if_silent(self, server: Registered) -> None:
        if self.server == server and self._zookeeper.is_up and not self.is_heard:
            self._zookeeper.expire(server)

    def _can_be_heard(self) -> bool:
        return self._zookeeper.is_up and self.is_heard

    @property
    def is_heard(self) -> bool:
        return self._zookeeper.scheduler.now >= self._unheard_until


def _sorted(found: dict[int, Registered]) -> tuple[Registered, ...]:
    return tuple(found[id_] for id_ in sorted(found))
