"""Votes: merge what the replicas of a root report into one outcome. Pure. Members are indices into a placement.

An ACKED of any replica ends a root at once, because no replica acks falsely. So does a FAILED with a reason that the
user gave. If a root gets both, the first one counts. Everything else is a *no*: the replica may only have missed
something. A root without an ACKED or a user's FAILED ends when each of its replicas has spoken, settled or left. It
ends with the strongest report. From strong to weak:

| report of a replica | the root ends as | what has happened there |
|---|---|---|
| ACKED | ACKED, at once | all sections arrived; another replica may be late, cut off, or without its state |
| FAILED, but not `unfinished` | FAILED, at once | the user's code failed it; other replicas may have missed it |
| FAILED `unfinished` | FAILED | edges were open at *done*: rows were dropped, or sections did not arrive |
| TIMED_OUT | TIMED_OUT | the replica had the init, and the timeout came first |
| LOST, but not `unread` | LOST | `abandoned`, `root_conflict`; or settled with another count, and no report |
| none, and the replica has settled | absent | a read task covered the number without an init: there is no such record |
| LOST `unread` | LOST | the number was neither covered nor initialised |
| none, and the replica has left | LOST | it was killed, or restarted without its state |

The first report of equal strength gives the reason. Among replicas that left, the last one does.

Absent is stronger than `unread`. A replica that counted a number as covered had counted every init of that read task
before, so a replica that reports `unread` has missed the task's report. Each of the other noes shows that the replica
had an init, which may come from a speculative copy or a re-run of the task. So the record exists. A user's own fail
with the reason `unfinished` counts as a no only if a server that is older than the enum Cause reports it.

Reports that are late, repeated or out of order change nothing:

| event | effect |
|---|---|
| an outcome again: a repeated reply, a restart with state | none: the first report of a replica about a root counts |
| a root twice in one reply: `root_conflict`, if both trees are of this source | the same, as if in two replies |
| an outcome of a root that has ended | counts only in `differed`, `saved` and the count that `settled` checks |
| a member comes back after it left: paused, or without its state | it is ignored from then on |
| *settled*, then *leave*, or *leave*, then *settled* | the second is ignored |
| a root of another batch, or of a slot that this member does not hold | ignored |
"""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import dataclass, field, replace

import numpy as np
import numpy.typing as npt

from acker_client.cluster.watched import only
from acker_protocol.ids import SLOTS, Column, numbers_of, root_ids, slot_column
from acker_protocol.messages import NO_IDS, Cause, Kinds, Outcomes, Reason, ReasonIds, Verdict
from acker_protocol.placement import REPLICAS_MAX, Replicas

Rows = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]
# One bit for each replica of a slot, by its position among the slot's replicas.
Bits = npt.NDArray[np.uint8]

# One bit for each kind of report. The higher the bit, the stronger the report.
OUT, UNREAD, ABSENT, LOST, TIMED_OUT, UNFINISHED, FAILED, ACKED = (1 << bit for bit in range(8))
NOES = UNREAD | ABSENT | LOST | TIMED_OUT | UNFINISHED

# How a root ended: a verdict, or this value for an absent root. 0 means that it is open.
_NO_RECORD = max(Verdict) + 1
_OF_BIT = [
    *(Verdict.LOST, Verdict.LOST, _NO_RECORD, Verdict.LOST),
    *(Verdict.TIMED_OUT, Verdict.FAILED, Verdict.FAILED, Verdict.ACKED),
]
_ENDINGS: Kinds = np.array([0, *(_OF_BIT[said.bit_length() - 1] for said in range(1, 256))], np.uint8)
_DIFFERS: Mask = np.array([bool(said & ACKED) + bool(said & FAILED) + bool(said & NOES) > 1 for said in range(256)])
# The kind of report by verdict, and for two causes by cause and verdict. The verdict is needed for servers that are
# older than the enum Cause: from them, a user's fail with the text `unread` arrives with Cause.UNREAD.
_KINDS: Kinds = np.array([0, ACKED, FAILED, TIMED_OUT, LOST], np.uint8)
_KINDS_BY_CAUSE = {Cause.UNFINISHED: (Verdict.FAILED, UNFINISHED), Cause.UNREAD: (Verdict.LOST, UNREAD)}


@dataclass(frozen=True, slots=True, eq=False)
class Merged:
    """Final ``outcomes``, and the ``absent`` roots, uint64[m], which have no record.

    ``unheard``: when a member settled, the outcomes that its server counted minus those that arrived here.
    """

    outcomes: Outcomes = field(default_factory=Outcomes)
    absent: Column = field(default_factory=lambda: NO_IDS)
    unheard: int = 0


class Votes:
    """The reports about many roots, and how each root ended. Each root has a row, which takes 11 bytes."""

    __slots__ = ("_endings", "_everybody", "_places", "_reason_ids", "_reasons", "_said", "_spoken")

    def __init__(self, rows: int, replicas: int) -> None:
        self._everybody = (1 << replicas) - 1
        self._said = np.zeros(rows, np.uint8)
        self._spoken = np.zeros(rows, np.uint8)
        self._endings = np.zeros(rows, np.uint8)
        # For each open root, the reason of its strongest report: 0 is none, otherwise a value of ``_reasons``.
        self._reason_ids = np.zeros(rows, np.uint32)
        # Reasons of open roots, given by servers or because members left. A user's reason ends its root at once, so it
        # is not kept.
        self._reasons: dict[Reason, int] = {}
        # The position of a row in the reply that is being counted.
        self._places = np.empty(rows, np.uint32)

    @property
    def spoken(self) -> Bits:
        """Which replicas have spoken, settled or left: uint8 by row. The caller must not write into it."""
        return self._spoken

    def drop_rows(self, count: int) -> int:
        """End the rows from ``count`` on, about which no replica has spoken, and return their number."""
        self._spoken[count:] = self._everybody
        return len(self._spoken[count:])

    def first_heard(self, rows: Rows, bits: Bits) -> Mask:
        """Return for which of ``rows`` the replica speaks for the first time. A row given twice counts once, at its
        first place. ``bits``: the replica's bit in each row."""
        places = np.arange(len(rows), dtype=np.uint32)
        # With several writes to a row, the last one stays.
        self._places[rows[::-1]] = places[::-1]
        is_first: Mask = (self._spoken[rows] & bits == 0) & (self._places[rows] == places)
        return is_first

    def hear(self, rows: Rows, bits: Bits, outcomes: Outcomes) -> Merged:
        """Count the first report of a replica about each of ``rows``. ``outcomes``: one for each row."""
        if self._everybody == 1:
            # A single replica waits for no other and differs from none, so nothing else has to be kept.
            self._spoken[rows] = 1
            return Merged(outcomes)
        return self.count_reports(rows, bits, kinds_of(outcomes), outcomes)

    def count_reports(self, rows: Rows, bits: Bits, kinds: Kinds, outcomes: Outcomes) -> Merged:
        """Count the first report of a replica about each of ``rows``. ``kinds``: one bit each. ``outcomes``: roots and
        reasons."""
        before = self._said[rows]
        said, spoken = before | kinds, self._spoken[rows] | bits
        self._said[rows], self._spoken[rows] = said, spoken
        # The first report of equal strength gives the reason. If several replicas left, the last of them gives it.
        is_stronger = kinds > before & ~np.uint8(OUT)
        ends = (self._endings[rows] == 0) & ((kinds >= FAILED) | (spoken == self._everybody))
        reason_ids = outcomes.reason_ids if len(outcomes.reason_ids) else np.zeros(len(rows), np.uint32)
        waits = is_stronger & ~ends
        self._reason_ids[rows[waits]] = self._kept(reason_ids[waits], outcomes.reasons)
        ended, is_stronger = rows[ends], is_stronger[ends]
        endings = self._endings[ended] = _ENDINGS[said[ends]]
        reason_ids, reasons = reason_ids[ends], outcomes.reasons
        if not is_stronger.all():
            kept = self._reason_ids[ended]
            reason_ids = np.where(is_stronger, reason_ids, np.where(kept, kept + len(reasons), 0)).astype(np.uint32)
            reasons = (*reasons, *self._reasons)
        return _parted(Outcomes(outcomes.root_ids[ends], endings, reason_ids, reasons))

    def differed(self) -> int:
        """Count the rows for which replicas reported two or three of: ACKED, FAILED by the user, a no."""
        return int(np.count_nonzero(_DIFFERS[self._said]))

    def saved(self) -> int:
        """Count the rows that ended ACKED while another replica reported something else, or left silently."""
        return int(np.count_nonzero((self._endings == Verdict.ACKED) & (self._said != ACKED)))

    def _kept(self, reason_ids: ReasonIds, reasons: tuple[Reason, ...]) -> ReasonIds:
        """Keep the reasons of ``reason_ids``, and return their ids in ``_reasons``."""
        here = np.zeros(len(reasons) + 1, np.uint32)
        for used in np.flatnonzero(np.bincount(reason_ids, minlength=len(here))[1:]).tolist():
            here[used + 1] = self._reasons.setdefault(reasons[used], len(self._reasons) + 1)
        return here[reason_ids]


class BatchVotes:
    """The votes of one numbered batch: number i of ``up_to`` has root id ``mix64(first + i)``.

    ``replicas``: uint16[1024, R] of its placement: R different members for each slot, 1 to 8. A member is an index into
    the members of the placement. Raises ValueError for any other shape. Keeps 11 bytes a root, and 2 more once a member
    is silent about one of its roots.
    """

    __slots__ = (
        "_elsewhere",
        "_first",
        "_heard",
        "_replicas",
        "_roots_a_slot",
        "_silenced",
        "_slots",
        "_votes",
        "ended",
        "up_to",
    )

    def __init__(self, first: int, up_to: int, replicas: Replicas) -> None:
        self.up_to = up_to
        # The number of roots that have ended, including absent ones.
        self.ended = 0
        self._first = first
        self._replicas = checked(replicas)
        self._votes = Votes(up_to, replicas.shape[1])
        self._heard: Counter[int] = Counter()
        # Rows that a member reported though it does not hold their slots. It was asked to open these slots before the
        # batch was placed again, and its count at *settled* includes each of these rows once.
        self._elsewhere: defaultdict[int, set[int]] = defaultdict(set)
        # Members that have settled or left.
        self._silenced: set[int] = set()
        self._slots: npt.NDArray[np.uint16] | None = None
        self._roots_a_slot: Rows = np.zeros(SLOTS, np.int64)

    @property
    def is_over(self) -> bool:
        """Whether every root has ended."""
        return self.ended == self.up_to

    @property
    def differed(self) -> int:
        """The number of roots for which replicas reported two or three of: ACKED, FAILED by the user, a no.

        A no is any other report, and *absent*. A member that left without a report does not count. Reports after the
        end of a root count, so the number may grow. Computed at each call, in some 2 ms per million roots.
        """
        return self._votes.differed()

    @property
    def saved(self) -> int:
        """The number of roots that ended ACKED while another replica reported something else, or left without a report.

        Reports after the end of a root count, so the number may grow. Computed at each call, in some 2 ms per million
        roots.
        """
        return self._votes.saved()

    def keep_first(self, count: int) -> None:
        """Keep only the first ``count`` numbers as records. Reports about the others are ignored from then on."""
        self.ended += self._votes.drop_rows(count)

    def hear(self, member: int, outcomes: Outcomes) -> Merged:
        """Count ``outcomes`` that ``member`` reports. Return the outcomes that they make final, in their order."""
        if member in self._silenced:
            return Merged()
        rows = numbers_of(self._first, outcomes.root_ids)
        bits = bits_of(self._replicas, member)[slot_column(outcomes.root_ids)]
        is_own = (rows < np.uint64(self.up_to)) & (bits != 0)
        if not is_own.all():
            self._elsewhere[member].update(rows[(rows < np.uint64(self.up_to)) & (bits == 0)].tolist())
            outcomes, rows, bits = only(outcomes, is_own), rows[is_own], bits[is_own]
        is_first = self._votes.first_heard(rows.view(np.int64), bits)
        if not is_first.all():
            outcomes, rows, bits = only(outcomes, is_first), rows[is_first], bits[is_first]
        self._heard[member] += len(outcomes)
        return self._count_ended(self._votes.hear(rows.view(np.int64), bits, outcomes))

    def settled(self, member: int, roots: int) -> Merged:
        """Note that ``member`` has settled the batch and sends no more. Its server counted ``roots`` outcomes.

        The member's roots without a report are absent. If another number of outcomes arrived here (``unheard``),
        the outcomes of these roots are unknown, and the roots count as LOST at this member.
        """
        if member in self._silenced:
            return Merged()
        heard = self._heard[member] + len(self._elsewhere[member])
        if heard == roots:
            return self._silence(member, ABSENT, "")
        why = f"its server counted {roots} outcomes, and {heard} were heard"
        return replace(self._silence(member, LOST, why), unheard=roots - heard)

    def leave(self, member: int, why: str) -> Merged:
        """Leave ``member`` out for good, as its server is gone or has lost its state. ``why``: the reason that
        its LOST roots get."""
        return Merged() if member in self._silenced else self._silence(member, OUT, why)

    def _silence(self, member: int, kind: int, why: str) -> Merged:
        """Take no more reports of ``member``. Each of its roots without a report counts as a report of ``kind``."""
        self._silenced.add(member)
        if self._heard[member] == self.up_to:
            return Merged()
        if self._slots is None:
            self._slots = slot_column(self._roots_of(np.arange(self.up_to, dtype=np.int64))).astype(np.uint16)
            self._roots_a_slot = np.bincount(self._slots, minlength=SLOTS)
        own = bits_of(self._replicas, member)
        if self._heard[member] == self._roots_a_slot[own != 0].sum():
            return Merged()
        bits = own[self._slots]
        rows = np.flatnonzero(bits & ~self._votes.spoken)
        kinds, outcomes = np.full(len(rows), kind, np.uint8), lost_for(why, self._roots_of(rows))
        return self._count_ended(self._votes.count_reports(rows, bits[rows], kinds, outcomes))

    def _count_ended(self, merged: Merged) -> Merged:
        self.ended += len(merged.outcomes) + len(merged.absent)
        return merged

    def _roots_of(self, rows: Rows) -> Column:
        return root_ids(self._first, rows.view(np.uint64))


def checked(replicas: Replicas) -> Replicas:
    """Return ``replicas``. Raises ValueError unless it is uint16[1024, R] with R of 1 to 8."""
    if replicas.ndim != 2 or len(replicas) != SLOTS or not 1 <= replicas.shape[1] <= REPLICAS_MAX:
        shape = ", ".join(map(str, replicas.shape))
        raise ValueError(f"replicas: an array of [{shape}]; give [{SLOTS}, R] with 1 to {REPLICAS_MAX} replicas a slot")
    return replicas


def bits_of(replicas: Replicas, member: int) -> Bits:
    """Return the position of ``member`` among the replicas of each slot, as a bit: uint8[1024], 0 for no replica."""
    bits: Bits = np.packbits(replicas == member, axis=1, bitorder="little")[:, 0]
    return bits


def lost_for(why: str, roots: Column) -> Outcomes:
    """Return an outcome LOST for each of ``roots``, with the reason ``why``."""
    lost = np.full(len(roots), Verdict.LOST, np.uint8)
    return Outcomes(roots, lost, np.full(len(roots), 1, np.uint32), (why,))


def kinds_of(outcomes: Outcomes) -> Kinds:
    """Return the kind of each of ``outcomes``, as one of the bits above: uint8[n]."""
    kinds: Kinds = _KINDS[outcomes.verdicts]
    for index, reason in enumerate(outcomes.reasons, 1):
        if isinstance(reason, Cause) and reason in _KINDS_BY_CAUSE:
            verdict, kind = _KINDS_BY_CAUSE[reason]
            kinds[(outcomes.reason_ids == index) & (outcomes.verdicts == verdict)] = kind
    return kinds


def _parted(ended: Outcomes) -> Merged:
    """Separate the absent roots from the outcomes of ``ended``."""
    is_absent = ended.verdicts == _NO_RECORD
    if not is_absent.any():
        return Merged(ended)
    return Merged(only(ended, ~is_absent), ended.root_ids[is_absent])
