"""Cogroup: a user's function over the rows that two frames have of each key, which makes rows that descend from both.

Decides which of the two frames are tracked: rows of a plain table may be looked at and are nobody's parents. And it
decides in what order a function sees rows, as what it makes of them often hangs on that.
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
from acker_client.spark.driver.columns import into_python
from acker_client.spark.operators.declared import (
    OnError,
    check_declared,
    checked_name,
    column_names,
    declared_fields,
    refuse_no_frame,
    takes_so_many,
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
from acker_client.spark.plan_check import plan
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
    deterministic: bool = True,
    parents_max: int = PARENTS_MAX,
) -> Callable[[CogroupFunction], Cogroup]:
    """A batch operator over the groups of two frames: ``function(left, right)``, or ``function(key, left, right)``, is
    called with the rows (two ``pyarrow.Table``, of which one may be empty) that they have of each value of ``keys``,
    and the key as a tuple of Arrow scalars. ``it(left, right)`` or ``left.transform(it, right)`` applies it.

    It returns ``(rows, of_left, of_right)``: a Table or RecordBatch, and for each of its rows the positions of the rows
    of either side that it descends from, as ``[[0, 1], []]`` (None: no row has parents on that side); or ``(rows,
    "all")`` when there is one row, or none, that descends from all of both. Each row has at least one parent in a
    tracked frame, and carries the anchors of all of them, at most ``parents_max``. Rows that nobody names are done, and
    acked. One of the frames may be a plain table: its rows may be named and are nobody's parents, and a key that it
    alone has is left out. Rows come in the order of their records; those of a plain table in some order, always the
    same.
    """
    columns = tuple(column_names(keys, "cogroup", "keys"))
    check_declared(schema, "@cogroup", "@cogroup('sku', 'sku string, total int')")
    check_merging("cogroup", on_error, parents_max)

    def decorate(function: CogroupFunction) -> Cogroup:
        chosen = checked_name(function, name, "@cogroup")
        takes = [arguments for arguments in (2, 3) if takes_so_many(function, arguments)]
        if not takes:
            raise TypeError(
                f"@cogroup: {chosen!r} is called with (left, right), two pyarrow Tables, or with (key, left, right);"
                " write a plain function that takes either (of a method, wrap it in one)"
            )
        return Cogroup(function, chosen, columns, schema, on_error, deterministic, parents_max, takes[0] == 3)

    return decorate


@dataclass(frozen=True, slots=True, repr=False)
class Cogroup:
    """A function over the groups of two frames as an operator. ``function`` is the user's, untouched; ``takes_key``:
    whether it is called with the key before the two tables."""

    function: CogroupFunction
    name: str
    keys: tuple[str, ...]
    schema: str | StructType
    on_error: OnError
    deterministic: bool
    parents_max: int
    takes_key: bool

    def __call__(self, left: DataFrame, right: DataFrame) -> DataFrame:
        """The frame of what the function makes of each key of the two frames, with packed anchors.

        Each of them takes its rows once: the two sides of a frame with itself are ``branch(df, 2)``. They may be of one
        batch or of batches of two sources, each of which is settled by its own; a plain table may stand in the place of
        one. Raises ``Refused``, and ValueError for keys that are not there or are not of one type.
        """
        for df in (left, right):
            refuse_no_frame(df, self, f"{self.name}.test(left, right)")
        schema, upstream = self._fields(), self._upstream(left, right)
        sides = [_Grouping.of(df, self.keys, self._who) for df in (left, right)]
        self._refuse_other_types(*sides)
        upstream = plan.take(left, upstream, self.name)
        task = self._task(schema, left.sparkSession, *(Side(side.names, side.is_tracked) for side in sides))
        ours, theirs = (side.df.groupBy(*side.keys) for side in sides)
        cogrouped = ours.cogroup(theirs).applyInArrow(_tables_function(task), fields_with_account(schema))
        return with_accounts_taken(cogrouped, upstream, self.name, schema)

    def test(self, left: pa.Table, right: pa.Table, key: tuple[Any, ...] | None = None) -> pa.Table:
        """What the function makes of the rows of one key, as if both frames were tracked, without Spark or a server:
        the declared columns. ``key``: taken from the tables unless given.

        Raises what the function raises, and :class:`OperatorError` where what it gives does not fit the schema or the
        rows.
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
    def _who(self) -> str:
        return f"cogroup {self.name!r}"

    def _fields(self) -> StructType:
        return declared_fields(self.schema, self._who)

    def _upstream(self, left: DataFrame, right: DataFrame) -> plan.Upstream:
        """What the tracked ones of the two stand on. With nothing tracked the guard says of the left where to start."""
        who = f"operator {self.name!r}"
        tracked = [df for df in (left, right) if not plan.is_plain(df)] or [left]
        upstream = plan.meeting([plan.inspect(df, who) for df in tracked], who)
        for df in (left, right):
            taken = reserved(df.columns)
            if taken and not any(df is each for each in tracked):
                raise ValueError(
                    f"{self._who}: the plain table has a column {taken[0]!r}, and {', '.join(TRACKING)} are the acker's"
                    " own (Spark takes names in any case). Rename it; what is to be tracked comes from batch.df"
                )
        return upstream

    def _refuse_other_types(self, left: _Grouping, right: _Grouping) -> None:
        """Spark would hash the same number in two types to two places, and find nothing that belongs together."""
        for key, ours, theirs in zip(self.keys, left.kinds, right.kinds, strict=True):
            if ours != theirs:
                raise ValueError(
                    f"{self._who}: the key {key!r} is {ours} on the left and {theirs} on the right, so no two rows"
                    f" would meet. Make it one type first, as df.withColumn({key!r}, F.col({key!r}).cast({ours!r}))"
                )

    def _task(self, schema: StructType, spark: SparkSession | None, left: Side, right: Side) -> CogroupTask:
        merging = Merging.of(
            "cogroup",
            self.name,
            schema,
            self.on_error,
            deterministic=self.deterministic,
            parents_max=self.parents_max,
            spark=spark,
        )
        return CogroupTask(merging, self.function, self.takes_key, left, right)


@dataclass(frozen=True, slots=True)
class _Grouping:
    """A frame as it is handed to Python, what it is grouped by there, and the types of that. ``is_tracked``: it is no
    plain table."""

    df: DataFrame
    names: tuple[str, ...]
    is_tracked: bool
    keys: tuple[str, ...]
    kinds: tuple[str, ...]

    @classmethod
    def of(cls, df: DataFrame, keys: Sequence[str], who: str) -> _Grouping:
        base, names = into_python(df)
        found = tuple(key_of(key, df.columns, base.columns, who) for key in keys)
        kinds = tuple(field.dataType.simpleString() for field in base.select(*found).schema.fields)
        return cls(base, names, bool(reserved(df.columns)), found, kinds)


@dataclass(frozen=True, slots=True)
class Side:
    """One of the two frames as a task knows it. ``names``: of its columns, where Spark hands them over under others."""

    names: tuple[str, ...] = ()
    is_tracked: bool = True

    def rows(self, table: pa.Table) -> Rows:
        """Its rows of one key, in their order; those of a plain table without anchors."""
        batch = one_batch(chain.renamed(table, self.names))
        if self.is_tracked:
            return in_order(unpack(batch))
        none = np.zeros(batch.num_rows, np.uint64)
        return in_order(Rows(batch, Anchors(none, none)))


@dataclass(frozen=True, slots=True)
class CogroupTask:
    """A cogroup as Spark calls it, once a key."""

    merging: Merging
    function: CogroupFunction
    takes_key: bool
    left: Side
    right: Side

    def of_key(self, key: tuple[Any, ...], left: pa.Table, right: pa.Table) -> pa.Table:
        """What becomes of the rows of one key; see :meth:`Merging.merge`. Of a key that only a plain table has nothing
        does: that would come out anew with every batch, and no record would stand behind it."""
        ours, theirs = self.left.rows(left), self.right.rows(right)
        given = pa.schema([*left.schema, *right.schema])
        anchors = [rows.anchors for rows, side in ((ours, self.left), (theirs, self.right)) if side.is_tracked]
        whole = anchors[0] if len(anchors) == 1 else anchors[0].followed_by(anchors[1])
        if not whole.rows:
            return self.merging.nothing(given)
        make = partial(self.call, key, *(pa.Table.from_batches([rows.data]) for rows in (ours, theirs)))
        return self.merging.merge(whole, make, partial(self.checked, left=len(ours), right=len(theirs)), given)

    def call(self, key: tuple[Any, ...], left: pa.Table, right: pa.Table) -> Any:
        """What the user's function gives."""
        return self.function(key, left, right) if self.takes_key else self.function(left, right)

    def checked(self, given: Any, left: int, right: int) -> Made:
        """The declared columns and the parents of each row, positions in the tracked rows of the left and then of the
        right, out of what the function gave for so many rows of either. Raises :class:`OperatorError`."""
        who = self.merging.who
        columns, children = self._columns(given)
        sides = (("left", left), ("right", right))
        if isinstance(given[1], str):
            self.merging.refuse_all_of_many(given[1], children, "(rows, [[0, 1], [2]], [[0], []])")
            named = [[np.arange(rows)] * children for _, rows in sides]
        else:
            named = [
                [np.empty(0, np.int64)] * children
                if lists is None
                else self.merging.parents_of(lists, children, rows, f"{who}, {side}")
                for lists, (side, rows) in zip(given[1:], sides, strict=True)
            ]
        parents = self._of_tracked(named, left)
        self.merging.refuse_unbounded(parents, "name the rows of a tracked frame that it descends from")
        return columns, parents

    def _columns(self, given: Any) -> tuple[list[Any], int]:
        words = [isinstance(each, str) for each in given[1:]] if isinstance(given, tuple) else []
        if words not in ([True], [False, False]):
            what = f"a tuple of {len(given)}" if isinstance(given, tuple) else kind_of(given)
            raise OperatorError(
                f"{self.merging.who} returned {what}: return (rows, of_left, of_right), where of_left and of_right are"
                " a list of positions for each row, as [[0, 1], []], or (rows, 'all') for one row that descends from"
                " all"
            )
        return checked_columns(given[0], arrow_schema(self.merging.schema), self.merging.who)

    def _of_tracked(self, named: Sequence[Sequence[Positions]], left: int) -> list[Positions]:
        """Parents on both sides as positions in the tracked rows of the left and then of the right."""
        if not self.right.is_tracked:
            return list(named[0])
        if not self.left.is_tracked:
            return list(named[1])
        return [np.append(ours, theirs + left) for ours, theirs in zip(*named, strict=True)]


def _tables_function(task: CogroupTask) -> Callable[[tuple[Any, ...], pa.Table, pa.Table], pa.Table]:
    def of_key(key: tuple[Any, ...], left: pa.Table, right: pa.Table) -> pa.Table:
        return task.of_key(key, left, right)

    return of_key
