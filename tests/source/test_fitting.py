"""Values fit the type of their column as they are, or are refused with their place."""

from __future__ import annotations

import json
from dataclasses import dataclass
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any
from uuid import UUID

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from acker_client.source.decoding.fitting import fit_of, fitted_column


@dataclass(frozen=True)
class Sample:
    """A type, a value that fits it, and a place in the value with something there that does not fit."""

    type: Any
    value: Any
    spoiled: Any
    place: str


SCALARS: list[tuple[Any, st.SearchStrategy[Any], st.SearchStrategy[Any]]] = [
    (pa.int8(), st.integers(-128, 127), st.sampled_from([128, -129, 1.5, True, "1", b"1"])),
    (pa.int64(), st.integers(-(2**63), 2**63 - 1), st.sampled_from([2**63, 1.0, False, "x", [1]])),
    (pa.float64(), st.floats(allow_nan=False), st.sampled_from([2**53 + 1, True, "1.0", b""])),
    (pa.string(), st.text(st.characters(exclude_categories=["Cs"])), st.sampled_from([b"x", 1, "\ud800", {"a": 1}])),
    (pa.binary(), st.binary(), st.sampled_from(["x", 1, [1]])),
    (pa.bool_(), st.booleans(), st.sampled_from([0, 1, "true"])),
    (pa.decimal128(6, 2), st.decimals(-9999, 9999, places=2), st.sampled_from([Decimal("1.234"), 10**9, "x", 1.5])),
    (pa.date32(), st.dates(), st.sampled_from([datetime(2026, 1, 1, tzinfo=UTC), "2026-13-01", 5])),
    (pa.timestamp("us", "UTC"), st.datetimes(timezones=st.just(UTC)), st.sampled_from([date(2026, 1, 1), "then", 5])),
]


@st.composite
def samples(draw: st.DrawFn, depth: int = 3) -> Sample:
    kind = draw(st.sampled_from(["scalar", "struct", "list", "map"] if depth else ["scalar"]))
    if kind == "scalar":
        type_, good, bad = draw(st.sampled_from(SCALARS))
        return Sample(type_, draw(good), draw(bad), "")
    inner = draw(samples(depth - 1))
    if kind == "struct":
        name, others = draw(st.sampled_from("ab")), draw(st.lists(st.integers(0, 9), max_size=2))
        rest = {f"other{k}": each for k, each in enumerate(others)}
        is_missing = draw(st.booleans())
        fields = [pa.field(name, inner.type, nullable=not is_missing), *(pa.field(each, pa.int64()) for each in rest)]
        fields.append(pa.field("lacking", pa.string()))
        value = {name: inner.value, **rest, "lacking": None}
        spoiled = {**rest, "unknown": 1} if is_missing else {**rest, name: inner.spoiled}
        return Sample(pa.struct(fields), value, spoiled, f".{name}" + ("" if is_missing else inner.place))
    if kind == "list":
        before = draw(st.integers(0, 2))
        items = [inner.value] * (before + 1)
        return Sample(pa.list_(inner.type), items, [*items[1:], inner.spoiled], f"[{before}]{inner.place}")
    pairs = {"good": inner.value, "bad": inner.spoiled}
    return Sample(pa.map_(pa.string(), inner.type), {"good": inner.value}, pairs, f"['bad']{inner.place}")


def plain(value: Any, type_: Any) -> Any:
    """Return a value as Arrow gives it back."""
    if value is None:
        return None
    if pa.types.is_struct(type_):
        return {field.name: plain(value.get(field.name), field.type) for field in type_}
    if pa.types.is_map(type_):
        return [(key, plain(each, type_.item_type)) for key, each in value.items()]
    if pa.types.is_list(type_):
        return [plain(each, type_.value_type) for each in value]
    return value


@given(samples(), st.lists(st.sampled_from(["good", "spoiled", "none"]), max_size=6))
def test_good_values_come_as_they_are_and_a_spoiled_one_is_refused_with_its_place_alone(
    sample: Sample, rows: list[str]
) -> None:
    values = [{"good": sample.value, "spoiled": sample.spoiled, "none": None}[row] for row in rows]
    column, reasons = fitted_column(values, sample.type, fit_of(sample.type))
    assert column.type == sample.type
    assert reasons.keys() == {k for k, row in enumerate(rows) if row == "spoiled"}
    expected = [plain(sample.value, sample.type) if row == "good" else None for row in rows]
    assert column.to_pylist() == expected
    # Arrow itself refuses some values, such as decimals with too many digits, and names no place.
    is_of_arrow = any(repr(each) in repr(sample.spoiled) for each in (Decimal("1.234"), 10**9, "\ud800"))
    assert is_of_arrow or all(why.startswith(sample.place.lstrip(".")) for why in reasons.values())


@pytest.mark.parametrize(
    ("type_", "given_", "fitted"),
    [
        (pa.decimal128(6, 2), json.loads('"12.50"'), Decimal("12.50")),
        (pa.decimal128(6, 2), 12, Decimal("12.00")),
        (pa.date32(), "2026-11-25", date(2026, 11, 25)),
        (pa.timestamp("us", "UTC"), "2026-11-25T10:00:00+01:00", datetime(2026, 11, 25, 9, tzinfo=UTC)),
        (pa.string(), UUID(int=5), str(UUID(int=5))),
        (pa.float64(), 3, 3.0),
        (pa.float32(), 0.1, 0.1),
        (pa.float32(), 16777216, 16777216.0),
    ],
)
def test_forms_that_other_formats_have_for_a_value_are_taken(type_: Any, given_: Any, fitted: Any) -> None:
    assert fitted_column([given_], type_, fit_of(type_)) == (pa.array([fitted], type_), {})


@pytest.mark.parametrize("given_", [1e300, -1e39, 16777217, -16777217, True, "1.0"])
def test_a_number_that_a_float_does_not_hold_is_refused_not_changed(given_: Any) -> None:
    column, reasons = fitted_column([0.5, given_], pa.float32(), fit_of(pa.float32()))
    assert column.to_pylist() == [0.5, None]
    assert reasons[1].startswith(f"{given_!r} is not a number that a ")


def test_a_type_that_no_value_has_is_refused_by_name() -> None:
    with pytest.raises(ValueError, match=r"cannot have a column of type duration\[us\]: give it another type"):
        fit_of(pa.struct([("took", pa.duration("us"))]))
