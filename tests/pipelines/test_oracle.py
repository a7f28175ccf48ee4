"""Unit tests of the oracle and the generator, with programs small enough to work out by hand."""

from __future__ import annotations

from collections import Counter
from functools import partial

from tests.pipelines import oracle
from tests.pipelines.oracle import Execution, Judge
from tests.pipelines.program import DELIVERS, FAILS, MAKERS, NODES, PARTS, Act, End, Fault, Program, Step, generate

GOOD = (Act("deliver", "parquet"),)


def program(*steps: Step, faults: tuple[Fault, ...] = ()) -> Program:
    last = steps[-1].gives[-1]
    return Program(0, 20, 20, 1, "run", "select", steps, (End(last, "sink", GOOD, GOOD),), faults)


def judge(*executions: tuple[str, bool, list[str]]) -> Judge:
    """Return a judge after these actions: (what, went through, output). The program makes ``3.0`` from record 3."""
    made = Judge(program(Step("operator", ("f0",), ("f1",), 6)))
    for what, went_through, output in executions:
        made.executions.append(
            Execution(1, made.program.ends[0], what, "parquet", went_through, partial(Counter, output))
        )
    return made


def test_a_seed_gives_the_same_program_each_time_and_names_all_there_is() -> None:
    assert [generate(seed) for seed in range(50)] == [generate(seed) for seed in range(50)]
    programs = [generate(seed) for seed in range(1500)]
    assert {step.op for each in programs for step in each.steps} == {*MAKERS, *NODES, "branch", "union"}
    acts = {act for each in programs for end in each.ends for act in (*end.first, *end.then)}
    assert {act.how for act in acts if act.what == "deliver"} == set(DELIVERS)
    assert {act.how for act in acts if act.what == "fail"} == set(FAILS)
    assert {act.how for act in acts if act.what == "part"} == set(PARTS)


def test_each_step_marks_what_it_makes() -> None:
    fans = program(Step("operator", ("f0",), ("f1",), 6), Step("left join", ("f1",), ("f2",), 1))
    # Record 3 has key 3, so (3 + 6) % 4 = 1 child with key (2 * 3 + 6) % 7 = 5, and that (5 + 1) % 3 = 0 matches.
    assert oracle.frames_of(fans, 3) == {"f0": [(3, "3")], "f1": [(5, "3.0")], "f2": [(5, "3.0+-")]}
    merged = program(
        Step("branch", ("f0",), ("f1", "f2")),
        Step("group", ("f1",), ("f3",), 5),
        Step("group", ("f2",), ("f4",), 5),
        Step("union", ("f3", "f4"), ("f5",)),
    )
    assert oracle.expected(merged, 3) == {"f5": Counter({"3": 2})}
    assert oracle.expected(merged, 4) == {"f5": Counter({"4:0": 2, "4:1": 2})}
    assert oracle.expected(merged, 5) == {"f5": Counter()}
    met = program(Step("branch", ("f0",), ("f1", "f2")), Step("cogroup", ("f1", "f2"), ("f3",), 5))
    assert oracle.expected(met, 3) == {"f3": Counter({"3": 2})}


def test_a_record_may_be_acked_when_its_rows_stand_in_the_last_delivery_of_its_batch() -> None:
    assert not judge(("deliver", True, ["3.0", "9.0"])).objection(1, 3)
    again = judge(("deliver", False, []), ("deliver", True, ["3.0"]), ("look", False, []))
    assert "of the same run (parquet) failed" in again.objection(1, 3)
    # The sink was called again after it had raised.
    again.executions[1].run = 1
    assert not again.objection(1, 3)
    assert "{'3.0': 1} are missing" in judge(("deliver", True, ["9.0"])).objection(1, 3)
    assert "of the same run (parquet) failed" in judge(("deliver", True, ["3.0"]), ("fail", False, [])).objection(1, 3)
    assert "no delivery" in judge(("look", True, []), ("part", True, ["9.0"])).objection(1, 3)
    # A part that contained all rows.
    assert not judge(("look", True, []), ("part", True, ["3.0"])).objection(1, 3)
    assert "of the same run (parquet) failed" in judge(("part", True, ["3.0"]), ("fail", False, [])).objection(1, 3)
    assert "no delivery" in judge(("deliver", True, ["3.0"])).objection(2, 3)
    abandoned = judge(("deliver", True, ["3.0"]))
    abandoned.abandoned[1] = "the body raised"
    assert abandoned.objection(1, 3) == "the body raised"
    # Record 2 has no children, so nothing can be missing.
    assert not judge().objection(1, 2)


def test_those_who_may_die_are_the_poisoned_and_whoever_shares_a_group_with_them() -> None:
    poison = Fault("poison", "f2", (3,))
    assert oracle.may_die(
        program(Step("select", ("f0",), ("f1",)), Step("operator", ("f1",), ("f2",)), faults=(poison,))
    ) == {3}
    grouped = program(Step("group", ("f0",), ("f1",), 5), Step("operator", ("f1",), ("f2",)), faults=(poison,))
    assert oracle.may_die(grouped) == {3, 10, 17}
    gone = program(Step("where", ("f0",), ("f1",), 3), Step("operator", ("f1",), ("f2",)), faults=(poison,))
    assert oracle.may_die(gone) == set()
