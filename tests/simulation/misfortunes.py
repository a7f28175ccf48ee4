"""Misfortunes: makes the faults of a case happen, and records them for the oracles."""

from __future__ import annotations

import random
from typing import Protocol

from tests.simulation.case import (
    NEVER,
    Case,
    Cut,
    DataLost,
    Drains,
    ExecutorLost,
    Fault,
    FilesLost,
    Joins,
    Pause,
    ServerStops,
    SessionsLost,
    WorkerLost,
    ZooKeeperAway,
)
from tests.simulation.network import Network
from tests.simulation.plain import Plain
from tests.simulation.registry import ZooKeeper
from tests.simulation.scheduler import Scheduler
from tests.simulation.servers import Server, State
from tests.simulation.spark import Spark
from tests.simulation.transcript import Transcript
from tests.simulation.troubles import Troubles


class Surroundings(Protocol):
    """Everything that a fault can hit."""

    case: Case
    scheduler: Scheduler
    transcript: Transcript
    network: Network
    troubles: Troubles
    servers: dict[int, Server]
    zookeeper: ZooKeeper | None
    spark: Spark
    plain: Plain | None
    is_over: bool
    dice: random.Random

    def lost(self, server: Server, why: str) -> None: ...


class Misfortunes:
    """The faults of one run."""

    def __init__(self, world: Surroundings) -> None:
        self._world = world
        # Servers that will return with their state.
        self._returning: set[int] = set()

    def happen(self, fault: Fault) -> None:
        """Make a fault happen now, unless the run is over."""
        world = self._world
        if world.is_over:
            return
        world.transcript.say(f"-- {fault}")
        match fault:
            case ServerStops(_, number, down_s, with_state):
                self._stop_server(world.servers[number], down_s, with_state)
            case Pause(_, who, for_s):
                self._pause(who, for_s)
            case Cut(_, client, number, for_s, is_half):
                world.troubles.out_of_reach(for_s, client, number)
                server = None if number is None else world.servers[number]
                world.network.cut(client, server, world.scheduler.now + for_s, is_half=is_half)
            case ExecutorLost(_, number, down_s):
                world.spark.lose(world.spark.executors[number - 1], down_s)
            case WorkerLost(_, number, down_s):
                if world.plain is not None and number in world.plain.workers:
                    world.plain.lose(number, down_s)
            case FilesLost(_, number):
                world.spark.lose_files(world.spark.executors[number - 1])
            case Joins(_, number):
                if number not in self._returning:
                    world.servers[number].start(with_state=False)
            case Drains(_, number):
                world.servers[number].drain()
            case ZooKeeperAway(_, number, for_s):
                self._hide_zookeeper(number, for_s)
            case SessionsLost(_, for_s):
                for server in world.servers.values():
                    if server.place is not None:
                        # Servers reconnect one by one, each up to half a session timeout after the cut.
                        late_s = 0.5 * world.case.session_s * world.dice.random()
                        server.place.silence(world.scheduler.now + for_s + late_s)
            case DataLost(_, for_s):
                if world.zookeeper is not None:
                    world.troubles.zookeeper_away(for_s)
                    world.zookeeper.lose_data(world.scheduler.now + for_s)

    def _stop_server(self, server: Server, down_s: float, with_state: bool) -> None:
        world = self._world
        if server.state is not State.UP:
            return

        def start() -> None:
            self._returning.discard(server.id)
            server.start(with_state=with_state)

        if with_state:
            self._returning.add(server.id)
            server.stop(lambda: world.scheduler.after(down_s, start))
            return
        server.crash()
        world.lost(server, "lost its state")
        if down_s != NEVER:
            world.scheduler.after(down_s, start)

    def _pause(self, who: str, for_s: float) -> None:
        world = self._world
        server = next((server for server in world.servers.values() if server.name == who), None)
        if server is not None:
            if server.state is State.UP:
                world.troubles.out_of_reach(for_s, None, server.id)
                server.pause(world.scheduler.now + for_s)
            return
        world.transcript.say(f"{who} stands still")
        world.troubles.out_of_reach(for_s, who, None)
        world.scheduler.freeze(who, world.scheduler.now + for_s)

    def _hide_zookeeper(self, number: int | None, for_s: float) -> None:
        world = self._world
        zookeeper, now = world.zookeeper, world.scheduler.now
        if zookeeper is None:
            return
        if number is None:
            world.troubles.zookeeper_away(for_s)
            zookeeper.go_away(now + for_s)
            return
        place = world.servers[number].place
        if place is not None:
            place.silence(now + for_s)
