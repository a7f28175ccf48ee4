"""Large rows: output is cut by bytes, too, and cuts change neither rows nor reports."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyspark.sql import Row
from pyspark.sql.types import ArrayType, IntegerType, StructField, StructType

from acker_client.spark.anchoring import sizes
from acker_client.spark.operators.batch import BatchStep
from acker_client.spark.operators.explode import ExplodeStep
from acker_client.spark.operators.row import RowStep
from acker_client.spark.worker.chain import Arriving, Chain, Step
from acker_client.spark.worker.rows import RowWriter
from acker_protocol.ids import root_id
from tests.spark.chains import SCOPE, SETTINGS, TEXT, WORD, arriving, failed, ledger, reading, run, sink
from tests.spark.test_chain import as_sent

COPIES = 140
LARGE = 16 << 20

PART = StructType([StructField("part", IntegerType())])
ALL = StructType([StructField("parts", ArrayType(IntegerType())), *TEXT.fields])


def in_rows(row: Row) -> Iterator[tuple[int]]:
    yield from ((part,) for part in range(COPIES))


def in_arrow(batch: pa.RecordBatch) -> Any:
    parents = np.repeat(np.arange(batch.num_rows), COPIES)
    return pa.table({"part": pa.array(np.tile(np.arange(COPIES), batch.num_rows), pa.int32())}), parents


STEPS: dict[str, Step] = {
    "rows": RowStep("parts", in_rows, ALL, PART, ("text", "number"), "fail"),
    "arrow": BatchStep("parts", in_arrow, PART, ("text", "number"), "fail", True),
    "explode": ExplodeStep("parts", "parts", ("part",), ("text", "number"), False, False),
}


def with_parts(texts: list[str], parts: list[list[int]]) -> pa.Table:
    """Return read rows with a first column to explode."""
    read, _ = run(reading(texts), [])
    return read.add_column(0, "parts", pa.array(parts, pa.list_(pa.int32())))


@pytest.mark.parametrize("step", STEPS.values(), ids=STEPS)
def test_a_record_whose_rows_are_larger_than_an_arrow_column_is_processed(step: Step) -> None:
    given = with_parts(["x" * LARGE], [list(range(COPIES))])
    found = 0
    for batch in Chain(SETTINGS, Arriving(), (step,)).run(given.to_batches(), lambda report: None):
        assert batch.nbytes < 2 * sizes.BATCH_BYTES
        found += batch.num_rows
    assert found == COPIES


@settings(max_examples=20)
@given(st.lists(st.text("ab ", max_size=30), min_size=1, max_size=6), st.integers(1, 200))
@pytest.mark.parametrize("step", STEPS.values(), ids=STEPS)
def test_cuts_by_bytes_change_neither_rows_nor_reports(step: Step, texts: list[str], limit: int) -> None:
    given = with_parts(texts, [list(range(len(text))) for text in texts])
    whole, reports = arriving([step, sink()], given)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sizes, "BATCH_BYTES", limit)
        cut, cut_reports = arriving([step, sink()], given)
    assert cut.equals(whole)
    assert not failed(reports)
    assert as_sent(cut_reports) == as_sent(reports)


@given(st.lists(st.integers(0, 50), max_size=30), st.integers(1, 60))
def test_every_cut_holds_at_least_one_row_and_no_more_bytes_than_the_limit(lengths: list[int], limit: int) -> None:
    found = list(sizes.cuts(np.array(lengths, np.int64), limit))
    assert [at for start, stop in found for at in range(start, stop)] == list(range(len(lengths)))
    assert all(stop - start == 1 or sum(lengths[start:stop]) <= limit for start, stop in found if stop > start)


KINDS = {
    pa.string(): ["abc", None, ""],
    pa.large_binary(): [b"abc", None, b""],
    pa.list_(pa.string()): [["abc", None], None, []],
    pa.map_(pa.string(), pa.binary()): [[("k", b"abc")], None, []],
    pa.struct([("a", pa.string()), ("b", pa.list_(pa.string()))]): [{"a": "ab", "b": ["c"]}, None, {"a": "", "b": []}],
}


@pytest.mark.parametrize(("kind", "values"), KINDS.items(), ids=str)
def test_a_row_has_the_bytes_of_all_its_texts_at_any_depth(kind: Any, values: list[Any]) -> None:
    column = pa.array([values[0], *values, *values], kind)[1:]
    found = sizes.row_bytes(column)
    small = sizes.row_bytes(pa.array([values[2]], kind))[0]
    assert len(found) == 6
    assert found.tolist()[:3] == found.tolist()[3:]
    assert found[0] >= small + 3
    assert max(found[1], found[2]) <= small


def test_a_row_that_alone_fills_more_than_a_column_fails_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Arrow makes a chunked array where one array cannot hold the values. Here a text of 5 bytes is too long."""
    step = RowStep("words", lambda row: [(row.text,)], TEXT, WORD, ("number",), "fail")
    convert = RowWriter.columns

    def columns(self: RowWriter, children: list[Any]) -> list[Any]:
        made = convert(self, children)
        bytes_in = sum(map(len, made[0].to_pylist()))
        return [pa.chunked_array(made)] if bytes_in > 4 else made

    monkeypatch.setattr(RowWriter, "columns", columns)
    table, reports = run(reading(["ab", "cd", "efghi", "j", "klmn"]), [step, sink()])
    assert table["word"].to_pylist() == ["ab", "cd", "j", "klmn"]
    assert list(failed(reports)) == [root_id(SCOPE.first, 2)]
    assert "more than 2 GiB" in failed(reports)[root_id(SCOPE.first, 2)]
    assert not any(ledger(reports).values())
