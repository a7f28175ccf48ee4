"""The declaration of an operator, and its checks.

Refuses mistakes where the operator is declared, as far as they can be found without a session. Each error says what to
write instead.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Never

from pyspark.sql import Column as SparkColumn
from pyspark.sql import DataFrame
from pyspark.sql.types import StructType

from acker_client.spark import compat
from acker_client.spark.anchoring.anchors import TRACKING, reserved
from acker_client.spark.plan_check import refusals
from acker_client.spark.worker.returns import kind_of
from acker_client.spark.worker.rows import checked_schema, struct_type

OnError = Literal["fail", "raise"]
# The argument of ``df.transform``.
Transform = Callable[[DataFrame], DataFrame]
Kind = Literal["row", "pandas", "arrow"]

DECORATORS: dict[Kind, str] = {"row": "operator", "pandas": "pandas_operator", "arrow": "arrow_operator"}
TAKES: dict[Kind, str] = {"row": "a Row", "pandas": "a pandas DataFrame", "arrow": "a pyarrow RecordBatch"}


@dataclass(frozen=True, slots=True)
class Declared:
    """The options that the user gives an operator."""

    schema: str | StructType
    keep: tuple[str, ...] | Literal["*"]
    name: str | None
    on_error: OnError
    deterministic: bool
    # Whether output rows belong to the trees of their input rows.
    anchored: bool = True

    def __post_init__(self) -> None:
        check_on_error(self.on_error)

    def fields(self, name: str) -> StructType:
        """The schema; see :func:`declared_fields`."""
        return declared_fields(self.schema, f"operator {name!r}")

    def kept_of(self, given: Sequence[str], schema: StructType, name: str) -> tuple[str, ...]:
        """Return the columns to keep of an input with the columns ``given``. Raises ValueError with the columns that
        cannot be kept."""
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


def check_on_error(on_error: str) -> None:
    if on_error not in ("fail", "raise"):
        raise ValueError(f"on_error={on_error!r}: give 'fail' (the record fails) or 'raise' (the task fails)")


def declared(
    kind: Kind,
    schema: str | StructType,
    keep: Sequence[str] | str,
    name: str | None,
    on_error: OnError,
    deterministic: bool,
    anchors: Sequence[Never] | None,
) -> Declared:
    """Check the options of an operator and return them. Raises TypeError or ValueError."""
    decorator = DECORATORS[kind]
    check_declared(schema, f"@{decorator}", f"@{decorator}('word string, count int')")
    if isinstance(keep, str) and keep != "*":
        raise ValueError(f"keep={keep!r}: give a list of column names, or '*' for all")
    if not isinstance(keep, str) and not all(isinstance(column, str) for column in _iterable(keep)):
        raise TypeError(f"@{decorator}: keep={keep!r}; give a list of column names, or '*' for all")
    kept: tuple[str, ...] | Literal["*"] = "*" if keep == "*" else tuple(keep)
    if anchors is not None and (isinstance(anchors, str) or len(anchors)):
        raise ValueError(f"@{decorator}: anchors={anchors!r}; leave it out, or give [] for rows that belong to no tree")
    return Declared(schema, kept, name, on_error, deterministic, anchored=anchors is None)


def declared_fields(schema: str | StructType, label: str) -> StructType:
    """Return the columns of a declared schema. ValueError for an invalid schema and for reserved or repeated names."""
    fields = struct_type(schema)
    _check_column_names(fields, label)
    return fields


def check_declared(schema: Any, label: str, example: str) -> None:
    """Check a schema as :func:`declared_fields` does, as far as possible without a session. Raises TypeError too."""
    fields = checked_schema(schema, label, example)
    if fields is not None:
        _check_column_names(fields, label)


def checked_function(function: Any, name: str | None, label: str, takes: str) -> str:
    """Return the name of a step made of a user's function with one argument: ``name``, or the function's own.

    ``label``: how the step is declared, such as ``@operator``. ``takes``: a description of the argument. Raises
    TypeError or ValueError if the function cannot be a step.
    """
    chosen = checked_name(function, name, label)
    if not accepts_arguments(function, 1):
        raise TypeError(
            f"{label}: {chosen!r} is called with one argument, {takes}, and takes {inspect.signature(function)}; write"
            " a plain function (of a method, wrap it in one)"
        )
    return chosen


def accepts_arguments(function: Callable[..., Any], arguments: int) -> bool:
    """Whether a function accepts this number of positional arguments. True if it has no readable signature."""
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):
        return True
    try:
        signature.bind(*[None] * arguments)
    except TypeError:
        return False
    return True


def checked_name(function: Any, name: str | None, label: str) -> str:
    """Return the name of a step as :func:`checked_function` does, without a check of the function's arguments."""
    if not callable(function):
        raise TypeError(f"{label} is for a function, got {kind_of(function)}")
    if name is not None and (not isinstance(name, str) or not name):
        raise ValueError(f"{label}: name={name!r}; give a name, which goes into edges and reports")
    chosen = name or getattr(function, "__name__", None)
    if chosen is None:
        raise ValueError(f"{label}: {function!r} has no name of its own; give it one with name=...")
    if inspect.iscoroutinefunction(function) or inspect.isasyncgenfunction(function):
        raise TypeError(f"{label}: {chosen!r} is async, and is called as a plain function; write it with def")
    return str(chosen)


def refuse_no_frame(df: Any, what: object, test: str) -> None:
    """Raise TypeError if ``df`` is not a DataFrame. ``what``: the step that was applied to ``df``; ``test``: the call
    that tries the step without Spark."""
    if not isinstance(df, DataFrame):
        raise TypeError(f"{what!r} is applied to a DataFrame, got {kind_of(df)}; to try it without Spark, use {test}")
    refuse_connect(df, repr(what))


def _check_column_names(fields: StructType, label: str) -> None:
    taken = reserved(fields.names)
    if taken:
        raise ValueError(
            f"{label}: the columns {', '.join(TRACKING)} are the acker's own; rename {taken[0]!r} (Spark takes names in"
            " any case)"
        )
    twice = {column for column in fields.names if fields.names.count(column) > 1}
    if twice:
        raise ValueError(f"{label}: the schema names {sorted(twice)} more than once; rename one of them")


def column_names(given: Any, what: str, argument: str) -> list[str]:
    """Return one column name or several as a list. TypeError for anything else."""
    is_one = isinstance(given, (str, SparkColumn)) or not isinstance(given, Iterable)
    names = [given] if is_one else list(given)
    if not names or not all(isinstance(name, str) for name in names):
        raise TypeError(
            f"{what}: {argument}={given!r}; give the name of a column, or a list of names, and make a column first with"
            " df.withColumn(...) where you have an expression"
        )
    return names


def check_into(into: Any) -> None:
    """Raise TypeError or ValueError if ``into`` cannot name the columns of an explode."""
    names = into if isinstance(into, tuple) else (into,)
    if into is not None and not all(isinstance(name, str) for name in names):
        raise TypeError(f"explode: into={into!r}; give the name of the elements' column, of a map ('key', 'value')")
    taken = reserved(name for name in names if isinstance(name, str))
    if taken:
        raise ValueError(f"explode: {', '.join(TRACKING)} are the acker's own; give {taken[0]!r} another name")


def check_name(what: str, name: Any) -> None:
    """Raise ValueError if ``name`` cannot be the name of step ``what``."""
    if not isinstance(name, str) or not name:
        raise ValueError(f"{what}: name={name!r}; give a name, which goes into edges and reports")


def refuse_untracked(df: Any, what: str) -> None:
    """Raise TypeError if the built-in operator ``what`` is applied to something other than a DataFrame."""
    if not isinstance(df, DataFrame):
        raise TypeError(f"{what} is applied to a tracked DataFrame, got {kind_of(df)}; start from batch.df")
    refuse_connect(df, what)


def refuse_connect(df: DataFrame, what: str) -> None:
    """Raise ``Refused`` for a Spark Connect frame. Must come before any use of the columns of ``df``, because that
    calls the Connect server."""
    if compat.is_connect(df):
        raise refusals.connect_frame(what)


def _iterable(value: Any) -> Iterable[Any]:
    return value if isinstance(value, Iterable) else (value,)
