"""Network: the links between clients and servers. It loses, delays, duplicates and reorders messages, and cuts links.

A request and its answer travel separately, each with a random delay. A late message arrives even if its caller has
given up. Within the time of one retry budget, at most :data:`FAULTS_MAX` calls over a link fail by chance. Only cuts
and stopped servers use up a whole budget, so chance does not decide whether a failure is justified.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable, Mapping
from itertools import accumulate
from typing import Any

from acker_client.errors import Unavailable
from acker_protocol import wire
from acker_protocol.messages import (
    Apply,
    ApplyReply,
    DrainReply,
    Hello,
    HelloReply,
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
from tests.simulation.scheduler import Scheduler, Signal
from tests.simulation.servers import Server, State
from tests.simulation.transcript import Transcript

FAULTS_MAX = 2
LATENCY_S = 0.002
LATE_MAX_S = 45.0

# Random faults of one call.
FAULTS = (
    "request lost",
    "request refused",
    "reply lost",
    "request late",
    "reply late",
    "request doubled",
    "request doubled late",
)
_HARMLESS = {"request doubled", "request doubled late"}


class Link:
    """The link from a client's process to a server. ``cuts``: intervals (from, until) in which nothing passes.
    ``deaf``: intervals in which no answer passes."""

    def __init__(self, client: str, server: Server) -> None:
        self.client = client
        self.server = server
        self.faults: deque[float] = deque(maxlen=FAULTS_MAX)
        self.cuts: list[tuple[float, float]] = []
        self.deaf: list[tuple[float, float]] = []

    def is_cut(self, now: float) -> bool:
        return any(start <= now < end for start, end in self.cuts)

    def is_deaf(self, now: float) -> bool:
        return self.is_cut(now) or any(start <= now < end for start, end in self.deaf)


class Network:
    """All links. ``rates``: the probability of each of FAULTS in a call, 0 to 1. ``quiet_s``: at most FAULTS_MAX
    harmful faults hit a link in this time."""

    def __init__(
        self,
        scheduler: Scheduler,
        dice: random.Random,
        transcript: Transcript,
        servers: Mapping[str, Server],
        rates: Mapping[str, float],
        *,
        quiet_s: float,
        through_wire: bool,
    ) -> None:
        self.calls = 0
        self.seen: dict[str, int] = {}
        self._scheduler, self._dice, self._transcript = scheduler, dice, transcript
        self._servers = servers
        named = [name for name in FAULTS if rates.get(name)]
        self._rates = list(zip(named, accumulate(rates[name] for name in named), strict=True))
        self._quiet_s = quiet_s
        self._through_wire = through_wire
        # Called once with each request before it is sent, even if it is duplicated.
        self.on_request: Callable[[Link, Any], None] = lambda link, request: None
        # Called with each answer that reaches a waiting caller.
        self.on_reply: Callable[[Link, Any], None] = lambda link, reply: None
        # Called with each call that a random fault hits.
        self.on_fault: Callable[[Link, str], None] = lambda link, fault: None
        self._links: dict[tuple[str, str], Link] = {}

    def connect(self, client: str) -> Callable[[str], SimulatedTransport]:
        """Return the ``connect`` argument of ``AckerClient`` for one process."""
        return lambda address: SimulatedTransport(self, self.link(client, address))

    def link(self, client: str, address: str) -> Link:
        link = self._links.get((client, address))
        if link is None:
            link = self._links[client, address] = Link(client, self._servers[address])
        return link

    def cut(self, client: str | None, server: Server | None, until: float, *, is_half: bool = False) -> None:
        """Cut the link between a client and a server from now until ``until``. None stands for all clients or all
        servers. ``is_half``: only answers are lost."""
        for link in self._links.values():
            if client in (None, link.client) and server in (None, link.server):
                (link.deaf if is_half else link.cuts).append((self._scheduler.now, until))

    def call(self, link: Link, method: str, request: Any, timeout_s: float) -> Any:
        """Send a request as the current process, and return the answer. Raises Unavailable if none comes in time."""
        self.calls += 1
        self.on_request(link, request)
        call = _Call(self, link, method, request)
        fault = self._fault(link)
        call.begin(fault)
        call.answered.wait(timeout_s)
        call.is_over = True
        if call.error is not None:
            if self._transcript.is_kept:
                self._say(link, f"{call.described()}: no answer, {call.error}")
            raise call.error
        if not call.answered.is_set:
            if self._transcript.is_kept:
                self._say(link, f"{call.described()}: given up after {timeout_s:.3g} s")
            raise Unavailable(f"{link.server.name} did not answer within {timeout_s:.3g} s")
        return call.reply

    def latency_s(self) -> float:
        return round(0.0002 + self._dice.expovariate(1 / LATENCY_S), 6)

    def late_s(self) -> float:
        return round(self._dice.choice((0.05, 0.5, 3.0, 12.0, LATE_MAX_S)) * self._dice.random(), 6)

    def _fault(self, link: Link) -> str:
        draw = self._dice.random()
        name = next((name for name, above in self._rates if draw < above), "")
        if not name:
            return ""
        if name not in _HARMLESS:
            now, faults = self._scheduler.now, link.faults
            if len(faults) == FAULTS_MAX and now - faults[0] < self._quiet_s:
                return ""
            faults.append(now)
            self.on_fault(link, name)
        self.seen[name] = self.seen.get(name, 0) + 1
        return name

    def _say(self, link: Link, line: str) -> None:
        self._transcript.say(f"{link.client} -> {link.server.name}: {line}")


class _Call:
    """One request and its answer."""

    def __init__(self, network: Network, link: Link, method: str, request: Any) -> None:
        self.reply: Any = None
        self.error: Exception | None = None
        self.is_over = False
        self.answered = Signal(network._scheduler, f"{method} of {link.server.name}")
        self._network, self._link, self._method, self._request = network, link, method, request
        self._fault = ""

    def begin(self, fault: str) -> None:
        self._fault = fault
        network, link = self._network, self._link
        scheduler = network._scheduler
        if network._transcript.is_kept:
            how = f" ... {fault}" if fault else " ... cut off" if link.is_cut(scheduler.now) else ""
            network._say(link, f"{self.described()}{how}")
        if link.is_cut(scheduler.now):
            network.on_fault(link, "cut off")
            return
        if fault == "request lost":
            return
        if fault == "request refused":
            scheduler.after(network.latency_s(), lambda: self._fail(Unavailable("the connection broke")))
            return
        if link.server.state is State.DOWN:
            # The connection is refused at once, even if the request was drawn to be late.
            refused = Unavailable(f"{link.server.name} refused the connection")
            scheduler.after(network.latency_s(), lambda: self._fail(refused))
            return
        late_s = network.late_s() if fault == "request late" else 0.0
        scheduler.after(network.latency_s() + late_s, lambda: self._arrive(first=True))
        if fault.startswith("request doubled"):
            late_s = network.late_s() if fault.endswith("late") else 0.0
            scheduler.after(network.latency_s() + late_s, lambda: self._arrive(first=False))

    def described(self) -> str:
        request = self._request
        return self._method if request is None else self._network._transcript.request(request)

    def _arrive(self, *, first: bool) -> None:
        """Deliver the request to the server. Only the first of two duplicates gets its answer back."""
        network, link = self._network, self._link
        if link.is_cut(network._scheduler.now):
            network.on_fault(link, "cut off")
            return
        if network._transcript.is_kept and (self.is_over or not first):
            network._say(link, f"{self.described()} arrives {'late' if first else 'again'}")
        request = self._decoded(self._request)
        link.server.receive(self._method, request, self._answer if first else lambda reply, error: None)

    def _answer(self, reply: Any, error: Exception | None) -> None:
        """Send the server's reply, or the error of its connection, back to the client."""
        network = self._network
        late_s = network.late_s() if self._fault == "reply late" else 0.0
        is_lost = self._fault == "reply lost" and error is None
        if network._transcript.is_kept and error is None:
            how = " ... lost" if is_lost else f" ... {late_s:.3f} s late" if late_s else ""
            line = f"{self._link.server.name} -> {self._link.client}: {network._transcript.reply(reply)}{how}"
            network._transcript.say(line)
        if is_lost:
            return
        reply = self._decoded(reply)
        network._scheduler.after(network.latency_s() + late_s, lambda: self._deliver(reply, error))

    def _deliver(self, reply: Any, error: Exception | None) -> None:
        if self.is_over:
            return
        if self._link.is_deaf(self._network._scheduler.now):
            self._network.on_fault(self._link, "cut off")
            return
        self.reply, self.error = reply, error
        self._network.on_reply(self._link, reply)
        self.answered.set()

    def _fail(self, error: Exception) -> None:
        self._deliver(None, error)

    def _decoded(self, message: Any) -> Any:
        if message is None or isinstance(message, StatsReply) or not self._network._through_wire:
            return message
        return wire.decode(type(message), wire.encode(message).SerializeToString())


class SimulatedTransport:
    """:class:`acker_protocol.messages.Transport` over one link."""

    def __init__(self, network: Network, link: Link) -> None:
        self._network, self._link = network, link

    def hello(self, hello: Hello, timeout_s: float) -> HelloReply:
        reply: HelloReply = self._network.call(self._link, "hello", hello, timeout_s)
        return reply

    def apply(self, message: Apply, timeout_s: float) -> ApplyReply:
        reply: ApplyReply = self._network.call(self._link, "apply", message, timeout_s)
        return reply

    def open_batch(self, request: OpenBatch, timeout_s: float) -> OpenBatchReply:
        reply: OpenBatchReply = self._network.call(self._link, "open_batch", request, timeout_s)
        return reply

    def settle(self, request: Settle, timeout_s: float) -> SettleReply:
        reply: SettleReply = self._network.call(self._link, "settle", request, timeout_s)
        return reply

    def watch(self, request: Watch, timeout_s: float) -> WatchReply:
        reply: WatchReply = self._network.call(self._link, "watch", request, timeout_s)
        return reply

    def stats(self, timeout_s: float) -> StatsReply:
        reply: StatsReply = self._network.call(self._link, "stats", None, timeout_s)
        return reply

    def view(self, timeout_s: float) -> ViewReply:
        reply: ViewReply = self._network.call(self._link, "view", None, timeout_s)
        return reply

    def drain(self, timeout_s: float) -> DrainReply:
        reply: DrainReply = self._network.call(self._link, "drain", None, timeout_s)
        return reply

    def pins(self, request: Pins, timeout_s: float) -> PinsReply:
        reply: PinsReply = self._network.call(self._link, "pins", request, timeout_s)
        return reply

    def close(self) -> None:
        """Do nothing, as there is no channel."""
