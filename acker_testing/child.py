"""Child: a server process on a free port of this machine. The server ends with the process that started it.

Decides how the server is started, awaited and ended. When it ends, its state is gone unless it has a ``--state-dir``.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

from acker_testing import standstill

START_S = 60.0
PAUSE_S = 0.02


class Child:
    """A running server: ``address`` is "127.0.0.1:port" once ``await_ready`` has returned."""

    def __init__(self, folder: Path, *flags: str) -> None:
        """``flags``: further flags of ``acker serve``. They may override the default flags given here."""
        self.address = ""
        self._ready = folder / "ready.json"
        self._log = folder / "server.log"
        # ACKER_ variables in the environment are meant for another server.
        environment = {name: text for name, text in os.environ.items() if not name.startswith("ACKER_")}
        environment["PYTHONPATH"] = python_path()
        given = {flag.partition("=")[0]: flag for flag in flags}
        defaults = {
            "--port": "--port=0",
            "--http-port": "--http-port=off",
            "--ready-file": f"--ready-file={self._ready}",
        }
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "acker_service", "serve", "--until-stdin-ends", *(defaults | given).values()],
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=log,
                env=environment,
                # Ctrl-C must reach only the parent process, which then ends the server.
                start_new_session=True,
            )

    def await_ready(self) -> str:
        """Wait until the server serves, and return its address.

        Raises ImportError if the server lacks a package, and RuntimeError if it does not start for any other reason.
        """
        deadline = time.monotonic() + START_S
        while not self._ready.exists():
            if self._process.poll() is not None or time.monotonic() > deadline:
                self.end()
                raise self._failed()
            time.sleep(PAUSE_S)
        self.address = str(json.loads(self._ready.read_text())["address"])
        return self.address

    def end(self) -> None:
        """End the process at once."""
        if self._process.stdin is not None:
            self._process.stdin.close()
        self._process.wait()

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def log(self) -> str:
        """The log of the server so far."""
        return self._log.read_text(errors="replace")

    def wait(self, timeout_s: float | None = None) -> int:
        """Wait until the server ends by itself, and return its exit status. Raises RuntimeError after ``timeout_s``."""
        try:
            return self._process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            raise RuntimeError(f"the server did not end within {timeout_s:g} s: {self.log}") from None

    def kill(self) -> None:
        """Send SIGKILL, and wait for the end."""
        self._process.kill()
        self.end()

    def terminate(self, timeout_s: float | None = None) -> int:
        """Send SIGTERM (a planned stop), and return the exit status. Raises RuntimeError after ``timeout_s``."""
        self._process.terminate()
        return self.wait(timeout_s)

    def stop(self) -> None:
        """Send SIGSTOP. The server answers nothing until :meth:`cont`."""
        standstill.stop_child(self._process)

    def cont(self) -> None:
        self._process.send_signal(signal.SIGCONT)

    def _failed(self) -> Exception:
        log = self.log.strip()
        if "pip install" in log:
            return ImportError(f"acker_testing.Pipeline: {log.splitlines()[-1]}")
        return RuntimeError(f"the server ended, or was not ready within {START_S:g} s: {log or 'its log is empty'}")


def python_path() -> str:
    """Return the import path of this process, which pytest extends, for processes that must import the same modules."""
    return os.pathsep.join(dict.fromkeys(os.path.abspath(path) for path in sys.path))
