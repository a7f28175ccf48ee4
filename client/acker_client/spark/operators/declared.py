"""Declared: what the user says of an operator where it is written.

Decides what is a mistake, and refuses it there, with what to write instead, as far as that is known without a
session.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from pyspark.sql import Column as SparkColumn
from pyspark.sql import DataFrame
from pyspark.sql.types import StructType

from acker_client.spark import compat
from acker_client.spark.anchoring.anchors import TRACKING, reserved
from acker_client.spark.plan_check import refusals
from acker_client.spark.worker.returns import kind_of
from acker_client.spark.worker.rows import checked_schema, struct_type

OnError = Literal["fail", "raise"]
# What ``df.transform`` takes.
Transform = Callable[[DataFrame], DataFrame]
Kind = Literal["row", "pandas", "arrow"]

DECORATORS: dict[Kind, str] = {"row": "operator", "pandas": "pandas_operator", "arrow": "arrow_operator"}
TAKES: dict[Kind, str] = {"row": "a Row", "pandas": "a pandas DataFrame", "arrow": "a pyarrow RecordBatch"}


@dataclass(frozen=True, slots=True)
class Declared:
    """What the user says of an operator."""

    schema: str | StructType
    keep: tuple[str, ...] | Literal["*"]
    name: str | None
    on_error: OnError
    deterministic: bool

    def __post_init__(self) -> None:
        if self.on_error not in ("fail", "raise"):
            raise ValueError(f"on_error={self.on_error!r}: give 'fail' (the record fails) or 'raise' (the task fails)")

    def fields(self, name: str) -> StructType:
        """The schema; see :func:`declared_fields`."""
        return declared_fields(self.schema, f"operator {name!r}")

    def kept_of(self, given: Sequence[str], schema: StructType, name: str) -> tuple[str, ...]:
        """The columns to keep of an input with these columns. ValueError that says which cannot be."""
        keep = tuple(given) if self.keep == "*" else self.keep
        missing = [column for column in keep if column not in given]
        if missing:
            raise ValueError(f"operator {name!r} keeps {missing}, which its input does not have: it has {list(given)}")
        double = [column for column in keep if column in schema.names]
        if double:
            raise ValueError(
                f"operator {name!r} keeps {double} and makes a column of that name too: take it out of keep, or"
                " rename it"
            )
        return keep


def declared(
    kind: Kind,
    schema: str | StructType,
    keep: Sequence[str] | str,
    name: str | None,
    on_error: OnError,
    deterministic: bool,
) -> Declared:
    """What an operator is declared with. TypeError or ValueError, with what to write, for what is a mistake."""
    who = DECORATORS[kind]
    check_declared(schema, f"@{who}", f"@{who}('word string, count int')")
    if isinstance(keep, str) and keep != "*":
        raise ValueError(f"keep={keep!r}: give a list of column names, or '*' for all")
    if not isinstance(keep, str) and not all(isinstance(column, str) for column in _iterable(keep)):
        raise TypeError(f"@{who}: keep={keep!r}; give a list of column names, or '*' for all")
    kept: tuple[str, ...] | Literal["*"] = "*" if keep == "*" else tuple(keep)
    return Declared(schema, kept, name, on_error, deterministic)


def declared_fields(schema: str | StructType, who: str) -> StructType:
    """The columns of a declared schema. ValueError for what is none, and for names that are the acker's or come
    twice."""
    fields = struct_type(schema)
    _refuse_names(fields, who)
    return fields


def check_declared(schema: Any, who: str, example: str) -> None:
    """As :func:`declared_fields`, where it is declared, and as far as that is known without a session. TypeError
    too."""
    fields = checked_schema(schema, who, example)
    if fields is not None:
        _refuse_names(fields, who)


def checked_function(function: Any, name: str | None, who: str, takes: str) -> str:
    """The name of a user's function of one argument as a step: ``name``, or its own. TypeError or ValueError for what
    cannot be one.

    ``who``: how it is declared, as ``@operator``; ``takes``: what it is called with.
    """
    chosen = checked_name(function, name, who)
    if not takes_so_many(function, 1):
        raise TypeError(
            f"{who}: {chosen!r} is called with one argument, {takes}, and takes {inspect.signature(function)}; write a"
            " plain function (of a method, wrap it in one)"
        )
    return chosen


def takes_so_many(function: Callable[..., Any], arguments: int) -> bool:
    """Whether a function can be called with so many arguments by position; of one that does not say, it is believed."""
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):
        return True
    try:
        signature.bind(*[None] * arguments)
    except TypeError:
        return False
    return True


def checked_name(function: Any, name: str | None, who: str) -> str:
    """As :func:`checked_function`, whatever arguments it takes."""
    if not callable(function):
        raise TypeError(f"{who} is for a function, got {kind_of(function)}")
    if name is not None and (not isinstance(name, str) or not name):
        raise ValueError(f"{who}: name={name!r}; give a name, which goes into edges and reports")
    chosen = name or getattr(function, "__name__", None)
    if chosen is None:
        raise ValueError(f"{who}: {function!r} has no name of its own; give it one with name=...")
    if inspect.iscoroutinefunction(function) or inspect.isasyncgenfunction(function):
        raise TypeError(f"{who}: {chosen!r} is async, and is called as a plain function in a worker; write it with def")
    return str(chosen)


def refuse_no_frame(df: Any, what: object, test: str) -> None:
    """TypeError when ``what`` is applied to something else than a DataFrame. ``test``: how to try it without one."""
    if not isinstance(df, DataFrame):
        raise TypeError(f"{what!r} is applied to a DataFrame, got {kind_of(df)}; to try it without Spark, use {test}")
    refuse_connect(df, repr(what))


def _refuse_names(fields: StructType, who: str) -> None:
    taken = reserved(fields.names)
    if taken:
        raise ValueError(
            f"{who}: the columns {', '.join(TRACKING)} are the acker's own; rename {taken[0]!r} (Spark takes names in"
            " any case)"
        )
    twice = {column for column in fields.names if fields.names.count(column) > 1}
    if twice:
        raise ValueError(f"{who}: the schema names {sorted(twice)} more than once; rename one of them")


def column_names(given: Any, what: str, argument: str) -> list[str]:
    """One column's name or several, as a list. TypeError for anything else."""
    is_one = isinstance(given, (str, SparkColumn)) or not isinstance(given, Iterable)
    names = [given] if is_one else list(given)
    if not names or not all(isinstance(name, str) for name in names):
        raise TypeError(
            f"{what}: {argument}={given!r}; give the name of a column, or a list of names, and make a column first with"
            " df.withColumn(...) where you have an expression"
        )
    return names


def check_into(into: Any) -> None:
    """TypeError or ValueError for what cannot be the names of an explode's columns."""
    names = into if isinstance(into, tuple) else (into,)
    if into is not None and not all(isinstance(name, str) for name in names):
        raise TypeError(f"explode: into={into!r}; give the name of the elements' column, of a map ('key', 'value')")
    taken = reserved(name for name in names if isinstance(name, str))
    if taken:
        raise ValueError(f"explode: {', '.join(TRACKING)} are the acker's own; give {taken[0]!r} another name")


def check_name(what: str, name: Any) -> None:
    """ValueError for what cannot be the name of a step."""
    if not isinstance(name, str) or not name:
        raise ValueError(f"{what}: name={name!r}; give a name, which goes into edges and reports")


def refuse_untracked(df: Any, what: str) -> None:
    """TypeError when a stock operator is applied to something else than a DataFrame."""
    if not isinstance(df, DataFrame):
        raise TypeError(f"{what} is applied to a tracked DataFrame, got {kind_of(df)}; start from batch.df")
    refuse_connect(df, what)


def refuse_connect(df: DataFrame, what: str) -> None:
    """Raise ``Refused`` for a frame of Spark Connect, before anything is asked of its columns: that would be a call to
    its server."""
    if compat.is_connect(df):
        raise refusals.connect_frame(what)


def _iterable(value: Any) -> Iterable[Any]:
    return value if isinstance(value, Iterable) else (value,)
