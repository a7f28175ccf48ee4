"""Parent: ends this process with the process that started it, of which it reads the standard input.

The parent holds the other end of a pipe. The system closes that end when the parent dies, whatever killed it. Decides
nothing about how a server stops: as with kill -9, no state is written.
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable

STANDARD_INPUT = 0
READ_BYTES = 4096


def end_with_parent(clean_up: Callable[[], object]) -> None:
    """Kill this process when its standard input ends. ``clean_up`` is called before. Returns at once."""
    threading.Thread(target=_read_to_the_end, args=(clean_up,), name="acker-parent", daemon=True).start()


def _read_to_the_end(clean_up: Callable[[], object]) -> None:
    while os.read(STANDARD_INPUT, READ_BYTES):
        pass
    clean_up()
    os.kill(os.getpid(), signal.SIGKILL)
