"""Row digests: equal values have equal digests in any Arrow layout, and different values have different digests."""

from __future__ import annotations

import datetime
import decimal
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from acker_client.spark.anchoring.values import digest_rows

TYPES: dict[str, tuple[Any, list[Any]]] = {
    "bool": (pa.bool_(), [True, False, None]),
    "int8": (pa.int8(), [1, -1, 0, None]),
    "int32": (pa.int32(), [1, -1, 0, 1 << 30, None]),
    "int64": (pa.int64(), [1, -1, 0, 1 << 60, None]),
    "float": (pa.float32(), [1.5, -1.5, 0.0, None]),
    "double": (pa.float64(), [1.5, -1.5, 0.0, float("inf"), None]),
    "decimal": (pa.decimal128(20, 2), [decimal.Decimal("1.25"), decimal.Decimal("-1.25"), None]),
    "date": (pa.date32(), [datetime.date(2020, 1, 1), datetime.date(1960, 1, 1), None]),
    "timestamp": (pa.timestamp("us", "UTC"), [datetime.datetime(2020, 1, 1, tzinfo=datetime.UTC), None]),
    "string": (pa.string(), ["", "a", "b", "ab", "a\0", "é", "12345678", "123456789", "1" * 40, None]),
    "large string": (pa.large_string(), ["", "a", "ab", None]),
    "binary": (pa.binary(), [b"", b"a", b"\0", b"\0\0", None]),
    "list": (pa.list_(pa.string()), [[], ["a"], ["a", "b"], ["ab"], ["b", "a"], [None], [""], None]),
    "nested": (pa.list_(pa.list_(pa.int32())), [[], [[]], [[1], [2]], [[1, 2]], [[1, 2], []], None]),
    "struct": (pa.struct([("a", pa.int32()), ("b", pa.string())]), [{"a": 1, "b": "x"}, {"a": 1, "b": None}, None]),
    "map": (pa.map_(pa.string(), pa.int32()), [[], [("a", 1)], [("a", 2)], [("a", 1), ("b", 2)], None]),
}


def digests(array: Any) -> list[int]:
    found: list[int] = digest_rows([array], len(array)).tolist()
    return found


@pytest.mark.parametrize("name", TYPES)
def test_other_values_have_other_digests(name: str) -> None:
    kind, values = TYPES[name]
    found = digests(pa.array(values, kind))
    assert len(set(found)) == len(values)
    assert 0 not in found


@pytest.mark.parametrize("name", TYPES)
def test_equal_values_have_equal_digests_wherever_they_lie(name: str) -> None:
    kind, values = TYPES[name]
    array = pa.array(values * 9, kind)
    expected = digests(pa.array(values, kind)) * 9
    assert digests(array) == expected
    for start in range(len(values) + 9):
        assert digests(array.slice(start, 7)) == expected[start : start + 7]
    one_by_one = [digests(pa.array([value], kind))[0] for value in values]
    assert one_by_one == expected[: len(values)]


@pytest.mark.parametrize("name", TYPES)
def test_empty_arrays_have_no_digests(name: str) -> None:
    assert digests(pa.array([], TYPES[name][0])) == []


@given(st.lists(st.text(max_size=20) | st.none(), min_size=1, max_size=30), st.integers(0, 30))
def test_a_string_column_is_hashed_by_its_values(texts: list[str | None], cut: int) -> None:
    array = pa.array(texts, pa.string())
    cut = min(cut, len(texts))
    assert digests(array) == digests(array.slice(0, cut)) + digests(array.slice(cut))
    assert digests(array) == digests(array.cast(pa.large_string())) == digests(array.dictionary_encode())


def test_columns_do_not_run_into_one_another() -> None:
    left, right = pa.array(["ab"]), pa.array(["c"])
    other = digest_rows([pa.array(["a"]), pa.array(["bc"])], 1)
    assert digest_rows([left, right], 1).tolist() != other.tolist()
    assert digest_rows([left, right], 1).tolist() != digest_rows([right, left], 1).tolist()


def test_nulls_of_a_column_without_values_count() -> None:
    assert len(set(digests(pa.nulls(3)))) == 1
