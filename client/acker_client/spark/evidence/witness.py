"""Witness: what is seen from the client of one run of a sink, and how a frame or an RDD has come from its rows.

Decides what an action that the client's own call has shown is worth: one over a part of the rows hands on a part.
"""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

from pyspark import RDD

from acker_client.core.gist import gist
from acker_client.spark.core.evidence import NEVER_MS, Action
from acker_client.spark.driver.lineage import READS
from acker_client.spark.task.notes import NoteWriter
from acker_client.spark.task.reading import to_its_end

_CUTS = re.compile(r"^[\s:+|-]*(GlobalLimit|LocalLimit|Limit|Tail|Offset|CollectLimit)\b", re.MULTILINE)
_UNWATCHED = re.compile(r"^[\s:+|-]*MapIn(?:Arrow|Pandas) (?!acker_)", re.MULTILINE)
_READS = re.compile(rf"{READS}\w*?_[0-9a-f]{{12}}")
# Actions of RDDs that only look, and what they did.
LOOKS = {
    "count": "counted them", "isEmpty": "asked whether there are any", "take": "read a part", "first": "read a part",
    "takeSample": "read a part", "takeOrdered": "read a part", "top": "read a part", "sum": "summed them up",
    "countByKey": "counted them", "countByValue": "counted them", "reduce": "summed them up", "fold": "summed them up",
    "aggregate": "summed them up",
}  # fmt: skip


class Witness:
    """What is seen from the client of one run of a sink. ``tag``: of its step. Thread-safe."""

    def __init__(self, tag: str, note_writer: NoteWriter) -> None:
        self.tag = tag
        self.note_writer = note_writer
        self._lock = threading.Lock()
        self._inside = threading.local()
        self._rdds: list[RDD[Any]] = []
        self._seen: list[tuple[Action, Trail]] = []
        self._running: list[Action] = []

    def actions(self, cut: Collection[str]) -> list[Action]:
        """What the client's own calls have shown. ``cut``: the functions that have left rows unread."""
        with self._lock:
            seen, running = list(self._seen), list(self._running)
        return [*(action if not trail.is_cut(cut) else _partial(action) for action, trail in seen), *running]

    def partitions(self) -> dict[tuple[str, int], int]:
        """How many partitions each RDD of all rows has, by (tag, number in notes)."""
        with self._lock:
            rdds = list(enumerate(self._rdds))
        return {(self.tag, number): rdd.getNumPartitions() for number, rdd in rdds}

    def watch(self, rdd: RDD[Any], *, notes_empty: bool) -> RDD[Any]:
        """The same RDD, with a note for each of its partitions that is read to its end. ``notes_empty``: also whether
        one has no rows, which says nothing of the sink's where a function stands between."""
        with self._lock:
            number = len(self._rdds)
            self._rdds.append(rdd)
        through = to_its_end(self.tag, number, self.note_writer, notes_empty=notes_empty)
        return rdd.mapPartitionsWithIndex(through, preservesPartitioning=True)

    def iterate(self, rows: Iterator[Any], trail: Trail) -> Iterator[Any]:
        """The same rows; that they were read to the end, or raised, is seen."""
        began_ms = now_ms()
        try:
            yield from rows
        except Exception as error:
            self.see(Action("iterated over them", True, False, began_ms, now_ms(), gist(error)), trail)
            raise
        self.see(Action("iterated over them", True, True, began_ms, now_ms()), trail)

    def see(self, action: Action, trail: Trail) -> None:
        """Something was done with what ``trail`` leads to."""
        with self._lock:
            self._seen.append((action, trail))

    @contextmanager
    def running(self, name: str) -> Iterator[None]:
        """An action that hands rows on is under way."""
        action = Action(f"ran {name} over them", True, False, now_ms(), NEVER_MS)
        with self._lock:
            self._running.append(action)
        try:
            yield
        finally:
            with self._lock:
                self._running.remove(action)

    @property
    def is_looking(self) -> bool:
        """Whether this thread is within a call that only looks: what it leaves unread says nothing."""
        return getattr(self._inside, "call", "") in LOOKS

    @contextmanager
    def calling(self, name: str) -> Iterator[bool]:
        """Whether a call is the user's own, and not one that PySpark makes within it."""
        outer = getattr(self._inside, "call", "")
        self._inside.call = name if name in LOOKS or not outer else outer
        try:
            yield not outer
        finally:
            self._inside.call = outer


@dataclass(frozen=True, slots=True)
class Trail:
    """How a frame or an RDD has come from a sink's rows. ``is_partial``: a limit stood in the way, or a function that
    nobody watches; ``functions``: those that are watched."""

    witness: Witness
    is_partial: bool = False
    functions: frozenset[str] = frozenset()

    def through(self, plan: str) -> Trail:
        """The trail of a frame with this analysed plan."""
        is_partial = bool(_CUTS.search(plan) or _UNWATCHED.search(plan))
        return Trail(self.witness, self.is_partial or is_partial, self.functions | set(_READS.findall(plan)))

    def behind(self, function: str) -> Trail:
        """The trail of what ``function`` makes."""
        return replace(self, functions=self.functions | {function})

    def is_cut(self, cut: Collection[str]) -> bool:
        """Whether not all rows have come so far."""
        return self.is_partial or not self.functions.isdisjoint(cut)


def _partial(action: Action) -> Action:
    return replace(action, did="read a part", is_whole=False) if action.delivers else action


def now_ms() -> float:
    return time.time_ns() // 1_000_000
