"""Acked: the frames in the body of a user's loop, and the use of rows with an ``ack()`` column there.

When the user adds an ``ack()`` column to a tracked frame, or to a frame derived from one, the column is registered with
the batches whose rows it acks. The frame with this column is cached if an earlier batch evaluated rows with an
``ack()`` column more than once. When the frame is written or leaves SQL (as an RDD, an iterator, a checkpoint, or
through a function over batches), its rows are followed in the same way as a sink's rows (``following``). So are other
frames with these rows, and statements over them (``others``), until the batch is released. Everything else behaves as
in Spark.

A frame of a tracked step is planned when something first needs its plan. Spark would make about forty calls into the
JVM for each step, and the plan of a step that the next step joins is never used.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, wraps
from itertools import combinations
from types import MethodType
from typing import Any

from pyspark import RDD
from pyspark.sql import Column, DataFrame, DataFrameWriter, SparkSession
from pyspark.sql.classic.dataframe import DataFrame as ClassicFrame
from pyspark.sql.group import GroupedData
from pyspark.sql.types import StructType

from acker_client.errors import AckerError
from acker_client.spark.anchoring.anchors import TRACKING
from acker_client.spark.commit_evidence.following import FollowedFrame, analyzed, follow, remade
from acker_client.spark.commit_evidence.witness import Trail, Witness
from acker_client.spark.driver import lineage
from acker_client.spark.driver.catalyst import UNREADABLE
from acker_client.spark.driver.edge_columns import EdgeColumns, may_share_edge
from acker_client.spark.driver.lineage import ACK, AGAIN
from acker_client.spark.driver.task_columns import check_servers
from acker_client.spark.worker.notes import note_store_of

# Methods that take rows out of SQL, and all methods by which rows leave a frame. `rdd` and `write` are properties.
_OUT_OF_SQL = ("toJSON", "mapInArrow", "mapInPandas")
_VIEWS = (
    "createTempView", "createOrReplaceTempView", "registerTempTable",
    "createGlobalTempView", "createOrReplaceGlobalTempView",
)  # fmt: skip
_LEAVE = (*_OUT_OF_SQL, *_VIEWS, "toLocalIterator", "checkpoint", "localCheckpoint", "writeTo", "mergeInto")
# Attributes of frames (see `fusing`): how a tracked frame was made, and how the one below a derived frame was made.
CHAIN, BELOW = "_acker_chain", "_acker_below"
# Held while a frame is planned, so that two threads get the same plan. Planning a frame may plan the frame below it.
_planning = threading.RLock()

ACKS = re.compile(rf"{ACK}.*?_[0-9a-f]{{12}}(?=\()", re.DOTALL)


class AckedTwice(AckerError):
    """Rows of a plain source would be acked by one function before another one has worked on them."""

    # A retry cannot help. ``blame`` reads this.
    is_of_the_program = True

    def __init__(self, taker: str, *, is_proved: bool = True) -> None:
        why = "another column acks the same rows" if is_proved else "nothing shows that no other column acks these rows"
        super().__init__(
            f"{taker}: {why}, which would count as done before this one has worked on them."
            " Do the work in one function, let the first one emit (emits=True), or make copies with branch(frame, 2)."
            " If this one acks nothing, drop _root and _edge before it"
        )


class Copied(AckerError):
    """Records of a plain source would be acked by a function that may get several rows of each."""

    # A retry cannot help. ``blame`` reads this.
    is_of_the_program = True

    def __init__(self, taker: str) -> None:
        super().__init__(
            f"{taker}: a union, join or explode may have copied the records that a function has emitted, and the ack of"
            " one copy would count for all. Give each copy an edge of its own, as functions.emit does for the elements"
            " of an array, or emit behind the union, join or explode"
        )


@dataclass(frozen=True, slots=True)
class Acked:
    """A frame with ``ack()`` columns.

    ``functions``: names of the ``ack()`` functions in a plan; ``nodes``: functions of the tracked steps in the
    frame's plan.
    """

    functions: tuple[str, ...]
    nodes: frozenset[str]
    df: DataFrame


@dataclass(frozen=True, slots=True)
class Unplanned:
    """The frame of a tracked step before Spark has planned it. ``plan`` plans it; ``schema``: its schema then."""

    node: lineage.Node
    schema: StructType
    plan: Callable[[], DataFrame]


class BodyFrame(ClassicFrame):
    """A tracked frame in the body of a user's loop, or a frame derived from a body frame."""

    def __getattribute__(self, name: str) -> Any:
        value = super().__getattribute__(name)
        is_plain = name.startswith("_") or not isinstance(value, MethodType)
        return value if is_plain else _returning_body_frames(self, value)

    @cached_property
    def _jdf(self) -> Any:
        mine = vars(self)
        with _planning:
            if "_jdf" not in mine:
                mine["_jdf"] = mine["_acker_step"].plan()._jdf
            return mine["_jdf"]

    @property
    def schema(self) -> StructType:
        step: Unplanned | None = vars(self).get("_acker_step")
        # A copy, because `schema.add` changes the schema that it is called on.
        return super().schema if step is None else StructType(list(step.schema.fields))

    @cached_property
    def rdd(self) -> RDD[Any]:
        _check_rows(self, "rdd, or foreach")
        return self._leaving().rdd

    @property
    def write(self) -> DataFrameWriter:
        return self._leaving().write

    def _leaving(self) -> DataFrame:
        """Return this frame as a plain Spark frame. Its rows are followed if they are held, and ``ack()`` is in its
        plan or only its actions can show that they are done, because the batch is not tracked."""
        df, text = plain(self), analyzed(self)
        batch = vars(self)["_acker_batch"]
        if not batch.held or (ACK not in text and batch.settings.tracking):
            return df
        followed: DataFrame = follow(df, Trail(_witness(self, text)))
        return followed


def _leaving_by(name: str) -> Callable[..., Any]:
    """Return a body frame's method ``name``, by which its rows leave the frame."""

    @wraps(getattr(ClassicFrame, name))
    def call(df: BodyFrame, *args: Any, **kwargs: Any) -> Any:
        if name in _OUT_OF_SQL:
            _check_rows(df, name)
        leaving = _with_others(df) if name in _VIEWS else df._leaving()
        return getattr(leaving, name)(*args, **kwargs)

    return call


for _name in _LEAVE:
    setattr(BodyFrame, _name, _leaving_by(_name))


def _with_others(df: BodyFrame) -> DataFrame:
    """Return what :meth:`BodyFrame._leaving` returns. If its rows are followed, follow them in other frames, too."""
    leaving = df._leaving()
    if isinstance(leaving, FollowedFrame):
        for batch in _steps_below(analyzed(df))[1]:
            batch.keep_following(leaving._trail)
    return leaving


class BodyGroups(GroupedData):
    """The groups of a body frame whose rows are not held. A frame that they are aggregated into is a body frame."""

    def __getattribute__(self, name: str) -> Any:
        value = super().__getattribute__(name)
        if name.startswith("_") or not isinstance(value, MethodType):
            return value
        batch = vars(self)["_acker_batch"]

        @wraps(value)
        def call(*args: Any, **kwargs: Any) -> Any:
            made = value(*args, **kwargs)
            if type(made) is ClassicFrame:
                return of_body(made, batch)
            return _groups(made, batch) if type(made) is GroupedData else made

        return call


def of_body(df: DataFrame, batch: Any, below: Any = None) -> BodyFrame:
    """Return ``df``, a plain Spark frame, as a body frame. ``batch``: its batch, or one of its batches. ``below``: how
    the tracked frame below it was made."""
    body: BodyFrame = remade(BodyFrame, df, _acker_batch=batch)
    setattr(body, BELOW, below)
    return body


def frame_of_step(spark: SparkSession, step: Unplanned, batch: Any) -> DataFrame:
    """Return the frame of a tracked step as a body frame, without a call into the JVM. ``batch``: as for
    :func:`of_body`."""
    made: DataFrame = object.__new__(BodyFrame)
    ClassicFrame.__init__(made, None, spark)  # type: ignore[arg-type]  # removed in the next line
    del vars(made)["_jdf"]
    vars(made).update(_acker_step=step, _acker_batch=batch)
    return made


def step_of(df: DataFrame) -> lineage.Node | None:
    """Return the tracked step whose frame ``df`` is, if that is known without a look at its plan. None for a frame that
    the user derived from it."""
    step: Unplanned | None = vars(df).get("_acker_step")
    return None if step is None else step.node


def is_planned(df: DataFrame) -> bool:
    """Whether Spark knows a plan of this frame."""
    return "_jdf" in vars(df)


def plain(df: DataFrame) -> DataFrame:
    """Return a body frame as Spark's own frame, and any other frame unchanged."""
    if type(df) is not BodyFrame:
        return df
    frame: DataFrame = remade(ClassicFrame, df, _jdf=df._jdf)
    del vars(frame)["_acker_batch"]
    return frame


def _returning_body_frames(df: BodyFrame, method: MethodType) -> Callable[..., Any]:
    """Wrap ``method`` of ``df`` so that a frame it returns is a body frame too."""

    @wraps(method)
    def call(*args: Any, **kwargs: Any) -> Any:
        functions = [function for column in _columns((args, kwargs)) for function in ACKS.findall(str(column))]
        settings = vars(df)["_acker_batch"].settings
        for function in functions if settings.tracking else ():
            check_servers(function, settings.servers)
        taker = f"{method.__name__} with ack()"
        before = _rows_of_acks(df, taker) if functions else None
        value = method(*args, **kwargs)
        if type(value) is GroupedData and not vars(df)["_acker_batch"].held:
            return _groups(value, vars(df)["_acker_batch"])
        if type(value) is not ClassicFrame:
            return value
        made = of_body(value, vars(df)["_acker_batch"], vars(df).get(CHAIN) or vars(df).get(BELOW))
        if before is not None:
            _refuse_acked_twice(made, before.plan, functions)
            # Only now, because a call that raises takes no rows.
            if before.are_fresh:
                vars(df)["_acker_batch"].take_rows(df, taker, functions, _calls_in(made, functions))
        elif any(isinstance(argument, DataFrame) for argument in (*args, *kwargs.values())):
            _refuse_meeting_acks(made)
        if functions:
            _register_acks(made, functions)
        return made

    return call


@dataclass(frozen=True, slots=True)
class _Rows:
    """Rows that an ``ack()`` column takes, and that are not held. ``plan``: that of their frame. ``are_fresh``: they
    have edges that no function in the plan has acked, and that a step made."""

    plan: str
    are_fresh: bool


def _groups(groups: GroupedData, batch: Any) -> BodyGroups:
    """Return ``groups``, Spark's own, as those of a body frame of ``batch``."""
    made: BodyGroups = object.__new__(BodyGroups)
    vars(made).update(vars(groups), _acker_batch=batch)
    return made


def _rows_of_acks(df: BodyFrame, taker: str) -> _Rows | None:
    """Check the rows that an ``ack()`` column takes, and return them; None if they are held."""
    batch = vars(df)["_acker_batch"]
    if batch.held:
        return None
    plan = analyzed(df)
    rows = _Rows(plan, ACK not in plan or _edges_of(df, taker).has_fresh)
    if rows.are_fresh:
        batch.check_rows(df, taker)
    return rows


def _check_rows(df: BodyFrame, taker: str) -> None:
    """Refuse a ``taker`` that may take rows out of SQL twice, or rows that are acked already."""
    batch = vars(df)["_acker_batch"]
    if batch.held:
        return
    if ACK in analyzed(df):
        refuse_acked_edges(df, taker)
        edges = _edges_of(df, taker)
        if edges.holds_copies:
            raise Copied(taker)
        if edges.has_fresh:
            batch.check_rows(df, taker)
    elif any(column in df.columns for column in TRACKING) or _edges_of(df, taker).held:
        batch.check_rows(df, taker)


def _refuse_acked_twice(df: DataFrame, before: str, functions: Sequence[str]) -> None:
    """Refuse ``functions``, which ack rows that are not held, if another function in the plan of ``df`` may ack the
    same edges, or if several rows may hold the same edge of a function. ``before``: the plan without these
    functions."""
    taker = "a second column that acks"
    again = {function for function in functions if functions.count(function) > 1 or function in before}
    if len(set(functions)) == 1 and not again and ACK not in before:
        return
    calls = _edges_of(df, taker).calls
    for one, other in combinations(calls, 2):
        is_repeated = one.function != other.function or one.function in again
        if is_repeated and may_share_edge(one.consumed, other.consumed):
            raise AckedTwice(taker)
    if any(call.acks_copies for call in calls if call.function in functions):
        raise Copied("a column that acks")


def _refuse_meeting_acks(df: DataFrame) -> None:
    """Refuse a join or union of frames whose functions may ack the same edges, if these are not held."""
    if vars(df)["_acker_batch"].held or ACK not in analyzed(df):
        return
    taker = "a frame that joins others"
    for one, other in combinations(_edges_of(df, taker).calls, 2):
        if one.function != other.function and may_share_edge(one.consumed, other.consumed):
            raise AckedTwice(taker)


def refuse_acked_edges(df: DataFrame, taker: str) -> None:
    """Raise :class:`AckedTwice` if a column of the frame may hold an edge that a function in its plan has acked."""
    edges = _edges_of(df, taker)
    if any(may_share_edge(call.consumed, edges.held) for call in edges.calls):
        raise AckedTwice(taker)


def _edges_of(df: DataFrame, taker: str) -> EdgeColumns:
    try:
        return EdgeColumns(df)
    except UNREADABLE:
        raise AckedTwice(taker, is_proved=False) from None


def _columns(value: Any) -> Iterator[Column]:
    """Yield the columns among the arguments of a call."""
    if isinstance(value, Column):
        yield value
    elif isinstance(value, (list, tuple)):
        for each in value:
            yield from _columns(each)
    elif isinstance(value, dict):
        yield from _columns(list(value.values()))


def _calls_in(df: DataFrame, functions: Sequence[str]) -> str:
    """Return the calls of ``functions`` in the plan of ``df`` as text, which is equal for equal calls."""
    try:
        calls = {call.text for call in EdgeColumns(df).calls if call.function in functions}
    except UNREADABLE:
        calls = set(map(lineage.name_of_column, functions))
    return ", ".join(sorted(calls))


def _register_acks(df: BodyFrame, functions: Sequence[str]) -> None:
    """Tell the batches below ``df`` that ``ack()`` columns with these functions were added to it."""
    acked, batches = _steps_below(analyzed(df))
    ack = Acked(tuple(functions), frozenset(node.function for node in acked), plain(df))
    # Every batch has to register the frame; any() over a generator would stop at the first batch that returns True.
    if any([batch.add_acked_frame(ack) for batch in batches]):  # noqa: C419
        batches[0].keep_cached(df)
    # A statement may take the frame itself, as in `sql("... {rows}", rows=df)`.
    _with_others(df)


def _steps_below(plan: str) -> tuple[list[lineage.Node], list[Any]]:
    """Return the steps that a plan names, and their batches without duplicates."""
    nodes = [node for node in lineage.known_steps() if node.function in plan]
    return nodes, list({id(batch): batch for node in nodes for batch in node.batches}.values())


def _witness(df: DataFrame, plan: str) -> Witness:
    """Make the witness that follows the rows of ``df``, and register it with the batches below."""
    acked, batches = _steps_below(plan)
    note_store = note_store_of(df.sparkSession.sparkContext)
    node = lineage.register("acks", "ack", *batches)
    note_store.keep_notes(node.tag)
    marks = [ACK] if ACK in plan else [each.function for each in acked if each.consumer is None]
    # Other batches may use the same ack() column, and have views at the same time: the step tells their rows apart.
    step = acked[-1].function if acked else ""
    witness = Witness(node.tag, (*marks, AGAIN + node.tag), note_store.note_writer, step)
    for batch in batches:
        batch.add_ack_witness([each.function for each in acked], witness)
    return witness
