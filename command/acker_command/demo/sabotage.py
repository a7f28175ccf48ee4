"""Sabotage: a thread beside the job that strikes the servers, and reports the strikes elsewhere.

Decides the moment for a server: when a task of the batch says that it is in the middle of its work, so that the
reports of the batch meet a server that is not there. The other strikes fall in the executors and in the sink
(``pipeline``).
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from acker_command.demo.errors import Abort, DemoError
from acker_command.demo.faults import Faults, Strike
from acker_command.demo.server import DemoServers

LOOK_S = 0.01


@contextmanager
def sabotage(
    servers: DemoServers, faults: Faults, strike: Strike | None, tell: Callable[[str], None]
) -> Iterator[None]:
    """Let ``strike`` happen while the body runs; leaves when it has happened and the server is back, or did not
    happen."""
    if strike is None:
        yield
        return
    striker = _Striker(faults, strike, servers.falls.get(strike), tell)
    striker.start()
    try:
        yield
    finally:
        striker.finish()


class _Striker(threading.Thread):
    def __init__(
        self, faults: Faults, strike: Strike, falls: Callable[[], None] | None, tell: Callable[[str], None]
    ) -> None:
        super().__init__(name="sabotage", daemon=True)
        self._faults, self._strike, self._falls, self._tell = faults, strike, falls, tell
        self._over = threading.Event()
        self._error: DemoError | None = None

    def run(self) -> None:
        if not self._wait_for(self._strike.name if self._falls is None else mid_work(self._strike)):
            return
        self._tell(self._strike.value)
        if self._falls is None:
            return
        self._faults.claim(self._strike.name)
        try:
            self._falls()
        except DemoError as error:
            self._error = error

    def finish(self) -> None:
        """Wait until the server is back. Raises :class:`Abort` if it does not come back."""
        self._over.set()
        self.join()
        if self._error is not None:
            raise Abort(str(self._error)) from self._error

    def _wait_for(self, name: str) -> bool:
        """Whether ``name`` happened before the batch was over."""
        while not self._faults.happened(name):
            if self._over.is_set():
                return self._faults.happened(name)
            time.sleep(LOOK_S)
        return True


def mid_work(strike: Strike) -> str:
    """What a task claims in the middle of the batch that ``strike`` is for."""
    return f"{strike.name}-mid-work"
