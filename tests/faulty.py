"""A transport that loses, duplicates, delays and reorders calls and replies, from a seed."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Any

from acker_client.errors import Unavailable
from acker_protocol.messages import Transport

FAULTS = ("request lost", "reply lost", "doubled", "late")


class FaultyTransport:
    """Wraps any transport. A share ``rate`` of the calls meets one of ``faults``; 0 is a perfect network."""

    def __init__(self, inner: Transport, dice: random.Random, rate: float, faults: Sequence[str] = FAULTS) -> None:
        self.rate = rate
        self.faults = faults
        self.seen: dict[str, int] = dict.fromkeys(FAULTS, 0)
        self._inner = inner
        self._dice = dice
        self._late: list[Callable[[], Any]] = []

    def hello(self, hello: Any, timeout_s: float) -> Any:
        return self._call(lambda: self._inner.hello(hello, timeout_s))

    def apply(self, message: Any, timeout_s: float) -> Any:
        return self._call(lambda: self._inner.apply(message, timeout_s))

    def open_batch(self, request: Any, timeout_s: float) -> Any:
        return self._call(lambda: self._inner.open_batch(request, timeout_s))

    def settle(self, request: Any, timeout_s: float) -> Any:
        return self._call(lambda: self._inner.settle(request, timeout_s))

    def watch(self, request: Any, timeout_s: float) -> Any:
        return self._call(lambda: self._inner.watch(request, timeout_s))

    def stats(self, timeout_s: float) -> Any:
        return self._inner.stats(timeout_s)

    def view(self, timeout_s: float) -> Any:
        return self._call(lambda: self._inner.view(timeout_s))

    def drain(self, timeout_s: float) -> Any:
        return self._call(lambda: self._inner.drain(timeout_s))

    def pins(self, request: Any, timeout_s: float) -> Any:
        return self._call(lambda: self._inner.pins(request, timeout_s))

    def close(self) -> None:
        self._inner.close()

    def _call(self, call: Callable[[], Any]) -> Any:
        if self._late and self._dice.random() < 0.5:
            # Deliver a call that its sender has given up, after calls that were made later.
            self._late.pop(self._dice.randrange(len(self._late)))()
        if self._dice.random() >= self.rate:
            return call()
        fault = self._dice.choice(self.faults)
        self.seen[fault] += 1
        if fault == "late":
            self._late.append(call)
        elif fault == "reply lost":
            call()
        elif fault == "doubled":
            call()
            return call()
        raise Unavailable(fault)
