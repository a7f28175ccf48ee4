"""Following: the frame that a sink is given, and every frame and RDD the user derives from it.

Decides what Spark's own stores do not show: whether a function of the user's has read its rows to the end, and what an
action of an RDD did. Functions over partitions and batches are watched from inside: one that ends before its input does
leaves a note. Actions of RDDs, iterators and writes that raise are watched from outside. What is followed is a frame,
an RDD, a writer like any other, and computes what it would compute unfollowed. Spark gives rows to an operator below a
function of the user's whether they are asked for or not, so the end of input there proves nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import nullcontext
from functools import cached_property, wraps
from types import MethodType
from typing import Any

from pyspark import RDD, SparkContext, StorageLevel
from pyspark.core.rdd import PipelinedRDD
from pyspark.sql import DataFrame, DataFrameWriter, DataFrameWriterV2, GroupedData
from pyspark.sql.classic.dataframe import DataFrame as ClassicFrame

from acker_client.core.gist import gist
from acker_client.spark.core.evidence import Action
from acker_client.spark.driver.columns import into_python
from acker_client.spark.driver.lineage import AGAIN, JOB_TAG, READS, new_tag
from acker_client.spark.evidence.witness import LOOKS, Trail, Witness, now_ms
from acker_client.spark.task import reading
from acker_client.spark.task.chain import renamed

# Actions of RDDs that hand all rows on; what they run reads its input to the end, or leaves a note.
_HANDS_ON = frozenset({
    "collect", "collectAsMap", "collectWithJobGroup", "foreach", "foreachPartition", "saveAsTextFile",
    "saveAsPickleFile", "saveAsHadoopFile", "saveAsHadoopDataset", "saveAsNewAPIHadoopFile",
    "saveAsNewAPIHadoopDataset", "saveAsSequenceFile",
})  # fmt: skip


class _Followed:
    """Everything that this returns is followed too."""

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
        rdd, trail = super().rdd, self._trail.through(analyzed(self))
        if not trail.is_partial:
            rdd = trail.witness.watch(rdd, notes_empty=not trail.functions)
        followed: RDD[Any] = follow(rdd, trail)
        return followed

    def toLocalIterator(self, prefetchPartitions: bool = False) -> Iterator[Any]:
        trail = self._trail.through(analyzed(self))
        return trail.witness.iterate(super().toLocalIterator(prefetchPartitions), trail)

    def mapInArrow(self, func: Any, *args: Any, **kwargs: Any) -> DataFrame:
        return super().mapInArrow(_over_batches(func, self._trail.witness), *args, **kwargs)

    def mapInPandas(self, func: Any, *args: Any, **kwargs: Any) -> DataFrame:
        return super().mapInPandas(_over_batches(func, self._trail.witness), *args, **kwargs)

    def checkpoint(self, eager: bool = True) -> DataFrame:
        return self._checkpointed(lambda: super(FollowedFrame, self).checkpoint(eager))

    def localCheckpoint(self, eager: bool = True, storageLevel: StorageLevel | None = None) -> DataFrame:
        return self._checkpointed(lambda: super(FollowedFrame, self).localCheckpoint(eager, storageLevel))

    def _checkpointed(self, checkpoint: Callable[[], DataFrame]) -> DataFrame:
        """A checkpoint hands nothing on; one that fails is the beginning of a delivery that does."""
        began_ms = now_ms()
        try:
            df = checkpoint()
        except Exception as error:
            action = Action("tried to checkpoint them", True, False, began_ms, now_ms(), gist(error))
            self._trail.witness.see(action, self._trail)
            raise
        return self._again(df)

    def _again(self, df: DataFrame) -> DataFrame:
        """``df``, whose plan has lost where its rows come from, under the names by which its executions are known: of
        the sink, and of the functions of the user's that the rows have gone through."""
        trail = self._trail.through(analyzed(self))
        if trail.is_partial:
            partial: DataFrame = follow(df, trail)
            return partial
        schema = df.schema
        df, names = into_python(df)
        for function in (AGAIN + trail.witness.tag, *sorted(trail.functions)):
            df, names = df.mapInArrow(_passing(function, names), schema), ()
        return df


def _passing(name: str, names: tuple[str, ...]) -> Callable[[Iterable[Any]], Iterator[Any]]:
    """Hands batches on, under ``name`` in a plan; ``names``: to give back to their columns."""

    def through(batches: Iterable[Any]) -> Iterator[Any]:
        return (renamed(batch, names) for batch in batches)

    through.__name__ = name
    return through


class FollowedGroups(_Followed, GroupedData):
    """Groups of a sink's rows."""


class _FollowedCalls(_Followed):
    """Calls on it are seen where they hand rows on, or fail to."""

    def _called(self, method: MethodType, name: str) -> Callable[..., Any]:
        trail = self._trail
        call = super()._called(method, name)

        @wraps(method)
        def seen(*args: Any, **kwargs: Any) -> Any:
            began_ms = now_ms()
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
            action = Action("tried to write them", True, False, began_ms, now_ms(), failure)
            self._trail.witness.see(action, self._trail)


class FollowedWriterV2(_FollowedCalls, DataFrameWriterV2):
    """A writer of a sink's rows into a table of a catalog."""

    _see = FollowedWriter._see


class _FollowedRows(_FollowedCalls):
    """An RDD of a sink's rows. Spark's stores say little about it, so what its caller sees is what counts."""

    def mapPartitionsWithIndex(self, f: Any, preservesPartitioning: bool = False) -> RDD[Any]:
        """As the RDD's own, which stands behind all others that take a function."""
        trail = self._trail
        if trail.witness.is_looking:
            plain: RDD[Any] = super().mapPartitionsWithIndex(f, preservesPartitioning)  # type: ignore[misc]
            return plain
        watched, name = _over_partitions(f, trail.witness)
        mapped: Any = super().mapPartitionsWithIndex(watched, preservesPartitioning)  # type: ignore[misc]
        followed: RDD[Any] = follow(mapped, trail.behind(name))
        return followed

    def foreachPartition(self, f: Any) -> None:
        """As the RDD's own; what the function leaves unread is noted for this one action."""
        trail = self._trail
        watched, name = _over_partitions(lambda _, rows: reading.exhausted(f(rows)), trail.witness)
        began_ms, failure = now_ms(), ""
        mapped: Any = super().mapPartitionsWithIndex(watched)  # type: ignore[misc]
        try:
            mapped.count()
        except Exception as error:
            failure = gist(error)
            raise
        finally:
            action = Action("ran foreachPartition over them", True, not failure, began_ms, now_ms(), failure)
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

        return tagged if name in _HANDS_ON or name in LOOKS else call

    def _see(self, name: str, began_ms: float, failure: str) -> None:
        if name in LOOKS:
            action = Action(LOOKS[name], False, False, began_ms, now_ms(), failure)
        elif name in _HANDS_ON and name != "foreachPartition":
            action = Action(f"ran {name} over them", True, not failure, began_ms, now_ms(), failure)
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
    return remade(kind, value, _trail=trail)


def remade(kind: type, value: Any, **attributes: Any) -> Any:
    """An object of ``kind`` with what ``value`` has, and these attributes besides."""
    made: Any = object.__new__(kind)
    vars(made).update(vars(value), **attributes)
    return made


def analyzed(df: DataFrame) -> str:
    """The analysed plan of a frame, as text."""
    return str(df._jdf.queryExecution().analyzed().treeString())


def _over_batches(function: Any, witness: Witness) -> Any:
    """The user's function over batches, with a note when it ends before its input does."""
    name = f"{READS}{getattr(function, '__name__', 'function')}_{new_tag()}"
    return reading.over_batches(function, name, witness.tag, witness.note_writer)


def _over_partitions(function: Any, witness: Witness) -> tuple[Any, str]:
    """The same for a function over (index, rows) of a partition; and its name in notes."""
    name = READS + new_tag()
    return reading.over_partitions(function, name, witness.tag, witness.note_writer), name
