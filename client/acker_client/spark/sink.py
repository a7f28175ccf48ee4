"""Sink: the end of a tracked pipeline: what it writes is acked once the write is done.

Decides that the ack stands in a pass-through in front of the user's write, in the write's own job, and that an
exception of the write is kept in the record of its batch, whoever swallows it. What the write *reads* is acked: where
its last whole execution failed, or all were cut short, the sink has failed, whatever it returned (``executions``).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Concatenate, Generic, ParamSpec, TypeVar, overload

import numpy as np
from pyspark.sql import DataFrame

from acker_client.spark import plan, stage
from acker_client.spark.anchors import Rows
from acker_client.spark.executions import Executions
from acker_client.spark.tally import Report, Tally

Args = ParamSpec("Args")
Value = TypeVar("Value")


class SinkRuns(Exception):
    """A sink of the batch is still at work."""


class Sink(Generic[Args, Value]):
    """A function that writes a frame, as the end of a pipeline. ``function`` is the user's, untouched."""

    def __init__(self, function: Callable[Concatenate[DataFrame, Args], Value], name: str | None = None) -> None:
        self.function = function
        self.name: str = name or getattr(function, "__name__", "") or type(function).__name__
        self.__doc__ = function.__doc__
        self.__name__ = self.name

    def __call__(self, df: DataFrame, /, *args: Args.args, **kwargs: Args.kwargs) -> Value:
        """Run the function on ``df`` without its tracking columns; returns what it returns."""
        upstream = plan.guard(df, self.name, kind="sink")
        rows = stage.apply_known(df, upstream, SinkStep(self.name), "sink", stage.user_schema(df), is_tracked=False)
        # The same sink with the same arguments on the same rows makes an earlier failure good; nothing else does.
        frame = (self, repr((args, kwargs)), *(node.tag for node in upstream.nodes))
        records: list[Any] = list({id(node.record): node.record for node in upstream.nodes}.values())
        executions = Executions(df.sparkSession)
        # Until it has returned it has failed: a batch that is settled beside it (from another thread) is abandoned.
        for record in records:
            record.sink_failed(self.name, frame, SinkRuns(f"sink {self.name!r} has not returned"))
        try:
            value = self.function(rows, *args, **kwargs)
            executions.refuse_undone(self.name, rows)
        except BaseException as error:
            for record in records:
                record.sink_failed(self.name, frame, error)
            raise
        for record in records:
            record.sink_succeeded(self.name, frame)
        return value

    def __repr__(self) -> str:
        return f"<sink {self.name!r}>"


@overload
def sink(
    function: Callable[Concatenate[DataFrame, Args], Value], /, *, name: str | None = None
) -> Sink[Args, Value]: ...


@overload
def sink(
    *, name: str | None = None
) -> Callable[[Callable[Concatenate[DataFrame, Args], Value]], Sink[Args, Value]]: ...


def sink(function: Any = None, /, *, name: str | None = None) -> Any:
    """Make a sink of ``function(rows, ...)``, which writes the frame ``rows``; ``@sink`` or ``@sink(name=...)``."""
    if function is not None:
        return Sink(function, name)
    return lambda function: Sink(function, name)


@dataclass(frozen=True, slots=True)
class SinkStep:
    """Acks every row and hands it on."""

    name: str

    def start(self, *, finds_copies: bool) -> SinkRun:
        return SinkRun(Tally(self.name, finds_copies=finds_copies))


class SinkRun:
    """A sink's pass-through in one task."""

    def __init__(self, tally: Tally) -> None:
        self._tally = tally

    def take(self, rows: Rows) -> Iterator[Rows]:
        self._tally.take(rows.anchors, np.zeros(len(rows.anchors.roots), np.uint64))
        yield rows

    def reports(self) -> Iterable[Report]:
        return [self._tally.report()]
