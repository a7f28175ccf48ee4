"""Catalyst: reads Spark's expressions from the JVM, as trees of Python objects.

Decides which columns a select only picks or renames. ``conditions`` decides which conditions mean the same on Arrow.
Reads expressions from Spark's own JSON, after type coercion and before the optimizer.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame

_PACKAGE = "org.apache.spark.sql.catalyst.expressions."
# An expression that is nested deeper could exceed Python's limit of recursion.
_DEPTH_MAX = 100


class Unknown(Exception):
    """An expression, or a part of it, is not one of those that the library knows."""


# The errors of a reader, if another version of Spark shows its expressions in another way.
UNREADABLE = (Unknown, Py4JError, PySparkException, LookupError, TypeError, ValueError)


@dataclass(frozen=True, slots=True)
class SparkExpression:
    """An expression of Spark's. ``name``: its class. ``fields``: its arguments; a child is a number. ``path``: the
    number of the child at each level from the root."""

    name: str
    fields: dict[str, Any]
    children: tuple[SparkExpression, ...]
    path: tuple[int, ...]

    def parts(self, count: int, *optional: str, **fields: Any) -> tuple[SparkExpression, ...]:
        """Return the children. Raises :class:`Unknown` unless there are ``count``, and the node has these fields; it
        may have the ``optional`` ones."""
        known = {name: value for name, value in self.fields.items() if name not in optional}
        if len(self.children) != count or known != fields:
            raise Unknown(f"{self.name} of {count} with the fields {self.fields}")
        return self.children

    def subtree(self) -> Iterator[SparkExpression]:
        """Yield the node and all nodes below it."""
        yield self
        for child in self.children:
            yield from child.subtree()

    @property
    def is_constant(self) -> bool:
        """Whether it has the same value for all rows, at any time."""
        return all(node.name in ("Literal", "Cast", "UnaryMinus") for node in self.subtree())

    @property
    def constant_kind(self) -> Any:
        """Spark's name of the type of a constant. Not a string for arrays, maps and structs."""
        return self.children[0].constant_kind if self.name == "UnaryMinus" else self.fields["dataType"]


def each(sequence: Any) -> Iterator[Any]:
    for index in range(sequence.size()):
        yield sequence.apply(index)


def over_columns(df: DataFrame, expression: Any, plan: Any) -> Any:
    """Return an analysed expression, with the position in the output of ``plan`` in place of each column."""
    jvm: Any = df.sparkSession._jvm
    expressions = jvm.org.apache.spark.sql.catalyst.expressions
    columns = getattr(expressions, "package$AttributeSeq")(plan.output())
    return expressions.BindReferences.bindReference(expression, columns, False)


def tree_of(expression: Any) -> SparkExpression:
    """Return the tree of an expression in the JVM. Raises :class:`Unknown`."""
    return _tree(iter(json.loads(expression.toJSON())), ())


def picked_columns(df: DataFrame, function: str) -> list[int] | None:
    """Return the position of each column of ``df`` in the output of the ``function`` that makes its rows; None if
    anything but picking and renaming columns lies between, or something there is cached."""
    session, plan = df.sparkSession._jsparkSession, df._jdf.queryExecution().analyzed()
    caches, positions = session.sharedState().cacheManager(), list(range(len(df.columns)))
    try:
        while plan.getClass().getSimpleName() == "Project" and not caches.lookupCachedData(session, plan).isDefined():
            below = _positions(df, plan)
            positions = [below[position] for position in positions]
            plan = plan.child()
        is_there = plan.getClass().getSimpleName() == "MapInArrow" and plan.functionExpr().name() == function
        return positions if is_there and not caches.lookupCachedData(session, plan).isDefined() else None
    except UNREADABLE:
        return None


def _positions(df: DataFrame, project: Any) -> list[int]:
    """Return the position of each column of a Project in the plan below it. Raises :class:`Unknown` for a column that
    is not one of these."""
    jvm: Any = df.sparkSession._jvm
    # Only a container: one call reads one expression.
    columns = jvm.org.apache.spark.sql.catalyst.expressions.Coalesce(project.projectList())
    picked = tree_of(over_columns(df, columns, project.child())).children
    named = [column.children[0] if column.name == "Alias" else column for column in picked]
    if any(column.name != "BoundReference" for column in named):
        raise Unknown("a column that is computed")
    return [column.fields["ordinal"] for column in named]


def _tree(nodes: Iterator[dict[str, Any]], path: tuple[int, ...]) -> SparkExpression:
    """Return the tree that Spark's JSON lists, each node before its children."""
    if len(path) > _DEPTH_MAX:
        raise Unknown("an expression that is nested too deep")
    fields = next(nodes, None)
    if fields is None:
        raise Unknown("an expression whose children are not all listed")
    name, count = fields.pop("class"), fields.pop("num-children")
    children = tuple(_tree(nodes, (*path, number)) for number in range(count))
    return SparkExpression(name.removeprefix(_PACKAGE), fields, children, path)
