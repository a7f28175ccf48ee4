"""Signals: lets a thread wait for SIGTERM and SIGINT.

Decides how a signal is noticed. The system delivers a signal to any thread, but a Python handler runs only in the main
thread, and only when that thread is back in the interpreter. A main thread that waits for a lock may never get
there. The interpreter's C handler, though, runs at once in any thread. It writes the signal's number into a socket
(``signal.set_wakeup_fd``), and a thread waits at the other end. No signal is lost.
"""

from __future__ import annotations

import signal
import socket
from types import FrameType

TAKEN = (signal.SIGTERM, signal.SIGINT)


class Signals:
    """Receives SIGTERM and SIGINT for this process. Create it once, in the main thread."""

    def __init__(self) -> None:
        self._reader, self._writer = socket.socketpair()
        # The C handler must not block. When the socket is full, many signals are unread and one more does not matter.
        self._writer.setblocking(False)
        signal.set_wakeup_fd(self._writer.fileno(), warn_on_full_buffer=False)
        for each in TAKEN:
            signal.signal(each, _do_nothing)

    def wait(self) -> signal.Signals | None:
        """Wait for the next signal and return it; None after :meth:`interrupt`. Only one waiting thread gets it."""
        number = self._reader.recv(1)[0]
        return signal.Signals(number) if number else None

    def interrupt(self) -> None:
        """Let one waiting thread return without a signal."""
        self._writer.send(b"\0")

    def ignore(self) -> None:
        """Ignore signals from now on, because this process is about to end by itself."""
        for each in TAKEN:
            signal.signal(each, signal.SIG_IGN)


def _do_nothing(number: int, frame: FrameType | None) -> None:
    """Do nothing. Without an installed Python handler, the C handler would write nothing into the socket."""
