"""Signals: SIGTERM and SIGINT as something that a thread waits for.

Decides how a signal is noticed. The system gives it to any thread of the process, and a Python handler runs in the
main thread only, once that is back in the interpreter: a main thread that waits for a lock meanwhile may never be. So
the interpreter's own C handler, which runs at once wherever the signal lands, writes the signal's number into a socket
(``signal.set_wakeup_fd``), and whoever waits at its other end has it. None is lost, whatever thread it came to.
"""

from __future__ import annotations

import signal
import socket
from types import FrameType

TAKEN = (signal.SIGTERM, signal.SIGINT)


class Signals:
    """Takes SIGTERM and SIGINT for this process; to be made in the main thread, once."""

    def __init__(self) -> None:
        self._reader, self._writer = socket.socketpair()
        # The C handler must not wait; 200 KiB of unread signals say no more than one.
        self._writer.setblocking(False)
        signal.set_wakeup_fd(self._writer.fileno(), warn_on_full_buffer=False)
        for each in TAKEN:
            signal.signal(each, _leave_to_the_socket)

    def wait(self) -> signal.Signals | None:
        """The next signal, in any one thread; waits for it. None where :meth:`interrupt` ended the waiting."""
        number = self._reader.recv(1)[0]
        return signal.Signals(number) if number else None

    def interrupt(self) -> None:
        """End the waiting of one thread without a signal."""
        self._writer.send(b"\0")

    def ignore(self) -> None:
        """From now on signals do nothing: this process is about to end by itself."""
        for each in TAKEN:
            signal.signal(each, signal.SIG_IGN)


def _leave_to_the_socket(number: int, frame: FrameType | None) -> None:
    """Only its being there counts: without a handler of Python's nothing would be written."""
