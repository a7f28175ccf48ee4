"""Functions that hang, and a timer that runs out as soon as one hangs. Spark's workers import this module, too."""

from __future__ import annotations

import ctypes
import os
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.spark.faults import await_file

FOREVER_S = 100_000


@dataclass(frozen=True)
class Hang:
    """Hangs, after it has left a note in ``folder``, which is named by the worker's process id. ``how``: "sleep"
    releases the GIL, "C code" keeps it."""

    folder: str
    how: str = "sleep"

    def __call__(self) -> None:
        Path(self.folder, str(os.getpid())).touch()
        while True:
            if self.how == "sleep":
                time.sleep(FOREVER_S)
            ctypes.PyDLL(None).sleep(FOREVER_S)

    def batches(self, batches: Iterable[Any]) -> Iterator[Any]:
        """Hang at the first batch of a task."""
        for batch in batches:
            self()
            yield batch


def wait_for(path: str) -> Callable[[Iterable[Any]], Iterator[Any]]:
    """Return a function over batches that waits until the file ``path`` is there."""

    def batches(batches: Iterable[Any]) -> Iterator[Any]:
        for batch in batches:
            Path(path + ".waits").touch()
            await_file(Path(path))
            yield batch

    return batches


class HangTimer:
    """A timer for batches. The time of a batch runs out when a function hangs in it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.hung: set[str] = set()
        # How many batches have timed out.
        self.expired = 0

    def start(self, delay_s: float, call: Callable[[], float | None]) -> Callable[[], None]:
        stopped = threading.Event()
        before = set(os.listdir(self.folder))

        def run() -> None:
            while not stopped.wait(0.02):
                if hung := set(os.listdir(self.folder)) - before:
                    break
            else:
                return
            self.hung |= hung
            self.expired += 1
            while not stopped.is_set():
                call()
                stopped.wait(0.1)

        thread = threading.Thread(target=run, daemon=True)
        thread.start()

        def stop() -> None:
            stopped.set()
            thread.join()
            self.hung |= set(os.listdir(self.folder)) - before

        return stop

    def workers(self) -> list[str]:
        """Return the processes that hang and still live."""
        return [pid for pid in self.hung if Path("/proc", pid).exists()]
