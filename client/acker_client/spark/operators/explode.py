"""Explode: one row for each element of an array or a map, each with an edge of its own."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import DataFrame
from pyspark.sql.types import ArrayType, DataType, MapType, StructField, StructType

from acker_client.spark.anchoring.anchors import Positions, Rows
from acker_client.spark.anchoring.derive import derive_keeping
from acker_client.spark.anchoring.tally import Tally
from acker_client.spark.driver.columns import nullable, user_schema
from acker_client.spark.operators.declared import Transform, check_into, check_name, refuse_untracked
from acker_client.spark.plan_check import fusing, plan
from acker_client.spark.worker import chain
from acker_client.spark.worker.chain import TakeRows
from acker_client.spark.worker.returns import kind_of


def explode(
    column: str, into: str | tuple[str, str] | None = None, *, outer: bool = False, name: str = "explode"
) -> Transform:
    """Make one row for each element of ``column`` (an array or a map), each with an edge of its own.

    ``into``: the name of the element's column, by default the name of the array. For a map, the names of the key and
    value columns, by default ``("key", "value")``. Rows without elements are acked; with ``outer`` they are kept, with
    null.
    """
    if not isinstance(column, str):
        raise TypeError(
            f"explode: column is {kind_of(column)}; give the name of a column of arrays or maps, and make one"
            " with df.withColumn('name', ...) where there is none"
        )
    check_into(into)
    check_name("explode", name)

    def multiply(df: DataFrame) -> DataFrame:
        refuse_untracked(df, "explode")
        upstream = plan.inspect(df, f"operator {name!r}")
        given = user_schema(df)
        elements = _elements(given, column, into, name)
        kept = [field for field in given.fields if field.name != column]
        fans_out = isinstance(given[column].dataType, MapType)
        ours = ExplodePlan(name, column, elements, kept, outer, fans_out)
        return exploded(df, plan.mark_consumed(df, upstream, name), ours)

    return multiply


@dataclass(frozen=True, slots=True)
class ExplodePlan:
    """The options of an explode: the ``column``, the columns that its elements become, and the ``kept`` columns.

    ``fans_out``: each element is a struct, and its fields become the columns. Otherwise the element itself is the one
    column.
    """

    name: str
    column: str
    elements: list[StructField]
    kept: list[StructField]
    outer: bool
    fans_out: bool


@dataclass(frozen=True, slots=True)
class ExplodeStep:
    """Makes one row of each element of a column of arrays or maps; see :class:`ExplodePlan`."""

    name: str
    column: str
    elements: tuple[str, ...]
    keep: tuple[str, ...]
    outer: bool
    fans_out: bool

    def start(self, tally: Tally) -> TakeRows:
        return partial(self._take_rows, tally)

    def _take_rows(self, tally: Tally, rows: Rows) -> Iterator[Rows]:
        # Takes fewer rows at a time where the arrays are long, to bound the size of the output batches.
        counts = self._counts(rows.data.column(self.column))
        after = np.cumsum(counts)
        start = 0
        while start < len(rows):
            reached = int(after[start - 1]) if start else 0
            stop = max(start + 1, int(np.searchsorted(after, reached + chain.BATCH_ROWS, side="right")))
            part = Rows(rows.data.slice(start, stop - start), rows.anchors.slice(start, stop))
            yield from self._explode(tally, part)
            start = stop

    def _explode(self, tally: Tally, rows: Rows) -> Iterator[Rows]:
        counts, elements = self._elements_of(rows.data.column(self.column))
        for made in derive_keeping(tally, rows, elements, self.elements, self.keep, counts=counts):
            yield Rows(made.data.select([*self.keep, *self.elements]), made.anchors)

    def _counts(self, column: Any) -> Positions:
        lengths: Positions = pc.fill_null(pc.list_value_length(_as_list(column)), 0).to_numpy().astype(np.int64)
        return np.maximum(lengths, 1) if self.outer else lengths

    def _elements_of(self, column: Any) -> tuple[Positions, list[Any]]:
        """Return the number of output rows of each row, and the columns of the elements."""
        lists = _as_list(column)
        lengths = pc.fill_null(pc.list_value_length(lists), 0).to_numpy().astype(np.int64)
        found = lists.flatten()
        elements = list(found.flatten()[: len(self.elements)]) if self.fans_out else [found]
        if not self.outer or lengths.all():
            return lengths, elements
        counts = np.maximum(lengths, 1)
        positions = np.insert(np.arange(int(lengths.sum())), np.cumsum(lengths)[lengths == 0], -1)
        taken = pa.array(positions, mask=positions < 0)
        return counts, [element.take(taken) for element in elements]


def exploded(df: DataFrame, upstream: plan.Upstream, ours: ExplodePlan) -> DataFrame:
    keep, elements = [field.name for field in ours.kept], [field.name for field in ours.elements]
    step = ExplodeStep(ours.name, ours.column, tuple(elements), tuple(keep), ours.outer, ours.fans_out)
    added = [nullable(field) if ours.outer else field for field in ours.elements]
    schema = StructType([*ours.kept, *added])
    return fusing.extend(fusing.chain_of(df, upstream), upstream, step, "operator", schema)


def _elements(given: StructType, column: str, into: str | tuple[str, str] | None, name: str) -> list[StructField]:
    """Return the columns that the elements of ``column`` become. Raises ValueError."""
    kind: DataType | None = given[column].dataType if column in given.names else None
    if isinstance(kind, ArrayType):
        if isinstance(into, tuple):
            raise ValueError(f"{name}({column!r}) is of an array: into takes one name")
        fields = [StructField(into or column, kind.elementType, kind.containsNull)]
    elif isinstance(kind, MapType):
        names = ("key", "value") if into is None else into
        if isinstance(names, str) or len(names) != 2:
            raise ValueError(f"{name}({column!r}) is of a map: into takes the names of its key and its value")
        fields = [StructField(names[0], kind.keyType, False), StructField(names[1], kind.valueType)]
    else:
        what = "is not there" if kind is None else f"is {kind.simpleString()}"
        raise ValueError(
            f"{name}({column!r}) takes the name of a column of arrays or maps; it {what}, of {given.names}"
        )
    taken = [field.name for field in fields if field.name in given.names and field.name != column]
    if taken:
        raise ValueError(
            f"{name}({column!r}) makes a column {taken[0]!r}, which is there already: name it with into=..."
        )
    return fields


def _as_list(column: Any) -> Any:
    """Return a column of maps as a column of lists of structs (key, value); lists are returned as they are."""
    return column.cast(pa.list_(pa.struct(_entry_fields(column.type)))) if pa.types.is_map(column.type) else column


def _entry_fields(kind: Any) -> list[Any]:
    return [pa.field("key", kind.key_type, nullable=False), pa.field("value", kind.item_type)]
