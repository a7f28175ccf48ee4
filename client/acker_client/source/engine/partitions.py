"""Partitions: the partitions that a run reads, from their assignment to their release, and how far each is done.

Decides the order of the steps: finished records are counted before a commit, and a revoked partition is committed
before it is released. A partition with too many open records is paused. A lost partition is dropped without a commit.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from acker_client.clean_up import CleanUp
from acker_client.source.engine.checkpointing import Checkpointing
from acker_client.source.engine.dead_lettering import DeadLettering
from acker_client.source.engine.environment import Environment
from acker_client.source.engine.listeners import Listeners
from acker_client.source.engine.options import UNLIMITED, Options
from acker_client.source.errors import SourceError
from acker_client.source.records.guarantee import Guarantee
from acker_client.source.records.in_flight import InFlight
from acker_client.source.records.input import (
    Closing,
    Committed,
    Input,
    Observed,
    ObservedInput,
    PausableInput,
    SharedInput,
)
from acker_client.source.records.key_order import KeyOrder
from acker_client.source.records.listener import Emissions
from acker_client.source.records.parts import Lookup
from acker_client.source.records.ranges import Ranges
from acker_client.source.records.summary import PartitionState
from acker_client.source.records.tracker import NO_RECORDS, RecordNumbers
from acker_protocol.messages import NO_IDS

log = logging.getLogger("acker_client.source")


class Partitions:
    """The partitions of one run. Raises ``SourceError`` when the input cannot do what the options ask for."""

    def __init__(
        self,
        options: Options,
        environment: Environment,
        lookup: Lookup,
        in_flight: InFlight,
        dead_lettering: DeadLettering,
        listeners: Listeners,
    ) -> None:
        self._options = options
        self._environment = environment
        self._input: Input[Any] = lookup.input
        self._parts = lookup.parts
        self._lookup = lookup
        self._in_flight = in_flight
        self._dead_lettering = dead_lettering
        self._listeners = listeners
        self._checkpointing = Checkpointing(options, self._input)
        # The partitions that the group has assigned; always empty without a group.
        self._owned: set[str] = set()
        self._is_read = False
        self._order = KeyOrder(in_flight.tracker.open_among)
        _check_input(options, self._input)

    @property
    def is_read(self) -> bool:
        """Whether all records of the input were emitted. Then new ones come only from partitions that are assigned
        later."""
        return self._is_read and not self._order.held_back

    @property
    def held_back(self) -> int:
        """The number of records that wait for an earlier record of their key."""
        return self._order.held_back

    # -- opening and closing

    def open_checkpoint(self) -> Mapping[str, Committed]:
        """Lock the checkpoint, and return its entry for each partition."""
        committed = self._checkpointing.open_checkpoint()
        self._begin_at(committed)
        return committed

    def start_input(self, committed: Mapping[str, Committed]) -> None:
        self._input.start(committed)

    def join_group(self, undo: CleanUp) -> None:
        """Join the group, if the source has one; ``undo`` gets the step that leaves it."""
        group = self._options.group
        if group is not None and isinstance(self._input, SharedInput):
            self._input.assign({})
            group.open(self._options.name, self._input.partitions)
            undo.add(group.close)

    def sign_checkpoint(self, session: int) -> None:
        self._checkpointing.sign(session)

    def close_input(self) -> None:
        if isinstance(self._input, Closing):
            self._input.close()

    def close_checkpoint(self) -> None:
        self._checkpointing.close()

    # -- new records

    def plan_records(self, records_max: int, tasks: int) -> RecordNumbers:
        """Return the numbers of records to emit for the first time, ascending. Those that were held back come first.

        Returns an empty array if too many records are open, or the input has nothing to plan.
        """
        released, records = self._order.take(records_max), NO_RECORDS
        while not len(records) and not self._is_read and self._pause_full():
            room = self._options.open_max - self._in_flight.tracker.open_records
            room = min(records_max - len(released), room)
            if room <= 0:
                break
            first, plan = self._parts.planned, self._input.plan(room, tasks)
            if plan.revoked:
                self.commit()
                self._drop_partitions(plan.revoked)
            records = self._parts.add_parts(plan.parts)
            self._advance(partition for partition in plan.moved if partition in self._parts.done)
            self._is_read = plan.is_end
            if self._options.guarantee is Guarantee.AT_MOST_ONCE:
                records = self._commit_planned(plan.parts, records)
            if len(records):
                self._dead_lettering.note_first_emission(int(records[0]), self._environment.wall())
            if plan.keys:
                self._in_flight.tracker.hold_back(records)
                self._order.hold_back(records, np.concatenate(plan.keys)[records - first])
                records = self._order.take(room)
            if not plan.parts:
                break
        # Partitions that the plan has revoked took their released records with them.
        return np.concatenate((self._in_flight.tracker.open_among(released), records))

    def _commit_planned(self, parts: Sequence[Any], records: RecordNumbers) -> RecordNumbers:
        """Commit planned records as done before they are emitted. Returns the ``records`` that may be emitted: this
        source still owns their partition."""
        self._checkpointing.note_unsaved(part.partition for part in parts)
        fenced = self.commit()
        return records[~np.isin(records, self._parts.numbers_of(fenced))]

    def _pause_full(self) -> bool:
        """Pause partitions that have too many open records, or more holes than a checkpoint holds.

        Returns False if a partition is full and the input cannot pause single partitions: then nothing may be planned.
        A partition with holes but no open records is not paused: its unread records may close the holes that an earlier
        run left.
        """
        limit = self._options.max_uncommitted_per_partition
        holes_max, full = self._checkpointing.holes_max, set[str]()
        if limit is not None or self._parts.most_holes >= holes_max:
            full = self._parts.full(self._in_flight.tracker.open_between, limit or UNLIMITED, holes_max)
        if isinstance(self._input, PausableInput):
            self._input.pause(full)
            return True
        return not full

    # -- assigned, revoked, released, lost

    def follow_group(self) -> None:
        """Apply the group's changes between two batches: drop lost partitions, commit and release revoked ones, and
        begin assigned ones."""
        group = self._options.group
        if group is None:
            return
        handover = group.poll()
        if handover.lost:
            # Count finished records before the drop: if they were counted afterwards, the input would get progress of
            # lost partitions. All outcomes are taken: `Run.next_batch` hands them out first.
            self._parts.finish(self._in_flight.take_finished())
            self._drop_partitions(handover.lost)
        if handover.revoked:
            self.commit()
            self._drop_partitions(handover.revoked)
            group.release(handover.revoked)
        if handover.assigned:
            self._begin_partitions(handover.assigned)

    def _begin_partitions(self, partitions: Sequence[str]) -> None:
        """Begin partitions from the checkpoint, and drop the run's earlier data about them."""
        self._drop_partitions(partitions)
        committed = self._checkpointing.load_assigned(partitions)
        self._begin_at(committed)
        assert isinstance(self._input, SharedInput)
        self._input.assign(committed)
        self._owned.update(partitions)
        self._is_read = False
        log.info("assigned: %s", ", ".join(partitions))
        self._options.listener.on_assign(partitions)

    def _begin_at(self, committed: Mapping[str, Committed]) -> None:
        done = {partition: each.done for partition, each in committed.items()}
        self._parts.assign(done, {partition: each.answered for partition, each in committed.items()})

    def _drop_partitions(self, partitions: Sequence[str]) -> None:
        """Drop partitions that this source may no longer read, with all their open records."""
        if self._options.group is not None:
            # The group also reports partitions that a fenced commit has already dropped.
            partitions = [partition for partition in partitions if partition in self._owned]
            self._owned.difference_update(partitions)
        for partition in partitions:
            numbers = self._parts.numbers_of([partition])
            self._dead_lettering.drop_records(numbers)
            self._in_flight.tracker.drop_records(self._order.drop(numbers))
            records = self._in_flight.revoke(numbers)
            roots = np.zeros(len(records), NO_IDS.dtype)
            self._options.listener.on_revoke(partition, Emissions(records, roots, self._lookup))
            self._parts.revoke(partition)
            self._checkpointing.drop_partition(partition)
            log.info("partition %s is no longer read by this source: dropped %d open records", partition, len(records))
        if partitions and self._options.group is not None and isinstance(self._input, SharedInput):
            self._input.revoke(partitions)

    # -- finished records

    def commit_if_due(self, now: float) -> None:
        """Write the checkpoint if it is due and all outcomes are taken. A commit may drop partitions, whose finished
        records have to be retired before."""
        if not self._listeners.has_untaken and self._checkpointing.is_due(now):
            self.commit()

    def commit(self) -> Sequence[str]:
        """Write the checkpoint. Drops and returns the partitions that another source owns by now."""
        self.retire_finished()
        fenced = self._checkpointing.save(self._parts, self._environment.clock)
        self._drop_partitions(fenced)
        return fenced

    def retire_finished(self) -> None:
        """Count finished records as done in their partitions, and drop them from memory. Does nothing as long as
        outcomes wait to be taken."""
        if self._listeners.has_untaken:
            return
        self._parts.finish(self._in_flight.take_finished())
        done_below = self._in_flight.compact()
        self._parts.forget_parts(done_below)
        self._dead_lettering.forget_times(done_below)
        self._advance(self._parts.take_changed())

    def _advance(self, partitions: Iterable[str]) -> None:
        """Tell the input how far partitions are done, and note that their marks are to be saved."""
        changed = {partition: self._parts.done[partition] for partition in partitions}
        for partition, done in changed.items():
            self._input.advance(partition, done)
        self._checkpointing.note_unsaved(changed)
        self._checkpointing.warn_of_holes(changed)

    def describe_done(self) -> str:
        """Describe progress to a person. Any thread may ask, while partitions come and go."""
        return self._input.describe(dict(self._parts.done))

    def holes(self) -> list[int]:
        """Return the number of holes of each partition. Any thread may ask, while partitions come and go."""
        return [done.holes for done in list(self._parts.done.values())]

    def states(self) -> list[PartitionState]:
        """Return the state of each partition, in order; none if the input does not show them. Any thread may ask."""
        if not isinstance(self._input, ObservedInput):
            return []
        return [self._state(name, each) for name, each in sorted(self._input.observe().items())]

    def _state(self, name: str, each: Observed) -> PartitionState:
        committed = self._checkpointing.committed_prefix(name) if each.committed is None else each.committed
        holes = self._parts.done.get(name, Ranges()).holes
        return PartitionState(each.topic, each.name, each.position, committed, each.end, holes)


def _check_input(options: Options, source: Input[Any]) -> None:
    kind, limit = source.kind, options.max_uncommitted_per_partition
    if options.group is not None and not isinstance(source, SharedInput):
        raise SourceError(
            f"group with an input of {kind}: its partitions cannot be shared out among sources; leave group out"
        )
    if limit is not None and not isinstance(source, PausableInput):
        raise SourceError(
            f"max_uncommitted_per_partition={limit} with an input of {kind}: it cannot leave one partition alone"
            " and read others; give max_uncommitted"
        )
