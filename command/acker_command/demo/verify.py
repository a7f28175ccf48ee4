"""Verify: whether the reported outcome of each record is true.

At each ACK, the rows committed under that root id must be the rows expected of the record's line (:mod:`expected`). At
the end, the words in all rows of acked roots must have the same counts as in the acked lines of the input. Reads only
committed Parquet files. A commit is a folder that appeared under its final name.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

from acker_client.source import Emissions, Failures, Listener
from acker_command.demo.corpus import Corpus, Ints
from acker_command.demo.expected import Expected, digests_of
from acker_command.demo.faults import Strike
from acker_protocol.ids import Column
from acker_protocol.messages import Cause, Verdict

NOTHING, ACKED, DEAD = 0, 1, 2
EXAMPLES_MAX = 5
TOP_WORDS = 12
VERDICTS = {"failed": Verdict.FAILED, "timed_out": Verdict.TIMED_OUT, "interrupted": Verdict.LOST}


class Verifier(Listener):
    """``numbers``: function from the origins of records to their numbers. ``counts``: the figures of a run, by name.
    ``replayed_by``: for each strike, how many records of the batch that it hit ended as LOST or unfinished.

    ``answers``: int8[n], NOTHING, ACKED or DEAD for each record. ``roots``: int64[n], the acked root id of each record.
    ``examples`` names some records whose ACK was false.
    """

    def __init__(
        self, text: Corpus, expected: Future[Expected], committed: Path, numbers: Callable[[pa.RecordBatch], Ints]
    ) -> None:
        self._text, self._expected, self._committed, self._numbers = text, expected, committed, numbers
        self.counts = Counter(records=text.records)
        self.replayed_by: Counter[Strike | None] = Counter()
        self._strike: Strike | None = None
        self.answers = np.zeros(text.records, np.int8)
        self.roots = np.zeros(text.records, np.int64)
        self.examples: list[str] = []
        self._read: set[Path] = set()
        # By root id: the sum of the rows' digests, and the lowest and highest record in the rows.
        empty = {"digest": np.array([], np.uint64), "first": np.array([], np.int64), "last": np.array([], np.int64)}
        self._held = pd.DataFrame(empty, index=pd.Index([], dtype=np.int64))

    def begin_batch(self, strike: Strike | None) -> None:
        self._strike = strike
        self.replayed_by[strike] += 0

    def on_emit(self, batch: int, emitted: Emissions, is_replay: bool) -> None:
        self.counts.update(batches=1, emitted=len(emitted), replayed=len(emitted) if is_replay else 0)

    def on_ack(self, acked: Emissions) -> None:
        self.acked(acked.roots, self._numbers(acked.origins()))

    def on_fail(self, failed: Emissions, why: Failures) -> None:
        self.counts.update({name: int(np.count_nonzero(why.verdicts == each)) for name, each in VERDICTS.items()})
        # Unfinished: no operator failed the record, but part of its work was not done or not reported.
        unfinished = [index for index, reason in enumerate(why.reasons, 1) if reason is Cause.UNFINISHED]
        is_interrupted = (why.verdicts == Verdict.LOST) | np.isin(why.reason_ids, unfinished)
        self.replayed_by[self._strike] += int(np.count_nonzero(is_interrupted))

    def on_dead_letter(self, dead: Emissions, why: Failures) -> None:
        self.dead(self._numbers(dead.origins()))

    def acked(self, roots: Column, records: Ints) -> None:
        """Check the rows committed under ``roots: uint64[n]``. These roots were just reported ACKED. ``records``: the
        numbers of their records."""
        self._count_answers(records, ACKED, "acked")
        self.roots[records] = roots.view(np.int64)
        for folder in set(self._committed.iterdir()) - self._read:
            self._read.add(folder)
            self._hold(folder)
        held = self._held.reindex(self.roots[records], fill_value=0)
        due = self._expected.result().digests[records]
        is_elsewhere = (held["first"] != records) | (held["last"] != records)
        wrong = np.flatnonzero((held["digest"].to_numpy() != due) | ((due != 0) & is_elsewhere.to_numpy()))
        self.counts["false_acks"] += len(wrong)
        for index in wrong[: EXAMPLES_MAX - len(self.examples)]:
            self.examples.append(f"{self._text.line_of(int(records[index]))} as root {int(roots[index]):#018x}")

    def dead(self, records: Ints) -> None:
        """Note records that ended in the dead letters."""
        self._count_answers(records, DEAD, "dead_lettered")

    def conclude(self) -> dict[str, Any]:
        """Return the results of the whole run: figures that must be 0, and the most frequent words."""
        expected = self._expected.result()
        acked, dead = self.answers == ACKED, self.answers == DEAD
        due = expected.rows[acked[expected.rows["record"]]].groupby("word")["count"].sum()
        given = self._counts(self.roots[acked])
        return {
            "lost": int(np.count_nonzero(self.answers == NOTHING)),
            "false_acks": self.counts["false_acks"],
            "answered_twice": self.counts["answered_twice"],
            "wrong_counts": int((given.sub(due, fill_value=0) != 0).sum()),
            "dead_without_cause": int(np.count_nonzero(dead & ~expected.must_die)),
            "spared": int(np.count_nonzero(acked & expected.must_die)),
            "top_words": {word: int(count) for word, count in given.nlargest(TOP_WORDS).items()},
        }

    def _count_answers(self, records: Ints, answer: int, name: str) -> None:
        again = np.count_nonzero(self.answers[records]) + len(records) - len(np.unique(records))
        self.answers[records] = answer
        self.counts.update({name: len(records), "answered_twice": int(again)})

    def _hold(self, folder: Path) -> None:
        """Read a commit and keep its rows."""
        table = pq.read_table(folder, read_dictionary=["path", "word", "category"])
        records = self._text.numbers(table["path"], table["line"])
        rows = table.select(["root_id", "word", "category", "count"]).to_pandas()
        rows = rows.assign(digest=digests_of(rows), first=records, last=records).set_index("root_id")
        both = pd.concat([self._held, rows[["digest", "first", "last"]]])
        self._held = both.groupby(level=0).agg({"digest": "sum", "first": "min", "last": "max"})

    def _counts(self, roots: Ints) -> pd.Series:
        """Return the counts of words over the committed rows of ``roots``, read again from the files."""
        counts = pd.Series(dtype=np.int64)
        for folder in self._committed.iterdir():
            rows = pq.read_table(folder, columns=["root_id", "word", "count"]).to_pandas()
            counts = counts.add(rows[rows["root_id"].isin(roots)].groupby("word")["count"].sum(), fill_value=0)
        return counts
