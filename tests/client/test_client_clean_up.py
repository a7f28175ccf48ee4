"""Clean-up: every step runs, and the first exception is the one that is raised."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from acker_client.clean_up import CleanUp


class Body(Exception):
    pass


class Step(Exception):
    pass


@given(st.lists(st.booleans(), max_size=6), st.sampled_from([None, Body, GeneratorExit]))
def test_every_step_runs_last_added_first_and_the_first_exception_is_raised(
    fails: list[bool], raised: type[BaseException] | None
) -> None:
    ran: list[int] = []

    def step(number: int) -> Callable[[], None]:
        def run() -> None:
            ran.append(number)
            if fails[number]:
                raise Step(number)

        return run

    error: BaseException | None = None
    try:
        with CleanUp() as steps:
            for number in range(len(fails)):
                steps.add(step(number))
            if raised is not None:
                raise raised
    except BaseException as found:  # noqa: BLE001  # GeneratorExit too
        error = found
    assert ran == list(reversed(range(len(fails))))
    failed = [number for number in ran if fails[number]]
    if raised is Body or not failed:
        assert type(error) is (raised or type(None))
    else:
        assert isinstance(error, Step)
        assert error.args == (failed[0],)


def test_a_later_failure_is_logged_and_the_steps_of_a_stack_that_was_handed_on_run_later(
    caplog: pytest.LogCaptureFixture,
) -> None:
    ran: list[str] = []

    def fail() -> None:
        raise Step("the disk is full")

    with CleanUp() as steps:
        steps.add(lambda: ran.append("kept"))
        steps.add(fail)
        handed_on = steps.pop_all()
    assert ran == []
    with pytest.raises(Body), handed_on:
        raise Body("it began here")
    assert ran == ["kept"]
    assert "'Body: it began here' failed too: Step: the disk is full" in caplog.text
