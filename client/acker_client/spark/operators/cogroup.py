"""Cogroup: a user's function over the rows of two frames with the same key. The output descends from both frames.

Decides which of the two frames are tracked. The function may read the rows of a plain table, but these are never
parents. Also decides the order in which the function sees rows, because its result often depends on the order.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

from acker_client.spark.anchoring.anchors import TRACKING, Anchors, Positions, Rows, reserved, unpack
from acker_client.spark.anchoring.order import in_order
from acker_client.spark.anchoring.zones import in_utc, scalar_in_utc
from acker_client.spark.driver.columns import into_python
from acker_client.spark.operators.declared import (
    OnError,
    accepts_arguments,
    check_declared,
    checked_name,
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

# ``(left, right)`` or ``(key, left, right)``.
CogroupFunction = Callable[..., Any]


def cogroup(
    keys: str | Sequence[str],
    schema: str | StructType,
    *,
    name: str | None = None,
    on_error: OnError = "fail",
    deterministic: bool = False,
    parents_max: int = PARENTS_MAX,
) -> Callable[[CogroupFunction], Cogroup]:
    """Make a batch operator over the groups of two frames, applied with ``op(left, right)``.

    ``left.transform(op, right)`` applies it too. The function is called as ``function(left, right)`` or
    ``function(key, left, right)``, once for each value of ``keys``. ``left`` and ``right`` are ``pyarrow.Table`` (one
    of them may be empty), ``key`` is a tuple of Arrow scalars. Rows come in the order of their records. The rows of a
    plain table come in an order that is always the same.

    The function returns ``(rows, of_left, of_right)``: a Table or RecordBatch, and for each of its rows the positions
    of its parents on either side, as ``[[0, 1], []]`` (None: no row has parents on that side). It may return ``(rows,
    "all")`` if there is at most one row, which descends from all rows of both sides. Each row needs at least one parent
    in a tracked frame, and carries the anchors of all its parents, at most ``parents_max``. Rows that are not named as
    parents are acked. One of the frames may be a plain table. The function may name rows of the plain table, but they
    are ignored as parents. Keys that occur only in the plain table are left out. ``deterministic``: as for
    :func:`pandas_operator`.
    """
    columns = tuple(column_names(keys, "cogroup", "keys"))
    check_declared(schema, "@cogroup", "@cogroup('sku', 'sku string, total int')")
    check_merging("cogroup", on_error, parents_max)

    def decorate(function: CogroupFunction) -> Cogroup:
        chosen = checked_name(function, name, "@cogroup")
        takes = [arguments for arguments in (2, 3) if accepts_arguments(function, arguments)]
        if not takes:
            raise TypeError(
                f"@cogroup: {chosen!r} is called with (left, right), two pyarrow Tables, or with (key, left, right);"
                " write a plain function that takes one of these (to use a method, wrap it in a function)"
            )
        return Cogroup(function, chosen, columns, schema, on_error, deterministic, parents_max, takes[0] == 3)

    return decorate


@dataclass(frozen=True, slots=True, repr=False)
class Cogroup:
    """An operator that calls a function over the groups of two frames.

    ``function`` is the user's, unchanged. ``takes_key``: whether it takes the key before the two tables.
    """

    function: CogroupFunction
    name: str
    keys: tuple[str, ...]
    schema: str | StructType
    on_error: OnError
    deterministic: bool
    parents_max: int
    takes_key: bool

    def __call__(self, left: DataFrame, right: DataFrame) -> DataFrame:
        """Return the frame of the function's output for each key of the two frames, with packed anchors.

        Each side consumes its rows, so to cogroup a frame with itself, use ``branch(df, 2)``. The frames may come from
        one batch or from the batches of two sources, and each source settles its own batch. One of them may be a plain
        table. Raises ``Refused``, and ValueError for keys that are missing or have different types.
        """
        for df in (left, right):
            refuse_no_frame(df, self, f"{self.name}.test(left, right)")
        schema, upstream = self._fields(), self._upstream(left, right)
        sides = [_Grouping.of(df, self.keys, self._label) for df in (left, right)]
        self._refuse_other_types(*sides)
        upstream = plan.mark_consumed(left, upstream, self.name)
        ours, theirs = (Side(side.names, side.is_tracked) for side in sides)
        task = self._task(schema, left.sparkSession, ours, theirs, fusing.is_tracked(upstream))
        first, second = (side.df.groupBy(*side.keys) for side in sides)
        cogrouped = first.cogroup(second).applyInArrow(_tables_function(task), fields_with_account(schema))
        return with_accounts_taken(cogrouped, upstream, self.name, schema)

    def test(self, left: pa.Table, right: pa.Table, key: tuple[Any, ...] | None = None) -> pa.Table:
        """Return the function's output for the rows of one key: the declared columns. Needs no Spark and no server.

        Treats both tables as tracked. ``key`` is taken from the tables unless given. Raises what the function raises,
        and :class:`OperatorError` or :class:`~acker_client.spark.worker.rows.Mismatch` if its result does not fit the
        schema or the rows.
        """
        schema = self._fields()
        task = self._task(schema, None, Side(), Side())
        if self.takes_key and key is None:
            rows = left if left.num_rows else right
            key = tuple(rows[column][0] for column in self.keys)
        columns, _ = task.checked(task.call(key or (), left, right), left.num_rows, right.num_rows)
        return pa.Table.from_arrays(columns, names=schema.names)

    def __repr__(self) -> str:
        return f"<cogroup {self.name!r}>"

    @property
    def _label(self) -> str:
        return f"cogroup {self.name!r}"

    def _fields(self) -> StructType:
        return declared_fields(self.schema, self._label)

    def _upstream(self, left: DataFrame, right: DataFrame) -> plan.Upstream:
        """Return the plan check's result for the tracked frames. If none is tracked, the check of ``left`` raises."""
        label = f"operator {self.name!r}"
        tracked = [df for df in (left, right) if not plan.is_plain(df)] or [left]
        upstream = plan.meeting([plan.inspect(df, label) for df in tracked], label)
        for df in (left, right):
            taken = reserved(df.columns)
            if taken and not any(df is each for each in tracked):
                raise ValueError(
                    f"{self._label}: the plain table has a column {taken[0]!r}, and {', '.join(TRACKING)} are"
                    " reserved for the acker (Spark ignores the case of names). Rename the column. A frame that is to"
                    " be tracked must come from batch.df"
                )
        return upstream

    def _refuse_other_types(self, left: _Grouping, right: _Grouping) -> None:
        """Raise ValueError if a key has two types: Spark hashes the types differently, so no rows would meet."""
        for key, ours, theirs in zip(self.keys, left.kinds, right.kinds, strict=True):
            if ours != theirs:
                raise ValueError(
                    f"{self._label}: the key {key!r} is {ours} on the left and {theirs} on the right, so no two rows"
                    f" would meet. Make it one type first, as df.withColumn({key!r}, F.col({key!r}).cast({ours!r}))"
                )

    def _task(
        self, schema: StructType, spark: SparkSession | None, left: Side, right: Side, tracking: bool = True
    ) -> CogroupTask:
        merging = Merging.of(
            "cogroup",
            self.name,
            schema,
            self.on_error,
            deterministic=self.deterministic,
            parents_max=self.parents_max,
            spark=spark,
            tracking=tracking,
        )
        return CogroupTask(merging, self.function, self.takes_key, left, right)


@dataclass(frozen=True, slots=True)
class _Grouping:
    """A frame as Spark passes it to Python, with the expressions to group by and their types.

    ``is_tracked``: False for a plain table.
    """

    df: DataFrame
    names: tuple[str, ...]
    is_tracked: bool
    keys: tuple[str, ...]
    kinds: tuple[str, ...]

    @classmethod
    def of(cls, df: DataFrame, keys: Sequence[str], label: str) -> _Grouping:
        base, names = into_python(df)
        found = tuple(key_of(key, df.columns, base.columns, label) for key in keys)
        kinds = tuple(field.dataType.simpleString() for field in base.select(*found).schema.fields)
        return cls(base, names, bool(reserved(df.columns)), found, kinds)


@dataclass(frozen=True, slots=True)
class Side:
    """One of the two frames in a task. ``names``: the frame's column names; () if Spark passes them unchanged."""

    names: tuple[str, ...] = ()
    is_tracked: bool = True

    def rows(self, table: pa.Table) -> Rows:
        """Return the rows of one key, in their order; rows of a plain table have no anchors."""
        batch = one_batch(chain.renamed(table, self.names))
        if self.is_tracked:
            return in_order(unpack(batch))
        none = np.zeros(batch.num_rows, np.uint64)
        return in_order(Rows(in_utc(batch), Anchors(none, none)))


@dataclass(frozen=True, slots=True)
class CogroupTask:
    """The function that Spark calls once for each key."""

    merging: Merging
    function: CogroupFunction
    takes_key: bool
    left: Side
    right: Side

    def of_key(self, key: tuple[Any, ...], left: pa.Table, right: pa.Table) -> pa.Table:
        """Return the output for the rows of one key; see :meth:`Merging.merge`.

        Returns no rows for a key that only a plain table has. These rows would appear again with every batch, and would
        descend from no record.
        """
        ours, theirs = self.left.rows(left), self.right.rows(right)
        given = pa.schema([*left.schema, *right.schema])
        anchors = [rows.anchors for rows, side in ((ours, self.left), (theirs, self.right)) if side.is_tracked]
        whole = anchors[0] if len(anchors) == 1 else anchors[0].followed_by(anchors[1])
        if not whole.rows:
            return self.merging.nothing(given)
        given_key = tuple(map(scalar_in_utc, key))
        make = partial(self.call, given_key, *(pa.Table.from_batches([rows.data]) for rows in (ours, theirs)))
        return self.merging.merge(whole, make, partial(self.checked, left=len(ours), right=len(theirs)), given)

    def call(self, key: tuple[Any, ...], left: pa.Table, right: pa.Table) -> Any:
        return self.function(key, left, right) if self.takes_key else self.function(left, right)

    def checked(self, given: Any, left: int, right: int) -> Made:
        """Return the declared columns and the parents of each row. Raises :class:`OperatorError`.

        ``given``: the result of the function for ``left`` rows of one side and ``right`` rows of the other (counts).
        Parents are positions in the tracked rows of the left side, followed by the tracked rows of the right side.
        """
        columns, children = self._columns(given)
        sides = (("left", left), ("right", right))
        if isinstance(given[1], str):
            self.merging.check_all_parents(given[1], children, "(rows, [[0, 1], [2]], [[0], []])")
            named = [[np.arange(rows)] * children for _, rows in sides]
        else:
            named = [
                [np.empty(0, np.int64)] * children
                if lists is None
                else self.merging.parents_of(lists, children, rows, f"{self.merging.label}, {side}")
                for lists, (side, rows) in zip(given[1:], sides, strict=True)
            ]
        parents = self._tracked_parents(named, left)
        self.merging.check_parent_counts(parents, "name the rows of a tracked frame that it descends from")
        return columns, parents

    def _columns(self, given: Any) -> tuple[list[Any], int]:
        words = [isinstance(each, str) for each in given[1:]] if isinstance(given, tuple) else []
        if words not in ([True], [False, False]):
            what = f"a tuple of {len(given)}" if isinstance(given, tuple) else kind_of(given)
            raise OperatorError(
                f"{self.merging.label} returned {what}: return (rows, of_left, of_right), where of_left and of_right"
                " are a list of positions for each row, as [[0, 1], []], or (rows, 'all') for one row that descends"
                " from all"
            )
        return checked_columns(given[0], arrow_schema(self.merging.schema), self.merging.label)

    def _tracked_parents(self, named: Sequence[Sequence[Positions]], left: int) -> list[Positions]:
        """Return the parents of both sides as positions in the tracked rows, left side first."""
        if not self.right.is_tracked:
            return list(named[0])
        if not self.left.is_tracked:
            return list(named[1])
        return [np.append(ours, theirs + left) for ours, theirs in zip(*named, strict=True)]


def _tables_function(task: CogroupTask) -> Callable[[tuple[Any, ...], pa.Table, pa.Table], pa.Table]:
    def of_key(key: tuple[Any, ...], left: pa.Table, right: pa.Table) -> pa.Table:
        return task.of_key(key, left, right)

    return of_key
