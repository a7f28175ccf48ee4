"""Operators row by row, over pandas and over Arrow: their contract without Spark, and against a real server."""

from __future__ import annotations

from pipes import SCOPE, WORD, failed, ledger, over_arrow, reading, run
from pipes import sink as sink_step
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, Row, SparkSession
from trial import ACKED, FAILED, Trial, texts, words_of

from acker_client.spark import OperatorError, arrow_operator, operator, pandas_operator, sink
from acker_client.spark.operators import _over_pandas
from acker_protocol.ids import root_id


def word_batch(*words: Any) -> pa.RecordBatch:
    return pa.RecordBatch.from_pydict({"word": pa.array(words, pa.string())})


def finished(texts: list[str], function: Any, **options: Any) -> tuple[list[Any], dict[int, str]]:
    """The words that came out, and what failed, by number; everything said has to add up to zero."""
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
        (lambda batch: word_batch("x"), "returned 1 rows for 2, without parents"),
        (lambda batch: (word_batch("x"), [0, 1]), "returned 1 rows and 2 parents"),
        (lambda batch: (word_batch("x"), [2]), "2 is no parent; its input had rows 0 up to 1"),
        (lambda batch: (word_batch("x"), [-1]), "-1 is no parent"),
        (lambda batch: (word_batch("x"), [0.5]), "parents are to be whole numbers"),
        (lambda batch: (word_batch("x"), pa.array([None], pa.int64())), "parents has nulls"),
        (lambda batch: batch, "declares a field 'word', and returned ['number', 'text']"),
        (lambda batch: [1, 2], "is to return a pyarrow RecordBatch or Table, or that and parents; got list"),
        (lambda batch: pa.table({"word": [[1], [2]]}), "field 'word' is string, got list<"),
    ],
)
def test_what_breaks_the_contract_fails_the_task_and_is_named(function: Any, says: str) -> None:
    with pytest.raises(OperatorError) as error:
        run(reading(["a", "b"]), [over_arrow(function)])
    assert says in str(error.value)
    assert "operator 'words'" in str(error.value)


def test_pandas_sees_a_frame_and_its_index_is_the_parents() -> None:
    def explode(frame: Any) -> Any:
        words = frame.assign(word=frame["text"].str.split(" ")).explode("word")
        return words, words.index.to_numpy()

    words, reasons = finished(["a b", "c"], _over_pandas(explode, WORD, "words"))
    assert (words, reasons) == (["a", "b", "c"], {})


def test_a_pandas_column_of_another_type_is_named() -> None:
    with pytest.raises(OperatorError, match="operator 'words': field 'word' is string, got int64"):
        run(reading(["a"]), [over_arrow(_over_pandas(lambda frame: frame.assign(word=1), WORD, "words"))])


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


# Against a real server.


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


@pytest.mark.parametrize("split", [words, arrow_words, pandas_words], ids=lambda split: str(split.name))
@pytest.mark.parametrize("hop", [False, True], ids=["fused", "unfused"])
def test_every_record_is_acked_when_all_of_it_is_written(
    spark: SparkSession, server: Any, split: Any, hop: bool
) -> None:
    with Trial(spark, server.address, texts(20)) as trial:
        df = trial.df.select("*").transform(split).repartition(3) if hop else trial.df.transform(split)
        assert collect(df) == words_of(texts(20))
        assert trial.settle() == dict.fromkeys(range(20), ACKED)


def test_a_frame_counted_fused_and_written_unfused_is_one_derivation(spark: SparkSession, server: Any) -> None:
    with Trial(spark, server.address, texts(20)) as trial:
        split = trial.df.transform(words)
        assert split.count() == 60
        assert collect(split.select("*")) == words_of(texts(20))
        assert collect(split.select("*")) == words_of(texts(20))
        assert trial.settle() == dict.fromkeys(range(20), ACKED)


def test_a_row_that_raises_fails_its_record_alone(spark: SparkSession, server: Any) -> None:
    with Trial(spark, server.address, texts(20)) as trial:
        kept = trial.df.transform(picky)
        assert kept.columns == ["word", "number", "text", "_root", "_edge"]
        assert {number for number, _ in collect(kept)} == set(range(20)) - {3}
        assert trial.settle() == {number: FAILED if number == 3 else ACKED for number in range(20)}
        assert trial.reasons[3].startswith("picky: ValueError: not three\nTraceback")


def test_columns_that_cannot_be_kept_are_named(spark: SparkSession, server: Any) -> None:
    with Trial(spark, server.address, texts(2)) as trial:
        with pytest.raises(ValueError, match=r"keeps \['path'\], which its input does not have"):
            operator("x int", len, keep=["path"])(trial.df)
        with pytest.raises(ValueError, match=r"keeps \['text'\] and makes a column of that name too"):
            operator("text string", len, keep="*", name="again")(trial.df.select("text", "_root", "_edge"))
        with pytest.raises(ValueError, match="are the acker's own; rename '_root'"):
            operator("_root long", len)(trial.df)
        with pytest.raises(ValueError, match=r"names \['x'\] more than once"):
            operator("x int, x int", len)(trial.df)
        trial.settle()
