"""Executions: what Spark's own stores know of what it ran over the rows of a sink.

Decides how each execution of SQL and each job of RDDs is read as an ``evidence.Action``: what
it did with the rows, whether with all of them, how it ended. Looks at Spark's stores, which are complete without the
UI, and at the notes of tasks; never at rows. What that proves is ``evidence``'s to decide.
"""

from __future__ import annotations

import re
import time
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from pyspark.sql import SparkSession

from acker_client.core.gist import gist
from acker_client.spark.core.evidence import NEVER_MS, Action
from acker_client.spark.driver.lineage import JOB_TAG, READS
from acker_client.spark.task.notes import Note

# What ends before it has read its input, or hands on a part of it.
CUTS = frozenset({"CollectLimit", "GlobalLimit", "LocalLimit", "TakeOrderedAndProject", "CollectTail", "Offset"})
# Behind one of these, unless it only drops copies (no functions), a cut cuts off groups and not rows.
AGGREGATES = frozenset({"HashAggregate", "SortAggregate", "ObjectHashAggregate"})
# Functions over an iterator of batches: they need not read it to its end.
ITERATING = frozenset({"MapInArrow", "MapInPandas", "PythonMapInArrow"})

PYTHON = ITERATING | {"ArrowEvalPython"}
_OURS = re.compile(rf"^\w+ acker_(?!{READS.removeprefix('acker_')})")

_WRITES = re.compile(
    r"^(AppendData|Overwrite\w*|ReplaceData|WriteDelta|WriteFiles|WriteToDataSourceV2|MergeRows|"
    r"(?!Cache)\w*AsSelect|"
    r"Execute (?!Cache)\w*(Insert|Save|Write|Merge|Update|Delete|Replace|Overwrite|AsSelect)\w*)\b"
)
# The method of Spark's that an action begins in: what it does then.
_COLLECTS = ("collectToPython", "collectAsArrowToPython")
_DID = {
    "Dataset.count": "counted them",
    "Dataset.isEmpty": "asked whether there are any",
    "Dataset.tailToPython": "read their tail",
    "Dataset.toPythonIterator": "began to iterate over them",
    "Dataset.localCheckpoint": "checkpointed them",
    "Dataset.checkpoint": "checkpointed them",
}
# Jobs of RDDs that only look, by what began them.
_LOOKS = frozenset({"runJob at PythonRDD", "take", "first", "isEmpty", "count", "sum", "localCheckpoint"})

# How many executions a look back for an earlier evaluation of the same frame takes in.
LOOK_BACK = 50

# How many are kept; then the oldest are forgotten without a trace.
EXECUTIONS, JOBS = "spark.sql.ui.retainedExecutions", "spark.ui.retainedJobs"

# Spark's own patience with its listeners is 10 s; a driver that writes a large event log can be further behind.
BUS_WAIT_MS = 300_000

# How long an action that has returned may take to be known as ended.
END_WAIT_S = 2.0
END_LOOK_S = 0.01

# "CollectLimit 5", "TakeOrderedAndProject(limit=5, orderBy=..."
_LIMIT = re.compile(r"^\w+(?: |\(limit=)(\d+)")
# "HashAggregate(keys=[], functions=...", "SortAggregate(key=[], ..."
_KEYLESS = re.compile(r"\bkeys?=\[\]")
_ROOT_TAG = "execution-root-id-"


@dataclass(frozen=True, slots=True)
class Places:
    """How the rows of a sink are known in what Spark ran.

    ``functions``: names of functions in a plan, any of them, with the function ``below`` somewhere under it where one
    is given; ``notes`` of its tasks; ``partitions``: how many each watched RDD has, by (tag, number in notes).
    """

    functions: tuple[str, ...]
    notes: Sequence[Note] = ()
    partitions: Mapping[tuple[str, int], int] = field(default_factory=dict)
    below: str = ""

    @property
    def cut(self) -> frozenset[str]:
        """The functions of the user's that have left a part of their rows unread."""
        return frozenset(note.function for note in self.notes if note.kind == "cut")

    def are_in(self, text: str) -> bool:
        return any(function in text for function in self.functions)


class Executions:
    """The executions of SQL and the jobs of RDDs that begin after this object was made."""

    def __init__(self, spark: SparkSession) -> None:
        # py4j gives Java objects no type that a checker could use.
        session: Any = spark._jsparkSession
        context: Any = session.sparkContext()
        self._jvm: Any = spark._jvm
        self._settings: Any = context.conf()
        self._store: Any = session.sharedState().statusStore()
        self._core: Any = context.statusStore()
        self._bus: Any = context.listenerBus()
        self._bus.waitUntilEmpty(BUS_WAIT_MS)
        self._before = self._newest()
        self._job_before = self._newest_job()

    def have_run(self, functions: Collection[str]) -> bool:
        """Whether one of the stages whose ``functions`` these are has run in an execution before now."""
        self._bus.waitUntilEmpty(BUS_WAIT_MS)
        for execution in reversed(self._listed(LOOK_BACK)):
            plan = str(self._store.execution(execution).get().physicalPlanDescription())
            if any(function in plan for function in functions):
                return True
        return False

    def look(self) -> Look:
        """What has run up to now."""
        self._bus.waitUntilEmpty(BUS_WAIT_MS)
        began, newest = self._began()
        jobs, newest_job, kept_jobs = self._jobs()
        # Numbers are nearly dense (one may be drawn and never used), so where some are missing, and the store is so
        # full that it forgets, some were forgotten.
        lacks_executions = len(began) < newest - self._before
        lacks_jobs = kept_jobs < newest_job - self._job_before
        is_forgetful = (lacks_executions and self._is_full(self._store.executionsCount(), EXECUTIONS)) or (
            lacks_jobs and self._is_full(self._core.jobsList(None).size(), JOBS)
        )
        executions = [Execution(self._store, execution) for execution in began]
        return Look(executions, jobs, is_forgetful, self._core, self._jvm)

    def _is_full(self, kept: int, setting: str) -> bool:
        """Whether a store may have forgotten: above its bound it drops down to nine tenths of it."""
        return kept >= 0.8 * float(self._settings.get(setting, "1000"))

    def _newest(self) -> int:
        last = self._listed(1)
        return last[-1] if last else -1

    def _began(self) -> tuple[list[int], int]:
        newest = self._newest()
        listed = self._listed(newest - self._before)
        return [execution for execution in listed if execution > self._before], newest

    def _listed(self, count: int) -> list[int]:
        """The newest ``count`` executions, oldest first."""
        kept = int(self._store.executionsCount())
        count = min(count, kept)
        if count < 1:
            return []
        listed: Any = self._store.executionsList(kept - count, count)
        return [int(data.executionId()) for data in _each(listed)]

    def _newest_job(self) -> int:
        listed: Any = self._core.jobsList(None)
        return int(listed.apply(0).jobId()) if listed.size() else -1

    def _jobs(self) -> tuple[list[Job], int, int]:
        """The jobs of RDDs since this was made, oldest first; the newest job's number, and how many are kept."""
        listed: Any = self._core.jobsList(None)
        found: list[Job] = []
        newest, kept = self._job_before, 0
        for index in range(listed.size()):
            data: Any = listed.apply(index)
            number = int(data.jobId())
            if number <= self._job_before:
                break
            newest, kept = max(newest, number), kept + 1
            tags = str(data.jobTags())
            if _ROOT_TAG not in tags:
                found.append(Job(self._core, number, JOB_TAG in tags))
        return found[::-1], newest, kept


class Look:
    """What ran between two moments: ``executions`` and ``jobs`` (of RDDs), oldest first."""

    def __init__(self, executions: list[Execution], jobs: list[Job], is_forgetful: bool, core: Any, jvm: Any) -> None:
        self.executions = executions
        self.jobs = jobs
        self.is_forgetful = is_forgetful
        self._core = core
        self._jvm = jvm

    def actions(self, places: Places) -> list[Action]:
        """What was done with the rows at ``places``, in the order in which it began."""
        found = [action for execution in self.executions if (action := self._of_execution(execution, places))]
        found += [action for job in self.jobs if (action := self._of_job(job))]
        found += self._found_none(places)
        return sorted(found, key=lambda action: action.began_ms)

    def is_pruned(self, places: Places) -> bool:
        """Whether Spark planned to read the rows for an action that delivers, and then found that it need not."""
        return any(self._needs_none(execution, places) for execution in self.executions)

    def evaluations(self, places: Places) -> int:
        """How many actions have read the rows to the end of a task. Jobs of an iterator are one."""
        ended = [note for note in places.notes if note.kind == "end"]
        executions = {note.execution for note in ended if note.execution >= 0}
        stages = {note.stage for note in ended if note.execution < 0}
        jobs = {
            job.action if job.action in ("toLocalIterator", "runJob at PythonRDD") else job.number
            for job in self.jobs
            if not stages.isdisjoint(job.stages)
        }
        return len(executions) + len(jobs)

    def names(self, function: str) -> bool:
        """Whether something ran whose plan names ``function``."""
        return any(function in execution.plan for execution in self.executions)

    def has_user_code(self, function: str) -> bool:
        """Whether something ran over the rows of ``function`` that may hold a ``Collector``: a job of RDDs, or a
        function of the user's over batches."""
        return any(self._is_over_tracked_rows(job) for job in self.jobs) or any(
            any(way.is_unproven for way in execution.graph.places(Places((function,))))
            for execution in self.executions
            if function in execution.plan
        )

    def has_arrow_code(self) -> bool:
        """Whether a job of RDDs ran a function over Arrow columns, as ``ack()`` is."""
        return any("ArrowEvalPython" in self._dot(stage) for job in self.jobs for stage in job.stages)

    def _of_execution(self, execution: Execution, places: Places) -> Action | None:
        if places.are_in(execution.plan):
            above, is_proven = execution.graph.places(places), True
            if not above:
                return self._pruned(execution, places)
        else:
            above, is_proven = self._behind_an_rdd(execution, places)
        if not above:
            return None
        parent = self._writing_parent(execution)
        delivers = parent is not None or any(way.writes for way in above)
        delivers = delivers or (execution.collects and not all(way.aggregates or way.cut for way in above))
        failure = execution.failure or (parent.failure if parent else "")
        # An aggregate takes in all rows and hands none on; beside a way that does it says nothing.
        ways = [way for way in above if not way.groups] or above
        is_whole = is_proven and any(not way.is_cut(places.cut) for way in ways)
        if not failure and not (delivers and is_whole) and execution.found_none(places):
            return Action("found none", True, True, execution.began_ms, execution.ended_ms)
        did = _did(execution, above, delivers, is_whole)
        ended_ms = max(execution.ended_ms, parent.ended_ms if parent else 0)
        return Action(did, delivers, is_whole, execution.began_ms, ended_ms, failure)

    def _pruned(self, execution: Execution, places: Places) -> Action | None:
        """An execution that needed no rows in the end: what it wrote, it wrote without them."""
        if execution.failure and execution.graph.writes:
            return Action("tried to write them", True, False, execution.began_ms, execution.ended_ms, execution.failure)
        if not self._needs_none(execution, places):
            return None
        return Action("wrote them", True, True, execution.began_ms, execution.ended_ms, execution.failure)

    def _needs_none(self, execution: Execution, places: Places) -> bool:
        """Whether an execution was planned over the rows, hands on what it made, and was then adapted to do without.

        A command names the plan of what it runs in an execution of its own; that one is the evidence, then.
        """
        has_child = any(
            other.number > execution.number and other.root == execution.root and execution.encloses(other)
            for other in self.executions
        )
        is_planned = execution.is_adaptive and places.are_in(execution.plan) and not has_child and not places.below
        if not is_planned or any(re.search(rf"\b{cut}\b", execution.plan) for cut in CUTS):
            return False
        hands_on = execution.graph.writes or execution.collects or self._writing_parent(execution) is not None
        return hands_on and not execution.graph.places(places)

    def _behind_an_rdd(self, execution: Execution, places: Places) -> tuple[list[Way], bool]:
        """The ways from a scan of an RDD up, where the RDD holds these rows, and whether all of them were read."""
        if "ExistingRDD" not in execution.plan:
            return [], False
        noted = [note for note in places.notes if note.kind == "part" and note.execution == execution.number]
        # Of one that failed nothing is noted; it may have been over these rows.
        if not noted and not (execution.failure and execution.graph.has(ITERATING)):
            return [], False
        return execution.graph.over("Scan ExistingRDD"), not places.cut and self._has_all(noted, places)

    def _writing_parent(self, execution: Execution) -> Execution | None:
        """The command that ran this execution as a part of its own, as a write over JDBC does."""
        if execution.root == execution.number:
            return None
        for other in self.executions:
            is_before = other.number < execution.number and other.root == execution.root
            if is_before and other.encloses(execution) and other.graph.writes:
                return other
        return None

    def _of_job(self, job: Job) -> Action | None:
        """A job of RDDs that failed, and that nobody has seen fail: it may have been over these rows. What succeeds is
        seen by who called it, or proves nothing."""
        if job.is_seen or job.action in _LOOKS:
            return None
        # To be asked in this order: a job of somebody else's that runs on is not waited for.
        if not (job.has_ended or self._is_over_tracked_rows(job)) or not job.failure:
            return None
        if not self._is_over_tracked_rows(job):
            return None
        return Action(f"ran {job.action}", True, False, job.began_ms, job.ended_ms, job.failure)

    def _found_none(self, places: Places) -> list[Action]:
        """A look at an RDD runs a job for some partitions after the other; together they may have found no row."""
        jobs = [job for job in self.jobs if job.action in _LOOKS and not job.failure]
        noted = [note for note in places.notes for job in jobs if note.stage in job.stages]
        if not noted or not self._has_all(noted, places) or not _are_empty(noted):
            return []
        jobs = [job for job in jobs if any(note.stage in job.stages for note in noted)]
        return [Action("found none", True, True, jobs[0].began_ms, max(job.ended_ms for job in jobs))]

    def _has_all(self, noted: Iterable[Note], places: Places) -> bool:
        read: dict[tuple[str, int], set[int]] = defaultdict(set)
        for note in noted:
            if note.kind == "part":
                read[note.tag, note.rdd].add(note.index)
        return any(len(read[rdd]) == count for rdd, count in places.partitions.items())

    def _is_over_tracked_rows(self, job: Job) -> bool:
        """Whether a job of RDDs computes tracked frames; Spark names their operators there, and not whose they are."""
        return any(name in self._dot(stage) for stage in job.stages for name in ("MapInArrow", "ArrowEvalPython"))

    def _dot(self, stage: int) -> str:
        try:
            graph = self._core.operationGraphForStage(stage)
            return str(self._jvm.org.apache.spark.ui.scope.RDDOperationGraph.makeDotFile(graph))
        except Exception:  # a stage that Spark skipped, or has forgotten, has no graph
            return ""


@dataclass(frozen=True, slots=True)
class Way:
    """From a place in a plan up to its top: the names of the nodes above; the first ``cut``, as Spark describes it;
    whether rows are grouped, and whether they become one row (an aggregate without keys); the functions of the user's
    over batches that ``reads`` them; whether one of these is not watched."""

    names: tuple[str, ...]
    cut: str
    groups: bool
    aggregates: bool
    reads: tuple[str, ...]
    is_unproven: bool

    def is_cut(self, cut: Collection[str]) -> bool:
        """Whether not all rows came through; ``cut``: the functions that have left rows unread."""
        return bool(self.cut) or self.is_unproven or any(function in text for text in self.reads for function in cut)

    @property
    def writes(self) -> bool:
        return any(_WRITES.match(name) for name in self.names)


class Graph:
    """The physical plan of an execution, as Spark keeps it."""

    def __init__(self, graph: Any) -> None:
        self._nodes: dict[int, tuple[str, str]] = {}
        self._metrics: dict[int, Any] = {}
        for node in _each(graph.allNodes()):
            number = int(node.id())
            name = str(node.name())
            self._nodes[number] = name, str(node.desc())
            if name in PYTHON:
                self._metrics[number] = node.metrics()
        # More than one where an exchange is used again.
        self._above: dict[int, list[int]] = defaultdict(list)
        for edge in _each(graph.edges()):
            self._above[int(edge.fromId())].append(int(edge.toId()))

    @property
    def writes(self) -> bool:
        """Whether the plan is a write of anything."""
        return any(_WRITES.match(name) for name, _ in self._nodes.values())

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
        # What AQE has put an EmptyRelation in the place of is shown below it, and was not read there.
        return [way for way in ways if "EmptyRelation" not in way.names]

    def over(self, name: str) -> list[Way]:
        """The ways up from each node that is called ``name``."""
        found = [number for number, (called, _) in self._nodes.items() if called == name]
        return [self._way(way) for number in found for way in self._ups(number)]

    def found_none(self, places: Places, values: Any, has_ended: bool) -> bool:
        """Whether nothing came out of any of the places. ``values``: of metrics; ``has_ended``: the execution itself
        has read rows there to the end of a task, and not only what another one has cached."""
        found = self._found(places)
        names = {self._nodes[above][0] for number in found for way in self._ups(number) for above in way}
        if not found or "EmptyRelation" in names or ("InMemoryTableScan" in names and not has_ended):
            return False
        return all(_is_zero(self._metrics[number], values) for number in found)

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
        iterating = [text for name, text in above if name in ITERATING and not _OURS.search(text)]
        reads = tuple(text for text in iterating if READS in text)
        aggregates = any(name in AGGREGATES and _KEYLESS.search(text) for name, text in above)
        return Way(names, cut, groups_at < len(above), aggregates, reads, len(reads) < len(iterating))


def _is_zero(metrics: Any, values: Any) -> bool:
    """Whether a node has put out no rows, as far as its metrics say so at all."""
    rows = [metric for metric in _each(metrics) if metric.name() == "number of output rows"]
    counts = [values.get(metric.accumulatorId()) for metric in rows]
    return bool(counts) and all(count.isDefined() and str(count.get()) == "0" for count in counts)


def _are_empty(noted: Sequence[Note]) -> bool:
    return all(note.is_empty for note in noted if note.kind == "part")


def _groups(aggregate: str) -> bool:
    """Whether an aggregate computes something of its rows; a distinct hands on rows, and a cut behind it cuts rows."""
    return "functions=[]" not in aggregate


class Execution:
    """One execution of SQL in Spark's store; it is waited for until it has ended, when that is asked for."""

    def __init__(self, store: Any, number: int) -> None:
        self.number = number
        self._store = store

    @cached_property
    def plan(self) -> str:
        """The plan as text, before and after it was adapted."""
        return str(self._data.physicalPlanDescription())

    @property
    def is_adaptive(self) -> bool:
        return "AdaptiveSparkPlan" in self.plan

    @cached_property
    def graph(self) -> Graph:
        self._ended  # noqa: B018 (the plan is the last one only when it has ended)
        return Graph(self._store.planGraph(self.number))

    @cached_property
    def root(self) -> int:
        return int(self._data.rootExecutionId())

    @cached_property
    def method(self) -> str:
        """The method of Spark's that began it, as ``Dataset.collectToPython``."""
        return str(self._data.details()).partition("\n")[0].partition("(")[0]

    @property
    def collects(self) -> bool:
        return any(name in self.method for name in _COLLECTS)

    @cached_property
    def began_ms(self) -> float:
        return float(self._data.submissionTime())

    @property
    def ended_ms(self) -> float:
        ended = self._ended.completionTime()
        return NEVER_MS if ended.isEmpty() else float(ended.get().getTime())

    @cached_property
    def failure(self) -> str:
        """Why it failed, in one line; nothing ("") when it did not, or still runs."""
        error = self._ended.errorMessage()
        # Success is no message, or an empty one.
        message = str(error.get()).strip() if error.isDefined() else ""
        return message and (gist(message) or "no reason given")

    def found_none(self, places: Places) -> bool:
        """Whether it has looked everywhere and found no rows: then there was nothing to hand on."""
        has_ended = any(note.kind == "end" and note.execution == self.number for note in places.notes)
        return self.graph.found_none(places, self._store.executionMetrics(self.number), has_ended)

    def encloses(self, other: Execution) -> bool:
        """Whether ``other`` ran within this one."""
        return self.began_ms <= other.began_ms and other.ended_ms <= self.ended_ms

    @cached_property
    def _data(self) -> Any:
        return self._store.execution(self.number).get()

    @cached_property
    def _ended(self) -> Any:
        return _ended(lambda: self._store.execution(self.number).get())


class Job:
    """One job of RDDs in Spark's store. ``is_seen``: whoever called it sees what becomes of it (``following``)."""

    def __init__(self, core: Any, number: int, is_seen: bool) -> None:
        self.number = number
        self.is_seen = is_seen
        self._core = core

    @cached_property
    def action(self) -> str:
        """What began it: ``collect``, ``foreachPartition``; ``runJob at`` and where, when Spark's own code did."""
        what, _, where = str(self._known.name()).partition(" at ")
        return f"{what} at {where.partition('.')[0]}" if what == "runJob" else what

    @cached_property
    def stages(self) -> frozenset[int]:
        return frozenset(int(stage) for stage in _each(self._known.stageIds()))

    @property
    def has_ended(self) -> bool:
        """Whether it has, without waiting for it."""
        return not self._known.completionTime().isEmpty()

    @cached_property
    def failure(self) -> str:
        status = str(self._ended.status().toString())
        return "" if status == "SUCCEEDED" else f"its job {status.lower()}"

    @cached_property
    def began_ms(self) -> float:
        return float(self._known.submissionTime().get().getTime())

    @cached_property
    def ended_ms(self) -> float:
        ended = self._ended.completionTime()
        return NEVER_MS if ended.isEmpty() else float(ended.get().getTime())

    @cached_property
    def _known(self) -> Any:
        return self._core.job(self.number)

    @cached_property
    def _ended(self) -> Any:
        return _ended(lambda: self._core.job(self.number))


def _ended(read: Callable[[], Any]) -> Any:
    """What a store knows. It writes an end down from a thread of its own, after a moment."""
    until = time.monotonic() + END_WAIT_S
    while True:
        data = read()
        if not data.completionTime().isEmpty() or time.monotonic() > until:
            return data
        time.sleep(END_LOOK_S)


def _did(execution: Execution, ways: Sequence[Way], delivers: bool, is_whole: bool) -> str:
    method = ".".join(execution.method.split(".")[-2:])
    if method in _DID:
        return _DID[method]
    cut = next((way.cut for way in ways if way.cut), "")
    if cut:
        number = _LIMIT.search(cut)
        return f"{'wrote' if delivers and not execution.collects else 'read'} {number[1] if number else 'a part'}"
    if delivers and not is_whole:
        return (
            "handed them to a function (mapInArrow, mapInPandas) that need not have read them all: one that stops"
            " early, or over a frame that does not begin with the sink's own (not other.join(rows): rows.join(other))"
        )
    if delivers:
        return "wrote them"
    return "aggregated them" if all(way.aggregates for way in ways) else f"ran {method} over them"


def _each(sequence: Any) -> Iterator[Any]:
    for index in range(sequence.size()):
        yield sequence.apply(index)
