"""A checkpoint in the offsets that a consumer group has committed to Kafka.

The offset is always the end of the finished prefix. The metadata holds the ranges that are done beyond it, as many as
fit. A restart reads the rest again. Offsets of other writers are ignored. ``commits`` decides which of two runs stops.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Self

from acker_client.source.errors import CheckpointError, SourceError
from acker_client.source.kafka.broker import METADATA_BYTES_MAX, Broker, CommittedOffset
from acker_client.source.kafka.commits import IN_KAFKA, Commits
from acker_client.source.kafka.connection import Unreachable
from acker_client.source.kafka.names import At, KafkaConnection, Topics
from acker_client.source.kafka.offset_metadata import CommitMetadata
from acker_client.source.records.input import Committed, Mark
from acker_client.source.records.stores import Committer
from acker_client.source.waiting import OUTAGE_S, outlast

log = logging.getLogger("acker_client.source.kafka")

# A broker's error text for metadata that is too large, and a size that every broker accepts.
TOO_LARGE = "metadata string too large"
METADATA_BYTES_MIN = 256
# If ``save`` does not wait: how long it looks for another run first, and how long the end of a run waits for commits.
CHECK_S, CLOSE_S = 5.0, 10.0


class KafkaOffsets:
    """A ``SharedCheckpointStore`` and ``SignedCheckpointStore`` in the offsets of ``group_id``, for the partitions of
    ``topics`` or ``pattern``.

    ``metadata_bytes_max``: must be less than the brokers' ``offset.metadata.max.bytes``. Kafka has no locks: a second
    run of the same source stops when it first commits after a commit of the first run. ``Kafka`` refuses this store
    with a ``group``, because Kafka accepts the commits of a source that has lost a partition.
    """

    # Tests replace these. ``_limit_s``: how long brokers may be away at the end of a batch before the run ends.
    _sleep: Callable[[float], None] = staticmethod(time.sleep)
    _limit_s = OUTAGE_S

    def __init__(
        self,
        topics: str | Iterable[str] | None = None,
        *,
        bootstrap_servers: str | Iterable[str],
        group_id: str,
        pattern: str | None = None,
        timeout_s: float = 60.0,
        config: Mapping[str, Any] | None = None,
        metadata_bytes_max: int = METADATA_BYTES_MAX,
    ) -> None:
        self.topics = Topics.of(topics, pattern)
        self.connection = KafkaConnection.of(bootstrap_servers, group_id, config, timeout_s)
        self.metadata_bytes_max = metadata_bytes_max
        # Whether ``save`` waits until it is committed. The input sets it by the source's guarantee.
        self.waits = True
        self.source = ""
        self._broker: Broker | None = None
        self._commits: Commits | None = None
        # Offsets that this run has loaded or saved last, and whether it has committed any of them.
        self._kept: dict[str, Committed] = {}
        self._loaded: dict[str, Committed] = {}
        self._is_cut = self._is_shared = self._has_committed = False

    @classmethod
    def of(cls, topics: Topics, connection: KafkaConnection) -> Self:
        return cls(
            topics.names or None,
            pattern=topics.pattern or None,
            bootstrap_servers=connection.servers,
            group_id=connection.group,
            timeout_s=connection.timeout_s,
            config=dict(connection.config),
        )

    def __str__(self) -> str:
        return f"the offsets of group {self.connection.group!r} at {self.connection.servers}"

    def open(self, source: str, kind: str) -> None:
        if kind != "kafka":
            raise CheckpointError(f"{self} hold the progress of Kafka's records, not of {kind!r}: give a file")
        self.source = source
        self._kept, self._loaded = {}, {}
        self._is_cut = self._is_shared = self._has_committed = False
        self._broker = Broker(self.connection)
        self._commits = Commits(self._broker, source)

    def close(self) -> None:
        if self._broker is not None:
            try:
                self._commit_end()
                why = self._broker.confirm(CLOSE_S)
            except SourceError as error:
                why = str(error)
            if why:
                log.warning("the end of this run was not committed to %s: %s", self, why)
            self._broker.close()
            self._broker = None

    def _commit_end(self) -> None:
        """Commit once more what is done, with the note that this run is over. In a group another source may have the
        partitions by now. A run that has failed before its first commit commits nothing: it would stop a driver that
        runs with at-most-once."""
        if self._has_committed and self._kept and not self._is_shared:
            self._open_commits.check_runs(map(At.named, self._kept), CHECK_S)
            self._open_broker.commit(
                {At.named(name): self._commit_of(each, is_over=True) for name, each in self._kept.items()}
            )

    def identity(self) -> str:
        return IN_KAFKA

    def draw_identity(self) -> str:
        return IN_KAFKA

    @property
    def run_id(self) -> str:
        """The random id of the run that has this store open."""
        return self._open_commits.run_id

    def load(self) -> dict[str, Committed]:
        found = self._open_broker.partitions(self.topics)
        self._loaded = self._load([At(topic, number) for topic, count in found.items() for number in range(count)])
        return dict(self._loaded)

    def sign(self, by: Committer) -> None:
        """Commit once more what was loaded, so that a driver that begins later finds this run.

        Raises :class:`CheckpointError` if another run, or ``acker offsets``, has committed since.
        """
        self._open_commits.emits_once = self.waits and not by.retries

        def commit_loaded() -> None:
            self._check_runs(self._loaded, is_start=True)
            self._commit(self._loaded)

        self._outlast(commit_loaded, 0.0)
        self._loaded = {}

    def note_begun(self, committed: Mapping[str, Committed]) -> None:
        """Note what the input has committed for partitions that it begins."""
        self._kept = dict(committed) | self._kept

    def load_partitions(self, partitions: Sequence[str]) -> dict[str, Committed]:
        # The group, not the order of runs, decides who owns a partition.
        self._is_shared = True
        return self._load([At.named(partition) for partition in partitions])

    def save(self, committed: Mapping[str, Committed]) -> None:
        overwritten = set[str]()

        def commit_changed() -> None:
            changed = {name: each for name, each in committed.items() if not self._is_saved(name, each)}
            if changed and not self._is_shared:
                # In each try: during an outage another run may have gone on. A look finds a commit only once.
                overwritten.update(self._check_runs(committed))
                changed |= {name: committed[name] for name in overwritten}
            self._commit(changed)

        self._outlast(commit_changed, self._limit_s)

    def renew(self, marks: Mapping[str, Mark], timeout_s: float) -> bool:
        """Commit once more what was saved of some partitions, each with its mark. Returns whether that succeeded.

        Raises :class:`CheckpointError` if another run goes on instead.
        """
        kept = {name: replace(self._kept[name], mark=mark) for name, mark in marks.items() if name in self._kept}
        try:
            self._open_commits.check_runs(map(At.named, kept), timeout_s)
            self._open_broker.commit({At.named(name): self._commit_of(each) for name, each in kept.items()})
            is_renewed = not self._open_broker.confirm(timeout_s)
        except CheckpointError:
            raise
        except SourceError:
            is_renewed = False
        if is_renewed:
            self._kept |= kept
        else:
            # Otherwise the next save would wait for them.
            self._open_broker.forget_commits(map(At.named, kept))
        return is_renewed

    def _check_runs(self, partitions: Iterable[str], *, is_start: bool = False) -> list[str]:
        """Return the partitions that a later run has committed. Raises ``CheckpointError`` for an earlier run."""
        try:
            limit_s = None if self.waits else CHECK_S
            found = self._open_commits.check_runs(map(At.named, partitions), limit_s, is_start=is_start)
            return [at.name for at in found]
        except Unreachable:
            if self.waits:
                raise
            return []

    def _outlast(self, commit: Callable[[], None], limit_s: float) -> None:
        """Call ``commit``, and for ``limit_s`` seconds again while brokers are away. Raises ``CheckpointError``."""
        try:
            outlast(commit, str(self), limit_s, sleep=self._sleep)
        except CheckpointError:
            raise
        except SourceError as error:
            raise CheckpointError(
                f"what is done could not be committed to {self} ({error}): check the brokers, and start again. Nothing"
                " is lost: what was committed before stands, and what was done since is read again"
            ) from None

    def _commit(self, committed: Mapping[str, Committed]) -> None:
        if not self.waits:
            self._open_broker.commit({At.named(name): self._commit_of(each) for name, each in committed.items()})
            self._kept |= committed
            self._has_committed = True
            return
        why = self._try_commit(committed)
        while TOO_LARGE in why and self.metadata_bytes_max > METADATA_BYTES_MIN:
            self.metadata_bytes_max //= 2
            why = self._try_commit(committed)
        if why:
            raise self._open_broker.failure(why)
        self._kept |= committed
        self._has_committed = True

    def _is_saved(self, name: str, committed: Committed) -> bool:
        kept = self._kept.get(name)
        return kept is not None and kept.done == committed.done and _topic_id(kept) == _topic_id(committed)

    def _try_commit(self, committed: Mapping[str, Committed]) -> str:
        """Commit and wait. Returns why it could not be committed, or ""."""
        self._open_broker.commit({At.named(name): self._commit_of(each) for name, each in committed.items()})
        return self._open_broker.confirm(self.connection.timeout_s)

    def _load(self, partitions: Sequence[At]) -> dict[str, Committed]:
        try:
            commits = self._open_commits.load(partitions)
        except CheckpointError:
            raise
        except SourceError as error:
            raise CheckpointError(f"{self} cannot be read: {error}") from None
        loaded = {
            at.name: Committed(
                commit.own.done, {"topic_id": commit.own.topic_id} if commit.own.topic_id else {}, commit.own.answered
            )
            for at, commit in commits.items()
            if commit.own is not None
        }
        self._kept |= loaded
        return loaded

    def _commit_of(self, committed: Committed, *, is_over: bool = False) -> CommittedOffset:
        done = committed.done
        commit = self._open_commits.commit_of(
            done, committed.answered, self.metadata_bytes_max, is_over=is_over, topic_id=_topic_id(committed)
        )
        written = CommitMetadata.from_text(commit.metadata, done.prefix)
        is_cut = written is None or written.done.holes < done.holes
        if is_cut and not self._is_cut:
            log.warning(
                "%d holes do not fit into the %d bytes beside an offset of %s: a restart reads again what is done"
                " beyond the holes that fit",
                done.holes,
                self.metadata_bytes_max,
                self,
            )
        self._is_cut = self._is_cut or is_cut
        return commit

    @property
    def _open_broker(self) -> Broker:
        if self._broker is None:
            raise CheckpointError(f"{self} are not open")
        return self._broker

    @property
    def _open_commits(self) -> Commits:
        if self._commits is None:
            raise CheckpointError(f"{self} are not open")
        return self._commits


def _topic_id(committed: Committed) -> str:
    return str(committed.mark.get("topic_id") or "")
