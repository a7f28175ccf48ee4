"""Mistyped options of a constructor."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest

from acker_client.source import Files, Frame, Kafka, Kinesis, Parquet, PutBack, tracked

CONSTRUCTORS: dict[str, Callable[..., Any]] = {
    "Files": lambda **options: Files("a", **options),
    "Frame": lambda **options: Frame(None, **options),  # type: ignore[arg-type]
    "Kafka": lambda **options: Kafka("a", bootstrap_servers="b:1", **options),
    "Kinesis": lambda **options: Kinesis("a", **options),
    "Parquet": lambda **options: Parquet("a", **options),
    "PutBack": lambda **options: PutBack("a", checkpoint="c", **options),
    "tracked": lambda **options: tracked(print, **options),
}


@pytest.mark.parametrize("name", CONSTRUCTORS)
def test_a_mistyped_option_is_named_with_the_nearest_of_that_source(name: str) -> None:
    with pytest.raises(TypeError, match=f"chekpoint: there is no such option of {name}; the nearest is checkpoint"):
        CONSTRUCTORS[name](name="n", chekpoint="c")


def test_the_list_of_options_has_those_of_the_input() -> None:
    with pytest.raises(TypeError, match="regin: there is no such option of Kinesis; the nearest is region; there are"):
        Kinesis("orders", name="orders", regin="eu-central-1")  # type: ignore[call-arg]
    with pytest.raises(TypeError) as refused:
        tracked(print, name="orders", zzz=1)  # type: ignore[call-arg]
    assert "zzz: there is no such option of tracked; there are process, key, storage_level, name" in str(refused.value)
    assert "environment" not in str(refused.value)


@pytest.mark.parametrize("name", CONSTRUCTORS)
def test_a_source_without_a_name_is_refused_with_how_to_give_one(name: str) -> None:
    with pytest.raises(TypeError, match=f"{name} without a name: give the source one, like name='orders'"):
        CONSTRUCTORS[name]()


def test_a_key_that_is_no_name_of_a_column_is_refused_before_any_row_is_read() -> None:
    for make in (CONSTRUCTORS["Frame"], CONSTRUCTORS["tracked"]):
        for key in (3, ["id", 3]):
            with pytest.raises(TypeError, match=re.escape(f"key={key!r}: give the name of a column, or several")):
                make(name="n", key=key)
