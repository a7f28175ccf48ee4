"""Broker: the driver's requests to Kafka, and the commits of a consumer group.

Decides how long a request is repeated, and when a commit counts as failed. Never reads a message, and does not decide
what is done or where a source begins. The ids of topics come from the library's admin client, since its consumer does
not show them. Brokers before Kafka 2.8 have none.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import replace
from typing import Any, NamedTuple

from acker_client.source.errors import SourceError
from acker_client.source.kafka.connection import (
    PAUSE_S,
    Unreachable,
    error_of,
    library,
    new_admin,
    new_consumer,
)
from acker_client.source.kafka.names import At, KafkaConnection, Topics
from acker_client.source.waiting import FIRST_REMINDER_S, Reminder

log = logging.getLogger("acker_client.source.kafka")

EARLIEST, LATEST = -2, -1
# The maximum size of a commit's metadata. It is below a broker's default limit (offset.metadata.max.bytes: 4096).
METADATA_BYTES_MAX = 4095
# How long a broker may take to say the ids of topics.
TOPIC_IDS_S = 5.0
# An error names this many topics.
TOPICS_SHOWN = 5


class CommittedOffset(NamedTuple):
    """A group's commit for a partition: the next offset to read, and the metadata beside it."""

    offset: int
    metadata: str


class Broker:
    """The driver's requests and commits to Kafka. Raises ``SourceError``; after ``Unreachable`` a retry may succeed."""

    def __init__(self, connection: KafkaConnection) -> None:
        self.connection = connection
        self._unconfirmed: dict[At, int] = {}
        self._failed = ""
        self._is_refused = self._is_behind = False
        self._limit_s = connection.timeout_s
        self._trouble = ""
        self._admin: Any = None
        self._asked: dict[str, Future[Any]] = {}
        # How long the library waits for an answer, and for pending commits when it is closed.
        answer_ms = int(1000 * min(60.0, max(2.0, connection.timeout_s)))
        settings = {"on_commit": self._on_commit, "socket.timeout.ms": answer_ms, "session.timeout.ms": answer_ms}
        self._consumer = new_consumer(connection, self._note_trouble, **settings)

    def partitions(self, topics: Topics, timeout_s: float | None = None) -> dict[str, int]:
        """Return the number of partitions of each topic, by name.

        Raises for a named topic that does not exist. With a pattern, topics that this user may not see are left out.
        """

        def ask(limit_s: float) -> dict[str, int]:
            return {name: count for each in topics.names or (None,) for name, count in self._list_topics(each, limit_s)}

        found: dict[str, int] = self._ask("the list of topics", ask, timeout_s)
        return {name: found[name] for name in (topics.names or sorted(found)) if topics.fits(name)}

    def offsets(
        self, partitions: Sequence[At], at: int, timeout_s: float | None = None, *, some: bool = False
    ) -> dict[At, int]:
        """Return, for each partition, the offset of the first record at or after ``at``, or the end if there is none.

        ``at``: Unix milliseconds, ``EARLIEST`` or ``LATEST``. ``some``: leave out partitions without a leader, unless
        none has one.
        """

        def ask(limit_s: float) -> dict[At, int]:
            asked = [library().TopicPartition(each.topic, each.number, at) for each in partitions]
            found: dict[At, int] = {}
            failure: Unreachable | None = None
            for each in self._consumer.offsets_for_times(asked, timeout=limit_s):
                try:
                    found[self._at(each)] = each.offset
                except Unreachable as error:
                    failure = error
            if failure is not None and not (some and found):
                raise failure
            return found

        what = f"the offsets of {_topics_of(partitions)}"
        found: dict[At, int] = self._ask(what, ask, timeout_s) if partitions else {}
        late = [partition for partition, offset in found.items() if offset < 0]
        return found | (self.offsets(late, LATEST, timeout_s, some=some) if late and at != LATEST else {})

    def topic_ids(self, topics: Collection[str], wait_s: float = 0.0) -> dict[str, str]:
        """Return the ids of topics that brokers have said since the last call, and ask for those of ``topics``.

        Waits up to ``wait_s`` for an answer. Leaves out topics without an id.
        """
        if topics and not self._asked:
            self._admin = self._admin or new_admin(self.connection)
            self._asked = self._admin.describe_topics(
                library().TopicCollection(list(topics)), request_timeout=TOPIC_IDS_S
            )
        deadline_s = time.monotonic() + wait_s
        found = {topic: _id_of(answer, deadline_s - time.monotonic()) for topic, answer in self._asked.items()}
        if all(answer.done() for answer in self._asked.values()):
            self._asked = {}
        return {topic: id_ for topic, id_ in found.items() if id_}

    def committed(self, partitions: Sequence[At], timeout_s: float | None = None) -> dict[At, CommittedOffset]:
        """Return what the group has committed. Partitions without a commit are left out."""

        def ask(limit_s: float) -> dict[At, CommittedOffset]:
            answered = self._consumer.committed([library().TopicPartition(*each) for each in partitions], limit_s)
            found = {self._at(each): CommittedOffset(each.offset, each.metadata or "") for each in answered}
            return {at: each for at, each in found.items() if each.offset >= 0}

        found: dict[At, CommittedOffset] = (
            self._ask(f"what group {self.connection.group!r} has committed", ask, timeout_s) if partitions else {}
        )
        return found

    def commit(self, offsets: Mapping[At, CommittedOffset]) -> None:
        """Begin to commit; ``confirm`` waits for it. Logs the first failure, and no more until a commit succeeds."""
        if not offsets:
            return
        made = [
            library().TopicPartition(at.topic, at.number, each.offset, each.metadata) for at, each in offsets.items()
        ]
        self._unconfirmed |= {at: each.offset for at, each in offsets.items()}
        self._failed, self._is_refused = "", False
        try:
            self._consumer.commit(offsets=made, asynchronous=True)
        except library().KafkaException as error:
            self._note_failed(error.args[0])
        self.serve()

    def confirm(self, timeout_s: float) -> str:
        """Wait until all commits have succeeded. Returns "", or the reason why a commit has not succeeded."""
        deadline_s = time.monotonic() + timeout_s
        reminder = Reminder(f"the commits of group {self.connection.group!r} to Kafka at {self.connection.servers}")
        while self._unconfirmed and not self._failed and time.monotonic() < deadline_s:
            self._consumer.poll(PAUSE_S)
            reminder.remind(self._trouble)
        if not self._unconfirmed:
            return ""
        return self._failed or self._trouble or f"no answer in {timeout_s:g} s"

    def failure(self, why: str) -> SourceError:
        """Return the error for a reason that ``confirm`` has returned: ``Unreachable`` unless a broker has refused."""
        return (SourceError if self._is_refused else Unreachable)(why)

    def forget_commits(self, partitions: Iterable[At]) -> None:
        """No longer wait for the commits of these partitions, which this source does not read any more."""
        for at in partitions:
            self._unconfirmed.pop(at, None)

    def serve(self) -> None:
        """Run the library's callbacks for commits and connection errors."""
        self._consumer.poll(0)

    def close(self) -> None:
        self._asked, self._admin = {}, None
        self._consumer.close()

    def _at(self, answered: Any) -> At:
        """Return the partition of an answer. Raises if the answer is an error."""
        at = At(answered.topic, answered.partition)
        if answered.error is not None:
            raise self._error(answered.error, f"partition {at.name}")
        return at

    def _list_topics(self, name: str | None, timeout_s: float) -> Iterator[tuple[str, int]]:
        for topic, metadata in self._consumer.list_topics(name, timeout=timeout_s).topics.items():
            if name is not None and metadata.error is not None:
                raise self._error(metadata.error, f"topic {topic!r}")
            if metadata.error is None:
                yield topic, len(metadata.partitions)

    def _ask(self, what: str, ask: Callable[[float], Any], timeout_s: float | None = None) -> Any:
        """Return the answer of ``ask``. Repeats it until the timeout while no broker can answer (no leader)."""
        limit_s = self.connection.timeout_s if timeout_s is None else min(timeout_s, self.connection.timeout_s)
        deadline_s = time.monotonic() + limit_s
        self._limit_s = limit_s
        reminder = Reminder(f"{what} from Kafka at {self.connection.servers}")
        while True:
            try:
                return ask(min(FIRST_REMINDER_S, max(PAUSE_S, deadline_s - time.monotonic())))
            except library().KafkaException as error:
                self.serve()
                failure = self._error(error.args[0], what)
                if not isinstance(failure, Unreachable) or time.monotonic() >= deadline_s:
                    raise failure from None
            except Unreachable:
                if time.monotonic() >= deadline_s:
                    raise
            reminder.remind(self._trouble)
            time.sleep(PAUSE_S)

    def _error(self, error: Any, what: str) -> SourceError:
        return error_of(error, what, replace(self.connection, timeout_s=self._limit_s), self._trouble)

    def _note_trouble(self, error: Any) -> None:
        self._trouble = error.str()

    def _on_commit(self, error: Any, partitions: Sequence[Any]) -> None:
        """Take the result of a commit. The library calls it from ``poll``."""
        failed = [each.error for each in partitions if each.error is not None]
        if error is not None or failed:
            self._note_failed(error or failed[0])
            return
        self._is_behind = False
        for each in partitions:
            at = At(each.topic, each.partition)
            if self._unconfirmed.get(at) == each.offset:
                del self._unconfirmed[at]

    def _note_failed(self, error: Any) -> None:
        why = str(error.str())
        if not self._is_behind:
            log.warning(
                "offsets of group %r could not be committed to Kafka (%s): the lag that tools show is behind; the next"
                " commit makes up for it",
                self.connection.group,
                why,
            )
        self._is_behind, self._failed = True, why
        self._is_refused = not isinstance(self._error(error, "the commits"), Unreachable)


def _topics_of(partitions: Sequence[At]) -> str:
    """Name the topics of some partitions for an error."""
    topics = sorted({at.topic for at in partitions})
    shown = ", ".join(map(repr, topics[:TOPICS_SHOWN])) + (" ..." if len(topics) > TOPICS_SHOWN else "")
    return f"topic {shown}" if len(topics) == 1 else f"topics {shown}"


def _id_of(answer: Future[Any], wait_s: float) -> str:
    """Return the id in a description of a topic; "" if there is no answer, no topic, or no id."""
    try:
        id_ = answer.result(max(0.0, wait_s)).topic_id
    except (TimeoutError, library().KafkaException):
        return ""
    return str(id_) if id_.get_most_significant_bits() or id_.get_least_significant_bits() else ""
