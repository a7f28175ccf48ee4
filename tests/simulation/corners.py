"""Corner cases: each produces a situation that is rare in random cases, and in which one rule decides the outcome.

A corner fixes which faults occur, and when. The seed decides everything else, as in random cases.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace
from typing import cast

from tests.simulation.case import (
    NEVER,
    Case,
    Cut,
    DataLost,
    Drains,
    Fault,
    FilesLost,
    Joins,
    Pause,
    Programs,
    ServerStops,
    SessionsLost,
    ZooKeeperAway,
    plain_case,
)

Corner = Callable[[int], Case]


def left_out(seed: int) -> Case:
    """A worker or source is cut off from one of two replicas. It fails records, and then the other replica dies."""
    dice = random.Random(f"{seed} left out")
    cut, dies = dice.sample((1, 2), 2)
    at = round(dice.uniform(0.2, 3.0), 3)
    return _plain(
        seed,
        dice,
        2,
        Cut(at, dice.choice(("worker 1", "worker 1", "source 1")), cut, 60.0),
        ServerStops(round(at + dice.uniform(2.0, 25.0), 3), dies, dice.choice((1.0, NEVER)), False),
        replicas=2,
        fail_share=0.5,
        regret_share=0.5,
    )


def unheard_fail(seed: int) -> Case:
    """A source that cannot reach one of two replicas fails its own records. Then it hears no answers of the other.

    Before the source hears this other replica again, the replica dies, and its state is lost.
    """
    dice = random.Random(f"{seed} unheard fail")
    cut, dies = dice.sample((1, 2), 2)
    at = round(dice.uniform(0.5, 3.0), 3)
    deaf_at, deaf_s = round(at + dice.uniform(0.2, 6.0), 3), round(dice.uniform(2.0, 6.0), 3)
    case = _plain(
        seed,
        dice,
        2,
        Cut(at, "source 1", cut, 25.0),
        Cut(deaf_at, "source 1", dies, deaf_s, True),
        ServerStops(round(deaf_at + dice.uniform(0.1, deaf_s), 3), dies, 1.0, False),
        replicas=2,
        fail_share=0.0,
        regret_share=0.5,
    )
    return replace(case, lease_s=90.0)


def data_lost(seed: int) -> Case:
    """ZooKeeper loses its data. A server may die or join at that time.

    In half of the cases, a server restarts three times before ZooKeeper loses its data.
    """
    dice = random.Random(f"{seed} data lost")
    servers = dice.choice((2, 3))
    changes = [ServerStops(0.3 + 2.0 * number, 2, 0.5, True) for number in range(dice.choice((0, 3)))]
    at = round(2.0 * len(changes) + dice.uniform(0.2, 5.0), 3)
    for_s = round(dice.uniform(0.1, 20.0), 3)
    dies = ServerStops(round(at + for_s + dice.uniform(1.0, 8.0), 3), dice.randint(2, servers), NEVER, False)
    more = (dies,) if dice.random() < 0.3 else _one_more(dice, servers, at + for_s)
    case = _plain(seed, dice, servers, *changes, DataLost(at, for_s), *more)
    return replace(case, programs=replace(cast("Programs", case.programs), pace_s=2.0))


def late_registration(seed: int) -> Case:
    """ZooKeeper loses its data. One server restarts at that time and has no view, and another one registers late."""
    dice = random.Random(f"{seed} late")
    servers = dice.choice((2, 3))
    late, restarted = dice.sample(range(1, servers + 1), 2)
    at, for_s = round(dice.uniform(2.0, 6.0), 3), round(dice.uniform(0.5, 15.0), 3)
    case = _plain(
        seed,
        dice,
        servers,
        DataLost(at, for_s),
        ServerStops(round(at + 0.1, 3), restarted, round(for_s + dice.uniform(0.0, 1.5), 3), dice.random() < 0.6),
        ZooKeeperAway(round(at + for_s - 0.3, 3), late, round(dice.uniform(2.0, 12.0), 3)),
        replicas=1,
    )
    return replace(case, gone_after_s=15.0)


def sessions_lost(seed: int) -> Case:
    """No server reaches ZooKeeper until all sessions have ended. A server may die or join at about that time."""
    dice = random.Random(f"{seed} sessions lost")
    servers = dice.choice((2, 3, 4))
    at, for_s = round(dice.uniform(0.2, 5.0), 3), round(dice.uniform(4.0, 40.0), 3)
    return _plain(seed, dice, servers, SessionsLost(at, for_s), *_one_more(dice, servers, at + for_s))


def first_back(seed: int) -> Case:
    """No server reaches ZooKeeper until all sessions are over. The first to reconnect may be one without its state."""
    dice = random.Random(f"{seed} first back")
    at, for_s = round(dice.uniform(0.2, 1.0), 3), round(dice.uniform(4.2, 8.0), 3)
    stops = ServerStops(round(at + dice.uniform(0.1, 1.0), 3), 3, round(dice.uniform(0.5, 4.0), 3), False)
    return replace(_plain(seed, dice, 3, SessionsLost(at, for_s), stops, replicas=1), session_s=4.0)


def old_view(seed: int) -> Case:
    """One server cannot reach ZooKeeper, so its view is old, while another one joins, drains or restarts.

    In some cases, a client reaches only the server with the old view.
    """
    dice = random.Random(f"{seed} old view")
    servers = dice.choice((3, 4))
    blind, other = dice.sample(range(1, servers + 1), 2)
    at = round(dice.uniform(0.2, 3.0), 3)
    client = dice.choice(("source 1", "worker 1", None))
    cuts = [
        Cut(round(at + dice.uniform(1.0, 8.0), 3), client, server, round(dice.uniform(1.0, 20.0), 3))
        for server in range(1, servers + 1)
        if server != blind and client is not None
    ]
    changes: list[Fault] = [
        ServerStops(round(at + 1.0, 3), other, round(dice.uniform(0.5, 15.0), 3), dice.random() < 0.5),
        Drains(round(at + 1.0, 3), other),
        Joins(round(at + 1.0, 3), other),
    ]
    away = ZooKeeperAway(at, blind, round(dice.uniform(3.0, 40.0), 3))
    return _plain(seed, dice, servers, away, dice.choice(changes), *cuts)


def leaving(seed: int) -> Case:
    """Servers drain, or restart with their state, while records are pending on them."""
    dice = random.Random(f"{seed} leaving")
    servers = dice.choice((2, 3))
    faults: list[Fault] = []
    for server in range(1, servers + 1):
        at = round(dice.uniform(0.2, 8.0), 3)
        stops = ServerStops(at, server, round(dice.uniform(1.0, 25.0), 3), True)
        faults.append(dice.choice((stops, stops, Drains(at, server)) if server > 1 else (stops,)))
    return _plain(seed, dice, servers, *faults, replicas=dice.choice((1, 2)))


def silence(seed: int) -> Case:
    """Without ZooKeeper: a client is cut off from all servers, or paused, for longer than ``gone_after_s``.

    Sometimes a server is paused too, at about the time when the client recovers.
    """
    dice = random.Random(f"{seed} silence")
    servers = dice.choice((2, 3))
    at, for_s = round(dice.uniform(0.2, 3.0), 3), round(dice.uniform(5.0, 25.0), 3)
    who = dice.choice(("source 1", "worker 1"))
    fault: Fault = Cut(at, who, None, for_s) if dice.random() < 0.6 else Pause(at, who, for_s)
    still = Pause(round(at + for_s - dice.uniform(0.0, 1.0), 3), f"server {dice.randint(1, servers)}", 2.0)
    case = _plain(seed, dice, servers, fault, *((still,) * (dice.random() < 0.5)), replicas=1)
    return replace(case, cluster="list", gone_after_s=4.0, lease_s=90.0)


def long_flush(seed: int) -> Case:
    """The source's flush waits so long for one of two servers that the source's lease at the other one ends."""
    dice = random.Random(f"{seed} long flush")
    at, for_s = round(dice.uniform(0.2, 3.0), 3), round(dice.uniform(30.0, 50.0), 3)
    case = _plain(seed, dice, 2, Cut(at, "source 1", dice.choice((1, 2)), for_s), replicas=1)
    return replace(case, budget_s=60.0, lease_s=20.0)


def seldom_asked(seed: int) -> Case:
    """With Spark and one replica, without ZooKeeper: a server is paused for longer than a task's budget.

    Later it is briefly paused several times. In between, an executor may have no request for it.
    """
    dice = random.Random(f"{seed} seldom asked")
    at = round(dice.uniform(0.1, 0.8), 3)
    moments = [Pause(round(at + 15.0 + 3.5 * number + dice.random(), 3), "server 2", 0.8) for number in range(5)]
    return replace(
        _spark(seed, 2, Pause(at, "server 2", 3.3), *moments),
        cluster="list",
        replicas=1,
        executors=3,
        tasks_wide=1,
        records=12,
        batch_records=3,
        budget_s=2.0,
        call_timeout_s=1.0,
        gone_after_s=15.0,
        tasks={"is slow": 0.5},
    )


def made_anew(seed: int) -> Case:
    """With Spark: shuffle files are lost between tasks of a stage. Recomputed rows differ, and go to the same tasks."""
    dice = random.Random(f"{seed} made anew")
    lost = [FilesLost(round(dice.uniform(0.3, 8.0), 3), dice.randint(1, 2)) for _ in range(12)]
    return replace(
        _spark(seed, 1, *lost),
        cluster="alone",
        replicas=None,
        executors=2,
        tasks_wide=3,
        steps=dice.choice((2, 3)),
        tasks={"makes children for the same tasks": 0.5, "is slow": 0.3},
    )


def rolling(seed: int) -> Case:
    """With Spark and two replicas, servers are restarted one after the other with their state, slowly."""
    dice = random.Random(f"{seed} rolling")
    servers = dice.choice((2, 2, 3))
    at, faults = round(dice.uniform(0.2, 3.0), 3), []
    for number in range(dice.choice((1, 2, 4))):
        down_s = round(dice.uniform(3.0, 13.0), 3)
        faults.append(ServerStops(at, number % servers + 1, down_s, True))
        at = round(at + down_s + dice.uniform(1.0, 4.0), 3)
    return replace(_spark(seed, servers, *faults), replicas=2, replica_wait_s=2.0, gone_after_s=15.0)


def newcomer(seed: int) -> Case:
    """With Spark and one replica: executors ask for the view, and later a server joins or restarts without its state.

    Then this server is briefly paused several times.
    """
    dice = random.Random(f"{seed} newcomer")
    servers = dice.choice((2, 3))
    at = round(dice.uniform(3.0, 6.0), 3)
    comes: Fault = Joins(at, servers) if dice.random() < 0.5 else ServerStops(at, servers, 0.5, False)
    pauses = [
        Pause(round(at + 1.0 + 1.3 * number + dice.random(), 3), f"server {servers}", round(dice.uniform(0.4, 0.9), 3))
        for number in range(5)
    ]
    return replace(
        _spark(seed, servers, Pause(round(dice.uniform(0.5, 1.5), 3), "server 1", 1.8), comes, *pauses),
        replicas=1,
        gone_after_s=15.0,
        session_s=10.0,
    )


def emptied(seed: int) -> Case:
    """With Spark and one replica, without ZooKeeper: servers quickly restart without state while batches are open."""
    dice = random.Random(f"{seed} emptied")
    servers = dice.choice((2, 3, 4))
    faults = [
        ServerStops(
            round(dice.uniform(0.2, 12.0), 3), dice.randint(1, servers), round(dice.uniform(0.2, 2.0), 3), False
        )
        for _ in range(3)
    ]
    return replace(_spark(seed, servers, *faults), cluster="list", replicas=1)


CORNERS: tuple[Corner, ...] = (
    left_out, unheard_fail, data_lost, late_registration, sessions_lost, old_view, leaving, silence, long_flush,
    seldom_asked, made_anew, rolling, newcomer, first_back, emptied,
)  # fmt: skip


def _one_more(dice: random.Random, servers: int, about: float) -> tuple[Fault, ...]:
    at, server = round(max(0.1, about + dice.uniform(-5.0, 10.0)), 3), dice.randint(2, servers)
    down_s = round(dice.uniform(0.5, 20.0), 3)
    return dice.choice(
        (
            (),
            (ServerStops(at, server, down_s, True),),
            (ServerStops(at, server, down_s, False),),
            (ZooKeeperAway(at, server, down_s),),
            (Joins(at, server),),
        )
    )


def _spark(seed: int, servers: int, *faults: Fault) -> Case:
    """Return a case with Spark, ZooKeeper and a good network. It has many batches, and no faults in tasks."""
    return replace(
        Case.of(seed, "zookeeper"),
        servers=servers,
        budget_s=60.0,
        lease_s=30.0,
        records=30,
        batch_records=8,
        calls={},
        tasks={},
        is_rough=False,
        faults=tuple(sorted(faults, key=lambda fault: fault.at)),
    )


def _plain(
    seed: int,
    dice: random.Random,
    servers: int,
    *faults: Fault,
    replicas: int | None = 0,
    fail_share: float = 0.1,
    regret_share: float = 0.0,
) -> Case:
    """Return a case of plain programs, with ZooKeeper and a good network."""
    case = plain_case(seed)
    programs = Programs(
        workers=2,
        roots=dice.choice((8, 16)),
        timeout_s=120.0,
        pace_s=dice.choice((0.05, 0.5, 1.0)),
        work_s=dice.choice((0.2, 1.0)),
        flush_every=dice.choice((1, 3)),
        hands_on_early=dice.random() < 0.3,
        watches_beside=dice.random() < 0.4,
        fail_share=fail_share,
        regret_share=regret_share,
    )
    return replace(
        case,
        cluster="zookeeper",
        servers=servers,
        replicas=dice.choice((None, 1, 2)) if replicas == 0 else replicas,
        calls={},
        is_rough=False,
        programs=programs,
        faults=tuple(sorted(faults, key=lambda fault: fault.at)),
    )
