"""The scheduler: blocking code in virtual time, and detection of code that would hang."""

from __future__ import annotations

import pytest

from tests.simulation.scheduler import Endless, GreenSideBySide, Scheduler, Stuck
from tests.simulation.threads import GreenLock, GreenQueue, GreenThreading


def test_sleep_takes_virtual_time_and_others_run_meanwhile() -> None:
    scheduler, heard = Scheduler(1), list[tuple[float, str]]()

    def speak(name: str, every_s: float) -> None:
        for _ in range(3):
            scheduler.sleep(every_s)
            heard.append((round(scheduler.now, 3), name))

    scheduler.spawn("a", "", lambda: speak("a", 2.0))
    scheduler.spawn("b", "", lambda: speak("b", 3.0))
    scheduler.run(lambda: scheduler.is_idle)
    assert sorted(heard) == [(2.0, "a"), (3.0, "b"), (4.0, "a"), (6.0, "a"), (6.0, "b"), (9.0, "b")]
    assert [now for now, _ in heard] == sorted(now for now, _ in heard)


def test_the_order_at_one_time_is_drawn_from_the_seed() -> None:
    def order(seed: int) -> list[int]:
        scheduler, came = Scheduler(seed), list[int]()
        for number in range(8):
            scheduler.after(1.0, lambda number=number: came.append(number))  # type: ignore[misc]
        scheduler.run(lambda: scheduler.is_idle)
        return came

    assert order(1) == order(1)
    assert len({tuple(order(seed)) for seed in range(20)}) > 10


def test_a_lock_that_nobody_gives_back_is_found_and_its_holder_named() -> None:
    scheduler = Scheduler(1)
    threads = GreenThreading(scheduler)
    lock = GreenLock(scheduler, threads)
    scheduler.spawn("driver", "the watcher", lambda: (lock.acquire(), scheduler.park("an answer")))
    scheduler.at(1.0, lambda: scheduler.spawn("driver", "the run", lock.acquire))
    with pytest.raises(Stuck, match=r"the run.* waits for a lock that driver \(the watcher\) has"):
        scheduler.run(lambda: False)
    assert threads.held_up == 1


def test_a_lock_is_waited_for_until_it_is_free() -> None:
    scheduler = Scheduler(1)
    lock, came = GreenLock(scheduler, GreenThreading(scheduler)), list[float]()

    def hold() -> None:
        with lock:
            came.append(scheduler.now)
            scheduler.sleep(2.0)

    for _ in range(3):
        scheduler.spawn("a", "", hold)
    scheduler.run(lambda: scheduler.is_idle)
    assert came == [0.0, 2.0, 4.0]


def test_what_never_ends_is_ended() -> None:
    scheduler = Scheduler(1, time_max=100.0)

    def spin() -> None:
        while True:
            scheduler.sleep(1.0)

    scheduler.spawn("a", "", spin)
    with pytest.raises(Endless):
        scheduler.run(lambda: False)


def test_a_killed_process_unwinds_and_talks_to_nobody() -> None:
    scheduler, said = Scheduler(1), list[str]()

    def work() -> None:
        try:
            scheduler.sleep(10.0)
            said.append("worked")
        finally:
            said.append("unwound")
            scheduler.sleep(1.0)
            said.append("talked")

    scheduler.spawn("a", "", work)
    scheduler.at(5.0, lambda: scheduler.kill("a"))
    scheduler.run(lambda: scheduler.is_idle)
    assert said == ["unwound"]


def test_a_frozen_process_goes_on_when_it_thaws() -> None:
    scheduler, woke = Scheduler(1), list[float]()

    def sleep() -> None:
        scheduler.sleep(2.0)
        woke.append(scheduler.now)

    scheduler.spawn("a", "", sleep)
    scheduler.at(1.0, lambda: scheduler.freeze("a", 30.0))
    scheduler.run(lambda: scheduler.is_idle)
    assert woke == [30.0]


def test_a_queue_hands_over_between_processes_and_times_out() -> None:
    scheduler, came = Scheduler(1), list[object]()
    queue = GreenQueue(scheduler)

    def take() -> None:
        came.append(queue.get(timeout=5.0))
        try:
            queue.get(timeout=5.0)
        except Exception as error:  # noqa: BLE001
            came.append(type(error).__name__)

    scheduler.spawn("a", "", take)
    scheduler.at(1.0, lambda: queue.put("first"))
    scheduler.run(lambda: scheduler.is_idle)
    assert came == ["first", "Empty"]
    assert scheduler.now == 6.0


def test_calls_run_side_by_side_and_the_first_that_is_done_ends_the_wait() -> None:
    scheduler, came = Scheduler(1), list[object]()
    side_by_side = GreenSideBySide(scheduler)

    def call(seconds: float) -> float:
        scheduler.sleep(seconds)
        if seconds == 3.0:
            raise ValueError(seconds)
        return seconds

    def both() -> None:
        futures = [side_by_side.start(lambda s=s: call(s)) for s in (2.0, 3.0)]  # type: ignore[misc]
        side_by_side.wait(futures, 1.0)
        came.append([future.done() for future in futures])
        side_by_side.wait(futures, 9.0)
        came.append(scheduler.now)
        side_by_side.wait(futures[1:], 9.0)
        came.append(str(futures[1].exception()))

    scheduler.spawn("a", "", both)
    scheduler.run(lambda: scheduler.is_idle)
    assert came == [[False, False], 2.0, "3.0"]
