"""Fixtures: real servers on free loopback ports, in this process or in one of their own."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings

from acker_testing import standstill

# gRPC reports each connection that a server closes, which tests do on purpose.
os.environ.setdefault("GRPC_VERBOSITY", "NONE")

# No deadlines: a busy machine says nothing about the code. CI tries the same examples each time, so that only a change
# of the code changes the result. On a developer's machine every run tries other examples.
settings.register_profile("acker", deadline=None, derandomize="CI" in os.environ)
settings.load_profile("acker")

START_S = 60.0
ROOT = Path(__file__).resolve().parent.parent
# Fixtures that start Spark, ZooKeeper or Kafka.
STARTS_JVM = {"spark", "zookeeper_process", "bench", "real_kafka"}
# Fixtures that start servers as processes of their own.
STARTS_SERVER = {"server_process", "server_process_of_module", "lasting_server"}
PATHS = [str(ROOT / folder) for folder in ("proto", "client", "command", ".")]


# The number of the day, set by `make test-long`: each of three days runs a third of the long tests. Unset, all run.
DAY = os.environ.get("TESTS_OF_DAY", "")


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Mark tests ``jvm`` or ``process`` by their fixtures.

    Also add the mark ``long`` to most cases of a test with ``sampled(n)``: `make test` runs only every n-th case.
    """
    cases: dict[str, int] = {}
    for item in items:
        for fixtures, mark in ((STARTS_JVM, pytest.mark.jvm), (STARTS_SERVER, pytest.mark.process)):
            if fixtures.intersection(getattr(item, "fixturenames", ())):
                item.add_marker(mark)
        sampled = item.get_closest_marker("sampled")
        if sampled is None:
            continue
        test = item.nodeid.partition("[")[0]
        at = cases[test] = cases.get(test, -1) + 1
        if at % sampled.args[0]:
            item.add_marker(pytest.mark.long)
    if DAY:
        long = [item for item in items if item.get_closest_marker("long")]
        of_another_day = {item for at, item in enumerate(long) if at % 3 != int(DAY) % 3}
        config.hook.pytest_deselected(items=of_another_day)
        items[:] = [item for item in items if item not in of_another_day]


@pytest.fixture
def start_server() -> Iterator[Callable[..., Any]]:
    """Return a function that starts a server in this process. Keywords are options of Config: ``max_pending=10``.

    It gives an ``acker_service.server.Server``: ``.address`` ("127.0.0.1:port"), ``.http_address``, ``.shard`` and
    ``.stop()``, which may be called more than once.
    """
    # These imports are not at the top: tests of a base install load this file, and a base install lacks the service's
    # packages.
    from acker_service.config import Config
    from acker_service.server import Server

    servers: list[Server] = []

    def start(**options: Any) -> Server:
        server = Server(Config(**{"port": 0, "http_port": None, "grace_s": 1.0, **options}))
        server.start()
        servers.append(server)
        return server

    yield start
    for server in servers:
        server.stop(grace_s=0.0)


@pytest.fixture
def server(start_server: Callable[..., Any]) -> Any:
    """A running server in this process, with its defaults."""
    return start_server()


class ServerProcess:
    """``python -m acker_service serve`` as a process of its own. ``address`` stays the same over restarts."""

    def __init__(self, folder: Path, *flags: str, port: int = 0) -> None:
        self._folder = folder
        self._ready = folder / "ready.json"
        self.flags = flags
        self.port = port
        self.http_address: str | None = None
        self.start()

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def log(self) -> str:
        """The log of all runs of the server."""
        return (self._folder / "server.log").read_text()

    def start(self) -> None:
        """Start the server, and return when it serves."""
        self._ready.unlink(missing_ok=True)
        command = [sys.executable, "-m", "acker_service", "serve", f"--port={self.port}", "--http-port=0"]
        command += ["--ready-file", str(self._ready), "--log-format=json", *self.flags]
        environment = {key: text for key, text in os.environ.items() if not key.startswith("ACKER_")}
        environment["PYTHONPATH"] = os.pathsep.join([*PATHS, *filter(None, [environment.get("PYTHONPATH")])])
        with open(self._folder / "server.log", "ab") as log:
            self._process = subprocess.Popen(command, stderr=log, env=environment)
        ready = self._await_ready()
        self.port = int(ready["address"].rpartition(":")[2])
        self.http_address = ready["http_address"]

    def terminate(self) -> int:
        """Send SIGTERM, so that the server drains and writes its state. Returns the exit status."""
        self._process.terminate()
        return self.wait()

    def wait(self) -> int:
        """Wait until the server has ended by itself. Returns the exit status."""
        return self._process.wait(START_S)

    def kill(self) -> None:
        """Send SIGKILL."""
        self._process.kill()
        self._process.wait(START_S)

    def pause(self) -> None:
        """Stop the process (SIGSTOP): it answers nothing until :meth:`resume`."""
        standstill.stop_child(self._process)

    def resume(self) -> None:
        """Send SIGCONT."""
        self._process.send_signal(signal.SIGCONT)

    def restart(self, *flags: str, kill: bool = False) -> None:
        """Stop (or kill) the server and start it again on the same port. New ``flags`` replace the earlier ones."""
        if kill:
            self.kill()
        else:
            self.terminate()
        self.flags = flags or self.flags
        self.start()

    def close(self) -> None:
        """Kill the server if it still runs."""
        if self._process.poll() is None:
            self.resume()
            self.kill()

    def _await_ready(self) -> dict[str, Any]:
        deadline = time.monotonic() + START_S
        while not self._ready.exists():
            if self._process.poll() is not None or time.monotonic() > deadline:
                self.close()
                raise AssertionError(f"the server did not start:\n{self.log}")
            time.sleep(0.01)
        ready: dict[str, Any] = json.loads(self._ready.read_text())
        return ready


@pytest.fixture
def server_process(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[..., ServerProcess]]:
    """Return a function that starts a :class:`ServerProcess` with flags: ``server_process("--max-pending=10")``."""
    yield from _server_processes(tmp_path_factory)


@pytest.fixture(scope="module")
def server_process_of_module(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[..., ServerProcess]]:
    """Return ``server_process`` for servers that all tests of a module share."""
    yield from _server_processes(tmp_path_factory)


@pytest.fixture(scope="session")
def lasting_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """One server process with its defaults, shared by all tests. Each test uses sessions of its own."""
    process = ServerProcess(tmp_path_factory.mktemp("server"))
    yield process
    process.close()


@pytest.fixture(scope="session")
def zookeeper_process(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """A real ZooKeeper for all tests, at ``.address``. A test that kills or stops it must start it again."""
    from acker_testing import ZooKeeperProcess

    process = ZooKeeperProcess(tmp_path_factory.mktemp("zookeeper"))
    yield process
    process.kill()


@pytest.fixture
def zookeeper(zookeeper_process: Any) -> str:
    """Return a value for ``--zookeeper``: a chroot of this test's own."""
    return f"{zookeeper_process.address}/acker-{uuid.uuid4().hex}"


@pytest.fixture
def nodes(zookeeper: str) -> Iterator[Any]:
    """A kazoo client at this test's chroot."""
    from kazoo.client import KazooClient

    client = KazooClient(zookeeper.partition("/")[0], timeout=5.0)
    client.start()
    root = "/" + zookeeper.partition("/")[2]
    client.ensure_path(root)
    client.chroot = root
    yield client
    client.stop()
    client.close()


def _server_processes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[..., ServerProcess]]:
    processes: list[ServerProcess] = []

    def start(*flags: str, port: int = 0) -> ServerProcess:
        process = ServerProcess(tmp_path_factory.mktemp("server"), *flags, port=port)
        processes.append(process)
        return process

    yield start
    for process in processes:
        process.close()


@pytest.fixture(scope="session")
def kafka() -> Iterator[Any]:
    """A ``MockKafka`` for all tests of this process. Each test creates topics of its own."""
    # This import is not at the top, since most tests run without the extra [kafka].
    from tests.source.kafka_broker import MockKafka

    with MockKafka() as cluster:
        yield cluster
