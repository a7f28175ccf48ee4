"""Embedded server: the acker of an application that names no server, as a child process of the driver.

Decides when the server starts (when the driver first asks for it), where it listens, and how long it lives: as long as
the SparkContext. The server reads a pipe from this process, so it ends even if this process is killed. If the server
dies, another one takes its place at the same address, with the same access: tasks go on, and what was pending is
replayed.

The child is started by ``subprocess``, which neither runs gRPC's fork handlers nor needs gRPC in the driver.
"""

from __future__ import annotations

import json
import logging
import os
import selectors
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections import deque
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pyspark import SparkContext

from acker_client.settings import read_access_file

# All bounds of the server follow from this limit. It uses far less unless many records are pending.
MEMORY = "1GiB"
# Includes the time to compile the server's kernels on a slow machine, once for each user and version.
START_S = 180.0
PAUSE_S = 0.02
# How often the server's thread checks whether the SparkContext was stopped.
LOOK_S = 0.5
END_S = 5.0
READ_BYTES = 1 << 16
# Lines of the server's log that an error may name.
LINES = 20

log = logging.getLogger("acker_client")

_lock = threading.Lock()
_server: EmbeddedServer | None = None


class NotStarted(Exception):
    """The embedded server does not start; the text says why."""


def reach(context: SparkContext) -> dict[str, Any]:
    """Return the settings ``servers``, ``token`` and ``tls`` of the application's own server. Starts it if needed.

    Thread-safe. Raises :class:`NotStarted`."""
    global _server  # noqa: PLW0603  # one SparkContext in a process, one server
    with _lock:
        if _server is None or not _server.serves(context):
            if _server is not None:
                _server.end()
            _server = EmbeddedServer(context)
        return _server.settings


class EmbeddedServer:
    """The server of one SparkContext. ``settings``: how clients reach it."""

    def __init__(self, context: SparkContext) -> None:
        """Start the server, and wait until it serves. Raises :class:`NotStarted`."""
        self._context = context
        self._directory = Path(tempfile.mkdtemp(prefix="acker-"))
        self._access = self._directory / "access.json"
        self._host, self._bind_address = _place_of(context)
        self._port, self._http_port = 0, 0
        self._is_ended = False
        self._process: subprocess.Popen[bytes] | None = None
        # The latest process that has served. The access file does not show that: somebody may have removed it.
        self._ready: subprocess.Popen[bytes] | None = None
        self._lines: deque[str] = deque(maxlen=LINES)
        try:
            self._start()
        except BaseException:
            self.end()
            raise
        log.info(
            "no acker server is named, so this application has its own: %s, with metrics at http://%s:%s/metrics. It "
            "ends with the Spark session. To use another, set spark.acker.servers or ACKER_SERVERS",
            ", ".join(self.settings["servers"]),
            self._host,
            self._http_port,
        )

    def serves(self, context: SparkContext) -> bool:
        """Whether the server serves this SparkContext, and has not ended for good."""
        return self._context is context and not self._is_ended

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    def end(self) -> None:
        """End the server at once. Its state is not kept: the next driver replays from its checkpoint."""
        self._is_ended = True
        if self._process is not None:
            _end(self._process)
        shutil.rmtree(self._directory, ignore_errors=True)

    def _start(self) -> None:
        try:
            self._access.unlink(missing_ok=True)
            self._process = process = _new_process(self._flags())
        except OSError as error:
            raise NotStarted(f"the acker server of this application did not start: {error}") from None
        if self._is_ended:  # meanwhile, and this process was not there yet
            self.end()
        watching = threading.Thread(target=self._watch, args=(process,), name="acker-embedded", daemon=True)
        watching.start()
        deadline = time.monotonic() + START_S
        while not self._access.exists():
            if process.poll() is not None or time.monotonic() > deadline:
                watching.join(END_S)  # reads why
                raise NotStarted(f"the acker server of this application did not start: {self._reason()}")
            time.sleep(PAUSE_S)
        found = json.loads(self._access.read_text())
        self._port, self._http_port = (int(found[name].rpartition(":")[2]) for name in ("address", "http_address"))
        # The same after a restart, unless somebody has removed the directory.
        self.settings = read_access_file(self._access)
        self._ready = process

    def _flags(self) -> list[str]:
        return [
            f"--host={self._bind_address}",
            f"--advertise={self._host}:0",
            f"--port={self._port}",
            f"--http-port={self._http_port}",
            f"--own-access={self._directory}",
            "--until-stdin-ends",
            f"--max-memory={MEMORY}",
            "--log-level=warning",
        ]

    def _watch(self, process: subprocess.Popen[bytes]) -> None:
        """Pass on the log of one process until it ends. End the server with the SparkContext, or start it again."""
        assert process.stderr is not None
        # Not `select`, which takes no descriptors from 1024 on.
        with process.stderr, selectors.DefaultSelector() as selector:
            selector.register(process.stderr, selectors.EVENT_READ)
            while True:
                if self._context._jsc is None and not self._is_ended:
                    self.end()
                if not selector.select(LOOK_S):
                    continue
                lines = os.read(process.stderr.fileno(), READ_BYTES)
                if not lines:
                    break
                self._pass_on(lines.decode(errors="replace").splitlines())
        status = process.wait()
        was_ready = process is self._ready or self._access.exists()
        if self._is_ended or process is not self._process or not was_ready:
            return
        log.warning(
            "the acker server of this application ended with status %s: it is started again, and what was pending is "
            "replayed",
            status,
        )
        try:
            self._start()
        except Exception as error:  # noqa: BLE001  # after any of them `end` lets the next run start another server
            if not self._is_ended:
                log.error("%s", error)  # noqa: TRY400  # no traceback: the text says why
                self.end()

    def _pass_on(self, lines: list[str]) -> None:
        self._lines += lines
        for line in lines:
            log.warning("embedded acker server: %s", line)

    def _reason(self) -> str:
        said = [line.removeprefix("acker serve: ") for line in self._lines if line.strip()]
        return said[-1] if said else f"it ended, or was not ready within {START_S:g} s, and has said nothing"


def _new_process(flags: Sequence[str]) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, "-P", "-m", "acker_service", "serve", *flags],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        env=_environment(),
        # Ctrl-C must reach only the driver, which then ends the server.
        start_new_session=True,
    )


def _end(process: subprocess.Popen[bytes]) -> None:
    if process.stdin is not None:
        process.stdin.close()
    try:
        process.wait(END_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def _place_of(context: SparkContext) -> tuple[str, str]:
    """Return the host at which tasks reach the driver, and the address to listen on."""
    master = str(context.master)
    if master == "local" or master.startswith("local["):
        return "127.0.0.1", "127.0.0.1"
    host = context._conf.get("spark.driver.host") or "127.0.0.1"
    return host, context._conf.get("spark.driver.bindAddress") or host


def _environment() -> dict[str, str]:
    """Return the environment of the server, which finds the modules that this process finds."""
    # ACKER_ variables are meant for other servers.
    environment = {name: text for name, text in os.environ.items() if not name.startswith("ACKER_")}
    environment["PYTHONPATH"] = os.pathsep.join(dict.fromkeys(os.path.abspath(path) for path in sys.path if path))
    return environment
