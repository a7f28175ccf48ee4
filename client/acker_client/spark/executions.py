"""Executions: what Spark really ran over the rows of a sink.

Decides whether a sink that returned has done its work: whether the last whole execution of its rows went through. A
worker runs ahead of a ``limit``, ``take`` or ``show`` behind a sink's back and acks what nobody wrote; and a sink may
swallow the exception of its own write. Looks at executions in Spark's own store (which is there without the UI); it
never looks at rows and sees no jobs of RDDs.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Collection, Iterator
from typing import Any

from pyspark.sql import DataFrame, SparkSession

# What ends before it has read its input.
CUTS = frozenset({"CollectLimit", "GlobalLimit", "LocalLimit", "TakeOrderedAndProject", "CollectTail", "Offset"})

# How many executions a look back for an earlier evaluation of the same frame takes in.
LOOK_BACK = 50

# Spark's own patience with its listeners is 10 s; a driver that writes a large event log can be further behind.
BUS_WAIT_MS = 300_000

# How long an execution that has returned may take to be known as ended.
END_WAIT_S = 10.0
END_LOOK_S = 0.02


class PartialRead(Exception):
    """A sink read only part of its rows. Nothing of the batch is acked; it is replayed."""

    def __init__(self, sink: str, cut: str) -> None:
        super().__init__(
            f"sink {sink!r} read only part of its rows: all that Spark ran over them stands below a {cut} (limit, take,"
            " head, first, show or isEmpty). What a sink does not read is not done, so its batch is abandoned. Write"
            " all rows in the sink (a look at some of them beside that is fine), or drop rows before it with"
            " acker_client.spark.where."
        )


class FailedWrite(Exception):
    """A sink returned, though the last that Spark ran over its rows did not go through. The batch is replayed."""

    def __init__(self, sink: str, why: str) -> None:
        super().__init__(
            f"sink {sink!r} returned, but the last that Spark ran over its rows did not go through ({why}): its batch"
            " is abandoned. Let the exception of a write leave the sink, or write again in it until a write goes"
            " through."
        )


class Executions:
    """The executions that begin after this object was made."""

    def __init__(self, spark: SparkSession) -> None:
        # py4j gives Java objects no type that a checker could use.
        session: Any = spark._jsparkSession
        self._store: Any = session.sharedState().statusStore()
        self._bus: Any = session.sparkContext().listenerBus()
        self._before = next(self._newest_first(), -1)

    def have_run(self, functions: Collection[str]) -> bool:
        """Whether one of the stages whose ``functions`` these are has run in an execution before now."""
        self._bus.waitUntilEmpty(BUS_WAIT_MS)
        for execution in itertools.islice(self._newest_first(), LOOK_BACK):
            plan = str(self._store.execution(execution).get().physicalPlanDescription())
            if any(function in plan for function in functions):
                return True
        return False

    def refuse_undone(self, sink: str, rows: DataFrame) -> None:
        """Raise :class:`FailedWrite` when the last execution that was not cut short did not go through, and
        :class:`PartialRead` when something ran over ``rows`` and all of it was cut short.

        The last one decides: a write that failed may have been made good, and a count before it makes up for nothing.
        Nothing is said of rows that were read as an RDD too (``foreachPartition``): its jobs cannot be seen.
        """
        if "rdd" in vars(rows):
            return
        self._bus.waitUntilEmpty(BUS_WAIT_MS)
        function = str(rows._jdf.queryExecution().analyzed().functionExpr().name())
        began = itertools.takewhile(lambda execution: execution > self._before, self._newest_first())
        cuts: list[str] = []
        for execution in began:
            places = list(self._places(execution, function))
            if places and (failure := self._failure(execution)):
                raise FailedWrite(sink, failure)
            # Asked of what went through only: what failed tasks gave is not counted.
            over = [cut for node, cut in places if not self._is_empty(execution, node)]
            if not all(over):
                return
            cuts += over
        if cuts:
            raise PartialRead(sink, cuts[0])

    def _failure(self, execution: int) -> str:
        """Why an execution did not go through, in one line; nothing ("") when it did."""
        data = self._ended(execution)
        if data.completionTime().isEmpty():
            return "it still runs"
        error = data.errorMessage()
        # Success is no message, or an empty one.
        message = str(error.get()).strip() if error.isDefined() else ""
        return message and _gist(message)

    def _ended(self, execution: int) -> Any:
        """What the store knows of an execution. It writes an end down from a thread of its own, after a moment."""
        until = time.monotonic() + END_WAIT_S
        while True:
            data: Any = self._store.execution(execution).get()
            if not data.completionTime().isEmpty() or time.monotonic() > until:
                return data
            time.sleep(END_LOOK_S)

    def _newest_first(self) -> Iterator[int]:
        listed: Any = self._store.executionsList()
        for index in reversed(range(listed.size())):
            yield int(listed.apply(index).executionId())

    def _places(self, execution: int, function: str) -> Iterator[tuple[Any, str]]:
        """Each node of the plan of ``execution`` that is ``function``, and the cut above it, or nothing ("")."""
        graph: Any = self._store.planGraph(execution)
        nodes = {node.id(): node for node in _each(graph.allNodes())}
        above = {edge.fromId(): edge.toId() for edge in _each(graph.edges())}
        for number, node in nodes.items():
            if function in node.desc():
                yield node, next((name for name in _names_above(number, above, nodes) if name in CUTS), "")

    def _is_empty(self, execution: int, node: Any) -> bool:
        """Whether nothing came out of ``node``: then a cut above it has cut nothing off."""
        values: Any = self._store.executionMetrics(execution)
        rows = [metric for metric in _each(node.metrics()) if metric.name() == "number of output rows"]
        counts = [values.get(metric.accumulatorId()) for metric in rows]
        return any(count.isDefined() and str(count.get()) == "0" for count in counts)


def _gist(message: str) -> str:
    """One line of Spark's error message: of a Python traceback its last, which names the exception; else the first."""
    lines = [line.strip() for line in message.splitlines() if not line.strip().startswith("SQLSTATE:")]
    return lines[-1 if "Traceback" in lines[0] else 0] if lines else message


def _names_above(number: int, above: dict[int, int], nodes: dict[int, Any]) -> Iterator[str]:
    while number in above:
        number = above[number]
        yield str(nodes[number].name())


def _each(sequence: Any) -> Iterator[Any]:
    for index in range(sequence.size()):
        yield sequence.apply(index)
