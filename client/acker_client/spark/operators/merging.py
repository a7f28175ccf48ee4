"""Merging: rows that descend from several rows: what ``group`` and ``cogroup`` have in common.

Decides how the account of each group travels: Spark calls a function once a group and says nothing at the end of a
task, so a step right behind it, in the same task, takes the accounts and reports for all of them. And it decides what
may be said of parents: who they are, and how many a row may have.
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
from acker_client.spark.anchoring.anchors import PACKED, TRACKING, Anchors, Positions, Rows, packed_column
from acker_client.spark.anchoring.derive import batch_of
from acker_client.spark.anchoring.tally import Tally, digest_parents
from acker_client.spark.anchoring.values import digest_rows
from acker_client.spark.driver.columns import nullable, quoted, tracking_fields
from acker_client.spark.driver.reruns import spark_checks_reruns
from acker_client.spark.operators.culprits import Culprits
from acker_client.spark.operators.declared import OnError
from acker_client.spark.plan_check import fusing, plan
from acker_client.spark.worker.chain import TakeRows
from acker_client.spark.worker.returns import OperatorError, checked_parents
from acker_client.spark.worker.rows import arrow_schema

# A column of our own between two nodes of the step; it never reaches the user.
ACCOUNT = "_acker_account"

# The first byte of an account: whether its row is one of the user's, or stands for a group that became nothing.
_ROW, _GHOST = b"r", b"g"

PARENTS_MAX = 100_000

LARGE_TYPES = "spark.sql.execution.arrow.useLargeVarTypes"

# The declared columns, and the parents of each row.
Made = tuple[list[Any], list[Positions]]


def check_merging(what: str, on_error: Any, parents_max: Any) -> None:
    """ValueError for what cannot be said of ``what``, a step that merges rows."""
    if on_error not in ("fail", "raise"):
        raise ValueError(f"on_error={on_error!r}: give 'fail' (the records fail) or 'raise' (the task fails)")
    if not isinstance(parents_max, int) or parents_max < 1:
        raise ValueError(f"{what}: parents_max={parents_max!r}; give how many parents a row may have, at least 1")


def key_of(key: str, columns: Sequence[str], handed: Sequence[str], who: str) -> str:
    """What to group by for ``key``, where a frame with ``columns`` is handed to Python with the names ``handed``.

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
        f"{who}: there is no column {key!r} to group by; the frame has"
        f" {[column for column in columns if column not in TRACKING]}. Make it first, with df.withColumn(...)"
    )


def fields_with_account(schema: StructType) -> StructType:
    """The schema of what a function over groups hands to the step behind it."""
    fields = [*schema.fields, *tracking_fields(PACKED), StructField(ACCOUNT, BinaryType())]
    return StructType([nullable(field) for field in fields])


def with_accounts_taken(grouped: DataFrame, upstream: plan.Upstream, name: str, schema: StructType) -> DataFrame:
    """The frame of what the groups of ``grouped`` became, behind the step that takes their accounts."""
    # How many groups a task gets is for adaptive execution to decide, anew in each evaluation.
    after = replace(upstream, columns=PACKED, moving_boundaries=True, moves=True)
    return fusing.extend(fusing.arriving(grouped, upstream), after, AccountStep(name), "operator", schema)


@dataclass(frozen=True, slots=True)
class Merging:
    """What the tasks of a step that merges rows know of it. ``who``: how errors call it. ``large``: whether Spark takes
    strings and bytes with offsets of 64 bits, as far as that is known before there are any."""

    who: str
    name: str
    schema: StructType
    on_error: OnError
    digests_values: bool
    parents_max: int
    large: bool

    @classmethod
    def of(
        cls,
        kind: str,
        name: str,
        schema: StructType,
        on_error: OnError,
        *,
        deterministic: bool,
        parents_max: int,
        spark: SparkSession | None,
    ) -> Merging:
        """Of a step ``name`` of this ``kind``; ``spark``: None where there is no session."""
        digests_values = not deterministic or spark is None or not spark_checks_reruns(spark)
        large = spark is not None and str(spark.conf.get(LARGE_TYPES, None)).lower() == "true"
        return cls(f"{kind} {name!r}", name, schema, on_error, digests_values, parents_max, large)

    def merge(self, anchors: Anchors, make: Callable[[], Any], check: Callable[[Any], Made], given: pa.Schema) -> Any:
        """What becomes of one group, a Table: its rows with packed anchors, the first of them with its account.

        ``anchors``: of the rows of the group; ``make`` calls the user's function, ``check`` reads what that gives;
        ``given``: the schema in which Spark hands over rows. A group that becomes nothing leaves one row that has the
        account and no anchors.
        """
        tally = Tally(self.name, finds_copies=True)
        try:
            made = make()
        except OperatorError:
            raise
        except Exception as error:  # noqa: BLE001  # the user's function may raise anything
            culprits = Culprits(self.name, self.on_error, tally)
            for row in range(anchors.rows):
                culprits.fail(anchors, row, error)
            columns, parents = [pa.array([], field.type) for field in arrow_schema(self.schema)], list[Positions]()
        else:
            columns, parents = check(made)
        children = self._anchors(tally, anchors, columns, parents)
        large = compat.GROUPS_MAY_BE_LARGE and _is_large(given, self.large)
        return self._with_account(columns, children, tally.account(), large)

    def nothing(self, given: pa.Schema) -> Any:
        """What becomes of a group that no record stands behind: a Table without rows."""
        fields = fields_with_account(self.schema)
        large = compat.GROUPS_MAY_BE_LARGE and _is_large(given, self.large)
        return arrow_schema(fields, large=large).empty_table()

    def parents_of(self, given: Any, children: int, rows: int, who: str) -> list[Positions]:
        """The parents of each of ``children`` rows, out of the lists that the user's function gave: positions in
        ``rows`` rows. Raises :class:`OperatorError`."""
        lists: list[Any] = list(given) if isinstance(given, Iterable) else [None]
        if isinstance(given, str) or not all(
            isinstance(each, Iterable) and not isinstance(each, str) for each in lists
        ):
            raise OperatorError(
                f"{who}: parents are a list of positions for each row, as [[0, 1], [2]], or 'all'; got {given!r:.80}"
            )
        if len(lists) != children:
            raise OperatorError(f"{who} returned {children} rows and {len(lists)} lists of parents; give one a row")
        named_by = [list(named) for named in lists]
        return [checked_parents(named, len(named), rows, who) for named in named_by]

    def refuse_all_of_many(self, given: str, children: int, example: str) -> None:
        """Raise :class:`OperatorError` where a word in the place of parents is not ``"all"``, for one row or none."""
        if given != "all" or children > 1:
            raise OperatorError(
                f"{self.who} returned {children} rows and parents {given!r}: 'all' is for one row a group; for more,"
                f" name the positions that each descends from, as {example}"
            )

    def refuse_unbounded(self, parents: list[Positions], none: str) -> None:
        """Raise :class:`OperatorError` for a row with more parents than it may have, or with ``none``."""
        most = max(map(len, parents), default=0)
        if most > self.parents_max:
            raise OperatorError(
                f"{self.who}: a row has {most} parents, and carries {most * 16:_} bytes of anchors; above parents_max="
                f"{self.parents_max:_}. Group by more keys, or in two steps, or raise parents_max"
            )
        if not all(map(len, parents)):
            raise OperatorError(f"{self.who}: a row has no parents; {none}")

    def _anchors(self, tally: Tally, anchors: Anchors, columns: list[Any], parents: list[Positions]) -> Anchors:
        named = np.concatenate([np.empty(0, np.int64), *parents])
        counts = np.bincount(named, minlength=anchors.rows).astype(np.int64)
        lengths = np.fromiter(map(len, parents), np.int64, len(parents))
        hashes = np.repeat(digest_rows(columns, len(parents)), lengths) if self.digests_values else None
        children = tally.derive(anchors, named, digest_parents(counts, named, None, hashes))
        bounds = np.zeros(len(parents) + 1, np.int64)
        np.cumsum(lengths, out=bounds[1:])
        return children.merged(bounds)

    def _with_account(self, columns: list[Any], anchors: Anchors, account: bytes, large: bool) -> Any:
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


def _is_large(schema: pa.Schema, otherwise: bool) -> bool:
    """Whether Spark hands over strings and bytes with offsets of 64 bits, and expects them so; ``otherwise`` where a
    schema has none."""
    for field in schema:
        if pa.types.is_large_string(field.type) or pa.types.is_large_binary(field.type):
            return True
        if pa.types.is_string(field.type) or pa.types.is_binary(field.type):
            return False
    return otherwise
