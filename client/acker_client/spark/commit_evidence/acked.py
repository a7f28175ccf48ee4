"""Acked: the frames of a loop's body, and what is seen there of rows that ``ack()`` acks.

Decides that a tracked frame, and every frame the user derives from it, knows when an ``ack()`` column enters it: the
batches whose rows it acks hear of it, and where such rows were evaluated more than once, the frame is
cached. When it is written or leaves SQL (as an RDD, an iterator, a checkpoint, through a function over batches), what
comes is followed as a sink's rows are (``following``). All else is Spark's own.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property, wraps
from types import MethodType
from typing import Any

from pyspark import RDD, StorageLevel
from pyspark.sql import Column, DataFrame, DataFrameWriter, DataFrameWriterV2
from pyspark.sql.classic.dataframe import DataFrame as ClassicFrame

from acker_client.spark.commit_evidence.following import analyzed, follow, remade
from acker_client.spark.commit_evidence.witness import Trail, Witness
from acker_client.spark.driver import lineage
from acker_client.spark.driver.lineage import ACK, AGAIN
from acker_client.spark.worker.notes import note_store_of

ACKS = re.compile(rf"{ACK}.*?_[0-9a-f]{{12}}", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Acked:
    """A frame ``df`` into which ``ack()`` columns came: their functions in a plan, and those of the steps below."""

    functions: tuple[str, ...]
    nodes: frozenset[str]
    df: DataFrame


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

    def checkpoint(self, eager: bool = True) -> DataFrame:
        return self._leaving().checkpoint(eager)

    def localCheckpoint(self, eager: bool = True, storageLevel: StorageLevel | None = None) -> DataFrame:
        return self._leaving().localCheckpoint(eager, storageLevel)

    @property
    def write(self) -> DataFrameWriter:
        return self._leaving().write

    def writeTo(self, table: str) -> DataFrameWriterV2:
        return self._leaving().writeTo(table)

    def _leaving(self) -> DataFrame:
        """This frame as it leaves the body: followed where ``ack()`` is in its plan."""
        df, text = plain(self), analyzed(self)
        if ACK not in text:
            return df
        followed: DataFrame = follow(df, Trail(_witness(self, text)))
        return followed


def of_body(df: DataFrame, batch: Any) -> DataFrame:
    """``df``, a frame of Spark's own, as a body's; ``batch``: its batch, or one of them."""
    body: DataFrame = remade(BodyFrame, df, _acker_batch=batch)
    return body


def plain(df: DataFrame) -> DataFrame:
    """``df`` as Spark's own frame, when it is a body's."""
    if type(df) is not BodyFrame:
        return df
    frame: DataFrame = remade(ClassicFrame, df)
    del vars(frame)["_acker_batch"]
    return frame


def _giving_body_frames(df: BodyFrame, method: MethodType) -> Callable[..., Any]:
    """``method`` of ``df``; a frame that it gives is a body's too."""

    @wraps(method)
    def call(*args: Any, **kwargs: Any) -> Any:
        value = method(*args, **kwargs)
        if type(value) is not ClassicFrame:
            return value
        given = of_body(value, vars(df)["_acker_batch"])
        functions = [function for column in _columns((args, kwargs)) for function in ACKS.findall(str(column))]
        if functions:
            _enter(given, functions)
        return given

    return call


def _columns(value: Any) -> Iterator[Column]:
    """The columns among the arguments of a call."""
    if isinstance(value, Column):
        yield value
    elif isinstance(value, (list, tuple)):
        for each in value:
            yield from _columns(each)
    elif isinstance(value, dict):
        yield from _columns(list(value.values()))


def _enter(df: DataFrame, functions: Sequence[str]) -> None:
    """``ack()`` columns with these functions have entered ``df``."""
    acked, batches = _below(analyzed(df))
    ack = Acked(tuple(functions), frozenset(node.function for node in acked), plain(df))
    # Each of them is to hear of it, whatever the first says.
    if any([batch.see_acked(ack) for batch in batches]):  # noqa: C419  # any() of a generator would stop at the first
        batches[0].keep_cached(df)


def _below(plan: str) -> tuple[list[lineage.Node], list[Any]]:
    """The steps that a plan names, and their batches, each once."""
    nodes = [node for node in lineage.known() if node.function in plan]
    return nodes, list({id(batch): batch for node in nodes for batch in node.batches}.values())


def _witness(df: DataFrame, plan: str) -> Witness:
    """Who sees what is done with the rows of ``df``; its batches know it from now on."""
    acked, batches = _below(plan)
    note_store = note_store_of(df.sparkSession.sparkContext)
    node = lineage.register("acks", "ack", *batches)
    note_store.keep(node.tag)
    witness = Witness(node.tag, (ACK, AGAIN + node.tag), note_store.note_writer)
    for batch in batches:
        batch.see_acks([each.function for each in acked], witness)
    return witness
