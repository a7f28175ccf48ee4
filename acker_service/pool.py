"""Pool: threads for calls, which know how long each call has waited for one of them.

Decides nothing about calls; whoever wants the waiting times sets ``observe``.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from time import perf_counter
from typing import Any


class Pool(ThreadPoolExecutor):
    """``name``: of the pool; its threads are called ``acker-NAME_0`` and so on. ``observe`` takes, at the start of each
    call, the seconds that it has waited."""

    def __init__(self, name: str, threads: int) -> None:
        super().__init__(threads, thread_name_prefix=f"acker-{name}")
        self.name = name
        self.observe: Callable[[float], None] = lambda waited_s: None

    @property
    def queued(self) -> int:
        """How many calls wait for a thread now."""
        return self._work_queue.qsize()

    def submit(self, call: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        return super().submit(self._run, perf_counter(), call, args, kwargs)

    def _run(self, submitted: float, call: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        self.observe(perf_counter() - submitted)
        return call(*args, **kwargs)
