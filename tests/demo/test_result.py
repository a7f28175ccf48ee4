"""The result: one broken promise changes the exit status, and all figures are printed."""

from __future__ import annotations

import io
import json
from collections import Counter
from typing import Any

import pytest
from rich.console import Console

from acker_command.demo.faults import Strike
from acker_command.demo.result import conclude, show
from acker_command.demo.view import DemoView

FIGURES: dict[str, Any] = {
    "records": 10,
    "acked": 8,
    "failed": 5,
    "timed_out": 0,
    "interrupted": 1,
    "replayed": 4,
    "dead_lettered": 2,
    "lost": 0,
    "answered_twice": 0,
    "false_acks": 0,
    "wrong_counts": 0,
    "dead_without_cause": 0,
    "spared": 0,
    "top_words": {"return": 12, "self": 3},
    "checkpoint_at_end": True,
    "batches": 3,
    "seconds": 2.5,
    "records_per_s": 4.0,
    "replicas": 1,
    "replayed_by_fault": {"worker_killed": 0, "server_lost": 1},
    "faults": {"worker_killed": True, "server_lost": True},
}


def result(**changes: object) -> dict[str, Any]:
    return conclude(FIGURES | changes)


def test_a_run_in_which_everything_held_has_passed() -> None:
    whole = json.loads(json.dumps(result()))
    assert whole == FIGURES | {"passed": True, "broken": []}


@pytest.mark.parametrize(
    "changes",
    [
        pytest.param({"dead_lettered": 1}, id="a record has neither answer"),
        *(
            pytest.param({name: 1}, id=name)
            for name in ("lost", "answered_twice", "false_acks", "wrong_counts", "dead_without_cause", "spared")
        ),
        pytest.param({"checkpoint_at_end": False}, id="the checkpoint is behind"),
        pytest.param({"faults": {"worker_killed": True, "server_lost": False}}, id="a fault did not happen"),
        pytest.param(
            {"replayed_by_fault": {"worker_killed": 1, "server_lost": 0}}, id="a killed worker caused a replay"
        ),
    ],
)
def test_a_run_in_which_one_promise_did_not_hold_has_failed_and_names_it(changes: dict[str, object]) -> None:
    broken = result(**changes)
    assert not broken["passed"]
    assert len(broken["broken"]) == 1


def test_the_table_shows_the_words_the_faults_and_what_did_not_hold() -> None:
    shown = io.StringIO()
    show(result(false_acks=3), ["a.py:7 as root 0x1"], Console(file=shown))
    text = shown.getvalue()
    assert "return" in text
    assert Strike.SERVER_LOST.value in text
    assert "3 false" in text
    assert "falsely acked: a.py:7 as root 0x1" in text


def test_progress_on_a_terminal_is_a_panel_and_elsewhere_plain_lines() -> None:
    for is_terminal in (True, False):
        seen = io.StringIO()
        console = Console(file=seen, force_terminal=is_terminal, width=200, color_system=None, soft_wrap=True)
        with DemoView(Counter(records=1234, acked=3), console) as view:
            view.say("counting")
            view.strike("a worker is killed")
        assert "a worker is killed" in seen.getvalue()
        assert ("1,234" in seen.getvalue()) == is_terminal


@pytest.mark.parametrize(
    ("strike", "replicas", "may_replay"),
    [
        pytest.param("one_killed", 1, True, id="a server that dies has the only copy"),
        pytest.param("one_killed", 2, False, id="another server has a copy"),
        pytest.param("all_restarted", 1, False, id="a restart keeps the state"),
    ],
)
def test_replays_by_the_death_and_the_restart_of_servers(strike: str, replicas: int, may_replay: bool) -> None:
    found = result(faults={strike: True}, replayed_by_fault={strike: 5}, replicas=replicas)
    assert found["passed"] == may_replay
