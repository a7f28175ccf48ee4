"""Operators row by row, over pandas and over Arrow: their contract without Spark, and against a real server."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    DateType,
    DayTimeIntervalType,
    DecimalType,
    DoubleType,
    IntegerType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
    TimestampNTZType,
    TimestampType,
)

from acker_client.spark import OperatorError, arrow_operator, operator, pandas_operator, sink
from acker_client.spark.operators.batch import BatchStep
from acker_client.spark.worker.returns import over_pandas
from acker_client.spark.worker.rows import Mismatch
from acker_protocol.ids import root_id
from tests.spark.chains import SCOPE, WORD, failed, ledger, over_arrow, reading, run
from tests.spark.chains import sink as sink_step
from tests.spark.live_batch import ACKED, FAILED, LiveBatch, texts, words_of


def word_batch(*words: Any) -> pa.RecordBatch:
    return pa.RecordBatch.from_pydict({"word": pa.array(words, pa.string())})


def finished(texts: list[str], function: Any, **options: Any) -> tuple[list[Any], dict[int, str]]:
    """Return the output words, and the reason of each failed number. Asserts that the reports add up to zero."""
    table, reports = run(reading(texts), [over_arrow(function, **options), sink_step()])
    assert not any(ledger(reports).values())
    numbers = {root_id(SCOPE.first, number): number for number in range(len(texts))}
    return table["word"].to_pylist() if table.num_rows else [], {
        numbers[root]: reason.split("\n")[0] for root, reason in failed(reports).items()
    }


def test_one_to_one_needs_no_parents() -> None:
    assert finished(["a", "b"], lambda batch: word_batch(*batch.column("text").to_pylist())) == (["a", "b"], {})


def test_parents_may_come_in_any_order_and_leave_rows_out() -> None:
    words, _ = finished(["a", "b", "c"], lambda batch: (word_batch("x", "y", "z"), [2, 0, 2]))
    assert words == ["x", "y", "z"]


def test_what_is_kept_is_the_parents() -> None:
    table, _ = run(reading(["a", "b", "c"]), [over_arrow(lambda batch: (word_batch("x", "y", "z"), [2, 0, 2]))])
    assert table["number"].to_pylist() == [2, 0, 2]


def test_a_task_says_why_a_row_raised_in_its_report_and_prints_nothing(
    caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    def picky(batch: pa.RecordBatch) -> Any:
        raise ValueError("not this one")

    _, reports = run(reading(["a"]), [over_arrow(picky), sink_step()])
    (reason,) = failed(reports).values()
    assert "Traceback" in reason
    assert caplog.text + "".join(capfd.readouterr()) == ""


def test_a_batch_that_raises_is_run_again_in_halves_down_to_the_culprits() -> None:
    calls: list[int] = []

    def careful(batch: pa.RecordBatch) -> Any:
        calls.append(batch.num_rows)
        if "bad" in batch.column("text").to_pylist():
            raise ValueError("a bad one")
        return word_batch(*batch.column("text").to_pylist())

    lines = ["bad" if number in (5, 77) else str(number) for number in range(100)]
    words, reasons = finished(lines, careful)
    assert words == [line for line in lines if line != "bad"]
    assert reasons == dict.fromkeys((5, 77), "words: ValueError: a bad one")
    assert len(calls) < 40


@pytest.mark.parametrize(
    ("function", "says"),
    [
        (lambda batch: word_batch("x"), "returned 1 rows for 2 input rows, and no parents"),
        (lambda batch: (word_batch("x"), [0, 1]), "returned 1 rows and 2 parents"),
        (lambda batch: (word_batch("x"), [2]), "parent 2 is not a position in the input, which had rows 0 to 1"),
        (lambda batch: (word_batch("x"), [-1]), "parent -1 is not a position"),
        (lambda batch: (word_batch("x"), [0.5]), "parents must be whole numbers"),
        (lambda batch: (word_batch("x"), pa.array([None], pa.int64())), "parents has nulls"),
        (
            lambda batch: (word_batch("x"), "all"),
            "parents must be whole numbers, one for each row, as a list or an array",
        ),
        (lambda batch: (word_batch("x"), [[0], [0, 1]]), "parents must be whole numbers, one for each row"),
        (lambda batch: (word_batch("x"), [0], 1), "returned a tuple of 3: return the rows alone, or (rows, parents)"),
        (
            lambda batch: batch,
            "declares a column 'word', and what it returned lacks it: it has ['number', 'text']",
        ),
        (
            lambda batch: None,
            "returned None where a pyarrow RecordBatch or Table is expected: return one with the rows; if",
        ),
        (
            lambda batch: [1, 2],
            "returned a list where a pyarrow RecordBatch or Table is expected: use pa.RecordBatch.from_py",
        ),
        (lambda batch: {"word": ["a", "b"]}, "returned a dict where a pyarrow RecordBatch or Table is expected"),
        (
            lambda batch: batch.to_pandas(),
            "returned a DataFrame where a pyarrow RecordBatch or Table is expected: use pa.Table.from_p",
        ),
        (lambda batch: (batch for _ in "a"), "returned a generator where a pyarrow RecordBatch or Table is expected"),
    ],
)
def test_what_breaks_the_contract_fails_the_task_and_is_named(function: Any, says: str) -> None:
    with pytest.raises(OperatorError) as error:
        run(reading(["a", "b"]), [over_arrow(function)])
    assert says in str(error.value)
    assert "operator 'words'" in str(error.value)


@pytest.mark.matrix
def test_pandas_sees_a_frame_and_its_index_is_the_parents() -> None:
    def explode(frame: Any) -> Any:
        words = frame.assign(word=frame["text"].str.split(" ")).explode("word")
        return words, words.index.to_numpy()

    words, reasons = finished(["a b", "c"], over_pandas(explode, WORD, "words"))
    assert (words, reasons) == (["a", "b", "c"], {})


@pytest.mark.parametrize(
    "reorder",
    [
        lambda frame: frame.sort_values("text"),
        lambda frame: frame.iloc[::-1],
        lambda frame: frame.sort_values("text").convert_dtypes(),
        lambda frame: frame.set_axis([2.0, 0.0, 1.0]).set_axis(np.array([2, 0, 1], np.int8)),
    ],
)
def test_a_pandas_operator_that_reorders_its_rows_without_parents_is_refused(reorder: Any) -> None:
    step = over_arrow(over_pandas(lambda frame: reorder(frame.assign(word=frame["text"])), WORD, "words"))
    with pytest.raises(OperatorError, match=r"operator 'words' .* rows were reordered.*return \(frame, frame\.index\)"):
        run(reading(["c", "a", "b"]), [step])


@pytest.mark.parametrize(
    "reindex",
    [
        lambda frame: frame.reset_index(drop=True),
        lambda frame: frame.set_axis([7, 5, 6]),
        lambda frame: frame.set_axis([0, 0, 1]),
        lambda frame: frame.set_axis(["c", "a", "b"]),
        lambda frame: frame.set_axis([2.0, 0.0, 1.0]),
        lambda frame: frame.set_axis(pd.Index([2, 0, 1], name="customer")),
        lambda frame: frame.set_axis(pd.MultiIndex.from_tuples([(2, 0), (0, 0), (1, 0)])),
        lambda frame: (frame.iloc[::-1], [2, 1, 0]),
        lambda frame: (frame.iloc[::-1], frame.index[::-1]),
    ],
)
def test_a_pandas_operator_may_give_its_rows_an_index_of_their_own(reindex: Any) -> None:
    def named(frame: Any) -> Any:
        return reindex(frame.assign(word=frame["text"]))

    found, reasons = finished(["c", "a", "b"], over_pandas(named, WORD, "words"))
    assert (sorted(found), reasons) == (["a", "b", "c"], {})


SIZE = StructType([StructField("size", IntegerType(), False)])
SIZES = {"a": 1, "null": None, "long": 2**40, "text": "x", "half": 2.5, "list": [1]}


def sizes_in_arrow(batch: pa.RecordBatch) -> Any:
    sizes = [SIZES[text] for text in batch.column("text").to_pylist()]
    return pa.table({"size": pa.array(sizes, None if "list" in batch["text"].to_pylist() else pa.int64())})


def sizes_in_pandas(frame: Any) -> Any:
    return pd.DataFrame({"size": [SIZES[text] for text in frame["text"]]})


@pytest.mark.parametrize(
    ("function", "bad", "reason"),
    [
        (sizes_in_arrow, "null", "column 'size' is declared not null, and has a null"),
        (sizes_in_arrow, "long", "column 'size' is declared int32, and is int64 in what it returned (Integer value"),
        (sizes_in_arrow, "list", "column 'size' is declared int32, and is list<item: int64> in what it returned"),
        (over_pandas(sizes_in_pandas, SIZE, "words"), "null", "column 'size' is declared not null, and has a null"),
        (over_pandas(sizes_in_pandas, SIZE, "words"), "long", "column 'size' is declared int32, and is int64 in the"),
        (over_pandas(sizes_in_pandas, SIZE, "words"), "text", "column 'size' is declared int32, and is object in the"),
        (over_pandas(sizes_in_pandas, SIZE, "words"), "half", "column 'size' is declared int32, and is float64 in"),
        (over_pandas(sizes_in_pandas, SIZE, "words"), "list", "column 'size' is declared int32, and is object in the"),
    ],
)
def test_a_value_that_does_not_fit_its_column_fails_its_record_alone(function: Any, bad: str, reason: str) -> None:
    texts = [bad if number in (5, 77) else "a" for number in range(100)]
    step = BatchStep("words", function, SIZE, ("number",), "fail", True)
    table, reports = run(reading(texts), [step, sink_step()])
    assert table["number"].to_pylist() == [number for number in range(100) if number not in (5, 77)]
    assert set(failed(reports)) == {root_id(SCOPE.first, number) for number in (5, 77)}
    assert all(f"words: Mismatch: operator 'words': {reason}" in text for text in failed(reports).values())
    assert not any(ledger(reports).values())


def test_a_value_that_does_not_fit_its_column_fails_the_task_with_on_error_raise() -> None:
    step = BatchStep("words", sizes_in_arrow, SIZE, (), "raise", True)
    with pytest.raises(Mismatch, match="column 'size' is declared not null"):
        run(reading(["a", "null"]), [step])


def test_a_pandas_column_of_another_type_is_named() -> None:
    words, reasons = finished(["a"], over_pandas(lambda frame: frame.assign(word=1), WORD, "words"))
    assert words == []
    assert "'word' is declared string, and is int64 in the frame (Expected" in reasons[0]
    assert reasons[0].endswith("; cast it, or declare what it is")


@pytest.mark.parametrize(
    ("given", "says"),
    [
        (
            lambda frame: frame["text"],
            "returned a Series where a pandas DataFrame is expected: return a DataFrame, as series",
        ),
        (lambda frame: None, "returned None where a pandas DataFrame is expected"),
        (
            lambda frame: {"word": ["a"]},
            "returned a dict where a pandas DataFrame is expected: return pandas.DataFrame(...)",
        ),
        (
            lambda frame: [frame],
            "returned a list where a pandas DataFrame is expected: return a DataFrame, as pandas.concat",
        ),
        (
            lambda frame: word_batch("a"),
            "returned a RecordBatch where a pandas DataFrame is expected: use @arrow_operator",
        ),
        (
            lambda frame: (frame for _ in "a"),
            "returned a generator where a pandas DataFrame is expected: return one, do not",
        ),
        (
            lambda frame: "text",
            "returned a str where a pandas DataFrame is expected: return a frame of the declared columns",
        ),
        (lambda frame: frame, "declares a column 'word', and the frame lacks it: it has ['number', 'text']"),
        (lambda frame: (frame.assign(word="a"), [0], 1), "returned a tuple of 3"),
        (lambda frame: (frame.assign(word="a"), "all"), "parents must be whole numbers"),
        (lambda frame: frame.assign(word="a")[:0], "returned 0 rows for 1 input rows, and no parents"),
        (
            lambda frame: frame.assign(word="a", other="b").set_axis(["n", "word", "word", "x"], axis=1),
            "declares a column 'word', and the frame has it more than once",
        ),
    ],
)
def test_what_a_pandas_operator_may_not_return_is_named(given: Any, says: str) -> None:
    with pytest.raises(OperatorError) as error:
        run(reading(["a"]), [over_arrow(over_pandas(given, WORD, "words"))])
    assert says in str(error.value)
    assert "RecordBatch or Table" not in str(error.value)


ANY = StructType(
    [
        StructField("text", StringType()),
        StructField("bytes", BinaryType()),
        StructField("flag", BooleanType()),
        StructField("int", IntegerType()),
        StructField("double", DoubleType()),
        StructField("decimal", DecimalType(10, 2)),
        StructField("day", DateType()),
        StructField("at", TimestampType()),
        StructField("at_ntz", TimestampNTZType()),
        StructField("took", DayTimeIntervalType()),
        StructField("list", ArrayType(LongType())),
        StructField("struct", StructType([StructField("x", LongType())])),
        StructField("map", MapType(StringType(), LongType())),
    ]
)


@pytest.mark.matrix
@pytest.mark.parametrize("dtype", ["float64", "int64", "object", "datetime64[ns]", "bool", "Int64", "string"])
def test_a_frame_without_rows_is_taken_for_columns_of_every_type(dtype: str) -> None:
    empty = pd.DataFrame({name: pd.Series([], dtype=dtype) for name in ANY.names})
    step = BatchStep("words", over_pandas(lambda frame: (empty, []), ANY, "words"), ANY, (), "fail", True)
    table, reports = run(reading(["a", "b"]), [step, sink_step()])
    assert (table.num_rows, table.schema.names) == (0, [*ANY.names, "_root", "_edge"])
    assert not any(ledger(reports).values())


@pytest.mark.parametrize("nothing", [None, float("nan"), pd.NaT, pd.NA, np.float64("nan"), np.datetime64("NaT")])
def test_a_column_of_nulls_is_taken_for_every_type(nothing: Any) -> None:
    def nulls(frame: Any) -> Any:
        return pd.DataFrame({name: pd.Series([nothing] * len(frame)) for name in ANY.names})

    step = BatchStep("words", over_pandas(nulls, ANY, "words"), ANY, (), "fail", True)
    table, _ = run(reading(["a", "b"]), [step, sink_step()])
    assert [table[name].null_count for name in ANY.names] == [2] * len(ANY.names)


def test_numbers_are_not_taken_for_bytes() -> None:
    schema = StructType([StructField("bytes", BinaryType())])
    step = BatchStep("words", over_pandas(lambda f: f.assign(bytes=1.5), schema, "words"), schema, (), "fail", True)
    table, reports = run(reading(["a"]), [step])
    assert table.num_rows == 0
    [reason] = failed(reports).values()
    assert "column 'bytes' is declared binary, and is float64" in reason


def test_the_function_stays_the_users() -> None:
    def upper(row: Row) -> Any:
        """Shouts."""
        return (row.text.upper(),)

    made = operator("word string")(upper)
    assert made.function is upper
    assert made.function(Row(text="a")) == ("A",)
    assert (made.name, made.__doc__) == ("upper", "Shouts.")
    assert operator("word string", upper, name="shout").name == "shout"


def test_declarations_that_cannot_be_are_refused() -> None:
    with pytest.raises(ValueError, match="on_error='ignore': give 'fail'"):
        operator("x int", on_error="ignore")(len)  # type: ignore[call-overload]
    with pytest.raises(ValueError, match="keep='path': give a list"):
        operator("x int", keep="path")(len)
    with pytest.raises(TypeError, match="keep=3; give a list"):
        operator("x int", keep=3)(len)  # type: ignore[call-overload]


@pytest.mark.parametrize(
    ("declare", "says"),
    [
        # mypy refuses the calls with a type: ignore, too.
        (lambda: operator(len), r"@operator needs the schema .*: write @operator\('word string, count int'\) above"),  # type: ignore[call-overload]
        (lambda: pandas_operator(len), r"@pandas_operator needs the schema .*: write @pandas_operator\('word"),  # type: ignore[arg-type]
        (lambda: arrow_operator(len), r"@arrow_operator needs the schema .*: write @arrow_operator\('word"),  # type: ignore[arg-type]
        (lambda: operator(None), "@operator: the schema is a NoneType; give a StructType, or write it like"),  # type: ignore[call-overload]
        (lambda: operator(LongType()), "@operator: the schema is a LongType; give a StructType"),  # type: ignore[call-overload]
        (lambda: operator("word strin"), "@operator: the schema 'word strin' cannot be read: .*write it like"),
        (lambda: operator("word string count int"), "@operator: the schema 'word string count int' cannot be read"),
        (lambda: pandas_operator("a array<int"), "@pandas_operator: the schema 'a array<int' cannot be read"),
        (lambda: operator("a int, _ROOT long"), "are the acker's own; rename '_ROOT'"),
        (lambda: operator("a int, a long"), "names .'a'. more than once"),
        (lambda: operator("a int", 5), "@operator is for a function, got an int"),  # type: ignore[call-overload]
        (lambda: operator("a int", name="")(len), "@operator: name=''; give a name"),
        (lambda: operator("a int", functools.partial(max, 1)), "has no name of its own; give it one with name="),
        (lambda: operator("a int", lambda: 1), "is called with one argument, a Row, and takes \\(\\); write a plain"),  # type: ignore[arg-type, misc]
        (
            lambda: arrow_operator("a int")(lambda a, b: 1),  # type: ignore[arg-type, misc]
            "is called with one argument, a pyarrow RecordBatch, and takes",
        ),
        (lambda: operator("a int", waiting), "'waiting' is async, and is called as a plain function"),
    ],
)
def test_what_is_declared_wrong_is_refused_where_it_is_written(spark: SparkSession, declare: Any, says: str) -> None:
    with pytest.raises((TypeError, ValueError), match=says):
        declare()


async def waiting(row: Row) -> int:
    return 1


@operator("sku string, qty int", keep=["path"])
def items(row: Row) -> Any:
    return [(sku, qty) for sku, qty in row.items]


def test_an_operator_is_tested_on_a_row_and_held_against_its_schema() -> None:
    assert items.test(Row(items=[("a", 1), ("b", 2)], path="x")) == [
        Row(sku="a", qty=1, path="x"),
        Row(sku="b", qty=2, path="x"),
    ]
    assert items.test(Row(items=[], path="x")) == []
    with pytest.raises(Mismatch, match=r"field 'qty' is int, got '1' \(str\)"):
        items.test(Row(items=[("a", "1")], path="x"))
    with pytest.raises(Mismatch, match="give 2 values of"):
        operator("a int, b int", lambda row: (1,)).test(Row())
    with pytest.raises(ValueError, match=r"keeps \['path'\], which its input does not have: it has \['items'\]"):
        items.test(Row(items=[("a", 1)]))
    with pytest.raises(Mismatch, match="got a DataFrame: a function that returns frames is a @pandas_operator"):
        operator("a int", lambda row: pd.DataFrame({"a": [1]})).test(Row())
    with pytest.raises(TypeError, match=r"got a Row; to try it without Spark, use items.test\(Row\(...\)\)"):
        items(Row(items=[], path="x"))  # type: ignore[arg-type]


@pytest.mark.matrix
def test_batch_operators_are_tested_on_a_batch_of_their_kind() -> None:
    table = pa.table({"number": [7, 8], "text": ["a b", "c"]})
    expected = {"word": ["a", "b", "c"], "number": [7, 7, 8]}
    assert arrow_words.test(table).to_pydict() == expected
    assert arrow_words.test(table.to_batches()[0]).to_pydict() == expected
    frame = pandas_words.test(table.to_pandas())
    assert frame.to_dict("list") == expected
    with pytest.raises(OperatorError, match="returned a Series"):
        pandas_operator("a int")(lambda frame: frame["number"]).test(table.to_pandas())


# Against a real server.


MAPS = "counts map<string,bigint>, deep array<map<string,bigint>>"


@pandas_operator(f"shown string, {MAPS}")
def shown(frame: pd.DataFrame) -> pd.DataFrame:
    return frame.assign(
        shown=[repr((counts, list(deep))) for counts, deep in zip(frame.counts, frame.deep, strict=True)]
    )


def shown_by_spark(frames: Iterator[pd.DataFrame]) -> Iterator[pd.DataFrame]:
    yield from map(shown.function, frames)


def test_a_pandas_operator_gets_maps_as_a_function_of_sparks_gets_them_and_may_return_them(
    spark: SparkSession, server: Any
) -> None:
    with LiveBatch(spark, server.address, texts(3)) as live:
        counts = F.when(F.col("number") == 1, None).otherwise(F.create_map("text", "number", F.lit("x"), F.lit(7)))
        maps = live.df.withColumn("counts", counts).withColumn("deep", F.array("counts"))
        expected = maps.select("counts", "deep").mapInPandas(shown_by_spark, f"shown string, {MAPS}").collect()
        found: list[Row] = []

        @sink
        def keep(rows: DataFrame) -> None:
            found.extend(rows.collect())

        keep(maps.transform(shown))
        assert sorted(found, key=str) == sorted(expected, key=str)
        assert expected[0].counts == {"w0.0 w0.1 w0.2": 0, "x": 7}
        assert set(live.settle().values()) == {ACKED}


@operator("word string", keep=["number"])
def words(row: Row) -> Any:
    yield from row.text.split()


@arrow_operator("word string", keep=["number"])
def arrow_words(batch: pa.RecordBatch) -> Any:
    lists = [text.split() for text in batch.column("text").to_pylist()]
    parents = [index for index, found in enumerate(lists) for _ in found]
    return word_batch(*[word for found in lists for word in found]), parents


@pandas_operator("word string", keep=["number"])
def pandas_words(frame: Any) -> Any:
    found = frame.assign(word=frame["text"].str.split(" ")).explode("word")
    return found, found.index.to_numpy()


@operator("word string", keep="*")
def picky(row: Row) -> Any:
    if row.number == 3:
        raise ValueError("not three")
    yield row.text.split()[0]


@sink
def collect(rows: DataFrame) -> set[tuple[int, str]]:
    assert not {"_root", "_edge", "_anchors"} & set(rows.columns)
    return {(row.number, row.word) for row in rows.collect()}


@pytest.mark.matrix
@pytest.mark.parametrize("split", [words, arrow_words, pandas_words], ids=lambda split: str(split.name))
@pytest.mark.parametrize("hop", [False, True], ids=["fused", "unfused"])
def test_every_record_is_acked_when_all_of_it_is_written(
    spark: SparkSession, server: Any, split: Any, hop: bool
) -> None:
    with LiveBatch(spark, server.address, texts(20)) as live:
        df = live.df.alias("rows").transform(split).repartition(3) if hop else live.df.transform(split)
        assert collect(df) == words_of(texts(20))
        assert live.settle() == dict.fromkeys(range(20), ACKED)


@pytest.mark.matrix
def test_a_frame_counted_fused_and_written_unfused_is_one_derivation(spark: SparkSession, server: Any) -> None:
    with LiveBatch(spark, server.address, texts(20)) as live:
        split = live.df.transform(words)
        assert split.count() == 60
        assert collect(split.alias("rows")) == words_of(texts(20))
        assert collect(split.alias("rows")) == words_of(texts(20))
        assert live.settle() == dict.fromkeys(range(20), ACKED)


@pytest.mark.matrix
def test_a_row_that_raises_fails_its_record_alone(spark: SparkSession, server: Any) -> None:
    with LiveBatch(spark, server.address, texts(20)) as live:
        kept = live.df.transform(picky)
        assert kept.columns == ["word", "number", "text", "_root", "_edge"]
        assert {number for number, _ in collect(kept)} == set(range(20)) - {3}
        assert live.settle() == {number: FAILED if number == 3 else ACKED for number in range(20)}
        assert live.reasons[3].startswith("picky: ValueError: not three\nTraceback")


def test_columns_that_cannot_be_kept_are_named(spark: SparkSession, server: Any) -> None:
    with LiveBatch(spark, server.address, texts(2)) as live:
        with pytest.raises(ValueError, match=r"keeps \['path'\], which its input does not have"):
            operator("x int", len, keep=["path"])(live.df)
        with pytest.raises(ValueError, match=r"keeps \['text'\] and makes a column of that name too"):
            operator("text string", len, keep="*", name="again")(live.df.select("text", "_root", "_edge"))
        with pytest.raises(ValueError, match="are the acker's own; rename '_root'"):
            operator("_root long", len)(live.df)
        with pytest.raises(ValueError, match=r"names \['x'\] more than once"):
            operator("x int, x int", len)(live.df)
        live.settle()
