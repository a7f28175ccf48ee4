"""Acking: a process that acks what another emits. ``python -m tests.faults.acking SERVER SESSION``.

Reads lines of anchors (JSON) from stdin, acks them, and prints "sent" after each flushed line.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

from acker_client import AckerClient

ROOT = Path(__file__).parents[2]


class Acking:
    """The test's handle on the process."""

    def __init__(self, server: str, session: int) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.faults.acking", server, str(session)],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def begin(self, anchors: Iterable[tuple[int, int]]) -> None:
        """Let the process ack (root id, edge) pairs, each through a child of its own. Does not wait."""
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(list(anchors)) + "\n")
        self._process.stdin.flush()

    def await_end(self) -> None:
        """Wait until the acks of the last ``begin`` are sent."""
        assert self._process.stdout is not None
        assert self._process.stdout.readline() == "sent\n"

    def close(self) -> None:
        """Close the process's input, and wait until it ends."""
        with self._process:
            assert self._process.stdin is not None
            self._process.stdin.close()
            self._process.wait(30.0)


def main() -> None:
    server, session = sys.argv[1:]
    with AckerClient(server) as client:
        client.join(int(session))
        for line in sys.stdin:
            for root, edge in json.loads(line):
                child = client.new_edge()
                client.ack(root, edge, emitted=[child])
                client.ack(root, child)
            client.flush()
            print("sent", flush=True)


if __name__ == "__main__":
    main()
