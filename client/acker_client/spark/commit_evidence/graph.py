"""Graph: the physical plan of an execution, and the paths in it that lead up from the rows of a sink.

Decides which nodes on such a path read to the end of their input (a list; other nodes prove nothing), which cut rows
off, which group them, and which write. Recognizes rows by the names of the acker's functions (:class:`Places`), and
Spark's nodes by their names.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from pyspark.sql import DataFrame

from acker_client.spark.commit_evidence.evidence import Target
from acker_client.spark.driver.lineage import AGAIN, PART, READS
from acker_client.spark.driver.stores import Record, Stores
from acker_client.spark.worker.notes import Note

# The metrics of a plan's node, and the values of metrics by accumulator id as text.
Metrics = Sequence[Record]
Values = Mapping[str, str]

# Nodes that end before they have read all their input, or hand on only a part of it.
CUTS = frozenset({"CollectLimit", "GlobalLimit", "LocalLimit", "TakeOrderedAndProject", "CollectTail", "Offset"})

# Nodes that aggregate. A cut above one of them drops groups, not rows, unless the node hands rows on.
AGGREGATES = frozenset({
    "HashAggregate", "SortAggregate", "ObjectHashAggregate", "AggregateInPandas", "ArrowAggregatePython",
})  # fmt: skip

# Nodes with a function over an iterator of batches, which need not read to its end.
ITERATING = frozenset({"MapInArrow", "MapInPandas", "PythonMapInArrow"})
GROUPING = frozenset({"FlatMapGroupsInPandas", "FlatMapGroupsInArrow"})
PYTHON = ITERATING | {"ArrowEvalPython"}

# Nodes that read to the end of their input, or leave out only rows that cannot be part of their output (a join).
_READS_ALL = AGGREGATES | {
    "AQEShuffleRead", "AdaptiveSparkPlan", "ArrowEvalPython", "ArrowWindowPython", "AttachDistributedSequence",
    "BatchEvalPython", "BroadcastExchange", "BroadcastHashJoin", "BroadcastNestedLoopJoin", "BroadcastQueryStage",
    "CartesianProduct", "Coalesce", "CollectMetrics", "ColumnarToRow", "DeltaInvariantChecker", "DeltaOptimizedWriter",
    "DeserializeToObject", "Exchange", "Expand", "Filter", "FlatMapCoGroupsInArrow", "FlatMapCoGroupsInPandas",
    "Generate", "InMemoryRelation", "InMemoryTableScan", "InputAdapter", "MergingSessions", "Project",
    "ResultQueryStage", "ReusedExchange", "RowToColumnar", "Sample", "SerializeFromObject", "ShuffleQueryStage",
    "ShuffledHashJoin", "Sort", "SortMergeJoin", "TableCacheQueryStage", "Union", "UpdatingSessions", "Window",
    "WindowGroupLimit", "WindowInPandas",
}  # fmt: skip
# The innermost arguments in a text, and functions of an aggregate that hands rows on: a distinct has none, and
# `dropDuplicates` has only `first`. A user's own `first` looks the same. Spark leaves functions out of long texts.
_ARGUMENTS, _HANDING_ON = re.compile(r"\([^()]*\)"), re.compile(r"(?:partial_|merge_)?first|\.\.\. .*|")
# Reads rows that this execution or an earlier one has cached. The second list of its text holds conditions by which it
# leaves out parts of the cache.
_CACHE = "InMemoryTableScan"
_LEAVES_OUT = "], ["
# Reads an RDD, from which a frame was made.
_RDD = "Scan ExistingRDD"
# AQE shows this node in place of nodes that it removed. Below it are logical nodes, which did not run either, and a
# LogicalQueryStage above nodes that did run.
_EMPTY = "EmptyRelation"
_DID_NOT_RUN = frozenset({
    _EMPTY, "Aggregate", "Join", "LogicalQueryStage", "RebalancePartitions", "Repartition", "RepartitionByExpression",
})  # fmt: skip
# The user's functions that are given whole groups (202: pandas, 252: Arrow); others are given an iterator.
_OVER_WHOLE_GROUPS = re.compile(r", (202|252)$")
_OURS = re.compile(rf"^\w+ acker_(?!{READS.removeprefix('acker_')})")
_READ = re.compile(rf"{READS}\w+")
_WRITES = re.compile(
    r"^(AppendData\w*|InsertOnlyMerge|Overwrite\w*|ReplaceData|WriteDelta|WriteFiles|WriteToDataSourceV2|MergeRows|"
    r"(?!Cache)\w*AsSelect|"
    r"Execute (?!Cache)\w*(Insert|Save|Write|Merge|Update|Delete|Replace|Overwrite|AsSelect)\w*)\b"
)
# Commands that report metrics when they write, and none when they skip the write.
_INSERTS = re.compile(r"^Execute Insert")
# Inserts into a partition of a Hive table report metrics even when they skip. The second flag is IF NOT EXISTS.
_MAY_SKIP = re.compile(r"^Execute InsertIntoHiveTable .*, \w+, true, \[")
# A write by Spark's data source V2 interface. The text of the node ends with the writer. The writer of a Python data
# source is shown as the name of the source.
_V2 = re.compile(
    r"^(AppendData\w*|InsertOnlyMerge|Overwrite\w*|ReplaceData|WriteDelta|WriteToDataSourceV2|(?!Execute)\w*AsSelect)\b"
)


@dataclass(frozen=True, slots=True)
class Places:
    """How to recognize the rows of a sink in what Spark ran.

    ``functions``: the rows come out of a plan node that runs one of these functions. ``below``: if set, a function that
    a node below that node must run. ``step``: if set, a plan counts only if it also names this function, or names the
    function that marks checkpointed rows. ``notes``: what tasks wrote about the rows. ``partitions``: the number of
    partitions of each watched RDD, by (tag, number in notes). ``calls``: the targets of the client's own calls, by the
    call site that the executions within a call have. ``may_be_in_rdds``: whether the program may have made an RDD of
    the rows, so that a plan does not show them. ``unread``: why an RDD that a frame was made of may lack
    some of the rows; "" if none may.
    """

    functions: tuple[str, ...]
    notes: Sequence[Note] = ()
    partitions: Mapping[tuple[str, int], int] = field(default_factory=dict)
    below: str = ""
    step: str = ""
    calls: Mapping[str, Target] = field(default_factory=dict)
    may_be_in_rdds: bool = True
    unread: str = ""

    @property
    def cut(self) -> frozenset[str]:
        """The user's functions that have left some of their rows unread."""
        return frozenset(note.function for note in self.notes if note.kind == "cut")

    def are_in(self, plan: str) -> bool:
        has_step = self.step in plan
        return any(function in plan and (has_step or function.startswith(AGAIN)) for function in self.functions)

    def are_of(self, node: str) -> bool:
        """Whether a node with this text runs one of the functions."""
        return any(function in node for function in self.functions)


@dataclass(frozen=True, slots=True)
class PlanPath:
    """The path from a place in a plan up to its top.

    ``names``: the nodes above the place. ``cut``: the first node that cuts rows off, as Spark describes it. A limit
    above an aggregate that computes something drops groups, not rows, so it does not count. ``aggregates``: whether
    there is any aggregate. ``reads``: the user's watched functions over batches. ``unproven``: the first node that need
    not read its input to the end ("" if there is none).
    """

    names: tuple[str, ...]
    cut: str
    aggregates: bool
    reads: frozenset[str]
    unproven: str

    def is_cut(self, cut: Collection[str]) -> bool:
        """Whether some rows may not have come through. ``cut``: the functions that have left rows unread."""
        return bool(self.cut or self.unproven) or not self.reads.isdisjoint(cut)

    def is_limited(self, cut: Collection[str]) -> bool:
        """Whether at most a limit in the plan leaves rows out."""
        return not self.unproven and self.reads.isdisjoint(cut)

    @property
    def writes(self) -> bool:
        return any(_WRITES.match(name) for name in self.names)

    @property
    def is_of_subquery(self) -> bool:
        return any("Subquery" in name for name in self.names)


class Graph:
    """A physical plan in Spark's store. ``is_python_source``: whether a Python data source has this name. Its writer
    may stop before the end of its rows."""

    def __init__(self, graph: Record, is_python_source: Callable[[str], bool]) -> None:
        self._is_python_source = is_python_source
        self._nodes: dict[int, tuple[str, str]] = {}
        self._metrics: dict[int, Metrics] = {}
        for node in graph["allNodes"]:
            number, name = int(node["id"]), str(node["name"])
            self._nodes[number] = name, str(node["desc"])
            if name in PYTHON or name == _CACHE or _INSERTS.match(name):
                self._metrics[number] = node["metrics"]
        # A node has several parents if its exchange is reused.
        self._above: dict[int, list[int]] = defaultdict(list)
        for edge in graph["edges"]:
            self._above[int(edge["fromId"])].append(int(edge["toId"]))

    @classmethod
    def of(cls, df: DataFrame) -> Graph:
        """The plan that Spark has made for a frame."""
        session: Any = df.sparkSession._jvm
        sql = session.org.apache.spark.sql.execution
        plan: Any = df._jdf.queryExecution().executedPlan()
        graph = sql.ui.SparkPlanGraph.apply(sql.SparkPlanInfo.fromSparkPlan(plan))
        return cls(Stores(df.sparkSession).read(graph), lambda _: True)

    @property
    def texts(self) -> list[str]:
        """The nodes, as Spark describes them."""
        return [text for _, text in self._nodes.values()]

    @property
    def writes(self) -> bool:
        """Whether the plan is a write of anything."""
        return any(_WRITES.match(name) for name, _ in self._nodes.values())

    @property
    def writing(self) -> str:
        """The node that writes, as Spark describes it; "" if none does."""
        return next((text for name, text in self._nodes.values() if _WRITES.match(name)), "")

    def has(self, names: Collection[str]) -> bool:
        return any(name in names for name, _ in self._nodes.values())

    def paths_from(self, places: Places) -> list[PlanPath]:
        """Return the paths up from each node that runs one of the functions."""
        found = self._found(places)
        if places.below:
            under = [number for number, (_, text) in self._nodes.items() if places.below in text]
            over = {above for number in under for path in self._paths_up(number) for above in path}
            found = [number for number in found if number in over]
        paths = [self._plan_path(path) for number in found for path in self._paths_up(number)]
        return _direct([path for path in paths if _EMPTY not in path.names])

    def removed_paths(self, places: Places) -> list[PlanPath]:
        """Return the paths up from each node that runs one of the functions, if AQE removed that node or one above it.

        AQE shows an EmptyRelation there. The reason may be that the user's functions on the path left rows unread.
        """
        paths = [path for number in self._found(places) for path in self._paths_up(number)]
        hidden = [path for path in paths if any(self._nodes[up][0] == _EMPTY for up in path)]
        return [self._plan_path([up for up in path if self._nodes[up][0] not in _DID_NOT_RUN]) for path in hidden]

    def paths_from_rdds(self, places: Places) -> list[PlanPath]:
        """Return the paths up from each scan of an RDD, which may hold the rows.

        Since 4.3, Spark shows the plan behind an RDD below its scan. This plan may have scans, too: of the source,
        below the rows, or of a table that is joined, beside the rows. Their paths leave out the scan of the rows.
        """
        found = set(self._found(places))
        over = {above for number in found for path in self._paths_up(number) for above in path}
        scans = [number for number, (name, _) in self._nodes.items() if name == _RDD]
        of_rows = over.intersection(scans)
        paths: list[PlanPath] = []
        for scan in scans:
            for path in self._paths_up(scan):
                if scan in over or of_rows.isdisjoint(path):
                    paths.append(self._plan_path(path))
                elif found.isdisjoint(path):
                    paths.append(self._plan_path([up for up in path if up not in of_rows]))
        return paths

    def found_none(self, places: Places, values: Values, has_read_alone: bool) -> bool:
        """Whether no rows came out of any of the places. ``values``: the values of the metrics; ``has_read_alone``:
        tasks of this execution have read the rows to their end, and no tasks of another execution or job have."""
        found = self._found(places)
        above = {up for number in found for path in self._paths_up(number) for up in path}
        paths = [{self._nodes[up][0] for up in path} for number in found for path in self._paths_up(number)]
        if not found or any(_EMPTY in path for path in paths):
            return False
        # A place shows no rows of a partition that was cached before. The tasks that cached it may have failed later.
        caches = [up for up in above if self._nodes[up][0] == _CACHE]
        if caches and (not has_read_alone or any(_LEAVES_OUT in self._nodes[cache][1] for cache in caches)):
            return False
        # A function above a checkpoint may stand for a step below it, which may have left rows unread.
        is_again = any(AGAIN in self._nodes[number][1] for number in found)
        if is_again and not all(ITERATING.isdisjoint(path) for path in paths):
            return False
        # A limit above a union may have been reached before any partition of these rows was read.
        if any("Union" in path and not CUTS.isdisjoint(path) for path in paths):
            return False
        return all(_is_zero(self._metrics[number], values) for number in (*found, *caches))

    def has_left_out(self, values: Values) -> bool:
        """Whether a command may have skipped its write because the target exists (`mode("ignore")`, `IF NOT EXISTS`).
        ``values``: the metrics of the execution."""
        inserts = [(number, text) for number, (name, text) in self._nodes.items() if _INSERTS.match(name)]
        return any(_MAY_SKIP.match(text) or "" in _rows(self._metrics[number], values) for number, text in inserts)

    def _found(self, places: Places) -> list[int]:
        return [number for number, (name, text) in self._nodes.items() if name in PYTHON and places.are_of(text)]

    def _paths_up(self, number: int) -> Iterator[tuple[int, ...]]:
        """Yield each path up from a node as the nodes above it, the nearest first."""
        above = self._above.get(number)
        if not above:
            yield ()
            return
        for up in above:
            yield from ((up, *path) for path in self._paths_up(up))

    def _plan_path(self, ups: Sequence[int]) -> PlanPath:
        above = [self._nodes[up] for up in ups]
        names = tuple(name for name, _ in above)
        cuts = (at for at, (name, text) in enumerate(above) if name in CUTS or PART in text)
        cut = next((above[at][1] for at in cuts if not _are_groups(above[:at])), "")
        unproven = next((text for name, text in above if not self._reads_all(name, text)), "")
        reads = frozenset(read for name, text in above if name in ITERATING for read in _READ.findall(text))
        aggregates = any(name in AGGREGATES | GROUPING for name in names)
        return PlanPath(names, cut, aggregates, reads, unproven)

    def _reads_all(self, name: str, text: str) -> bool:
        """Whether a node reads to the end of its input, or cuts it off visibly, or is watched."""
        if name in ITERATING:
            return READS in text or bool(_OURS.search(text))
        if name in GROUPING:
            return READS in text
        if name == "ArrowAggregatePython":
            return bool(_OVER_WHOLE_GROUPS.search(text))
        if _V2.match(name):
            return not self._is_python_source(text.removeprefix(name).rpartition(", ")[2].strip())
        return name in _READS_ALL or name in CUTS or bool(_WRITES.match(name))


def _direct(paths: Sequence[PlanPath]) -> list[PlanPath]:
    """Leave out the paths through subqueries, unless there are no others. A subquery over the rows, as in ``where n >
    (select avg(n) from rows)``, computes a value beside the rows that are handed on."""
    return [path for path in paths if not path.is_of_subquery] or list(paths)


def _is_zero(metrics: Metrics, values: Values) -> bool:
    """Whether a node's metrics show that it put out no rows."""
    return set(_rows(metrics, values)) == {"0"}


def _rows(metrics: Metrics, values: Values) -> list[str]:
    """Return the value of each metric for a node's number of output rows; "" for a metric without a report."""
    rows = [metric for metric in metrics if metric["name"] == "number of output rows"]
    return [values.get(str(metric["accumulatorId"]), "") for metric in rows]


def _are_groups(nodes: Sequence[tuple[str, str]]) -> bool:
    """Whether the output of the last of these nodes is groups, not rows."""
    for name, text in reversed(nodes):
        # Makes rows from groups again. Spark runs `exceptAll` and `intersectAll` in this way.
        if name == "Generate":
            return False
        if name in AGGREGATES and not _hands_rows_on(text):
            return True
    return False


def _hands_rows_on(aggregate: str) -> bool:
    """Whether an aggregate with this text may hand rows on, instead of computing something of them."""
    functions, before = aggregate.partition("functions=[")[2], ""
    while functions != before:
        functions, before = _ARGUMENTS.sub("", functions), functions
    names = functions.partition("]")[0].split(", ")
    return "(" in functions or all(map(_HANDING_ON.fullmatch, names))
