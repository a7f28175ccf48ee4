"""The client logs a wait for a server after one second, then rarely, and logs when the server answers again."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import pytest

from acker_client import AckerClient, Settings, errors
from acker_client.backoff import Deadline
from acker_client.rpc.caller import Caller
from acker_client.rpc.connection import Connection
from acker_client.rpc.silence import AGAIN_S, Silence
from acker_protocol import ids
from acker_testing import LocalServer, SimulatedTime

ROOT = ids.root_id(1 << 40, 0)


class Simulation:
    """A client and its server in simulated time. ``after``: functions to call, by second of simulated time."""

    def __init__(self) -> None:
        self.time = SimulatedTime()
        self.server = LocalServer(clock=self.time.clock, sleep=self.time.sleep)
        self.after: dict[float, Callable[[], object]] = {}
        settings = Settings(("far:7070",), budget_s=60.0)
        self.client = AckerClient(
            settings, connect=self.server.connect, clock=self.time.clock, sleep=self._sleep, random=lambda: 0.5
        )

    def _sleep(self, seconds: float) -> None:
        self.time.sleep(seconds)
        for when in [when for when in self.after if when <= self.time.clock()]:
            self.after.pop(when)()


@pytest.fixture
def simulation() -> Simulation:
    return Simulation()


def lines(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [line.getMessage() for line in caplog.records if line.levelno == logging.WARNING]


@pytest.mark.parametrize(
    "call",
    [
        lambda client: client.hello(),
        lambda client: client.stats(),
        lambda client: client.open_source("orders"),
        lambda client: (client.ack(ROOT, 5), client.flush()),
    ],
)
def test_waiting_for_a_server_is_logged_after_a_second_and_so_is_its_return(
    simulation: Simulation, caplog: pytest.LogCaptureFixture, call: Callable[[AckerClient], object]
) -> None:
    told_at: list[float] = []
    simulation.server.stop()
    simulation.after = {
        0.9: lambda: told_at.append(len(lines(caplog))),
        3.5: lambda: told_at.append(len(lines(caplog))),
        20.0: simulation.server.start,
    }
    call(simulation.client)
    assert told_at == [0, 1]
    waiting, back = lines(caplog)
    assert waiting.startswith("waiting for the acker at far:7070: no answer for ")
    assert "the local server is stopped" in waiting
    assert back.startswith("the acker at far:7070 answers again, after 2")


@pytest.mark.parametrize(
    "call",
    [
        lambda client: client.open_batch(1, 1, 1),
        lambda client: client.watch(40.0),
    ],
)
def test_a_source_that_waits_for_a_server_logs_it_too(
    simulation: Simulation, caplog: pytest.LogCaptureFixture, call: Callable[[AckerClient], object]
) -> None:
    simulation.client.open_source("orders", lease_s=1000.0)
    simulation.server.stop()
    simulation.after = {20.0: simulation.server.start}
    call(simulation.client)
    assert [line.split(":")[0] for line in lines(caplog)] == [
        "waiting for the acker at far",
        "the acker at far",
    ]


def test_a_short_silence_is_not_worth_a_line(simulation: Simulation, caplog: pytest.LogCaptureFixture) -> None:
    simulation.server.stop()
    simulation.after = {0.5: simulation.server.start}
    simulation.client.hello()
    assert lines(caplog) == []


def test_a_long_silence_is_logged_repeatedly_but_seldom(
    simulation: Simulation, caplog: pytest.LogCaptureFixture
) -> None:
    simulation.server.stop()
    for _ in range(10):
        with pytest.raises(errors.Unavailable):
            simulation.client.hello()
    assert len(lines(caplog)) == pytest.approx(simulation.time.clock() / AGAIN_S, abs=2)


def test_a_server_that_comes_and_goes_does_not_flood_the_log() -> None:
    silence = Silence("far:7070")
    told = []
    for second in range(0, 300, 3):
        told += [silence.unanswered(second, second + 2.0, "gone"), silence.answered(second + 2.5)]
    waiting = [line for line in told if line and line.startswith("waiting")]
    again = [line for line in told if line and "answers again" in line]
    assert len(waiting) == len(again) == 10


def test_a_server_that_never_answers_is_logged_before_the_first_call_times_out(
    simulation: Simulation, caplog: pytest.LogCaptureFixture
) -> None:
    timeouts: list[float] = []

    class Mute:
        def hello(self, hello: Any, timeout_s: float) -> None:
            timeouts.append(timeout_s)
            simulation.time.sleep(timeout_s)
            raise errors.Unavailable("DEADLINE_EXCEEDED")

    client = AckerClient(
        Settings(("mute:1",), budget_s=30.0),
        connect=lambda address: Mute(),  # type: ignore[arg-type, return-value]
        clock=simulation.time.clock,
        sleep=simulation.time.sleep,
    )
    with pytest.raises(errors.Unavailable):
        client.hello()
    assert timeouts[:2] == [1.0, 10.0]
    assert lines(caplog)[0].startswith("waiting for the acker at mute:1: no answer for 1 s")


@pytest.mark.parametrize(("budget_s", "limit_s"), [(3.0, 3.0), (60.0, 10.0)])
def test_a_call_that_ends_long_after_its_time_limit_shows_no_silence_beyond_the_limit(
    simulation: Simulation, budget_s: float, limit_s: float
) -> None:
    connection = Connection("far:7070", simulation.client.settings, simulation.server.connect)
    caller = Caller(simulation.client.settings, connection, simulation.time.clock)

    def stand_still(transport: Any, timeout_s: float) -> None:
        simulation.time.sleep(100.0)
        raise errors.Unavailable("DEADLINE_EXCEEDED")

    for _ in range(2):
        with pytest.raises(errors.Unavailable):
            caller.once(stand_still, Deadline(budget_s, simulation.time.clock))
        assert caller.shown_silent_s(float("-inf")) == limit_s


def test_a_silence_begins_no_earlier_than_the_last_answer() -> None:
    silence = Silence("far:7070")
    silence.answered(10.5)
    silence.unanswered(6.0, 12.5, "no answer")
    assert silence.lasts_s(12.5) == 2.0


def test_shown_silence_ends_with_the_last_try() -> None:
    silence = Silence("far:7070")
    silence.unanswered(1.0, 1.5, "refused")
    silence.unanswered(3.0, 3.2, "refused")
    assert silence.lasts_s(13.5) == 12.5
    assert silence.shown_s(13.5, 0.0) == pytest.approx(2.2)
    assert silence.shown_s(13.5, 3.0) == pytest.approx(0.2)
    assert silence.shown_s(13.5, 13.4) == 0.0
    silence.answered(13.6)
    assert silence.shown_s(13.6, 0.0) == 0.0
