"""Seeking: moves a source to other offsets while no driver runs, for ``acker offsets``.

Decides that a source runs if its checkpoint is locked, or if its last commit does not say that its run is over. Decides
the order of the writes: first the checkpoint, then the commits. A crash between them loses no record: the source then
goes on at the higher of the two offsets, and the command can be called again. The commits come before those of all
drivers, so that a driver which runs all the same stops at its next commit, and does not undo the move.
"""

from __future__ import annotations

import secrets
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path
from types import TracebackType
from typing import Self

from acker_client.source.checkpoints.checkpoint_file import CheckpointFile
from acker_client.source.errors import CheckpointError, SourceError
from acker_client.source.kafka.broker import EARLIEST, LATEST, METADATA_BYTES_MAX, Broker, CommittedOffset
from acker_client.source.kafka.commits import IN_KAFKA, Commit, Commits, committer
from acker_client.source.kafka.names import At, KafkaConnection, Topics, milliseconds
from acker_client.source.kafka.offset_metadata import MOVED, CommitMetadata, RunId
from acker_client.source.records.input import Answered, Committed
from acker_client.source.records.ranges import Ranges

# All topics but Kafka's own.
ALL_TOPICS = ".*"
# "earliest", "latest", an offset, or a time.
Target = str | int | datetime


@dataclass(frozen=True, slots=True)
class SourceOffsets:
    """Where a source is in one partition. ``earliest`` and ``end``: of the log. ``committed``: of the group;
    ``by``: who committed it; ``is_running``: whether that run may go on. ``checkpoint``: the prefix in the checkpoint
    file. None: there is no such offset. ``holes``: stretches of open records before done ones. ``target``: the offset
    to move to."""

    at: At
    earliest: int
    end: int
    committed: int | None = None
    by: str = ""
    is_running: bool = False
    checkpoint: int | None = None
    holes: int = 0
    target: int | None = None

    @property
    def next(self) -> int:
        """The offset at which the source goes on."""
        return max(self.committed or 0, self.checkpoint or 0, self.earliest)


class Seeking:
    """The offsets of one source; a context manager. ``checkpoint``: its file; None if it has none, or has it in Kafka.

    Raises ``SourceError``, which says what to do.
    """

    def __init__(self, source: str, connection: KafkaConnection, checkpoint: Path | None = None) -> None:
        self._source = source
        self._broker = Broker(connection)
        self._store = None if checkpoint is None else CheckpointFile(checkpoint)
        self._path = checkpoint
        self._committed: dict[str, Committed] = {}
        self._commits: dict[At, Commit] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if self._store is not None:
            self._store.close()
        self._broker.close()

    def look(self, topics: Collection[str] = (), partitions: Collection[At] = ()) -> list[SourceOffsets]:
        """Return where the source is in each partition that it has read, of the given topics or of all."""
        self._load_checkpoint()
        found = self._broker.partitions(Topics.of(topics or None, None if topics else ALL_TOPICS))
        there = [At(topic, number) for topic, count in found.items() for number in range(count)]
        self._commits = self._load_commits(there)
        known = [at for at in there if at in self._commits or at.name in self._committed]
        if not known:
            where = f"group {self._broker.connection.group!r} at {self._broker.connection.servers}"
            raise SourceError(
                f"source {self._source!r} has read nothing of {', '.join(topics) or 'any topic'} as {where}: check its"
                " name, its group and its topics"
            )
        missing = [at.name for at in partitions if at not in known]
        if missing:
            raise SourceError(f"{missing[0]} is no partition that source {self._source!r} has read")
        chosen = [at for at in known if not partitions or at in partitions]
        low, high = self._broker.offsets(chosen, EARLIEST), self._broker.offsets(chosen, LATEST)
        return [self._offsets(at, low[at], high[at]) for at in chosen]

    def targets(self, seen: Iterable[SourceOffsets], to: Target) -> list[SourceOffsets]:
        """Return the offsets with the target of each partition. Raises if an offset is not in a partition's log."""
        places = list(seen)
        times: Mapping[At, int] = {}
        if isinstance(to, datetime):
            times = self._broker.offsets([each.at for each in places], milliseconds(to))
        found = []
        for each in places:
            target = {"earliest": each.earliest, "latest": each.end}.get(to) if isinstance(to, str) else to
            target = times[each.at] if isinstance(to, datetime) else target
            assert isinstance(target, int)
            if not each.earliest <= target <= each.end:
                raise SourceError(
                    f"{each.at.name} has the offsets {each.earliest} to {each.end}, and {target} is not among them:"
                    " give another offset, or choose partitions"
                )
            found.append(replace(each, target=target))
        return found

    def move(self, places: Iterable[SourceOffsets], *, is_stopped: bool = False) -> None:
        """Move the source to the targets. ``is_stopped``: the user has made sure that no driver runs.

        Raises ``SourceError`` while a driver runs. Nothing is changed then.
        """
        moves = {each.at: each.target for each in places if each.target is not None}
        if self._store is not None:
            # Another driver that has the file open makes this fail.
            self._store.open(self._source, "kafka")
            self._load_checkpoint()
        self._commits = self._load_commits(list(moves))
        if not is_stopped:
            self._refuse_running(moves)
        if self._store is not None:
            self._store.save(self._committed | {at.name: self._moved(at, target) for at, target in moves.items()})
        self._commit({at: self._commit_of(at, target) for at, target in moves.items()})

    def _load_checkpoint(self) -> None:
        if self._store is None or self._path is None:
            return
        if not self._path.exists():
            raise CheckpointError(f"there is no checkpoint {self._path}: give the one that the source has")
        self._store.source, self._store.kind = self._source, "kafka"
        self._committed = self._store.load()

    def _load_commits(self, partitions: list[At]) -> dict[At, Commit]:
        """Return the commits of this source. Raises if they belong to another checkpoint than was given."""
        commits = Commits(self._broker, self._source, self._store).load(partitions) if self._store else None
        if commits is None:
            found = self._broker.committed(partitions)
            commits = {at: Commit(each.offset, self._own(each)) for at, each in found.items()}
            for at, commit in commits.items():
                if commit.own is not None and commit.own.checkpoint not in ("", IN_KAFKA):
                    raise CheckpointError(
                        f"the commit of {at.name} belongs to a checkpoint of source {self._source!r} (identity"
                        f" {commit.own.checkpoint}): give its file with --checkpoint. A checkpoint in S3 or"
                        " ZooKeeper can be neither shown nor moved"
                    )
        return {at: commit for at, commit in commits.items() if commit.own is not None}

    def _own(self, commit: CommittedOffset) -> CommitMetadata | None:
        metadata = CommitMetadata.from_text(commit.metadata, commit.offset)
        return metadata if metadata is not None and metadata.source == self._source else None

    def _offsets(self, at: At, earliest: int, end: int) -> SourceOffsets:
        saved, commit = self._committed.get(at.name), self._commits.get(at)
        places = SourceOffsets(at, earliest, end)
        if saved is not None:
            places = replace(places, checkpoint=saved.done.prefix, holes=saved.done.holes)
        if commit is not None and commit.own is not None:
            holes = max(places.holes, commit.own.done.holes)
            is_running = not commit.own.is_over
            places = replace(places, committed=commit.offset, by=commit.own.by, is_running=is_running, holes=holes)
        return places

    def _refuse_running(self, moves: Iterable[At]) -> None:
        for at in moves:
            commit = self._commits.get(at)
            if commit is not None and commit.own is not None and not commit.own.is_over:
                raise SourceError(
                    f"source {self._source!r} runs, or has died: {commit.own.by} has made the last commit of {at.name},"
                    " and has not ended since. Stop it. If it has died, or is older than this acker, make sure that it"
                    " does not run, and give --stopped"
                )

    def _moved(self, at: At, target: int) -> Committed:
        saved = self._committed.get(at.name, Committed())
        return replace(saved, done=Ranges.below(target))

    def _commit_of(self, at: At, target: int) -> CommittedOffset:
        commit = self._commits.get(at)
        own = None if commit is None else commit.own
        identity = self._store.draw_identity() if self._store is not None else own.checkpoint if own else IN_KAFKA
        answered, topic_id = (Answered(), "") if own is None else (own.answered, own.topic_id)
        run = RunId(MOVED, secrets.token_hex(4))
        metadata = CommitMetadata(
            self._source, committer(), Ranges.below(target), answered, identity, run, is_over=True, topic_id=topic_id
        )
        return CommittedOffset(target, metadata.to_text(METADATA_BYTES_MAX))

    def _commit(self, commits: Mapping[At, CommittedOffset]) -> None:
        self._broker.commit(commits)
        why = self._broker.confirm(self._broker.connection.timeout_s)
        if not why:
            kept = self._broker.committed(list(commits))
            other = [at.name for at, each in commits.items() if kept.get(at) != each]
            why = f"another program has committed {other[0]} at the same time" if other else ""
        if why:
            raise SourceError(
                f"the offsets of group {self._broker.connection.group!r} could not be moved ({why}): look at them, and"
                " call this again"
            )
