"""Server: real ones, each in a process of its own, and the ways in which the demo takes them away.

Decides how they are started (loopback, a free port that each keeps, a state directory; several of them under a real
ZooKeeper) and waits for their ready files. Speaks to one only to have it drain: all else is what the client is for.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Protocol

from acker_client.errors import AckerError
from acker_client.rpc.transport import GrpcTransport
from acker_command.demo.errors import DemoError
from acker_command.demo.faults import Strike
from acker_testing import ZooKeeperProcess

START_TIMEOUT_S = 60.0
STOP_TIMEOUT_S = 30.0
LOG_TAIL_LINES = 8
# What a server that drains has left, a batch at most, is over by then.
DRAIN_TIMEOUT_S = 120.0
# How long ZooKeeper believes a killed server to be there: so long tasks wait for it.
SESSION_S = 4.0


class DemoServers(Protocol):
    """What the job runs against. ``falls``: how each strike falls on it."""

    @property
    def falls(self) -> Mapping[Strike, Callable[[], None]]: ...

    @property
    def address(self) -> str:
        """For ``spark.acker.servers``."""
        ...

    def start(self) -> None: ...
    def stop(self) -> None: ...


@dataclass(slots=True)
class ServerProcess:
    """One server at a time, at one address. ``folder`` holds its state, its log and its ready file; ``flags``: more of
    ``acker serve``."""

    folder: Path
    flags: tuple[str, ...] = ()
    address: str = ""
    _process: subprocess.Popen[bytes] | None = field(default=None, init=False)

    def start(self) -> None:
        """Start and wait until it serves. Raises :class:`DemoError` with the end of its log if it does not."""
        self.begin()
        self.await_ready()

    def begin(self) -> None:
        """Start it, without waiting."""
        self.folder.mkdir(parents=True, exist_ok=True)
        self._ready.unlink(missing_ok=True)
        with open(self.folder / "server.log", "ab") as log:
            self._process = self._spawn(log)

    def await_ready(self) -> None:
        """Wait until it serves. Raises :class:`DemoError`."""
        assert self._process is not None
        deadline = time.monotonic() + START_TIMEOUT_S
        while not self._ready.exists():
            if self._process.poll() is not None or time.monotonic() > deadline:
                self.kill()
                raise DemoError(f"the server did not start; the end of its log:\n{self._log_tail()}")
            time.sleep(0.02)
        self.address = str(json.loads(self._ready.read_text())["address"])

    @property
    def falls(self) -> Mapping[Strike, Callable[[], None]]:
        return {Strike.SERVER_RESTARTED: self.restart, Strike.SERVER_LOST: self.lose}

    def restart(self) -> None:
        """Stop it as one does (SIGTERM: it writes its state) and start it again."""
        self.stop()
        self.start()

    def lose(self) -> None:
        """Kill it (SIGKILL), throw away whatever state there is, and start another one in its place."""
        self.kill()
        shutil.rmtree(self._state, ignore_errors=True)
        self.start()

    def stop(self) -> None:
        """SIGTERM, and wait."""
        if self._process is None:
            return
        self._process.terminate()
        try:
            self._process.wait(STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self.kill()
            raise DemoError(f"the server did not stop within {STOP_TIMEOUT_S:g} s of SIGTERM") from None
        self._process = None

    def drain(self) -> None:
        """Ask it to take nothing new, to serve what it has, and then to go. Raises :class:`DemoError`."""
        transport = GrpcTransport(self.address)
        try:
            transport.drain(STOP_TIMEOUT_S)
        except AckerError as error:
            raise DemoError(f"the server does not drain: {error}") from None
        finally:
            transport.close()

    def await_end(self) -> None:
        """Wait until it has gone by itself. Raises :class:`DemoError`."""
        if self._process is None:
            return
        try:
            status = self._process.wait(DRAIN_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            raise DemoError(f"the server still drains after {DRAIN_TIMEOUT_S:g} s:\n{self._log_tail()}") from None
        self._process = None
        if status:
            raise DemoError(f"the server that drained ended with status {status}:\n{self._log_tail()}")

    def kill(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None

    @property
    def _ready(self) -> Path:
        return self.folder / "ready.json"

    @property
    def _state(self) -> Path:
        return self.folder / "state"

    def _spawn(self, log: IO[bytes]) -> subprocess.Popen[bytes]:
        port = self.address.rpartition(":")[2] or "0"
        command = [sys.executable, "-m", "acker_service", "serve", "--port", port, "--http-port", "off"]
        command += ["--state-dir", str(self._state), "--ready-file", str(self._ready), *self.flags]
        environment = {name: value for name, value in os.environ.items() if not name.startswith("ACKER_")}
        # A session of its own: Ctrl-C is for the demo, which then stops the server.
        return subprocess.Popen(command, stdout=log, stderr=log, env=environment, start_new_session=True)

    def _log_tail(self) -> str:
        lines = (self.folder / "server.log").read_text(errors="replace").splitlines()
        return "\n".join(lines[-LOG_TAIL_LINES:])


class ServerCluster:
    """Several servers under a ZooKeeper of their own. ``falls`` come one after the other, in the order of the demo;
    ``say`` takes a line on what each has come to."""

    def __init__(self, folder: Path, count: int, say: Callable[[str], None]) -> None:
        self._folder, self._count, self._say = folder, count, say
        self._zookeeper: ZooKeeperProcess | None = None
        self._servers: dict[int, ServerProcess] = {}
        # A drain ends when the batches of the server have; the job goes on meanwhile.
        self._draining: dict[int, ServerProcess] = {}
        self._seeds = ""

    @property
    def falls(self) -> Mapping[Strike, Callable[[], None]]:
        return {
            Strike.ONE_KILLED: self._kill_one,
            Strike.ONE_ADDED: self._add,
            Strike.ONE_DRAINED: self._drain_one,
            Strike.ALL_RESTARTED: self._restart_all,
        }

    @property
    def address(self) -> str:
        return self._seeds

    def start(self) -> None:
        """Start ZooKeeper, and then the servers side by side. Raises :class:`DemoError`."""
        self._folder.mkdir(parents=True, exist_ok=True)
        try:
            self._zookeeper = ZooKeeperProcess(self._folder)
        except (ImportError, RuntimeError) as error:
            raise DemoError(str(error)) from None
        for number in range(self._count):
            self._begin(number)
        for server in self._servers.values():
            server.await_ready()
        self._seeds = ",".join(server.address for server in self._servers.values())

    def stop(self) -> None:
        """End them all; the job is over, and what they know is needed no more."""
        for server in (*self._servers.values(), *self._draining.values()):
            server.kill()
        if self._zookeeper is not None:
            self._zookeeper.kill()

    def _begin(self, number: int) -> ServerProcess:
        assert self._zookeeper is not None
        flags = (
            f"--zookeeper={self._zookeeper.address}/demo",
            f"--id={number}",
            f"--zookeeper-session-s={SESSION_S:g}",
        )
        server = self._servers[number] = ServerProcess(self._folder / f"server-{number}", flags)
        server.begin()
        return server

    def _kill_one(self) -> None:
        number, server = self._take_one()
        server.kill()
        self._say(f"server {number} is dead; {self._listed()} go on")

    def _add(self) -> None:
        self._begin(self._count).await_ready()
        self._say(f"server {self._count} has joined; {self._listed()} serve")

    def _drain_one(self) -> None:
        number, server = self._take_one()
        self._draining[number] = server
        server.drain()
        self._say(f"server {number} takes nothing new; {self._listed()} do")

    def _restart_all(self) -> None:
        for number, server in self._draining.items():
            server.await_end()
            self._say(f"server {number}, which drained, has ended by itself")
        for number, server in self._servers.items():
            server.restart()
            self._say(f"server {number} is back with its state")

    def _take_one(self) -> tuple[int, ServerProcess]:
        number = min(self._servers)
        return number, self._servers.pop(number)

    def _listed(self) -> str:
        return " and ".join(map(str, sorted(self._servers)))
