"""A checkpoint in the offsets that a consumer group has committed to Kafka.

The offset is always the end of the finished prefix. The metadata holds the ranges that are done beyond it, as many as
fit. A restart reads the rest again. Offsets of other writers are ignored.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Self

from acker_client.source.errors import CheckpointError, SourceError
from acker_client.source.kafka.broker import METADATA_BYTES_MAX, Broker, CommittedOffset, committer
from acker_client.source.kafka.names import At, KafkaConnection, Topics
from acker_client.source.kafka.offset_metadata import CommitMetadata, NewerVersion
from acker_client.source.records.input import Committed
from acker_client.source.records.ranges import Ranges

log = logging.getLogger("acker_client.source.kafka")

# A broker's error text for metadata that is too large, and a size that every broker accepts.
TOO_LARGE = "metadata string too large"
METADATA_BYTES_MIN = 256


class KafkaOffsets:
    """A ``SharedCheckpointStore`` in the offsets of ``group_id``, for the partitions of ``topics`` or ``pattern``.

    ``metadata_bytes_max``: must be less than the brokers' ``offset.metadata.max.bytes``. Kafka does not stop a second
    run of the same source from using this group. Make sure that only one run uses it, or use a ZooKeeper group.
    """

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
        self.source = ""
        self._broker: Broker | None = None
        self._saved: dict[str, Ranges] = {}
        self._is_cut = False

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
        self._saved, self._is_cut = {}, False
        self._broker = Broker(self.connection)

    def close(self) -> None:
        if self._broker is not None:
            self._broker.close()
            self._broker = None

    def load(self) -> dict[str, Committed]:
        found = self._open_broker.partitions(self.topics)
        return self._load([At(topic, number) for topic, count in found.items() for number in range(count)])

    def load_partitions(self, partitions: Sequence[str]) -> dict[str, Committed]:
        return self._load([At.named(partition) for partition in partitions])

    def save(self, committed: Mapping[str, Committed]) -> None:
        changed = {name: each for name, each in committed.items() if self._saved.get(name) != each.done}
        why = self._commit(changed)
        while TOO_LARGE in why and self.metadata_bytes_max > METADATA_BYTES_MIN:
            self.metadata_bytes_max //= 2
            why = self._commit(changed)
        if why:
            raise CheckpointError(
                f"what is done could not be committed to {self} ({why}): check the brokers, and start again. Nothing"
                " is lost: what was committed before stands, and what was done since is read again"
            )
        self._saved |= {name: each.done for name, each in changed.items()}

    def _commit(self, committed: Mapping[str, Committed]) -> str:
        """Commit and wait. Returns why it could not be committed, or ""."""
        self._open_broker.commit({At.named(name): self._commit_of(each) for name, each in committed.items()})
        return self._open_broker.confirm(self.connection.timeout_s)

    def _load(self, partitions: Sequence[At]) -> dict[str, Committed]:
        try:
            commits = self._open_broker.committed(partitions)
        except CheckpointError:
            raise
        except SourceError as error:
            raise CheckpointError(f"{self} cannot be read: {error}") from None
        found = {at.name: self._own(at, commit) for at, commit in sorted(commits.items())}
        loaded = {name: each for name, each in found.items() if each is not None}
        self._saved |= {name: each.done for name, each in loaded.items()}
        return loaded

    def _own(self, at: At, commit: CommittedOffset) -> Committed | None:
        """Return what this source has committed for a partition; None if another writer committed it."""
        try:
            metadata = CommitMetadata.from_text(commit.metadata, commit.offset)
        except NewerVersion as error:
            raise CheckpointError(f"{self}: the commit of {at.name} has {error}") from None
        if metadata is None or metadata.source != self.source:
            return None
        return Committed(metadata.done, answered=metadata.answered)

    def _commit_of(self, committed: Committed) -> CommittedOffset:
        done = committed.done
        text = CommitMetadata(self.source, committer(), done, committed.answered).to_text(self.metadata_bytes_max)
        written = CommitMetadata.from_text(text, done.prefix)
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
        return CommittedOffset(done.prefix, text)

    @property
    def _open_broker(self) -> Broker:
        if self._broker is None:
            raise CheckpointError(f"{self} are not open")
        return self._broker
