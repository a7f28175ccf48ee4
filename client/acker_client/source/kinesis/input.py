"""Kinesis: which shards there are, whose turn it is, and when each may be read. Runs in the driver.

A shard is a partition. Decides the order of shards (round robin; a child when all records of its parents are done, so
that no record of a key overtakes an older one), the pace (AWS allows five reads a second and shard; an empty shard is
asked less often), what waits and what ends the run when AWS does not answer, and where ``stop="end"`` is. Records are
read here, once, and held until they are done, up to a number of bytes.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import pyarrow as pa

from acker_client.backoff import Clock, Random, Sleep
from acker_client.source.errors import CheckpointError, SourceError
from acker_client.source.kinesis.connection import (
    LATEST,
    RECORDS_PER_CALL_MAX,
    TRIM_HORIZON,
    Begin,
    Expired,
    KinesisDoor,
    ListedShard,
    NotThere,
    ReadAnswer,
    StreamIdentity,
    Throttled,
    Unanswered,
)
from acker_client.source.kinesis.lineage import Lineage
from acker_client.source.kinesis.polling import READ_INTERVAL_S, Asking
from acker_client.source.kinesis.rows import RecordPart, RecordSlice, shown, sliced_rows
from acker_client.source.kinesis.shard import ShardMark, ShardReading, marks_of
from acker_client.source.records.balance import sliced
from acker_client.source.records.input import Chosen, Committed, Mark, Original, Plan
from acker_client.source.records.ranges import Ranges

log = logging.getLogger("acker_client.source")

# So long a plan goes on reading while there is more, so that a batch is worth its while.
GATHER_S = 2.0
# So many bytes are planned at once at most: a batch's records travel to its tasks with its plan.
PLAN_BYTES_MAX = 64 << 20
Saved = Callable[[], Mapping[str, Committed]]


@dataclass(frozen=True, slots=True)
class StreamReading:
    """How a stream is read. ``first``: where a shard begins of which no checkpoint knows. ``is_to_end``: stop once all
    is read that is there, else follow. ``refresh_s``: how often shards are listed; ``idle_s``: how often a shard is
    asked that has nothing new; ``held_bytes_max``: so many bytes of records that are not done are held."""

    first: Begin = TRIM_HORIZON
    is_to_end: bool = False
    refresh_s: float = 30.0
    idle_s: float = 1.0
    held_bytes_max: int = 256 << 20


class KinesisInput:
    """Records of a stream as an input that can be shared (see ``core.input.SharedInput``). ``saved``: what the
    group's checkpoint holds, of shards that are another source's too."""

    kind = "kinesis"

    def __init__(
        self,
        kinesis: KinesisDoor,
        reading: StreamReading,
        *,
        clock: Clock,
        sleep: Sleep,
        random: Random,
        saved: Saved | None = None,
    ) -> None:
        self._kinesis = kinesis
        self._reading = reading
        self._clock, self._sleep = clock, sleep
        self._asking = Asking(clock, sleep, random)
        self._saved = saved
        self._lineage = Lineage(reading.first)
        self._shards: dict[str, ShardReading] = {}
        # None: every shard is this source's.
        self._given: set[str] | None = None
        self._paused: frozenset[str] = frozenset()
        self._settled_elsewhere: set[str] = set()
        self._look_due_s: dict[str, float] = {}
        # What the group's checkpoint held at the last look at it.
        self._seen_saved: Mapping[str, Committed] = {}
        self._saved_due_s = float("-inf")
        self._turn = 0
        self._refresh_due_s = 0.0
        # A shard has ended since they were listed.
        self._has_new_shards = False

    # -- the port: where to begin, and what comes next

    def start(self, committed: Mapping[str, Committed]) -> None:
        self._stream: StreamIdentity = self._asking.patiently(self._kinesis.describe)
        marks = marks_of(committed, self._stream)
        self._list(self._asking.patiently(self._kinesis.shards))
        self._lineage.come()
        self._lineage.know(committed)
        for shard, each in committed.items():
            self._go_on(shard, each, marks[shard])
        self._begin_shards()

    def plan(self, records_max: int, tasks: int) -> Plan[RecordPart]:
        self._refresh()
        self._begin_shards()
        read = self._gather(records_max)
        step = max(1, sum(part.stop - part.start for part in read) // (2 * tasks))
        parts = [piece for part in read for piece in _pieces(part, step)]
        return Plan(parts, is_end=not parts and self._is_over())

    def slices(self, chosen: Sequence[Chosen[RecordPart]], tasks: int) -> list[RecordSlice]:
        return sliced(chosen, tasks, sliced_rows)

    def origins(self, chosen: Sequence[Chosen[RecordPart]]) -> pa.RecordBatch:
        rows = [row for each in chosen for row in shown(each).select(["shard", "sequence_number"]).to_pylist()]
        schema = pa.schema([(name, pa.string()) for name in ("stream", "shard", "sequence_number")])
        return pa.RecordBatch.from_pylist([{"stream": self._name, **row} for row in rows], schema)

    def originals(self, chosen: Sequence[Chosen[RecordPart]]) -> list[Original]:
        return [self._original(row) for each in chosen for row in shown(each).to_pylist()]

    def advance(self, partition: str, done: Ranges) -> None:
        self._shards[partition].advance(done)

    def mark(self, partition: str, done: Ranges) -> Mark:
        return self._shards[partition].mark(done, self._stream)

    def describe(self, done: Mapping[str, Ranges]) -> str:
        ended = [shard for shard in self._shards.values() if shard.is_settled]
        total = len(self._lineage.shards if self._given is None else self._given)
        count = f"{total} {'shard' if total == 1 else 'shards'}"
        if self._is_over() and all(shard.done.prefix >= shard.next for shard in self._shards.values()):
            return f"end of the stream ({count})"
        records = sum(ranges.prefix for ranges in done.values())
        return f"{count}, {len(ended)} of them done to their end; {records} records"

    # -- the port: shards that are shared out

    def partitions(self) -> Sequence[str]:
        self._refresh()
        return sorted(self._lineage.shards)

    def assign(self, committed: Mapping[str, Committed]) -> None:
        if self._given is None:
            self._given, self._shards = set(), {}
        marks = marks_of(committed, self._stream)
        self._given |= set(committed)
        if self._saved is not None and committed:
            self._lineage.know(self._saved())
        for shard, each in committed.items():
            self._shards.pop(shard, None)
            if each.mark:
                self._go_on(shard, each, marks[shard])

    def revoke(self, partitions: Sequence[str]) -> None:
        self._given = (self._given or set()) - set(partitions)
        for shard in partitions:
            self._shards.pop(shard, None)

    def pause(self, partitions: Collection[str]) -> None:
        """Plan none of these, and all others again."""
        self._paused = frozenset(partitions)

    # -- which shards there are, and which may begin

    def _refresh(self) -> None:
        """List the shards, where that is due; the old list serves where AWS does not answer."""
        now = self._clock()
        if now < self._refresh_due_s and not self._has_new_shards:
            return
        try:
            self._list(self._kinesis.shards())
        except (Throttled, Unanswered) as error:
            self._refresh_due_s = now + self._reading.idle_s
            self._asking.note(error)

    def _list(self, shards: Iterable[ListedShard]) -> None:
        is_first = not self._lineage.shards
        for shard in self._lineage.list(shards):
            if not is_first:
                log.info("shard %s is new; it came of %s", shard.name, " and ".join(shard.parents) or "none")
        self._asking.answered()
        self._refresh_due_s = self._clock() + self._reading.refresh_s
        self._has_new_shards = False

    def _go_on(self, name: str, committed: Committed, mark: ShardMark) -> None:
        """Take up a shard where a checkpoint left off."""
        shard = self._shards[name] = ShardReading(name, self._lineage.first_of(name), committed, mark)
        if name not in self._lineage.shards and not shard.is_drained:
            shard.age_out()

    def _begin_shards(self) -> None:
        """Begin the shards whose parents are done."""
        for name in self._lineage.shards:
            is_own = self._given is None or name in self._given
            if is_own and name not in self._shards and self._may_begin(name):
                first = self._lineage.first_of(name)
                shard = self._shards[name] = ShardReading(name, first, Committed(), ShardMark())
                if self._lineage.is_skipped(name):
                    shard.end()

    def _may_begin(self, name: str) -> bool:
        return self._lineage.is_skipped(name) or all(map(self._is_settled, self._lineage.shards[name].parents))

    def _is_settled(self, name: str) -> bool:
        """Whether no record of a shard is left that a child of it would overtake."""
        if name in self._shards:
            return self._shards[name].is_settled
        if name not in self._lineage.shards:
            return True  # it has aged out
        if self._given is None or name in self._given:
            return False
        return name in self._settled_elsewhere or self._is_settled_elsewhere(name)

    def _is_settled_elsewhere(self, name: str) -> bool:
        """Whether the source that has a shard has done all of it: its checkpoint says up to where, and a look at what
        follows whether that was the end."""
        if self._saved is None:
            return True  # nobody can say
        if self._clock() < self._look_due_s.get(name, 0.0):
            return False
        committed = self._look_at(self._saved).get(name, Committed())
        if not committed.mark and not self._may_begin(name):
            return False  # nobody has begun it, empty as it may be
        mark = ShardMark.of(name, committed.mark, self._stream)
        is_open = committed.done.holes or (mark.at is not None and not mark.skip)
        if is_open or not self._is_at_end(name, mark):
            self._look_due_s[name] = self._clock() + self._reading.idle_s
            return False
        self._settled_elsewhere.add(name)
        return True

    def _look_at(self, saved: Saved) -> Mapping[str, Committed]:
        """What the group's checkpoint holds, or held a moment ago: one look serves all shards that are asked about."""
        now = self._clock()
        if now >= self._saved_due_s:
            self._seen_saved, self._saved_due_s = saved(), now + self._reading.idle_s
        return self._seen_saved

    def _is_at_end(self, name: str, mark: ShardMark) -> bool:
        """Whether nothing follows what a mark says is done."""
        if mark.end is not None:
            return True
        begin = mark.begin(self._lineage.first_of(name))
        # Who has it may have read what came since, and has not written that down yet.
        begin = self._come if begin == LATEST else begin
        try:
            return self._is_nothing_behind(mark.skip, name, begin)
        except (Throttled, Unanswered, Expired, NotThere):
            return False

    def _is_nothing_behind(self, skip: int, name: str, begin: Begin) -> bool:
        """Whether a shard has no more than ``skip`` records from ``begin`` on, and no more will come."""
        iterator: str | None = self._kinesis.iterator(name, begin)
        left = skip
        while iterator is not None:
            answer = self._kinesis.read_records(iterator, left + 1)
            count = answer.rows.num_rows
            has_aged = (
                skip and left == skip and count and str(answer.rows["sequence_number"][0]) != begin.sequence_number
            )
            if has_aged or count > left:
                return False
            if not count:
                return self._ends(name, answer)
            iterator, left = answer.iterator, left - count
            self._sleep(READ_INTERVAL_S)
        return True

    # -- reading

    def _gather(self, records_max: int) -> list[RecordPart]:
        """What the shards have, in turn, until that is enough, or a while has passed."""
        parts: list[RecordPart] = []
        until_s = self._clock() + GATHER_S
        held = before = sum(shard.bytes for shard in self._shards.values())
        bytes_max = min(self._reading.held_bytes_max, before + PLAN_BYTES_MAX)
        while (room := records_max - sum(part.stop - part.start for part in parts)) > 0 and held < bytes_max:
            due = self._due()
            if due:
                taken = self._read_shard(due[0], min(RECORDS_PER_CALL_MAX, -(-room // len(due))))
                held += sum(part.held.bytes for part in taken)
                parts += taken
            if self._clock() >= until_s or not (due or self._wait_for_more(until_s)):
                break
        return parts

    def _due(self) -> list[ShardReading]:
        """The shards that may be read now, the one whose turn it is first."""
        shards = list(self._shards.values())
        at = self._turn % len(shards) if shards else 0
        now = self._clock()
        return [shard for shard in shards[at:] + shards[:at] if self._may_read(shard) and shard.due_s <= now]

    def _wait_for_more(self, until_s: float) -> bool:
        """Wait for the first shard that has more, if that is soon enough."""
        due_s = [shard.due_s for shard in self._shards.values() if self._may_read(shard) and shard.is_behind]
        if not due_s or min(due_s) >= until_s:
            return False
        self._sleep(max(0.0, min(due_s) - self._clock()))
        return True

    def _may_read(self, shard: ShardReading) -> bool:
        return self._is_open(shard) and shard.name not in self._paused

    def _is_open(self, shard: ShardReading) -> bool:
        return not (shard.is_drained or shard.is_caught_up)

    def _read_shard(self, shard: ShardReading, records_max: int) -> list[RecordPart]:
        """The next records of a shard, as one part or none; it is due again when AWS allows it."""
        self._turn = list(self._shards).index(shard.name) + 1
        try:
            if shard.iterator is None:
                shard.iterator = self._kinesis.iterator(shard.name, shard.begin)
            answer = self._kinesis.read_records(shard.iterator, records_max)
        except Expired:
            self._renew(shard)
            return []
        except (Throttled, Unanswered) as error:
            self._asking.put_off(shard, error)
            return []
        except NotThere as error:
            self._refuse(shard, error)
            return []
        self._asking.answered()
        shard.failures = 0
        shard.iterator = answer.iterator
        taken = shard.number_rows(answer.rows)
        self._look_ahead(shard, answer, records_max)
        return taken

    def _look_ahead(self, shard: ShardReading, answer: ReadAnswer, asked: int) -> None:
        """What an answer says of what follows it."""
        is_newest = answer.behind_ms == 0 and answer.rows.num_rows < asked
        is_to_end = self._reading.is_to_end and self._given is None
        shard.is_behind = not is_newest
        # Where it ends with what is there, that this was the last of it is soon asked.
        is_idle = is_newest and not (is_to_end and answer.rows.num_rows)
        shard.due_s = self._clock() + (self._reading.idle_s if is_idle else READ_INTERVAL_S)
        if self._ends(shard.name, answer):
            shard.end()
            self._has_new_shards = True
            log.info("shard %s was read to its end", shard.name)
        elif _is_nothing(answer) and is_to_end:
            shard.is_caught_up = True

    def _ends(self, name: str, answer: ReadAnswer) -> bool:
        """Whether nothing follows in a shard: AWS gives no iterator then; where one is given, the shard has to be
        closed, and everything of it read."""
        return answer.iterator is None or (_is_nothing(answer) and self._lineage.is_closed(name))

    def _renew(self, shard: ShardReading) -> None:
        """An iterator lives for five minutes; the next one begins behind what was read. One at the newest record, of
        a shard that has given nothing yet, is found again by its time."""
        shard.iterator = None
        if shard.begin == LATEST:
            shard.begin_at(self._come)
        shard.due_s = self._clock() + READ_INTERVAL_S

    def _refuse(self, shard: ShardReading, error: NotThere) -> None:
        """A shard, or the sequence number to go on at, is not there: it has aged out, or the checkpoint is wrong."""
        self._list(self._asking.patiently(self._kinesis.shards))
        if shard.name not in self._lineage.shards:
            shard.age_out()
            return
        if shard.has_begun:
            raise SourceError(f"stream {self._name!r}: {shard.name} cannot be read on ({error}): start again")
        raise CheckpointError(
            f"stream {self._name!r}: {shard.name} has no record where the checkpoint goes on"
            f" ({error}): was the stream created anew? Give the source another checkpoint, or remove this one to begin"
            " anew"
        )

    # -- the end, and names

    def _is_over(self) -> bool:
        """Whether all is read that was there: shards that are still to come hold newer records only. In a group more
        may be assigned at any time."""
        if not self._reading.is_to_end or self._has_new_shards or self._given is not None:
            return False
        return all(map(self._is_finished, self._lineage.shards))

    def _is_finished(self, name: str) -> bool:
        if name in self._shards:
            return not self._is_open(self._shards[name])
        return any(map(self._is_caught_up, self._lineage.ancestors(name)))

    def _is_caught_up(self, name: str) -> bool:
        return name in self._shards and self._shards[name].is_caught_up

    @property
    def _come(self) -> Begin:
        """Where the newest record was when the source came."""
        return Begin.since(self._stream.now)

    @property
    def _name(self) -> str:
        return self._stream.arn.rpartition("/")[2]

    def _original(self, row: Mapping[str, Any]) -> Original:
        origin = {"stream": self._name}
        origin |= {name: row[name] for name in ("shard", "sequence_number", "partition_key")}
        return Original(origin, row["data"])


def _is_nothing(answer: ReadAnswer) -> bool:
    """Whether nothing more is there just now. Few records are no sign of it: an answer has so many bytes at most, and
    AWS counts in seconds how far it is behind."""
    return answer.behind_ms == 0 and not answer.rows.num_rows


def first_begin(first_poll: str | float | datetime) -> Begin:
    """What ``first_poll`` stands for. Raises ``ValueError``."""
    if first_poll == "trim_horizon":
        return TRIM_HORIZON
    if first_poll == "latest":
        return LATEST
    if isinstance(first_poll, int | float) and not isinstance(first_poll, bool):
        from datetime import UTC

        return Begin.since(datetime.fromtimestamp(first_poll, UTC))
    if isinstance(first_poll, datetime) and first_poll.tzinfo is not None:
        return Begin.since(first_poll)
    raise ValueError(
        f"first_poll={first_poll!r}: give 'trim_horizon', 'latest', Unix seconds, or a datetime with a time zone"
    )


def _pieces(part: RecordPart, step: int) -> Iterable[RecordPart]:
    """A part cut so that tasks can share it."""
    for start in range(part.start, part.stop, step):
        yield RecordPart(part.partition, start, min(part.stop, start + step), part.held)
