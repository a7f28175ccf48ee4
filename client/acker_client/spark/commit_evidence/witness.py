"""Witness: what the client observes of one run of a sink, and how a frame or an RDD derives from the sink's rows.

The client observes some actions because it makes their calls itself. This module decides how much such an action
proves, and where it delivers to. An action over a part of the rows delivers only a part.
"""

from __future__ import annotations

import hashlib
import re
import threading
import time
import traceback
from collections.abc import Callable, Collection, Hashable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

from py4j.protocol import Py4JError
from pyspark import RDD, SparkContext
from pyspark.errors import PySparkException
from pyspark.serializers import CloudPickleSerializer
from pyspark.sql import DataFrame, SparkSession

from acker_client.error_text import shorten
from acker_client.spark.commit_evidence.evidence import NEVER_MS, Action, Target
from acker_client.spark.commit_evidence.graph import Graph, Places
from acker_client.spark.commit_evidence.turns import TurnWait
from acker_client.spark.driver.lineage import JOB_TAG, new_tag
from acker_client.spark.driver.session import CALL_SITE
from acker_client.spark.worker.notes import NoteWriter
from acker_client.spark.worker.reading import to_its_end

# Actions of RDDs that only look, and what they did.
LOOKS = {
    "count": "counted them", "isEmpty": "asked whether there are any", "take": "read a part", "first": "read a part",
    "takeSample": "read a part", "takeOrdered": "read a part", "top": "read a part", "sum": "summed them up",
    "countByKey": "counted them", "countByValue": "counted them", "reduce": "summed them up", "fold": "summed them up",
    "aggregate": "summed them up",
}  # fmt: skip
# The nodes of limits in an analysed plan.
_LIMITS = re.compile(r"\b(GlobalLimit|LocalLimit|Offset|Tail)\b")
_LIMITS_OR_GROUPS = re.compile(
    rf"{_LIMITS.pattern}|\b(Aggregate|Distinct|Deduplicate\w*|Intersect|Except|FlatMap(Co)?Groups\w*)\b"
)
# PySpark's errors for a look at an RDD without rows.
_FOUND_NONE = ("RDD is empty", "Can not reduce() empty RDD")


@dataclass(frozen=True, slots=True)
class Write:
    """A write by a call that has returned. Spark's stores show it, unless Spark has left it out.

    ``action``: the write, if it was not left out; ``call``: the call site of its executions; ``rows``: what it writes,
    None if the client does not know.
    """

    action: Action
    call: str
    rows: DataFrame | None
    trail: Trail

    def left_out(self, did: str, cut: Collection[str]) -> Action:
        """Return the action of a write that may have been left out. ``did``: what happened to the rows instead."""
        doubt = replace(self.action, did=did, is_whole=False, is_doubtful=True)
        return _partial(doubt, self.trail, cut) if self.trail.is_cut(cut) else doubt


class Witness:
    """The actions that the client sees during one run of a sink. ``tag``: the tag of the sink's step; ``functions``:
    names of functions that mark the sink's rows in a plan; ``step``: as in :class:`Places`. Thread-safe."""

    def __init__(self, tag: str, functions: tuple[str, ...], note_writer: NoteWriter, step: str = "") -> None:
        self.tag = tag
        self.places = Places(functions, step=step)
        self.note_writer = note_writer
        # Targets of the client's own calls, by the call site that their executions carry.
        self.calls: dict[str, Target] = {}
        # Views of the sink's rows by name, each with a key that is equal for equal rows.
        self.views: dict[str, Hashable] = {}
        # The sessions of those views that no other session sees.
        self.view_sessions: dict[str, SparkSession] = {}
        self.waits = list[TurnWait]()
        # Whether an RDD was made of the sink's rows.
        self.has_rdds = False
        # Why an RDD that a frame was made of may lack some of the sink's rows; "" if none may.
        self.unread = ""
        self._lock = threading.Lock()
        self._inside = threading.local()
        self._rdds: list[RDD[Any]] = []
        self._seen: list[tuple[Action, Trail]] = []
        # Deliveries of frames by calls that have returned. Usually Spark's stores show them.
        self._returned: list[tuple[DataFrame, Action, Trail, re.Pattern[str]]] = []
        self._writes: list[Write] = []
        self._running: list[Action] = []

    @property
    def writes(self) -> list[Write]:
        """The writes whose calls have returned."""
        with self._lock:
            return list(self._writes)

    def actions(self, cut: Collection[str]) -> list[Action]:
        """Return the actions that the client's own calls have shown. ``cut``: the functions that have left rows
        unread."""
        with self._lock:
            seen, running = list(self._seen), list(self._running)
        return [*(_partial(action, trail, cut) if trail.is_cut(cut) else action for action, trail in seen), *running]

    def partitions(self) -> dict[tuple[str, int], int]:
        """Return the number of partitions of each watched RDD, by (tag, number in notes)."""
        with self._lock:
            rdds = list(enumerate(self._rdds))
        return {(self.tag, number): rdd.getNumPartitions() for number, rdd in rdds}

    def watch_rdd(self, rdd: RDD[Any], *, notes_empty: bool) -> RDD[Any]:
        """Return the same RDD; each partition that is read to its end leaves a note. ``notes_empty``: the note also
        says if the partition has no rows. Pass False behind a user's function: an empty partition there says nothing
        about the sink's rows."""
        with self._lock:
            number = len(self._rdds)
            self._rdds.append(rdd)
        through = to_its_end(self.tag, number, self.note_writer, notes_empty=notes_empty)
        return rdd.mapPartitionsWithIndex(through, preservesPartitioning=True)

    def iterate(self, make: Callable[[], Iterator[Any]], trail: Trail) -> Iterator[Any]:
        """Return an iterator over the rows of ``make``. Record an action when it has reached the end, or has raised.
        Calling ``make`` may raise, too, because Spark runs the jobs of shuffles then."""
        began_ms, delivers, target = now_ms(), not trail.aggregates, trail.target("an iterator")
        did = "iterated over them"

        @contextmanager
        def seen() -> Iterator[None]:
            try:
                yield
            except Exception as error:
                self.record_failure(did, began_ms, error, trail, target, delivers=delivers)
                raise

        def iterated() -> Iterator[Any]:
            with seen():
                yield from rows
            self.record(Action(did, delivers, True, began_ms, now_ms(), "", target), trail)

        with seen():
            rows = make()
        return iterated()

    def record(self, action: Action, trail: Trail) -> None:
        """Record an action on the rows that ``trail`` leads to."""
        with self._lock:
            self._seen.append((replace(action, reads_none=True) if trail.is_empty else action, trail))

    def record_return(
        self, df: DataFrame, did: str, began_ms: float, target: Target, trail: Trail, *, collects: bool = False
    ) -> None:
        """Record that a call has returned that delivers ``df``, to which ``trail`` leads. ``collects``: it hands the
        rows to the driver, which is a look if they are aggregated."""
        action = Action(did, True, True, began_ms, now_ms(), "", target, reads_none=True)
        with self._lock:
            self._returned.append((df, action, trail, _LIMITS_OR_GROUPS if collects else _LIMITS))

    def record_write(self, call: str, rows: DataFrame | None, began_ms: float, target: Target, trail: Trail) -> None:
        """Record that a call has returned that writes ``rows``, to which ``trail`` leads; None: it is unknown what it
        writes. ``call``: as :meth:`delivering` has yielded it."""
        action = Action("wrote them", True, True, began_ms, now_ms(), "", target)
        with self._lock:
            self._writes.append(Write(action, call, rows, trail))

    def deliveries_of_none(self, cut: Collection[str]) -> list[Action]:
        """Return the deliveries of frames of which Spark knew, without running anything, that they have no rows.

        Spark plans such a delivery without the sink's rows, so its stores do not show that these were delivered.
        """
        with self._lock:
            returned = list(self._returned)
        return [
            _partial(action, trail, cut) if trail.is_cut(cut) else action
            for df, action, trail, excluded in returned
            if _is_empty(df, excluded)
        ]

    def record_failure(
        self, did: str, began_ms: float, error: Exception, trail: Trail, target: Target, *, delivers: bool = True
    ) -> None:
        """Record a delivery, or a look, that raised ``error``."""
        text = "".join(traceback.format_exception(error))
        action = Action(did, delivers, False, began_ms, now_ms(), shorten(error), target, text)
        self.record(action, trail)

    @contextmanager
    def recording_failure(self, did: str, name: str, trail: Trail) -> Iterator[bool]:
        """Enter the call ``name``, and record a failed look if the user made the call and it raises. Yields the same
        as :meth:`calling`."""
        began_ms = now_ms()
        with self.calling(name) as is_users:
            try:
                yield is_users
            except Exception as error:
                if is_users and str(error) not in _FOUND_NONE:
                    self.record_failure(did, began_ms, error, trail, Target.unlike(name), delivers=False)
                raise

    @contextmanager
    def delivering(self, context: SparkContext, target: Target) -> Iterator[str]:
        """While the block runs, mark what this thread executes as a delivery to ``target``. Yields the mark, which is
        the call site of these executions."""
        call, (_, key) = f"acker-delivery-{new_tag()}", CALL_SITE
        before = context.getLocalProperty(key)
        with self._lock:
            self.calls[call] = target
        context.setLocalProperty(key, call)
        try:
            yield call
        finally:
            context.setLocalProperty(key, before)  # type: ignore[arg-type]  # None removes it

    @contextmanager
    def tagging_jobs(self, context: SparkContext) -> Iterator[None]:
        """Tag this thread's jobs while the block runs. The code that begins these jobs observes how they end."""
        tag = JOB_TAG + self.tag
        had_it = tag in context.getJobTags()
        context.addJobTag(tag)
        try:
            yield
        finally:
            if not had_it:
                context.removeJobTag(tag)

    @contextmanager
    def running(self, name: str) -> Iterator[None]:
        """Show an action that delivers rows as running while the block runs."""
        action = Action(f"ran {name} over them", True, False, now_ms(), NEVER_MS)
        with self._lock:
            self._running.append(action)
        try:
            yield
        finally:
            with self._lock:
                self._running.remove(action)

    @property
    def is_looking(self) -> bool:
        """Whether this thread is within a call that only looks: rows that it leaves unread prove nothing."""
        return getattr(self._inside, "call", "") in LOOKS

    @contextmanager
    def calling(self, name: str) -> Iterator[bool]:
        """Enter the call ``name``; yield whether the user made it. PySpark makes calls within other calls."""
        outer = getattr(self._inside, "call", "")
        self._inside.call = name if name in LOOKS or not outer else outer
        try:
            yield not outer
        finally:
            self._inside.call = outer


@dataclass(frozen=True, slots=True)
class Trail:
    """How a frame or an RDD derives from a sink's rows.

    ``unread``: the step that may have left rows unread ("": none). ``is_limited``: only limits in the plan leave rows
    unread. ``functions``: the watched functions that the rows went through. ``aggregates``: an aggregate is among the
    steps. ``steps``: the steps that made an RDD, each as a key that is equal for equal rows. ``is_empty``: Spark knows
    without running anything that there are no rows.
    """

    witness: Witness
    unread: str = ""
    is_limited: bool = True
    functions: frozenset[str] = frozenset()
    aggregates: bool = False
    steps: tuple[Hashable, ...] = ()
    is_empty: bool = False

    def through(self, df: DataFrame) -> Trail:
        """Return the trail of ``df``, from the plan that Spark has made for it."""
        graph = Graph.of(df)
        paths = graph.paths_from_rdds(self.witness.places) if self.steps else graph.paths_from(self.witness.places)
        if not paths:
            if _is_empty(df, _LIMITS):
                return replace(self, is_empty=True)
            return self if self.unread else self.leaving_unread("made a frame of them that does not show them")
        cut = next((f"read a part ({path.cut or path.unproven})" for path in paths if path.is_cut(())), "")
        return replace(
            self,
            unread=self.unread or cut,
            is_limited=self.is_limited and all(path.is_limited(()) for path in paths),
            functions=self.functions.union(*(path.reads for path in paths)),
            aggregates=self.aggregates or all(path.aggregates for path in paths),
        )

    def is_in(self, graph: Graph) -> bool:
        """Whether a plan may show the rows, or shows that Spark has removed them."""
        places, has_rdds = self.witness.places, self.witness.has_rdds
        is_shown = bool(graph.paths_from(places) or graph.removed_paths(places))
        return is_shown or (has_rdds and graph.has({"Scan ExistingRDD"}))

    def is_named_in(self, plan: str) -> bool:
        """Whether the text of a plan may be one over the rows."""
        return self.witness.places.are_in(plan) or (self.witness.has_rdds and "RDD" in plan)

    def may_be_in(self, df: DataFrame) -> bool:
        """Whether Spark's plan of a frame shows the rows; True if Spark cannot plan the frame."""
        try:
            return self.is_in(Graph.of(df))
        except (Py4JError, PySparkException):
            return True

    def leaving_unread(self, what: str) -> Trail:
        """Return the trail behind a step that need not have read all rows. ``what``: the step, for messages."""
        return replace(self, unread=self.unread or what, is_limited=False)

    def behind(self, function: str) -> Trail:
        """Return the trail of the output of ``function``."""
        return replace(self, functions=self.functions | {function})

    def after(self, *step: Hashable) -> Trail:
        """Return the trail of what ``step`` makes."""
        return replace(self, steps=(*self.steps, step))

    def beside(self, others: Iterable[Trail]) -> Trail:
        """Return the trail of a frame or RDD made from this one and ``others``. The made frame or RDD has all rows only
        if each of them has."""
        trails = [self, *others]
        return replace(
            self,
            unread=next((trail.unread for trail in trails if trail.unread), ""),
            is_limited=all(trail.is_limited for trail in trails),
            functions=frozenset().union(*(trail.functions for trail in trails)),
            aggregates=any(trail.aggregates for trail in trails),
            steps=tuple(step for trail in trails for step in trail.steps),
            is_empty=all(trail.is_empty for trail in trails),
        )

    def target(self, place: str, *what: Hashable) -> Target:
        """Return the target of a delivery of these rows. ``what``: the arguments of the call that name the
        destination."""
        return Target(place, (what, self.steps))

    def is_cut(self, cut: Collection[str]) -> bool:
        """Whether some rows may not have come this far."""
        return bool(self.unread) or not self.functions.isdisjoint(cut)


def _is_empty(df: DataFrame, excluded: re.Pattern[str]) -> bool:
    """Whether Spark knows without running anything that a frame has no rows, and its plan has no node that is
    ``excluded``. A sink may filter all its rows away. False if Spark cannot plan the frame."""
    execution: Any = df._jdf.queryExecution()
    try:
        if excluded.search(str(execution.analyzed().treeString())):
            return False
        # Plans the frame, if nothing has. A table that it reads may be gone by now.
        most = execution.optimizedPlan().maxRows()
        return bool(most.isDefined()) and int(most.get()) == 0
    except (Py4JError, PySparkException):
        return False


def frame_step(df: DataFrame) -> tuple[str, int, tuple[str, ...]]:
    """Return a frame as a step of a trail. Frames with the same analysed plan have equal steps."""
    # `semanticHash` ignores the names of columns.
    return ("frame", int(df._jdf.semanticHash()), tuple(df.columns))


def names_step(spark: SparkSession) -> tuple[str, str, str]:
    """Return where ``spark`` looks up names of tables. In another database the same name means another table."""
    return ("names", spark.catalog.currentCatalog(), spark.catalog.currentDatabase())


def digest(value: object) -> str:
    """Return 12 hex digits that are equal for equal functions and values, and random for what cannot be pickled."""
    pickler: Any = CloudPickleSerializer
    try:
        return hashlib.sha256(pickler().dumps(value)).hexdigest()[:12]
    except Exception:  # noqa: BLE001  # pickling an object may raise anything
        return new_tag()


def _partial(action: Action, trail: Trail, cut: Collection[str]) -> Action:
    if not action.delivers:
        return action
    is_limited = trail.is_limited and trail.functions.isdisjoint(cut)
    return replace(action, did=trail.unread or "read a part", is_whole=False, is_doubtful=not is_limited)


def now_ms() -> float:
    return time.time_ns() // 1_000_000
