"""Which server a client asks for the view, and how often, while one of many servers is silent."""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import dataclass, field
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from acker_client import Settings
from acker_client.cluster.membership import Cluster
from acker_client.cluster.replicas import LOOK_S
from acker_client.cluster.view_pace import PAUSE_MAX_S, SHARE, VIEW_S, ViewPace
from acker_client.errors import Unavailable
from acker_client.rpc.side_by_side import InTurn
from acker_protocol.messages import PROTOCOL_VERSION, Hello, HelloReply, ListedMember, ViewReply
from acker_protocol.placement import Member, Placement, View, place

SERVERS = 40
LONGEST = 1.5


@dataclass
class Registered:
    """Servers with a registry, in virtual time. ``asked``: when which server was asked for the view."""

    now: float = 0.0
    epoch: int = 1
    members: dict[str, Member] = field(
        default_factory=lambda: {f"s{n}:1": Member(n, 1, f"s{n}:1") for n in range(SERVERS)}
    )
    silent: set[str] = field(default_factory=set)
    asked: list[tuple[float, str]] = field(default_factory=list)

    def connect(self, address: str) -> Any:
        return Connected(self, address)

    def sleep(self, seconds: float) -> None:
        self.now += seconds

    def lose(self, address: str) -> None:
        """Let a server be gone in the view."""
        del self.members[address]
        self.epoch += 1


@dataclass
class Connected:
    servers: Registered
    address: str

    def hello(self, hello: Hello, timeout_s: float) -> HelloReply:
        self._answer()
        member = self.servers.members[self.address]
        epoch = self.servers.epoch
        return HelloReply(PROTOCOL_VERSION, "1", 1, 1 << 20, 64, member.id, member.generation, epoch=epoch)

    def view(self, timeout_s: float) -> ViewReply:
        self._answer()
        self.servers.asked.append((self.servers.now, self.address))
        return ViewReply(1, self.servers.epoch, tuple(map(ListedMember, self.servers.members.values())))

    def close(self) -> None: ...

    def _answer(self) -> None:
        if self.address in self.servers.silent:
            raise Unavailable("silent")


class Executor:
    """A process that works on a batch, and waits for a server of the batch that is silent."""

    def __init__(self, servers: Registered, dice: random.Random) -> None:
        view = View(1, tuple(servers.members.values()))
        self.servers, self.placement = servers, place(view, 7, 1, 2)
        self.cluster = Cluster(
            Settings(("s0:1",)), servers.connect, lambda: servers.now, servers.sleep, dice.random, InTurn()
        )
        self.cluster.hear_of(self.placement)
        for member in self.placement.members:
            self._greet(member)

    def wait_for(self, silent: Member, seconds: float) -> float:
        """Wait for a server until it is gone in the view, or for ``seconds``, and return how long that took."""
        began = self.servers.now
        while self.servers.now - began < seconds and not self.cluster.gone(silent):
            self._greet(silent)
            self.cluster.refresh()
            self.servers.now += LOOK_S
        return self.servers.now - began

    def _greet(self, member: Member) -> None:
        try:
            self.cluster.caller_of(member).greet(self.cluster.patience(1.0).deadline)
        except Unavailable:
            return


def waiting(seed: int, seconds: float) -> tuple[Registered, Placement]:
    """Return the servers after a process with its own random numbers has waited for the last member of its batch."""
    servers = Registered()
    executor = Executor(servers, random.Random(seed))
    silent = executor.placement.members[-1]
    servers.silent.add(silent.address)
    assert executor.wait_for(silent, seconds) >= seconds
    return servers, executor.placement


def test_processes_that_wait_for_one_server_spread_their_requests_for_the_view_over_the_others_of_the_batch() -> None:
    asked, processes = Counter[str](), 200
    for seed in range(processes):
        servers, placement = waiting(seed, 10.0)
        asked.update(address for _, address in servers.asked)
    others = {member.address for member in placement.members[:-1]}
    assert set(asked) == others
    even = asked.total() / len(others)
    assert 0.8 * even < min(asked.values()) <= max(asked.values()) < 1.2 * even


def test_processes_that_begin_to_wait_at_once_do_not_ask_in_step() -> None:
    moments = [[at for at, _ in waiting(seed, 10.0)[0].asked] for seed in range(50)]
    # Each looks only every LOOK_S, so some times are equal by chance.
    for turn in (4, 8):
        at_once = Counter(at[turn] for at in moments)
        assert max(at_once.values()) < len(moments) / 2


def test_a_process_asks_less_often_the_longer_it_waits() -> None:
    servers, _ = waiting(1, 600.0)
    assert 5 <= sum(at < 5.0 for at, _ in servers.asked) <= 20
    late = sum(at >= 60.0 for at, _ in servers.asked)
    assert 540 / PAUSE_MAX_S / 1.3 < late < 540 / PAUSE_MAX_S * 1.3


def test_a_process_asks_less_often_for_a_view_that_only_a_silent_server_has() -> None:
    servers = Registered()
    executor = Executor(servers, random.Random(1))
    silent = executor.placement.members[-1]
    executor.wait_for(silent, 1.0)
    servers.epoch = 2
    executor._greet(silent)
    servers.epoch = 1
    servers.silent.add(silent.address)
    servers.asked.clear()
    executor.cluster.refresh()
    assert servers.asked
    executor.wait_for(silent, 600.0)
    late = {at for at, _ in servers.asked if at >= 60.0}
    assert 540 / PAUSE_MAX_S / 1.3 < len(late) < 540 / PAUSE_MAX_S * 1.3


@given(st.floats(0.5, 90.0), st.integers(0, 1 << 30))
def test_a_lost_server_is_noticed_three_sixteenths_of_its_silence_after_the_view_shows_it_at_most(
    lost_after_s: float, seed: int
) -> None:
    servers = Registered()
    executor = Executor(servers, random.Random(seed))
    silent = executor.placement.members[-1]
    servers.silent.add(silent.address)
    waited = executor.wait_for(silent, lost_after_s)
    servers.lose(silent.address)
    late = executor.wait_for(silent, 60.0)
    assert late <= LONGEST * max(VIEW_S, min(PAUSE_MAX_S, (waited + late) * SHARE)) + 2 * LOOK_S


def test_a_reply_with_a_newer_epoch_makes_a_process_ask_at_once() -> None:
    servers = Registered()
    executor = Executor(servers, random.Random(2))
    silent, other = executor.placement.members[-1], executor.placement.members[0]
    servers.silent.add(silent.address)
    executor.wait_for(silent, 300.0)
    servers.lose(silent.address)
    executor._greet(other)
    assert executor.wait_for(silent, 60.0) <= LOOK_S


@given(st.lists(st.tuples(st.floats(0.0, 4.0), st.sets(st.sampled_from("abc"))), max_size=60), st.integers(0, 1 << 30))
def test_a_new_reason_is_never_kept_waiting_longer_than_the_shortest_pause(
    looks: list[tuple[float, set[str]]], seed: int
) -> None:
    now, asked_at, known, new_at = 0.0, float("-inf"), set[str](), 0.0
    pace = ViewPace(lambda: now, random.Random(seed).random)
    for passed, reasons in looks:
        now += passed
        if reasons - known:
            new_at = now
        known = reasons
        is_due = pace.is_due(frozenset(reasons))
        assert not (is_due and not reasons)
        if reasons and now - max(asked_at, new_at) >= LONGEST * VIEW_S and asked_at <= new_at:
            assert is_due
        if is_due:
            assert now - asked_at >= VIEW_S / 2
            asked_at = now
            pace.asked()


def test_a_server_that_a_report_waits_for_is_tried_several_times_before_it_is_left_out() -> None:
    slept = list[float]()
    settings = Settings(("s0:1",), replica_wait_s=2.0)
    cluster = Cluster(settings, Registered().connect, lambda: 0.0, slept.append, lambda: 1.0, InTurn())
    patience = cluster.patience(60.0)
    assert all(patience.wait() for _ in range(20))
    assert max(slept) == 0.5
