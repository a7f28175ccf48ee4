"""Cogroup: the reports of its task without Spark, and its rows in Spark, compared with Spark's own cogroup."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import IntegerType, StructField, StructType

from acker_client.cluster.scope import BatchScope
from acker_client.spark import OperatorError, branch, cogroup, group, operator, sink, where
from acker_client.spark.anchoring.anchors import Anchors
from acker_client.spark.anchoring.tally import MultipliedEdges, Report
from acker_client.spark.operators.cogroup import CogroupTask, Side
from acker_client.spark.operators.merging import AccountStep
from acker_client.spark.operators.read import Reading
from acker_client.spark.plan_check.plan import Refused
from acker_protocol.ids import root_id
from tests.spark import faults
from tests.spark.chains import SCOPE, Texts, arriving, failed, ledger, rows_of, run
from tests.spark.chains import sink as sink_step
from tests.spark.live_batch import ACKED, FAILED, LOST, LiveBatch, texts
from tests.spark.test_chain import as_sent
from tests.spark.test_faults_no_replay import break_down, fail_at_the_end

pytestmark = [pytest.mark.matrix, pytest.mark.sampled(3)]

ALL = dict.fromkeys(range(12), ACKED)
OTHER = BatchScope(session=8, number=5, first=1 << 50)


def joined(left: pa.Table, right: pa.Table) -> Any:
    """Return a row for each pair of left and right rows, or for each left row if there are no right ones."""
    ours, theirs = left["text"].to_pylist(), right["text"].to_pylist()
    pairs: list[tuple[int, int | None]] = list(itertools.product(range(len(ours)), range(len(theirs))))
    pairs = pairs or [(at, None) for at in range(len(ours))]
    made = [f"{ours[at]}+{'-' if other is None else theirs[other]}" for at, other in pairs]
    of_right = [[] if other is None else [other] for _, other in pairs]
    return pa.table({"text": pa.array(made, pa.string())}), [[at] for at, _ in pairs], of_right


joins = cogroup("key", "text string", name="joins")(joined)


@cogroup("key", "key long, left long, right long")
def counts(key: tuple[Any, ...], left: pa.Table, right: pa.Table) -> Any:
    """Return one row per key, with all rows of both sides as its parents, and no row for key 2."""
    if key[0].as_py() == 2:
        return pa.table({"key": [], "left": [], "right": []}), "all"
    return pa.table({"key": [key[0].as_py()], "left": [left.num_rows], "right": [right.num_rows]}), "all"


@cogroup("key", "text string")
def raises(left: pa.Table, right: pa.Table) -> Any:
    if "3" in left["text"].to_pylist() or "3" in right["text"].to_pylist():
        raise ValueError("three")
    return joined(left, right)


# Without Spark.


def read(texts: Sequence[str], scope: BatchScope) -> tuple[pa.Table, list[Report]]:
    """Read a source with these texts; return its rows and reports. The key of a row is the length of its text."""
    table, reports = run(Reading(scope, (Texts(tuple(texts)),)), [])
    keys = pa.array([len(text) for text in table["text"].to_pylist()], pa.int64()) if table.num_rows else None
    return (table.append_column("key", keys) if keys is not None else table), reports


def task_of(it: Any, right_is_tracked: bool = True) -> CogroupTask:
    task: CogroupTask = it._task(it._fields(), None, Side(), Side(is_tracked=right_is_tracked))
    return task


def cogrouped(
    task: CogroupTask, left: pa.Table, right: pa.Table, order: Callable[[int], Any] = np.arange
) -> tuple[pa.Table, list[Report]]:
    """Return the task's rows for all keys, and its reports. ``order``: the order in which rows arrive."""
    sides = [table.take(pa.array(order(table.num_rows))) for table in (left, right)]
    keys = sorted({key for table in sides for key in table["key"].to_pylist()})
    parts = []
    for key in keys:
        ours, theirs = (table.filter(pa.compute.equal(table["key"], key)) for table in sides)
        parts.append(task.of_key((pa.scalar(key),), ours, theirs))
    return arriving([AccountStep(task.merging.name)], pa.concat_tables(parts))


TEXTS = st.lists(st.text("ab", max_size=3), min_size=1, max_size=12)


@given(TEXTS, TEXTS)
@pytest.mark.parametrize("it", [joins, counts], ids=["pairs", "all"])
def test_of_two_sources_everything_that_is_said_adds_up_to_zero(it: Any, ours: list[str], theirs: list[str]) -> None:
    left, emitted = read(ours, SCOPE)
    right, emitted_there = read(theirs, OTHER)
    made, reports = cogrouped(task_of(it), left, right)
    reports += [*emitted, *emitted_there, *(arriving([sink_step()], made)[1] if made.num_rows else [])]
    roots = {root_id(SCOPE.first, at) for at in range(len(ours))} | {
        root_id(OTHER.first, at) for at in range(len(theirs))
    }
    assert ledger(reports) == dict.fromkeys(roots, 0)


@pytest.mark.long
@given(TEXTS, TEXTS, st.integers(0, 1 << 32))
@pytest.mark.parametrize("right_is_tracked", [True, False], ids=["tracked", "plain"])
def test_in_whatever_order_rows_arrive_a_cogroup_makes_the_same_rows_with_the_same_edges(
    right_is_tracked: bool, ours: list[str], theirs: list[str], seed: int
) -> None:
    left, _ = read(ours, SCOPE)
    right, _ = read(theirs, OTHER)
    right = right if right_is_tracked else right.select(["text", "key"])
    dice = np.random.default_rng(seed)
    made, reports = cogrouped(task_of(joins, right_is_tracked), left, right)
    again, reports_again = cogrouped(task_of(joins, right_is_tracked), left, right, dice.permutation)
    assert again.equals(made)
    assert as_sent(reports_again) == as_sent(reports)


@pytest.mark.parametrize("made", [[None], [1 << 40]], ids=["null", "too long"])
def test_a_value_that_does_not_fit_its_column_fails_the_records_of_its_key_alone(made: list[int | None]) -> None:
    @cogroup("key", StructType([StructField("size", IntegerType(), False)]))
    def sizes(key: Any, left: pa.Table, right: pa.Table) -> Any:
        return pa.table({"size": pa.array(made if key[0].as_py() == 2 else [1], pa.int64())}), "all"

    left, emitted = read(["a", "bb", "b"], SCOPE)
    right, emitted_there = read(["a", "cc"], OTHER)
    rows, reports = cogrouped(task_of(sizes), left, right)
    reports += [*emitted, *emitted_there, *arriving([sink_step()], rows)[1]]
    assert not any(ledger(reports).values())
    assert set(failed(reports)) == {root_id(SCOPE.first, 1), root_id(OTHER.first, 1)}
    assert rows["size"].to_pylist() == [1]


def test_rows_come_in_the_order_of_their_records() -> None:
    left, _ = read([f"{number:03}" for number in range(200)], SCOPE)
    task = task_of(cogroup("key", "text string", name="seen")(lambda left, right: (left.select(["text"])[:0], "all")))
    seen = task.left.rows(left.take(pa.array(np.random.default_rng(1).permutation(200))))
    assert seen.data["text"].to_pylist() == sorted(left["text"].to_pylist())


def test_a_group_gets_its_rows_in_the_order_of_their_records() -> None:
    table, _ = read([f"{number:03}" for number in range(200)], SCOPE)
    seen: list[str] = []

    @group("key", "text string", name="seen")
    def see(rows: pa.Table) -> Any:
        seen.extend(rows["text"].to_pylist())
        return rows.select(["text"])[:0], "all"

    task = see._task(see._fields(), None, ())
    task.of_group(table.take(pa.array(np.random.default_rng(1).permutation(200))))
    assert seen == sorted(seen)


def test_a_row_of_both_sides_carries_the_anchors_of_both() -> None:
    left, _ = read(["a", "b"], SCOPE)
    right, _ = read(["c"], OTHER)
    made, _ = cogrouped(task_of(counts), left, right)
    anchors = rows_of(made).anchors
    here, there = root_id(SCOPE.first, 0), root_id(SCOPE.first, 1)
    assert {root for root, _ in anchors.of(0)} == {here, there, root_id(OTHER.first, 0)}


def test_a_key_that_only_a_plain_table_has_becomes_nothing_and_its_rows_are_nobodys_parents() -> None:
    left, emitted = read(["a", "bb"], SCOPE)
    table = pa.table({"text": ["x", "yyy"], "key": [1, 3]})
    made, reports = cogrouped(task_of(joins, False), left, table)
    assert made["text"].to_pylist() == ["a+x", "bb+-"]
    reports += [*emitted, *arriving([sink_step()], made)[1]]
    assert set(ledger(reports)) == {root_id(SCOPE.first, 0), root_id(SCOPE.first, 1)}
    assert not any(ledger(reports).values())


def test_all_rows_of_a_key_fail_where_the_function_raises() -> None:
    left, emitted = read(["3", "bb"], SCOPE)
    right, emitted_there = read(["x", "yy"], OTHER)
    made, reports = cogrouped(task_of(raises), left, right)
    assert made["text"].to_pylist() == ["bb+yy"]
    found = failed(reports)
    assert set(found) == {root_id(SCOPE.first, 0), root_id(OTHER.first, 0)}
    assert all(reason.startswith("raises: ValueError: three") for reason in found.values())
    reports += [*emitted, *emitted_there, *arriving([sink_step()], made)[1]]
    assert not any(ledger(reports).values())


def test_copies_of_a_row_are_found_on_either_side() -> None:
    left, _ = read(["a"], SCOPE)
    for ours, theirs in ((pa.concat_tables([left, left]), left[:0]), (left, left)):
        with pytest.raises(MultipliedEdges, match="'joins' was handed several copies of one row"):
            cogrouped(task_of(joins), ours, theirs)


@given(st.lists(st.integers(0, 3), max_size=5), st.lists(st.integers(0, 3), max_size=5))
@pytest.mark.parametrize("packed", [(False, False), (True, False), (False, True), (True, True)])
def test_anchors_of_two_frames_stand_behind_each_other(
    packed: tuple[bool, bool], first: list[int], second: list[int]
) -> None:
    dice = random.Random(3)

    def made(counts: list[int], is_packed: bool) -> Anchors:
        counts = counts if is_packed else [min(count, 1) for count in counts]
        size = sum(counts) if is_packed else len(counts)
        roots, edges = (np.array([dice.getrandbits(63) + 1 for _ in range(size)], np.uint64) for _ in range(2))
        if is_packed:
            return Anchors(roots, edges, np.append([0], np.cumsum(np.array(counts, np.int64))).astype(np.int64))
        return Anchors(np.where(np.array(counts, np.uint64) > 0, roots, np.uint64(0)), edges)

    ours, theirs = made(first, packed[0]), made(second, packed[1])
    whole = ours.followed_by(theirs)
    assert whole.rows == len(first) + len(second)
    assert [whole.of(row) for row in range(whole.rows)] == [
        each.of(row) for each in (ours, theirs) for row in range(each.rows)
    ]


LEFT = pa.table({"key": [7, 7], "text": ["a", "b"]})
RIGHT = pa.table({"key": [7], "text": ["c"]})
TEXT = pa.table({"text": ["x", "y"]})


@pytest.mark.parametrize(
    ("given", "says"),
    [
        (None, "returned None: return (rows, of_left, of_right), where of_left and of_right are a list of positions"),
        (TEXT, "returned a Table: return (rows, of_left, of_right)"),
        ((TEXT, [[0], [1]]), "returned a tuple of 2: return (rows, of_left, of_right)"),
        ((TEXT, "all", [[0], [0]]), "returned a tuple of 3: return (rows, of_left, of_right)"),
        (
            (TEXT, "all"),
            "returned 2 rows and parents 'all': 'all' is for one row a group; for more, name the positions",
        ),
        ((TEXT[:1], "every"), "returned 1 rows and parents 'every'"),
        ((TEXT, [0, 1], None), ", left: parents are a list of positions for each row, as [[0, 1], [2]]"),
        ((TEXT, [[0], [1]], [[0]]), ", right returned 2 rows and 1 lists of parents; give one list for each row"),
        ((TEXT[:1], [[2]], None), ", left: parent 2 is not a position in the input, which had rows 0 to 1"),
        ((TEXT[:1], [[0]], [[1]]), ", right: parent 1 is not a position in the input, which had rows 0 to 0"),
        ((TEXT[:1], [[]], [[]]), "a row has no parents; name the rows of a tracked frame that it descends from"),
        ((TEXT[:1], None, None), "a row has no parents"),
        ((TEXT.rename_columns(["t"])[:1], "all"), "declares a column 'text', and what it returned lacks it"),
    ],
)
def test_what_a_cogroup_may_not_return_is_named(given: Any, says: str) -> None:
    with pytest.raises(OperatorError) as error:
        cogroup("key", "text string", name="c")(lambda left, right: given).test(LEFT, RIGHT)
    assert str(error.value).startswith("cogroup 'c'")
    assert says in str(error.value)


def test_parents_are_bounded_over_both_sides() -> None:
    whole = cogroup("key", "text string", name="c", parents_max=2)(lambda left, right: (TEXT[:1], "all"))
    assert whole.test(LEFT, RIGHT[:0]).to_pylist() == [{"text": "x"}]
    with pytest.raises(
        OperatorError, match="a row has 3 parents, and carries 48 bytes of anchors; above parents_max=2"
    ):
        whole.test(LEFT, RIGHT)


def test_a_row_that_names_only_rows_of_a_plain_table_has_no_parents() -> None:
    task = task_of(cogroup("key", "text string", name="c")(joined), right_is_tracked=False)
    with pytest.raises(OperatorError, match="a row has no parents; name the rows of a tracked frame that it"):
        task.checked((TEXT[:1], None, [[0]]), 2, 1)


def test_a_cogroup_is_tested_on_the_rows_of_one_key() -> None:
    assert joins.test(LEFT, RIGHT).to_pylist() == [{"text": "a+c"}, {"text": "b+c"}]
    assert counts.test(LEFT[:0], RIGHT).to_pylist() == [{"key": 7, "left": 0, "right": 1}]
    assert counts.test(LEFT, RIGHT, key=(pa.scalar(2),)).to_pylist() == []


@pytest.mark.parametrize(
    ("write", "says"),
    [
        (lambda: cogroup([], "n int"), "cogroup: keys=..; give the name of a column"),
        (lambda: cogroup("id", len), r"@cogroup needs the schema of what it makes: write @cogroup\('sku', "),  # type: ignore[arg-type]
        (lambda: cogroup("id", "n int", parents_max=0), "cogroup: parents_max=0"),
        (lambda: cogroup("id", "n int", on_error="skip"), "on_error='skip': give 'fail'"),  # type: ignore[arg-type]
        (lambda: cogroup("id", "n int")(3), "@cogroup is for a function, got an int"),  # type: ignore[arg-type]
        (lambda: cogroup("id", "n int")(lambda rows: rows), r"is called with \(left, right\), two pyarrow Tables, or"),
        (lambda: joins(LEFT, RIGHT), r"<cogroup 'joins'> is applied to a DataFrame, got a Table; .*use joins.test\("),
    ],
)
def test_wrong_arguments_of_a_cogroup_are_refused_where_they_are_written(write: Any, says: str) -> None:
    with pytest.raises((TypeError, ValueError), match=says):
        write()


# In Spark.


@sink
def collect(rows: DataFrame) -> list[Row]:
    assert not [column for column in rows.columns if column.startswith("_")]
    return sorted(rows.collect(), key=repr)


def keyed(df: DataFrame, key: str) -> DataFrame:
    return df.select(F.expr(key).cast("long").alias("key"), F.expr("cast(number as string) AS text"), "_root", "_edge")


def plain(left: DataFrame, right: DataFrame, it: Any, schema: str) -> list[Row]:
    """Return the rows that Spark's own cogroup makes with the same function."""

    def of_key(key: Any, ours: pa.Table, theirs: pa.Table) -> pa.Table:
        given = it.function(key, ours, theirs) if it.takes_key else it.function(ours, theirs)
        return given[0].cast(pa.schema([(name, kind) for name, kind in KINDS if name in given[0].column_names]))

    return sorted(left.groupBy("key").cogroup(right.groupBy("key")).applyInArrow(of_key, schema).collect(), key=repr)


KINDS = [("key", pa.int64()), ("left", pa.int64()), ("right", pa.int64()), ("text", pa.string())]


@pytest.mark.sampled(5)
@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize(
    ("it", "schema"), [(joins, "text string"), (counts, "key long, left long, right long")], ids=["pairs", "all"]
)
def test_two_frames_of_a_batch_give_what_the_plain_program_gives_and_are_done(
    spark: SparkSession, server: Any, it: Any, schema: str, seed: int
) -> None:
    dice = random.Random(seed)
    # Some keys are on one side only, and one key is null.
    ours, theirs = (f"nullif((number * {dice.randrange(1, 9)} + {at}) % {5 + at}, 4)" for at in (0, 3))
    with LiveBatch(spark, server.address, texts(12)) as live:
        left, right = branch(live.df, 2)
        kept = right.transform(where(f"number % {2 + seed} > 0"))
        rows = collect(it(keyed(left, ours), keyed(kept, theirs)))
        assert live.settle() == ALL
    numbers = spark.range(12).selectExpr("id AS number")
    plain_left, plain_right = (
        frame.selectExpr(f"cast({key} AS long) AS key", "cast(number AS string) AS text")
        for frame, key in ((numbers, ours), (numbers.where(f"number % {2 + seed} > 0"), theirs))
    )
    assert rows == plain(plain_left, plain_right, it, schema)


@pytest.mark.long
def test_a_cogroup_of_groups_and_rows_is_taken_on_by_further_steps(spark: SparkSession, server: Any) -> None:
    with LiveBatch(spark, server.address, texts(12)) as live:
        left, right = branch(live.df, 2)
        once = group("key", "key long, text string", name="once")(
            lambda rows: (rows.select(["key", "text"])[:1], "all")
        )
        made = keyed(left, "number % 4").transform(once).transform(joins, keyed(right, "number % 6"))
        twice = operator("text string", name="twice")(lambda row: [(row.text,), (row.text,)])
        # Keys 0 to 3 on the left meet two rows each. Keys 4 and 5 are on the right only.
        assert len(collect(made.repartition(2).transform(twice))) == 16
        assert live.settle() == ALL


@pytest.mark.long
def test_thin_and_packed_rows_on_one_side_meet_those_of_the_other(spark: SparkSession, server: Any) -> None:
    with LiveBatch(spark, server.address, texts(12)) as live:
        first, second, third = branch(live.df, 3)
        once = group("key", "key long, text string", name="once")(
            lambda rows: (rows.select(["key", "text"])[:1], "all")
        )
        merged = keyed(second, "number % 4").transform(once)
        mixed = keyed(first, "number % 4").unionByName(merged, allowMissingColumns=True)
        assert len(collect(joins(keyed(third, "number % 3"), mixed))) == 4 * 12
        assert live.settle() == ALL


@pytest.mark.long
@pytest.mark.parametrize("is_left", [True, False], ids=["left", "right"])
def test_a_plain_table_may_stand_on_either_side(spark: SparkSession, server: Any, is_left: bool) -> None:
    table = spark.createDataFrame([(0, "x"), (0, "y"), (9, "z")], "key long, text string")
    with LiveBatch(spark, server.address, texts(12)) as live:
        df = keyed(live.df, "number % 3")
        rows = collect(counts(table, df) if is_left else counts(df, table))
        here = [(0, 4, 2), (1, 4, 0)]
        assert rows == [(key, right, left) if is_left else (key, left, right) for key, left, right in here]
        assert live.settle() == ALL


@pytest.mark.parametrize("is_good", [True, False], ids=["good", "swallowed"])
def test_frames_of_two_sources_meet_and_each_batch_is_settled_by_its_own(
    spark: SparkSession, live: Callable[..., Any], is_good: bool
) -> None:
    one, other = live(texts(12)), live(texts(8), slices=1)
    made = joins(keyed(one.df, "number % 5"), keyed(other.df, "number % 6"))

    def write(rows: DataFrame) -> None:
        rows.write.format("noop").mode("append").save()
        if not is_good:
            rows.foreach(fall)

    with suppress(Exception):
        sink(write, name="save")(made)
    verdict = ACKED if is_good else LOST
    assert (one.error is None, other.error is None) == (is_good, is_good)
    # The sink wrote rows of both batches, so neither batch may remove the output on its own.
    assert [each.frame.evidence.is_shared for each in (one, other)] == [True, True]
    assert (set(one.settle().values()), set(other.settle().values())) == ({verdict}, {verdict})


def fall(row: Row) -> None:
    raise OSError("the other side hung up")


def test_where_a_key_raises_the_records_of_both_sources_fail_and_no_other(
    spark: SparkSession, live: Callable[..., Any]
) -> None:
    one, other = live(texts(6)), live(texts(4), slices=1)
    rows = collect(raises(keyed(one.df, "number % 4"), keyed(other.df, "number % 2")))
    assert rows == [("0+0",), ("0+2",), ("2+-",), ("4+0",), ("4+2",)]
    assert one.settle() == {number: FAILED if number in (1, 3, 5) else ACKED for number in range(6)}
    assert other.settle() == {0: ACKED, 1: FAILED, 2: ACKED, 3: FAILED}
    assert one.reasons[1].startswith("raises: ValueError: three")
    assert other.reasons[1].startswith("raises: ValueError: three")


@pytest.mark.long
def test_a_cogroup_that_is_evaluated_twice_is_done(
    spark: SparkSession, server: Any, conf: Callable[[str, str], None]
) -> None:
    conf("spark.sql.adaptive.enabled", "false")

    def look_and_write(rows: DataFrame) -> None:
        rows.count()
        rows.write.format("noop").mode("append").save()

    with LiveBatch(spark, server.address, texts(12)) as live:
        left, right = branch(live.df, 2)
        sink(look_and_write)(joins(keyed(left, "number % 4"), keyed(right, "number % 3")))
        assert live.settle() == ALL


@pytest.mark.long
def test_a_task_that_fails_behind_a_cogroup_is_run_again_and_costs_no_replay(
    spark: SparkSession, live: Callable[..., Any], tmp_path: Path
) -> None:
    one, other = live(texts(12)), live(texts(8), slices=1)
    harm = fail_at_the_end(tmp_path, break_down)

    @sink
    def save(rows: DataFrame) -> None:
        rows.mapInArrow(harm, rows.schema).write.parquet(str(tmp_path / "out"))

    save(joins(keyed(one.df, "number % 4"), keyed(other.df, "number % 4")))
    assert (tmp_path / "once").exists()
    assert spark.read.parquet(str(tmp_path / "out")).count() == 4 * 3 * 2
    assert (one.settle(), other.settle()) == (ALL, dict.fromkeys(range(8), ACKED))


@pytest.mark.long
def test_a_shuffle_file_that_is_lost_under_a_cogroup_costs_no_replay(
    spark: SparkSession, live: Callable[..., Any], conf: Callable[[str, str], None], tmp_path: Path, local_dir: Path
) -> None:
    conf("spark.sql.adaptive.enabled", "false")

    @cogroup("key", "text string")
    def losing(left: pa.Table, right: pa.Table) -> Any:
        if faults.first_time(tmp_path):
            assert faults.lose_shuffle_file(local_dir)
        return joined(left, right)

    batch = live(texts(12), slices=3)
    left, right = branch(batch.df, 2)
    assert len(collect(losing(keyed(left, "number % 6"), keyed(right.repartition(3), "number % 6")))) == 6 * 2 * 2
    assert (tmp_path / "once").exists()
    assert batch.settle() == ALL


def test_a_cogroup_without_a_sink_leaves_its_records_undone_and_is_named(spark: SparkSession, server: Any) -> None:
    with LiveBatch(spark, server.address, texts(4)) as live:
        left, right = branch(live.df, 2)
        joins(keyed(left, "number"), keyed(right, "number")).count()
        assert "no sink took the rows of operator 'joins'" in str(live.error)
        assert set(live.settle().values()) == {LOST}


def test_what_a_cogroup_returns_wrong_fails_the_task_and_no_record(spark: SparkSession, server: Any) -> None:
    wrong = cogroup("key", "text string", name="wrong")(lambda left, right: left)
    with LiveBatch(spark, server.address, texts(4)) as live:
        left, right = branch(live.df, 2)
        with pytest.raises(Exception, match="cogroup 'wrong' returned a Table: return \\(rows, of_left, of_right\\)"):
            collect(wrong(keyed(left, "number"), keyed(right, "number")))
        assert ACKED not in live.settle().values()
        assert not any("wrong" in reason for reason in live.reasons.values())


@pytest.mark.long
def test_what_may_not_meet_in_a_cogroup_is_refused_and_nothing_is_taken(spark: SparkSession, server: Any) -> None:
    table = spark.createDataFrame([(0, "x")], "key long, text string")
    with LiveBatch(spark, server.address, texts(4)) as live:
        df = keyed(live.df, "number")
        for left, right in ((df, df), (df, df.select("*")), (df.union(table.selectExpr("*", "1L", "1L")), df)):
            with pytest.raises(Refused):
                joins(left, right)
        with pytest.raises(
            Refused, match=r"the rows of source 'lines' reach it twice .*both sides of a cogroup.*branch"
        ):
            joins(df, df.select("*"))
        for left, right in ((df, df.select("key", "text")), (df.select("key", "text"), table)):
            with pytest.raises(Refused, match=r"operator 'joins' cannot take this frame: it has lost its tracking col"):
                joins(left, right)
        with pytest.raises(Refused, match=r"its rows come from LogicalRDD, which no source tracks"):
            joins(table, table)
        with pytest.raises(Refused, match=r"Filter .*where\(condition\)"):
            joins(table, df.where("key > 0"))
        with pytest.raises(ValueError, match=r"cogroup 'joins': the plain table has a column '_Root', and _root, _ed"):
            joins(df, table.withColumn("_Root", F.lit(1)))
        with pytest.raises(
            ValueError, match=r"cogroup 'joins': there is no column 'key' to group by; the frame has \['k"
        ):
            joins(df, table.withColumnRenamed("key", "k"))
        with pytest.raises(
            ValueError, match=r"the key 'key' is bigint on the left and int on the right, so no two row"
        ):
            joins(df, table.withColumn("key", F.col("key").cast("int")))
        assert len(collect(joins(df, table))) == 4
        with pytest.raises(Refused, match=r"operator 'joins' is applied twice to the rows of source 'lines'"):
            joins(df, table)
        with pytest.raises(
            Refused, match=r"cannot take the rows of source 'lines': they go to operator 'joins' already"
        ):
            counts(table, df)
        assert live.settle() == dict.fromkeys(range(4), ACKED)
