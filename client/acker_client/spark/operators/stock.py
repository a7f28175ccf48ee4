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
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import ArrayType, BinaryType, BooleanType, DataType, MapType, NullType, StructField, StructType

from acker_client.spark.core.anchors import PACKED, TRACKING, Anchors, Positions, Rows, packed_column, reserved, unpack
from acker_client.spark.core.derive import batch_of, derive
from acker_client.spark.core.tally import Report, Tally, digest_parents
from acker_client.spark.core.values import digest_rows
from acker_client.spark.driver import lineage
from acker_client.spark.driver.columns import into_python, renamed
from acker_client.spark.guard import plan, stage
from acker_client.spark.operators.declared import (
    OnError,
    check_declared,
    check_into,
    check_name,
    checked_function,
    column_names,
    declared_fields,
    refuse_no_frame,
    refuse_untracked,
)
from acker_client.spark.operators.operators import Culprits, spark_checks_reruns
from acker_client.spark.task.returns import OperatorError, checked_columns, checked_parents, kind_of
from acker_client.spark.task.rows import arrow_schema, struct_type

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

LARGE_TYPES = "spark.sql.execution.arrow.useLargeVarTypes"


def where(condition: str | SparkColumn, *, name: str = "where") -> Transform:
    """Keep the rows for which ``condition`` (SQL, or a Column) is true; the others are done, and acked."""
    if not isinstance(condition, (str, SparkColumn)):
        raise TypeError(
            f'where: the condition is a {type(condition).__name__}; give SQL, as where("qty > 0"), or a Column, as'
            " where(F.col('qty') > 0). For a condition in Python use an @operator that yields nothing for what it drops"
        )
    if isinstance(condition, str) and not condition.strip():
        raise ValueError('where: the condition is empty; give SQL, as where("qty > 0")')
    check_name("where", name)

    def keep(df: DataFrame) -> DataFrame:
        refuse_untracked(df, "where")
        flag = F.expr(condition) if isinstance(condition, str) else condition
        step = WhereStep(name, not spark_checks_reruns(df.sparkSession))
        flagged = df.withColumn(FLAG, flag)
        kind = flagged.schema[FLAG].dataType
        if isinstance(kind, NullType):
            flagged = df.withColumn(FLAG, flag.cast("boolean"))
        elif not isinstance(kind, BooleanType):
            raise ValueError(
                f"where: the condition {condition!r} is of type {kind.simpleString()}; give one that is true or false,"
                ' as where("qty > 0")'
            )
        return stage.apply(flagged, step, "operator", stage.user_schema(df))

    return keep


def explode(
    column: str, into: str | tuple[str, str] | None = None, *, outer: bool = False, name: str = "explode"
) -> Transform:
    """One row for each element of ``column`` (an array or a map), each with an edge of its own.

    ``into``: name of the element's column, the array's unless given; of a map ``(key, value)``, ``("key", "value")``
    unless given. Rows without elements are done, and acked; with ``outer`` they are kept, with null.
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
        given = stage.user_schema(df)
        elements = _elements(given, column, into, name)
        kept = [field for field in given.fields if field.name != column]
        fans_out = isinstance(given[column].dataType, MapType)
        ours = ExplodePlan(name, column, elements, kept, outer, fans_out)
        return _exploded(df, plan.take(df, upstream, name), ours)

    return multiply


def branch(df: DataFrame, copies: int, *, name: str = "branch", cache: bool | None = None) -> tuple[DataFrame, ...]:
    """``copies`` frames with the same rows, for as many consumers; a row is done when all its copies are.

    What is below is evaluated once for each copy that is used, unless it is cached for the batch: ``cache=True`` does
    that, ``False`` never does; unless given, it is done from the batch on after one in which several copies were used,
    and where the boundaries of its tasks may move between evaluations (orderBy, repartition without a number).
    """
    refuse_untracked(df, "branch")
    if not isinstance(copies, int) or isinstance(copies, bool) or copies < 1:
        raise ValueError(f"branch: copies={copies!r}; give how many frames you need, as branch(df, 2)")
    check_name("branch", name)
    upstream = plan.guard(df, name)
    record: Any = upstream.record
    if cache is None:
        cache = upstream.moving_boundaries or record.once.wants("branch", name)
    if cache:
        df, upstream = record.keep_cached(df), replace(upstream, moving_boundaries=False)
    schema = stage.user_schema(df)
    steps = (BranchStep(name, index, copies) for index in range(copies))
    return tuple(stage.apply_known(df, upstream, step, "branch", schema) for step in steps)


def join(
    other: DataFrame, on: str | Sequence[str], how: Literal["inner", "left"] = "inner", *, name: str = "join"
) -> Transform:
    """Join tracked rows with an untracked table ``other`` that fits into memory, over columns ``on`` of both.

    Each match is a row with an edge of its own; a row without a match is done, and acked (``"left"``: kept, with
    nulls).
    """
    if how not in ("inner", "left"):
        raise ValueError(f"join: how={how!r}; give 'inner' or 'left'")
    if not isinstance(other, DataFrame):
        raise TypeError(f"join: the table is {kind_of(other)}; give a DataFrame, as join(spark.table('prices'), 'sku')")
    keys = column_names(on, "join", "on")
    check_name("join", name)
    missing = [key for key in keys if key not in other.columns]
    if missing or not keys:
        raise ValueError(f"join: on={on!r}; name columns of both sides: the table has {other.columns}")
    added = [field for field in struct_type(other.schema) if field.name not in keys]
    taken = reserved(field.name for field in added)
    if taken:
        raise ValueError(
            f"join: the table has a column {taken[0]!r}, and {', '.join(TRACKING)} are the acker's own (Spark"
            " takes names in any case). Rename it; two tracked frames meet in unionByName(...) and group(...)"
        )

    def match(df: DataFrame) -> DataFrame:
        refuse_untracked(df, "join")
        upstream = plan.inspect(df, f"operator {name!r}")
        given = stage.user_schema(df)
        _refuse_unfit(name, given, keys, added)
        right = F.broadcast(_one_row_a_key(other, keys, added)).alias(lineage.admit_join(*upstream.records))
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
    columns = tuple(column_names(keys, "group", "keys"))
    check_declared(schema, "@group", "@group('sku', 'sku string, total int')")
    if on_error not in ("fail", "raise"):
        raise ValueError(f"on_error={on_error!r}: give 'fail' (the records fail) or 'raise' (the task fails)")
    if not isinstance(parents_max, int) or parents_max < 1:
        raise ValueError(f"group: parents_max={parents_max!r}; give how many parents a row may have, at least 1")

    def decorate(function: GroupFunction) -> Group:
        chosen = checked_function(function, name, "@group", "a pyarrow Table")
        return Group(function, chosen, columns, schema, on_error, deterministic, parents_max)

    return decorate


@dataclass(frozen=True, slots=True, repr=False)
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
        refuse_no_frame(df, self, f"{self.name}.test(table)")
        schema = self._fields()
        upstream = plan.inspect(df, f"operator {self.name!r}")
        base, names = into_python(df)
        keys = [_key(key, df.columns, base.columns, self.name) for key in self.keys]
        upstream = plan.take(df, upstream, self.name)
        task = self._task(schema, df.sparkSession, names)
        fields = [*schema.fields, *stage.tracking_fields(PACKED), StructField(ACCOUNT, BinaryType())]
        grouped = base.groupBy(*keys).applyInArrow(_table_function(task), StructType([_nullable(f) for f in fields]))
        # How many groups a task gets is for adaptive execution to decide, anew in each evaluation.
        after = replace(upstream, columns=PACKED, moving_boundaries=True)
        step = AccountStep(self.name)
        return stage.extend(stage.arriving(grouped, upstream), after, step, "operator", schema)

    def test(self, rows: pa.Table) -> pa.Table:
        """What the function makes of the ``rows`` of one group, without Spark or a server: the declared columns.

        Raises what the function raises, and :class:`OperatorError` where what it gives does not fit the schema or the
        rows.
        """
        schema = self._fields()
        columns, _ = self._task(schema, None, ()).checked(self.function(rows), rows.num_rows)
        return pa.Table.from_arrays(columns, names=schema.names)

    def __repr__(self) -> str:
        return f"<group {self.name!r}>"

    def _fields(self) -> StructType:
        return declared_fields(self.schema, f"group {self.name!r}")

    def _task(self, schema: StructType, spark: SparkSession | None, names: tuple[str, ...]) -> GroupTask:
        digests_values = not self.deterministic or spark is None or not spark_checks_reruns(spark)
        large = spark is not None and str(spark.conf.get(LARGE_TYPES, None)).lower() == "true"
        return GroupTask(
            self.name, self.function, schema, self.on_error, digests_values, self.parents_max, large, names
        )


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
    large: bool
    names: tuple[str, ...]

    def of_group(self, table: pa.Table) -> pa.Table:
        """What becomes of one group: its rows with packed anchors, the first of them with the account of the group.

        A group that becomes nothing leaves one row that has the account and no anchors.
        """
        large = _is_large(table.schema, self.large)
        rows = unpack(renamed(table, self.names).combine_chunks().to_batches()[0])
        tally = Tally(self.name, finds_copies=True)
        try:
            given = self.function(pa.Table.from_batches([rows.data]))
        except OperatorError:
            raise
        except Exception as error:
            culprits = Culprits(self.name, self.on_error, tally)
            for row in range(len(rows)):
                culprits.fail(rows.anchors, row, error)
            columns, parents = [pa.array([], field.type) for field in arrow_schema(self.schema)], list[Positions]()
        else:
            columns, parents = self.checked(given, len(rows))
        anchors = self._anchors(tally, rows.anchors, columns, parents)
        return self._with_account(columns, anchors, tally.account(), large)

    def checked(self, given: Any, rows: int) -> tuple[list[Any], list[Positions]]:
        """The declared columns and the parents of each row out of what the function gave for ``rows`` rows. Raises
        :class:`OperatorError`."""
        who = f"group {self.name!r}"
        if not isinstance(given, tuple) or len(given) != 2:
            what = f"a tuple of {len(given)}" if isinstance(given, tuple) else kind_of(given)
            raise OperatorError(
                f"{who} returned {what}: return (rows, parents), where parents is a list of positions for each row, or"
                " (rows, 'all') for one row that descends from all"
            )
        columns, children = checked_columns(given[0], arrow_schema(self.schema), who)
        parents = self._parents(given[1], children, rows, who)
        if len(parents) != children:
            raise OperatorError(f"{who} returned {children} rows and {len(parents)} lists of parents; give one a row")
        self._refuse_unbounded(parents, who)
        return columns, parents

    def _parents(self, given: Any, children: int, rows: int, who: str) -> list[Positions]:
        if isinstance(given, str):
            if given != "all" or children > 1:
                raise OperatorError(
                    f"{who} returned {children} rows and parents {given!r}: 'all' is for one row a group; for more,"
                    " name the positions that each descends from, as [[0, 1], [2]]"
                )
            return [np.arange(rows)] * children
        lists: list[Any] = list(given) if isinstance(given, Iterable) else [None]
        if not all(isinstance(named, Iterable) and not isinstance(named, str) for named in lists):
            raise OperatorError(
                f"{who}: parents are a list of positions for each row, as [[0, 1], [2]], or 'all'; got {given!r:.80}"
            )
        named_by = [list(named) for named in lists]
        return [checked_parents(named, len(named), rows, who) for named in named_by]

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

    def _with_account(self, columns: list[Any], anchors: Anchors, account: bytes, large: bool) -> pa.Table:
        fields = [field.with_nullable(True) for field in arrow_schema(self.schema)]
        packed = packed_column(anchors)
        if len(packed):
            accounts = pa.array([_ROW + account] + [None] * (len(packed) - 1), pa.binary())
            every = [*columns, packed, accounts]
        else:
            ghost = pa.array([_GHOST + account], pa.binary())
            every = [*(pa.nulls(1, field.type) for field in fields), pa.nulls(1, pa.binary()), ghost]
        names = [*(field.name for field in fields), *PACKED, ACCOUNT]
        if large:
            kinds = [*arrow_schema(self.schema, large=True).types, pa.large_binary(), pa.large_binary()]
            every = [column.cast(kind) for column, kind in zip(every, kinds, strict=True)]
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
        raise ValueError(f"{name}: the tracked side has no column {missing[0]!r} to join on; it has {given.names}")
    double = [field.name for field in added if field.name in given.names]
    if double:
        raise ValueError(f"{name}: both sides have a column {double[0]!r}; rename it on one of them, or join on it too")


def _one_row_a_key(other: DataFrame, keys: list[str], added: list[StructField]) -> DataFrame:
    """All rows of a key as one array, in an order that does not hang on chance where Spark can sort them."""
    matches = F.collect_list(F.struct(*(_quoted(field.name) for field in added)) if added else F.struct(F.lit(True)))
    if not any(
        "map<" in field.dataType.simpleString() or "variant" in field.dataType.simpleString() for field in added
    ):
        matches = F.sort_array(matches)
    return other.groupBy(*map(_quoted, keys)).agg(matches.alias(MATCHES))


def _quoted(name: str) -> str:
    """A column's name as Spark reads it whole, whatever is in it."""
    return "`" + name.replace("`", "``") + "`"


def _key(key: str, columns: Sequence[str], handed: Sequence[str], who: str) -> str:
    """What to group by for ``key``, where a frame with ``columns`` is handed to Python with those names.

    Spark reads names in any case, and ``a.b`` as a field of ``a`` where no column is called so.
    """
    found = [index for index, column in enumerate(columns) if column == key] or [
        index for index, column in enumerate(columns) if column.lower() == key.lower()
    ]
    if found:
        return _quoted(handed[found[0]])
    if key.split(".")[0] in columns and list(columns) == list(handed):
        return key
    raise ValueError(
        f"group {who!r}: there is no column {key!r} to group by; the frame has"
        f" {[column for column in columns if column not in TRACKING]}. Make it first, with df.withColumn(...)"
    )


def _is_large(schema: pa.Schema, otherwise: bool) -> bool:
    """Whether Spark hands over strings and bytes with offsets of 64 bits, and expects them so; ``otherwise`` where a
    schema has none."""
    for field in schema:
        if pa.types.is_large_string(field.type) or pa.types.is_large_binary(field.type):
            return True
        if pa.types.is_string(field.type) or pa.types.is_binary(field.type):
            return False
    return otherwise


def _as_list(column: Any) -> Any:
    """A column of maps as one of lists of structs (key, value)."""
    return column.cast(pa.list_(pa.struct(_entry_fields(column.type)))) if pa.types.is_map(column.type) else column


def _entry_fields(kind: Any) -> list[Any]:
    return [pa.field("key", kind.key_type, nullable=False), pa.field("value", kind.item_type)]


def _nullable(field: StructField) -> StructField:
    return StructField(field.name, field.dataType, True, field.metadata)
