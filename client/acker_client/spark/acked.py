"""Acked: the frames of a loop's body, and what is seen there of rows that ``ack()`` acks.

Decides that a tracked frame, and every frame the user derives from it, looks at its plan when it leaves SQL: as an RDD,
as an iterator, through a function over batches. Where ``ack()`` stands in the plan, what comes is followed as a sink's
rows are (``following``), and the records of the batches whose rows it acks hear of it. Where such rows were evaluated
more than once, the frame that ``ack()`` makes is cached. All else is Spark's own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cached_property, wraps
from types import MethodType
from typing import Any

from pyspark import RDD
from pyspark.sql import DataFrame
from pyspark.sql.classic.dataframe import DataFrame as ClassicFrame

from acker_client.spark import lineage
from acker_client.spark.following import Trail, Witness, follow
from acker_client.spark.lineage import ACK
from acker_client.spark.notes import notebook_of


class BodyFrame(ClassicFrame):
    """A tracked frame in a body, or one derived from it."""

    def __getattribute__(self, name: str) -> Any:
        value = super().__getattribute__(name)
        return value if name.startswith("_") or not isinstance(value, MethodType) else _giving_body_frames(self, value)

    @cached_property
    def rdd(self) -> RDD[Any]:
        return self._leaving().rdd

    def toLocalIterator(self, prefetchPartitions: bool = False) -> Iterator[Any]:
        return self._leaving().toLocalIterator(prefetchPartitions)

    def mapInArrow(self, func: Any, *args: Any, **kwargs: Any) -> DataFrame:
        return self._leaving().mapInArrow(func, *args, **kwargs)

    def mapInPandas(self, func: Any, *args: Any, **kwargs: Any) -> DataFrame:
        return self._leaving().mapInPandas(func, *args, **kwargs)

    def _leaving(self) -> DataFrame:
        """This frame as it leaves SQL: followed where ``ack()`` stands in its plan."""
        df, text = plain(self), _plan(self)
        if ACK not in text:
            return df
        followed: DataFrame = follow(df, Trail(_witness(self, text)))
        return followed


def of_body(df: DataFrame, record: Any) -> DataFrame:
    """``df``, a frame of Spark's own, as a body's; ``record``: of its batch, or of one of them."""
    body: DataFrame = _made(BodyFrame, df)
    vars(body)["_acker_record"] = record
    return body


def plain(df: DataFrame) -> DataFrame:
    """``df`` as Spark's own frame, when it is a body's."""
    frame: DataFrame = _made(ClassicFrame, df) if type(df) is BodyFrame else df
    return frame


def _made(kind: type, df: DataFrame) -> Any:
    made: Any = object.__new__(kind)
    vars(made).update(vars(df))
    return made


def _giving_body_frames(df: BodyFrame, method: MethodType) -> Callable[..., Any]:
    """``method`` of ``df``; a frame that it gives is a body's too."""

    @wraps(method)
    def call(*args: Any, **kwargs: Any) -> Any:
        value = method(*args, **kwargs)
        if type(value) is not ClassicFrame:
            return value
        record = vars(df)["_acker_record"]
        given = of_body(value, record)
        if record.keeps_acked and ACK in _plan(given) and ACK not in _plan(df):
            record.keep_cached(given)
        return given

    return call


def _plan(df: DataFrame) -> str:
    return str(df._jdf.queryExecution().analyzed().treeString())


def _witness(df: DataFrame, text: str) -> Witness:
    """Who sees what is done with the rows of a plan with this text; the records of its batches know it from now on."""
    acked = [node for node in lineage.known() if node.function in text]
    records: Any = {id(record): record for node in acked for record in node.records}
    notebook = notebook_of(df.sparkSession.sparkContext)
    node = lineage.register("acks", "ack", *records.values())
    notebook.keep(node.tag)
    witness = Witness(node.tag, notebook.pen)
    for record in records.values():
        record.see_acks([each.function for each in acked], witness)
    return witness
