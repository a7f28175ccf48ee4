"""Conditions: reads a condition that Spark has analysed, as a condition that a step evaluates on Arrow.

Decides which of Spark's expressions have exactly the same meaning on Arrow. The tables here list them, with all their
fields. They cannot raise, and do not depend on time, chance or the place of a row. For any other expression, field or
type of column, Spark evaluates the condition.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql.types import DataType, StringType

from acker_client.spark.anchoring.anchors import reserved
from acker_client.spark.driver.catalyst import UNREADABLE, SparkExpression, Unknown, over_columns, tree_of
from acker_client.spark.worker.condition import Attribute, Constant, Expression, Function, arrow_type, rows_where

# RE2 has a limit for patterns.
_PATTERN_CHARACTERS_MAX = 500
_FLOATS = ("float", "double")
_TIMES = ("date", "timestamp", "timestamp_ntz")
# Digits of the integers, in the order in which a cast widens them.
_DIGITS = {"byte": 3, "short": 5, "integer": 10, "long": 19}


def on_arrow(df: DataFrame, flagged: DataFrame, flag: str) -> Expression | None:
    """Return the condition that ``flagged`` computes in its column ``flag``; None if only Spark can evaluate it.

    ``df``: the frame to which this column was added. The condition takes the rows of ``df``."""
    try:
        reader = _Reader(df, _flag_over(df, flagged))
        found = reader.condition(flag)
        # Arrow may lack a function for a type.
        rows_where(found, reader.no_rows())
    except (*UNREADABLE, pa.ArrowException):
        return None
    return found


def _flag_over(df: DataFrame, flagged: DataFrame) -> Any:
    """Return the last expression of ``flagged``, in which a column is its position in ``df``."""
    flag = flagged._jdf.queryExecution().analyzed().projectList().last()
    return over_columns(df, flag, df._jdf.queryExecution().analyzed())


class _Reader:
    """Reads one condition over the columns of a frame."""

    def __init__(self, df: DataFrame, expression: Any) -> None:
        self._columns = df.schema.fields
        self._expression = expression
        self._used: dict[str, str] = {}
        self._common: Expression | None = None

    def condition(self, flag: str) -> Expression:
        """Return the condition. Raises :class:`Unknown`."""
        root = tree_of(self._expression)
        if root.name != "Alias" or root.fields["name"] != flag:
            raise Unknown(f"{root.name} in place of the column {flag}")
        return self._of_kind("boolean", root.children[0])

    def no_rows(self) -> pa.RecordBatch:
        """Return a batch without rows, with the columns that the condition takes."""
        arrays = [pa.array([], arrow_type(kind)) for kind in self._used.values()]
        return pa.RecordBatch.from_arrays(arrays, names=list(self._used))

    def _read(self, node: SparkExpression) -> Expression:
        if node.is_constant:
            return self._constant(node)
        if node.name in _LOGIC:
            both = node.parts(2, left=0, right=1)
            return Function(_LOGIC[node.name], tuple(self._of_kind("boolean", child) for child in both))
        if node.name in _COMPARISONS:
            return self._comparison(*_COMPARISONS[node.name], *node.parts(2, left=0, right=1))
        if node.name not in _READERS:
            raise Unknown(node.name)
        return _READERS[node.name](self, node)

    def _of_kind(self, kind: str, node: SparkExpression) -> Expression:
        found = self._read(node)
        if found.kind != kind:
            raise Unknown(f"{node.name} is {found.kind}, not {kind}")
        return found

    def _attribute(self, node: SparkExpression) -> Attribute:
        column = self._columns[node.fields["ordinal"]]
        kind = _kind_of(column.dataType)
        if reserved([column.name]) or arrow_type(kind) is None:
            raise Unknown(f"column {column.name!r} of type {kind}")
        self._used[column.name] = kind
        return Attribute(column.name, kind)

    def _not(self, node: SparkExpression) -> Function:
        (child,) = node.parts(1, child=0)
        return Function("not", (self._of_kind("boolean", child),))

    def _nullness(self, node: SparkExpression) -> Expression:
        (child,) = node.parts(1, child=0)
        if child.name == "BoundReference" and not child.fields["nullable"]:
            # Spark answers from the schema, without a look at the values.
            return Constant(node.name == "IsNotNull", "boolean")
        return Function("is null" if node.name == "IsNull" else "is not null", (self._read(child),))

    def _is_nan(self, node: SparkExpression) -> Function:
        (child,) = node.parts(1, child=0)
        return Function("is nan", (self._read(child),))

    def _comparison(self, function: str, is_swapped: bool, left: SparkExpression, right: SparkExpression) -> Function:
        both = (self._read(left), self._read(right))
        kind = _one_kind(both)
        return Function(f"{function} of floats" if kind in _FLOATS else function, both[::-1] if is_swapped else both)

    def _cast(self, node: SparkExpression) -> Expression:
        kind = node.fields["dataType"]
        values = self._read(*node.parts(1, "timeZoneId", "evalMode", child=0, dataType=kind))
        # In JSON, Spark 4.0 does not show the collation.
        if kind == "string" and self._java(node).dataType().simpleString() != kind:
            raise Unknown("a collation")
        if values.kind == kind:
            return values
        if not _is_wider(kind, values.kind):
            raise Unknown(f"a cast from {values.kind} to {kind}")
        return Function("cast", (values,), kind, kind)

    def _in(self, node: SparkExpression) -> Function:
        count = len(node.children)
        value, *options = node.parts(count, value=0, list=[*range(1, count)])
        values, known = self._read(value), [self._constant(option) for option in options]
        # For floats, Spark's answer for zeros depends on the number of options.
        if not known or _one_kind([values, *known]) in _FLOATS:
            raise Unknown("IN of floats, or of nothing")
        return Function("in", (values,), option=tuple(option.value for option in known))

    def _like(self, node: SparkExpression) -> Function:
        text, pattern = node.parts(2, "escapeChar", left=0, right=1)
        texts, given = self._read(text), self._constant(pattern)
        if _one_kind((texts, given)) != "string" or given.value is None:
            raise Unknown("LIKE without a pattern")
        if node.name == "Like":
            return Function("like", (texts,), option=_parts_of(given.value, self._java(node).escapeChar()))
        before, after = _FIXED[node.name]
        return Function("like", (texts,), option=(*before, given.value, *after))

    def _trim(self, node: SparkExpression) -> Function:
        texts = self._of_kind("string", *node.parts(1, srcStr=0))
        return Function("trim", (texts,), _one_kind((texts,)))

    def _coalesce(self, node: SparkExpression) -> Function:
        count = len(node.children)
        values = tuple(map(self._read, node.parts(count, children=[*range(count)])))
        return Function("coalesce", values, _one_kind(values))

    def _replaced(self, node: SparkExpression) -> Expression:
        """Read the expression that Spark puts in the place of this one."""
        names = ("proj", "input", "lower", "upper", "left", "right")
        return self._read(*node.parts(1, *names, replacement=0))

    def _with(self, node: SparkExpression) -> Expression:
        """Read an expression that refers to another one several times."""
        body, definition = node.parts(2, child=0, defs=[1])
        if self._common is not None or definition.name != "CommonExpressionDef":
            raise Unknown("several common expressions")
        self._common = self._read(*definition.parts(1, "id", child=0))
        found = self._read(body)
        self._common = None
        return found

    def _reference(self, node: SparkExpression) -> Expression:
        if self._common is None or self._common.kind != node.fields["dataType"]:
            raise Unknown("a reference to another expression")
        return self._common

    def _constant(self, node: SparkExpression) -> Constant:
        """Return a constant. Raises :class:`Unknown` for any other expression."""
        if not node.is_constant or arrow_type(str(node.constant_kind)) is None:
            raise Unknown(f"{node.name} in place of a constant")
        kind, shown = str(node.constant_kind), node
        while shown.name == "Cast" and _is_same_value(shown.constant_kind, shown.children[0].constant_kind):
            shown = shown.children[0]
        if shown.name != "Literal" or shown.constant_kind not in _FROM_JSON:
            return Constant(self._computed(node, kind), kind)
        text = shown.fields["value"]
        return Constant(None if text is None else _FROM_JSON[shown.constant_kind](text), kind)

    def _computed(self, node: SparkExpression, kind: str) -> Any:
        """Let Spark compute a constant. A constant that raises is left to Spark."""
        if kind in _TIMES and not all(map(_is_plain_time, node.subtree())):
            raise Unknown("a word as a time")
        value = self._java(node).eval(None)
        if kind == "string" and value is not None:
            return value.getBytes().decode()
        if kind.startswith("decimal") and value is not None:
            return value.toJavaBigDecimal()
        if kind == "float" and value is not None and float(np.float32(value)) != value and not np.isnan(value):
            # py4j hands it over as text, which Python reads as a double.
            raise Unknown("a float that is not this double")
        return value

    def _java(self, node: SparkExpression) -> Any:
        found = self._expression
        for number in node.path:
            found = found.children().apply(number)
        return found


_LOGIC = {"And": "and", "Or": "or"}
# The function, and whether it takes the right side first.
_COMPARISONS = {
    "EqualTo": ("=", False),
    "EqualNullSafe": ("<=>", False),
    "LessThan": ("<", False),
    "LessThanOrEqual": ("<=", False),
    "GreaterThan": ("<", True),
    "GreaterThanOrEqual": ("<=", True),
}
_READERS: dict[str, Callable[[_Reader, SparkExpression], Expression]] = {
    "BoundReference": _Reader._attribute,
    "Not": _Reader._not,
    "IsNull": _Reader._nullness,
    "IsNotNull": _Reader._nullness,
    "IsNaN": _Reader._is_nan,
    "Cast": _Reader._cast,
    "In": _Reader._in,
    "Like": _Reader._like,
    "StartsWith": _Reader._like,
    "EndsWith": _Reader._like,
    "Contains": _Reader._like,
    "StringTrim": _Reader._trim,
    "Coalesce": _Reader._coalesce,
    "Nvl": _Reader._replaced,
    "Between": _Reader._replaced,
    "With": _Reader._with,
    "CommonExpressionRef": _Reader._reference,
}
# The parts of a pattern before its text, and behind it. Anything may stand between two parts.
_FIXED: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "StartsWith": ((), ("",)),
    "EndsWith": (("",), ()),
    "Contains": (("",), ("",)),
}


def _is_plain_time(node: SparkExpression) -> bool:
    """Whether a part of a constant time begins with a year: not with a word, as 'today', nor with an hour, as '12:30'.
    Spark takes the date of both from its clock when it plans."""
    text = node.fields.get("value")
    return text is None or node.fields["dataType"] != "string" or re.match(r"\s*[-+]?\d{4}", text) is not None


def _text(shown: str) -> str:
    # JSON shows this character in place of bytes that are not UTF-8.
    if "\ufffd" in shown:
        raise Unknown("a text that JSON may not show")
    return shown


_FROM_JSON: dict[str, Callable[[str], Any]] = {
    "boolean": {"true": True, "false": False}.__getitem__,
    **dict.fromkeys(_DIGITS, int),
    "string": _text,
}


def _kind_of(kind: DataType) -> str:
    """Return Spark's name of a type. It names the collation of a string, if that is not of bytes."""
    if isinstance(kind, StringType) and (type(kind) is not StringType or kind != StringType()):
        return f"{kind!r}"
    return str(kind.jsonValue())


def _one_kind(expressions: Sequence[Expression]) -> str:
    """Return the one type of ``expressions``, which Spark has given the same type."""
    kinds = {expression.kind for expression in expressions}
    # JSON may not show the collation of a constant. Spark has given it the collation of the column beside it.
    if len(kinds) != 1 or (kinds == {"string"} and all(isinstance(one, Constant) for one in expressions)):
        raise Unknown(f"{sorted(kinds)} side by side")
    return kinds.pop()


def _is_same_value(wide: Any, narrow: Any) -> bool:
    """Whether a constant of the type ``narrow`` is shown in JSON as it is after a cast to ``wide``."""
    return bool(wide == narrow) or (wide in _DIGITS and narrow in _DIGITS and _DIGITS[narrow] <= _DIGITS[wide])


def _is_wider(wide: str, narrow: str) -> bool:
    """Whether Spark and Arrow cast any value of ``narrow`` to the same value of ``wide``."""
    if wide in _FLOATS:
        return narrow in _DIGITS or narrow == "float"
    before, after = _digits_of(narrow), _digits_of(wide)
    if before is None or after is None or (wide in _DIGITS and narrow not in _DIGITS):
        return False
    return before[0] <= after[0] and before[1] <= after[1]


def _digits_of(kind: str) -> tuple[int, int] | None:
    """Return how many digits an integer or a decimal has before its point, and behind it."""
    found = arrow_type(kind)
    if isinstance(found, pa.Decimal128Type):
        return found.precision - found.scale, found.scale
    return (_DIGITS[kind], 0) if kind in _DIGITS else None


def _parts_of(pattern: str, escape: str) -> tuple[str, ...]:
    """Return the texts between the ``%`` of a LIKE pattern."""
    parts, characters = [""], iter(pattern)
    for character in characters:
        if character == escape:
            character = next(characters, "")  # noqa: PLW2901
            if character not in ("%", "_", escape):
                raise Unknown("a pattern that Spark refuses")
        elif character == "%":
            parts.append("")
            continue
        elif character == "_":
            raise Unknown("a pattern of characters, where a text may have bytes that are none")
        parts[-1] += character
    if len(pattern) > _PATTERN_CHARACTERS_MAX:
        raise Unknown("a long pattern")
    return tuple(parts)
