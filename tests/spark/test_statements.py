"""Statements: for which of the sinks that run at once a statement counts. Needs no Spark."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
from pyspark.sql import SparkSession

from acker_client.spark.commit_evidence import statements
from acker_client.spark.commit_evidence.following import FollowedFrame
from acker_client.spark.commit_evidence.others import followed_too
from acker_client.spark.commit_evidence.statements import watching
from acker_client.spark.commit_evidence.witness import Trail, Witness

INSERT = "insert into archive select * from updates"


def session_of(java: object) -> Any:
    """Return a session as PySpark wraps it anew in each micro-batch."""
    context = SimpleNamespace(getLocalProperty=lambda key: None, setLocalProperty=lambda key, value: None)
    return SimpleNamespace(_jsparkSession=java, sparkContext=context)


class Frame(FollowedFrame):
    """A frame without a plan in the JVM."""

    def __repr__(self) -> str:
        return "Frame()"


def trail_of(tag: str, java: object | None) -> Trail:
    """Return the trail of a sink with a view ``updates``, which only ``java`` sees; None: all sessions see it."""
    writer: Any = None
    witness = Witness(tag, (tag,), writer)
    witness.views["updates"] = tag
    if java is not None:
        witness.view_sessions["updates"] = session_of(java)
    return Trail(witness)


def failures(trails: list[Trail], java: object, text: str = INSERT, **frames: Any) -> list[int]:
    """Run a statement that fails in the session ``java``, and return the number of failures that each trail has."""

    def failing(text: str, **_: Any) -> None:
        raise ValueError(text)

    run = watching(session_of(java), failing, lambda: trails)
    with pytest.raises(ValueError, match="archive"):
        run(text, **frames)
    return [len(trail.witness.actions(())) for trail in trails]


def java_session() -> Any:
    """Return a session of the JVM that can analyse no statement."""
    return SimpleNamespace(sessionState=lambda: None)


def test_a_failed_statement_counts_only_for_the_sink_whose_session_has_the_view() -> None:
    one, other = java_session(), java_session()
    trails = [trail_of("a", one), trail_of("b", other)]
    assert failures(trails, other) == [0, 1]
    assert failures(trails, one) == [1, 1]


def test_a_failed_statement_of_a_session_without_the_view_counts_for_each_sink_that_has_it() -> None:
    trails = [trail_of("a", java_session()), trail_of("b", java_session())]
    assert failures(trails, java_session()) == [1, 1]


def test_a_failed_statement_counts_for_a_sink_whose_view_all_sessions_see() -> None:
    one = java_session()
    assert failures([trail_of("a", one), trail_of("b", None)], one) == [1, 1]


@pytest.mark.timeout(60)
def test_a_program_may_wrap_the_sql_of_a_session_while_a_sink_runs() -> None:
    java, trail, ran = java_session(), trail_of("a", None), list[str]()
    session: Any = object.__new__(SparkSession)
    vars(session).update(_jsparkSession=java, _sc=session_of(java).sparkContext, sql=ran.append)
    with followed_too(trail):
        watched = session.sql
        session.sql = lambda text: watched(text)
        session.sql(INSERT)
    assert ran == [INSERT]


@pytest.mark.timeout(60)
def test_a_failure_that_the_program_swallows_in_a_wrapper_of_sql_counts() -> None:
    def failing(text: str) -> None:
        raise ValueError(text)

    java, trail = java_session(), trail_of("a", None)
    inner = watching(session_of(java), failing, lambda: [trail])

    def wrapper(text: str) -> None:
        with suppress(ValueError):
            inner(text)

    watching(session_of(java), wrapper, lambda: [trail])(INSERT)
    assert [action.failure for action in trail.witness.actions(())] == [f"ValueError: {INSERT}"]


@pytest.mark.parametrize(
    ("plan", "steps", "counted"),
    [("MapInArrow a", (), [1, 0]), ("Join a, b", (), [1, 1]), ("Scan ExistingRDD", ("rdd",), [1, 1])],
    ids=["rows of one", "rows of both", "an RDD, which may have rows of both"],
)
def test_a_failed_statement_over_a_frame_counts_for_each_sink_whose_rows_the_frame_may_have(
    monkeypatch: pytest.MonkeyPatch, plan: str, steps: tuple[str, ...], counted: list[int]
) -> None:
    java, trails = java_session(), [trail_of("a", None), trail_of("b", None)]
    frame: Any = object.__new__(Frame)
    frame._trail = replace(trails[0], steps=steps)
    monkeypatch.setattr(statements, "analyzed", lambda _: plan)
    monkeypatch.setattr(statements, "frame_step", lambda _: plan)
    assert failures(trails, java, "insert into archive select * from {rows}", rows=frame) == counted
