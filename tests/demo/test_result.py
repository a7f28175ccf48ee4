"""The result: the exit status rests on every promise, and the figures are told as they are."""

from __future__ import annotations

import io
import json
from dataclasses import replace
from typing import Any

import pytest
from rich.console import Console

from acker_command.demo.counts import RunCounts
from acker_command.demo.faults import Strike
from acker_command.demo.progress import Progress
from acker_command.demo.result import DemoResult, as_json, as_table
from acker_command.demo.verify import Conclusion, TopWord

CLEAN = Conclusion(
    unanswered=0,
    answered_twice=0,
    false_acks=0,
    wrong_counts=0,
    dead_without_cause=0,
    spared=0,
    examples=(),
    top=(TopWord("return", "keyword", 12), TopWord("self", "name", 3)),
)


def result(**changes: object) -> DemoResult:
    whole = DemoResult(
        counts=RunCounts(records=10, emitted=14, acked=8, failed=5, interrupted=1, replayed=4, dead_lettered=2),
        conclusion=CLEAN,
        checkpoint_at_end=True,
        planned=(Strike.WORKER_KILLED, Strike.SERVER_LOST),
        struck=(Strike.WORKER_KILLED, Strike.SERVER_LOST),
        interrupted_by={Strike.SERVER_LOST: 1},
    )
    return replace(whole, **changes)  # type: ignore[arg-type]


def test_a_run_in_which_everything_held_has_passed() -> None:
    assert result().passed
    assert as_json(result())["broken"] == []


def with_one(name: str) -> Conclusion:
    count: Any = {name: 1}
    return replace(CLEAN, **count)


@pytest.mark.parametrize(
    "changes",
    [
        pytest.param({"counts": RunCounts(records=10, acked=8, dead_lettered=1)}, id="a record has neither answer"),
        *(
            pytest.param({"conclusion": with_one(name)}, id=name)
            for name in ("unanswered", "answered_twice", "false_acks", "wrong_counts", "dead_without_cause", "spared")
        ),
        pytest.param({"checkpoint_at_end": False}, id="the checkpoint is behind"),
        pytest.param({"struck": (Strike.WORKER_KILLED,)}, id="a fault did not fall"),
        pytest.param({"interrupted_by": {Strike.WORKER_KILLED: 1}}, id="a killed worker cost a replay"),
    ],
)
def test_a_run_in_which_one_thing_did_not_hold_has_failed_and_says_which(changes: dict[str, object]) -> None:
    broken = result(**changes)
    assert not broken.passed
    assert len(as_json(broken)["broken"]) == 1


def test_the_json_object_has_every_figure_that_is_promised() -> None:
    told = json.loads(json.dumps(as_json(result())))
    promised = "records acked failed timed_out replayed dead_lettered lost false_acks records_per_s"
    assert {name: told[name] for name in promised.split()} == {
        "records": 10,
        "acked": 8,
        "failed": 5,
        "timed_out": 0,
        "replayed": 4,
        "dead_lettered": 2,
        "lost": 0,
        "false_acks": 0,
        "records_per_s": 0.0,
    }


def test_the_table_shows_the_words_the_faults_and_what_did_not_hold() -> None:
    shown = io.StringIO()
    broken = result(conclusion=replace(CLEAN, false_acks=3, examples=("a.py:7 as root 0x1",)))
    Console(file=shown, width=120).print(as_table(broken))
    text = shown.getvalue()
    assert "return" in text
    assert Strike.SERVER_LOST.value in text
    assert "3 false" in text
    assert "falsely acked: a.py:7 as root 0x1" in text


def test_progress_on_a_terminal_is_a_panel_and_elsewhere_plain_lines() -> None:
    for is_terminal in (True, False):
        seen = io.StringIO()
        console = Console(file=seen, force_terminal=is_terminal, width=200, color_system=None, soft_wrap=True)
        with Progress(RunCounts(records=1234, acked=3), console) as view:
            view.say("counting")
            view.strike("a worker is killed")
        assert "a worker is killed" in seen.getvalue()
        assert ("1,234" in seen.getvalue()) == is_terminal


def test_the_death_of_a_server_may_cost_replays_with_one_replica_and_none_with_two() -> None:
    struck: dict[str, Any] = {"planned": (Strike.ONE_KILLED,), "struck": (Strike.ONE_KILLED,)}
    assert result(**struck, interrupted_by={Strike.ONE_KILLED: 5}, replicas=1).passed
    assert not result(**struck, interrupted_by={Strike.ONE_KILLED: 5}, replicas=2).passed
    restarted: dict[str, Any] = {"planned": (Strike.ALL_RESTARTED,), "struck": (Strike.ALL_RESTARTED,)}
    assert not result(**restarted, interrupted_by={Strike.ALL_RESTARTED: 1}, replicas=1).passed
