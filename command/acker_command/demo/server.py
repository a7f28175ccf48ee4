"""Server: the real one, in a process of its own, and the two ways in which the demo takes it away.

Decides how it is started (loopback, a free port that it keeps, a state directory) and waits for its ready file. Never
speaks to it: that is what the client is for.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

from acker_command.demo.errors import DemoError

START_TIMEOUT_S = 60.0
STOP_TIMEOUT_S = 30.0
LOG_TAIL_LINES = 8


@dataclass(slots=True)
class ServerProcess:
    """One server at a time, at one address. ``folder`` holds its state, its log and its ready file."""

    folder: Path
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
        command += ["--state-dir", str(self._state), "--ready-file", str(self._ready)]
        environment = {name: value for name, value in os.environ.items() if not name.startswith("ACKER_")}
        # A session of its own: Ctrl-C is for the demo, which then stops the server.
        return subprocess.Popen(command, stdout=log, stderr=log, env=environment, start_new_session=True)

    def _log_tail(self) -> str:
        lines = (self.folder / "server.log").read_text(errors="replace").splitlines()
        return "\n".join(lines[-LOG_TAIL_LINES:])
