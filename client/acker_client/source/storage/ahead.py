"""Works ahead: opens the next objects while the current one is read, because each answer of a store takes a while."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, TypeVar

I = TypeVar("I")  # noqa: E741
R = TypeVar("R")

AHEAD = 16


def ahead(work: Callable[[I], R], items: Iterable[I], drop: Callable[[R], object]) -> Iterator[tuple[I, R]]:
    """Yield each item with ``work(item)``, in order. Up to ``AHEAD`` items are worked on in threads at a time.

    ``drop`` gets the results that are not taken, because the caller stopped or an earlier item failed.
    """
    pool = ThreadPoolExecutor(AHEAD, thread_name_prefix="acker-ahead")
    running: deque[tuple[I, Future[R]]] = deque()
    try:
        for item in items:
            running.append((item, pool.submit(work, item)))
            if len(running) >= AHEAD:
                done, future = running.popleft()
                yield done, future.result()
        while running:
            done, future = running.popleft()
            yield done, future.result()
    finally:
        pool.shutdown(wait=False, cancel_futures=True)
        for _, future in running:
            future.add_done_callback(lambda done: _drop(done, drop))


def _drop(done: Future[Any], drop: Callable[[Any], object]) -> None:
    if not done.cancelled() and done.exception() is None:
        drop(done.result())
