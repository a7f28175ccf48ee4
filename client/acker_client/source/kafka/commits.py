"""Commits: what one run of a source commits to its consumer group, and what it finds there.

Decides whose commits are the source's own: they name the source, and no checkpoint but this one. A commit of another
checkpoint under the same name is refused, because this source would skip records that only the other job has done.

Also decides which of two runs stops if both commit under one name at the same time: the one that began later. Each run
reads before it commits. A run that finds a new commit of a run that comes before it stops, unless that one is over. So
the first run goes on, however often the others are started again. Three other cases stop any run, also the first. While
a run starts, any new commit of another run stops it. A run whose offsets ``acker offsets`` has moved stops, and does
not undo that. A run that must emit no record twice stops at any new commit of another run, which may have emitted what
this one would emit next.
"""

from __future__ import annotations

import logging
import os
import secrets
import socket
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from acker_client.source.errors import CheckpointError
from acker_client.source.kafka.broker import METADATA_BYTES_MAX, Broker, CommittedOffset
from acker_client.source.kafka.names import At
from acker_client.source.kafka.offset_metadata import CommitMetadata, NewerVersion, RunId
from acker_client.source.records.input import NONE_ANSWERED, Answered
from acker_client.source.records.ranges import Ranges
from acker_client.source.records.stores import CheckpointStore, IdentifiedCheckpointStore

log = logging.getLogger("acker_client.source.kafka")

# The identity of all checkpoints in Kafka's offsets. They are where the commits are, so they cannot differ from them.
IN_KAFKA = "kafka"


class Commit(NamedTuple):
    """A commit of the group. ``own``: its metadata if this source made it, else None."""

    offset: int
    own: CommitMetadata | None


class Commits:
    """The commits of one run of ``source`` to the group of ``broker``. ``checkpoint``: None if Kafka holds it."""

    def __init__(
        self, broker: Broker, source: str, checkpoint: CheckpointStore | None = None, run_id: str | None = None
    ) -> None:
        self._broker = broker
        self._source = source
        self._checkpoint = checkpoint
        self._run = RunId(1, secrets.token_hex(4) if run_id is None else run_id)
        # Whether no record may be emitted that another run has committed (at-most-once).
        self.emits_once = False
        self._has_committed = False
        # The last commits that were read, because only a commit that is new shows that its run goes on.
        self._read: dict[At, CommittedOffset | None] = {}
        self._why_second = ""
        self._has_warned = False

    @property
    def run_id(self) -> str:
        """The random part of the run's id."""
        return self._run.id

    def load(self, partitions: Sequence[At], *, is_new: bool = False) -> dict[At, Commit]:
        """Return the group's commits by partition. ``is_new``: the checkpoint holds nothing yet.

        Raises ``CheckpointError`` for a commit under this source's name that belongs to another checkpoint.
        """
        found = self._broker.committed(partitions)
        commits = {at: Commit(each.offset, self._own(at, each)) for at, each in sorted(found.items())}
        own = {at: commit.own for at, commit in commits.items() if commit.own is not None}
        self._check_checkpoint(own, is_new)
        # The first commit that was read counts, or that there was none, so that ``check_runs`` finds newer ones.
        self._read = dict.fromkeys(partitions) | found | self._read
        if not self._has_committed:
            # Afterwards other runs may have compared themselves with it.
            turn = max((commit.run.turn + 1 for commit in own.values()), default=1)
            self._run = RunId(max(turn, self._run.turn), self._run.id)
        return commits

    def check_runs(
        self, partitions: Iterable[At], timeout_s: float | None = None, *, is_start: bool = False
    ) -> list[At]:
        """Return the partitions whose commit a later run has overwritten: commit these again.

        Raises ``CheckpointError`` if a run that comes before this one has committed since the last call, and from
        then on. ``is_start``: this run has committed nothing that it has done. Any new commit then makes it stop.
        """
        if not self._why_second:
            found = self._broker.committed(list(partitions), timeout_s)
            news = {at: self._own(at, each) for at, each in found.items() if self._read.get(at) != each}
            self._read |= found
            others = {at: own for at, own in news.items() if own is not None and own.run.id != self._run.id}
            for at, own in others.items():
                if own.is_moved:
                    self._why_second = self._moved(at, own)
                elif own.run < self._run and not own.is_over:
                    self._why_second = self._second(at, own)
                elif is_start:
                    self._why_second = self._outdated(at, own)
                elif self.emits_once:
                    self._why_second = self._emitted(at, own)
            if not self._why_second:
                for own in [each for each in others.values() if not each.is_over][:1]:
                    self._warn(own)
                return list(others)
        raise CheckpointError(self._why_second)

    def commit_of(
        self,
        done: Ranges,
        answered: Answered = NONE_ANSWERED,
        bytes_max: int = METADATA_BYTES_MAX,
        *,
        is_over: bool = False,
        topic_id: str = "",
    ) -> CommittedOffset:
        """Return the commit that says how far a partition is ``done``, with as many ranges as fit. ``is_over``: this
        run ends with it. ``topic_id``: "" if unknown."""
        # Before the first commit, because a start must know its own commits after a crash at any point.
        checkpoint = self._draw_identity()
        metadata = CommitMetadata(self._source, committer(), done, answered, checkpoint, self._run, is_over, topic_id)
        self._has_committed = True
        return CommittedOffset(done.prefix, metadata.to_text(bytes_max))

    def _own(self, at: At, commit: CommittedOffset) -> CommitMetadata | None:
        try:
            metadata = CommitMetadata.from_text(commit.metadata, commit.offset)
        except NewerVersion as error:
            raise CheckpointError(
                f"group {self._group!r}: the commit of {at.name} has {error}: use that acker, or another group"
            ) from None
        return metadata if metadata is not None and metadata.source == self._source else None

    def _check_checkpoint(self, commits: Mapping[At, CommitMetadata], is_new: bool) -> None:
        if not commits:
            return
        identity, is_identified = IN_KAFKA if self._checkpoint is None else "", False
        if isinstance(self._checkpoint, IdentifiedCheckpointStore):
            identity, is_identified = self._checkpoint.identity(), True
        for at, commit in commits.items():
            # A commit of an older acker names no checkpoint. It cannot belong to one that holds nothing yet.
            is_own = commit.checkpoint == identity if commit.checkpoint else not (is_identified and is_new)
            if not is_own:
                raise self._two_checkpoints(at, commit, identity)

    def _two_checkpoints(self, at: At, commit: CommitMetadata, identity: str) -> CheckpointError:
        return CheckpointError(
            f"Kafka: two checkpoints for one name. Group {self._group!r} has the commit {commit.done.prefix} of"
            f" {at.name}, which source {commit.source!r} made on {commit.by} with {_described(commit.checkpoint)}. This"
            f" source is {self._source!r} too, and has {self._described(identity)}. It would skip records that only"
            " the other one has done. If these are two jobs, give this one a group_id of its own: it then begins"
            " where its own checkpoint and first_poll say. To go on from the commits of the group on purpose, give"
            f" another name, a new checkpoint, group_id={self._group!r} and first_poll='uncommitted_earliest'"
        )

    def _described(self, identity: str) -> str:
        if identity == IN_KAFKA:
            return _described(identity)
        return f"checkpoint {self._checkpoint}, {f'identity {identity}' if identity else 'without an identity yet'}"

    def _draw_identity(self) -> str:
        if isinstance(self._checkpoint, IdentifiedCheckpointStore):
            return self._checkpoint.draw_identity()
        return IN_KAFKA if self._checkpoint is None else ""

    def _second(self, at: At, first: CommitMetadata) -> str:
        return (
            f"source {self._source!r} runs twice: another driver, {first.by}, began before this one ({committer()})"
            f" and commits to group {self._group!r} too (offset {first.done.prefix} of {at.name}). This driver stops,"
            " and the other one goes on. Stop one of the two for good; two jobs need a name and a group_id each."
            " Nothing is lost: what is not committed is read again"
        )

    def _moved(self, at: At, by: CommitMetadata) -> str:
        return (
            f"the offsets of source {self._source!r} were moved by `acker offsets` on {by.by} while this driver ran"
            f" (to {by.done.prefix} of {at.name}). This driver stops: start it again, and it goes on from there"
        )

    def _outdated(self, at: At, by: CommitMetadata) -> str:
        return (
            f"another driver of source {self._source!r}, {by.by}, has committed to group {self._group!r} while this one"
            f" started ({by.done.prefix} of {at.name}). This driver stops: start it again, and it goes on from there"
        )

    def _emitted(self, at: At, by: CommitMetadata) -> str:
        began = "before" if by.run < self._run else "after"
        return (
            f"source {self._source!r} runs twice: another driver, {by.by}, began {began} this one ({committer()}), and"
            f" has committed to group {self._group!r} too (offset {by.done.prefix} of {at.name}). With"
            " guarantee='at_most_once' this driver stops, because its next records may have been emitted there. Stop"
            " one of the two for good; two jobs need a name and a group_id each"
        )

    def _warn(self, other: CommitMetadata) -> None:
        if not self._has_warned:
            self._has_warned = True
            log.warning(
                "source %r runs twice: another driver, %s, began after this one, and commits to group %r too; it stops"
                " when it sees the commits of this one",
                self._source,
                other.by,
                self._group,
            )

    @property
    def _group(self) -> str:
        return self._broker.connection.group


def committer() -> str:
    """Return the host and process that commits, for commit metadata."""
    return f"{socket.gethostname()}:{os.getpid()}"


def _described(identity: str) -> str:
    if identity == IN_KAFKA:
        return "its checkpoint in Kafka's offsets"
    return f"the checkpoint of identity {identity}" if identity else "a checkpoint that has no identity"
