"""Batch: what the driver knows of a batch: who took its rows, and whether that is known to have been done.

Decides whether a batch may be settled as *done*: every sink that took its rows returned, and there is evidence that it
delivered them (``evidence``); rows that no sink took went through ``functions.ack`` in an action that delivers, or
through a ``Collector``. And it remembers, for the batches after it, whose rows were evaluated more than once. What
Spark ran is ``executions``'s to find.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
from functools import partial

from pyspark.sql import DataFrame, SparkSession

from acker_client.clean_up import CleanUp
from acker_client.error_text import gist
from acker_client.errors import AckerError
from acker_client.settings import Settings
from acker_client.spark.commit_evidence.acked import Acked
from acker_client.spark.commit_evidence.blame import is_mistake, is_of_the_program
from acker_client.spark.commit_evidence.evidence import NEVER_MS, Action, Undelivered, judge
from acker_client.spark.commit_evidence.executions import Executions
from acker_client.spark.commit_evidence.graph import Places
from acker_client.spark.commit_evidence.look import Look
from acker_client.spark.commit_evidence.witness import Witness, now_ms
from acker_client.spark.driver import lineage
from acker_client.spark.driver.lineage import ACK, AGAIN
from acker_client.spark.driver.query import run_uninterrupted
from acker_client.spark.worker.notes import Note, NoteStore, note_store_of, tag_of

# The name under which all ack() columns of a run are remembered, once their rows were evaluated more than once.
ACK_COLUMN = ("column", "ack()")

EVALUATED_AGAIN = "its rows were evaluated more than once, and not with the same result; they are cached from now on"
UNTAKEN = "no sink, no ack() and no Collector was done with it; use @sink or functions.ack()"

# The steps whose rows nobody took, each with what was done with its rows behind an `ack()`.
Acks = Sequence[tuple[lineage.Node, Sequence[Action]]]

_logger = logging.getLogger("acker.spark")


class Once:
    """What is remembered for all batches of a run: whose rows are to be evaluated once, since they were seen to be
    evaluated more than once, and which swallowed failures the log has. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._names: set[tuple[str, str]] = set()
        self._swallowed: set[tuple[str, str]] = set()

    def learn(self, kind: str, name: str) -> None:
        """The rows that ``kind`` ``name`` (a sink, a branch) takes were evaluated more than once."""
        with self._lock:
            is_new = (kind, name) not in self._names
            self._names.add((kind, name))
        if is_new:
            _logger.warning(
                "the rows of %s %r were evaluated more than once; from the next batch on they are cached for the batch,"
                " so that they are computed once (@sink(cache=False), branch(..., cache=False) refuse that)",
                kind,
                name,
            )

    def wants(self, kind: str, name: str) -> bool:
        """Whether its rows are to be cached."""
        with self._lock:
            return (kind, name) in self._names

    def log_swallowed(self, sink: str, actions: Sequence[Action]) -> None:
        """Log the failures among ``actions``, whose exceptions ``sink`` has not let out: the first of each target in
        the run."""
        for action in actions:
            place = action.target.place
            if not action.failure:
                continue
            with self._lock:
                is_new = (sink, place) not in self._swallowed
                self._swallowed.add((sink, place))
            if is_new:
                text = action.traceback or action.failure
                _logger.warning("sink %r swallowed the failure of %s:\n%s", sink, place or action.did, text)


class SinkFailed(AckerError):
    """A sink raised, and has not succeeded since. ``is_of_the_program``: another try cannot help; ``is_mistake``:
    unless a row was at hand to cause it."""

    def __init__(self, sink: str, error: BaseException) -> None:
        super().__init__(f"sink {sink!r} raised {gist(error)}")
        self.is_of_the_program = is_of_the_program(error)
        self.is_mistake = is_mistake(error)


class NotHeld(AckerError):
    """Rows of a batch that is not held would be acked before Spark has written them."""

    # No other try can make it go away; ``blame`` asks for this.
    is_of_the_program = True

    def __init__(self, what: str) -> None:
        super().__init__(
            f"{what}: the batch is not held (held=False), so its rows would count as done before Spark has written"
            " them; end it with hand_on, or leave held=False out at the source"
        )


class SinkEvidence:
    """What is known of one sink over one frame, in all its calls. Thread-safe."""

    def __init__(self, name: str, note_store: NoteStore) -> None:
        self.name = name
        self.error: AckerError | None = None
        self._note_store = note_store
        self._lock = threading.Lock()
        self._calls: list[tuple[lineage.Node, Witness, DataFrame]] = []
        # The job tags of the calls that have not returned, one a call: two calls may share a step.
        self._running: list[str] = []
        self._planned: list[tuple[DataFrame, DataFrame, lineage.Node]] = []
        # When it was called again after it had raised.
        self._rerun_ms = -NEVER_MS

    def planned(
        self, df: DataFrame, plan: Callable[[], tuple[DataFrame, lineage.Node]]
    ) -> tuple[DataFrame, lineage.Node]:
        """The rows and the step of the sink over ``df``: those of an earlier call with the same frame, so that both
        deliver the same rows, or else what ``plan`` makes."""
        with self._lock:
            for known, rows, node in self._planned:
                if known is df or known._jdf.sameSemantics(df._jdf):
                    return rows, node
            rows, node = plan()
            self._planned.append((df, rows, node))
        return rows, node

    def begin(self, node: lineage.Node, rows: DataFrame) -> Witness:
        """The sink is called; ``node`` is its step, ``rows`` what it makes of the frame."""
        witness = Witness(node.tag, (node.tag,), self._note_store.note_writer)
        with self._lock:
            if isinstance(self.error, SinkFailed):
                self._rerun_ms = now_ms()
            self._calls.append((node, witness, rows))
            self._running.append(job_tag_of(node))
            # Until it has returned it has failed: a batch that is settled beside it (from another thread) is abandoned.
            self.error = Undelivered(f"sink {self.name!r} has not returned", is_transient=True)
        return witness

    def end(self, node: lineage.Node, error: BaseException | None) -> None:
        """The call of the sink whose step is ``node`` has returned, or raised ``error``."""
        # Not the exception itself: its traceback holds the user's loop, which would then not end with the loop.
        failure = None if error is None else SinkFailed(self.name, error)
        with self._lock:
            self.error = failure
            self._running.remove(job_tag_of(node))

    @property
    def running(self) -> list[str]:
        """The job tags of the calls that have not returned."""
        with self._lock:
            return sorted(self._running)

    def judge(self, look: Look, places: Places, once: Once, vouched_ms: float) -> Undelivered | None:
        """Why its rows are not known to be delivered; None when they are. ``vouched_ms``: of the user's word."""
        seen = [action for _, witness, _ in self._calls for action in witness.actions(places.cut)]
        actions = sorted([*seen, *look.actions(places)], key=lambda action: action.began_ms)
        # What failed in an earlier run left the sink, or that run was not the last word.
        once.log_swallowed(self.name, [action for action in actions if action.ended_ms > self._rerun_ms])
        return judge(
            f"{self.name}()",
            actions,
            forgotten=look.is_forgetful,
            vouched_ms=vouched_ms,
            rerun_ms=self._rerun_ms,
        )

    def read_what_was_pruned(self, look: Look, places: Places) -> SinkFailed | None:
        """Where Spark found that it need not read the rows for what it wrote, they are read here, so that they are
        acked: that a sink needs none of them is its own decision. Returns why they cannot be read."""
        return _read(self._calls[-1][2], self.name) if look.is_pruned(places) else None

    @property
    def nodes(self) -> list[lineage.Node]:
        """Its steps, one a call."""
        return [node for node, _, _ in self._calls]

    def places(self) -> Places:
        """How its rows are known in what Spark has run up to now."""
        nodes, witnesses = self.nodes, [witness for _, witness, _ in self._calls]
        tags = list(dict.fromkeys(node.tag for node in nodes))
        functions = [*dict.fromkeys(node.function for node in nodes), *(AGAIN + tag for tag in tags)]
        return _places(functions, self._note_store.of(tags), witnesses)


def job_tag_of(node: lineage.Node) -> str:
    """The tag that all jobs bear which a call of a sink runs in its own thread; ``node`` is the step of the call."""
    return f"acker.sink.{node.tag}"


class BatchEvidence:
    """One batch, as the driver knows it. Thread-safe.

    ``once``: shared by the batches of a run; ``held``: whether roots that are done wait until it is settled.
    """

    def __init__(self, settings: Settings, spark: SparkSession, once: Once | None = None, *, held: bool = True) -> None:
        self.settings = settings
        self.held = held
        self.once = once or Once()
        self._note_store = note_store_of(spark.sparkContext)
        self._tags = [tag_of(pin) for pin in settings.pins]
        for tag in self._tags:
            self._note_store.keep(tag)
        self._executions = Executions(spark)
        self._context = spark.sparkContext
        self._lock = threading.Lock()
        self._evidence: dict[object, SinkEvidence] = {}
        self._acked_frames: list[Acked] = []
        # What is seen of rows that ack() acks: the functions of the steps whose rows these are, and who sees it.
        self._ack_witnesses: list[tuple[Sequence[str], Witness]] = []
        self._cached: list[DataFrame] = []
        # What is unfinished in the batch is so for this reason, as far as anybody knows; nothing (""): of itself.
        self.unfinished_because = ""
        self.is_released = False
        # When the user said that what was done till then has delivered the rows.
        self._vouched_ms = -NEVER_MS
        # A sink took its rows together with another batch's, so what it wrote is not this batch's alone.
        self.is_shared = False
        # Undoes what was handed down for it.
        self.take_back: Callable[[], None] = lambda: None

    def evidence_of(self, key: object, name: str) -> SinkEvidence:
        """The evidence of sink ``name`` over one frame with the same arguments; ``key`` (hashable) says which."""
        with self._lock:
            return self._evidence.setdefault(key, SinkEvidence(name, self._note_store))

    def share(self, key: object, evidence: SinkEvidence, other: BatchEvidence) -> None:
        """Use ``evidence``, which the ``other`` batch made, since rows of both batches reach that sink."""
        self.is_shared = other.is_shared = True
        with self._lock:
            self._evidence[key] = evidence

    def see_acked(self, acked: Acked) -> bool:
        """``ack()`` columns came into a frame of this batch's rows. Returns whether it is to be cached, as such rows
        were evaluated more than once. Raises :class:`NotHeld`."""
        if not self.held:
            raise NotHeld("ack()")
        with self._lock:
            self._acked_frames.append(acked)
        return self.once.wants(*ACK_COLUMN)

    def see_acks(self, functions: Sequence[str], witness: Witness) -> None:
        """``witness`` sees what is done with rows of the steps with these ``functions``, behind an ``ack()``."""
        with self._lock:
            self._ack_witnesses.append((functions, witness))

    def judge(self) -> BaseException | None:
        """Why the batch is not to be settled as *done*; None when it is. Asks Spark's stores, and reads what a sink did
        not need to read."""
        look = Look(self._executions.ran())
        evidence = [(each, each.places()) for each in self._evidence.values()]
        error = next((each.error for each, _ in evidence if each.error is not None), None)
        returned = [(each, places) for each, places in evidence if each.error is None]
        findings = [each.judge(look, places, self.once, self._vouched_ms) for each, places in returned]
        acks = [(node, self._actions_of_acks(node, look)) for node in _untaken(lineage.of(self))]
        self._learn(evidence, acks, look)
        if error is not None:
            return error
        finding = next(filter(None, [*findings, *self._judge_untaken(acks, look)]), None)
        read = (each.read_what_was_pruned(look, places) for each, places in evidence)
        read_acked = (self._read_what_was_pruned(acked, look) for acked in self._acked_frames)
        return finding or next(filter(None, (*read, *read_acked)), None)

    def vouch(self) -> None:
        """The user says that what was done so far has delivered the rows of the sinks, whatever can be proven of it."""
        self._vouched_ms = now_ms()

    @property
    def has_run(self) -> bool:
        """Whether something ran over the batch's rows, so that the driver may have seen some. Asks Spark's stores."""
        look = Look(self._executions.ran())
        return bool(look.jobs) or any(look.names(node.function) for node in lineage.of(self))

    @property
    def without(self) -> frozenset[int]:
        """The servers, by their ids, that tasks have reported without."""
        return frozenset(note.index for note in self._note_store.of(self._tags))

    def keep_cached(self, df: DataFrame) -> DataFrame:
        """Cache a frame until :meth:`release`, unless it is cached; returns it."""
        with self._lock:
            if not df.is_cached:
                self._cached.append(df.cache())
        return df

    def release(self) -> None:
        """Release what the batch has cached and noted, and cancel what its sinks still run; when it is settled, in the
        thread that planned it."""
        with self._lock:
            cached, self._cached = self._cached, []
        self.is_released = True
        with CleanUp() as steps:
            steps.add(self.take_back)
            steps.add(self._forget_notes)
            for df in cached:
                steps.add(partial(run_uninterrupted, df.unpersist))
            for evidence in self._evidence.values():
                for tag in evidence.running:
                    steps.add(partial(self._cancel, evidence.name, tag))

    def _cancel(self, name: str, tag: str) -> None:
        """Cancel the jobs of a call of a sink that has outlived its batch: they would hold cores for nothing."""
        _logger.warning(
            "sink %r still runs, and its batch is settled: its jobs are cancelled; wait for its thread in process", name
        )
        self._context.cancelJobsWithTag(tag)

    def _forget_notes(self) -> None:
        nodes = [*lineage.of(self), *(node for evidence in self._evidence.values() for node in evidence.nodes)]
        self._note_store.forget([*self._tags, *(node.tag for node in nodes if _is_over(node))])

    def _learn(self, evidence: Sequence[tuple[SinkEvidence, Places]], acks: Acks, look: Look) -> None:
        """Remember for later batches whose rows were evaluated more than once."""
        nodes = lineage.of(self)
        again = [("sink", each.name) for each, places in evidence if look.evaluations(places) > 1]
        again += [("branch", name) for name in _branched(nodes)]
        notes = self._note_store.of([node.tag for node in nodes])
        has_conflict = any(note.kind == "conflict" for note in notes)
        if has_conflict:
            again += [("sink", each.name) for each, _ in evidence]
        if has_conflict or len({note.execution for note in notes if note.kind == "read"}) > 1:
            again += self._moving(nodes)
        # Behind a cache an action more is no evaluation more.
        if not self.once.wants(*ACK_COLUMN) and any(len(actions) > 1 for _, actions in acks):
            again.append(ACK_COLUMN)
        if again:
            self.unfinished_because = EVALUATED_AGAIN
        for kind, name in again:
            self.once.learn(kind, name)

    def _moving(self, nodes: Sequence[lineage.Node]) -> list[tuple[str, str]]:
        """The steps whose rows are to be cached so that no other evaluation cuts rows into other tasks: those from
        which on it may, and those that stand before (a range is sampled by an evaluation of its own)."""
        moving = dict.fromkeys((node.kind, node.name) for node in nodes if node.moves or node.is_moved)
        return [step for step in moving if step[0] != "sink" and not self.once.wants(*step)]

    def _judge_untaken(self, acks: Acks, look: Look) -> list[Undelivered | None]:
        """Of each step whose rows no sink and no other step took: how they were acked, if at all."""
        nodes = lineage.of(self)
        return [self._judge_body(node, actions, nodes, look) for node, actions in acks]

    def _judge_body(
        self, node: lineage.Node, actions: Sequence[Action], nodes: Sequence[lineage.Node], look: Look
    ) -> Undelivered | None:
        if actions:
            self.once.log_swallowed("ack()", actions)
            return judge("ack()", actions, forgotten=look.is_forgetful, vouched_ms=self._vouched_ms)
        if look.has_user_code(node.function):
            # Nothing but a Collector can have acked these rows, one by one; what failed after it still has failed.
            if look.has_arrow_code():
                return Undelivered(
                    "ack() went into a job of RDDs, where nobody sees whether its rows were read to the end; use @sink"
                )
            self.unfinished_because = UNTAKEN
            failed = judge(
                str(node),
                look.actions(Places((node.function,))),
                forgotten=look.is_forgetful,
                vouched_ms=self._vouched_ms,
            )
            return failed if failed is not None and failed.is_transient else None
        if node.kind == "source":
            return Undelivered("no sink took this batch's rows; use @sink or functions.ack()")
        return Undelivered(f"no sink took the rows of {_called(node, nodes)}; use @sink or functions.ack()")

    def _actions_of_acks(self, node: lineage.Node, look: Look) -> list[Action]:
        """What was done with the rows of a step behind an ``ack()``, in the order in which it began."""
        seen = [witness for functions, witness in self._ack_witnesses if node.function in functions]
        notes = self._note_store.of([witness.tag for witness in seen])
        known = [
            function for acked in self._acked_frames if node.function in acked.nodes for function in acked.functions
        ]
        again = [AGAIN + witness.tag for witness in seen]
        # What came into a frame that nobody follows is known by what stands below it.
        acks = _places([*known, *again], notes, seen) if known else _places([ACK], notes, seen, node.function)
        actions = look.actions(acks) if acks.partitions or any(map(look.names, acks.functions)) else []
        actions += [action for witness in seen for action in witness.actions(acks.cut)]
        return sorted(actions, key=lambda action: action.began_ms)

    def _read_what_was_pruned(self, acked: Acked, look: Look) -> SinkFailed | None:
        return _read(acked.df, "ack()") if look.is_pruned(Places(acked.functions)) else None


def _read(rows: DataFrame, name: str) -> SinkFailed | None:
    """Read rows only so that they are acked; why they cannot be read, or None."""
    try:
        rows.write.format("noop").mode("append").save()
    except Exception as error:  # noqa: BLE001  # whatever a row or Spark may do: it breaks this batch, and not the run
        return SinkFailed(name, error)
    return None


def _places(functions: Sequence[str], notes: Sequence[Note], witnesses: Sequence[Witness], below: str = "") -> Places:
    """How rows are known that ``witnesses`` have seen."""
    partitions = {rdd: count for witness in witnesses for rdd, count in witness.partitions().items()}
    calls = {call: target for witness in witnesses for call, target in witness.calls.items()}
    return Places(tuple(functions), notes, partitions, below, calls)


def _untaken(nodes: Sequence[lineage.Node]) -> list[lineage.Node]:
    """The steps whose rows neither a sink nor another step takes."""
    return [node for node in nodes if node.consumer is None and node.kind not in ("sink", "acks")]


def _is_over(node: lineage.Node) -> bool:
    """Whether all batches whose rows reach a step are settled: until then its notes are evidence for one of them."""
    batches = [ref() for ref in node.batch_refs]
    return all(isinstance(batch, BatchEvidence) and batch.is_released for batch in batches if batch is not None)


def _branched(nodes: Sequence[lineage.Node]) -> set[str]:
    """The branches of several copies. Who takes a copy by ``ack()`` is not noted, so all are taken to be."""
    copies = [node.name for node in nodes if node.kind == "branch"]
    return {name for name in copies if copies.count(name) > 1}


def _called(node: lineage.Node, nodes: Sequence[lineage.Node]) -> str:
    alike = [other.tag for other in nodes if (other.kind, other.name) == (node.kind, node.name)]
    which = f"copy {alike.index(node.tag) + 1} of " if len(alike) > 1 else ""
    return which + str(node)
