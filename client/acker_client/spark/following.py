"""Following: the frame that a sink is given, and every frame the user derives from it.

Decides what Spark's own stores cannot tell: whether a function of the user's has read its rows to the end. The ends of
a frame that lead into Python (``rdd``, ``foreach``, ``foreachPartition``, ``mapInArrow``, ``mapInPandas``,
``toLocalIterator``) are watched from inside, and the writes that raise from outside. A followed frame is a DataFrame
like any other, and what it computes is what it would compute unfollowed. Spark gives rows to an operator below such a
function whether they are asked for or not, so the end of input there proves nothing.
"""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Callable, Collection, Iterable, Iterator
from functools import cached_property, wraps
from types import MethodType
from typing import Any

from pyspark import RDD, StorageLevel
from pyspark.sql import DataFrame, DataFrameWriter, DataFrameWriterV2, GroupedData
from pyspark.sql.classic.dataframe import DataFrame as ClassicFrame

from acker_client.gist import gist
from acker_client.spark.evidence import Action
from acker_client.spark.lineage import new_tag
from acker_client.spark.notes import Pen
from acker_client.spark.stage import into_python, renamed

# By these the functions of the user's that are watched are known in a plan, and what was checkpointed.
READS = "acker_reads_"
AGAIN = "acker_again_"

_CUTS = re.compile(r"^[\s:+|-]*(GlobalLimit|LocalLimit|Limit|Tail|Offset|CollectLimit)\b", re.MULTILINE)
_UNWATCHED = re.compile(r"^[\s:+|-]*MapIn(?:Arrow|Pandas) (?!acker_)", re.MULTILINE)
_END = object()


class Witness:
    """What is seen from the client of one run of a sink. ``tag``: of its stage. Thread-safe."""

    def __init__(self, tag: str, pen: Pen) -> None:
        self.tag = tag
        self.pen = pen
        self._lock = threading.Lock()
        self._rdds: list[tuple[RDD[Any], str]] = []
        self._actions: list[Action] = []

    def actions(self) -> list[Action]:
        """What the client's own calls have shown: iterators, and writes that raised."""
        with self._lock:
            return list(self._actions)

    def partitions(self, cut: Collection[str]) -> dict[tuple[str, int], int]:
        """How many partitions each watched RDD has, by (tag, number in notes); without those that stand behind one of
        the functions ``cut``, which have left rows unread."""
        with self._lock:
            rdds = list(enumerate(self._rdds))
        whole = [(number, rdd) for number, (rdd, plan) in rdds if not any(function in plan for function in cut)]
        return {(self.tag, number): rdd.getNumPartitions() for number, rdd in whole}

    def watch(self, rdd: RDD[Any], plan: str) -> RDD[Any]:
        """The same RDD, with a note for each of its partitions that is read to its end. ``plan``: it comes from."""
        with self._lock:
            number = len(self._rdds)
            self._rdds.append((rdd, plan))
        return rdd.mapPartitionsWithIndex(_to_its_end(self.tag, number, self.pen), preservesPartitioning=True)

    def iterate(self, rows: Iterator[Any], is_whole: bool) -> Iterator[Any]:
        """The same rows; that they were read to the end, or raised, is seen."""
        began_ms = _now_ms()
        try:
            yield from rows
        except Exception as error:
            self.raised("iterated over them", began_ms, error)
            raise
        self._note(Action("iterated over them" if is_whole else "read a part", True, is_whole, began_ms, _now_ms()))

    def raised(self, did: str, began_ms: float, error: Exception) -> None:
        """Something that delivers has raised."""
        self._note(Action(did, True, False, began_ms, _now_ms(), gist(error)))

    def _note(self, action: Action) -> None:
        with self._lock:
            self._actions.append(action)


class _Followed:
    """Whatever this gives is followed too."""

    _witness: Witness

    def __getattribute__(self, name: str) -> Any:
        value = super().__getattribute__(name)
        if name.startswith("_"):
            return value
        return _following(value, self._witness) if isinstance(value, MethodType) else follow(value, self._witness)


class FollowedFrame(_Followed, ClassicFrame):
    """A frame of a sink's rows."""

    @cached_property
    def rdd(self) -> RDD[Any]:
        rdd, plan = super().rdd, self._plan()
        # What stands behind a limit is not all rows, however far it is read.
        return rdd if _is_cut(plan) else self._witness.watch(rdd, plan)

    def toLocalIterator(self, prefetchPartitions: bool = False) -> Iterator[Any]:
        is_whole = not _is_cut(self._plan())
        return self._witness.iterate(super().toLocalIterator(prefetchPartitions), is_whole)

    def mapInArrow(self, func: Any, *args: Any, **kwargs: Any) -> DataFrame:
        return super().mapInArrow(_reading(func, self._witness), *args, **kwargs)

    def mapInPandas(self, func: Any, *args: Any, **kwargs: Any) -> DataFrame:
        return super().mapInPandas(_reading(func, self._witness), *args, **kwargs)

    def checkpoint(self, eager: bool = True) -> DataFrame:
        return self._again(super().checkpoint(eager))

    def localCheckpoint(self, eager: bool = True, storageLevel: StorageLevel | None = None) -> DataFrame:
        return self._again(super().localCheckpoint(eager, storageLevel))

    def _again(self, df: DataFrame) -> DataFrame:
        """``df``, whose plan has lost where its rows come from, under a name by which its executions are known."""
        plan = self._plan()
        if READS in plan or _is_cut(plan):
            return df

        base, names = into_python(df)

        def through(batches: Iterable[Any]) -> Iterator[Any]:
            return (renamed(batch, names) for batch in batches)

        through.__name__ = AGAIN + self._witness.tag
        return base.mapInArrow(through, df.schema)

    def _plan(self) -> str:
        return str(self._jdf.queryExecution().analyzed().treeString())


class FollowedGroups(_Followed, GroupedData):
    """Groups of a sink's rows."""


class FollowedWriter(_Followed, DataFrameWriter):
    """A writer of a sink's rows."""


class FollowedWriterV2(_Followed, DataFrameWriterV2):
    """A writer of a sink's rows into a table of a catalog."""


_FOLLOWED: dict[type, type] = {
    ClassicFrame: FollowedFrame,
    GroupedData: FollowedGroups,
    DataFrameWriter: FollowedWriter,
    DataFrameWriterV2: FollowedWriterV2,
}


def follow(value: Any, witness: Witness) -> Any:
    """``value`` itself, followed when it is a frame, groups or a writer of PySpark's."""
    followed = _FOLLOWED.get(type(value))
    if followed is not None:
        # PySpark makes these in a hundred places, each by its own constructor.
        value._witness = witness
        value.__class__ = followed
    return value


def _following(method: MethodType, witness: Witness) -> Callable[..., Any]:
    @wraps(method)
    def call(*args: Any, **kwargs: Any) -> Any:
        began_ms = _now_ms()
        try:
            value = method(*args, **kwargs)
        except Exception as error:
            if isinstance(method.__self__, (DataFrameWriter, DataFrameWriterV2)):
                witness.raised("tried to write them", began_ms, error)
            raise
        return follow(value, witness)

    return call


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


def _reading(function: Any, witness: Witness) -> Any:
    """The user's function over batches, with a note when it ends before its input does."""
    tag, pen, name = witness.tag, witness.pen, f"{READS}{getattr(function, '__name__', 'function')}_{new_tag()}"

    def reading(batches: Iterable[Any]) -> Iterator[Any]:
        given = iter(batches)
        yield from function(given)
        if any(len(batch) for batch in given):
            pen.write("cut", tag, function=name)

    reading.__name__ = name
    return reading


def _is_cut(plan: str) -> bool:
    """Whether a limit stands in a plan, or a function over batches that nobody watches."""
    return bool(_CUTS.search(plan) or _UNWATCHED.search(plan))


def _now_ms() -> float:
    return time.time_ns() // 1_000_000
