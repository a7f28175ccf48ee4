"""AckerClient: the one object through which a program emits, acks, fails and waits."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from types import TracebackType
from typing import Any, Self

from acker_protocol.ids import Column
from acker_protocol.messages import Entries, HelloReply, Identity, InitScope, Limits, SettleReply, Settlement, Transport

from acker_client.backoff import Clock, Random
from acker_client.delivery import ReportResult
from acker_client.registration import Watched
from acker_client.settings import Settings

Connect = Callable[[str], Transport]
Sleep = Callable[[float], None]


class AckerClient:
    def __init__(
        self,
        servers: str | Sequence[str] | Settings | None = None,
        *,
        token: str | None = None,
        connect: Connect | None = None,
        clock: Clock = time.monotonic,
        sleep: Sleep = time.sleep,
        random: Random | None = None,
    ) -> None:
        raise NotImplementedError

    settings: Settings

    # Storm-like plain API; batch 0 unless said otherwise; ids are ints (signed or unsigned 64 bits).
    def init(self, root: int, edges: int | Iterable[int], *, batch: int = 0) -> None: ...
    def ack(self, root: int, edge: int, emitted: Iterable[int] = ()) -> None: ...
    def fail(self, root: int, reason: str = "", *, edge: int = 0) -> None: ...
    def reset_timeout(self, root: int) -> None: ...
    def init_columns(self, roots: Column, vals: Column, *, batch: int = 0) -> None: ...
    def ack_columns(self, roots: Column, vals: Column) -> None: ...
    def fail_columns(self, roots: Column, reasons: str | Sequence[str] = "", vals: Column | None = None) -> None: ...
    def flush(self) -> None: ...

    # What Spark tasks call: one whole report under its own identity, in one budget.
    def report(self, identity: Identity, entries: Entries, inits: InitScope | None = None) -> ReportResult: ...

    # Sources.
    def open_source(
        self, name: str, *, session: int | None = None, lease_s: float = 30.0, limits: Limits = Limits(30_000)
    ) -> int:
        """Returns the session."""
        raise NotImplementedError

    def close_source(self) -> None: ...
    def open_batch(
        self, number: int, first: int, up_to: int, *, held: bool = True, limits: Limits = Limits()
    ) -> None: ...
    def settle(self, number: int, settlement: Settlement) -> SettleReply: ...
    def watch(self, wait_s: float = 0.0, *, max_outcomes: int = 1_000_000) -> Watched: ...

    @property
    def silent_for_s(self) -> float:
        """Seconds since the server last answered a watch of this source."""
        raise NotImplementedError

    def hello(self) -> HelloReply:
        """Handshake within the budget: is the server there, and which is it?"""
        raise NotImplementedError

    def close(self) -> None: ...
    def __enter__(self) -> Self: ...
    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None: ...
    def __reduce__(self) -> tuple[Any, ...]: ...


def of_process(settings: Settings) -> AckerClient:
    """The one client of this process for these settings, made after fork."""
    raise NotImplementedError
