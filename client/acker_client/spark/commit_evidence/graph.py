"""Graph: the physical plan of an execution: the ways from the rows of a sink up to what was done with them.

Decides what on such a way reads to the end of its input (a list; what is not on it proves nothing), what cuts rows off,
what groups them, and what writes. Knows where rows are by the names of our functions (:class:`Places`), and Spark by
the names of its nodes.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from pyspark.sql import DataFrame

from acker_client.spark.commit_evidence.evidence import Target
from acker_client.spark.driver.lineage import READS
from acker_client.spark.worker.notes import Note

# What ends before it has read its input, or hands on a part of it.
CUTS = frozenset({"CollectLimit", "GlobalLimit", "LocalLimit", "TakeOrderedAndProject", "CollectTail", "Offset"})

# Behind one of these, unless it only drops copies (no functions), a cut cuts off groups and not rows.
AGGREGATES = frozenset({
    "HashAggregate", "SortAggregate", "ObjectHashAggregate", "AggregateInPandas", "ArrowAggregatePython",
})  # fmt: skip

# Functions over an iterator of batches: they need not read it to its end.
ITERATING = frozenset({"MapInArrow", "MapInPandas", "PythonMapInArrow"})
GROUPING = frozenset({"FlatMapGroupsInPandas", "FlatMapGroupsInArrow"})
PYTHON = ITERATING | {"ArrowEvalPython"}

# What reads to the end of its input, or leaves out only rows that can have no part in what it makes (a join).
_READS_ALL = AGGREGATES | {
    "AQEShuffleRead", "AdaptiveSparkPlan", "ArrowEvalPython", "ArrowWindowPython", "AttachDistributedSequence",
    "BatchEvalPython", "BroadcastExchange", "BroadcastHashJoin", "BroadcastNestedLoopJoin", "BroadcastQueryStage",
    "CartesianProduct", "Coalesce", "CollectMetrics", "ColumnarToRow", "DeltaInvariantChecker", "DeltaOptimizedWriter",
    "DeserializeToObject", "Exchange", "Expand", "Filter", "FlatMapCoGroupsInArrow", "FlatMapCoGroupsInPandas",
    "Generate", "InMemoryRelation", "InMemoryTableScan", "InputAdapter", "Project", "ResultQueryStage",
    "ReusedExchange", "RowToColumnar", "Sample", "SerializeFromObject", "ShuffleQueryStage", "ShuffledHashJoin", "Sort",
    "SortMergeJoin", "TableCacheQueryStage", "Union", "Window", "WindowGroupLimit", "WindowInPandas",
}  # fmt: skip
# What AQE shows in the place of nodes that it did without. Below it stand logical nodes, which did not run either, and
# a LogicalQueryStage above those that did.
_EMPTY = "EmptyRelation"
_DID_NOT_RUN = frozenset({
    _EMPTY, "Aggregate", "Join", "LogicalQueryStage", "RebalancePartitions", "Repartition", "RepartitionByExpression",
})  # fmt: skip
# Of the user's functions over groups, those that get whole ones (202 of pandas, 252 of Arrow); others get an iterator.
_OVER_WHOLE_GROUPS = re.compile(r", (202|252)$")
_OURS = re.compile(rf"^\w+ acker_(?!{READS.removeprefix('acker_')})")
_READ = re.compile(rf"{READS}\w*?_[0-9a-f]{{12}}")
_WRITES = re.compile(
    r"^(AppendData|Overwrite\w*|ReplaceData|WriteDelta|WriteFiles|WriteToDataSourceV2|MergeRows|"
    r"(?!Cache)\w*AsSelect|"
    r"Execute (?!Cache)\w*(Insert|Save|Write|Merge|Update|Delete|Replace|Overwrite|AsSelect)\w*)\b"
)
# Commands that report metrics when they write, and none when they skip the write.
_INSERTS = re.compile(r"^Execute Insert")
# Inserts into a partition of a Hive table report metrics even when they skip. The second flag is IF NOT EXISTS.
_MAY_SKIP = re.compile(r"^Execute InsertIntoHiveTable .*, \w+, true, \[")
# A write by Spark's second interface, and the name of what it writes to.
_V2 = re.compile(
    r"^(?:AppendData|Overwrite\w*|ReplaceData|WriteDelta|WriteToDataSourceV2|(?!Execute)\w*AsSelect) ?(.*)"
)


@dataclass(frozen=True, slots=True)
class Places:
    """How the rows of a sink are known in what Spark ran.

    ``functions``: names of functions in a plan, any of them, with the function ``below`` somewhere under it where one
    is given; ``notes`` of its tasks; ``partitions``: how many each watched RDD has, by (tag, number in notes);
    ``calls``: where the client's own calls deliver to, by what the executions within them bear.
    """

    functions: tuple[str, ...]
    notes: Sequence[Note] = ()
    partitions: Mapping[tuple[str, int], int] = field(default_factory=dict)
    below: str = ""
    calls: Mapping[str, Target] = field(default_factory=dict)

    @property
    def cut(self) -> frozenset[str]:
        """The functions of the user's that have left a part of their rows unread."""
        return frozenset(note.function for note in self.notes if note.kind == "cut")

    def are_in(self, text: str) -> bool:
        return any(function in text for function in self.functions)


@dataclass(frozen=True, slots=True)
class Way:
    """From a place in a plan up to its top: the names of the nodes above; the first ``cut``, as Spark describes it;
    whether rows are grouped by something that computes, and whether any aggregate stands on it; the functions of the
    user's over batches that are watched; the first node that need not read to its end ("": none)."""

    names: tuple[str, ...]
    cut: str
    groups: bool
    aggregates: bool
    reads: frozenset[str]
    unproven: str

    def is_cut(self, cut: Collection[str]) -> bool:
        """Whether not all rows are known to have come through; ``cut``: the functions that have left rows unread."""
        return bool(self.cut or self.unproven) or not self.reads.isdisjoint(cut)

    def is_limited(self, cut: Collection[str]) -> bool:
        """Whether nothing but a limit that stands in the plan leaves rows out."""
        return bool(self.cut) and not self.unproven and self.reads.isdisjoint(cut)

    @property
    def writes(self) -> bool:
        return any(_WRITES.match(name) for name in self.names)


class Graph:
    """A physical plan, as Spark keeps it. ``is_python_source``: whether a table of this name is a Python data source,
    whose writer may stop when it likes."""

    def __init__(self, graph: Any, is_python_source: Callable[[str], bool]) -> None:
        self._is_python_source = is_python_source
        self._nodes: dict[int, tuple[str, str]] = {}
        self._metrics: dict[int, Any] = {}
        for node in each(graph.allNodes()):
            number = int(node.id())
            name = str(node.name())
            self._nodes[number] = name, str(node.desc())
            if name in PYTHON or _INSERTS.match(name):
                self._metrics[number] = node.metrics()
        # More than one where an exchange is used again.
        self._above: dict[int, list[int]] = defaultdict(list)
        for edge in each(graph.edges()):
            self._above[int(edge.fromId())].append(int(edge.toId()))

    @classmethod
    def of(cls, df: DataFrame) -> Graph:
        """The plan that Spark has made for a frame."""
        session: Any = df.sparkSession._jvm
        sql = session.org.apache.spark.sql.execution
        plan: Any = df._jdf.queryExecution().executedPlan()
        return cls(sql.ui.SparkPlanGraph.apply(sql.SparkPlanInfo.fromSparkPlan(plan)), lambda _: True)

    @property
    def writes(self) -> bool:
        """Whether the plan is a write of anything."""
        return any(_WRITES.match(name) for name, _ in self._nodes.values())

    @property
    def writing(self) -> str:
        """What writes, as Spark describes it; "" where nothing does."""
        return next((text for name, text in self._nodes.values() if _WRITES.match(name)), "")

    def has(self, names: Collection[str]) -> bool:
        return any(name in names for name, _ in self._nodes.values())

    def places(self, places: Places) -> list[Way]:
        """The ways up from each node that runs one of the functions."""
        found = self._found(places)
        if places.below:
            under = [number for number, (_, text) in self._nodes.items() if places.below in text]
            over = {above for number in under for way in self._ups(number) for above in way}
            found = [number for number in found if number in over]
        ways = [self._way(way) for number in found for way in self._ups(number)]
        return [way for way in ways if _EMPTY not in way.names]

    def emptied(self, places: Places) -> list[Way]:
        """The ways up from each node that runs one of the functions, where AQE has put an EmptyRelation in the place of
        that node or of one above it: what the user's functions on such a way left unread may be why it was empty."""
        ways = [way for number in self._found(places) for way in self._ups(number)]
        hidden = [way for way in ways if any(self._nodes[up][0] == _EMPTY for up in way)]
        return [self._way([up for up in way if self._nodes[up][0] not in _DID_NOT_RUN]) for way in hidden]

    def over(self, name: str) -> list[Way]:
        """The ways up from each node that is called ``name``."""
        found = [number for number, (called, _) in self._nodes.items() if called == name]
        return [self._way(way) for number in found for way in self._ups(number)]

    def found_none(self, places: Places, values: Any, has_ended: bool) -> bool:
        """Whether nothing came out of any of the places. ``values``: of metrics; ``has_ended``: the execution itself
        has read rows there to the end of a task, and not only what another one has cached."""
        found = self._found(places)
        names = {self._nodes[above][0] for number in found for way in self._ups(number) for above in way}
        if not found or _EMPTY in names or ("InMemoryTableScan" in names and not has_ended):
            return False
        return all(_is_zero(self._metrics[number], values) for number in found)

    def has_left_out(self, values: Any) -> bool:
        """Whether a command may have skipped its write because the target exists (`mode("ignore")`, `IF NOT EXISTS`).
        ``values``: the metrics of the execution."""
        inserts = [(number, text) for number, (name, text) in self._nodes.items() if _INSERTS.match(name)]
        return any(_MAY_SKIP.match(text) or "" in _rows(self._metrics[number], values) for number, text in inserts)

    def _found(self, places: Places) -> list[int]:
        return [number for number, (name, text) in self._nodes.items() if name in PYTHON and places.are_in(text)]

    def _ups(self, number: int) -> Iterator[tuple[int, ...]]:
        """Each way up from a node: the nodes above it, the nearest first."""
        above = self._above.get(number)
        if not above:
            yield ()
            return
        for up in above:
            yield from ((up, *way) for way in self._ups(up))

    def _way(self, ups: Sequence[int]) -> Way:
        above = [self._nodes[up] for up in ups]
        names = tuple(name for name, _ in above)
        groups = (at for at, (name, text) in enumerate(above) if name in AGGREGATES and _groups(text))
        groups_at = next(groups, len(above))
        cut = next((text for name, text in above[:groups_at] if name in CUTS), "")
        unproven = next((text for name, text in above if not self._reads_all(name, text)), "")
        reads = frozenset(read for name, text in above if name in ITERATING for read in _READ.findall(text))
        aggregates = any(name in AGGREGATES | GROUPING for name in names)
        return Way(names, cut, groups_at < len(above), aggregates, reads, unproven)

    def _reads_all(self, name: str, text: str) -> bool:
        """Whether a node reads to the end of its input, or cuts it off where that is seen, or is watched."""
        if name in ITERATING:
            return READS in text or bool(_OURS.search(text))
        if name in GROUPING:
            return READS in text
        if name == "ArrowAggregatePython":
            return bool(_OVER_WHOLE_GROUPS.search(text))
        if to := _V2.match(name):
            return not self._is_python_source(to[1])
        return name in _READS_ALL or name in CUTS or bool(_WRITES.match(name))


def _is_zero(metrics: Any, values: Any) -> bool:
    """Whether a node is known, by its metrics, to have put out no rows."""
    return set(_rows(metrics, values)) == {"0"}


def _rows(metrics: Any, values: Any) -> list[str]:
    """How many rows a node has put out, by each of its metrics that say so; "" for one that was not reported."""
    rows = [metric for metric in each(metrics) if metric.name() == "number of output rows"]
    counts = [values.get(metric.accumulatorId()) for metric in rows]
    return [str(count.get()) if count.isDefined() else "" for count in counts]


def _groups(aggregate: str) -> bool:
    """Whether an aggregate computes something of its rows; a distinct hands on rows, and a cut behind it cuts rows."""
    return "functions=[]" not in aggregate


def each(sequence: Any) -> Iterator[Any]:
    for index in range(sequence.size()):
        yield sequence.apply(index)
