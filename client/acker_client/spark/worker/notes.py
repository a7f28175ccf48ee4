"""Notes: what tasks report to the driver about themselves, beside what they report to the acker.

Decides that a note travels in an accumulator of Spark's, which adds only what tasks that succeed have written, and is
there by the time its job has ended. Notes say where rows were read to their end, where they were not, which reports
were in CONFLICT, and which servers were left out; they never carry rows or ids of roots.
"""

from __future__ import annotations

import base64
import pickle
import threading
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from typing import Any, Literal

from pyspark import Accumulator, SparkContext, TaskContext
from pyspark.accumulators import AccumulatorParam

from acker_client.pins import Pin

# read: a chain has read records of a source, and its reports are answered; end: a tracked chain has read its input
# to the end, and its reports are answered; cut: a function of the user's ended before its input did; part: one
# partition of an RDD was read to its end; conflict: a report was counted before with other content; without: a server
# was left out of a report.
Kind = Literal["read", "end", "cut", "part", "conflict", "without"]

EXECUTION = "spark.sql.execution.id"
# The execution that the driver's thread was in when the batch was planned, as in foreachBatch; jobs of RDDs that begin
# there bear its number. Set by the acker.
OUTER = "spark.acker.outerExecution"
# What the tasks of this thread's jobs write notes with; set by the acker.
NOTES = "spark.acker.notes"


@dataclass(frozen=True, slots=True)
class Note:
    """``tag`` names the tracked step that it is about, of *without* the batch; ``execution``: of SQL, -1 in a job of
    RDDs; ``stage``: Spark's; ``rdd``, ``index``: which partition of which watched RDD, -1 where it is none, and whether
    it ``is_empty``; ``function``: that was cut. Of *without* ``index`` is the server's id."""

    kind: Kind
    tag: str
    execution: int
    stage: int
    rdd: int = -1
    index: int = -1
    is_empty: bool = False
    function: str = ""


class _Appending(AccumulatorParam[list[Note]]):
    def zero(self, value: list[Note]) -> list[Note]:
        return []

    def addInPlace(self, value1: list[Note], value2: list[Note]) -> list[Note]:
        value1.extend(value2)
        return value1


class NoteWriter:
    """What a task writes notes with. Picklable."""

    def __init__(self, accumulator: Accumulator[list[Note]]) -> None:
        self._accumulator = accumulator

    def write(
        self, kind: Kind, tag: str, *, rdd: int = -1, index: int = -1, is_empty: bool = False, function: str = ""
    ) -> None:
        """Write a note; it arrives if this task succeeds."""
        context: Any = TaskContext.get()
        execution = context.getLocalProperty(EXECUTION)
        if execution == context.getLocalProperty(OUTER):
            execution = None
        stage = int(context.stageId())
        self._accumulator.add([Note(kind, tag, int(execution or -1), stage, rdd, index, is_empty, function)])


def handed_down(note_writer: NoteWriter) -> str:
    """A writer as text, for the tasks of a job."""
    return base64.b64encode(pickle.dumps(note_writer)).decode("ascii")


def note_writer_here() -> NoteWriter | None:
    """What this task may write notes with, as the thread has said that began its job."""
    task = TaskContext.get()
    text = None if task is None else task.getLocalProperty(NOTES)
    found: NoteWriter | None = pickle.loads(base64.b64decode(text)) if text else None
    return found


def tag_of(pin: Pin) -> str:
    """By what notes are known that are about a batch."""
    return f"batch-{pin.session}-{pin.batch}"


class NoteStore:
    """The notes of one SparkContext, in the driver. Keeps those of the tags that somebody asked for. Thread-safe."""

    def __init__(self, context: SparkContext) -> None:
        self._accumulator: Accumulator[list[Note]] = context.accumulator([], _Appending())
        self.note_writer = NoteWriter(self._accumulator)
        self._lock = threading.Lock()
        self._kept: dict[str, list[Note]] = {}

    def keep(self, tag: str) -> None:
        """Keep the notes of ``tag`` until :meth:`forget`."""
        with self._lock:
            self._kept.setdefault(tag, [])

    def forget(self, tags: Collection[str]) -> None:
        """Drop the notes of ``tags``, and what comes later."""
        with self._lock:
            for tag in tags:
                self._kept.pop(tag, None)

    def of(self, tags: Collection[str]) -> list[Note]:
        """All notes of ``tags`` so far."""
        with self._lock:
            for note in self._taken():
                if note.tag in self._kept:
                    self._kept[note.tag].append(note)
            return [note for tag in tags for note in self._kept.get(tag, ())]

    def _taken(self) -> Iterator[Note]:
        # The list stays the same one, as PySpark's own thread appends to it at any time.
        notes = self._accumulator.value
        count = len(notes)
        taken = notes[:count]
        del notes[:count]
        return iter(taken)


_lock = threading.Lock()
_note_stores: dict[str, NoteStore] = {}


def note_store_of(context: SparkContext) -> NoteStore:
    """The one store of notes of a context."""
    with _lock:
        application = str(context.applicationId)
        if application not in _note_stores:
            _note_stores.clear()
            _note_stores[application] = NoteStore(context)
        return _note_stores[application]
