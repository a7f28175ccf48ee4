"""Actions: finds the actions on a sink's rows in the executions and jobs that Spark ran.

For each SQL execution and each RDD job, decides what it did with the rows, whether it read all of them, and how it
ended. The result is an :class:`~acker_client.spark.commit_evidence.evidence.Action`. ``evidence`` decides what the
actions prove.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Collection, Iterable, Sequence

from acker_client.spark.commit_evidence.evidence import Action, Target
from acker_client.spark.commit_evidence.executions import Execution, Job, Ran
from acker_client.spark.commit_evidence.graph import AGGREGATES, CUTS, GROUPING, ITERATING, Places, PlanPath
from acker_client.spark.commit_evidence.witness import Write
from acker_client.spark.driver.lineage import AGAIN
from acker_client.spark.worker.notes import Note

_DID = {
    "Dataset.count": "counted them",
    "Dataset.isEmpty": "asked whether there are any",
    "Dataset.tailToPython": "read their tail",
    "Dataset.toPythonIterator": "began to iterate over them",
    "Dataset.localCheckpoint": "checkpointed them",
    "Dataset.checkpoint": "checkpointed them",
}

_LEFT_OUT = "left its write out"
_UNSEEN = "called a writer that has left its write out, or of which Spark does not show what it read"

# Failed executions with this method are ignored, because the client itself observes how an iterator ends.
_ITERATES = "toPythonIterator"

# Actions of RDDs whose jobs only look at rows, and deliver none.
_LOOKS = frozenset({"runJob at PythonRDD", "take", "first", "isEmpty", "count", "sum", "localCheckpoint"})

# Matches the functions that mark rows of sinks in a plan.
_OF_SINKS = re.compile(rf"acker_sink_|{AGAIN}")

# Matches Spark's "CollectLimit 5" and "TakeOrderedAndProject(limit=5, orderBy=...".
_LIMIT = re.compile(r"^\w+(?: |\(limit=)(\d+)")
# Messages show this many characters of a consumer's description.
CONSUMER_CHARS = 80


class ActionFinder:
    """Finds the actions on a sink's rows among the executions and jobs that ``ran`` between two moments."""

    def __init__(self, ran: Ran) -> None:
        self.executions = ran.executions
        self.jobs = ran.jobs
        self.is_forgetful = ran.is_forgetful
        self._earlier = ran.earlier

    def actions(self, places: Places) -> list[Action]:
        """Return the actions on the rows at ``places``, ordered by their start."""
        found = [action for execution in self.executions if (action := self._of_execution(execution, places))]
        found += [action for job in self.jobs if (action := self._of_job(job))]
        found += self._found_none(places)
        return sorted(found, key=lambda action: action.began_ms)

    def unseen(self, writes: Iterable[Write], cut: Collection[str]) -> list[Action]:
        """Return the writes that have returned although none of their executions shows the rows. ``cut``: the functions
        that have left rows unread."""
        found: list[Action] = []
        for write in writes:
            executions = [execution for execution in self.executions if execution.method == write.call]
            if self._needs_rows(write, executions):
                has_jobs = any(execution.has_jobs for execution in executions)
                found.append(write.left_out(_UNSEEN if has_jobs else _LEFT_OUT, cut))
        return found

    def _needs_rows(self, write: Write, executions: Sequence[Execution]) -> bool:
        """Whether a write may need the rows, although none of its ``executions`` shows them."""
        trail = write.trail
        if any(trail.is_in(execution.graph) for execution in executions):
            return False
        if write.rows is not None:
            return trail.may_be_in(write.rows)
        # The text of a command shows its query, also if the command has left it out.
        return any(trail.is_named_in(execution.plan) or execution.is_cut_off for execution in executions)

    def is_pruned(self, places: Places) -> bool:
        """Whether Spark removed the rows from the plan of a delivering action, and no step may have cut them off."""
        return any(
            self._is_emptied(execution, places) and not self._left_unread(execution, places)
            for execution in self.executions
        )

    def evaluations(self, places: Places) -> int:
        """Count the actions in which a task has read its rows to the end. All jobs of an iterator count as one."""
        ended = [note for note in places.notes if note.kind == "end"]
        executions = {note.execution for note in ended if note.execution >= 0}
        stages = {note.stage for note in ended if note.execution < 0}
        jobs = {
            job.action if job.action in ("toLocalIterator", "runJob at PythonRDD") else job.number
            for job in self.jobs
            if not stages.isdisjoint(job.stages)
        }
        return len(executions) + len(jobs)

    def executions_over(self, places: Places) -> int:
        """Count the executions over rows, without commands whose query over them is an execution of its own. Some of
        them may have read only a part.

        A task of ``take`` may have reported without a note, because Spark reads nothing more from a worker once it has
        enough rows. This matters for a union: since 4.1, Spark unites partitions of the same keys in one task, but not
        below a limit. So the report of ``take`` differs from that of the write.
        """
        over = [execution for execution in self.executions if places.are_in(execution.plan)]
        return sum(not any(inner in over for inner in self._within(execution)) for execution in over)

    def folders(self, functions: Collection[str]) -> frozenset[str]:
        """Return the folders into which files were written by executions whose plan names one of ``functions``."""
        over = [each for each in self.executions if any(function in each.plan for function in functions)]
        return frozenset(execution.folder for execution in over if execution.folder)

    def names(self, function: str) -> bool:
        """Whether the plan of an execution names ``function``."""
        return any(function in execution.plan for execution in self.executions)

    def has_user_code(self, function: str) -> bool:
        """Whether code that may hold a ``Collector`` ran over the rows of ``function``: an RDD job, or the user's
        function over batches."""
        return any(_is_over_tracked_rows(job) for job in self.jobs) or any(
            any(path.unproven for path in execution.graph.paths_from(Places((function,))))
            for execution in self.executions
            if function in execution.plan
        )

    def has_arrow_code(self) -> bool:
        """Whether an RDD job ran a function over Arrow columns, such as ``ack()``."""
        return any(job.computes("ArrowEvalPython") for job in self.jobs)

    def _of_execution(self, execution: Execution, places: Places) -> Action | None:
        # Behind an RDD, the plan does not show what happened to the rows. So only a write counts there.
        collects = execution.collects and places.are_in(execution.plan)
        if places.are_in(execution.plan):
            above, is_followed = execution.graph.paths_from(places), True
            if not above:
                return self._pruned(execution, places)
        else:
            above, is_followed = self._behind_an_rdd(execution, places)
        if not above:
            return None
        parent = self._writing_parent(execution, places)
        hands_on = [path for path in above if parent is not None or path.writes or (collects and not _only_looks(path))]
        failed = next((each for each in (execution, parent) if each is not None and each.failure), execution)
        if failed.failure and execution.method.endswith(_ITERATES):
            return None
        # If one leg of a union or join is cut, the rows that it leaves out may be in no other leg. Behind an RDD, the
        # plan does not show which path has these rows.
        is_whole = is_followed and not any(path.is_cut(places.cut) for path in above)
        is_limited = is_followed and all(path.is_limited(places.cut) for path in above)
        if not failed.failure and not (hands_on and is_whole) and execution.found_none(places):
            return Action("found none", True, True, execution.began_ms, execution.ended_ms)
        left_out = "" if failed.failure or not hands_on else self._left_out(execution)
        disturbed = "" if failed.failure else self._disturbed(execution)
        # Only the user knows whether a skipped write was needed.
        delivers, is_whole = bool(hands_on) and not (left_out and execution.collects), is_whole and not left_out
        did = left_out or ("" if is_followed else places.unread) or _did(execution, above, delivers, is_whole)
        return Action(
            did,
            delivers,
            is_whole,
            execution.began_ms,
            max(execution.ended_ms, parent.ended_ms if parent else 0),
            failed.failure or disturbed,
            (parent or execution).target(places),
            failed.message or disturbed,
            is_doubtful=bool(left_out) or not is_limited,
        )

    def _disturbed(self, execution: Execution) -> str:
        """Return why files that an execution wrote may be missing; "" if nothing points to that."""
        others = (other for other in (*self._earlier, *self.executions) if other is not execution)
        if not any(map(execution.writes_beside, others)):
            return ""
        return (
            f"another write into {execution.folder} ran at the same time, and Spark may then lose files of both without"
            " an error: let one end before the other begins, or write into two folders"
        )

    def _left_out(self, execution: Execution) -> str:
        """Return why an execution that writes may have written nothing; "" if nothing points to that."""
        if not (execution.has_jobs or any(inner.has_jobs for inner in self._within(execution))):
            return "ran no job for its write"
        return _LEFT_OUT if execution.has_left_out else ""

    def _within(self, execution: Execution) -> list[Execution]:
        """Return the executions that ran within this one. A command runs its query as a separate execution."""
        return [
            other
            for other in self.executions
            if other.number > execution.number and other.root == execution.root and execution.encloses(other)
        ]

    def _pruned(self, execution: Execution, places: Places) -> Action | None:
        """Return the action of an execution that was planned over the rows and then wrote without reading them."""
        unread = ""
        if execution.failure and execution.graph.writes and not self._within(execution):
            did, is_whole = "tried to write them", False
        elif self._is_emptied(execution, places):
            unread = self._left_unread(execution, places)
            did, is_whole = unread or "wrote them", not unread
        else:
            return None
        began_ms, ended_ms, target = execution.began_ms, execution.ended_ms, execution.target(places)
        failure, message = execution.failure, execution.message
        return Action(did, True, is_whole, began_ms, ended_ms, failure, target, message, is_doubtful=bool(unread))

    def _left_unread(self, execution: Execution, places: Places) -> str:
        """Describe the step that may have left rows unread before AQE removed the plan as empty; "" if none."""
        paths = execution.graph.removed_paths(places)
        cut = next((path for path in paths if path.is_cut(places.cut)), None)
        return "" if cut is None else _handed_to(cut.unproven)

    def _is_emptied(self, execution: Execution, places: Places) -> bool:
        """Whether an execution that delivers its output was planned over the rows, and AQE then removed them.

        False if the execution may have left its write out, or if another execution ran within this one: then the inner
        execution is the evidence.
        """
        is_planned = execution.is_adapted and places.are_in(execution.plan) and not places.below
        # A text that Spark has cut off may hide one of the nodes that are looked for below.
        is_planned = is_planned and not execution.is_cut_off
        # Collecting an aggregate is a look, whether or not it needs the rows.
        looks = CUTS | AGGREGATES | GROUPING if execution.collects else CUTS
        if (
            not is_planned
            or self._within(execution)
            or any(re.search(rf"\b{each}\b", execution.plan) for each in looks)
        ):
            return False
        hands_on = execution.graph.writes or execution.collects or self._writing_parent(execution, places) is not None
        is_hidden = bool(execution.graph.removed_paths(places)) and not execution.graph.paths_from(places)
        return hands_on and is_hidden and not self._left_out(execution)

    def _behind_an_rdd(self, execution: Execution, places: Places) -> tuple[list[PlanPath], bool]:
        """Return the paths up from the scan of an RDD that holds these rows, and whether all rows were read."""
        if not places.may_be_in_rdds or "ExistingRDD" not in execution.plan:
            return [], False
        noted = [note for note in places.notes if note.kind == "part" and note.execution == execution.number]
        # A failed execution leaves no note. It may have read these rows, unless its plan names another sink's rows.
        # `failure` comes late, because it waits for the end of the execution.
        if not noted and (
            _OF_SINKS.search(execution.plan) or not execution.failure or not execution.graph.has(ITERATING)
        ):
            return [], False
        has_all = not places.cut and not places.unread and self._has_all(noted, places)
        return execution.graph.paths_from_rdds(places), has_all

    def _writing_parent(self, execution: Execution, places: Places) -> Execution | None:
        """Return the command that ran this execution as a part of itself (a write over JDBC does so); None if there is
        none.

        In foreachBatch the root of all executions is the micro-batch, so the command has to be one of the client's own
        calls, or its plan has to name the rows.
        """
        if execution.root == execution.number:
            return None
        has_root = any(other.number == execution.root for other in self.executions)
        for other in self.executions:
            is_before = other.number < execution.number and other.root == execution.root
            if not is_before or not other.encloses(execution):
                continue
            # Executions within one of the client's own calls have the call site of that call.
            is_own = other.method in places.calls
            is_part = execution.method == other.method if is_own else has_root or places.are_in(other.plan)
            if is_part and other.graph.writes:
                return other
        return None

    def _of_job(self, job: Job) -> Action | None:
        """Return an action for a failed RDD job that the client did not observe, because it may have read these rows.

        None for a job that succeeded: either the client has observed it, or the job proves nothing.
        """
        if job.is_seen or job.action in _LOOKS:
            return None
        # The order matters: `failure` waits for the end of a job, and must not wait for a foreign job that still runs.
        if not (job.has_ended or _is_over_tracked_rows(job)) or not job.failure:
            return None
        if not _is_over_tracked_rows(job):
            return None
        target = Target.unlike(f"a job of RDDs ({job.action})")
        return Action(f"ran {job.action}", True, False, job.began_ms, job.ended_ms, job.failure, target)

    def _found_none(self, places: Places) -> list[Action]:
        """Return an action if jobs that only look at an RDD have together read all its partitions and found no row."""
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


def _is_over_tracked_rows(job: Job) -> bool:
    """Whether an RDD job computes tracked frames, or may compute them. A job names the operators of its plan, but not
    their functions."""
    return job.computes("MapInArrow", "ArrowEvalPython")


def _are_empty(noted: Sequence[Note]) -> bool:
    return all(note.is_empty for note in noted if note.kind == "part")


def _did(execution: Execution, paths: Sequence[PlanPath], delivers: bool, is_whole: bool) -> str:
    method = ".".join(execution.method.split(".")[-2:])
    if method in _DID:
        return _DID[method]
    cut = next((path.cut for path in paths if path.cut), "")
    if cut:
        number = _LIMIT.search(cut)
        return f"{'wrote' if delivers and not execution.collects else 'read'} {number[1] if number else 'a part'}"
    unproven = next((path.unproven for path in paths if path.unproven), "")
    if delivers and not is_whole:
        return _handed_to(unproven)
    if delivers:
        return "wrote them"
    return "aggregated them" if all(path.aggregates for path in paths) else f"ran {method} over them"


def _handed_to(unproven: str) -> str:
    """Describe the consumer that may have stopped early: ``unproven``, or a watched function if ``unproven`` is ""."""
    watched = "a function (mapInArrow, mapInPandas) that stops early"
    consumer = f"{unproven[:CONSUMER_CHARS]} (it is not watched)" if unproven else watched
    return f"handed them to {consumer}, which need not have read them all"


def _only_looks(path: PlanPath) -> bool:
    """Whether collecting the result of this path only looks at the rows: at a part of them, or at an aggregate."""
    return path.aggregates or bool(path.cut)
