"""Following: the frame that a sink is given, and every frame and RDD the user derives from it.

Decides what Spark's own stores do not show: whether a user's function has read its rows to the end, what an RDD action
did, and which writes deliver the same rows to the same place. Functions over partitions and batches are watched from
inside: a function that stops before the end of its input leaves a note. RDD actions, iterators and writes are watched
from outside. A followed frame, RDD or writer behaves like any other and computes the same. Spark passes rows to an
operator below a user's function even if the function asks for none, so reaching the end of input there proves nothing.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import cached_property, wraps
from types import FunctionType, MethodType
from typing import Any, get_type_hints

from pyspark import RDD, StorageLevel
from pyspark.core.rdd import PipelinedRDD
from pyspark.sql import Column, DataFrame, DataFrameWriter, DataFrameWriterV2, GroupedData, SparkSession
from pyspark.sql.classic.dataframe import DataFrame as ClassicFrame
from pyspark.sql.merge import MergeIntoWriter

from acker_client.spark import compat
from acker_client.spark.commit_evidence import turns
from acker_client.spark.commit_evidence.evidence import Action, Target
from acker_client.spark.commit_evidence.witness import LOOKS, Trail, Witness, digest, frame_step, names_step, now_ms
from acker_client.spark.driver.columns import into_python
from acker_client.spark.driver.lineage import AGAIN, PART, READS, new_tag
from acker_client.spark.worker import reading
from acker_client.spark.worker.chain import renamed

# RDD actions that deliver all rows. The functions that they run read their input to the end, or leave a note.
_COLLECTS = frozenset({"collect", "collectAsMap", "collectWithJobGroup"})
_HANDS_ON = _COLLECTS | {
    "foreach", "foreachPartition", "saveAsTextFile", "saveAsPickleFile", "saveAsHadoopFile", "saveAsHadoopDataset",
    "saveAsNewAPIHadoopFile", "saveAsNewAPIHadoopDataset", "saveAsSequenceFile",
}  # fmt: skip
# Actions of frames that hand all rows to the driver.
_COLLECTS_FRAMES = frozenset({"collect", "toArrow", "toPandas"})
# RDD methods that make one row from several rows, or make one RDD from several RDDs and drop some rows.
_GROUPS = frozenset({
    "aggregateByKey", "cogroup", "combineByKey", "distinct", "foldByKey", "groupBy", "groupByKey", "groupWith",
    "intersection", "reduceByKey", "subtract", "subtractByKey",
})  # fmt: skip
# Writer methods that write; all others only configure the write.
_WRITES = frozenset({
    "append", "create", "createOrReplace", "csv", "insertInto", "jdbc", "json", "merge", "orc", "overwrite",
    "overwritePartitions", "parquet", "replace", "save", "saveAsTable", "text", "xml",
})  # fmt: skip
# Writer methods whose first argument is the name of a table.
_INTO_TABLES = frozenset({"insertInto", "saveAsTable"})

# PySpark's own method, because `others` replaces it while a sink runs.
_map_in_arrow: Any = ClassicFrame.mapInArrow


class _Followed:
    """Follows everything that its attributes and methods return."""

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
        return self._rows(super().rdd, "rdd")

    def _called(self, method: MethodType, name: str) -> Callable[..., Any]:
        call = super()._called(method, name)
        if name not in _COLLECTS_FRAMES:
            return call

        @wraps(method)
        def collect(*args: Any, **kwargs: Any) -> Any:
            began_ms, trail = now_ms(), self._trail
            with trail.witness.calling(name) as is_users:
                value = call(*args, **kwargs)
            if is_users:
                trail.witness.record_return(self, "collected them", began_ms, Target.unlike(name), trail, collects=True)
            return value

        return collect

    def toJSON(self, use_unicode: bool = True) -> Any:
        made: Any = super().toJSON(use_unicode)
        return self._rows(made, "toJSON") if isinstance(made, RDD) else made

    def _rows(self, rdd: RDD[Any], step: str) -> RDD[Any]:
        """Follow ``rdd``, which ``step`` made from this frame."""
        trail = self._trail.through(self)
        trail.witness.has_rdds = True
        if not trail.unread:
            rdd = trail.witness.watch_rdd(rdd, notes_empty=not trail.functions)
        followed: RDD[Any] = follow(rdd, trail.after(step, frame_step(self)))
        return followed

    def toLocalIterator(self, prefetchPartitions: bool = False) -> Iterator[Any]:
        trail = self._trail.through(self).after(frame_step(self))
        make = super().toLocalIterator
        return trail.witness.iterate(lambda: make(prefetchPartitions), trail)

    def writeTo(self, table: str) -> DataFrameWriterV2:
        made: DataFrameWriterV2 = self._writer(super().writeTo, table)
        return made

    def mergeInto(self, table: str, condition: Column) -> MergeIntoWriter:
        made: MergeIntoWriter = self._writer(super().mergeInto, table, condition)
        return made

    def _writer(self, make: Callable[..., Any], table: str, *args: Any) -> Any:
        """Make a followed writer into a table of a catalog. If making the writer raises, this counts as a failed
        write."""
        began_ms = now_ms()
        try:
            writer = follow(make(table, *args), self._trail)
        except Exception as error:
            target = Target.unlike(f"the table {table}")
            self._trail.witness.record_failure("tried to write them", began_ms, error, self._trail, target)
            raise
        writer._table, writer._df = table, self
        return writer

    def mapInArrow(self, func: Any, *args: Any, **kwargs: Any) -> DataFrame:
        return super().mapInArrow(_over_batches(func, self._trail.witness), *args, **kwargs)

    def mapInPandas(self, func: Any, *args: Any, **kwargs: Any) -> DataFrame:
        return super().mapInPandas(_over_batches(func, self._trail.witness), *args, **kwargs)

    def checkpoint(self, eager: bool = True) -> DataFrame:
        return self._checkpointed(lambda: super(FollowedFrame, self).checkpoint(eager))

    def localCheckpoint(self, eager: bool = True, storageLevel: StorageLevel | None = None) -> DataFrame:
        return self._checkpointed(lambda: super(FollowedFrame, self).localCheckpoint(eager, storageLevel))

    def createTempView(self, name: str) -> None:
        self._name_view(super().createTempView, name, self.sparkSession)

    def createOrReplaceTempView(self, name: str) -> None:
        self._name_view(super().createOrReplaceTempView, name, self.sparkSession)

    def registerTempTable(self, name: str) -> None:
        self._name_view(super().registerTempTable, name, self.sparkSession)

    def createGlobalTempView(self, name: str) -> None:
        self._name_view(super().createGlobalTempView, name)

    def createOrReplaceGlobalTempView(self, name: str) -> None:
        self._name_view(super().createOrReplaceGlobalTempView, name)

    def _name_view(self, create: Callable[[str], None], name: str, session: SparkSession | None = None) -> None:
        create(name)
        witness, name = self._trail.witness, name.replace("`", "").lower()
        witness.views[name] = frame_step(self)
        witness.view_sessions.pop(name, None)
        if session is not None:
            witness.view_sessions[name] = session

    def _checkpointed(self, checkpoint: Callable[[], DataFrame]) -> DataFrame:
        """Make a checkpoint, which delivers nothing. A failed checkpoint counts as a failed delivery, because the
        user's purpose with it is unknown."""
        began_ms, witness, target = now_ms(), self._trail.witness, self._trail.target("a checkpoint", frame_step(self))
        try:
            df = checkpoint()
        except Exception as error:
            witness.record_failure("tried to checkpoint them", began_ms, error, self._trail, target)
            raise
        return self._marked_again(df)

    def _marked_again(self, df: DataFrame) -> DataFrame:
        """Return ``df`` with functions that pass rows through. Their names mark the rows in a plan as the sink's.

        The checkpoint has removed the earlier marks from the plan. One function stands for the sink, and the others
        stand for the user's functions between the sink's frame and the checkpoint. Another one marks rows that may be
        only a part.
        """
        trail = self._trail.through(self)
        schema = df.schema
        df, names = into_python(df)
        marks = [AGAIN + trail.witness.tag, *sorted(trail.functions)]
        if trail.unread:
            marks.append(PART + trail.witness.tag if trail.is_limited else "checkpoint_of_a_part")
        for function in marks:
            df, names = _map_in_arrow(df, _passing(function, names), schema), ()
        return df


def _passing(name: str, names: tuple[str, ...]) -> Callable[[Iterable[Any]], Iterator[Any]]:
    """Return a function that passes batches through, with ``name`` in a plan. ``names``: the columns' own names."""

    def through(batches: Iterable[Any]) -> Iterator[Any]:
        return (renamed(batch, names) for batch in batches)

    through.__name__ = name
    return through


class FollowedGroups(_Followed, GroupedData):
    """Groups of a sink's rows."""

    def applyInPandas(self, func: Any, schema: Any) -> DataFrame:
        return super().applyInPandas(_over_groups(func), schema)

    def applyInArrow(self, func: Any, schema: Any) -> DataFrame:
        return super().applyInArrow(_over_groups(func), schema)


class _FollowedWrites(_Followed):
    """A writer of a sink's rows. Spark's stores show every write that succeeded, but not every write that raised."""

    # The catalog table that the writer was made for; "" if there is none.
    _table = ""

    # The path that the writer was given; "" if none was.
    _path = ""

    @cached_property
    def _given(self) -> list[str]:
        """The calls that configured how and where to write, except ``mode``."""
        return []

    def _called(self, method: MethodType, name: str) -> Callable[..., Any]:
        witness = self._trail.witness

        @wraps(method)
        def call(*args: Any, **kwargs: Any) -> Any:
            with witness.calling(name) as is_users:
                if is_users and name in _WRITES:
                    return self._write(method, name, args, kwargs)
                if is_users and name in ("option", "options"):
                    self._path = str(_path_among(args, kwargs) or self._path)
                if is_users and name != "mode":
                    self._given.append(repr((name, args, sorted(kwargs.items()))))
                return method(*args, **kwargs)

        return call

    def _write(self, method: MethodType, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        began_ms, trail, df = now_ms(), self._trail, self._df
        target = self._target(name, args, kwargs, df)
        try:
            with (
                turns.turn(self._place(name, args, kwargs), trail.witness.waits),
                trail.witness.delivering(df.sparkSession.sparkContext, target) as call,
            ):
                value = method(*args, **kwargs)
        except Exception as error:
            trail.witness.record_failure("tried to write them", began_ms, error, trail, target)
            raise
        trail.witness.record_return(df, "wrote them", began_ms, target, trail)
        trail.witness.record_write(call, df, began_ms, target, trail)
        return value

    def _place(self, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> str:
        """Return the place into which a call writes; "" if it is neither a path nor a table of a catalog."""
        if self._table or name in _INTO_TABLES:
            named = kwargs.get("name", kwargs.get("tableName", ""))
            return turns.table(str(self._table or (args[0] if args else named)))
        path = args[0] if args and name != "jdbc" else kwargs.get("path", self._path)
        return turns.folder(str(path)) if path else ""

    def _target(self, name: str, args: tuple[Any, ...], kwargs: dict[str, Any], df: DataFrame) -> Target:
        given = repr((args, {key: value for key, value in kwargs.items() if key != "mode"}))
        named = [kwargs[key] for key in ("path", "name", "tableName", "table") if key in kwargs]
        # Leave out a JDBC URL, which may hold a password.
        place = (args[1:2] or named[:1]) if name == "jdbc" else (args[:1] or named[:1] or [self._table])
        what = (names_step(df.sparkSession), given, self._table, *self._given)
        return self._trail.target(" ".join([name, *map(str, place)]).strip(), name, what, frame_step(df))


class FollowedWriter(_FollowedWrites, DataFrameWriter):
    """See :class:`_FollowedWrites`."""


class FollowedWriterV2(_FollowedWrites, DataFrameWriterV2):
    """A writer of a sink's rows into a table of a catalog; see :class:`_FollowedWrites`."""


class FollowedMerge(_FollowedWrites, MergeIntoWriter):
    """A merge of a sink's rows into a table; see :class:`_FollowedWrites`."""

    def _target(self, name: str, args: tuple[Any, ...], kwargs: dict[str, Any], df: DataFrame) -> Target:
        # Two merges cannot be compared: the objects that say what becomes of the rows are not followed.
        return Target.unlike(f"{name} into {self._table}")


class _FollowedRows(_Followed):
    """An RDD of a sink's rows. Spark's stores say little about an RDD, so the caller's own observations count."""

    def mapPartitionsWithIndex(self, f: Any, preservesPartitioning: bool = False) -> RDD[Any]:
        """Do the same as the RDD's own method, and watch ``f``. All the RDD's other methods with a function are built
        on this method."""
        trail = self._trail
        if trail.witness.is_looking:
            plain: RDD[Any] = super().mapPartitionsWithIndex(f, preservesPartitioning)  # type: ignore[misc]
            return plain
        watched, name = _over_partitions(f, trail.witness)
        mapped: Any = super().mapPartitionsWithIndex(watched, preservesPartitioning)  # type: ignore[misc]
        followed: RDD[Any] = follow(mapped, trail.behind(name).after(digest(f)))
        return followed

    def foreachPartition(self, f: Any) -> None:
        """Do the same as the RDD's own method. If ``f`` leaves rows unread, this counts for this action only."""
        watched, name = _over_partitions(lambda _, rows: reading.exhausted(f(rows)), self._trail.witness)
        mapped: Any = super().mapPartitionsWithIndex(watched)  # type: ignore[misc]
        trail, target = self._trail.behind(name), self._trail.target("foreachPartition", digest(f))
        began_ms, did = now_ms(), "ran foreachPartition over them"
        try:
            mapped.count()
        except Exception as error:
            trail.witness.record_failure(did, began_ms, error, trail, target)
            raise
        trail.witness.record(Action(did, True, True, began_ms, now_ms(), "", target), trail)

    def pipe(self, *args: Any, **kwargs: Any) -> RDD[Any]:
        piped: Any = super().pipe(*args, **kwargs)  # type: ignore[misc]
        # Nothing shows whether the command ended early, or left some of its input unread.
        piped._trail = piped._trail.leaving_unread("piped them into a command, which need not have read them all")
        made: RDD[Any] = piped
        return made

    def _to_java_object_rdd(self) -> Any:
        # PySpark makes a frame of this RDD.
        if self._trail.unread:
            self._trail.witness.unread = self._trail.unread
        return super()._to_java_object_rdd()  # type: ignore[misc]

    def toLocalIterator(self, prefetchPartitions: bool = False) -> Iterator[Any]:
        make = super().toLocalIterator  # type: ignore[misc]
        return self._trail.witness.iterate(lambda: make(prefetchPartitions), self._trail)

    def _called(self, method: MethodType, name: str) -> Callable[..., Any]:
        trail = self._trail

        @wraps(method)
        def call(*args: Any, **kwargs: Any) -> Any:
            if name in LOOKS:
                return self._look(method, name, args, kwargs)
            if name in _HANDS_ON:
                return self._hand_on(method, name, args, kwargs)
            with trail.witness.recording_failure(f"ran {name} over them", name, trail):
                value = method(*args, **kwargs)
            is_rdd = type(value) in (RDD, PipelinedRDD)
            behind = trail.beside(_trails([*args, *kwargs.values()]))
            made = follow(value, behind.after(name, digest(_plain([args, kwargs]))) if is_rdd else trail)
            if name in _GROUPS:
                made._trail = replace(made._trail, aggregates=True)
            return made

        return call

    def _look(self, method: MethodType, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        began_ms, trail, witness = now_ms(), self._trail, self._trail.witness
        with witness.recording_failure(LOOKS[name], name, trail) as is_users, witness.tagging_jobs(self.ctx):
            value = method(*args, **kwargs)
        if is_users:
            witness.record(Action(LOOKS[name], False, False, began_ms, now_ms()), trail)
        return value

    def _hand_on(self, method: MethodType, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        began_ms, trail, did = now_ms(), self._trail, f"ran {name} over them"
        delivers = not (trail.aggregates and name in _COLLECTS)
        target = trail.target(
            " ".join([name, *(arg for arg in args if isinstance(arg, str))]), name, digest((args, kwargs))
        )
        with trail.witness.calling(name) as is_users, trail.witness.tagging_jobs(self.ctx), trail.witness.running(name):
            try:
                value = method(*args, **kwargs)
            except Exception as error:
                if is_users and name != "foreachPartition":
                    trail.witness.record_failure(did, began_ms, error, trail, target, delivers=delivers)
                raise
        if is_users and name != "foreachPartition":
            trail.witness.record(Action(did, delivers, True, began_ms, now_ms(), "", target), trail)
        return value


class FollowedRDD(_FollowedRows, RDD[Any]):
    """See :class:`_FollowedRows`."""


class FollowedPipelinedRDD(_FollowedRows, PipelinedRDD[Any, Any]):
    """See :class:`_FollowedRows`."""


_FOLLOWED: dict[type, type] = {
    ClassicFrame: FollowedFrame,
    GroupedData: FollowedGroups,
    DataFrameWriter: FollowedWriter,
    DataFrameWriterV2: FollowedWriterV2,
    MergeIntoWriter: FollowedMerge,
    RDD: FollowedRDD,
    PipelinedRDD: FollowedPipelinedRDD,
}


def follow(value: Any, trail: Trail) -> Any:
    """Return a followed copy of ``value`` if it is PySpark's frame, groups, writer or RDD, else ``value`` itself."""
    kind = _FOLLOWED.get(type(value))
    if kind is None:
        return value
    # Copies the object instead of constructing it: PySpark makes such objects in many places, with different
    # constructors.
    return remade(kind, value, _trail=trail)


def follow_rows(made: Any, data: Sequence[object], name: str) -> Any:
    """Return ``made``, followed if ``data`` holds a followed RDD. ``name``: the call that made it, for the trail."""
    trails = list(_trails(data))
    return follow(made, trails[0].beside(trails[1:]).after(name, digest(_plain(data)))) if trails else made


def _plain(given: Any) -> Any:
    """Return ``given`` without the followed RDDs in it: their trails already identify them."""
    if isinstance(given, _FollowedRows):
        return ()
    if isinstance(given, list | tuple):
        return [_plain(each) for each in given]
    return {key: _plain(value) for key, value in given.items()} if isinstance(given, dict) else given


def _trails(given: Iterable[object]) -> Iterator[Trail]:
    """Yield the trails of the followed RDDs in ``given``, and in lists and tuples in it."""
    for each in given:
        if isinstance(each, _FollowedRows):
            yield each._trail
        elif isinstance(each, list | tuple):
            yield from _trails(each)


def _path_among(args: tuple[Any, ...], kwargs: dict[str, Any]) -> object:
    """Return the value of the option ``path`` in a call of ``option`` or ``options``; None if it is not there."""
    if "path" in (*args[:1], kwargs.get("key")):
        return args[1] if args[1:] else kwargs.get("value")
    return kwargs.get("path")


def record_unplaced(writer: DataFrameWriter, error: Exception, name: str, *args: Any) -> None:
    """Record a failed write: ``writer`` wrote by the call ``name``, but ``error`` kept the output from being moved to
    its place."""
    if isinstance(writer, FollowedWriter):
        trail, target = writer._trail, writer._target(name, args, {}, writer._df)
        trail.witness.record_failure("tried to write them", now_ms(), error, trail, target)


def remade(kind: type, value: Any, **attributes: Any) -> Any:
    """Return an object of ``kind`` with the attributes of ``value`` and the given ones."""
    made: Any = object.__new__(kind)
    vars(made).update(vars(value), **attributes)
    return made


def analyzed(df: DataFrame) -> str:
    """Return the analysed plan of a frame, as text."""
    return compat.plan_text(df._jdf.queryExecution().analyzed())


def _over_batches(function: Any, witness: Witness) -> Any:
    """Wrap the user's function over batches, so that it leaves a note if it ends before its input does."""
    return reading.over_batches(function, _name(function), witness.tag, witness.note_writer)


def _over_partitions(function: Any, witness: Witness) -> tuple[Any, str]:
    """Wrap a function over (index, rows) of a partition, as :func:`_over_batches` does. Return the wrapped function,
    and its name in notes."""
    name = READS + new_tag()
    return reading.over_partitions(function, name, witness.tag, witness.note_writer), name


def _over_groups(function: Any) -> Any:
    """Return the user's function under a name that marks it as a function over whole groups. A function over an
    iterator of parts is returned unchanged, since it need not read to the end."""
    if not isinstance(function, FunctionType) or _may_iterate(function):
        return function
    # PySpark counts the function's arguments, so the function must not be wrapped.
    made = FunctionType(
        function.__code__, function.__globals__, _name(function), function.__defaults__, function.__closure__
    )
    made.__annotations__, made.__kwdefaults__ = function.__annotations__, function.__kwdefaults__
    return made


def _may_iterate(function: FunctionType) -> bool:
    """Whether PySpark gives the function an iterator because of its annotations; True if they cannot be resolved."""
    try:
        hints = get_type_hints(function)
    except Exception:  # noqa: BLE001  # annotations may raise anything
        return True
    return any("Iterator" in str(hint) for hint in hints.values())


def _name(function: Any) -> str:
    """Return the name that marks a user's function in a plan; equal for equal functions."""
    name = re.sub(r"\W", "_", str(getattr(function, "__name__", "function")))
    return f"{READS}{name}_{digest(function)}"
