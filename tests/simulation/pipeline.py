"""Pipeline: a randomly drawn program, and its operators as steps of the client's real chains.

``value % CLASSES`` says whether the record fails, breaks its task, or is unreadable. The result of an operator depends
only on the value, unless an attempt is drawn to have other results.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np
import pyarrow as pa
from pyspark.sql.types import LongType, StructField, StructType

from acker_client.spark.anchoring.anchors import Rows
from acker_client.spark.anchoring.derive import derive
from acker_client.spark.anchoring.tally import Tally
from acker_client.spark.operators.branch import BranchStep
from acker_client.spark.operators.culprits import Culprits
from acker_client.spark.operators.group import GroupTask
from acker_client.spark.operators.merging import AccountStep, Merging
from acker_client.spark.operators.sink import SinkStep
from acker_client.spark.worker.chain import Step, TakeRows

VALUE, ROW = "value", "row"
NOTHING, FAILS, BREAKS, UNREADABLE = range(4)
CLASSES = 4

MAP, EXPLODE, FILTER, GROUP, BRANCH, SINK = "map", "explode", "filter", "group", "branch", "sink"

SCHEMA = StructType([StructField(VALUE, LongType())])
NO_ROW = -1


@dataclass(frozen=True)
class Op:
    """One operator. ``fails``: records that have to fail do so at this one. ``index``: the copy that a branch keeps."""

    name: str
    kind: str
    salt: int
    fails: bool = False
    digests: bool = True
    index: int = 0


@dataclass(frozen=True)
class Stage:
    """One stage: its tasks run ``ops`` over the rows of the stages ``inputs``, or of the source if there are none.

    ``by_key``: rows are distributed by key, else by value.
    """

    ops: tuple[Op, ...]
    inputs: tuple[int, ...] = ()
    width: int = 1
    by_key: bool = False


@dataclass(frozen=True)
class Pipeline:
    """``jobs``: the stages of each sink. A stage comes after its inputs, and the last one ends in the sink."""

    jobs: tuple[tuple[Stage, ...], ...]

    def __str__(self) -> str:
        return "; ".join(" | ".join(_line(stage) for stage in stages) for stages in self.jobs)


def _line(stage: Stage) -> str:
    come = f"{stage.inputs} by {'key' if stage.by_key else 'value'} in {stage.width}" if stage.inputs else "read"
    return " > ".join([come, *(f"{op.name}{'!' if op.fails else ''}" for op in stage.ops)])


def drawn(dice: random.Random, steps: int, width: int, *, digests: bool) -> Pipeline:
    """Draw a pipeline of at most this many operators."""
    names = iter(f"op{number}" for number in range(1, 100))

    def ops(most: int) -> list[tuple[Op, bool]]:
        """Draw operators, and for each whether it starts a stage."""
        made: list[tuple[Op, bool]] = []
        for _ in range(dice.randint(0, most)):
            kind = dice.choice((MAP, EXPLODE, EXPLODE, FILTER, GROUP))
            op = Op(f"{kind} {next(names)}", kind, dice.randrange(1 << 16), digests=digests or dice.random() < 0.5)
            made.append((op, kind == GROUP or dice.random() < 0.35))
        return made

    trunk = ops(steps)
    tails = [[(Op("sink a", SINK, 0), dice.random() < 0.3)]]
    shape = dice.choice(("line", "line", "line", "two sinks", "union"))
    if shape != "line":
        tails = [[*ops(max(1, steps - 2)), (Op(f"sink {name}", SINK, 0), dice.random() < 0.3)] for name in "ab"]
        branch = Op("branch", BRANCH, 0)
        tails = [[(replace(branch, index=index), False), *tail] for index, tail in enumerate(tails)]
    if shape == "union":
        sink = (Op("sink a", SINK, 0), True)
        legs = [_stages([*trunk, *tail[:-1]], dice, width) for tail in tails]
        shifted = [replace(stage, inputs=tuple(at + len(legs[0]) for at in stage.inputs)) for stage in legs[1]]
        stages = [*legs[0], *shifted]
        last = Stage((sink[0],), (len(legs[0]) - 1, len(stages) - 1), dice.randint(1, width))
        jobs: tuple[tuple[Stage, ...], ...] = ((*stages, last),)
    else:
        # Each job is drawn from the same seed, so that the trunk has the same stages in each.
        at = dice.getrandbits(32)
        jobs = tuple(tuple(_stages([*trunk, *tail], random.Random(at), width)) for tail in tails)
    return _failing(Pipeline(jobs), dice)


def _stages(ops: list[tuple[Op, bool]], dice: random.Random, width: int) -> list[Stage]:
    stages = [Stage(())]
    for op, begins in ops:
        if begins:
            stages.append(Stage((), (len(stages) - 1,), dice.randint(1, width), op.kind == GROUP))
        stages[-1] = replace(stages[-1], ops=(*stages[-1].ops, op))
    return stages


def _failing(pipeline: Pipeline, dice: random.Random) -> Pipeline:
    """Choose the operator at which records fail, if any."""
    names = sorted({op.name for job in pipeline.jobs for stage in job for op in stage.ops if op.kind in (MAP, EXPLODE)})
    if not names:
        return pipeline
    chosen = dice.choice(names)
    return Pipeline(
        tuple(
            tuple(replace(stage, ops=tuple(replace(op, fails=op.name == chosen) for op in stage.ops)) for stage in job)
            for job in pipeline.jobs
        )
    )


# Values that differ by a multiple of this go to the same task of the next stage, for any number of tasks.
LIKE = 60 * CLASSES


class Broken(Exception):
    """Raised for a row that Spark cannot evaluate, so the task fails every time."""


class Bad(Exception):
    """Raised by the user's function for a row."""


class Account(Protocol):
    """Records for the oracle what an attempt does, and decides where the attempt differs from others."""

    def differs(self, what: str) -> bool: ...
    def choose(self, count: int) -> int: ...
    def became(self, op: Op, rows: list[int], children: list[list[int] | None]) -> list[int]: ...
    def branched(self, op: Op, rows: list[int], copies: int) -> list[int]: ...
    def grouped(self, op: Op, rows: list[int], children: list[tuple[int, list[int]]] | None) -> list[int]: ...
    def wrote(self, op: Op, rows: list[int]) -> None: ...


def mixed(value: int, salt: int, ordinal: int = 0) -> int:
    """Return another value with the same ``value % CLASSES``."""
    return ((value // CLASSES * 7919 + salt * 104_729 + ordinal * 15_485_863 + 1) % 1_000_003) * CLASSES + (
        value % CLASSES
    )


def key_of(value: int) -> int:
    return value // CLASSES % 3


def children_of(op: Op, value: int, account: Account) -> list[int] | None:
    """Return the children of a row; None if the function raises."""
    if value % CLASSES == BREAKS and op.fails:
        raise Broken("ArithmeticError: division by zero in a where")
    if (value % CLASSES == FAILS and op.fails) or account.differs("fails a row this time"):
        return None
    if op.kind == MAP:
        children = [mixed(value, op.salt)]
    elif op.kind == FILTER:
        children = [value] if (value // CLASSES + op.salt) % 3 else []
    else:
        children = [mixed(value, op.salt, ordinal) for ordinal in range((value // CLASSES + op.salt) % 4)]
    if account.differs("makes children for the same tasks"):
        changed = LIKE * (1 + account.choose(1000))
        children = [child + changed for child in children]
    if account.differs("makes other children"):
        other = mixed(value, op.salt, 100 + account.choose(1000))
        at = account.choose(3)
        children = [[*children, other], children[:-1], [*children[1:], other]][at]
    return children


def step_of(op: Op, account: Account) -> Step:
    """Return the operator as a step of one attempt's chain."""
    if op.kind == SINK:
        return Written(op, account)
    if op.kind == BRANCH:
        return Branched(op, account)
    if op.kind == GROUP:
        return Grouped(op, account)
    return RowByRow(op, account)


@dataclass(frozen=True, slots=True)
class RowByRow:
    """A map, an explode or a filter."""

    op: Op
    account: Account

    @property
    def name(self) -> str:
        return self.op.name

    def start(self, tally: Tally) -> TakeRows:
        culprits = Culprits(self.op.name, "fail", tally)

        def take_rows(rows: Rows) -> Iterator[Rows]:
            values, ids = rows.data.column(VALUE).to_pylist(), rows.data.column(ROW).to_pylist()
            became = [children_of(self.op, value, self.account) for value in values]
            for row, children in enumerate(became):
                if children is None:
                    culprits.fail_row(rows.anchors, row, Bad(f"value {values[row]}"))
            made = [child for children in became for child in children or ()]
            counts = np.array([len(children or ()) for children in became], np.int64)
            derived = derive(
                tally, rows, [pa.array(made, pa.int64())], [VALUE], counts=counts, digests_values=self.op.digests
            )
            yield _numbered(derived, self.account.became(self.op, ids, became))

        return take_rows


@dataclass(frozen=True, slots=True)
class Branched:
    """A branch into two copies of each row, of which it keeps one."""

    op: Op
    account: Account

    @property
    def name(self) -> str:
        return self.op.name

    def start(self, tally: Tally) -> TakeRows:
        step = BranchStep(self.op.name, self.op.index, 2).start(tally)

        def take_rows(rows: Rows) -> Iterator[Rows]:
            ids = self.account.branched(self.op, rows.data.column(ROW).to_pylist(), 2)
            # The oracle's own number of a row differs in each evaluation, and is none of its values.
            for copies in step(Rows(rows.data.select([VALUE]), rows.anchors)):
                yield _numbered(copies, ids)

        return take_rows


@dataclass(frozen=True, slots=True)
class Grouped:
    """Takes the recorded groups that :func:`groups` made before the chain."""

    op: Op
    account: Account

    @property
    def name(self) -> str:
        return self.op.name

    def start(self, tally: Tally) -> TakeRows:
        return AccountStep(self.op.name).start(tally)


@dataclass(frozen=True, slots=True)
class Written:
    """The sink."""

    op: Op
    account: Account

    @property
    def name(self) -> str:
        return self.op.name

    def start(self, tally: Tally) -> TakeRows:
        step = SinkStep(self.op.name).start(tally)

        def take_rows(rows: Rows) -> Iterable[Rows]:
            self.account.wrote(self.op, rows.data.column(ROW).to_pylist())
            return step(rows)

        return take_rows


def groups(op: Op, account: Account, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Run the user's function over the rows of each key, like Spark's applyInArrow, and record each group."""
    merging = Merging(f"group {op.name!r}", op.name, SCHEMA, "fail", op.digests, 1000, False)
    task = GroupTask(merging, None, ())  # type: ignore[arg-type]
    for table in _by_key(batches):
        merged = _Merged(op, account)
        made = GroupTask.of_group(replace(task, function=merged), table)
        rows = account.grouped(op, merged.ids, merged.children) or [NO_ROW]
        yield from made.append_column(ROW, pa.array(rows, pa.int64())).to_batches()


class _Merged:
    """The user's function over one group. ``ids`` and ``children``: what it was given and what it made, see
    :meth:`Account.grouped`."""

    def __init__(self, op: Op, account: Account) -> None:
        self._op, self._account = op, account
        self.ids: list[int] = []
        self.children: list[tuple[int, list[int]]] | None = None

    def __call__(self, table: pa.Table) -> tuple[pa.Table, list[list[int]]]:
        self.ids = table.column(ROW).to_pylist()
        self.children = _merged(self._op, table.column(VALUE).to_pylist(), self._account)
        if self.children is None:
            raise Bad("a group")
        values = pa.array([value for value, _ in self.children], pa.int64())
        return pa.table({VALUE: values}), [parents for _, parents in self.children]


def _merged(op: Op, values: list[int], account: Account) -> list[tuple[int, list[int]]] | None:
    """Return the value and the parent rows of each row made of a group; None if the function raises."""
    if account.differs("fails a row this time"):
        return None
    shape = (key_of(min(values)) + op.salt) % 4
    parts = [[at for at, value in enumerate(values) if value // CLASSES % 2 == odd] for odd in (0, 1)]
    if shape == 0:
        chosen: list[list[int]] = []
    elif shape == 1:
        chosen = [part for part in parts if part]
    else:
        chosen = [list(range(len(values)))]
    children = [(_sum(values[at] for at in part), part) for part in chosen]
    if children and account.differs("makes other children"):
        children = [(value + CLASSES * (1 + account.choose(1000)), part) for value, part in children]
    return children


def _sum(values: Iterable[int]) -> int:
    return sum(value // CLASSES for value in values) % 1_000_003 * CLASSES


def _by_key(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.Table]:
    for tables in _alike(batches):
        keys = [key_of(value) for value in tables.column(VALUE).to_pylist()]
        for key in sorted(set(keys)):
            yield tables.take(pa.array([at for at, each in enumerate(keys) if each == key]))


def _alike(batches: Iterable[pa.RecordBatch]) -> list[pa.Table]:
    """Return all rows as one table, in a list; [] if there are no rows."""
    given = [batch for batch in batches if batch.num_rows]
    return [pa.Table.from_batches(given)] if given else []


def _numbered(rows: Rows, ids: list[int]) -> Rows:
    data = pa.RecordBatch.from_arrays([rows.data.column(VALUE), pa.array(ids, pa.int64())], names=[VALUE, ROW])
    return Rows(data, rows.anchors)
