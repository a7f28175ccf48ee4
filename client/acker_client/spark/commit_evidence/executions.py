"""Executions: the SQL executions and RDD jobs that Spark's own stores recorded.

Decides what has run since a given moment, whether the stores may have forgotten some of it, and how long to wait until
Spark has recorded an end. Reads no rows, only Spark's stores, which are complete even without Spark's UI.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from pyspark.sql import SparkSession

from acker_client.error_text import shorten
from acker_client.spark.commit_evidence import turns
from acker_client.spark.commit_evidence.evidence import NEVER_MS, Target
from acker_client.spark.commit_evidence.graph import Graph, Places
from acker_client.spark.commit_evidence.shape import shape_of
from acker_client.spark.driver.lineage import JOB_TAG, TAG_CHARS
from acker_client.spark.driver.stores import Forgotten, Record, Stores
from acker_client.spark.worker.notes import EXECUTION

# Spark's methods that hand rows to the driver.
_COLLECTS = ("collectToPython", "collectAsArrowToPython")

# How many of the newest executions are searched for an earlier evaluation of the same frame, and for running writes.
LOOK_BACK = 50

# Settings: how many executions and jobs Spark keeps. Spark drops the oldest ones without a trace.
EXECUTIONS, JOBS = "spark.sql.ui.retainedExecutions", "spark.ui.retainedJobs"

# Spark itself waits 10 s for its listeners. A driver that writes a large event log can be further behind.
BUS_WAIT_MS = 300_000

# How long Spark may take to record the end of an action that has returned, and how often it is polled.
END_WAIT_S = 2.0
END_LOOK_S = 0.01

# Matches Spark's description of a command that writes files, and takes the folder out of it, up to the first ", ". So
# two folders with ", " in their names may look like one. The partition of a static insert comes after the folder.
_FOLDER = re.compile(r"Execute InsertIntoHadoopFsRelationCommand (\S.*?), ")

# The end of a plan's text that Spark has cut off (`spark.sql.maxPlanStringLength`).
_CUT_OFF = re.compile(r"(\.\.\. \d+ more characters|Truncated plan of \d+ characters)\s*$")

# Messages name the target of a command by this many characters of its text.
PLACE_CHARS = 120

# Match the tag of a followed RDD's jobs, and the tag that Spark gives to an execution's jobs. Users may give any other
# tag to their jobs.
_FOLLOWED_TAG = re.compile(rf"{JOB_TAG}[0-9a-f]{{{TAG_CHARS}}}")
_ROOT_TAG = re.compile(r"(spark-session-.+-)?execution-root-id-\d+")


class Executions:
    """The SQL executions and RDD jobs that begin after this object was made."""

    def __init__(self, spark: SparkSession) -> None:
        self._stores = Stores(spark)
        self._settings = self._stores.context_settings
        # In foreachBatch the thread runs within an execution, and its RDD jobs have that execution's tag.
        self._is_within = spark.sparkContext.getLocalProperty(EXECUTION) is not None
        self._stores.wait_until_recorded(BUS_WAIT_MS)
        self._before = max((_id_of(each) for each in self._stores.executions(most=1)), default=-1)
        # Executions that began before and still run, if a sink is writing. Must come after the line above: a write with
        # an id up to `_before` took its turn before it began.
        newest = self._stores.executions(most=LOOK_BACK) if turns.is_any_sink_writing() else []
        still_run = [_id_of(each) for each in newest if each["completionTime"] is None]
        self._running = [number for number in still_run if number <= self._before]
        self._job_before = max((int(each["jobId"]) for each in self._stores.jobs(most=1)), default=-1)

    def have_run(self, functions: Collection[str]) -> bool:
        """Whether a step with one of these ``functions`` has run in one of the last executions."""
        self._stores.wait_until_recorded(BUS_WAIT_MS)
        return any(self._names(data, functions) for data in self._stores.executions(most=LOOK_BACK))

    def running_jobs(self, functions: Collection[str]) -> list[int]:
        """Return the ids of the jobs that run now for executions with a step that has one of these ``functions``."""
        found: list[int] = []
        for data in self._stores.executions(self._before):
            if data["completionTime"] is None and self._names(data, functions):
                found += [int(job) for job, status in data["jobs"].items() if status == "RUNNING"]
        return found

    def _names(self, data: Record, functions: Collection[str]) -> bool:
        """Whether the plan of an execution names one of ``functions``."""
        try:
            plan = Execution(self._stores, data).plan
        except Forgotten:
            # Spark has dropped the execution meanwhile. So the text is all there is, even if it was cut off.
            plan = str(data["physicalPlanDescription"])
        return any(function in plan for function in functions)

    def ran(self) -> Ran:
        """Return what has run so far."""
        self._stores.wait_until_recorded(BUS_WAIT_MS)
        began = self._stores.executions(self._before)
        jobs = self._stores.jobs(self._job_before)
        # Ids are nearly dense (Spark may draw one and never use it). So if ids are missing and the store is full enough
        # to drop entries, some were dropped.
        lacks_executions = len(began) < max(map(_id_of, began), default=self._before) - self._before
        lacks_jobs = len(jobs) < max((int(job["jobId"]) for job in jobs), default=self._job_before) - self._job_before
        is_forgetful = (lacks_executions and self._is_full(self._stores.executions_kept(), EXECUTIONS)) or (
            lacks_jobs and self._is_full(self._stores.jobs_kept(), JOBS)
        )
        executions = [Execution(self._stores, data) for data in began]
        try:
            earlier = [Execution(self._stores, self._stores.execution(number)) for number in self._running]
            for each in earlier:
                each.folder  # noqa: B018 (cached from here on: Spark may drop the plan later)
        except Forgotten:
            earlier, is_forgetful = [], True
        return Ran(executions, self._jobs_of_rdds(jobs, began), is_forgetful, earlier)

    def _is_full(self, kept: int, setting: str) -> bool:
        """Whether a store may have dropped entries.

        Spark cuts a store that is above its limit down to nine tenths of the limit. It may still be dropping entries at
        this moment, so a store with eight tenths counts as full.
        """
        return kept >= 0.8 * float(self._settings.get(setting, "1000"))

    def _jobs_of_rdds(self, jobs: Sequence[Record], executions: Sequence[Record]) -> list[Job]:
        """Return the RDD jobs among ``jobs``, oldest first. ``jobs`` has the newest first.

        If this thread runs within an execution, RDD jobs are the jobs that are not in ``executions``. A job that still
        runs may be missing there, and then counts as an RDD job. Otherwise RDD jobs are the jobs without an execution's
        tag.
        """
        of_executions = {int(number) for data in executions for number in data["jobs"]} if self._is_within else set()
        found: list[Job] = []
        for data in reversed(jobs):
            tags = data["jobTags"]
            has_root = int(data["jobId"]) in of_executions if self._is_within else any(map(_ROOT_TAG.fullmatch, tags))
            if not has_root:
                found.append(Job(self._stores, data, any(map(_FOLLOWED_TAG.fullmatch, tags))))
        return found


@dataclass(frozen=True, slots=True)
class Ran:
    """SQL ``executions`` and RDD ``jobs`` between two moments, oldest first. ``is_forgetful``: Spark's stores have
    dropped some of them. ``earlier``: executions that still ran at the first moment, if a sink was writing then."""

    executions: list[Execution]
    jobs: list[Job]
    is_forgetful: bool
    earlier: Sequence[Execution] = ()


class Execution:
    """One SQL execution in Spark's store. Properties that depend on its end wait until Spark has recorded the end.

    ``data``: its record when the store was read. A later read raises ``Forgotten`` if Spark has dropped the execution.
    """

    def __init__(self, stores: Stores, data: Record) -> None:
        self.number = _id_of(data)
        self._stores = stores
        self._data = data

    @cached_property
    def plan(self) -> str:
        """The plan as text, before and after adaptive changes. If Spark has cut the text off, the nodes of the plan as
        it is now come after it."""
        text = str(self._data["physicalPlanDescription"])
        return "\n".join([text, *self._graph_so_far.texts]) if self.is_cut_off else text

    @property
    def is_cut_off(self) -> bool:
        """Whether Spark has cut off the text of the plan, so that it does not show every node."""
        return _CUT_OFF.search(str(self._data["physicalPlanDescription"])) is not None

    @property
    def is_adapted(self) -> bool:
        return "isFinalPlan=true" in self.plan

    @cached_property
    def graph(self) -> Graph:
        self._ended  # noqa: B018 (only then is the plan the final one)
        return self._read_graph()

    @cached_property
    def root(self) -> int:
        return int(self._data["rootExecutionId"])

    @cached_property
    def method(self) -> str:
        """Spark's method that began the execution, such as ``Dataset.collectToPython``. If one of the client's own
        calls began the execution, this is the call site that the client has set for that call."""
        return str(self._data["details"]).partition("\n")[0].partition("(")[0]

    @cached_property
    def has_jobs(self) -> bool:
        """Whether this execution itself ran a job."""
        return bool(self._ended["jobs"])

    def target(self, places: Places) -> Target:
        """Return the target to which this execution delivers the rows at ``places``."""
        if self.method in places.calls:
            return places.calls[self.method]
        place = self.graph.writing.removeprefix("Execute ")[:PLACE_CHARS] or self.method.rpartition(".")[2]
        shape = "" if self.is_cut_off else shape_of(self.plan, places.functions)
        return Target(place, (self.collects, shape)) if shape else Target.unlike(place)

    @cached_property
    def folder(self) -> str:
        """The folder into which it writes files; "" if it writes none. Does not wait for its end."""
        # Read the plan's graph, not its text: Spark may cut the text off, and its form is an option of the session.
        found = _FOLDER.match(self._graph_so_far.writing)
        return found[1] if found else ""

    @property
    def collects(self) -> bool:
        return any(name in self.method for name in _COLLECTS)

    @cached_property
    def began_ms(self) -> float:
        return float(self._data["submissionTime"])

    @property
    def ended_ms(self) -> float:
        return _ended_ms(self._ended)

    @cached_property
    def failure(self) -> str:
        """Why it failed, in one line; "" if it did not fail, or still runs."""
        return self.message and (shorten(self.message) or "no reason given")

    @cached_property
    def message(self) -> str:
        """Spark's message about its failure; "" if it did not fail."""
        # An execution that succeeded has no message, or an empty one.
        return str(self._ended["errorMessage"] or "").strip()

    def found_none(self, places: Places) -> bool:
        """Whether it has read everything at ``places`` and found no rows, so that there was nothing to deliver."""
        has_read_alone = {note.execution for note in places.notes if note.kind == "end"} == {self.number}
        return self.graph.found_none(places, self._metrics, has_read_alone)

    @cached_property
    def has_left_out(self) -> bool:
        """Whether it may have skipped its write because the target exists. It may have run jobs all the same: Spark
        runs the plan below an exchange before it plans the part above."""
        self._ended  # noqa: B018 (only then are the metrics complete)
        return self.graph.has_left_out(self._metrics)

    def encloses(self, other: Execution) -> bool:
        """Whether ``other`` ran within this one."""
        return self.began_ms <= other.began_ms and other.ended_ms <= self.ended_ms

    def writes_beside(self, other: Execution) -> bool:
        """Whether this one and ``other`` wrote files into one folder at the same time, and neither ran within the
        other."""
        is_within = other.root == self.number or self.root == other.number
        if is_within or other.began_ms >= self.ended_ms or _ended_ms(other._data) <= self.began_ms:
            return False
        # The end of ``other`` comes last, because it is waited for.
        return bool(self.folder) and other.folder == self.folder and other.ended_ms > self.began_ms

    @property
    def _graph_so_far(self) -> Graph:
        """The plan, without waiting for the end of the execution."""
        return self._read_graph() if self._data["completionTime"] is None else self.graph

    def _read_graph(self) -> Graph:
        return Graph(self._stores.plan_graph(self.number), self._stores.is_python_source)

    @property
    def _metrics(self) -> Mapping[str, str]:
        """The values of its metrics. Spark puts them into the record when all its jobs have ended."""
        values: Mapping[str, str] | None = self._ended["metricValues"]
        return self._stores.metrics(self.number) if values is None else values

    @cached_property
    def _ended(self) -> Record:
        return _ended(self._data, lambda: self._stores.execution(self.number))


class Job:
    """One RDD job in Spark's store. ``data``: its record when the store was read.

    ``is_seen``: the client made the call that began the job, so the module ``following`` observes how that call ends.
    """

    def __init__(self, stores: Stores, data: Record, is_seen: bool) -> None:
        self.number = int(data["jobId"])
        self.is_seen = is_seen
        self._stores = stores
        self._data = data

    @cached_property
    def action(self) -> str:
        """The call that began the job, such as ``collect``. If Spark's own code began the job, this is ``runJob at``
        and the name of a source file of Spark."""
        what, _, where = str(self._data["name"]).partition(" at ")
        return f"{what} at {where.partition('.')[0]}" if what == "runJob" else what

    @cached_property
    def stages(self) -> frozenset[int]:
        return frozenset(map(int, self._data["stageIds"]))

    @property
    def has_ended(self) -> bool:
        """Whether it has ended; does not wait for the end."""
        return self._data["completionTime"] is not None

    @cached_property
    def failure(self) -> str:
        status = str(self._ended["status"])
        return "" if status == "SUCCEEDED" else f"its job {status.lower()}"

    @cached_property
    def began_ms(self) -> float:
        return float(self._data["submissionTime"])

    @cached_property
    def ended_ms(self) -> float:
        return _ended_ms(self._ended)

    def computes(self, *operators: str) -> bool:
        """Whether one of its stages computes one of these SQL operators, or Spark has dropped one of its stages."""
        return any(not dot or any(operator in dot for operator in operators) for dot in self._dots)

    @cached_property
    def _dots(self) -> list[str]:
        """The operators of its stages, as text; "" for a stage that Spark has dropped. Spark names them when it submits
        the job, also those of stages that it skips."""
        return [self._dot(stage) for stage in self.stages]

    def _dot(self, stage: int) -> str:
        try:
            return self._stores.stage_dot(stage)
        except Exception:  # noqa: BLE001  # a stage that Spark dropped has no graph
            return ""

    @cached_property
    def _ended(self) -> Record:
        return _ended(self._data, lambda: self._stores.job(self.number))


def _id_of(execution: Record) -> int:
    return int(execution["executionId"])


def _ended_ms(record: Record) -> float:
    ended = record["completionTime"]
    return NEVER_MS if ended is None else float(ended)


def _ended(data: Record, read: Callable[[], Record]) -> Record:
    """Wait up to ``END_WAIT_S`` until a store's record has an end, and return it. Spark records ends asynchronously.
    ``data``: the record as it was; ``read`` reads it again."""
    until = time.monotonic() + END_WAIT_S
    while data["completionTime"] is None and time.monotonic() <= until:
        time.sleep(END_LOOK_S)
        data = read()
    return data
