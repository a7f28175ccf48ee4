"""Group: a user's function over the rows of each key. Each output row carries the anchors of all its parents."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

from acker_client.spark.anchoring.anchors import Positions, unpack
from acker_client.spark.anchoring.order import in_order
from acker_client.spark.driver.columns import into_python
from acker_client.spark.operators.declared import (
    OnError,
    check_declared,
    checked_function,
    column_names,
    declared_fields,
    refuse_no_frame,
)
from acker_client.spark.operators.merging import (
    PARENTS_MAX,
    Made,
    Merging,
    check_merging,
    fields_with_account,
    key_of,
    with_accounts_taken,
)
from acker_client.spark.plan_check import fusing, plan
from acker_client.spark.worker import chain
from acker_client.spark.worker.returns import OperatorError, checked_columns, kind_of, one_batch
from acker_client.spark.worker.rows import arrow_schema

GroupFunction = Callable[[pa.Table], Any]


def group(
    keys: str | Sequence[str],
    schema: str | StructType,
    *,
    name: str | None = None,
    on_error: OnError = "fail",
    deterministic: bool = False,
    parents_max: int = PARENTS_MAX,
) -> Callable[[GroupFunction], Group]:
    """Make a batch operator over groups: calls ``function(table)`` with a ``pyarrow.Table`` for each value of ``keys``.

    The function returns ``(rows, parents)``: a Table or RecordBatch, and for each of its rows the positions of the
    input rows that it descends from. It may return ``(rows, "all")`` if there is at most one row, which descends from
    all input rows. Input rows that are not named as parents are acked. A row carries the anchors of all its parents, at
    most ``parents_max``. ``deterministic``: as for :func:`pandas_operator`.
    """
    columns = tuple(column_names(keys, "group", "keys"))
    check_declared(schema, "@group", "@group('sku', 'sku string, total int')")
    check_merging("group", on_error, parents_max)

    def decorate(function: GroupFunction) -> Group:
        chosen = checked_function(function, name, "@group", "a pyarrow Table")
        return Group(function, chosen, columns, schema, on_error, deterministic, parents_max)

    return decorate


@dataclass(frozen=True, slots=True, repr=False)
class Group:
    """An operator that calls a function over groups: ``df.transform(op)`` applies it.

    ``function`` is the user's, unchanged.
    """

    function: GroupFunction
    name: str
    keys: tuple[str, ...]
    schema: str | StructType
    on_error: OnError
    deterministic: bool
    parents_max: int

    def __call__(self, df: DataFrame) -> DataFrame:
        """Return the frame of the function's output for each group, with packed anchors.

        Adds a second step that reports for all groups of a task; see the docstring of ``merging``.
        """
        refuse_no_frame(df, self, f"{self.name}.test(table)")
        schema = self._fields()
        upstream = plan.inspect(df, f"operator {self.name!r}")
        base, names = into_python(df)
        keys = [key_of(key, df.columns, base.columns, f"group {self.name!r}") for key in self.keys]
        upstream = plan.mark_consumed(df, upstream, self.name)
        task = self._task(schema, df.sparkSession, names, fusing.is_tracked(upstream))
        grouped = base.groupBy(*keys).applyInArrow(_table_function(task), fields_with_account(schema))
        return with_accounts_taken(grouped, upstream, self.name, schema)

    def test(self, rows: pa.Table) -> pa.Table:
        """Return the function's output for the ``rows`` of one group: the declared columns. Needs no Spark, no server.

        Raises what the function raises, and :class:`OperatorError` or
        :class:`~acker_client.spark.worker.rows.Mismatch` if its result does not fit the schema or the rows.
        """
        schema = self._fields()
        columns, _ = self._task(schema, None, ()).checked(self.function(rows), rows.num_rows)
        return pa.Table.from_arrays(columns, names=schema.names)

    def __repr__(self) -> str:
        return f"<group {self.name!r}>"

    def _fields(self) -> StructType:
        return declared_fields(self.schema, f"group {self.name!r}")

    def _task(
        self, schema: StructType, spark: SparkSession | None, names: tuple[str, ...], tracking: bool = True
    ) -> GroupTask:
        merging = Merging.of(
            "group",
            self.name,
            schema,
            self.on_error,
            deterministic=self.deterministic,
            parents_max=self.parents_max,
            spark=spark,
            tracking=tracking,
        )
        return GroupTask(merging, self.function, names)


@dataclass(frozen=True, slots=True)
class GroupTask:
    """The function that Spark calls once for each group."""

    merging: Merging
    function: GroupFunction
    names: tuple[str, ...]

    def of_group(self, table: pa.Table) -> pa.Table:
        """Return the output for one group; see :meth:`Merging.merge`."""
        rows = in_order(unpack(one_batch(chain.renamed(table, self.names))))
        make = partial(self.function, pa.Table.from_batches([rows.data]))
        return self.merging.merge(rows.anchors, make, partial(self.checked, rows=len(rows)), table.schema)

    def checked(self, given: Any, rows: int) -> Made:
        """Return the declared columns and the parents of each row. Raises :class:`OperatorError`.

        ``given``: the result of the function for ``rows`` rows.
        """
        label = self.merging.label
        if not isinstance(given, tuple) or len(given) != 2:
            what = f"a tuple of {len(given)}" if isinstance(given, tuple) else kind_of(given)
            raise OperatorError(
                f"{label} returned {what}: return (rows, parents), where parents is a list of positions for each row,"
                " or (rows, 'all') for one row that descends from all"
            )
        columns, children = checked_columns(given[0], arrow_schema(self.merging.schema), label)
        parents = self._parents(given[1], children, rows)
        self.merging.check_parent_counts(parents, "name the rows that it descends from")
        return columns, parents

    def _parents(self, given: Any, children: int, rows: int) -> list[Positions]:
        if isinstance(given, str):
            self.merging.check_all_parents(given, children, "[[0, 1], [2]]")
            return [np.arange(rows)] * children
        return self.merging.parents_of(given, children, rows, self.merging.label)


def _table_function(task: GroupTask) -> Callable[[pa.Table], pa.Table]:
    def of_group(table: pa.Table) -> pa.Table:
        return task.of_group(table)

    return of_group
