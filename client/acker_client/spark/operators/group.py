"""Group: a user's function over the rows of each key; what is merged carries the anchors of all it came from.

Decides how the account of each group travels: Spark calls the function once a group and says nothing at the end of a
task, so a step right behind it, in the same task, takes the accounts and reports for all of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import BinaryType, StructField, StructType

from acker_client.spark import compat
from acker_client.spark.core.anchors import PACKED, TRACKING, Anchors, Positions, Rows, packed_column, unpack
from acker_client.spark.core.derive import batch_of
from acker_client.spark.core.tally import Tally, digest_parents
from acker_client.spark.core.values import digest_rows
from acker_client.spark.driver.columns import into_python, nullable, quoted, tracking_fields
from acker_client.spark.driver.reruns import spark_checks_reruns
from acker_client.spark.guard import fusing, plan
from acker_client.spark.operators.culprits import Culprits
from acker_client.spark.operators.declared import (
    OnError,
    check_declared,
    checked_function,
    column_names,
    declared_fields,
    refuse_no_frame,
)
from acker_client.spark.task import chain
from acker_client.spark.task.chain import TakeRows
from acker_client.spark.task.returns import OperatorError, checked_columns, checked_parents, kind_of
from acker_client.spark.task.rows import arrow_schema

GroupFunction = Callable[[pa.Table], Any]

# A column of our own between two nodes of the step; it never reaches the user.
ACCOUNT = "_acker_account"

# The first byte of an account: whether its row is one of the user's, or stands for a group that became nothing.
_ROW, _GHOST = b"r", b"g"

PARENTS_MAX = 100_000

LARGE_TYPES = "spark.sql.execution.arrow.useLargeVarTypes"


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
        fields = [*schema.fields, *tracking_fields(PACKED), StructField(ACCOUNT, BinaryType())]
        grouped = base.groupBy(*keys).applyInArrow(_table_function(task), StructType([nullable(f) for f in fields]))
        # How many groups a task gets is for adaptive execution to decide, anew in each evaluation.
        after = replace(upstream, columns=PACKED, moving_boundaries=True, moves=True)
        step = AccountStep(self.name)
        return fusing.extend(fusing.arriving(grouped, upstream), after, step, "operator", schema)

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
        large = compat.GROUPS_MAY_BE_LARGE and _is_large(table.schema, self.large)
        rows = unpack(chain.renamed(table, self.names).combine_chunks().to_batches()[0])
        tally = Tally(self.name, finds_copies=True)
        try:
            given = self.function(pa.Table.from_batches([rows.data]))
        except OperatorError:
            raise
        except Exception as error:  # noqa: BLE001  # the user's function may raise anything
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

    def start(self, tally: Tally) -> TakeRows:
        return partial(self._take, tally)

    def _take(self, tally: Tally, rows: Rows) -> Iterator[Rows]:
        accounts = rows.data.column(ACCOUNT).to_pylist()
        for account in accounts:
            if account is not None:
                tally.absorb(account[1:])
        data = rows.data.select([name for name in rows.data.schema.names if name != ACCOUNT])
        is_real = np.fromiter((account is None or account[:1] == _ROW for account in accounts), np.bool_, len(accounts))
        yield Rows(data, rows.anchors) if is_real.all() else _picked(Rows(data, rows.anchors), is_real)


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


def _key(key: str, columns: Sequence[str], handed: Sequence[str], who: str) -> str:
    """What to group by for ``key``, where a frame with ``columns`` is handed to Python with those names.

    Spark reads names in any case, and ``a.b`` as a field of ``a`` where no column is called so.
    """
    found = [index for index, column in enumerate(columns) if column == key] or [
        index for index, column in enumerate(columns) if column.lower() == key.lower()
    ]
    if found:
        return quoted(handed[found[0]])
    if key.partition(".")[0] in columns and list(columns) == list(handed):
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
