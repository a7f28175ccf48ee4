"""Rows that descend from several rows: the common part of ``group`` and ``cogroup``.

Decides which parents a function may name for a row, and how many parents a row may have. Also decides how the account
of each group (its consumed and produced edges) reaches the server. Spark calls the function once a group and does
not signal the end of the task. The account therefore travels in a column to the next step, which runs in the same task
and reports for all groups of the task.
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

# An internal column between the two plan nodes of the step. The user never sees it.
ACCOUNT = "_acker_account"

# The first byte of an account says whether its row is a row of the user's or a placeholder for a group without output.
_ROW, _PLACEHOLDER = b"r", b"g"

PARENTS_MAX = 100_000

LARGE_TYPES = "spark.sql.execution.arrow.useLargeVarTypes"

# The declared columns, and for each row the positions of its parents.
Made = tuple[list[Any], list[Positions]]


def check_merging(what: str, on_error: Any, parents_max: Any) -> None:
    """Check the options of ``what``, a step that merges rows. Raises ValueError."""
    if on_error not in ("fail", "raise"):
        raise ValueError(f"on_error={on_error!r}: give 'fail' (the records fail) or 'raise' (the task fails)")
    if not isinstance(parents_max, int) or parents_max < 1:
        raise ValueError(f"{what}: parents_max={parents_max!r}; give how many parents a row may have, at least 1")


def key_of(key: str, columns: Sequence[str], python_names: Sequence[str], label: str) -> str:
    """Return the expression to group by for ``key``, in a frame with ``columns``.

    ``python_names``: the names under which Spark passes the columns to Python. Spark ignores the case of names, and
    reads ``a.b`` as the field ``b`` of ``a`` if there is no column ``a.b``. Raises ValueError for an unknown key.
    """
    found = [index for index, column in enumerate(columns) if column == key] or [
        index for index, column in enumerate(columns) if column.lower() == key.lower()
    ]
    if found:
        return quoted(python_names[found[0]])
    if key.partition(".")[0] in columns and list(columns) == list(python_names):
        return key
    raise ValueError(
        f"{label}: there is no column {key!r} to group by; the frame has"
        f" {[column for column in columns if column not in TRACKING]}. Make it first, with df.withColumn(...)"
    )


def fields_with_account(schema: StructType) -> StructType:
    """Return the schema in which a function over groups passes its rows to the step behind it."""
    fields = [*schema.fields, *tracking_fields(PACKED), StructField(ACCOUNT, BinaryType())]
    return StructType([nullable(field) for field in fields])


def with_accounts_taken(grouped: DataFrame, upstream: plan.Upstream, name: str, schema: StructType) -> DataFrame:
    """Append to ``grouped`` the step that takes the accounts of its groups; return the resulting frame."""
    # Adaptive execution decides how many groups a task gets, and may decide differently in each evaluation.
    after = replace(upstream, columns=PACKED, moving_boundaries=True, moves=True)
    return fusing.extend(fusing.arriving(grouped, upstream), after, AccountStep(name), "operator", schema)


@dataclass(frozen=True, slots=True)
class Merging:
    """The options of a step that merges rows, as its tasks see them.

    ``label``: the step's name in error messages. ``large``: whether Spark uses 64-bit offsets for strings and bytes, as
    far as the session's configuration says.
    """

    label: str
    name: str
    schema: StructType
    on_error: OnError
    digests_values: bool
    parents_max: int
    large: bool
    tracking: bool = True

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
        tracking: bool = True,
    ) -> Merging:
        """Return the options of step ``name`` of this ``kind``. ``spark``: None if there is no session. ``tracking``:
        whether the batch is tracked."""
        digests_values = not deterministic or spark is None or not spark_checks_reruns(spark)
        large = spark is not None and str(spark.conf.get(LARGE_TYPES, None)).lower() == "true"
        return cls(f"{kind} {name!r}", name, schema, on_error, digests_values, parents_max, large, tracking)

    def merge(self, anchors: Anchors, make: Callable[[], Any], check: Callable[[Any], Made], given: pa.Schema) -> Any:
        """Return the output of one group as a Table: rows with packed anchors, and the account in the first row.

        ``anchors``: the anchors of the group's rows. ``make`` calls the user's function, ``check`` validates its
        result. If one of them raises anything but :class:`OperatorError`, the records of the group fail. ``given``: the
        schema of the rows that Spark passes in. A group without output rows leaves one placeholder row, which has the
        account and no anchors.
        """
        tally = Tally(self.name, finds_copies=True, tracking=self.tracking)
        try:
            columns, parents = check(make())
        except OperatorError:
            raise
        except Exception as error:  # noqa: BLE001  # the user's function may raise anything
            culprits = Culprits(self.name, self.on_error, tally)
            for row in range(anchors.rows):
                culprits.fail_row(anchors, row, error)
            columns, parents = [pa.array([], field.type) for field in arrow_schema(self.schema)], list[Positions]()
        children = self._anchors(tally, anchors, columns, parents)
        large = compat.GROUPS_MAY_BE_LARGE and _is_large(given, self.large)
        return self._with_account(columns, children, tally.account(), large)

    def nothing(self, given: pa.Schema) -> Any:
        """Return the output of a group without tracked rows: a Table without rows."""
        fields = fields_with_account(self.schema)
        large = compat.GROUPS_MAY_BE_LARGE and _is_large(given, self.large)
        return arrow_schema(fields, large=large).empty_table()

    def parents_of(self, given: Any, children: int, rows: int, label: str) -> list[Positions]:
        """Return the parents of each of ``children`` rows, as positions in ``rows`` rows.

        ``given``: the lists that the user's function returned. Raises :class:`OperatorError`.
        """
        lists: list[Any] = list(given) if isinstance(given, Iterable) else [None]
        if isinstance(given, str) or not all(
            isinstance(each, Iterable) and not isinstance(each, str) for each in lists
        ):
            raise OperatorError(
                f"{label}: parents are a list of positions for each row, as [[0, 1], [2]], or 'all'; got {given!r:.80}"
            )
        if len(lists) != children:
            raise OperatorError(
                f"{label} returned {children} rows and {len(lists)} lists of parents; give one list for each row"
            )
        named_by = [list(named) for named in lists]
        return [checked_parents(named, len(named), rows, label) for named in named_by]

    def check_all_parents(self, given: str, children: int, example: str) -> None:
        """Raise :class:`OperatorError` unless the parents are ``"all"`` and there is at most one row."""
        if given != "all" or children > 1:
            raise OperatorError(
                f"{self.label} returned {children} rows and parents {given!r}: 'all' is for one row a group; for more,"
                f" name the positions that each descends from, as {example}"
            )

    def check_parent_counts(self, parents: list[Positions], advice: str) -> None:
        """Raise :class:`OperatorError` if a row has more than ``parents_max`` parents, or none.

        ``advice``: the end of the error message for a row without parents.
        """
        most = max(map(len, parents), default=0)
        if most > self.parents_max:
            raise OperatorError(
                f"{self.label}: a row has {most} parents, and carries {most * 16:_} bytes of anchors; above"
                f" parents_max={self.parents_max:_}. Group by more keys, or in two steps, or raise parents_max"
            )
        if not all(map(len, parents)):
            raise OperatorError(f"{self.label}: a row has no parents; {advice}")

    def _anchors(self, tally: Tally, anchors: Anchors, columns: list[Any], parents: list[Positions]) -> Anchors:
        if anchors.are_none:
            return Anchors.none(len(parents), packed=True)
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
            placeholder = pa.array([_PLACEHOLDER + account], pa.binary())
            every = [*(pa.nulls(1, field.type) for field in fields), pa.nulls(1, pa.binary()), placeholder]
        names = [*(field.name for field in fields), *PACKED, ACCOUNT]
        if large:
            kinds = [*arrow_schema(self.schema, large=True).types, pa.large_binary(), pa.large_binary()]
            every = [column.cast(kind) for column, kind in zip(every, kinds, strict=True)]
        return pa.Table.from_arrays(every, names=names)


@dataclass(frozen=True, slots=True)
class AccountStep:
    """Takes the accounts out of the rows, and reports for all groups of the task."""

    name: str

    def start(self, tally: Tally) -> TakeRows:
        return partial(self._take_rows, tally)

    def _take_rows(self, tally: Tally, rows: Rows) -> Iterator[Rows]:
        accounts = rows.data.column(ACCOUNT).to_pylist()
        for account in accounts:
            if account is not None:
                tally.absorb(account[1:])
        data = rows.data.select([name for name in rows.data.schema.names if name != ACCOUNT])
        is_real = np.fromiter((account is None or account[:1] == _ROW for account in accounts), np.bool_, len(accounts))
        yield Rows(data, rows.anchors) if is_real.all() else _filter_rows(Rows(data, rows.anchors), is_real)


def _filter_rows(rows: Rows, mask: npt.NDArray[np.bool_]) -> Rows:
    """Return the rows for which ``mask`` holds. The dropped rows must not have anchors."""
    offsets = rows.anchors.offsets
    assert offsets is not None
    columns = [column.filter(pa.array(mask)) for column in rows.data.columns]
    data = batch_of(columns, rows.data.schema.names, int(np.count_nonzero(mask)))
    return Rows(data, Anchors(rows.anchors.roots, rows.anchors.edges, np.append(offsets[:-1][mask], offsets[-1])))


def _is_large(schema: pa.Schema, otherwise: bool) -> bool:
    """Whether Spark passes and expects 64-bit offsets for strings and bytes; ``otherwise`` if ``schema`` has no such
    fields."""
    for field in schema:
        if pa.types.is_large_string(field.type) or pa.types.is_large_binary(field.type):
            return True
        if pa.types.is_string(field.type) or pa.types.is_binary(field.type):
            return False
    return otherwise
