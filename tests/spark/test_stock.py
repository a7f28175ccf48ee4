"""Stock operators in Spark with a real server: they track the rows that Spark's own operators would lose."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from acker_client.spark import OperatorError, branch, explode, group, join, operator, sink, where
from acker_client.spark.operators.join import _refuse_inexact
from acker_client.spark.worker.rows import Mismatch
from tests.spark.live_batch import ACKED, LOST, LiveBatch, texts

pytestmark = pytest.mark.matrix

ALL = dict.fromkeys(range(20), ACKED)


@sink
def collect(rows: DataFrame) -> list[Row]:
    assert not [column for column in rows.columns if column.startswith("_")]
    return sorted(rows.collect())


@operator("word string", keep=["number"])
def words(row: Row) -> Any:
    return row.text.split()


def test_what_where_drops_is_acked(spark: SparkSession, server: Any) -> None:
    with LiveBatch(spark, server.address, texts(20)) as live:
        rows = collect(live.df.transform(where("number % 2 = 0")).transform(words))
        assert {row.number for row in rows} == set(range(0, 20, 2))
        assert live.settle() == ALL


def test_null_conditions_drop_as_in_spark(spark: SparkSession, server: Any) -> None:
    with LiveBatch(spark, server.address, texts(20)) as live:
        assert collect(live.df.transform(where(F.when(F.col("number") < 3, None).otherwise(False)))) == []
        assert live.settle() == ALL


def test_a_condition_that_is_neither_true_nor_false_is_refused(spark: SparkSession, server: Any) -> None:
    with LiveBatch(spark, server.address, texts(4)) as live:
        for condition, kind in (("number", "bigint"), ("text", "string"), (F.lit(1), "int")):
            with pytest.raises(ValueError, match=f"where: the condition .* is of type {kind}; give one that"):
                live.df.transform(where(condition))
        assert collect(live.df.transform(where(F.lit(None)))) == []
        assert live.settle() == dict.fromkeys(range(4), ACKED)


def test_explode_gives_every_element_an_edge(spark: SparkSession, server: Any) -> None:
    with LiveBatch(spark, server.address, texts(20)) as live:
        split = live.df.withColumn("word", F.split("text", " "))
        rows = collect(split.transform(explode("word")))
        assert [(row.number, row.word) for row in rows] == sorted(
            (n, word) for n, text in enumerate(texts(20)) for word in text.split()
        )
        assert live.settle() == ALL


def test_explode_of_maps_and_outer(spark: SparkSession, server: Any) -> None:
    with LiveBatch(spark, server.address, texts(20)) as live:
        mapped = live.df.select(
            "number",
            F.expr("CASE WHEN number % 3 = 0 THEN map('a', number, 'b', 2) WHEN number % 3 = 1 THEN map() END").alias(
                "m"
            ),
            "_root",
            "_edge",
        )
        rows = collect(mapped.transform(explode("m", ("k", "v"), outer=True)))
        assert rows[:4] == [
            Row(number=0, k="a", v=0),
            Row(number=0, k="b", v=2),
            (1, None, None),
            (2, None, None),
        ]
        assert live.settle() == ALL


def test_both_branches_have_to_be_written(spark: SparkSession, server: Any) -> None:
    with LiveBatch(spark, server.address, texts(20)) as live:
        left, right = branch(live.df, 2)
        assert len(collect(left)) == len(collect(right.transform(where("number < 10")))) * 2
        assert live.settle() == ALL


def test_a_branch_that_nobody_takes_leaves_its_records_undone(spark: SparkSession, server: Any) -> None:
    with LiveBatch(spark, server.address, texts(20)) as live:
        left, _ = branch(live.df, 2)
        collect(left)
        assert set(live.settle().values()) == {LOST}


@pytest.mark.long
def test_branch_caches_where_boundaries_may_move(spark: SparkSession, server: Any) -> None:
    with LiveBatch(spark, server.address, texts(20)) as live:
        left, right = branch(live.df.orderBy(F.rand()), 2)
        collect(left)
        collect(right)
        assert live.settle() == ALL
        live.frame.evidence.release()


@pytest.mark.long
def test_inner_join_multiplies_and_drops(spark: SparkSession, server: Any) -> None:
    small = spark.createDataFrame([(0, "x", 1), (0, "y", 2), (3, "z", 3)], "number long, tag string, weight long")
    with LiveBatch(spark, server.address, texts(20)) as live:
        rows = collect(live.df.transform(join(small, "number")).select("number", "tag", "weight", "_root", "_edge"))
        assert rows == [(0, "x", 1), (0, "y", 2), (3, "z", 3)]
        assert live.settle() == ALL


def test_a_join_on_text_of_the_table_with_a_number_is_refused(spark: SparkSession, server: Any) -> None:
    small = spark.createDataFrame([("1", "x"), ("01", "y")], "number string, tag string")
    says = r"'number' is bigint on the tracked side and text in the table.*cast"
    with LiveBatch(spark, server.address, texts(2)) as live, pytest.raises(ValueError, match=says):
        live.df.transform(join(small, "number"))


@pytest.mark.parametrize(
    ("tracked", "table", "is_refused"),
    [
        ("double", "bigint", True),
        ("float", "int", True),
        ("float", "bigint", True),
        ("double", "decimal(18,2)", True),
        ("string", "decimal(18,2)", True),
        ("decimal(38,20)", "bigint", True),
        ("decimal(15,2)", "decimal(38,0)", True),
        ("timestamp", "timestamp_ntz", True),
        ("array<double>", "array<bigint>", True),
        ("struct<a: int, b: double>", "struct<a: int, b: bigint>", True),
        ("bigint", "double", False),
        ("int", "bigint", False),
        ("bigint", "int", False),
        ("double", "int", False),
        ("float", "smallint", False),
        ("double", "float", False),
        ("float", "double", False),
        ("double", "decimal(15,2)", False),
        ("bigint", "decimal(38,0)", False),
        ("bigint", "decimal(38,18)", False),
        ("decimal(38,18)", "bigint", False),
        ("decimal(15,2)", "double", False),
        ("decimal(18,2)", "decimal(10,4)", False),
        ("string", "bigint", False),
        ("timestamp", "date", False),
        ("timestamp_ntz", "timestamp", False),
        ("array<double>", "array<int>", False),
    ],
)
def test_a_join_is_refused_only_on_a_key_that_spark_would_round(
    spark: SparkSession, tracked: str, table: str, is_refused: bool
) -> None:
    sides: list[Any] = [StructType.fromDDL(f"k {kind}") for kind in (tracked, table)]
    ours, theirs = sides
    if is_refused:
        with pytest.raises(
            ValueError, match=r"the key 'k' is .* in the table, where several .* may be one value.*cast"
        ):
            _refuse_inexact("join", ours, theirs, ["k"])
    else:
        _refuse_inexact("join", ours, theirs, ["k"])


@pytest.mark.long
def test_left_join_keeps_rows_without_a_match(spark: SparkSession, server: Any) -> None:
    small = spark.createDataFrame([(0, "x"), (0, "y"), (3, None)], "number long, tag string")
    with LiveBatch(spark, server.address, texts(20)) as live:
        rows = [
            (row.number, row.tag) for row in live.df.transform(join(small, "number", "left")).transform(as_is).collect()
        ]
        assert Counter(rows) == Counter([(0, "x"), (0, "y"), *((number, None) for number in range(1, 20))])
        # Collected rows are not written.
        assert ACKED not in live.settle().values()


@operator("tag string", keep=["number"])
def as_is(row: Row) -> Any:
    return (row.tag,)


@group("first", "first long, total long")
def totals(rows: pa.Table) -> Any:
    return pa.table({"first": rows["first"][:1], "total": [pc.sum(rows["number"]).as_py()]}), "all"


@group("first", "number long")
def evens(rows: pa.Table) -> Any:
    numbers = rows["number"].to_pylist()
    kept = [index for index, number in enumerate(numbers) if number % 2 == 0]
    return pa.table({"number": pa.array([numbers[index] for index in kept], pa.int64())}), [[index] for index in kept]


@pytest.mark.long
def test_a_group_is_done_when_its_row_is(spark: SparkSession, server: Any) -> None:
    with LiveBatch(spark, server.address, texts(20)) as live:
        rows = collect(live.df.withColumn("first", F.col("number") % 3).transform(totals))
        assert rows == [(0, 63), (1, 70), (2, 57)]
        assert live.settle() == ALL


def test_a_group_over_children_merges_their_edges(spark: SparkSession, server: Any) -> None:
    with LiveBatch(spark, server.address, texts(20)) as live:
        many = live.df.transform(words).withColumn("first", F.lit(1).cast("long")).transform(totals)
        assert collect(many.transform(where("total > 0")).transform(explode_twice)) == [(570,)] * 2
        assert live.settle() == ALL


@operator("total long")
def explode_twice(row: Row) -> Any:
    yield row.total
    yield row.total


def test_rows_that_no_output_names_are_done(spark: SparkSession, server: Any) -> None:
    with LiveBatch(spark, server.address, texts(20)) as live:
        rows = collect(live.df.withColumn("first", F.col("number") % 4).transform(evens))
        assert [row.number for row in rows] == list(range(0, 20, 2))
        assert live.settle() == ALL


TABLE = pa.table({"number": [1, 2, 3], "word": ["a", "b", "c"]})


@pytest.mark.parametrize(
    ("given", "says"),
    [
        (None, "returned None: return (rows, parents), where parents is a list of positions for each row, or (rows"),
        (TABLE, "returned a Table: return (rows, parents)"),
        ((TABLE, "all", 1), "returned a tuple of 3: return (rows, parents)"),
        (
            (TABLE, "all"),
            "returned 3 rows and parents 'all': 'all' is for one row a group; for more, name the positions",
        ),
        ((TABLE[:1], "every"), "returned 1 rows and parents 'every'"),
        ((TABLE, [0, 1, 2]), "parents are a list of positions for each row, as [[0, 1], [2]], or 'all'; got [0, 1, 2]"),
        ((TABLE, None), "parents are a list of positions for each row, as [[0, 1], [2]], or 'all'; got None"),
        ((TABLE, [[0], [1]]), "returned 3 rows and 2 lists of parents; give one list for each row"),
        ((TABLE[:1], [[3]]), "parent 3 is not a position in the input, which had rows 0 to 2"),
        ((TABLE[:1], [["a"]]), "parents must be whole numbers"),
        ((TABLE[:1], [[]]), "a row has no parents; name the rows that it descends from"),
        (
            (TABLE.to_pandas(), "all"),
            "returned a DataFrame where a pyarrow RecordBatch or Table is expected: use pa.Table.from",
        ),
        ((TABLE.select(["word"])[:1], "all"), "declares a column 'number', and what it returned lacks it"),
    ],
)
def test_what_a_group_may_not_return_is_named(spark: SparkSession, given: Any, says: str) -> None:
    with pytest.raises(OperatorError) as error:
        group("word", "number long", name="g")(lambda rows: given).test(TABLE)
    assert str(error.value).startswith("group 'g'")
    assert says in str(error.value)


def test_a_group_is_tested_for_values_that_do_not_fit(spark: SparkSession) -> None:
    texts = TABLE.set_column(0, "number", pa.array(["x"] * 3))[:1]
    with pytest.raises(Mismatch, match=r"^group 'g': column 'number' is declared int64, and is string"):
        group("word", "number long", name="g")(lambda rows: (texts, "all")).test(TABLE)


def test_a_group_is_tested_on_the_rows_of_one() -> None:
    table = pa.table({"first": [1, 1], "number": [3, 4]})
    assert totals.test(table).to_pylist() == [{"first": 1, "total": 7}]
    assert evens.test(table).to_pylist() == [{"number": 4}]


def test_what_a_group_returns_wrong_fails_the_task_and_no_record(spark: SparkSession, server: Any) -> None:
    wrong = group("number", "number long", name="wrong")(lambda rows: rows)
    with LiveBatch(spark, server.address, texts(4)) as live:
        with pytest.raises(Exception, match="group 'wrong' returned a Table: return \\(rows, parents\\)"):
            collect(live.df.transform(wrong))
        assert ACKED not in live.settle().values()
        assert not any("wrong" in reason for reason in live.reasons.values())


@pytest.mark.parametrize(
    ("write", "says"),
    [
        # mypy refuses the calls with a type: ignore, too.
        (
            lambda df: where(lambda row: True),  # type: ignore[arg-type]
            "where: the condition is a function; give SQL, .*use an @operator that yields",
        ),
        (lambda df: where(True), "where: the condition is a bool"),  # type: ignore[arg-type]
        (lambda df: where(" "), "where: the condition is empty"),
        (lambda df: where("x > 1", name=""), "where: name=''; give a name"),
        (
            lambda df: explode(F.col("words")),  # type: ignore[arg-type]
            "explode: column is a Column; give the name of a column of arrays or maps",
        ),
        (lambda df: explode("words", 3), "explode: into=3; give the name of the elements' column"),  # type: ignore[arg-type]
        (lambda df: explode("words", ("k", 1)), "explode: into=.*; give the name of the elements' column"),  # type: ignore[arg-type]
        (lambda df: join("prices", "sku"), r"join: the table is a str; give a DataFrame: join\(spark.table"),  # type: ignore[arg-type]
        (lambda df: join(df, F.col("id")), "join: on=Column.*; give the name of a column, or a list of names"),  # type: ignore[arg-type]
        (lambda df: join(df, [F.col("id")]), "join: on=.*; give the name of a column, or a list of names"),  # type: ignore[list-item]
        (lambda df: join(df, []), "join: on=..; give the name of a column"),
        (lambda df: join(df, "sku"), r"join: on='sku'; give columns that both sides have; the table has \['id'\]"),
        (lambda df: join(df, "id", "outer"), "join: how='outer'; give 'inner' or 'left'"),  # type: ignore[arg-type]
        (lambda df: group(F.col("id"), "n int"), "group: keys=.*; give the name of a column, or a list of names"),  # type: ignore[arg-type]
        (lambda df: group([], "n int"), "group: keys=..; give the name of a column"),
        (lambda df: group("id", len), r"@group needs the schema of what it makes: write @group\('sku', "),  # type: ignore[arg-type]
        (lambda df: group("id", "n in"), "@group: the schema 'n in' cannot be read"),
        (lambda df: group("id", "n int", parents_max=0), "group: parents_max=0"),
        (lambda df: group("id", "n int", on_error="skip"), "on_error='skip': give 'fail'"),  # type: ignore[arg-type]
        (lambda df: group("id", "n int")(lambda key, rows: rows), "is called with one argument, a pyarrow Table"),  # type: ignore[arg-type, misc]
        (lambda df: branch(df, "2"), r"branch: copies='2'; give how many frames you need, as branch\(df, 2\)"),  # type: ignore[arg-type]
        (lambda df: branch(df, True), "branch: copies=True"),
        (lambda df: branch(2, df), "branch is applied to a tracked DataFrame, got an int; start from batch.df"),  # type: ignore[arg-type]
        (lambda df: where("id > 1")(None), "where is applied to a tracked DataFrame, got None"),  # type: ignore[arg-type]
        (lambda df: explode("words")(df.columns), "explode is applied to a tracked DataFrame, got a list"),
        (lambda df: join(df, "id")(1), "join is applied to a tracked DataFrame, got an int"),  # type: ignore[arg-type]
        (
            lambda df: totals(TABLE),
            r"<group 'totals'> is applied to a DataFrame, got a Table; .*use totals.test\(table\)",
        ),
    ],
)
def test_wrong_arguments_are_refused_where_they_are_written(spark: SparkSession, write: Any, says: str) -> None:
    with pytest.raises((TypeError, ValueError), match=says):
        write(spark.range(2))
