"""Timer: calls a function again and again from a thread of its own."""

from __future__ import annotations

import threading
from collections.abc import Callable

# Calls a function in another thread, first after the given seconds, then again after the seconds that it has returned,
# until it returns None. Returns a function that ends this, and waits for a call that still runs.
Timer = Callable[[float, Callable[[], float | None]], Callable[[], None]]


def start_timer(delay_s: float, call: Callable[[], float | None]) -> Callable[[], None]:
    """See :data:`Timer`."""
    stopped = threading.Event()

    def run() -> None:
        wait_s: float | None = delay_s
        while wait_s is not None and not stopped.wait(wait_s):
            wait_s = call()

    thread = threading.Thread(target=run, name="acker-timer", daemon=True)
    thread.start()

    def stop() -> None:
        stopped.set()
        thread.join()

    return stop
