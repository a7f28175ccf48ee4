"""Executions: the SQL executions and RDD jobs that Spark's own stores recorded.

Decides what has run since a given moment, whether the stores may have forgotten some of it, and how long to wait until
Spark has recorded an end. Reads no rows, only Spark's stores, which are complete even without Spark's UI.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from pyspark.sql import SparkSession

from acker_client.error_text import shorten
from acker_client.spark.commit_evidence.evidence import NEVER_MS, Target
from acker_client.spark.commit_evidence.graph import Graph, Places, each
from acker_client.spark.commit_evidence.shape import shape_of
from acker_client.spark.driver.lineage import JOB_TAG
from acker_client.spark.worker.notes import EXECUTION

# Spark's methods that hand rows to the driver.
_COLLECTS = ("collectToPython", "collectAsArrowToPython")

# How many of the newest executions are searched for an earlier evaluation of the same frame.
LOOK_BACK = 50

# Settings: how many executions and jobs Spark keeps. Spark drops the oldest ones without a trace.
EXECUTIONS, JOBS = "spark.sql.ui.retainedExecutions", "spark.ui.retainedJobs"

# Spark itself waits 10 s for its listeners. A driver that writes a large event log can be further behind.
BUS_WAIT_MS = 300_000

# How long Spark may take to record the end of an action that has returned, and how often it is polled.
END_WAIT_S = 2.0
END_LOOK_S = 0.01

# Messages name the target of a command by this many characters of its text.
PLACE_CHARS = 120

_ROOT_TAG = "execution-root-id-"


class Executions:
    """The SQL executions and RDD jobs that begin after this object was made."""

    def __init__(self, spark: SparkSession) -> None:
        # py4j gives Java objects no type that a checker could use.
        session: Any = spark._jsparkSession
        context: Any = session.sparkContext()
        self._jvm: Any = spark._jvm
        self._settings: Any = context.conf()
        self._store: Any = session.sharedState().statusStore()
        self._core: Any = context.statusStore()
        self._bus: Any = context.listenerBus()
        self._sources: Any = session.sessionState().dataSourceManager()
        # In foreachBatch the thread runs within an execution, and its RDD jobs have that execution's tag.
        self._is_within = context.getLocalProperty(EXECUTION) is not None
        self._bus.waitUntilEmpty(BUS_WAIT_MS)
        self._before = self._newest()
        self._job_before = self._newest_job()

    def have_run(self, functions: Collection[str]) -> bool:
        """Whether a step with one of these ``functions`` has run in one of the last executions."""
        self._bus.waitUntilEmpty(BUS_WAIT_MS)
        for execution in reversed(self._newest_ids(LOOK_BACK)):
            plan = str(self._store.execution(execution).get().physicalPlanDescription())
            if any(function in plan for function in functions):
                return True
        return False

    def ran(self) -> Ran:
        """Return what has run so far."""
        self._bus.waitUntilEmpty(BUS_WAIT_MS)
        began, newest = self._began()
        jobs, newest_job, kept_jobs = self._jobs(self._jobs_of(began) if self._is_within else frozenset())
        # Ids are nearly dense (Spark may draw one and never use it). So if ids are missing and the store is full enough
        # to drop entries, some were dropped.
        lacks_executions = len(began) < newest - self._before
        lacks_jobs = kept_jobs < newest_job - self._job_before
        is_forgetful = (lacks_executions and self._is_full(self._store.executionsCount(), EXECUTIONS)) or (
            lacks_jobs and self._is_full(self._core.jobsList(None).size(), JOBS)
        )
        executions = [Execution(self._store, execution, self._is_python_source) for execution in began]
        return Ran(executions, jobs, is_forgetful)

    def _is_python_source(self, table: str) -> bool:
        return bool(self._sources.dataSourceExists(table))

    def _is_full(self, kept: int, setting: str) -> bool:
        """Whether a store may have dropped entries.

        A store above its limit is cut down to nine tenths of the limit. Spark may still be dropping entries at this
        moment, so this takes eight tenths.
        """
        return kept >= 0.8 * float(self._settings.get(setting, "1000"))

    def _newest(self) -> int:
        last = self._newest_ids(1)
        return last[-1] if last else -1

    def _began(self) -> tuple[list[int], int]:
        newest = self._newest()
        listed = self._newest_ids(newest - self._before)
        return [execution for execution in listed if execution > self._before], newest

    def _newest_ids(self, count: int) -> list[int]:
        """Return the ids of the newest ``count`` executions, oldest first."""
        kept = int(self._store.executionsCount())
        count = min(count, kept)
        if count < 1:
            return []
        listed: Any = self._store.executionsList(kept - count, count)
        return [int(data.executionId()) for data in each(listed)]

    def _newest_job(self) -> int:
        listed: Any = self._core.jobsList(None)
        return int(listed.apply(0).jobId()) if listed.size() else -1

    def _jobs_of(self, executions: Sequence[int]) -> frozenset[int]:
        """Return the job ids of these executions; jobs that still run may be missing."""
        numbers = (each(self._store.execution(number).get().jobs().keySet().toSeq()) for number in executions)
        return frozenset(int(number) for listed in numbers for number in listed)

    def _jobs(self, of_executions: Collection[int]) -> tuple[list[Job], int, int]:
        """Return the RDD jobs since this object was made, oldest first; the newest job's id; and the number of jobs.

        If this thread runs within an execution, RDD jobs are the jobs that are not in ``of_executions``. Otherwise RDD
        jobs are the jobs without an execution's tag.
        """
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
            is_of_rdds = number not in of_executions if self._is_within else _ROOT_TAG not in tags
            if is_of_rdds:
                found.append(Job(self._core, self._jvm, number, JOB_TAG in tags))
        return found[::-1], newest, kept


@dataclass(frozen=True, slots=True)
class Ran:
    """SQL ``executions`` and RDD ``jobs`` between two moments, oldest first. ``is_forgetful``: Spark's stores have
    dropped some of them."""

    executions: list[Execution]
    jobs: list[Job]
    is_forgetful: bool


class Execution:
    """One SQL execution in Spark's store. Properties that depend on its end wait until Spark has recorded the end."""

    def __init__(self, store: Any, number: int, is_python_source: Callable[[str], bool]) -> None:
        self.number = number
        self._store = store
        self._is_python_source = is_python_source

    @cached_property
    def plan(self) -> str:
        """The plan as text, before and after adaptive changes."""
        return str(self._data.physicalPlanDescription())

    @property
    def is_adapted(self) -> bool:
        return "isFinalPlan=true" in self.plan

    @cached_property
    def graph(self) -> Graph:
        self._ended  # noqa: B018 (only then is the plan the final one)
        return Graph(self._store.planGraph(self.number), self._is_python_source)

    @cached_property
    def root(self) -> int:
        return int(self._data.rootExecutionId())

    @cached_property
    def method(self) -> str:
        """Spark's method that began the execution, such as ``Dataset.collectToPython``. If one of the client's own
        calls began the execution, this is the call site that the client has set for that call."""
        return str(self._data.details()).partition("\n")[0].partition("(")[0]

    @cached_property
    def has_jobs(self) -> bool:
        """Whether this execution itself ran a job."""
        return not self._ended.jobs().isEmpty()

    def target(self, places: Places) -> Target:
        """Return the target to which this execution delivers the rows at ``places``."""
        if self.method in places.calls:
            return places.calls[self.method]
        place = self.graph.writing.removeprefix("Execute ")[:PLACE_CHARS] or self.method.rpartition(".")[2]
        shape = shape_of(self.plan, places.functions)
        return Target(place, (self.collects, shape)) if shape else Target.unlike(place)

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
        """Why it failed, in one line; "" if it did not fail, or still runs."""
        return self.message and (shorten(self.message) or "no reason given")

    @cached_property
    def message(self) -> str:
        """Spark's message about its failure; "" if it did not fail."""
        error = self._ended.errorMessage()
        # An execution that succeeded has no message, or an empty one.
        return str(error.get()).strip() if error.isDefined() else ""

    def found_none(self, places: Places) -> bool:
        """Whether it has read everything at ``places`` and found no rows, so that there was nothing to deliver."""
        has_ended = any(note.kind == "end" and note.execution == self.number for note in places.notes)
        return self.graph.found_none(places, self._store.executionMetrics(self.number), has_ended)

    @cached_property
    def has_left_out(self) -> bool:
        """Whether it may have skipped its write because the target exists. It may have run jobs all the same: Spark
        runs the plan below an exchange before it plans the part above."""
        self._ended  # noqa: B018 (only then are the metrics complete)
        return self.graph.has_left_out(self._store.executionMetrics(self.number))

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
    """One RDD job in Spark's store.

    ``is_seen``: the client made the call that began the job, so the module ``following`` observes how that call ends.
    """

    def __init__(self, core: Any, jvm: Any, number: int, is_seen: bool) -> None:
        self.number = number
        self.is_seen = is_seen
        self._core = core
        self._jvm = jvm

    @cached_property
    def action(self) -> str:
        """The call that began the job, such as ``collect``. If Spark's own code began the job, this is ``runJob at``
        and the name of a source file of Spark."""
        what, _, where = str(self._known.name()).partition(" at ")
        return f"{what} at {where.partition('.')[0]}" if what == "runJob" else what

    @cached_property
    def stages(self) -> frozenset[int]:
        return frozenset(int(stage) for stage in each(self._known.stageIds()))

    @property
    def has_ended(self) -> bool:
        """Whether it has ended; does not wait for the end."""
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

    def computes(self, *operators: str) -> bool:
        """Whether one of its stages computes one of these SQL operators."""
        return any(operator in self._dot(stage) for stage in self.stages for operator in operators)

    def _dot(self, stage: int) -> str:
        try:
            graph = self._core.operationGraphForStage(stage)
            return str(self._jvm.org.apache.spark.ui.scope.RDDOperationGraph.makeDotFile(graph))
        except Exception:  # noqa: BLE001  # a stage that Spark skipped or dropped has no graph
            return ""

    @cached_property
    def _known(self) -> Any:
        return self._core.job(self.number)

    @cached_property
    def _ended(self) -> Any:
        return _ended(lambda: self._core.job(self.number))


def _ended(read: Callable[[], Any]) -> Any:
    """Return a store's record, once it has an end or ``END_WAIT_S`` has passed: Spark records ends asynchronously."""
    until = time.monotonic() + END_WAIT_S
    while True:
        data = read()
        if not data.completionTime().isEmpty() or time.monotonic() > until:
            return data
        time.sleep(END_LOOK_S)
