"""Following: the frame that a sink is given, and every frame and RDD the user derives from it.

Decides what Spark's own stores cannot tell: whether a function of the user's has read its rows to the end, and what an
action of an RDD did. Functions over partitions and batches are watched from inside: one that ends before its input does
leaves a note. Actions of RDDs, iterators and writes that raise are watched from outside. What is followed is a frame,
an RDD, a writer like any other, and computes what it would compute unfollowed. Spark gives rows to an operator below a
function of the user's whether they are asked for or not, so the end of input there proves nothing.
"""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, replace
from functools import cached_property, wraps
from types import MethodType
from typing import Any

from pyspark import RDD, SparkContext, StorageLevel
from pyspark.core.rdd import PipelinedRDD
from pyspark.sql import DataFrame, DataFrameWriter, DataFrameWriterV2, GroupedData
from pyspark.sql.classic.dataframe import DataFrame as ClassicFrame

from acker_client.core.gist import gist
from acker_client.spark.core.evidence import NEVER_MS, Action
from acker_client.spark.driver.columns import into_python
from acker_client.spark.driver.lineage import AGAIN, JOB_TAG, READS, new_tag
from acker_client.spark.task.notes import Pen
from acker_client.spark.task.stage import renamed

_CUTS = re.compile(r"^[\s:+|-]*(GlobalLimit|LocalLimit|Limit|Tail|Offset|CollectLimit)\b", re.MULTILINE)
_UNWATCHED = re.compile(r"^[\s:+|-]*MapIn(?:Arrow|Pandas) (?!acker_)", re.MULTILINE)
_READS = re.compile(rf"{READS}\w*?_[0-9a-f]{{12}}")
_END = object()

# Actions of RDDs that hand all rows on; what they run reads its input to the end, or leaves a note.
_HANDS_ON = frozenset({
    "collect", "collectAsMap", "collectWithJobGroup", "foreach", "foreachPartition", "saveAsTextFile",
    "saveAsPickleFile", "saveAsHadoopFile", "saveAsHadoopDataset", "saveAsNewAPIHadoopFile",
    "saveAsNewAPIHadoopDataset", "saveAsSequenceFile",
})  # fmt: skip
_LOOKS = {
    "count": "counted them", "isEmpty": "asked whether there are any", "take": "read a part", "first": "read a part",
    "takeSample": "read a part", "takeOrdered": "read a part", "top": "read a part", "sum": "summed them up",
    "countByKey": "counted them", "countByValue": "counted them", "reduce": "summed them up", "fold": "summed them up",
    "aggregate": "summed them up",
}  # fmt: skip


class Witness:
    """What is seen from the client of one run of a sink. ``tag``: of its stage. Thread-safe."""

    def __init__(self, tag: str, pen: Pen) -> None:
        self.tag = tag
        self.pen = pen
        self._lock = threading.Lock()
        self._inside = threading.local()
        self._rdds: list[RDD[Any]] = []
        self._seen: list[tuple[Action, Trail]] = []
        self._running: list[Action] = []

    def actions(self, cut: Collection[str]) -> list[Action]:
        """What the client's own calls have shown. ``cut``: the functions that have left rows unread."""
        with self._lock:
            seen, running = list(self._seen), list(self._running)
        return [*(action if not trail.is_cut(cut) else _partial(action) for action, trail in seen), *running]

    def partitions(self) -> dict[tuple[str, int], int]:
        """How many partitions each RDD of all rows has, by (tag, number in notes)."""
        with self._lock:
            rdds = list(enumerate(self._rdds))
        return {(self.tag, number): rdd.getNumPartitions() for number, rdd in rdds}

    def watch(self, rdd: RDD[Any]) -> RDD[Any]:
        """The same RDD, with a note for each of its partitions that is read to its end."""
        with self._lock:
            number = len(self._rdds)
            self._rdds.append(rdd)
        return rdd.mapPartitionsWithIndex(_to_its_end(self.tag, number, self.pen), preservesPartitioning=True)

    def iterate(self, rows: Iterator[Any], trail: Trail) -> Iterator[Any]:
        """The same rows; that they were read to the end, or raised, is seen."""
        began_ms = _now_ms()
        try:
            yield from rows
        except Exception as error:
            self.see(Action("iterated over them", True, False, began_ms, _now_ms(), gist(error)), trail)
            raise
        self.see(Action("iterated over them", True, True, began_ms, _now_ms()), trail)

    def see(self, action: Action, trail: Trail) -> None:
        """Something was done with what ``trail`` leads to."""
        with self._lock:
            self._seen.append((action, trail))

    @contextmanager
    def running(self, name: str) -> Iterator[None]:
        """An action that hands rows on is under way."""
        action = Action(f"ran {name} over them", True, False, _now_ms(), NEVER_MS)
        with self._lock:
            self._running.append(action)
        try:
            yield
        finally:
            with self._lock:
                self._running.remove(action)

    @property
    def is_looking(self) -> bool:
        """Whether this thread is within a call that only looks: what it leaves unread says nothing."""
        return getattr(self._inside, "call", "") in _LOOKS

    @contextmanager
    def calling(self, name: str) -> Iterator[bool]:
        """Whether a call is the user's own, and not one that PySpark makes within it."""
        outer = getattr(self._inside, "call", "")
        self._inside.call = name if name in _LOOKS or not outer else outer
        try:
            yield not outer
        finally:
            self._inside.call = outer


@dataclass(frozen=True, slots=True)
class Trail:
    """How a frame or an RDD has come from a sink's rows. ``is_partial``: a limit stood in the way, or a function that
    nobody watches; ``functions``: those that are watched."""

    witness: Witness
    is_partial: bool = False
    functions: frozenset[str] = frozenset()

    def through(self, plan: str) -> Trail:
        """The trail of a frame with this analysed plan."""
        is_partial = bool(_CUTS.search(plan) or _UNWATCHED.search(plan))
        return Trail(self.witness, self.is_partial or is_partial, self.functions | set(_READS.findall(plan)))

    def behind(self, function: str) -> Trail:
        """The trail of what ``function`` makes."""
        return replace(self, functions=self.functions | {function})

    def is_cut(self, cut: Collection[str]) -> bool:
        """Whether not all rows have come so far."""
        return self.is_partial or not self.functions.isdisjoint(cut)


class _Followed:
    """Whatever this gives is followed too."""

    _trail: Trail

    def __getattribute__(self, name: str) -> Any:
        value = super().__getattribute__(name)
        if name.startswith("_"):
            return value
        trail = self._trail
        return self._called(value, name) if isinstance(value, MethodType) else follow(value, trail)

    def _called(self, method: MethodType, name: str) -> Callable[..., Any]:
        trail = self._trail

        @wraps(method)
        def call(*args: Any, **kwargs: Any) -> Any:
            return follow(method(*args, **kwargs), trail)

        return call


class FollowedFrame(_Followed, ClassicFrame):
    """A frame of a sink's rows."""

    @cached_property
    def rdd(self) -> RDD[Any]:
        rdd, trail = super().rdd, self._trail.through(self._plan())
        if not trail.is_partial and not trail.functions:
            rdd = trail.witness.watch(rdd)
        followed: RDD[Any] = follow(rdd, trail)
        return followed

    def toLocalIterator(self, prefetchPartitions: bool = False) -> Iterator[Any]:
        trail = self._trail.through(self._plan())
        return trail.witness.iterate(super().toLocalIterator(prefetchPartitions), trail)

    def mapInArrow(self, func: Any, *args: Any, **kwargs: Any) -> DataFrame:
        return super().mapInArrow(_over_batches(func, self._trail.witness), *args, **kwargs)

    def mapInPandas(self, func: Any, *args: Any, **kwargs: Any) -> DataFrame:
        return super().mapInPandas(_over_batches(func, self._trail.witness), *args, **kwargs)

    def checkpoint(self, eager: bool = True) -> DataFrame:
        return self._again(super().checkpoint(eager))

    def localCheckpoint(self, eager: bool = True, storageLevel: StorageLevel | None = None) -> DataFrame:
        return self._again(super().localCheckpoint(eager, storageLevel))

    def _again(self, df: DataFrame) -> DataFrame:
        """``df``, whose plan has lost where its rows come from, under a name by which its executions are known."""
        trail = self._trail.through(self._plan())
        if trail.is_partial or trail.functions:
            partial: DataFrame = follow(df, trail)
            return partial
        base, names = into_python(df)

        def through(batches: Iterable[Any]) -> Iterator[Any]:
            return (renamed(batch, names) for batch in batches)

        through.__name__ = AGAIN + trail.witness.tag
        return base.mapInArrow(through, df.schema)

    def _plan(self) -> str:
        return str(self._jdf.queryExecution().analyzed().treeString())


class FollowedGroups(_Followed, GroupedData):
    """Groups of a sink's rows."""


class _FollowedCalls(_Followed):
    """What is called on it is seen where it hands rows on, or fails to."""

    def _called(self, method: MethodType, name: str) -> Callable[..., Any]:
        trail = self._trail
        call = super()._called(method, name)

        @wraps(method)
        def seen(*args: Any, **kwargs: Any) -> Any:
            began_ms = _now_ms()
            with trail.witness.calling(name) as is_users:
                try:
                    value = call(*args, **kwargs)
                except Exception as error:
                    if is_users:
                        self._see(name, began_ms, gist(error))
                    raise
            if is_users:
                self._see(name, began_ms, "")
            return value

        return seen

    def _see(self, name: str, began_ms: float, failure: str) -> None:
        raise NotImplementedError


class FollowedWriter(_FollowedCalls, DataFrameWriter):
    """A writer of a sink's rows. What went well is in Spark's stores, and not all that raised."""

    def _see(self, name: str, began_ms: float, failure: str) -> None:
        if failure:
            action = Action("tried to write them", True, False, began_ms, _now_ms(), failure)
            self._trail.witness.see(action, self._trail)


class FollowedWriterV2(_FollowedCalls, DataFrameWriterV2):
    """A writer of a sink's rows into a table of a catalog."""

    _see = FollowedWriter._see


class _FollowedRows(_FollowedCalls):
    """An RDD of a sink's rows. Spark's stores say little of it, so what its caller sees is what counts."""

    def mapPartitionsWithIndex(self, f: Any, preservesPartitioning: bool = False) -> RDD[Any]:
        """As the RDD's own, which stands behind all others that take a function."""
        trail = self._trail
        if trail.witness.is_looking:
            plain: RDD[Any] = super().mapPartitionsWithIndex(f, preservesPartitioning)  # type: ignore[misc]
            return plain
        reading, name = _over_partitions(f, trail.witness)
        mapped: Any = super().mapPartitionsWithIndex(reading, preservesPartitioning)  # type: ignore[misc]
        followed: RDD[Any] = follow(mapped, trail.behind(name))
        return followed

    def foreachPartition(self, f: Any) -> None:
        """As the RDD's own; what the function leaves unread is noted for this one action."""
        trail = self._trail
        reading, name = _over_partitions(lambda _, rows: _none(f(rows)), trail.witness)
        began_ms, failure = _now_ms(), ""
        mapped: Any = super().mapPartitionsWithIndex(reading)  # type: ignore[misc]
        try:
            mapped.count()
        except Exception as error:
            failure = gist(error)
            raise
        finally:
            action = Action("ran foreachPartition over them", True, not failure, began_ms, _now_ms(), failure)
            trail.witness.see(action, trail.behind(name))

    def toLocalIterator(self, prefetchPartitions: bool = False) -> Iterator[Any]:
        rows: Any = super().toLocalIterator(prefetchPartitions)  # type: ignore[misc]
        return self._trail.witness.iterate(rows, self._trail)

    def _called(self, method: MethodType, name: str) -> Callable[..., Any]:
        call, tag = super()._called(method, name), JOB_TAG + self._trail.witness.tag

        @wraps(method)
        def tagged(*args: Any, **kwargs: Any) -> Any:
            context: SparkContext = self.ctx
            had_it = tag in context.getJobTags()
            context.addJobTag(tag)
            under_way = self._trail.witness.running(name) if name in _HANDS_ON else nullcontext()
            try:
                with under_way:
                    return call(*args, **kwargs)
            finally:
                if not had_it:
                    context.removeJobTag(tag)

        return tagged if name in _HANDS_ON or name in _LOOKS else call

    def _see(self, name: str, began_ms: float, failure: str) -> None:
        if name in _LOOKS:
            action = Action(_LOOKS[name], False, False, began_ms, _now_ms(), failure)
        elif name in _HANDS_ON and name != "foreachPartition":
            action = Action(f"ran {name} over them", True, not failure, began_ms, _now_ms(), failure)
        else:
            return
        self._trail.witness.see(action, self._trail)


class FollowedRDD(_FollowedRows, RDD[Any]):
    """See :class:`_FollowedRows`."""


class FollowedPipelinedRDD(_FollowedRows, PipelinedRDD[Any, Any]):
    """See :class:`_FollowedRows`."""


_FOLLOWED: dict[type, type] = {
    ClassicFrame: FollowedFrame,
    GroupedData: FollowedGroups,
    DataFrameWriter: FollowedWriter,
    DataFrameWriterV2: FollowedWriterV2,
    RDD: FollowedRDD,
    PipelinedRDD: FollowedPipelinedRDD,
}


def follow(value: Any, trail: Trail) -> Any:
    """``value``, followed when it is a frame, groups, a writer or an RDD of PySpark's: another object, alike."""
    kind = _FOLLOWED.get(type(value))
    if kind is None:
        return value
    # PySpark makes these in a hundred places, each by its own constructor.
    followed: Any = object.__new__(kind)
    vars(followed).update(vars(value), _trail=trail)
    return followed


def _partial(action: Action) -> Action:
    return replace(action, did="read a part", is_whole=False) if action.delivers else action


def _to_its_end(tag: str, number: int, pen: Pen) -> Callable[[int, Iterable[Any]], Iterator[Any]]:
    """Hands rows on, and notes when the last of a partition was asked for."""

    def through(index: int, rows: Iterable[Any]) -> Iterator[Any]:
        rows = iter(rows)
        first = next(rows, _END)
        if first is _END:
            # Whoever takes an empty partition need not even look.
            pen.write("part", tag, rdd=number, index=index, is_empty=True)
            return iter(())
        return rest(index, first, rows)

    def rest(index: int, first: Any, rows: Iterator[Any]) -> Iterator[Any]:
        yield first
        yield from rows
        pen.write("part", tag, rdd=number, index=index)

    return through


def _over_batches(function: Any, witness: Witness) -> Any:
    """The user's function over batches, with a note when it ends before its input does."""
    tag, pen, name = witness.tag, witness.pen, f"{READS}{getattr(function, '__name__', 'function')}_{new_tag()}"

    def reading(batches: Iterable[Any]) -> Iterator[Any]:
        given = iter(batches)
        yield from function(given)
        if any(len(batch) for batch in given):
            pen.write("cut", tag, function=name)

    reading.__name__ = name
    return reading


def _over_partitions(function: Any, witness: Witness) -> tuple[Any, str]:
    """The same for a function over (index, rows) of a partition; and its name in notes."""
    tag, pen, name = witness.tag, witness.pen, READS + new_tag()

    def reading(index: int, rows: Iterable[Any]) -> Iterator[Any]:
        given = iter(rows)
        yield from function(index, given)
        if next(given, _END) is not _END:
            pen.write("cut", tag, function=name)

    return reading, name


def _none(value: Any) -> Iterator[Any]:
    """What a function over a partition gave, read to its end where it can be iterated over; nothing comes of it."""
    if hasattr(value, "__iter__"):
        for _ in value:
            pass
    return iter(())


def _now_ms() -> float:
    return time.time_ns() // 1_000_000
