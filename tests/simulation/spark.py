"""Spark: jobs of tasks on executors, with attempts that die, hang, come twice and come late."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Protocol

import pyarrow as pa

from acker_client import AckerClient, Settings
from acker_client.errors import AckerError
from acker_client.rpc.delivery import ReportResult
from acker_client.source.engine.environment import FramePlan
from acker_client.spark.anchoring.anchors import Rows
from acker_client.spark.anchoring.tally import Report
from acker_client.spark.operators.read import Reading
from acker_client.spark.worker.chain import Arriving, Chain, Entry
from tests.simulation.case import Case
from tests.simulation.oracle import Oracle
from tests.simulation.pipeline import (
    CLASSES,
    GROUP,
    ROW,
    VALUE,
    Broken,
    Op,
    Stage,
    groups,
    key_of,
    step_of,
)
from tests.simulation.scheduler import Process, Scheduler
from tests.simulation.threads import GreenQueue
from tests.simulation.transcript import Transcript

TRIES_MAX = 4
SPECULATION_S = 4.0
# Time until the driver notices that an executor is gone.
NOTICE_S = 0.5


class TaskDied(Exception):
    """A drawn failure of a task."""


class JobFailed(Exception):
    """Spark's error for a failed job."""


@dataclass(eq=False)
class Executor:
    """One executor process, or its replacement. ``make_client`` returns a new process's client."""

    name: str
    make_client: Callable[[], AckerClient]
    is_up: bool = True
    client: AckerClient = field(init=False)

    def __post_init__(self) -> None:
        self.client = self.make_client()


@dataclass(eq=False)
class Attempt:
    """One attempt at a task. It is the ``Account`` of its operators, see ``pipeline``."""

    number: int
    job: Job
    stage: int
    partition: int
    executor: Executor
    inputs: list[pa.RecordBatch]
    dice: random.Random
    oracle: Oracle
    fates: frozenset[str]
    rates: dict[str, float]
    sources: list[Attempt] = field(default_factory=list)
    output: list[pa.RecordBatch] = field(default_factory=list)
    process: Process | None = None
    is_over: bool = False
    conflicts: int = 0
    without: frozenset[int] = frozenset()

    def __str__(self) -> str:
        return f"task {self.job.number}.{self.stage}.{self.partition} attempt {self.number}"

    def differs(self, what: str) -> bool:
        rate = self.rates.get(what)
        return rate is not None and self.dice.random() < rate

    def choose(self, count: int) -> int:
        return self.dice.randrange(count)

    def became(self, op: Op, rows: list[int], children: list[list[int] | None]) -> list[int]:
        return self.oracle.became(self.number, op.name, rows, children)

    def branched(self, op: Op, rows: list[int], copies: int) -> list[int]:
        return self.oracle.branched(self.number, op.name, rows, copies, op.index)

    def grouped(self, op: Op, rows: list[int], children: list[tuple[int, list[int]]] | None) -> list[int]:
        return self.oracle.grouped(self.number, op.name, rows, children)

    def wrote(self, op: Op, rows: list[int]) -> None:
        self.oracle.wrote(self.number, op.name, rows)


class World(Protocol):
    """The environment that jobs need."""

    case: Case
    scheduler: Scheduler
    oracle: Oracle
    transcript: Transcript

    def check_leave(self, attempt: Attempt, servers: frozenset[int]) -> None:
        """Check that a report was rightly sent without these servers."""
        ...

    def check_task_error(self, attempt: Attempt, error: Exception, began_at: float) -> None:
        """Check that a task rightly failed because its reports could not be delivered."""
        ...


@dataclass(eq=False)
class Task:
    """One task of a stage, until an attempt at it is done."""

    stage: int
    partition: int
    done: Attempt | None = None
    running: list[Attempt] = field(default_factory=list)
    failures: int = 0
    copies: int = 0


class Spark:
    """A driver's view of its executors."""

    def __init__(self, world: World, executors: list[Executor]) -> None:
        self.world = world
        self.executors = executors
        self.jobs = 0
        self.attempts = 0
        self.running: list[Job] = []

    def lose(self, executor: Executor, down_s: float) -> None:
        """Kill an executor, and replace it after a while."""
        scheduler = self.world.scheduler
        if not executor.is_up:
            return
        self.world.transcript.say(f"{executor.name} dies")
        executor.is_up = False
        scheduler.kill(executor.name)
        for job in self.running:
            scheduler.after(NOTICE_S, partial(job.mail.put, partial(job.lost, executor, True)))

        def back() -> None:
            self.world.transcript.say(f"{executor.name} is back")
            executor.is_up, executor.client = True, executor.make_client()

        scheduler.after(max(down_s, NOTICE_S), back)

    def lose_files(self, executor: Executor) -> None:
        self.world.transcript.say(f"{executor.name} loses its shuffle files")
        for job in self.running:
            job.mail.put(partial(job.lost, executor, False))


class Job:
    """One job that runs ``stages`` over a batch. ``batch``: the oracle's number of it. ``shift``: how many more tasks
    than planned each stage with inputs has."""

    def __init__(
        self, spark: Spark, batch: int, plan: FramePlan, stages: tuple[Stage, ...], sink: int, shift: int
    ) -> None:
        self.spark, self.batch, self.plan, self.stages, self.sink = spark, batch, plan, stages, sink
        spark.jobs += 1
        self.number = spark.jobs
        self.world = spark.world
        self.case = self.world.case
        self.dice = random.Random(f"{self.case.seed} job {self.number}")
        self.is_over = self._is_looking = False
        # Conflicts and left-out servers of the finished tasks.
        self.conflicts = 0
        self.without = frozenset[int]()
        self.mail = GreenQueue(self.world.scheduler)
        self.widths = [max(1, stage.width + shift) if stage.inputs else max(1, len(plan.slices)) for stage in stages]
        self.tasks = [[Task(at, partition) for partition in range(width)] for at, width in enumerate(self.widths)]

    def run(self) -> None:
        """Run the job to its end, as the driver. Raises :class:`JobFailed`."""
        self.world.transcript.say(f"driver: job {self.number} for batch {self.batch} begins")
        self.spark.running.append(self)
        fails_at = self.dice.random() * 4 if self.dice.random() < self.case.tasks.get("job fails", 0.0) else None
        if fails_at is not None:
            self.world.scheduler.after(fails_at, lambda: self.mail.put(self._fail_as_drawn), "driver")
        try:
            while not all(task.done for task in self.tasks[-1]):
                self._launch()
                self.mail.get()()
        except JobFailed as error:
            self.world.transcript.say(f"driver: job {self.number} failed: {error}")
            raise
        finally:
            self._end()
        self.world.transcript.say(f"driver: job {self.number} is through")

    def commit(self) -> None:
        """Commit the write of its sink. Raises :class:`JobFailed` if that is refused."""
        if self.dice.random() < self.case.tasks.get("commit refused", 0.0):
            self.world.transcript.say(f"driver: the commit of job {self.number} is refused")
            raise JobFailed("the commit was refused")
        done = [task.done for task in self.tasks[-1] if task.done]
        self.world.oracle.committed(self.batch, self.sink, sorted(_lineage(done)))
        self.world.transcript.say(f"driver: job {self.number} is committed")

    def lost(self, executor: Executor, is_dead: bool) -> None:
        """Note that the output of an executor is gone. If the executor is dead, its attempts are over, too."""
        for task in (task for tasks in self.tasks for task in tasks):
            if is_dead:
                for attempt in [attempt for attempt in task.running if attempt.executor is executor]:
                    attempt.is_over = True
                    task.running.remove(attempt)
            if task.done and task.done.executor is executor and task.stage < len(self.stages) - 1:
                task.done = None

    # -- attempts

    def _launch(self) -> None:
        """Start an attempt at each task that can run and has no running attempt."""
        wanted = self._wanted()
        for at in sorted(wanted):
            for task in self.tasks[at] if self._can_start(at) else ():
                if not task.done and not task.running:
                    self._start(task)
                    if self.dice.random() < self.case.tasks.get("is started twice", 0.0):
                        self._start(task)

    def _can_start(self, stage: int) -> bool:
        """Whether all input of a stage is available."""
        return all(task.done for source in self.stages[stage].inputs for task in self.tasks[source])

    def _wanted(self) -> set[int]:
        """Return the unfinished stages whose output is needed."""
        wanted = set[int]()
        for at in range(len(self.stages) - 1, -1, -1):
            is_missing = not all(task.done for task in self.tasks[at])
            is_read = at == len(self.stages) - 1 or any(at in self.stages[reader].inputs for reader in wanted)
            if is_missing and is_read:
                wanted.add(at)
        return wanted

    def _start(self, task: Task) -> None:
        up = [executor for executor in self.spark.executors if executor.is_up]
        scheduler = self.world.scheduler
        if not up:
            self._look_again()
            return
        self.spark.attempts += 1
        number = self.spark.attempts
        dice = random.Random(f"{self.case.seed} {self.number} {task.stage} {task.partition} {task.copies}")
        fates = frozenset(name for name, rate in sorted(self.case.tasks.items()) if dice.random() < rate)
        executor = dice.choice(up)
        sources = [each.done for at in self.stages[task.stage].inputs for each in self.tasks[at] if each.done]
        inputs = self._inputs(task, sources, dice)
        oracle, rates = self.world.oracle, self.case.tasks_in(self.plan.scope.number)
        attempt = Attempt(
            number, self, task.stage, task.partition, executor, inputs, dice, oracle, fates, rates, sources
        )
        task.running.append(attempt)
        task.copies += 1
        self.world.oracle.begin(number, self.batch)
        self.world.transcript.say(f"driver: {attempt} goes to {executor.name}")
        attempt.process = scheduler.spawn(executor.name, str(attempt), lambda: self._attempt(task, attempt))
        if task.copies < TRIES_MAX:
            later = SPECULATION_S * (1.0 + dice.random())
            scheduler.after(later, lambda: self.mail.put(lambda: self._speculate(task, attempt)), "driver")

    def _look_again(self) -> None:
        """Schedule one launch in a second for all tasks that could not be started. One for each task would multiply."""

        def look() -> None:
            self._is_looking = False

        if not self._is_looking:
            self._is_looking = True
            self.world.scheduler.after(1.0, lambda: self.mail.put(look), "driver")

    def _speculate(self, task: Task, attempt: Attempt) -> None:
        is_alone = not task.done and attempt in task.running and len(task.running) == 1
        if not self.is_over and is_alone and self._can_start(task.stage):
            self._start(task)

    def _inputs(self, task: Task, sources: list[Attempt], dice: random.Random) -> list[pa.RecordBatch]:
        """Return the input rows of a task from the output of earlier attempts, in order of arrival."""
        stage = self.stages[task.stage]
        width = self.widths[task.stage]
        parts: list[pa.RecordBatch] = []
        for batch in (batch for source in sources for batch in source.output):
            chosen = [
                at
                for at, value in enumerate(batch.column(VALUE).to_pylist())
                if (key_of(value) if stage.by_key else value // CLASSES) % width == task.partition
            ]
            if chosen:
                parts.append(batch.take(pa.array(chosen)) if len(chosen) < batch.num_rows else batch)
        dice.shuffle(parts)
        return parts

    def _attempt(self, task: Task, attempt: Attempt) -> None:
        scheduler, fates, dice = self.world.scheduler, attempt.fates, attempt.dice
        scheduler.sleep(0.02 + 0.5 * dice.random() + (40.0 * dice.random() ** 2 if "is slow" in fates else 0.0))
        began_at = scheduler.now
        try:
            if "dies before it reports" in fates:
                raise TaskDied("before it reported")
            self._run_chain(attempt)
            if "dies after it reported" in fates:
                raise TaskDied("after it reported")
        except (AckerError, TaskDied, Broken) as error:
            if isinstance(error, AckerError):
                self.world.check_task_error(attempt, error, began_at)
            self.world.transcript.say(f"{attempt.executor.name}: {attempt} died: {error}")
            failure = error
            self._tell(lambda: self._failed(task, attempt, failure))
        else:
            self.world.transcript.say(f"{attempt.executor.name}: {attempt} is done")
            self._tell(lambda: self._finished(task, attempt))

    def _run_chain(self, attempt: Attempt) -> None:
        stage = self.stages[attempt.stage]
        entry: Entry = Arriving()
        batches: Iterable[pa.RecordBatch] = attempt.inputs
        if not stage.inputs:
            slices = tuple(self.plan.slices)
            entry = ReadEntry(Reading(self.plan.scope, slices), attempt)
            read = [attempt.partition] if attempt.partition < len(slices) else []
            batches = [pa.RecordBatch.from_arrays([pa.array(read, pa.int64())], names=["id"])]
        elif stage.ops and stage.ops[0].kind == GROUP:
            batches = groups(stage.ops[0], attempt, batches)
        steps = tuple(step_of(op, attempt) for op in stage.ops)
        is_last = attempt.stage == len(self.stages) - 1
        chain = Chain(_NO_SETTINGS, entry, steps, is_tracked=not is_last)
        sent = list[Report]()

        def send(report: Report) -> ReportResult:
            self._before_report(attempt, sent)
            sent.append(report)
            if self.world.transcript.is_kept:
                kind = "the inits" if report.inits is not None else "a report"
                self.world.transcript.name_report(report.identity, f"{kind} of {attempt}")
            result = attempt.executor.client.report_pinned(
                report.identity, report.entries, report.inits, self.plan.pins, may_leave=True
            )
            self.world.check_leave(attempt, result.without)
            attempt.conflicts += result.conflict
            attempt.without |= result.without
            return result

        attempt.output = list(chain.run(batches, send))
        if not sent:
            self.world.oracle.reporting(attempt.number)
        self.world.oracle.reported(attempt.number)

    def _before_report(self, attempt: Attempt, sent: list[Report]) -> None:
        if not sent:
            if "reports late" in attempt.fates:
                self.world.scheduler.sleep(80.0 * attempt.dice.random())
            self.world.oracle.reporting(attempt.number)
        elif "dies between its reports" in attempt.fates:
            raise TaskDied("between its reports")

    # -- results at the driver

    def _tell(self, news: Callable[[], None]) -> None:
        self.world.scheduler.after(0.001 + 0.01 * self.dice.random(), lambda: self.mail.put(news), "driver")

    def _finished(self, task: Task, attempt: Attempt) -> None:
        if attempt.is_over or attempt not in task.running:
            return
        task.running.remove(attempt)
        if task.done is None:
            task.done = attempt
            self.conflicts += attempt.conflicts
            self.without |= attempt.without
            self._stop_others(task)

    def _failed(self, task: Task, attempt: Attempt, error: Exception) -> None:
        if attempt.is_over or attempt not in task.running:
            return
        task.running.remove(attempt)
        task.failures += 1
        if task.failures >= TRIES_MAX and not task.done:
            raise JobFailed(f"task {self.number}.{task.stage}.{task.partition} failed {TRIES_MAX} times: {error}")

    def _fail_as_drawn(self) -> None:
        raise JobFailed("a stage was cancelled")

    def _stop_others(self, task: Task) -> None:
        """Kill the other attempts, as Spark does. Some of them keep running."""
        for other in task.running:
            other.is_over = True
            if other.process is not None and self.dice.random() < 0.5:
                self.world.scheduler.end(other.process)
        task.running.clear()

    def _end(self) -> None:
        self.is_over = True
        self.spark.running.remove(self)
        for tasks in self.tasks:
            for task in tasks:
                self._stop_others(task)


def _lineage(attempts: list[Attempt]) -> set[int]:
    """Return the numbers of ``attempts``, and of all attempts whose output they have read."""
    found: dict[int, Attempt] = {}
    waiting = list(attempts)
    while waiting:
        attempt = waiting.pop()
        if attempt.number not in found:
            found[attempt.number] = attempt
            waiting += attempt.sources
    return set(found)


@dataclass(frozen=True, slots=True)
class ReadEntry:
    """A real :class:`Reading` that adds the oracle's numbers to its rows."""

    reading: Reading
    attempt: Attempt

    @property
    def from_outside(self) -> bool:
        return False

    def rows(self, batches: Iterable[pa.RecordBatch], reports: list[Report]) -> Iterator[Rows]:
        for rows in self.reading.rows(batches, reports):
            ids = self.attempt.oracle.read(rows.anchors.roots.tolist())
            columns = [rows.data.column(VALUE), pa.array(ids, pa.int64())]
            yield Rows(pa.RecordBatch.from_arrays(columns, names=[VALUE, ROW]), rows.anchors)


_NO_SETTINGS: Any = Settings(("never.called:1",))
