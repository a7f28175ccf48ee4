"""Batch: the driver's record of which sinks took a batch's rows, and the evidence that the rows were delivered.

Decides whether a batch may be settled as *done*. Every sink that took its rows must have returned, with evidence that
it delivered them (``evidence``). Rows that no sink took must have gone through ``functions.ack`` in an action that
delivers, or through a ``Collector``. It also remembers, for later batches, which rows were evaluated more than once.
``executions`` finds out what Spark ran.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from dataclasses import replace
from functools import partial
from typing import Any

from pyspark.sql import DataFrame, SparkSession

from acker_client.clean_up import CleanUp
from acker_client.error_text import shorten
from acker_client.errors import AckerError
from acker_client.settings import Settings
from acker_client.spark.commit_evidence.acked import Acked
from acker_client.spark.commit_evidence.actions import ActionFinder
from acker_client.spark.commit_evidence.blame import is_mistake, is_of_the_program
from acker_client.spark.commit_evidence.evidence import NEVER_MS, Action, Undelivered, judge, unknown
from acker_client.spark.commit_evidence.executions import Executions
from acker_client.spark.commit_evidence.graph import Places
from acker_client.spark.commit_evidence.others import followed_too
from acker_client.spark.commit_evidence.turns import waited_s
from acker_client.spark.commit_evidence.witness import Trail, Witness, now_ms
from acker_client.spark.driver import lineage
from acker_client.spark.driver.lineage import ACK, AGAIN
from acker_client.spark.driver.query import run_uninterrupted
from acker_client.spark.driver.session import describe_jobs, hand_down, is_stopped
from acker_client.spark.driver.stores import Forgotten
from acker_client.spark.worker.notes import Note, NoteStore, note_store_of, tag_of

# The kind and name under which a run remembers that rows behind ack() columns were evaluated more than once.
ACK_COLUMN = ("column", "ack()")

EVALUATED_AGAIN = "its rows were evaluated more than once, and not with the same result; they are cached from now on"
UNTAKEN = "no sink, ack() or Collector is done with it; use @sink or functions.ack()"

# How many targets of swallowed failures a run remembers.
SWALLOWED_MAX = 1000

# Each step whose rows no sink and no other step took, with the actions on its rows through an `ack()` column.
Acks = Sequence[tuple[lineage.Node, Sequence[Action]]]

_logger = logging.getLogger("acker.spark")


class Once:
    """The memory of a run for its later batches: the rows to cache, so that they are evaluated only once, and the
    swallowed failures that are logged already. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._names: set[tuple[str, str]] = set()
        # Bounded, because a place may name its batch.
        self._swallowed = deque[tuple[str, str]](maxlen=SWALLOWED_MAX)

    def remember(self, kind: str, name: str) -> None:
        """Remember that the rows of ``kind`` ``name`` (such as ``"sink", "save"``) were evaluated more than once."""
        with self._lock:
            is_new = (kind, name) not in self._names
            self._names.add((kind, name))
        if is_new:
            _logger.warning(
                "the rows of %s %r were evaluated more than once; from the next batch on they are cached for the batch,"
                " so that they are computed once (@sink(cache=False) and branch(..., cache=False) turn this off)",
                kind,
                name,
            )

    def must_cache(self, kind: str, name: str) -> bool:
        """Whether the rows of ``kind`` ``name`` have to be cached."""
        with self._lock:
            return (kind, name) in self._names

    def log_swallowed(self, sink: str, actions: Sequence[Action]) -> None:
        """Log the failed ``actions`` whose exceptions ``sink`` swallowed. Each target is logged once in a run, unless
        ``SWALLOWED_MAX`` others have failed since."""
        for action in actions:
            place = action.target.place
            if not action.failure:
                continue
            with self._lock:
                is_new = (sink, place) not in self._swallowed
                if is_new:
                    self._swallowed.append((sink, place))
            if is_new:
                text = action.traceback or action.failure
                _logger.warning("sink %r swallowed the failure of %s:\n%s", sink, place or action.did, text)


class SinkFailed(AckerError):
    """A sink raised, and has not succeeded since.

    ``is_of_the_program``: the program is wrong, so a retry cannot help. ``is_mistake``: the program is wrong, unless
    the driver has seen rows that may have caused the error.
    """

    def __init__(self, sink: str, error: BaseException) -> None:
        super().__init__(f"sink {sink!r} raised {shorten(error)}")
        self.is_of_the_program = is_of_the_program(error)
        self.is_mistake = is_mistake(error)


class NotHeld(AckerError):
    """Rows of a batch that is not held would be acked before Spark has written them."""

    # A retry cannot help. ``blame`` reads this.
    is_of_the_program = True

    def __init__(self, what: str, instead: str) -> None:
        super().__init__(
            f"{what}: these rows are not held, so they would count as done before Spark has written them; {instead}"
        )


class SinkEvidence:
    """The evidence of one sink for one frame, from all calls of the sink. Thread-safe."""

    def __init__(self, name: str, note_store: NoteStore) -> None:
        self.name = name
        self.error: AckerError | None = None
        # The frame, the tags of the steps that made its rows, and how the rows are split into tasks behind these.
        self.frame: DataFrame | None = None
        self.steps: tuple[str, ...] = ()
        self.partitioning: tuple[str, ...] = ()
        # The content of the arguments right after the last call that raised; None if no call has raised.
        self.content: Sequence[object] | None = None
        self._note_store = note_store
        self._lock = threading.Lock()
        self._calls: list[tuple[lineage.Node, Witness, DataFrame]] = []
        # The job tags of the calls that have not returned, one for each call: two calls may share a step.
        self._running: list[str] = []
        self._planned: tuple[DataFrame, lineage.Node] | None = None
        # Whether the sink's rows were delivered without being read, because there was nothing to deliver.
        self._is_unread = False
        # When the sink was last called again after it had raised.
        self._rerun_ms = -NEVER_MS
        # Why a failed call still counts: the program had changed the arguments before the next call.
        self._unrepeated: Undelivered | None = None

    def planned(self, plan: Callable[[], tuple[DataFrame, lineage.Node]]) -> tuple[DataFrame, lineage.Node]:
        """Return the rows to give to the sink, and the sink's step.

        The first call gets them from ``plan``. Later calls get the same result, so that all of them deliver the same
        rows.
        """
        with self._lock:
            self._planned = self._planned or plan()
            return self._planned

    def begin_call(self, node: lineage.Node, rows: DataFrame, *, is_changed: bool) -> Witness:
        """Start a call of the sink, and return its witness. ``node``: the sink's step; ``rows``: the rows that the sink
        is given; ``is_changed``: its arguments hold something else than after the last call that raised, so this call
        does not repeat that one."""
        witness = Witness(node.tag, (node.tag,), self._note_store.note_writer)
        with self._lock:
            if isinstance(self.error, SinkFailed):
                if is_changed:
                    self._unrepeated = Undelivered(
                        f"{self.error}; it was called again, but with a changed argument or a changed attribute of its"
                        " object, so the failed call still counts: repeat the write inside the sink, or change nothing",
                        is_transient=True,
                    )
                else:
                    self._rerun_ms = now_ms()
            self._calls.append((node, witness, rows))
            self._running.append(job_tag_of(node))
            # The sink counts as failed until it returns: if another thread settles the batch before that, the batch is
            # abandoned.
            self.error = Undelivered(f"sink {self.name!r} has not returned", is_transient=True)
        return witness

    def end_call(self, node: lineage.Node, error: BaseException | None) -> None:
        """End the call of the sink whose step is ``node``. ``error``: the exception that the sink raised; None if the
        sink returned."""
        # Does not keep the exception itself: its traceback would keep the user's loop alive after the loop has ended.
        failure = None if error is None else SinkFailed(self.name, error)
        with self._lock:
            self.error = failure or self._unrepeated
            self._running.remove(job_tag_of(node))

    @property
    def running(self) -> list[str]:
        """The job tags of the calls that have not returned."""
        with self._lock:
            return sorted(self._running)

    def judge(self, finder: ActionFinder, places: Places, once: Once, vouched_ms: float) -> Undelivered | None:
        """Return why there is no evidence that the sink's rows were delivered; None if there is evidence.

        ``vouched_ms``: when the user called ``batch.done()``.
        """
        actions = [action for witness in self.witnesses for action in witness.actions(places.cut)]
        actions += finder.actions(places)
        actions += _unseen(self.witnesses, places, finder, actions)
        if not any(action.is_delivery for action in actions):
            actions += [action for witness in self.witnesses for action in witness.deliveries_of_none(places.cut)]
        actions.sort(key=lambda action: action.began_ms)
        deliveries = [action for action in actions if action.is_delivery]
        self._is_unread = bool(deliveries) and all(action.reads_none for action in deliveries)
        # Failures before a rerun were not swallowed: the sink raised, or the rerun replaces that call.
        once.log_swallowed(self.name, [action for action in actions if action.ended_ms > self._rerun_ms])
        return judge(
            f"{self.name}()",
            actions,
            forgotten=finder.is_forgetful,
            vouched_ms=vouched_ms,
            rerun_ms=self._rerun_ms,
        )

    def read_what_was_pruned(self, finder: ActionFinder, places: Places) -> SinkFailed | None:
        """Read the rows if Spark's optimizer removed them from the sink's write, because only reading them acks them.

        A sink may need none of its rows. Returns the error if the rows cannot be read, else None.
        """
        is_pruned = self._is_unread or finder.is_pruned(places)
        return _read(self._calls[-1][2], self.name) if is_pruned else None

    @property
    def nodes(self) -> list[lineage.Node]:
        """The steps of the sink, one for each call."""
        return [node for node, _, _ in self._calls]

    @property
    def witnesses(self) -> list[Witness]:
        """The witnesses of all calls."""
        with self._lock:
            return [witness for _, witness, _ in self._calls]

    def places(self) -> Places:
        """Return how to recognize the sink's rows in what Spark has run so far."""
        nodes, witnesses = self.nodes, self.witnesses
        tags = list(dict.fromkeys(node.tag for node in nodes))
        functions = [*dict.fromkeys(node.function for node in nodes), *(AGAIN + tag for tag in tags)]
        places = _places(functions, self._note_store.of(tags), witnesses)
        return replace(places, may_be_in_rdds=any(witness.has_rdds for witness in witnesses))


def job_tag_of(node: lineage.Node) -> str:
    """Return the tag of all jobs that a call of a sink runs in its own thread. ``node``: the step of the call."""
    return f"acker.sink.{node.tag}"


class BatchEvidence:
    """The driver's knowledge of one batch. Thread-safe. ``once``: what a run remembers for its later batches.
    ``held``: whether finished roots wait until the batch is settled. ``inspect``: the check of plans, which raises if a
    frame copies or drops rows. ``operators.read.planned`` sets it."""

    inspect: Callable[[DataFrame, str], object]

    def __init__(self, settings: Settings, spark: SparkSession, once: Once | None = None, *, held: bool = True) -> None:
        self.settings = settings
        self.held = held
        self.once = once or Once()
        self._note_store = note_store_of(spark.sparkContext)
        self._tags = [tag_of(pin) for pin in settings.pins]
        for tag in self._tags:
            self._note_store.keep_notes(tag)
        self._executions = Executions(spark)
        self._context = spark.sparkContext
        # The tag of all jobs of the thread that works on the batch, and of threads that inherit the tag from it.
        self._job_tag = f"acker.batch.{lineage.new_tag()}"
        self._lock = threading.Lock()
        self._evidence: dict[object, SinkEvidence] = {}
        self._acked_frames: list[Acked] = []
        # The witnesses of rows behind an ack() column, each with the functions of the steps that made these rows.
        self._ack_witnesses: list[tuple[Sequence[str], Witness]] = []
        self._cached: list[DataFrame] = []
        self._following = ExitStack()
        # Why roots of the batch are unfinished, as far as the driver knows; "" if it knows no reason.
        self.unfinished_because = ""
        self.is_released = False
        # When the user called batch.done(): everything done by then counts as delivered.
        self._vouched_ms = -NEVER_MS
        # A sink took rows of this batch together with rows of another batch, so the sink's output is not this batch's
        # alone.
        self.is_shared = False
        self._take_back: Sequence[Callable[[], None]] = ()
        # What Spark ran, as `judge` has seen it.
        self._finder: ActionFinder | None = None

    def begin_work(self, spark: SparkSession, description: str) -> None:
        """Hand the batch's settings, its job tag and its description to the jobs of this thread, until
        :meth:`release`."""
        self._take_back = hand_down(spark, self.settings), describe_jobs(spark, description)
        self._context.addJobTag(self._job_tag)

    def cancel_jobs(self) -> None:
        """Cancel the jobs that the batch's thread and its sinks run now, and other threads' queries over its rows.

        Any thread may call it.
        """
        with self._lock:
            sinks = list(self._evidence.values())
        for tag in (self._job_tag, *(tag for each in sinks for tag in each.running)):
            self._context.cancelJobsWithTag(tag)
        # Plain threads do not inherit the tag.
        context: Any = self._context._jsc.sc()
        for job in self._executions.running_jobs([node.function for node in lineage.steps_of(self)]):
            context.cancelJob(job)

    def evidence_of(self, key: object, name: str) -> SinkEvidence:
        """Return the evidence of sink ``name`` for ``key`` (hashable). A key stands for a frame and arguments."""
        with self._lock:
            return self._evidence.setdefault(key, SinkEvidence(name, self._note_store))

    def returned_sinks(self, name: str, steps: tuple[str, ...]) -> list[SinkEvidence]:
        """Return the evidence of the sinks with this name that have taken the rows of the ``steps`` (tags), and have
        returned."""
        with self._lock:
            found = list(self._evidence.values())
        return [each for each in found if (each.name, each.steps) == (name, steps) and each.error is None]

    def share(self, key: object, evidence: SinkEvidence, other: BatchEvidence) -> None:
        """Use the ``evidence`` of the ``other`` batch, because rows of both batches reach that sink."""
        self.is_shared = other.is_shared = True
        with self._lock:
            self._evidence[key] = evidence

    def add_acked_frame(self, acked: Acked) -> bool:
        """Register a frame of this batch's rows to which ``ack()`` columns were added.

        Returns whether to cache it, because such rows were evaluated more than once. Raises :class:`NotHeld`.
        """
        if not self.held:
            raise self.not_held("ack()")
        with self._lock:
            self._acked_frames.append(acked)
        return self.once.must_cache(*ACK_COLUMN)

    def not_held(self, what: str) -> NotHeld:
        """Return the error that ``what`` needs rows that are held."""
        return NotHeld(what, "leave held=False out of the source, or end them with hand_on")

    @property
    def hand_on_problem(self) -> str:
        """Why the rows cannot be handed on to the job that reads a topic; "" if they can."""
        if not self.held:
            return ""
        return (
            "the batch is held, and what is handed on is not done when its batch is settled: give the source held=False"
            " and message_timeout_s"
        )

    def check_rows(self, df: DataFrame, taker: str) -> None:
        """Check whether ``taker``, which the plan guard does not see, may take the rows of ``df``. Rows that are held
        need no check: copies of them, or dropped ones, show when the batch is settled."""
        if not self.held:
            self.inspect(df, taker)

    def take_rows(self, df: DataFrame, taker: str, functions: Sequence[str], calls: str) -> None:
        """Mark the rows of ``df`` as taken by these ``calls`` of the ``ack()`` ``functions``, if rows that are not held
        may go to them only. ``taker``: as for :meth:`check_rows`."""

    def add_ack_witness(self, functions: Sequence[str], witness: Witness) -> None:
        """Register the ``witness`` of rows behind an ``ack()``. ``functions``: the functions of the steps that made
        these rows."""
        with self._lock:
            self._ack_witnesses.append((functions, witness))

    def keep_following(self, trail: Trail) -> None:
        """Follow every frame that holds rows of ``trail``, and watch statements over them, until :meth:`release`."""
        with self._lock:
            if not self.is_released:
                self._following.enter_context(followed_too(trail))

    def judge(self) -> BaseException | None:
        """Return why the batch must not be settled as *done*; None if it may be.

        Reads Spark's stores, and reads the rows that a sink did not need to read.
        """
        with suppress(Forgotten):
            return self._judge()
        # An execution still ran when the stores were read, and has been dropped since. Read again, they show that some
        # are missing.
        with suppress(Forgotten):
            return self._judge()
        failed = (each.error for each in self._evidence.values() if each.error is not None)
        return next(failed, unknown("the batch"))

    def _judge(self) -> BaseException | None:
        finder = self._finder = ActionFinder(self._executions.ran())
        evidence = [(each, each.places()) for each in self._evidence.values()]
        error = next((each.error for each, _ in evidence if each.error is not None), None)
        returned = [(each, places) for each, places in evidence if each.error is None]
        findings = [each.judge(finder, places, self.once, self._vouched_ms) for each, places in returned]
        acks = [(node, self._actions_of_acks(node, finder)) for node in _untaken(lineage.steps_of(self))]
        self._remember_evaluations(evidence, acks, finder)
        self._log_dropped()
        if error is not None:
            return error
        finding = next(filter(None, [*findings, *self._judge_untaken(acks, finder)]), None)
        read = (each.read_what_was_pruned(finder, places) for each, places in evidence)
        read_acked = (self._read_what_was_pruned(acked, finder) for acked in self._acked_frames)
        return finding or next(filter(None, (*read, *read_acked)), None)

    def vouch(self) -> None:
        """Take the user's word that everything done so far has delivered the sinks' rows, even without evidence."""
        self._vouched_ms = now_ms()

    @property
    def has_run(self) -> bool:
        """Whether anything ran over the batch's rows, so that the driver may have seen some. Reads Spark's stores."""
        with suppress(Forgotten):
            finder = ActionFinder(self._executions.ran())
            return bool(finder.jobs) or any(finder.names(node.function) for node in lineage.steps_of(self))
        return True

    @property
    def without(self) -> frozenset[int]:
        """The ids of the servers that tasks left out of a report."""
        return frozenset(note.index for note in self._note_store.of(self._tags))

    @property
    def folders(self) -> frozenset[str]:
        """The folders into which Spark wrote files of the batch's rows, as far as :meth:`judge` has seen."""
        functions = [node.function for node in lineage.steps_of(self)]
        try:
            return frozenset() if self._finder is None else self._finder.folders(functions)
        except Forgotten:
            return frozenset()

    @property
    def waited_s(self) -> float:
        """How long writes of the batch have waited because others wrote into the same place. Any thread may ask."""
        with self._lock:
            sinks, witnesses = list(self._evidence.values()), [witness for _, witness in self._ack_witnesses]
        witnesses += [witness for sink in sinks for witness in sink.witnesses]
        return waited_s(wait for witness in witnesses for wait in list(witness.waits))

    def keep_cached(self, df: DataFrame) -> DataFrame:
        """Cache a frame until :meth:`release`, unless it is cached already. Returns it."""
        with self._lock:
            if not df.is_cached:
                self._cached.append(df.cache())
        return df

    def release(self) -> None:
        """Release the batch's cached frames and notes, and cancel the jobs that its sinks still run.

        Call it when the batch is settled, in the thread that planned it.
        """
        with self._lock:
            cached, self._cached = self._cached, []
            self.is_released = True
        with CleanUp() as steps:
            steps.add(self._following.close)
            steps.add(self._end_work)
            steps.add(self._forget_notes)
            for df in cached:
                steps.add(partial(run_uninterrupted, df.unpersist))
            for evidence in self._evidence.values():
                for tag in evidence.running:
                    steps.add(partial(self._cancel, evidence.name, tag))

    def _end_work(self) -> None:
        for step in self._take_back:
            step()
        if not is_stopped(self._context):
            self._context.removeJobTag(self._job_tag)

    def _cancel(self, name: str, tag: str) -> None:
        """Cancel the jobs of a sink's call that is still running after its batch is settled: these jobs only hold
        cores."""
        _logger.warning(
            "sink %r still runs although its batch is settled: its jobs are cancelled; wait for its thread in"
            " process()",
            name,
        )
        self._context.cancelJobsWithTag(tag)

    def _forget_notes(self) -> None:
        nodes = [*lineage.steps_of(self), *(node for evidence in self._evidence.values() for node in evidence.nodes)]
        self._note_store.forget_notes([*self._tags, *(node.tag for node in nodes if _is_settled(node))])

    def _remember_evaluations(
        self, evidence: Sequence[tuple[SinkEvidence, Places]], acks: Acks, finder: ActionFinder
    ) -> None:
        """Remember for later batches which rows were evaluated more than once."""
        nodes = lineage.steps_of(self)
        again = [("sink", each.name) for each, places in evidence if _was_evaluated_again(each, places, finder)]
        again += [("branch", name) for name in _branched(nodes)]
        notes = self._note_store.of([node.tag for node in nodes])
        has_conflict = any(note.kind == "conflict" for note in notes)
        if has_conflict:
            again += [("sink", each.name) for each, _ in evidence]
        if has_conflict or len({note.execution for note in notes if note.kind == "read"}) > 1:
            again += self._moving(nodes)
        # Another action on a cached frame does not evaluate its rows again.
        if not self.once.must_cache(*ACK_COLUMN) and any(len(actions) > 1 for _, actions in acks):
            again.append(ACK_COLUMN)
        if again:
            self.unfinished_because = EVALUATED_AGAIN
        for kind, name in again:
            self.once.remember(kind, name)

    def _log_dropped(self) -> None:
        notes = self._note_store.of([node.tag for node in lineage.steps_of(self)])
        dropped = [note for note in notes if note.kind == "dropped"]
        if dropped:
            rows = sum(note.index for note in dropped)
            _logger.warning("dropped %d failed rows of untracked records, the first: %s", rows, dropped[0].function)

    def _moving(self, nodes: Sequence[lineage.Node]) -> list[tuple[str, str]]:
        """Return the (kind, name) of the steps to cache because another evaluation may split their rows into tasks
        differently.

        These are the steps after a node whose task boundaries may move. The steps before such a node are included,
        because range partitioning evaluates its input once more to sample it.
        """
        moving = dict.fromkeys((node.kind, node.name) for node in nodes if node.moves or node.is_moved)
        return [step for step in moving if step[0] != "sink" and not self.once.must_cache(*step)]

    def _judge_untaken(self, acks: Acks, finder: ActionFinder) -> list[Undelivered | None]:
        """Return for each step in ``acks`` why its rows are not known to be acked; None for a step whose rows are
        acked."""
        nodes = lineage.steps_of(self)
        return [self._judge_untaken_step(node, actions, nodes, finder) for node, actions in acks]

    def _judge_untaken_step(
        self, node: lineage.Node, actions: Sequence[Action], nodes: Sequence[lineage.Node], finder: ActionFinder
    ) -> Undelivered | None:
        if actions or not self.settings.tracking:
            subject = "ack()" if self.settings.tracking else _described(node, nodes)
            self.once.log_swallowed(subject, actions)
            return judge(
                subject,
                actions,
                forgotten=finder.is_forgetful,
                vouched_ms=self._vouched_ms,
                has_sink=self.settings.tracking,
            )
        if finder.has_user_code(node.function):
            # Only a Collector can have acked these rows, one by one. A failed delivery of these rows still counts.
            if finder.has_arrow_code():
                return Undelivered(
                    "ack() went into an RDD job, which does not show whether its rows were read to the end; use @sink"
                )
            self.unfinished_because = UNTAKEN
            failed = judge(
                str(node),
                finder.actions(Places((node.function,))),
                forgotten=finder.is_forgetful,
                vouched_ms=self._vouched_ms,
            )
            return failed if failed is not None and failed.is_transient else None
        if node.kind == "source":
            return Undelivered("no sink took this batch's rows; use @sink or functions.ack()")
        return Undelivered(f"no sink took the rows of {_described(node, nodes)}; use @sink or functions.ack()")

    def _actions_of_acks(self, node: lineage.Node, finder: ActionFinder) -> list[Action]:
        """Return the actions on a step's rows through an ``ack()`` column, in the order in which they began.

        If the batch is not tracked, return all actions on these rows.
        """
        seen = [witness for functions, witness in self._ack_witnesses if node.function in functions]
        notes = self._note_store.of([witness.tag for witness in seen])
        known = [
            function for acked in self._acked_frames if node.function in acked.nodes for function in acked.functions
        ]
        if not known and not self.settings.tracking:
            known = [node.function]
        again = [AGAIN + witness.tag for witness in seen]
        # An ack() in a frame that is not followed is recognized by the step's function below it in the plan. A known
        # ack() may be in frames of other steps, too.
        if known:
            acks = replace(_places([*known, *again], notes, seen), step=node.function)
        else:
            acks = replace(_places([ACK], notes, seen), below=node.function)
        actions = finder.actions(acks) if acks.partitions or any(map(finder.names, acks.functions)) else []
        actions += [action for witness in seen for action in witness.actions(acks.cut)]
        actions += _unseen(seen, acks, finder, actions)
        return sorted(actions, key=lambda action: action.began_ms)

    def _read_what_was_pruned(self, acked: Acked, finder: ActionFinder) -> SinkFailed | None:
        return _read(acked.df, "ack()") if finder.is_pruned(Places(acked.functions)) else None


def _read(rows: DataFrame, name: str) -> SinkFailed | None:
    """Read rows only so that they are acked. Return why they cannot be read, or None."""
    try:
        rows.write.format("noop").mode("append").save()
    except Exception as error:  # noqa: BLE001  # any error breaks only this batch, not the run
        return SinkFailed(name, error)
    return None


def _places(functions: Sequence[str], notes: Sequence[Note], witnesses: Sequence[Witness]) -> Places:
    """Return how to recognize rows by the names of ``functions`` in a plan. ``witnesses``: observers of these rows."""
    partitions = {rdd: count for witness in witnesses for rdd, count in witness.partitions().items()}
    calls = {call: target for witness in witnesses for call, target in witness.calls.items()}
    unread = next((witness.unread for witness in witnesses if witness.unread), "")
    return Places(tuple(functions), notes, partitions, calls=calls, unread=unread)


def _unseen(
    witnesses: Sequence[Witness], places: Places, finder: ActionFinder, actions: Sequence[Action]
) -> list[Action]:
    """Return the writes of ``witnesses`` that Spark does not show, unless one of ``actions`` has delivered the same
    rows to the same place. Then they were left out because the rows are there."""
    delivered = [action.target for action in actions if action.is_delivery]
    found = finder.unseen([write for witness in witnesses for write in witness.writes], places.cut)
    return [action for action in found if action.target not in delivered]


def _was_evaluated_again(evidence: SinkEvidence, places: Places, finder: ActionFinder) -> bool:
    if finder.evaluations(places) > 1:
        return True
    is_cached = evidence.frame is not None and evidence.frame.is_cached
    return len(evidence.steps) > 1 and not is_cached and finder.executions_over(places) > 1


def _untaken(nodes: Sequence[lineage.Node]) -> list[lineage.Node]:
    """Return the steps whose rows neither a sink nor another step takes."""
    return [node for node in nodes if node.consumer is None and node.kind not in ("sink", "acks")]


def _is_settled(node: lineage.Node) -> bool:
    """Whether all batches whose rows reach a step are settled. Until then the step's notes are evidence."""
    batches = [ref() for ref in node.batch_refs]
    return all(isinstance(batch, BatchEvidence) and batch.is_released for batch in batches if batch is not None)


def _branched(nodes: Sequence[lineage.Node]) -> set[str]:
    """Return the branches with several copies.

    All copies count as evaluated, because nothing records which of them ``ack()`` takes.
    """
    copies = [node.name for node in nodes if node.kind == "branch"]
    return {name for name in copies if copies.count(name) > 1}


def _described(node: lineage.Node, nodes: Sequence[lineage.Node]) -> str:
    alike = [other.tag for other in nodes if (other.kind, other.name) == (node.kind, node.name)]
    which = f"copy {alike.index(node.tag) + 1} of " if len(alike) > 1 else ""
    return which + str(node)
