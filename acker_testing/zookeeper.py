"""ZooKeeper: a real ZooKeeper process on this machine. ZooKeeper ends with the process that started it.

Decides how ZooKeeper is started, awaited, ended, and restarted with its data. It runs from the jars of PySpark, so it
needs the extra `spark` and Java 17 or newer (JAVA_HOME, or on PATH).
"""

from __future__ import annotations

import importlib.util
import os
import shutil
import signal
import socket
import subprocess
import time
from pathlib import Path

from acker_client.extras import missing
from acker_testing import standstill

START_S = 30.0
PAUSE_S = 0.02
# ZooKeeper's tick. The shortest session is two ticks.
TICK_MS = 250
SESSION_MAX_MS = 60_000
# The jars of PySpark that ZooKeeper needs. With all jars the start takes three times as long.
JARS = ("zookeeper-*.jar", "slf4j-api-*.jar", "netty-*.jar", "metrics-core-*.jar", "snappy-java-*.jar")
# Prints ZooKeeper's process id, and kills ZooKeeper when the standard input ends: the parent process closes it or dies.
_PROGRAM = (
    '"$@" </dev/null >>"$ACKER_ZOOKEEPER_LOG" 2>&1 & echo $!; exec >&-; cat >/dev/null; kill -9 $! 2>/dev/null; wait'
)


class ZooKeeperProcess:
    """A running ZooKeeper: ``address`` is "127.0.0.1:port" and stays the same over restarts."""

    def __init__(self, folder: Path) -> None:
        """Start ZooKeeper, and return when it serves. ``folder``: for data and log. ImportError without PySpark."""
        self._folder, self._port = folder, _free_port()
        self._command = [_java(), "-Xmx128m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1"]
        self._command += ["-Dzookeeper.forceSync=no", "-cp", _class_path()]
        self._command += ["org.apache.zookeeper.server.quorum.QuorumPeerMain", str(self._configuration())]
        self.start()

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self._port}"

    def start(self) -> None:
        """Start ZooKeeper with its present data, and return when it serves."""
        log = self._folder / "zookeeper.log"
        self._guard = subprocess.Popen(
            ["sh", "-c", _PROGRAM, "sh", *self._command],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={**os.environ, "ACKER_ZOOKEEPER_LOG": str(log)},
        )
        assert self._guard.stdout is not None
        with self._guard.stdout as output:
            self.pid = int(output.readline())
        deadline = time.monotonic() + START_S
        while not self._serves():
            if not _runs(self.pid) or time.monotonic() > deadline:
                self.kill()
                raise RuntimeError(f"ZooKeeper did not start within {START_S:g} s: {log.read_text(errors='replace')}")
            time.sleep(PAUSE_S)

    def kill(self) -> None:
        """End ZooKeeper at once. Its data stays on disk."""
        if self._guard.stdin is not None:
            self._guard.stdin.close()
        self._guard.wait()

    def restart(self) -> None:
        self.kill()
        self.start()

    def empty(self) -> None:
        """Restart ZooKeeper without its data, like an ensemble that has lost its disks."""
        self.kill()
        shutil.rmtree(self._folder / "data")
        self.start()

    def stop(self) -> None:
        """Send SIGSTOP. ZooKeeper answers nothing until :meth:`cont`."""
        standstill.stop(self.pid)

    def cont(self) -> None:
        os.kill(self.pid, signal.SIGCONT)

    def _configuration(self) -> Path:
        path = self._folder / "zoo.cfg"
        lines = {
            "dataDir": self._folder / "data",
            "clientPort": self._port,
            "clientPortAddress": "127.0.0.1",
            "tickTime": TICK_MS,
            "maxSessionTimeout": SESSION_MAX_MS,
            "maxClientCnxns": 0,
            "admin.enableServer": "false",
            "4lw.commands.whitelist": "ruok",
        }
        path.write_text("".join(f"{name}={value}\n" for name, value in lines.items()))
        return path

    def _serves(self) -> bool:
        try:
            with socket.create_connection(("127.0.0.1", self._port), timeout=1) as connection:
                connection.sendall(b"ruok")
                return connection.recv(4) == b"imok"
        except OSError:
            return False


def _class_path() -> str:
    found = importlib.util.find_spec("pyspark")
    if found is None or found.origin is None:
        raise missing("acker_testing.ZooKeeperProcess", "spark", ImportError("no module", name="pyspark"))
    jars = Path(found.origin).parent / "jars"
    return os.pathsep.join(str(jar) for pattern in JARS for jar in sorted(jars.glob(pattern)))


def _java() -> str:
    home = os.environ.get("JAVA_HOME")
    java = shutil.which("java", path=f"{home}/bin") if home else shutil.which("java")
    if java is None:
        raise RuntimeError("ZooKeeper needs Java 17 or newer: set JAVA_HOME, or put java on PATH")
    return java


def _free_port() -> int:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        return int(taken.getsockname()[1])


def _runs(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True
