"""Checkpointing: when the checkpoint is written, and with what content.

Decides when it is written (with each batch, or once in ``commit_interval_s``, less often if a write is slow, and at
once before another source takes over a partition), which records count as done in it (``guarantee``), and how many
holes a partition may have in it. Writes only the partitions of this run; in a group, only the partitions that this
source owns.
"""

from __future__ import annotations

import logging
import os
import platform
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from acker_client.source.engine.options import Options, checkpoint_store
from acker_client.source.errors import Fenced, SourceError
from acker_client.source.records.guarantee import Guarantee
from acker_client.source.records.input import Answered, Committed, Input
from acker_client.source.records.parts import Parts
from acker_client.source.records.ranges import Ranges
from acker_client.source.records.stores import (
    Committer,
    CommittingInput,
    SharedCheckpointStore,
    SignedCheckpointStore,
)

log = logging.getLogger("acker_client.source")

NOTHING = Committed()

# Maximum number of holes (stretches of open records before done ones) of a partition. With more, it is paused.
HOLES_MAX = 100_000

# A write has all partitions. With very many it is slow, and a run that wrote with each batch would do little else. So a
# pause follows a write of at least SLOW_S: PAUSES times its length, at most PAUSE_MAX_S.
SLOW_S = 1.0
PAUSES = 9
PAUSE_MAX_S = 60.0


class Checkpointing:
    """The checkpoint of one run, if it has one. Times are seconds of the run's clock."""

    def __init__(self, options: Options, source: Input[Any]) -> None:
        self._options = options
        self._input = source
        self._store = checkpoint_store(options)
        self._committed: dict[str, Committed] = {}
        self._unsaved: set[str] = set()
        self._due_s = float("-inf")
        self._crowded: set[str] = set()

    @property
    def holes_max(self) -> int:
        """Maximum number of holes that the checkpoint holds for one partition."""
        return HOLES_MAX

    def open_checkpoint(self) -> Mapping[str, Committed]:
        """Lock the checkpoint, and return its content; empty in a group, where a source owns no partition yet."""
        if self._store is not None:
            self._store.open(self._options.name, self._input.kind)
            if isinstance(self._input, CommittingInput):
                self._input.set_checkpoint(self._store)
            self._committed = {} if self._options.group is not None else self._store.load()
        return self._committed

    def sign(self, session: int) -> None:
        """Tell the store which run commits from now on, if the store records that."""
        if isinstance(self._store, SignedCheckpointStore):
            retries = self._options.guarantee is Guarantee.AT_LEAST_ONCE
            self._store.sign(Committer(self._options.name, session, platform.node(), os.getpid(), retries))

    def close(self) -> None:
        if self._store is not None:
            self._store.close()

    def load_assigned(self, partitions: Sequence[str]) -> dict[str, Committed]:
        """Load the checkpoint's entries for partitions that were assigned just now; ``Committed()`` for new ones."""
        assert isinstance(self._store, SharedCheckpointStore)
        saved = self._store.load_partitions(partitions)
        self._unsaved.difference_update(partitions)
        self._committed |= {partition: saved[partition] for partition in partitions if partition in saved}
        return {partition: saved.get(partition, Committed()) for partition in partitions}

    def drop_partition(self, partition: str) -> None:
        """Write nothing more for a partition. A checkpoint that is not shared keeps its last entry."""
        self._unsaved.discard(partition)
        if isinstance(self._store, SharedCheckpointStore):
            self._committed.pop(partition, None)

    def committed_prefix(self, partition: str) -> int:
        """Return the position below which the checkpoint says that all is done. Any thread may ask."""
        return self._committed.get(partition, NOTHING).done.prefix

    def note_unsaved(self, partitions: Iterable[str]) -> None:
        self._unsaved.update(partitions)

    def warn_of_holes(self, done: Mapping[str, Ranges]) -> None:
        """Log each partition that has reached half of the holes that a checkpoint holds."""
        for partition, ranges in done.items():
            if ranges.holes < HOLES_MAX // 2:
                self._crowded.discard(partition)
            elif partition not in self._crowded:
                self._crowded.add(partition)
                log.warning(
                    "partition %s: %d stretches of open records lie before done ones, and a checkpoint holds %d:"
                    " reading waits from there on",
                    partition,
                    ranges.holes,
                    HOLES_MAX,
                )

    def is_due(self, now: float) -> bool:
        """Return whether something is unsaved, and the interval or the pause after the last write has passed."""
        return self._store is not None and bool(self._unsaved) and now >= self._due_s

    def save(self, parts: Parts[Any], clock: Callable[[], float]) -> Sequence[str]:
        """Write unsaved partitions. Returns the partitions that another source owns by now, which were not written."""
        if self._store is None or not self._unsaved:
            return ()
        begun_s = clock()
        self._due_s = begun_s + self._options.commit_interval_s
        unsaved, self._unsaved = self._unsaved, set()
        try:
            for partition in sorted(unsaved):
                done = self._done(parts, partition)
                answered = parts.answered.get(partition, Answered())
                self._committed[partition] = Committed(done, self._input.mark(partition, done), answered)
            self._store.save(self._committed)
        except Fenced as fenced:
            if self._options.group is None:
                raise
            log.warning("%s", fenced)
            return fenced.partitions
        except SourceError:
            # The store has waited, so another try at the end of the run would only wait again.
            raise
        except BaseException:
            self._unsaved |= unsaved
            raise
        finally:
            self._pause(begun_s, clock())
        return ()

    def _pause(self, begun_s: float, ended_s: float) -> None:
        took_s = ended_s - begun_s
        if took_s < SLOW_S:
            return
        pause_s = min(PAUSES * took_s, PAUSE_MAX_S)
        self._due_s = max(self._due_s, ended_s + pause_s)
        log.info("the checkpoint took %.1f s to write: the next write comes after %.0f s", took_s, pause_s)

    def _done(self, parts: Parts[Any], partition: str) -> Ranges:
        """Return the positions that a restart skips, with at most ``HOLES_MAX`` holes."""
        if self._options.guarantee is Guarantee.AT_MOST_ONCE:
            return parts.done.get(partition, Ranges()).union(Ranges.below(parts.reach(partition)))
        return parts.done[partition].first_holes(HOLES_MAX)
