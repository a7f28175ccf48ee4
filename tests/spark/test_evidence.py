"""The evidence for *done*: what Spark did over a sink's rows, read off a table, and off real Spark."""

from __future__ import annotations

import inspect

import pytest

from acker_client.spark.core.evidence import NEVER_MS, Action, judge

CASES = [
    tuple(cell.strip() for cell in line.strip().strip("|").split("|"))
    for line in inspect.getdoc(judge).splitlines()  # type: ignore[union-attr]
    if line.strip().startswith("|") and not line.strip().startswith(("| actions", "|--"))
]


def _actions(text: str) -> tuple[list[Action], bool]:
    """``count, failed write + write``: actions one after the other, where "+" stands in their midst."""
    found: list[Action] = []
    at_ms, forgotten, overlaps = 0.0, False, False
    for word in [part.strip() for part in text.replace("+", ", +,").split(",")]:
        if word == "forgotten":
            forgotten = True
        elif word == "+":
            overlaps = True
        elif word:
            began_ms = at_ms - 5 if overlaps else at_ms
            overlaps, at_ms = False, at_ms + 10
            found.append(_action(word, began_ms, at_ms))
    return found, forgotten


def _action(words: str, began_ms: float, ended_ms: float) -> Action:
    what = words.removeprefix("failed ").removeprefix("running ")
    if words == "look that finds no rows":
        return Action("found none", True, True, began_ms, ended_ms)
    did = {"count": "counted them", "take": "read 10", "write": "wrote them", "write of a part": "wrote 10"}[what]
    ended_ms = NEVER_MS if words.startswith("running ") else ended_ms
    failure = "Full" if words.startswith("failed ") else ""
    return Action(did, "write" in what, what in ("write", "count"), began_ms, ended_ms, failure)


def test_the_table_of_cases_is_long_enough_to_be_one() -> None:
    assert len(CASES) >= 30


@pytest.mark.parametrize(("actions", "done", "because"), CASES, ids=[case[0] or "nothing" for case in CASES])
def test_a_batch_is_done_exactly_where_the_table_says_so(actions: str, done: str, because: str) -> None:
    given, forgotten = _actions(actions)
    finding = judge("save()", given, forgotten=forgotten)
    assert (finding is None) == (done == "yes")
    if finding is not None:
        assert because in str(finding)
        assert finding.is_transient == (because in ("failed: Full", "still runs"))
