"""The oracle of the plain programs finds each broken promise, and the programs are the same for a seed."""

from __future__ import annotations

from typing import Any

import pytest

from tests.plain.oracle import Oracle
from tests.plain.program import ENDS, FANS, FAULTS, children_of, generate, message_of, token_of

ONE = (7, 0)


@pytest.fixture
def oracle() -> Oracle:
    oracle = Oracle()
    oracle.emit(ONE, ["7r0.0", "7r0.1"])
    return oracle


def hear(oracle: Oracle, verdict: str, message_id: Any = ONE, **options: Any) -> None:
    given: dict[str, Any] = {"received": {"7r0.0", "7r0.1"}, "raised": set(), "may_be_late": False, **options}
    oracle.hear(message_id, verdict, "why", **given)


def kinds(oracle: Oracle) -> list[str]:
    return [finding.partition(":")[0] for finding in oracle.findings]


def test_an_ack_of_what_the_sink_has_received_is_true(oracle: Oracle) -> None:
    hear(oracle, "ACKED")
    oracle.finish()
    assert kinds(oracle) == []


def test_an_ack_before_the_sink_has_received_everything_is_false(oracle: Oracle) -> None:
    hear(oracle, "ACKED", received={"7r0.1", "8r0"})
    assert kinds(oracle) == ["false ACK"]


def test_a_fail_needs_something_that_has_raised(oracle: Oracle) -> None:
    hear(oracle, "FAILED", raised={(7, 1)})
    assert kinds(oracle) == ["needless"]


def test_a_fail_of_what_has_raised_is_right(oracle: Oracle) -> None:
    hear(oracle, "FAILED", raised={ONE}, received=set())
    assert kinds(oracle) == []


@pytest.mark.parametrize("verdict", ["LOST", "TIMED_OUT"])
@pytest.mark.parametrize("may_be_late", [True, False])
def test_only_a_program_that_leaves_rows_undone_may_be_late(oracle: Oracle, verdict: str, may_be_late: bool) -> None:
    hear(oracle, verdict, may_be_late=may_be_late)
    assert kinds(oracle) == ([] if may_be_late else ["needless"])


def test_an_outcome_twice_one_of_nobody_and_none_are_found(oracle: Oracle) -> None:
    oracle.emit((8, 0), [])
    hear(oracle, "ACKED")
    hear(oracle, "ACKED")
    hear(oracle, "ACKED", (9, 0))
    oracle.finish()
    assert kinds(oracle) == ["twice", "stranger", "missing"]


def test_tokens_name_their_message() -> None:
    assert message_of(token_of(12, 3)) == (12, 3)
    assert {message_of(child) for number in range(20) for child in children_of(token_of(number, 1))} <= {
        (number, 1) for number in range(20)
    }


def test_a_seed_is_always_the_same_program_and_two_hundred_have_every_part() -> None:
    programs = [generate(seed) for seed in range(1, 201)]
    assert programs == [generate(seed) for seed in range(1, 201)]
    assert {program.end for program in programs} == set(ENDS)
    assert {program.fan for program in programs} == set(FANS)
    assert {program.fault for program in programs} == set(FAULTS)
    assert {program.servers for program in programs} == {1, 3}
