"""The shard behind its lock: concurrent calls."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any
from unittest.mock import Mock

import pytest

from acker_protocol.messages import OpenBatch, Settle, Settlement, SettleReply, Status, Watch
from acker_service.core.shard import Shard
from acker_service.shared_shard import SharedShard, _MeasuredLock
from tests.service.caller import acks, eventually, inits, roots_of

BATCHES = range(1, 6)


class SlowToSettle(Shard):
    """A shard that records each sweep (a settlement of several batches), and waits until it may begin."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.sweeps: list[int] = []
        self.may_sweep = threading.Event()

    def settle(self, requests: Sequence[Settle], now: float) -> list[SettleReply]:
        self.sweeps.append(len(requests))
        assert self.may_sweep.wait(20)
        if any(request.number == 99 for request in requests):
            raise ZeroDivisionError
        return super().settle(requests, now)


@pytest.fixture
def slow() -> SlowToSettle:
    return SlowToSettle(incarnation=1, generation=2)


@pytest.fixture
def shared(slow: SlowToSettle) -> SharedShard:
    shared = SharedShard(slow, clock=time.monotonic, max_watches=4, linger_s=0.001)
    shared.watch(Watch("test", 7, 600_000))
    for number in BATCHES:
        shared.open_batch(OpenBatch(7, number, number * 100, 5))
    return shared


def test_settlements_that_arrive_together_share_a_sweep(shared: SharedShard, slow: SlowToSettle) -> None:
    with ThreadPoolExecutor(5) as pool:
        replies = [pool.submit(shared.settle, Settle(7, 1, Settlement.DONE))]
        eventually(lambda: slow.sweeps == [1])
        replies += [pool.submit(shared.settle, Settle(7, number, Settlement.DONE)) for number in BATCHES[1:]]
        eventually(lambda: shared.settlements == 4)
        slow.may_sweep.set()
        assert {(reply.result().status, reply.result().roots) for reply in replies} == {(Status.APPLIED, 5)}
    assert slow.sweeps == [1, 4]


def test_a_sweep_that_breaks_is_reported_to_all_who_shared_it_and_the_next_one_works(
    shared: SharedShard, slow: SlowToSettle
) -> None:
    with ThreadPoolExecutor(5) as pool:
        first = pool.submit(shared.settle, Settle(7, 1, Settlement.DONE))
        eventually(lambda: slow.sweeps == [1])
        broken = [pool.submit(shared.settle, Settle(7, number, Settlement.DONE)) for number in (2, 99)]
        eventually(lambda: shared.settlements == 2)
        slow.may_sweep.set()
        assert first.result().status == Status.APPLIED
        assert {type(reply.exception()) for reply in broken} == {ZeroDivisionError}
    assert shared.settle(Settle(7, 3, Settlement.DONE)).status == Status.APPLIED


def test_under_load_every_outcome_is_reported_exactly_once(shared: SharedShard) -> None:
    senders, reports_each, roots_each = 3, 40, 50
    expected = senders * reports_each * roots_each

    def send(sender: int) -> None:
        for index in range(reports_each):
            roots = roots_of(range(roots_each), base=1 + (sender * reports_each + index) * roots_each)
            shared.apply(inits(roots, 2 * index, sender=sender))
            shared.apply(acks(roots, 2 * index + 1, sender=sender))

    def listen() -> list[int]:
        reported: list[int] = []
        cursor = 0
        while len(reported) < expected:
            reply = shared.watch(Watch("test", 7, 600_000, confirmed=cursor, wait_ms=5_000))
            reported += reply.outcomes.root_ids.tolist()
            cursor = reply.cursor
        return reported

    with ThreadPoolExecutor(senders + 1) as pool:
        listener = pool.submit(listen)
        for sending in [pool.submit(send, sender) for sender in range(senders)]:
            sending.result()
        reported = listener.result()
    assert len(reported) == len(set(reported)) == expected
    assert not shared.watch(Watch("test", 7, 600_000, confirmed=expected)).outcomes


def test_a_watch_whose_caller_has_already_gone_does_not_wait_and_does_not_renew_the_lease(
    shared: SharedShard, slow: SlowToSettle, monkeypatch: pytest.MonkeyPatch
) -> None:
    watch = Mock(wraps=slow.watch)
    monkeypatch.setattr(slow, "watch", watch)
    assert shared.watch(Watch("test", 7, 600_000, wait_ms=50), lambda _: False).status == Status.APPLIED
    assert watch.call_count == 1


def test_a_close_just_before_the_last_answer_of_a_watch_does_not_open_the_session_again(
    shared: SharedShard, monkeypatch: pytest.MonkeyPatch
) -> None:
    release = _MeasuredLock.__exit__
    close: list[Watch] = []

    @contextmanager
    def paused() -> Iterator[None]:
        yield
        close.append(Watch("test", 7, 600_000, close=True))

    def exit_and_close(lock: _MeasuredLock, kind: object, error: object, traceback: object) -> None:
        release(lock, kind, error, traceback)
        if close:
            shared.watch(close.pop())

    monkeypatch.setattr(_MeasuredLock, "__exit__", exit_and_close)
    shared.watch(Watch("test", 7, 600_000, wait_ms=1), paused=paused)
    assert not close
    assert shared.stats.sources == 0
