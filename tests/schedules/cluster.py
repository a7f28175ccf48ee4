"""Cluster: real servers as processes, and the process that servers and clients are forked from.

A forked server equals ``python -m acker_service serve``, but saves the seconds in which Python loads its modules.
"""

from __future__ import annotations

import multiprocessing
import os
import random
import shutil
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterable
from multiprocessing.process import parent_process
from pathlib import Path
from typing import Any

from acker_testing import ZooKeeperProcess
from acker_testing.child import Child, python_path
from tests.faults.servers import SESSION_S, Servers

LOADED = ("acker_service.server", "acker_client", "grpc", "tests.schedules.worker")
# Below the range of ephemeral ports.
PORTS = range(12_000, 30_000)
STARTS_MAX = 5

FORKS = multiprocessing.get_context("forkserver")


def load() -> None:
    """Preload modules in the process from which all others are forked."""
    os.environ["PYTHONPATH"] = python_path()
    FORKS.set_forkserver_preload(list(LOADED))


def end_with_parent() -> None:
    """Kill this process when its parent ends, for whatever reason."""
    parent = parent_process()
    assert parent is not None

    def wait() -> None:
        parent.join()
        os.kill(os.getpid(), signal.SIGKILL)

    threading.Thread(target=wait, daemon=True).start()


def log_to(path: Path) -> None:
    """Redirect stdout and stderr of this process to a file."""
    log = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(log, 1)
    os.dup2(log, 2)


def serve(folder: Path, flags: list[str]) -> None:
    """Run a server. Entry point of a server's process."""
    log_to(folder / "server.log")
    end_with_parent()
    for name in [name for name in os.environ if name.startswith("ACKER_")]:
        del os.environ[name]
    from acker_service.__main__ import main

    sys.exit(main(["serve", *flags]))


class Forked:
    """A forked process with the part of the interface of :class:`subprocess.Popen` that is needed here."""

    stdin = None

    def __init__(self, run: Callable[..., None], *given: Any) -> None:
        self._process = FORKS.Process(target=run, args=given, daemon=True)
        self._process.start()

    @property
    def pid(self) -> int:
        assert self._process.pid is not None
        return self._process.pid

    def poll(self) -> int | None:
        return self._process.exitcode

    def wait(self, timeout_s: float | None = None) -> int | None:
        self._process.join(timeout_s)
        if self._process.exitcode is None:
            raise subprocess.TimeoutExpired("a forked process", timeout_s or 0.0)
        return self._process.exitcode

    def kill(self) -> None:
        self._process.kill()

    def terminate(self) -> None:
        self._process.terminate()

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)


class ForkedServer(Child):
    def __init__(self, folder: Path, *flags: str) -> None:
        self.address = ""
        self._ready = folder / "ready.json"
        self._log = folder / "server.log"
        given = ["--http-port=off", f"--ready-file={self._ready}", "--drain-s=3600", *flags]
        process: Any = Forked(serve, folder, given)
        self._process = process


class Cluster(Servers):
    """Servers with a ZooKeeper. A server keeps its port, state directory and id over restarts."""

    def __init__(self, folder: Path, zookeeper: str, ids: Iterable[int]) -> None:
        super().__init__(folder, zookeeper)
        self._reserved = {id: _reserved() for id in ids}
        self.addresses = {id: f"127.0.0.1:{port.getsockname()[1]}" for id, port in self._reserved.items()}

    def start(self, *ids: int) -> None:
        """Start servers concurrently, and return when all of them serve. Retry those that find no ZooKeeper in time."""
        for id in ids:
            self._children[id] = self._begin(id)
        for id in ids:
            for tries_left in reversed(range(STARTS_MAX)):
                try:
                    self._children[id].await_ready()
                    break
                except RuntimeError as error:
                    if not tries_left or "no ZooKeeper answered" not in str(error):
                        raise
                    self._children[id] = self._begin(id)

    def restart(self, id: int) -> None:
        """Do a planned restart that keeps the state."""
        self.stop(id)
        self.start(id)

    def stop(self, id: int) -> None:
        """Do a planned stop that keeps the state."""
        status = self._children.pop(id).terminate()
        if status:
            raise RuntimeError(f"server {id} ended with {status} at a planned stop")

    def close(self) -> None:
        super().close()
        for port in self._reserved.values():
            port.close()

    def _begin(self, id: int) -> Child:
        self._starts += 1
        folder = self._folder / f"{self._starts}-server-{id}"
        folder.mkdir()
        return ForkedServer(
            folder,
            f"--port={self.addresses[id].rpartition(':')[2]}",
            f"--id={id}",
            f"--state-dir={self._folder / str(id)}",
            f"--zookeeper={self.zookeeper}",
            f"--zookeeper-session-s={SESSION_S}",
        )


class Zoo(ZooKeeperProcess):
    def empty(self) -> None:
        """Restart it without its data."""
        self.kill()
        shutil.rmtree(self._folder / "data")
        self.start()


def _reserved() -> socket.socket:
    """Reserve a port for a server. While the returned socket is open, no other process gets this port as a free one.

    A server can still listen on the port, because the socket has SO_REUSEADDR and does not listen.
    """
    while True:
        taken = socket.socket()
        try:
            taken.bind(("127.0.0.1", random.choice(PORTS)))
        except OSError:
            taken.close()
        else:
            taken.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            return taken
