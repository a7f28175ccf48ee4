"""Stock operators: what Spark has for frames (filter, explode, union of copies, groupBy, join), with tracking.

Decides how each of them keeps the account that Spark's own would lose: what is dropped is acked, what is multiplied
gets an edge a copy, what is merged carries the anchors of all it came from. Conditions and join keys are Spark's to
evaluate.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import Column as SparkColumn
from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import ArrayType, BinaryType, DataType, MapType, StructField, StructType

from acker_client.spark import lineage, plan, stage
from acker_client.spark.anchors import Anchors, Positions, Rows, packed_column, unpack
from acker_client.spark.derive import batch_of, derive
from acker_client.spark.operators import (
    Culprits,
    OnError,
    OperatorError,
    checked_columns,
    checked_parents,
    spark_checks_reruns,
)
from acker_client.spark.rows import arrow_schema, struct_type
from acker_client.spark.tally import Report, Tally, digest_parents
from acker_client.spark.values import digest_rows

Transform = Callable[[DataFrame], DataFrame]
Parents = Literal["all"] | Sequence[Sequence[int]]
GroupFunction = Callable[[pa.Table], Any]

# Columns of our own between two nodes of one step; they never reach the user.
FLAG = "_acker_keep"
MATCHES = "_acker_matches"
ACCOUNT = "_acker_account"

# The first byte of an account: whether its row is one of the user's, or stands for a group that became nothing.
_ROW, _GHOST = b"r", b"g"

PARENTS_MAX = 100_000


def where(condition: str | SparkColumn, *, name: str = "where") -> Transform:
    """Keep the rows for which ``condition`` (SQL, or a Column) is true; the others are done, and acked."""

    def keep(df: DataFrame) -> DataFrame:
        flag = F.expr(condition) if isinstance(condition, str) else condition
        step = WhereStep(name, not spark_checks_reruns(df.sparkSession))
        return stage.apply(df.withColumn(FLAG, flag), step, "operator", stage.user_schema(df))

    return keep


def explode(
    column: str, into: str | tuple[str, str] | None = None, *, outer: bool = False, name: str = "explode"
) -> Transform:
    """One row for each element of ``column`` (an array or a map), each with an edge of its own.

    ``into``: name of the element's column, the array's unless given; of a map ``(key, value)``, ``("key", "value")``
    unless given. Rows without elements are done, and acked; with ``outer`` they are kept, with null.
    """

    def multiply(df: DataFrame) -> DataFrame:
        given = stage.user_schema(df)
        elements = _elements(given, column, into, name)
        kept = [field for field in given.fields if field.name != column]
        fans_out = isinstance(given[column].dataType, MapType)
        return _exploded(df, plan.guard(df, name), ExplodePlan(name, column, elements, kept, outer, fans_out))

    return multiply


def branch(df: DataFrame, copies: int, *, name: str = "branch") -> tuple[DataFrame, ...]:
    """``copies`` frames with the same rows, for as many consumers; a row is done when all its copies are.

    What is below is evaluated once for each copy that is used; ``.cache()`` it where that is dear. Where the boundaries
    of its tasks may move between evaluations (orderBy, repartition without a number), this caches it until the batch is
    settled.
    """
    if copies < 1:
        raise ValueError(f"branch: copies={copies}; give how many frames you need")
    upstream = plan.guard(df, name)
    if upstream.moving_boundaries:
        record: Any = upstream.record
        df, upstream = record.keep_cached(df), replace(upstream, moving_boundaries=False)
    schema = stage.user_schema(df)
    steps = (BranchStep(name, index, copies) for index in range(copies))
    return tuple(stage.apply_known(df, upstream, step, "operator", schema) for step in steps)


def join(
    other: DataFrame, on: str | Sequence[str], how: Literal["inner", "left"] = "inner", *, name: str = "join"
) -> Transform:
    """Join tracked rows with an untracked table ``other`` that fits into memory, over columns ``on`` of both.

    Each match is a row with an edge of its own; a row without a match is done, and acked (``"left"``: kept, with
    nulls).
    """
    if how not in ("inner", "left"):
        raise ValueError(f"join: how={how!r}; give 'inner' or 'left'")
    keys = [on] if isinstance(on, str) else list(on)
    missing = [key for key in keys if key not in other.columns]
    if missing or not keys:
        raise ValueError(f"join: on={on!r}; the other side has the columns {other.columns}")

    def match(df: DataFrame) -> DataFrame:
        given = stage.user_schema(df)
        added = [field for field in other.schema.fields if field.name not in keys]
        _refuse_unfit(name, given, keys, added)
        upstream = plan.inspect(df, f"operator {name!r}")
        right = F.broadcast(_one_row_a_key(other, keys, added)).alias(lineage.admit_join(upstream.record))
        joined = df.join(right, keys, "left")
        # In which order the matches of a key were collected is Spark's affair, and may differ the next time.
        digests_values = not spark_checks_reruns(df.sparkSession)
        ours = ExplodePlan(name, MATCHES, added, given.fields, how == "left", True, digests_values)
        return _exploded(joined, plan.guard(joined, name), ours)

    return match


def group(
    keys: str | Sequence[str],
    schema: str | StructType,
    *,
    name: str | None = None,
    on_error: OnError = "fail",
    deterministic: bool = True,
    parents_max: int = PARENTS_MAX,
) -> Callable[[GroupFunction], Group]:
    """A batch operator over groups: ``function(table)`` is called with the rows (a ``pyarrow.Table``) of each value of
    ``keys``.

    It returns ``(rows, parents)``: a Table or RecordBatch, and for each of its rows the positions of the rows that it
    descends from; or ``(rows, "all")`` when there is one row, or none, that descends from all of them. Rows that nobody
    names are done, and acked. A row carries the anchors of all its parents, at most ``parents_max``.
    """
    columns = (keys,) if isinstance(keys, str) else tuple(keys)
    if not columns:
        raise ValueError("group: name at least one key column")

    def decorate(function: GroupFunction) -> Group:
        return Group(function, name or function.__name__, columns, schema, on_error, deterministic, parents_max)

    return decorate


@dataclass(frozen=True, slots=True)
class Group:
    """A function over groups as an operator: ``df.transform(it)`` applies it. ``function`` is the user's, untouched."""

    function: GroupFunction
    name: str
    keys: tuple[str, ...]
    schema: str | StructType
    on_error: OnError
    deterministic: bool
    parents_max: int

    def __call__(self, df: DataFrame) -> DataFrame:
        """The frame of what the function makes of each group, with packed anchors.

        Spark calls it once a group and says nothing at the end of a task, so the account of each group travels on in a
        column of its rows to a step right behind, in the same task, which reports for all of them.
        """
        schema = struct_type(self.schema)
        upstream = plan.guard(df, self.name)
        digests_values = not self.deterministic or not spark_checks_reruns(df.sparkSession)
        task = GroupTask(self.name, self.function, schema, self.on_error, digests_values, self.parents_max)
        fields = [*schema.fields, *stage.tracking_fields(plan.PACKED), StructField(ACCOUNT, BinaryType())]
        grouped = df.groupBy(*self.keys).applyInArrow(_table_function(task), StructType([_nullable(f) for f in fields]))
        record: Any = upstream.record
        # How many groups a task gets is for adaptive execution to decide, anew in each evaluation.
        after = replace(upstream, columns=plan.PACKED, moving_boundaries=True)
        step = AccountStep(self.name)
        applied = stage.Applied(grouped, stage.Stage(record.settings, stage.Arriving()), record)
        return stage.extend(applied, after, step, "operator", schema)


@dataclass(frozen=True, slots=True)
class WhereStep:
    """Drops the rows whose flag is not true."""

    name: str
    digests_values: bool

    def start(self, *, finds_copies: bool) -> WhereRun:
        return WhereRun(self, Tally(self.name, finds_copies=finds_copies))


class WhereRun:
    """A where in one task."""

    def __init__(self, step: WhereStep, tally: Tally) -> None:
        self._step = step
        self._tally = tally

    def take(self, rows: Rows) -> Iterator[Rows]:
        flags = rows.data.column(FLAG)
        data = rows.data.select([name for name in rows.data.schema.names if name != FLAG])
        kept = np.flatnonzero(pc.fill_null(flags, False).to_numpy(zero_copy_only=False)).astype(np.int64)
        if len(kept) < len(rows):
            data = data.filter(flags)
        yield derive(
            self._tally,
            rows,
            data.columns,
            data.schema.names,
            parents=kept,
            digests_values=self._step.digests_values,
        )

    def reports(self) -> Iterable[Report]:
        return [self._tally.report()]


@dataclass(frozen=True, slots=True)
class BranchStep:
    """Makes ``copies`` of each row and hands on the one of ``index``; every copy's step says the same of all of
    them."""

    name: str
    index: int
    copies: int

    def start(self, *, finds_copies: bool) -> BranchRun:
        return BranchRun(self, Tally(self.name, finds_copies=finds_copies))


class BranchRun:
    """A branch in one task."""

    def __init__(self, step: BranchStep, tally: Tally) -> None:
        self._step = step
        self._tally = tally

    def take(self, rows: Rows) -> Iterator[Rows]:
        n, copies = len(rows), self._step.copies
        # All first copies, then all second ones: the k-th naming of a row is its k-th child, and a slice is one branch.
        parents = np.tile(np.arange(n), copies)
        digests = digest_parents(np.full(n, copies, np.int64), parents)
        children = self._tally.derive(rows.anchors, parents, digests)
        yield Rows(rows.data, children.slice(self._step.index * n, (self._step.index + 1) * n))

    def reports(self) -> Iterable[Report]:
        return [self._tally.report()]


@dataclass(frozen=True, slots=True)
class ExplodePlan:
    """What an explode is to do: the ``column``, what its elements become, the columns kept beside them, in order.

    ``fans_out``: an element is a struct whose fields become the columns; else it is the one column itself.
    """

    name: str
    column: str
    elements: list[StructField]
    kept: list[StructField]
    outer: bool
    fans_out: bool
    digests_values: bool = True


@dataclass(frozen=True, slots=True)
class ExplodeStep:
    """Makes a row of each element of a column of arrays or maps; see :class:`ExplodePlan`."""

    name: str
    column: str
    elements: tuple[str, ...]
    keep: tuple[str, ...]
    outer: bool
    fans_out: bool
    digests_values: bool

    def start(self, *, finds_copies: bool) -> ExplodeRun:
        return ExplodeRun(self, Tally(self.name, finds_copies=finds_copies))


class ExplodeRun:
    """An explode in one task."""

    def __init__(self, step: ExplodeStep, tally: Tally) -> None:
        self._step = step
        self._tally = tally

    def take(self, rows: Rows) -> Iterator[Rows]:
        # A few rows at a time where the arrays are long, so that what is handed on stays bounded.
        counts = self._counts(rows.data.column(self._step.column))
        after = np.cumsum(counts)
        start = 0
        while start < len(rows):
            reached = int(after[start - 1]) if start else 0
            stop = max(start + 1, int(np.searchsorted(after, reached + stage.BATCH_ROWS, side="right")))
            yield self._explode(Rows(rows.data.slice(start, stop - start), rows.anchors.slice(start, stop)))
            start = stop

    def reports(self) -> Iterable[Report]:
        return [self._tally.report()]

    def _explode(self, rows: Rows) -> Rows:
        step = self._step
        counts, elements = self._taken(rows.data.column(step.column))
        made = derive(
            self._tally, rows, elements, step.elements, step.keep, counts=counts, digests_values=step.digests_values
        )
        return Rows(made.data.select([*step.keep, *step.elements]), made.anchors)

    def _counts(self, column: Any) -> Positions:
        lengths: Positions = pc.fill_null(pc.list_value_length(_as_list(column)), 0).to_numpy().astype(np.int64)
        return np.maximum(lengths, 1) if self._step.outer else lengths

    def _taken(self, column: Any) -> tuple[Positions, list[Any]]:
        """How many rows each row becomes, and the columns of their elements."""
        lists = _as_list(column)
        lengths = pc.fill_null(pc.list_value_length(lists), 0).to_numpy().astype(np.int64)
        found = lists.flatten()
        elements = list(found.flatten()[: len(self._step.elements)]) if self._step.fans_out else [found]
        if not self._step.outer or lengths.all():
            return lengths, elements
        counts = np.maximum(lengths, 1)
        positions = np.insert(np.arange(int(lengths.sum())), np.cumsum(lengths)[lengths == 0], -1)
        taken = pa.array(positions, mask=positions < 0)
        return counts, [element.take(taken) for element in elements]


@dataclass(frozen=True, slots=True)
class GroupTask:
    """A group operator as Spark calls it, once a group."""

    name: str
    function: GroupFunction
    schema: StructType
    on_error: OnError
    digests_values: bool
    parents_max: int

    def of_group(self, table: pa.Table) -> pa.Table:
        """What becomes of one group: its rows with packed anchors, the first of them with the account of the group.

        A group that becomes nothing leaves one row that has the account and no anchors.
        """
        rows = unpack(table.combine_chunks().to_batches()[0])
        tally = Tally(self.name, finds_copies=True)
        try:
            columns, parents = self._checked(self.function(pa.Table.from_batches([rows.data])), len(rows))
        except OperatorError:
            raise
        except Exception as error:
            culprits = Culprits(self.name, self.on_error, tally)
            for row in range(len(rows)):
                culprits.fail(rows.anchors, row, error)
            columns, parents = [pa.array([], field.type) for field in arrow_schema(self.schema)], []
        anchors = self._anchors(tally, rows.anchors, columns, parents)
        return self._with_account(columns, anchors, tally.account())

    def _checked(self, given: Any, rows: int) -> tuple[list[Any], list[Positions]]:
        who = f"group {self.name!r}"
        if not isinstance(given, tuple) or len(given) != 2:
            raise OperatorError(
                f"{who} is to return (rows, parents), parents a list of positions for each row, or 'all'"
            )
        columns, children = checked_columns(given[0], arrow_schema(self.schema), who)
        if isinstance(given[1], str):
            if given[1] != "all" or children > 1:
                raise OperatorError(
                    f"{who} returned {children} rows and parents {given[1]!r}: 'all' is for one row a group"
                )
            parents = [np.arange(rows)] * children
        else:
            parents = [checked_parents(named, len(named), rows, who) for named in given[1]]
        if len(parents) != children:
            raise OperatorError(f"{who} returned {children} rows and {len(parents)} lists of parents; give one a row")
        self._refuse_unbounded(parents, who)
        return columns, parents

    def _refuse_unbounded(self, parents: list[Positions], who: str) -> None:
        most = max(map(len, parents), default=0)
        if most > self.parents_max:
            raise OperatorError(
                f"{who}: a row has {most} parents, and carries {most * 16:_} bytes of anchors; above parents_max="
                f"{self.parents_max:_}. Group by more keys, or in two steps, or raise parents_max"
            )
        if not all(map(len, parents)):
            raise OperatorError(f"{who}: a row has no parents; name the rows that it descends from")

    def _anchors(self, tally: Tally, anchors: Anchors, columns: list[Any], parents: list[Positions]) -> Anchors:
        named = np.concatenate([np.empty(0, np.int64), *parents])
        rows = len(anchors.roots) if anchors.offsets is None else len(anchors.offsets) - 1
        counts = np.bincount(named, minlength=rows).astype(np.int64)
        lengths = np.fromiter(map(len, parents), np.int64, len(parents))
        hashes = np.repeat(digest_rows(columns, len(parents)), lengths) if self.digests_values else None
        children = tally.derive(anchors, named, digest_parents(counts, named, None, hashes))
        bounds = np.zeros(len(parents) + 1, np.int64)
        np.cumsum(lengths, out=bounds[1:])
        return children.merged(bounds)

    def _with_account(self, columns: list[Any], anchors: Anchors, account: bytes) -> pa.Table:
        fields = [field.with_nullable(True) for field in arrow_schema(self.schema)]
        packed = packed_column(anchors)
        if len(packed):
            accounts = pa.array([_ROW + account] + [None] * (len(packed) - 1), pa.binary())
            every = [*columns, packed, accounts]
        else:
            ghost = pa.array([_GHOST + account], pa.binary())
            every = [*(pa.nulls(1, field.type) for field in fields), pa.nulls(1, pa.binary()), ghost]
        names = [*(field.name for field in fields), *plan.PACKED, ACCOUNT]
        return pa.Table.from_arrays(every, names=names)


@dataclass(frozen=True, slots=True)
class AccountStep:
    """Takes the accounts that travel with groups, and reports for all groups of the task."""

    name: str

    def start(self, *, finds_copies: bool) -> AccountRun:
        return AccountRun(Tally(self.name, finds_copies=finds_copies))


class AccountRun:
    """The account of a group operator in one task."""

    def __init__(self, tally: Tally) -> None:
        self._tally = tally

    def take(self, rows: Rows) -> Iterator[Rows]:
        accounts = rows.data.column(ACCOUNT).to_pylist()
        for account in accounts:
            if account is not None:
                self._tally.absorb(account[1:])
        data = rows.data.select([name for name in rows.data.schema.names if name != ACCOUNT])
        is_real = np.fromiter((account is None or account[:1] == _ROW for account in accounts), np.bool_, len(accounts))
        yield Rows(data, rows.anchors) if is_real.all() else _picked(Rows(data, rows.anchors), is_real)

    def reports(self) -> Iterable[Report]:
        return [self._tally.report()]


def _picked(rows: Rows, mask: npt.NDArray[np.bool_]) -> Rows:
    """The rows for which ``mask`` holds; those that go have no anchors."""
    offsets = rows.anchors.offsets
    assert offsets is not None
    columns = [column.filter(pa.array(mask)) for column in rows.data.columns]
    data = batch_of(columns, rows.data.schema.names, int(np.count_nonzero(mask)))
    return Rows(data, Anchors(rows.anchors.roots, rows.anchors.edges, np.append(offsets[:-1][mask], offsets[-1])))


def _table_function(task: GroupTask) -> Callable[[pa.Table], pa.Table]:
    def of_group(table: pa.Table) -> pa.Table:
        return task.of_group(table)

    return of_group


def _exploded(df: DataFrame, upstream: plan.Upstream, ours: ExplodePlan) -> DataFrame:
    keep, elements = [field.name for field in ours.kept], [field.name for field in ours.elements]
    digests_values = not spark_checks_reruns(df.sparkSession)
    step = ExplodeStep(ours.name, ours.column, tuple(elements), tuple(keep), ours.outer, ours.fans_out, digests_values)
    added = [_nullable(field) if ours.outer else field for field in ours.elements]
    return stage.apply_known(df, upstream, step, "operator", StructType([*ours.kept, *added]))


def _elements(given: StructType, column: str, into: str | tuple[str, str] | None, name: str) -> list[StructField]:
    """The columns that the elements of ``column`` become."""
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


def _refuse_unfit(name: str, given: StructType, keys: list[str], added: list[StructField]) -> None:
    missing = [key for key in keys if key not in given.names]
    if missing:
        raise ValueError(f"{name}: the tracked side has no column {missing[0]!r}; it has {given.names}")
    double = [field.name for field in added if field.name in given.names]
    if double:
        raise ValueError(f"{name}: both sides have a column {double[0]!r}; rename it on one of them, or join on it too")


def _one_row_a_key(other: DataFrame, keys: list[str], added: list[StructField]) -> DataFrame:
    """All rows of a key as one array, in an order that does not hang on chance where Spark can sort them."""
    matches = F.collect_list(F.struct(*(other[field.name] for field in added)) if added else F.struct(F.lit(True)))
    if not any(
        "map<" in field.dataType.simpleString() or "variant" in field.dataType.simpleString() for field in added
    ):
        matches = F.sort_array(matches)
    return other.groupBy(*keys).agg(matches.alias(MATCHES))


def _as_list(column: Any) -> Any:
    """A column of maps as one of lists of structs (key, value)."""
    return column.cast(pa.list_(pa.struct(_entry_fields(column.type)))) if pa.types.is_map(column.type) else column


def _entry_fields(kind: Any) -> list[Any]:
    return [pa.field("key", kind.key_type, nullable=False), pa.field("value", kind.item_type)]


def _nullable(field: StructField) -> StructField:
    return StructField(field.name, field.dataType, True, field.metadata)
