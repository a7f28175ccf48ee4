"""Sinks: the user's function sees its rows without tracking columns. Its errors are kept in the batch's evidence."""

from __future__ import annotations

import threading
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from pyspark.sql import DataFrame, Row, SparkSession

from acker_client.source import Batch, Frame, Retry
from acker_client.spark import branch, operator, sink
from acker_client.spark.commit_evidence.batch import SinkEvidence
from acker_client.spark.commit_evidence.blame import is_mistake, is_of_the_program, is_without_evidence
from tests.service.caller import eventually
from tests.spark.live_batch import ACKED, LOST, LiveBatch, texts


def noop(rows: DataFrame) -> None:
    rows.write.format("noop").mode("append").save()


ALL = dict.fromkeys(range(20), ACKED)


def test_a_sink_is_a_function_with_arguments_and_a_value(spark: SparkSession, server: Any, tmp_path: Path) -> None:
    @sink
    def save(rows: DataFrame, folder: Path, *, mode: str = "error") -> int:
        """Saves."""
        assert rows.columns == ["number", "text"]
        rows.write.mode(mode).parquet(str(folder))
        return 7

    with LiveBatch(spark, server.address, texts(20)) as live:
        assert save(live.df, tmp_path / "out", mode="append") == 7
        assert spark.read.parquet(str(tmp_path / "out")).count() == 20
        assert live.settle() == ALL
    assert (save.name, save.__doc__) == ("save", "Saves.")


@pytest.mark.long
def test_nothing_is_told_before_the_batch_is_settled(spark: SparkSession, server: Any) -> None:
    with LiveBatch(spark, server.address, texts(20)) as live:
        sink(noop)(live.df)
        assert len(live.client.watch(0.0).outcomes) == 0
        assert live.settle() == ALL


def test_an_error_is_kept_also_when_it_is_swallowed_and_success_makes_it_good(spark: SparkSession, server: Any) -> None:
    failing = [True]

    @sink(name="flaky")
    def write(rows: DataFrame) -> None:
        noop(rows)
        if failing:
            raise OSError("disk full")

    with LiveBatch(spark, server.address, texts(20)) as live:
        with pytest.raises(OSError, match="disk full"):
            write(live.df)
        assert "sink 'flaky' raised OSError: disk full" in str(live.error)
        failing.clear()
        write(live.df)
        assert live.error is None
        assert live.settle() == ALL


def test_the_success_of_another_sink_makes_nothing_good(spark: SparkSession, server: Any) -> None:
    @sink
    def broken(rows: DataFrame) -> None:
        raise OSError("disk full")

    with LiveBatch(spark, server.address, texts(20)) as live:
        left, right = branch(live.df, 2)
        with pytest.raises(OSError, match="disk full"):
            broken(left)
        sink(noop, name="other")(right)
        assert "sink 'broken' raised OSError: disk full" in str(live.error)
        assert set(live.settle().values()) == {LOST}


def test_two_sinks_over_a_branch_both_have_to_run(spark: SparkSession, server: Any) -> None:

    with LiveBatch(spark, server.address, texts(20)) as live:
        left, right = branch(live.df, 2)
        save = sink(noop)
        save(left)
        save(right)
        assert live.settle() == ALL


@pytest.mark.long
def test_settling_cancels_what_a_sink_in_a_thread_still_runs(connected: SparkSession, tmp_path: Path) -> None:
    begun = tmp_path / "begun"

    @operator("id long")
    def slow(row: Row) -> Any:
        if not begun.exists():
            begun.touch()
            threading.Event().wait(60)
        yield (row.id,)

    raised: list[Exception] = []

    def process(batch: Batch) -> None:
        def save() -> None:
            try:
                sink(noop, name="save")(batch.df.transform(slow))
            except Exception as error:  # noqa: BLE001  # whatever the cancelled job raises
                raised.append(error)

        thread = threading.Thread(target=save)
        thread.start()
        if batch.replays:
            thread.join()
        else:
            threads.append(thread)
            eventually(begun.exists, within_s=120)

    threads: list[threading.Thread] = []
    source = Frame(connected.range(0, 20, 1, 2), name="slow", retry=Retry(initial_s=0, cap_s=0))
    assert source.run(connected, process).acked == 20
    threads[0].join()
    (error,) = raised
    assert "SPARK_JOB_CANCELLED" in str(error)


def test_a_function_whose_call_runs_nothing_is_no_sink() -> None:
    async def waits(rows: DataFrame) -> None:
        noop(rows)

    def yields(rows: DataFrame) -> Any:
        yield noop(rows)

    for function, says in ((waits, "'waits' is async"), (yields, "'yields' yields, so a call of it writes nothing")):
        with pytest.raises(TypeError, match=says):
            sink(function)


def test_rows_that_reach_no_sink_are_lost(spark: SparkSession, server: Any) -> None:
    with LiveBatch(spark, server.address, texts(20)) as live:
        live.df.count()
        assert set(live.settle().values()) == {LOST}


class Store:
    """A sink that is a method."""

    def __init__(self) -> None:
        self.saved = 0
        # Cannot be pickled.
        self.lock = threading.Lock()

    @sink
    def save(self, rows: DataFrame) -> int:
        """Saves."""
        self.saved += len(rows.collect())
        if self.saved == 20:
            raise OSError("once")
        return self.saved


def test_a_method_may_be_a_sink_and_is_the_same_one_when_it_is_called_again(spark: SparkSession, server: Any) -> None:
    store = Store()
    with LiveBatch(spark, server.address, texts(20)) as live:
        with pytest.raises(OSError, match="once"):
            store.save(live.df)
        assert store.save(live.df) == 40
        assert live.settle() == ALL
    assert (Store.save.name, Store.save.__doc__) == ("save", "Saves.")


class Place:
    """A place that a sink writes to. All places have the same repr."""

    def __init__(self, is_full: bool) -> None:
        self.is_full = is_full

    def __repr__(self) -> str:
        return "Place()"

    @sink
    def save(self, rows: DataFrame) -> None:
        """Saves."""
        save_to(rows, self)


class FullPlace(Place):
    """A place that is full by default. The object has no attributes of its own until the program sets one."""

    is_full = True

    def __init__(self, is_full: bool) -> None:
        assert is_full


def save_to(rows: DataFrame, place: Place) -> None:
    if place.is_full:
        raise OSError("disk full")
    noop(rows)


def save_to_first(rows: DataFrame, places: list[Any]) -> None:
    save_to(rows, places[0])


@pytest.mark.parametrize("save", [lambda df, place: sink(save_to)(df, place), lambda df, place: place.save(df)])
def test_a_success_with_another_object_that_looks_alike_makes_nothing_good(
    spark: SparkSession, server: Any, save: Any
) -> None:
    with LiveBatch(spark, server.address, texts(20)) as live:
        # The first Place is gone by the second call. Even at the same memory address, the two must not be confused.
        for is_full in (True, False):
            with suppress(OSError):
                save(live.df, Place(is_full))
        assert "disk full" in str(live.error)
        assert set(live.settle().values()) == {LOST}


LOCK = threading.Lock()


@pytest.mark.parametrize(
    ("save", "kind"),
    [
        (lambda df, place: place.save(df), Place),
        (lambda df, place: place.save(df), FullPlace),
        (lambda df, place: sink(save_to)(df, place), Place),
        (lambda df, place: sink(save_to)(df, place=place), Place),
        # A lock cannot be pickled.
        (lambda df, place: sink(save_to_first)(df, [place, LOCK]), Place),
    ],
    ids=["method", "method without attributes", "argument", "named", "list"],
)
def test_a_success_makes_nothing_good_if_the_program_has_changed_the_arguments_since_the_failure(
    spark: SparkSession, server: Any, save: Any, kind: type[Place]
) -> None:
    place = kind(is_full=True)
    with LiveBatch(spark, server.address, texts(20)) as live:
        with pytest.raises(OSError, match="disk full"):
            save(live.df, place)
        place.is_full = False
        save(live.df, place)
        assert "disk full" in str(live.error)
        assert set(live.settle().values()) == {LOST}


def test_a_call_that_repeats_nothing_says_why_and_blames_no_program() -> None:
    store: Any = SimpleNamespace(note_writer=None)
    node: Any = SimpleNamespace(tag="a")
    rows: Any = None
    evidence = SinkEvidence("save", store)
    evidence.begin_call(node, rows, is_changed=False)
    evidence.end_call(node, AttributeError("no token"))
    assert evidence.error is not None
    assert is_mistake(evidence.error)
    evidence.begin_call(node, rows, is_changed=True)
    evidence.end_call(node, None)
    assert str(evidence.error).startswith("sink 'save' raised AttributeError: no token; it was called again, but")
    blames = [blame(evidence.error) for blame in (is_of_the_program, is_mistake, is_without_evidence)]
    assert blames == [False, False, False]


def test_a_success_with_arguments_that_nobody_has_changed_makes_a_failure_good(
    spark: SparkSession, server: Any
) -> None:
    @sink
    def save(rows: DataFrame, tries: list[object], *, options: dict[str, object]) -> None:
        tries.append(LOCK)
        noop(rows)
        if len(tries) == 1:
            raise OSError("once")

    given: tuple[Any, Any] = [], {"lock": LOCK, "codec": "none"}
    with LiveBatch(spark, server.address, texts(20)) as live:
        with pytest.raises(OSError, match="once"):
            save(live.df, given[0], options=given[1])
        save(live.df, given[0], options=given[1])
        assert live.settle() == ALL
