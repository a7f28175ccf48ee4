"""Lists the shards of a stream, and reads their records in turn. Runs in the driver.

A shard is a partition. Shards are read round robin. A child shard begins when all records of its parents are done, so
that no record of a key overtakes an older one. AWS allows five reads per second and shard; an empty shard is polled
less often. This module also decides when to wait for AWS, when the run ends, and where the end is for ``stop="end"``.
Each record is read once, here in the driver, and held until it is done. The held bytes are limited.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import numpy as np
import pyarrow as pa

from acker_client.backoff import Clock, Random, Sleep
from acker_client.source.decoding.values import ddl_of, json_rows
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
from acker_client.source.records.input import Chosen, Committed, Mark, Observed, OrderKeys, Original, Plan
from acker_client.source.records.key_order import order_keys
from acker_client.source.records.ranges import Ranges

log = logging.getLogger("acker_client.source")

# A plan reads for up to this long while there are more records, so that batches are not too small.
GATHER_S = 2.0
# Maximum size of one plan. Small, because the records of a batch travel to its tasks inside Spark's plan.
PLAN_BYTES_MAX = 64 << 20
Saved = Callable[[], Mapping[str, Committed]]


@dataclass(frozen=True, slots=True)
class StreamReading:
    """How a stream is read.

    ``first``: where to begin in a shard that no checkpoint contains. ``is_to_end``: stop once all existing records are
    read; otherwise follow the stream. ``refresh_s``: the interval between listings of shards. ``idle_s``: the interval
    between polls of a shard without new records. ``held_bytes_max``: maximum size of the records that are not done.
    ``is_ordered``: whether records of one partition key keep their order.
    """

    first: Begin = TRIM_HORIZON
    is_to_end: bool = False
    refresh_s: float = 30.0
    idle_s: float = 1.0
    held_bytes_max: int = 256 << 20
    is_ordered: bool = False


class KinesisInput:
    """Records of a stream as a ``SharedInput``, ``PausableInput`` and ``ObservedInput``.

    ``saved`` returns the content of the group's checkpoint, including the shards of other sources.
    """

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
        # The shards that the group has assigned to this source. None: there is no group, and it reads all shards.
        self._given: set[str] | None = None
        self._paused: frozenset[str] = frozenset()
        self._settled_elsewhere: set[str] = set()
        self._look_due_s: dict[str, float] = {}
        # The content of the group's checkpoint when it was last read.
        self._last_saved: Mapping[str, Committed] = {}
        self._saved_due_s = float("-inf")
        self._turn = 0
        self._refresh_due_s = 0.0
        # Whether a shard has ended since the last listing.
        self._has_new_shards = False

    # -- implementation of Input

    def start(self, committed: Mapping[str, Committed]) -> None:
        self._stream: StreamIdentity = self._asking.retry(self._kinesis.describe)
        marks = marks_of(committed, self._stream)
        self._list(self._asking.retry(self._kinesis.shards))
        self._lineage.note_start()
        self._lineage.add_known(committed)
        self._lineage.note_began(mark.began for mark in marks.values())
        for shard, each in committed.items():
            self._resume(shard, each, marks[shard])
        self._begin_shards()

    def plan(self, records_max: int, tasks: int) -> Plan[RecordPart]:
        self._refresh()
        self._begin_shards()
        read = self._gather(records_max)
        step = max(1, sum(part.stop - part.start for part in read) // (2 * tasks))
        parts = [piece for part in read for piece in _pieces(part, step)]
        keys = [_keys_of(part) for part in parts] if self._reading.is_ordered else []
        return Plan(parts, is_end=not parts and self._is_over(), keys=keys, moved=self._take_ended())

    def slices(self, chosen: Sequence[Chosen[RecordPart]], tasks: int) -> list[RecordSlice]:
        return sliced(chosen, tasks, sliced_rows)

    def origins(self, chosen: Sequence[Chosen[RecordPart]]) -> pa.RecordBatch:
        rows = [row for each in chosen for row in shown(each).select(["shard", "sequence_number"]).to_pylist()]
        schema = pa.schema([(name, pa.string()) for name in ("stream", "shard", "sequence_number")])
        return pa.RecordBatch.from_pylist([{"stream": self._name, **row} for row in rows], schema)

    def keys(self, chosen: Sequence[Chosen[RecordPart]]) -> list[Any]:
        return [key for each in chosen for key in shown(each).column("partition_key").to_pylist()]

    def originals(self, chosen: Sequence[Chosen[RecordPart]]) -> list[Original]:
        return [original for each in chosen for original in self._originals(shown(each))]

    def advance(self, partition: str, done: Ranges) -> None:
        self._shards[partition].advance(done)

    def mark(self, partition: str, done: Ranges) -> Mark:
        return self._shards[partition].mark(done, self._stream, self._lineage.began_with(self._stream.now))

    def describe(self, done: Mapping[str, Ranges]) -> str:
        # Any thread may ask.
        shards = list(self._shards.values())
        ended = [shard for shard in shards if shard.is_settled]
        total = len(self._lineage.shards if self._given is None else self._given)
        count = f"{total} {'shard' if total == 1 else 'shards'}"
        if self._is_over() and all(shard.done.prefix >= shard.next for shard in shards):
            return f"end of the stream ({count})"
        records = sum(ranges.prefix for ranges in done.values())
        return f"{count}, {len(ended)} of them done to their end; {records} records"

    # -- implementation of SharedInput

    def partitions(self) -> Sequence[str]:
        self._refresh()
        # A shard that has aged out stays until its records are done: they are held here, and nowhere else.
        opened = {name for name, shard in self._shards.items() if not shard.is_settled}
        return sorted(self._lineage.shards.keys() | opened)

    def assign(self, committed: Mapping[str, Committed]) -> None:
        if self._given is None:
            self._given, self._shards = set(), {}
        marks = marks_of(committed, self._stream)
        self._given |= set(committed)
        if self._saved is not None and committed:
            saved = self._saved()
            self._lineage.add_known(saved)
            self._lineage.note_began(mark.began for mark in marks_of(saved, self._stream).values())
        for shard, each in committed.items():
            self._shards.pop(shard, None)
            if each.mark:
                self._resume(shard, each, marks[shard])

    def revoke(self, partitions: Sequence[str]) -> None:
        self._given = (self._given or set()) - set(partitions)
        for name in partitions:
            shard = self._shards.pop(name, None)
            if shard is not None and name not in self._lineage.shards and not shard.is_settled:
                # No other source can read its records.
                shard.age_out()

    def pause(self, partitions: Collection[str]) -> None:
        """Stop planning these shards, and resume all others."""
        self._paused = frozenset(partitions)

    def observe(self) -> Mapping[str, Observed]:
        return {name: Observed(self._name, name, shard.next) for name, shard in self._shards.copy().items()}

    # -- list and begin shards

    def _refresh(self) -> None:
        """List the shards if that is due. If AWS does not answer, the old list remains in use."""
        now = self._clock()
        if now < self._refresh_due_s:
            return
        try:
            self._list(self._kinesis.shards())
        except (Throttled, Unanswered) as error:
            self._refresh_due_s = now + self._reading.idle_s
            self._asking.note_failure(error)

    def _list(self, shards: Iterable[ListedShard]) -> None:
        is_first = not self._lineage.shards
        for shard in self._lineage.list(shards):
            if not is_first:
                log.info("shard %s is new; parents: %s", shard.name, " and ".join(shard.parents) or "none")
        self._asking.note_answer()
        self._refresh_due_s = self._clock() + self._reading.refresh_s
        self._has_new_shards = False

    def _resume(self, name: str, committed: Committed, mark: ShardMark) -> None:
        """Continue a shard where the checkpoint ends."""
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
                    # Not ``note_end``: with the shard in the checkpoint, its children would be read from the beginning.
                    shard.is_drained = True
                elif first == LATEST and self._given is not None:
                    # Another member had the shard until now, and may have left records unread.
                    shard.begin_at(self._began)

    def _may_begin(self, name: str) -> bool:
        return self._lineage.is_skipped(name) or all(map(self._is_settled, self._lineage.shards[name].parents))

    def _is_settled(self, name: str) -> bool:
        """Whether a shard has no open record that a record of its child shard could overtake."""
        if name in self._shards:
            return self._shards[name].is_settled
        if name not in self._lineage.shards:
            return True  # it has aged out
        if self._given is None or name in self._given:
            return False
        return name in self._settled_elsewhere or self._is_settled_elsewhere(name)

    def _is_settled_elsewhere(self, name: str) -> bool:
        """Whether another source of the group has done all records of a shard.

        The group's checkpoint says how far the shard is done. A read tells whether more records follow.
        """
        if self._saved is None:
            return True  # without a checkpoint of the group, this is unknown
        if self._clock() < self._look_due_s.get(name, 0.0):
            return False
        committed = self._read_saved(self._saved).get(name, Committed())
        if not committed.mark and not self._may_begin(name):
            return False  # no source has begun it, even if it is empty
        mark = ShardMark.of(name, committed.mark, self._stream)
        is_open = committed.done.holes or (mark.at is not None and not mark.skip)
        if is_open or not self._is_at_end(name, mark):
            self._look_due_s[name] = self._clock() + self._reading.idle_s
            return False
        self._settled_elsewhere.add(name)
        return True

    def _read_saved(self, saved: Saved) -> Mapping[str, Committed]:
        """Return the content of the group's checkpoint, at most ``idle_s`` old."""
        now = self._clock()
        if now >= self._saved_due_s:
            self._last_saved, self._saved_due_s = saved(), now + self._reading.idle_s
        return self._last_saved

    def _is_at_end(self, name: str, mark: ShardMark) -> bool:
        """Whether no record follows the records that the mark says are done."""
        if mark.end is not None:
            return True
        begin = mark.begin_or(self._lineage.first_of(name))
        # The other source may have read new records without a checkpoint yet. "latest" would miss these records.
        begin = self._began if begin == LATEST else begin
        try:
            return self._ends_after(mark.skip, name, begin)
        except (Throttled, Unanswered, Expired, NotThere):
            return False

    def _ends_after(self, skip: int, name: str, begin: Begin) -> bool:
        """Whether a shard has at most ``skip`` records from ``begin`` on, and will have no more."""
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
        """Read the shards in turn, until there are enough records or ``GATHER_S`` has passed."""
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
        """Return the shards that may be read now, beginning with the shard whose turn it is."""
        shards = list(self._shards.values())
        at = self._turn % len(shards) if shards else 0
        now = self._clock()
        return [shard for shard in shards[at:] + shards[:at] if self._may_read(shard) and shard.due_s <= now]

    def _wait_for_more(self, until_s: float) -> bool:
        """Wait for the next shard that has more records. Returns False if none is due before ``until_s``."""
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
        """Read the next records of a shard, as one part or none, and set when it is due again."""
        self._turn = list(self._shards).index(shard.name) + 1
        try:
            if shard.iterator is None:
                shard.iterator = self._kinesis.iterator(shard.name, shard.begin)
            answer = self._kinesis.read_records(shard.iterator, records_max)
        except Expired:
            self._renew(shard)
            return []
        except (Throttled, Unanswered) as error:
            self._asking.postpone(shard, error)
            return []
        except NotThere as error:
            self._handle_missing(shard, error)
            return []
        self._asking.note_answer()
        shard.failures = 0
        shard.iterator = answer.iterator
        taken = shard.number_rows(answer.rows)
        self._schedule_next(shard, answer, records_max)
        return taken

    def _schedule_next(self, shard: ShardReading, answer: ReadAnswer, asked: int) -> None:
        """Set when to read the shard next, or note its end, depending on the last ``answer``."""
        is_newest = answer.behind_ms == 0 and answer.rows.num_rows < asked
        is_to_end = self._reading.is_to_end and self._given is None
        shard.is_behind = not is_newest
        # With stop="end", poll again soon to find out whether this was the last record.
        is_idle = is_newest and not (is_to_end and answer.rows.num_rows)
        shard.due_s = self._clock() + (self._reading.idle_s if is_idle else READ_INTERVAL_S)
        if self._ends(shard.name, answer):
            shard.note_end()
            self._has_new_shards, self._refresh_due_s = True, self._clock()
            log.info("shard %s was read to its end", shard.name)
        elif _is_nothing(answer) and is_to_end:
            shard.is_caught_up = True

    def _take_ended(self) -> list[str]:
        """Return the shards that have ended since the last plan. The checkpoint may have all their records and not
        their end. Then each start would report them as lost once they have aged out."""
        ended = [shard for shard in self._shards.values() if shard.is_end_new]
        for shard in ended:
            shard.is_end_new = False
        return [shard.name for shard in ended]

    def _ends(self, name: str, answer: ReadAnswer) -> bool:
        """Whether a shard has no records after this answer: it has no iterator, or is empty and the shard is closed."""
        return answer.iterator is None or (_is_nothing(answer) and self._lineage.is_closed(name))

    def _renew(self, shard: ShardReading) -> None:
        """Drop an expired iterator (five minutes old). The next one begins after the last record that was read.

        If no record was read yet, an iterator at "latest" is replaced by one at the source's start time.
        """
        shard.iterator = None
        if shard.begin == LATEST:
            shard.begin_at(self._began)
        shard.due_s = self._clock() + READ_INTERVAL_S

    def _handle_missing(self, shard: ShardReading, error: NotThere) -> None:
        """Handle a missing shard or sequence number: either it has aged out, or the checkpoint is wrong."""
        self._list(self._asking.retry(self._kinesis.shards))
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

    # -- end of the stream, and names

    def _is_over(self) -> bool:
        """Whether all existing records are read. Shards that begin later hold only newer records.

        Always False in a group, where more shards may be assigned at any time.
        """
        if not self._reading.is_to_end or self._has_new_shards or self._given is not None:
            return False
        return all(map(self._is_finished, list(self._lineage.shards)))

    def _is_finished(self, name: str) -> bool:
        if name in self._shards:
            return not self._is_open(self._shards[name])
        return any(map(self._is_caught_up, self._lineage.ancestors(name)))

    def _is_caught_up(self, name: str) -> bool:
        return name in self._shards and self._shards[name].is_caught_up

    @property
    def _began(self) -> Begin:
        """The source's start time as a starting point in a shard."""
        return Begin.since(self._stream.now)

    @property
    def _name(self) -> str:
        return self._stream.arn.rpartition("/")[2]

    def _originals(self, rows: pa.RecordBatch) -> Iterator[Original]:
        names = ["shard", "sequence_number", "partition_key"]
        origins, columns = json_rows(rows.select(names)), json_rows(rows.select(["arrival_timestamp"]))
        for origin, value, others in zip(origins, rows.column("data").to_pylist(), columns, strict=True):
            yield Original({"stream": self._name, **origin}, value, schema=ddl_of(rows.schema), columns=others)


def _is_nothing(answer: ReadAnswer) -> bool:
    """Whether a shard has no more records for now.

    An answer with few records is no proof: answers are also limited in bytes, and AWS gives ``behind_ms`` in whole
    seconds.
    """
    return answer.behind_ms == 0 and not answer.rows.num_rows


def first_begin(first_poll: str | float | datetime) -> Begin:
    """Convert ``first_poll``. Raises ``ValueError``."""
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


def _keys_of(part: RecordPart) -> OrderKeys:
    positions = np.arange(part.start, part.stop, dtype=np.int64)
    return order_keys(part.partition, positions, part.held.partition_keys(part.start, part.stop))


def _pieces(part: RecordPart, step: int) -> Iterable[RecordPart]:
    """Cut a part so that several tasks can share it."""
    for start in range(part.start, part.stop, step):
        yield RecordPart(part.partition, start, min(part.stop, start + step), part.held)
