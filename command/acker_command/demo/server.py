"""Servers: real server processes, and the ways in which the demo takes them away.

Each serves on loopback, at a port that it keeps, with a state directory. Several run under a real ZooKeeper.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping
from contextlib import closing
from pathlib import Path

from acker_client.rpc.transport import GrpcTransport
from acker_command.demo import DemoError
from acker_command.demo.faults import Strike
from acker_testing import ZooKeeperProcess
from acker_testing.child import Child

STOP_TIMEOUT_S = 30.0
# A draining server has at most one batch left, which ends within this time.
DRAIN_TIMEOUT_S = 120.0
# ZooKeeper still lists a killed server for this long, and tasks wait for that server meanwhile.
SESSION_S = 4.0


class DemoServers:
    """All servers of a run, by number. A strike is a fault that happens once. ``hits`` maps each strike on servers to
    the function that carries it out. ``say`` is called with messages about what happened."""

    def __init__(self, folder: Path, count: int, say: Callable[[str], None]) -> None:
        self._folder, self._count, self._say = folder, count, say
        self._zookeeper: ZooKeeperProcess | None = None
        self._servers: dict[int, Child] = {}
        self._addresses: dict[int, str] = {}
        # A drain ends when the batches of the server have ended. The job goes on meanwhile.
        self._draining: dict[int, Child] = {}
        self._starts = 0
        self.hits: Mapping[Strike, Callable[[], None]] = {
            Strike.SERVER_RESTARTED: self._restart_all,
            Strike.SERVER_LOST: self._lose,
            Strike.ONE_KILLED: self._kill_one,
            Strike.ONE_ADDED: self._add_server,
            Strike.ONE_DRAINED: self._drain_one,
            Strike.ALL_RESTARTED: self._restart_all,
        }

    @property
    def address(self) -> str:
        """The value for ``spark.acker.servers``."""
        return ",".join(self._addresses.values())

    def start(self) -> None:
        """Start ZooKeeper if there are several servers, then the servers side by side. Raises ``DemoError``."""
        self._folder.mkdir()
        try:
            if self._count > 1:
                self._zookeeper = ZooKeeperProcess(self._folder)
            for number in range(self._count):
                self._start_server(number)
            for number in self._servers:
                self._await_ready(number)
        except (ImportError, RuntimeError) as error:
            raise DemoError(str(error)) from None

    def stop(self) -> None:
        """Kill all servers. The job is over, so their state is not needed."""
        for server in (*self._servers.values(), *self._draining.values()):
            server.kill()
        if self._zookeeper is not None:
            self._zookeeper.kill()

    def _start_server(self, number: int) -> None:
        self._starts += 1
        folder = self._folder / f"{self._starts}-server-{number}"
        folder.mkdir()
        port = self._addresses.get(number, ":0").rpartition(":")[2]
        flags = [f"--port={port}", f"--id={number}", f"--state-dir={self._folder / f'state-{number}'}"]
        if self._zookeeper is not None:
            flags += [f"--zookeeper={self._zookeeper.address}/demo", f"--zookeeper-session-s={SESSION_S:g}"]
        self._servers[number] = Child(folder, *flags)

    def _await_ready(self, number: int) -> None:
        self._addresses[number] = self._servers[number].await_ready()

    def _lose(self) -> None:
        """Kill the server, delete its state, and start another one in its place."""
        self._servers[0].kill()
        shutil.rmtree(self._folder / "state-0", ignore_errors=True)
        self._start_server(0)
        self._await_ready(0)

    def _kill_one(self) -> None:
        number, server = self._take_one()
        server.kill()
        self._say(f"server {number} is dead; {self._server_ids()} go on")

    def _add_server(self) -> None:
        self._start_server(self._count)
        self._await_ready(self._count)
        self._say(f"server {self._count} has joined; {self._server_ids()} serve")

    def _drain_one(self) -> None:
        number, server = self._take_one()
        self._draining[number] = server
        with closing(GrpcTransport(server.address)) as transport:
            transport.drain(STOP_TIMEOUT_S)
        self._say(f"server {number} takes no new batches; {self._server_ids()} still do")

    def _restart_all(self) -> None:
        for number, server in self._draining.items():
            _check(number, server.wait(DRAIN_TIMEOUT_S))
            self._say(f"server {number}, which drained, has ended by itself")
        for number, server in list(self._servers.items()):
            # SIGTERM, so that it writes its state.
            _check(number, server.terminate(STOP_TIMEOUT_S))
            self._start_server(number)
            self._await_ready(number)
            self._say(f"server {number} is back with its state")

    def _take_one(self) -> tuple[int, Child]:
        number = min(self._servers)
        return number, self._servers.pop(number)

    def _server_ids(self) -> str:
        return " and ".join(map(str, sorted(self._servers)))


def _check(number: int, status: int) -> None:
    if status:
        raise DemoError(f"server {number} ended with status {status}")
