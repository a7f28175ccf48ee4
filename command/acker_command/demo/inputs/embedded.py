"""Embedded: a server for the demo alone, in a child process that ends with this one, however that ends."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from acker_command.demo.errors import DemoError

STOP_TIMEOUT_S = 10.0
LOG_TAIL_CHARACTERS = 800


@contextmanager
def embedded(program: str, log: Path) -> Iterator[str]:
    """Run ``program``, Python that serves on loopback, prints its address and ends with its standard input; gives the
    address. Raises ``DemoError``."""
    with open(log, "ab") as errors:
        # A session of its own: Ctrl-C is for the demo, which then ends the server.
        process = subprocess.Popen(
            [sys.executable, "-c", program],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
            start_new_session=True,
        )
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        if not (address := process.stdout.readline().strip()):
            tail = log.read_text(errors="replace")[-LOG_TAIL_CHARACTERS:]
            raise DemoError(f"the server that was to hold the lines did not start; the end of its log:\n{tail}")
        yield address
    finally:
        process.stdin.close()
        process.stdout.close()
        try:
            process.wait(STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
