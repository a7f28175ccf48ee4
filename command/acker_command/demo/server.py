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
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Protocol

from acker_client.errors import AckerError
from acker_client.members.transport import GrpcTransport
from acker_command.demo.errors import DemoError
from acker_command.demo.faults import Strike
from acker_testing import ZooKeeperProcess

START_TIMEOUT_S = 60.0
STOP_TIMEOUT_S = 30.0
LOG_TAIL_LINES = 8
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
        self.folder.mkdir(parents=True, exist_ok=True)
        self._ready.unlink(missing_ok=True)
        with open(self.folder / "server.log", "ab") as log:
            self._process = self._spawn(log)
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
        """Ask it to take nothing new, and wait until it has served what it has and gone."""
        transport = GrpcTransport(self.address)
        try:
            transport.drain(STOP_TIMEOUT_S)
        except AckerError as error:
            raise DemoError(f"the server does not drain: {error}") from None
        finally:
            transport.close()
        if self._process is not None:
            self._process.wait()
            self._process = None

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
    """Several servers under a ZooKeeper of their own. ``falls`` come one after the other, in the order of the demo."""

    def __init__(self, folder: Path, count: int) -> None:
        self._folder, self._count = folder, count
        self._zookeeper: ZooKeeperProcess | None = None
        self._servers: dict[int, ServerProcess] = {}
        self._seeds = ""
        # A drain ends when the batches of the server have; the job goes on meanwhile.
        self._draining: list[threading.Thread] = []

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
        """Start ZooKeeper and the servers. Raises :class:`DemoError`."""
        self._folder.mkdir(parents=True, exist_ok=True)
        try:
            self._zookeeper = ZooKeeperProcess(self._folder)
        except RuntimeError as error:
            raise DemoError(str(error)) from None
        for number in range(self._count):
            self._start(number)
        self._seeds = ",".join(server.address for server in self._servers.values())

    def stop(self) -> None:
        """SIGTERM to each, and wait; ZooKeeper last."""
        for thread in self._draining:
            thread.join(STOP_TIMEOUT_S)
        for server in self._servers.values():
            server.stop()
        if self._zookeeper is not None:
            self._zookeeper.kill()

    def _start(self, number: int) -> None:
        assert self._zookeeper is not None
        flags = (
            f"--zookeeper={self._zookeeper.address}/demo",
            f"--id={number}",
            f"--zookeeper-session-s={SESSION_S:g}",
        )
        server = self._servers[number] = ServerProcess(self._folder / f"server-{number}", flags)
        server.start()

    def _kill_one(self) -> None:
        self._servers.pop(min(self._servers)).kill()

    def _add(self) -> None:
        self._start(self._count)

    def _drain_one(self) -> None:
        server = self._servers.pop(min(self._servers))
        thread = threading.Thread(target=server.drain, name="drain", daemon=True)
        thread.start()
        self._draining.append(thread)

    def _restart_all(self) -> None:
        for server in self._servers.values():
            server.restart()
