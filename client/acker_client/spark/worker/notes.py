"""Notes: what tasks tell the driver about themselves, besides their reports to the acker.

Notes travel in a Spark accumulator, which adds only the notes of tasks that succeed, and has them when the job ends.
Notes say where rows were read to their end and where not, which reports were in CONFLICT, and which servers were left
out. They never carry rows or root ids.
"""

from __future__ import annotations

import base64
import pickle
import threading
import weakref
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from typing import Any, Literal

from pyspark import Accumulator, SparkContext, TaskContext
from pyspark.accumulators import AccumulatorParam

from acker_client.pins import Pin

# read: a chain has read records of a source, and its reports are answered.
# end: a tracked chain has read its input to the end, and its reports are answered.
# cut: a user's function ended before its input did.
# part: one partition of an RDD was read to its end.
# conflict: the server had already counted a report with this identity and other content.
# without: a server was left out of a report.
# dropped: a step has dropped rows of untracked records that failed.
Kind = Literal["read", "end", "cut", "part", "conflict", "without", "dropped"]

EXECUTION = "spark.sql.execution.id"
# The execution that the driver's thread was in when the batch was planned, as in foreachBatch. RDD jobs that begin
# there have its id. Set by the acker.
OUTER = "spark.acker.outerExecution"
# The note writer of the tasks of this thread's jobs, as text. Set by the acker.
NOTES = "spark.acker.notes"


@dataclass(frozen=True, slots=True)
class Note:
    """One note. ``tag``: the tracked step that the note is about; the batch if ``kind`` is *without*. ``execution``:
    the SQL execution, -1 in an RDD job. ``stage``: Spark's stage id. ``rdd``, ``index``: the watched RDD and its
    partition, or -1. If ``kind`` is *without*, ``index`` is the server's id; if it is *dropped*, the number of rows.
    ``is_empty``: the partition has no rows. ``function``: the function that ended early, if ``kind`` is *cut*; the
    first reason, if it is *dropped*."""

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
    """Writes the notes of a task. Picklable."""

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
    """Return a writer as text, for the tasks of a job."""
    return base64.b64encode(pickle.dumps(note_writer)).decode("ascii")


def note_writer_here() -> NoteWriter | None:
    """Return the note writer of this task, handed down by the thread that began its job; None if there is none."""
    task = TaskContext.get()
    text = None if task is None else task.getLocalProperty(NOTES)
    found: NoteWriter | None = pickle.loads(base64.b64decode(text)) if text else None
    return found


def tag_of(pin: Pin) -> str:
    """Return the tag of notes that are about a batch."""
    return f"batch-{pin.session}-{pin.batch}"


class NoteStore:
    """The notes of one SparkContext, in the driver. Keeps only tags given to :meth:`keep_notes`. Thread-safe."""

    def __init__(self, context: SparkContext) -> None:
        self._accumulator: Accumulator[list[Note]] = context.accumulator([], _Appending())
        self.note_writer = NoteWriter(self._accumulator)
        self._lock = threading.Lock()
        self._kept: dict[str, list[Note]] = {}

    def keep_notes(self, tag: str) -> None:
        """Keep the notes of ``tag`` until :meth:`forget_notes`."""
        with self._lock:
            self._kept.setdefault(tag, [])

    def forget_notes(self, tags: Collection[str]) -> None:
        """Drop the notes of ``tags``, including notes that arrive later."""
        with self._lock:
            for tag in tags:
                self._kept.pop(tag, None)

    def of(self, tags: Collection[str]) -> list[Note]:
        """Return all notes of ``tags`` so far."""
        with self._lock:
            for note in self._drained():
                if note.tag in self._kept:
                    self._kept[note.tag].append(note)
            return [note for tag in tags for note in self._kept.get(tag, ())]

    def _drained(self) -> Iterator[Note]:
        # Must not replace the list, because PySpark's own thread may append to it at any time.
        notes = self._accumulator.value
        count = len(notes)
        drained = notes[:count]
        del notes[:count]
        return iter(drained)


_lock = threading.Lock()
_note_stores: weakref.WeakKeyDictionary[SparkContext, NoteStore] = weakref.WeakKeyDictionary()


def note_store_of(context: SparkContext) -> NoteStore:
    """Return the context's only store of notes."""
    with _lock:
        found = _note_stores.get(context)
        if found is None:
            found = _note_stores[context] = NoteStore(context)
        return found
