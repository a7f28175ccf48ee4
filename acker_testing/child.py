"""Child: a server as a process of its own, on a free port of this machine, that ends with the process that started it.

Decides how it is started, awaited and ended. Nobody else shares it, and what it knew is gone when it ends.
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

# Its standard input ends when whoever holds the other end closes it or dies, in whatever way.
_PROGRAM = """
import os, signal, sys, threading

def end_with_parent():
    sys.stdin.read()
    os.kill(os.getpid(), signal.SIGKILL)

threading.Thread(target=end_with_parent, daemon=True).start()
from acker_service.__main__ import main
sys.exit(main(sys.argv[1:]))
"""


class Child:
    """A running server: ``address`` is "127.0.0.1:port" once ``await_ready`` has returned."""

    def __init__(self, folder: Path, *flags: str) -> None:
        """``flags``: of ``acker serve``, beside those that are given here; one of theirs may be another value."""
        self.address = ""
        self._ready = folder / "ready.json"
        self._log = folder / "server.log"
        # The server's own settings in the environment are for the server of somebody else.
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
                [sys.executable, "-c", _PROGRAM, "serve", *(defaults | given).values()],
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=log,
                env=environment,
                # Ctrl-C is for the process that started it, which then ends this one.
                start_new_session=True,
            )

    def await_ready(self) -> str:
        """Wait until it serves; returns its address. ImportError where it lacks a package, else RuntimeError."""
        deadline = time.monotonic() + START_S
        while not self._ready.exists():
            if self._process.poll() is not None or time.monotonic() > deadline:
                self.end()
                raise self._failed()
            time.sleep(PAUSE_S)
        self.address = str(json.loads(self._ready.read_text())["address"])
        return self.address

    def end(self) -> None:
        """End it, at once."""
        if self._process.stdin is not None:
            self._process.stdin.close()
        self._process.wait()

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def log(self) -> str:
        """What it has logged."""
        return self._log.read_text(errors="replace")

    def wait(self, timeout_s: float | None = None) -> int:
        """Wait until it has ended by itself; returns the exit status. RuntimeError after ``timeout_s``."""
        try:
            return self._process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            raise RuntimeError(f"the server did not end within {timeout_s:g} s: {self.log}") from None

    def kill(self) -> None:
        """SIGKILL, and wait for its end."""
        self._process.kill()
        self.end()

    def terminate(self, timeout_s: float | None = None) -> int:
        """SIGTERM: a planned stop; returns the exit status. RuntimeError after ``timeout_s``."""
        self._process.terminate()
        return self.wait(timeout_s)

    def stop(self) -> None:
        """SIGSTOP: it answers nothing until :meth:`cont`."""
        standstill.stop_child(self._process)

    def cont(self) -> None:
        """SIGCONT."""
        self._process.send_signal(signal.SIGCONT)

    def _failed(self) -> Exception:
        said = self.log.strip()
        if "pip install" in said:
            return ImportError(f"acker_testing.Pipeline: {said.splitlines()[-1]}")
        return RuntimeError(f"the server did not start within {START_S:g} s: {said or 'it said nothing'}")


def python_path() -> str:
    """Where this process imports from, for processes that are to import the same; pytest adds to it."""
    return os.pathsep.join(dict.fromkeys(os.path.abspath(path) for path in sys.path))
