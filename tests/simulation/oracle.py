"""Oracle: records what really happened, and decides which outcomes of each record are allowed.

Shares no code with the acker. Each row has a number, and a *key* made of its parents and its operator. Attempts with
the same results make rows with the same keys. If two attempts differ, the keys of all later rows differ too.

Promise 1. An emission is ACKED only if one whole derivation of it was written. Each sink of the batch has a committed
write, and all attempts behind these writes have sent all their reports. These attempts have consumed the row of the
emission and every row derived from it, down to the written rows.

Promise 2. Each emission has one outcome, and each record is done once.

Promise 3. Each emission that was not ACKED had a reason. So had failed tasks and expired leases:

    outcome               is justified if
    FAILED, by the user   an attempt at the batch's work raised on a row of the record (also one of its group)
    FAILED, unfinished    two attempts of the batch differed: the same row came with others, or became something else
    LOST                  the batch was abandoned: its job failed, or its commit was refused
    any but TIMED_OUT     every replica of the record's slot was in trouble, see ``troubles``
    a task fails          the case drew the failure; or a server that the task reports to was in trouble, or out of
                          reach for a third of the budget; or its batch was over
    a lease runs out      driver and server were cut off for a tenth of the lease, or two of their calls failed

TIMED_OUT is never justified, as no batch here has a timeout. Only ACKED is justified once a replica has said ACKED.
This rule does not hold for a replica that a task left out, or that has since lost its state or left the view.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from acker_protocol.messages import Verdict


class Violation(Exception):
    """A broken promise. ``kind``: a short name, the same for similar failures."""

    def __init__(self, kind: str, what: str) -> None:
        super().__init__(f"{kind}: {what}")
        self.kind = kind


# The result for a row: the keys of its children, or a failure of its record, or the sink that has written it.
Becoming = tuple[Any, ...]
FAILED: Becoming = ("failed",)


@dataclass
class BatchFacts:
    """The facts about a batch. ``differed``: two attempts at the same work had different results."""

    number: int
    opened_at: float
    sinks: int
    committed: set[int] = field(default_factory=set)
    differed: bool = False
    failed_roots: set[int] = field(default_factory=set)
    abandoned: str = ""
    pending: int = 0
    is_over: bool = False
    # Servers that a task has left out of its reports.
    left_out: frozenset[int] = frozenset()
    # (operator, key of a row) -> hash of all rows that the operator consumed with it, and of their results, in the
    # first attempt that reported the row.
    signatures: dict[tuple[str, int], int] = field(default_factory=dict)


@dataclass
class AttemptFacts:
    """The facts about one attempt so far."""

    number: int
    batch: int
    consumed: list[tuple[str, list[tuple[int, Becoming]]]] = field(default_factory=list)
    is_reported: bool = False


class Oracle:
    """The oracle of one run."""

    def __init__(self, records: Mapping[int, str]) -> None:
        """``records``: the condition of each, by number: "", "missing" (it does not exist) or "unreadable"."""
        self._records = records
        # Returns why trouble at its servers excuses a root that is not ACKED; "" if nothing does.
        self.excuse: Callable[[BatchFacts, int, str], str] = lambda batch, root, reason: ""
        # Whether the ACKED of a server may be ignored.
        self.is_out: Callable[[BatchFacts, int], bool] = lambda batch, server: False
        self.batches: dict[int, BatchFacts] = {}
        # By root, the servers that have reported ACKED.
        self._acked_by: dict[int, set[int]] = {}
        self.outcomes: dict[int, Verdict] = {}
        self.needless: list[str] = []
        self.replays: Counter[str] = Counter()
        self._attempts: dict[int, AttemptFacts] = {}
        self._keys: dict[Any, int] = {}
        self._roots_of: list[frozenset[int]] = []
        self._row_keys: list[int] = []
        self._becomings: dict[int, dict[Becoming, list[int]]] = {}
        self._whole: set[int] = set()
        self._batch_of: dict[int, int] = {}
        self._record_of: dict[int, int] = {}
        self._done: dict[int, str] = {}

    # -- rows, as attempts make them

    def begin(self, attempt: int, batch: int) -> None:
        self._attempts[attempt] = AttemptFacts(attempt, batch)

    def read(self, roots: Iterable[int]) -> list[int]:
        """Return rows for records that were read."""
        return [self._row(self._key(("read", root), frozenset((root,)))) for root in roots]

    def became(self, attempt: int, op: str, rows: Sequence[int], children: Sequence[Sequence[int] | None]) -> list[int]:
        """Record the children of each row, or the failure of its record (None). Returns the children's rows."""
        made: list[int] = []
        done: list[tuple[int, Becoming]] = []
        for row, values in zip(rows, children, strict=True):
            parent = self._row_keys[row]
            if values is None:
                done.append((parent, FAILED))
                continue
            roots = self._roots_of[parent]
            keys = tuple(self._key((op, parent, tuple(values), at), roots) for at in range(len(values)))
            made += [self._row(key) for key in keys]
            done.append((parent, keys))
        self._attempts[attempt].consumed.append((op, done))
        return made

    def branched(self, attempt: int, op: str, rows: Sequence[int], copies: int, index: int) -> list[int]:
        """Record that each row got this many copies. Returns the rows of copy ``index``."""
        made: list[int] = []
        done: list[tuple[int, Becoming]] = []
        for row in rows:
            parent = self._row_keys[row]
            keys = tuple(self._key((op, parent, at), self._roots_of[parent]) for at in range(copies))
            made.append(self._row(keys[index]))
            done.append((parent, keys))
        self._attempts[attempt].consumed.append((op, done))
        return made

    def grouped(
        self, attempt: int, op: str, rows: Sequence[int], children: Sequence[tuple[int, Sequence[int]]] | None
    ) -> list[int]:
        """Record the children of a group. Each child is its value and the indexes of its parents in ``rows``. None: all
        rows failed. Returns the children's rows."""
        parents = [self._row_keys[row] for row in rows]
        became: dict[int, list[int]] = {parent: [] for parent in parents}
        made: list[int] = []
        for value, named in children or ():
            of = tuple(sorted(parents[at] for at in named))
            key = self._key((op, of, value), frozenset().union(*(self._roots_of[parent] for parent in of)))
            made.append(self._row(key))
            for parent in of:
                became[parent].append(key)
        done: list[tuple[int, Becoming]] = [
            (parent, FAILED if children is None else tuple(keys)) for parent, keys in became.items()
        ]
        self._attempts[attempt].consumed.append((op, done))
        return made

    def wrote(self, attempt: int, op: str, rows: Sequence[int]) -> None:
        """Record that a sink has taken these rows. They count once the attempt's write is committed."""
        done: list[tuple[int, Becoming]] = [(self._row_keys[row], ("written", op)) for row in rows]
        self._attempts[attempt].consumed.append((op, done))

    def reporting(self, attempt: int) -> None:
        """Record that the attempt starts to report, at the end of its input."""
        facts = self._attempts[attempt]
        batch = self.batches[facts.batch]
        for op, done in _joined(facts.consumed):
            together = hash(frozenset(done))
            for key, became in done:
                if batch.signatures.setdefault((op, key), together) != together:
                    batch.differed = True
                if became == FAILED:
                    batch.failed_roots |= self._roots_of[key]

    def reported(self, attempt: int) -> None:
        """Record that all reports of the attempt were answered."""
        self._attempts[attempt].is_reported = True

    def committed(self, batch: int, sink: int, attempts: Iterable[int]) -> None:
        """Record a committed write of the sink with this index. ``attempts``: all that it comes from, of all stages."""
        self.batches[batch].committed.add(sink)
        for attempt in attempts:
            facts = self._attempts[attempt]
            if not facts.is_reported:
                raise Violation("simulation", f"attempt {attempt} is in a write, and has not reported")
            for _, done in facts.consumed:
                for key, became in done:
                    self._becomings.setdefault(key, {}).setdefault(became, []).append(attempt)

    # -- batches

    def opening(self, number: int, now: float, sinks: int) -> None:
        """Record the first request to open a batch."""
        self.batches.setdefault(number, BatchFacts(number, now, sinks))

    def abandoned(self, number: int, why: str) -> None:
        """Record that the batch's job failed."""
        self.batches[number].abandoned = why

    # -- what is reported

    def emitted(self, batch: int, records: Sequence[int], roots: Sequence[int]) -> None:
        for record, root in zip(records, roots, strict=True):
            if record in self._done:
                raise Violation("done twice", f"record {record} is emitted again, and is {self._done[record]} already")
            self._batch_of[root], self._record_of[root] = batch, record
        self.batches[batch].pending += len(roots)

    def batch_of(self, root: int) -> int:
        """Return the batch of an emission; 0 for a root that was not emitted."""
        return self._batch_of.get(root, 0)

    def answered(self, root: int, verdict: Verdict, server: str) -> None:
        """Check an outcome that a server reports to any client. It has to be true."""
        if verdict == Verdict.ACKED:
            self._check_whole(root, server)

    def said(self, server: int, root: int, verdict: Verdict) -> None:
        """Record an outcome that a server reports, true or not."""
        if verdict == Verdict.ACKED:
            self._acked_by.setdefault(root, set()).add(server)

    def ended(self, root: int, verdict: Verdict | None, reason: str) -> None:
        """Check an outcome that the run has counted. None: the record does not exist."""
        record = self._record_of[root]
        if root in self.outcomes:
            raise Violation("outcome twice", f"record {record} has two outcomes of one emission")
        self.outcomes[root] = verdict or Verdict.ACKED
        batch = self.batches[self._batch_of[root]]
        batch.pending -= 1
        batch.is_over = not batch.pending
        if verdict is None:
            if self._records[record] != "missing":
                raise Violation("false ACK", f"record {record} is said not to exist")
            self._finish(record, "absent")
            return
        if verdict == Verdict.ACKED:
            self._check_whole(root, "the run")
            self._finish(record, "acked")
            return
        for server in self._acked_by.get(root, ()):
            if server not in batch.left_out and not self.is_out(batch, server):
                raise Violation("needless", f"record {record} is {verdict.name} ({reason}); server {server} said ACKED")
        called_for = self._called_for(batch, root, verdict, reason)
        self.replays[called_for or "needless"] += 1
        if not called_for:
            raise Violation(
                "needless", f"record {record} in batch {batch.number} is {verdict.name} ({reason}), for no reason"
            )

    def died(self, record: int) -> None:
        self._finish(record, "in the dead letters")

    def check_end(self) -> None:
        """Check at the end that every record is done and every emission has its outcome."""
        open_ = sorted(self._records.keys() - self._done.keys())
        if open_:
            raise Violation("no answer", f"the run has ended, and records {open_} are not done")
        silent = [self._record_of[root] for root in self._batch_of if root not in self.outcomes]
        if silent:
            raise Violation("no outcome", f"emissions of records {sorted(silent)} have no outcome")

    # -- judging

    def _called_for(self, batch: BatchFacts, root: int, verdict: Verdict, reason: str) -> str:
        """Return why an emission need not be ACKED; "" if it had to be."""
        unreadable = self._records[self._record_of[root]] == "unreadable"
        if verdict == Verdict.FAILED and (unreadable or root in batch.failed_roots):
            return "failed by the user"
        if batch.abandoned and verdict == Verdict.LOST:
            return "abandoned"
        if verdict == Verdict.TIMED_OUT:
            return ""
        return "differed" if batch.differed else self.excuse(batch, root, reason)

    def _check_whole(self, root: int, who: str) -> None:
        batch = self.batches[self._batch_of[root]]
        record = self._record_of[root]
        if len(batch.committed) < batch.sinks:
            raise Violation(
                "false ACK", f"{who} says ACKED of record {record}, and batch {batch.number} is not committed"
            )
        key = self._keys.get(("read", root))
        if key is None or not self._is_whole(key, {}):
            raise Violation(
                "false ACK",
                f"{who} says ACKED of record {record} in batch {batch.number}: {self._missing(key)}",
            )

    def _is_whole(self, key: int, known: dict[int, bool]) -> bool:
        """Whether a row and every row made of it were processed to the end in at least one way."""
        if key in self._whole:
            return True
        if key not in known:
            known[key] = any(
                became != FAILED
                and (became[:1] == ("written",) or all(self._is_whole(child, known) for child in became))
                for became in self._becomings.get(key, ())
            )
            if known[key]:
                self._whole.add(key)
        return known[key]

    def _missing(self, key: int | None) -> str:
        if key is None:
            return "no attempt has read it"
        ways = [f"{became} by attempts {attempts}" for became, attempts in self._becomings.get(key, {}).items()]
        if not ways:
            return f"no attempt has reported and committed row {self._name(key)}"
        for became in self._becomings[key]:
            for child in became:
                if isinstance(child, int) and not self._is_whole(child, {}):
                    return f"row {self._name(key)} became {len(became)} rows; {self._missing(child)}"
        return f"row {self._name(key)}: {'; '.join(ways)}"

    def _name(self, key: int) -> str:
        return f"{key} {next(what for what, number in self._keys.items() if number == key)}"

    def _finish(self, record: int, how: str) -> None:
        if record in self._done:
            raise Violation("done twice", f"record {record} is {how}, and was {self._done[record]} before")
        self._done[record] = how

    def _row(self, key: int) -> int:
        self._row_keys.append(key)
        return len(self._row_keys) - 1

    def _key(self, what: Any, roots: frozenset[int]) -> int:
        key = self._keys.get(what)
        if key is None:
            key = self._keys[what] = len(self._roots_of)
            self._roots_of.append(roots)
        return key


def _joined(consumed: list[tuple[str, list[tuple[int, Becoming]]]]) -> list[tuple[str, list[tuple[int, Becoming]]]]:
    """Merge what an attempt consumed into one list of rows for each operator."""
    together: dict[str, list[tuple[int, Becoming]]] = {}
    for op, done in consumed:
        together.setdefault(op, []).extend(done)
    return list(together.items())
