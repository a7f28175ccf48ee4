"""The only access to Kafka: through confluent-kafka, which is built on librdkafka.

The library is set up so that it joins no group, commits nothing by itself, and reports a missing offset as an error
instead of jumping to another. Its errors become sentences with advice. A reader is kept for as long as its process
lives. This module knows offsets and messages, but not what is done or where a source begins. It can be imported without
the library; opening a connection then raises an error that names the extra.
"""

from __future__ import annotations

import logging
import os
import socket
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from operator import methodcaller
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from acker_client.extras import missing
from acker_client.source.errors import InputChanged, SourceError
from acker_client.source.kafka.names import At, KafkaConnection, Topics

log = logging.getLogger("acker_client.source.kafka")

# A planned range exists already, so waiting for more data, or for room in the queue, only costs time.
READING = {"fetch.wait.max.ms": 10, "fetch.queue.backoff.ms": 5, "fetch.error.backoff.ms": 100}
# The timeout of one poll for messages. A range with missing offsets waits this long.
LOOK_S = 0.05
# One poll takes at most this many messages (fewer at the beginning), with about this many bytes.
MESSAGES_MAX = 10_000
MESSAGES_FIRST = 250
BYTES_TOGETHER = 16 << 20
# Readers that a process keeps.
READERS_MAX = 4
# The pause between two tries of a request.
PAUSE_S = 0.05

EARLIEST, LATEST = -2, -1
# The metadata that a broker accepts by default: less than its offset.metadata.max.bytes of 4096.
METADATA_BYTES_MAX = 4095


# A key and a value, either of which may be None, and headers.
Message = tuple[bytes | None, bytes | None] | tuple[bytes | None, bytes | None, list[tuple[str, bytes]]]


class CommittedOffset(NamedTuple):
    """A group's commit for a partition: the next offset to read, and the metadata beside it."""

    offset: int
    metadata: str


class Unreachable(SourceError):
    """No broker has answered in time. It may answer again later."""


@dataclass(slots=True)
class Fetched:
    """Messages of one partition, ascending.

    ``offsets`` and ``timestamps_ms`` are int64[n]; a timestamp of -1 means none. ``keys``, ``values`` and ``headers``
    have n entries, each of which may be None. ``unreadable``: the reason by index.
    """

    offsets: npt.NDArray[np.int64]
    timestamps_ms: npt.NDArray[np.int64]
    keys: list[bytes | None]
    values: list[bytes | None]
    headers: list[list[tuple[str, bytes | None]] | None]
    unreadable: dict[int, str] = field(default_factory=dict)


class Gone(NamedTuple):
    """Offsets ``start`` up to ``stop`` existed when they were planned, but the log now begins later."""

    start: int
    stop: int


class Broker:
    """The driver's requests and commits to Kafka. Raises ``SourceError``; after ``Unreachable`` a retry may succeed."""

    def __init__(self, connection: KafkaConnection) -> None:
        self.connection = connection
        self._unconfirmed: dict[At, int] = {}
        self._failed = ""
        self._is_behind = False
        self._limit_s = connection.timeout_s
        self._trouble = ""
        # How long the library waits for an answer, and for pending commits when it is closed.
        answer_ms = int(1000 * min(60.0, max(2.0, connection.timeout_s)))
        settings = {"on_commit": self._on_commit, "socket.timeout.ms": answer_ms, "session.timeout.ms": answer_ms}
        self._consumer = _consumer(connection, self._note_trouble, **settings)

    def partitions(self, topics: Topics, timeout_s: float | None = None) -> dict[str, int]:
        """Return the number of partitions of each topic. Keys are topic names.

        Raises for a named topic that does not exist. With a pattern, topics that this user may not see are left out.
        """

        def ask(limit_s: float) -> dict[str, int]:
            return {name: count for each in topics.names or (None,) for name, count in self._list_topics(each, limit_s)}

        found: dict[str, int] = self._ask("the list of topics", ask, timeout_s)
        return {name: found[name] for name in (topics.names or sorted(found)) if topics.fits(name)}

    def offsets(self, partitions: Sequence[At], at: int, timeout_s: float | None = None) -> dict[At, int]:
        """Return, for each partition, the offset of the first record at or after ``at``, or the end if there is none.

        ``at``: Unix milliseconds, ``EARLIEST`` or ``LATEST``.
        """

        def ask(limit_s: float) -> dict[At, int]:
            asked = [library().TopicPartition(each.topic, each.number, at) for each in partitions]
            answered = self._consumer.offsets_for_times(asked, timeout=limit_s)
            return {self._at(each): each.offset for each in answered}

        found: dict[At, int] = self._ask("offsets", ask, timeout_s) if partitions else {}
        late = [partition for partition, offset in found.items() if offset < 0]
        return found | (self.offsets(late, LATEST, timeout_s) if late and at != LATEST else {})

    def committed(self, partitions: Sequence[At]) -> dict[At, CommittedOffset]:
        """Return what the group has committed. Partitions without a commit are left out."""

        def ask(limit_s: float) -> dict[At, CommittedOffset]:
            answered = self._consumer.committed([library().TopicPartition(*each) for each in partitions], limit_s)
            found = {self._at(each): CommittedOffset(each.offset, each.metadata or "") for each in answered}
            return {at: each for at, each in found.items() if each.offset >= 0}

        found: dict[At, CommittedOffset] = (
            self._ask(f"what group {self.connection.group!r} has committed", ask) if partitions else {}
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
        self._failed = ""
        try:
            self._consumer.commit(offsets=made, asynchronous=True)
        except library().KafkaException as error:
            self._note_failed(str(error.args[0].str()))
        self.serve()

    def confirm(self, timeout_s: float) -> str:
        """Wait until all commits have succeeded. Returns why one has not, or ""."""
        deadline_s = time.monotonic() + timeout_s
        while self._unconfirmed and not self._failed and time.monotonic() < deadline_s:
            self._consumer.poll(PAUSE_S)
        if not self._unconfirmed:
            return ""
        return self._failed or self._trouble or f"no answer in {timeout_s:g} s"

    def serve(self) -> None:
        """Run the library's callbacks for commits and connection errors."""
        self._consumer.poll(0)

    def close(self) -> None:
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
        """Return the answer of ``ask``; repeat it until the timeout if no broker can answer, as without a leader."""
        limit_s = self.connection.timeout_s if timeout_s is None else min(timeout_s, self.connection.timeout_s)
        deadline_s = time.monotonic() + limit_s
        self._limit_s = limit_s
        while True:
            try:
                return ask(max(PAUSE_S, deadline_s - time.monotonic()))
            except library().KafkaException as error:
                self.serve()
                failure = self._error(error.args[0], what)
                if not isinstance(failure, Unreachable) or time.monotonic() >= deadline_s:
                    raise failure from None
            except Unreachable:
                if time.monotonic() >= deadline_s:
                    raise
            time.sleep(PAUSE_S)

    def _error(self, error: Any, what: str) -> SourceError:
        return error_of(error, what, replace(self.connection, timeout_s=self._limit_s), self._trouble)

    def _note_trouble(self, error: Any) -> None:
        self._trouble = error.str()

    def _on_commit(self, error: Any, partitions: Sequence[Any]) -> None:
        """Take the result of a commit. The library calls it from ``poll``."""
        failed = [each.error for each in partitions if each.error is not None]
        if error is not None or failed:
            self._note_failed((error or failed[0]).str())
            return
        self._is_behind = False
        for each in partitions:
            at = At(each.topic, each.partition)
            if self._unconfirmed.get(at) == each.offset:
                del self._unconfirmed[at]

    def _note_failed(self, why: str) -> None:
        if not self._is_behind:
            log.warning(
                "offsets of group %r could not be committed to Kafka (%s): the lag that tools show is behind; the next"
                " commit makes up for it",
                self.connection.group,
                why,
            )
        self._is_behind, self._failed = True, why


class Reader:
    """Reads ranges of offsets, one after the other, without joining a group."""

    def __init__(self, connection: KafkaConnection) -> None:
        self.connection = connection
        self._trouble = ""
        self._reading: object = None
        self._consumer = _consumer(connection, self._note_trouble, **READING)

    def read(self, at: At, start: int, stop: int) -> Iterator[Fetched | Gone]:
        """Yield the messages at offsets ``start`` up to ``stop``, ascending. Missing offsets are left out.

        Raises ``InputChanged`` if the log ends before ``start``, ``Unreachable`` if nothing arrives within the timeout.
        """
        position, take = start, MESSAGES_FIRST
        waiting_since_s, mine = time.monotonic(), object()
        try:
            while position < stop:
                if self._reading is not mine:
                    # At the beginning, and if another range was read between two steps of this generator.
                    self._reading = mine
                    self._assign(at, position)
                messages = self._consumer.consume(min(stop - position, take), LOOK_S)
                before = position
                for found in self._separate_errors(at, messages, position, stop):
                    position = found.stop if isinstance(found, Gone) else int(found.offsets[-1]) + 1
                    if isinstance(found, Gone) or found.offsets[0] < stop:
                        yield found if isinstance(found, Gone) else _below(found, stop)
                    take = take if isinstance(found, Gone) else _next_take(found, take)
                position = max(position, self._end_of_log(messages))
                if position > before:
                    waiting_since_s = time.monotonic()
                elif time.monotonic() - waiting_since_s > self.connection.timeout_s:
                    raise self._stuck(at, position, stop)
        finally:
            if self._reading is mine:
                self._reading = None
                self._consumer.unassign()

    def close(self) -> None:
        self._consumer.close()

    def _assign(self, at: At, offset: int) -> None:
        self._consumer.assign([library().TopicPartition(at.topic, at.number, offset)])

    def _separate_errors(self, at: At, messages: Sequence[Any], position: int, stop: int) -> Iterator[Fetched | Gone]:
        """Yield the offsets from ``position`` on that were deleted, if any, and then the messages."""
        good = messages
        if any(map(_error_of, messages)):
            good = [message for message in messages if message.error() is None]
            for message in messages:
                if message.error() is not None:
                    gone = self._handle_error(at, message, position, stop)
                    if gone is not None:
                        yield gone
        if good:
            yield _fetched(good)

    def _end_of_log(self, messages: Sequence[Any]) -> int:
        """Return the end of the log (its last offset plus one) if the messages reach it; otherwise 0."""
        ends = (message for message in messages if message.error() is not None)
        return max((end.offset() for end in ends if end.error().code() == _codes()._PARTITION_EOF), default=0)

    def _handle_error(self, at: At, message: Any, position: int, stop: int) -> Gone | None:
        """Handle an error among messages. Returns the offsets that were deleted; None for an error that may pass.

        Raises ``SourceError`` for all other errors.
        """
        codes, error = _codes(), message.error()
        if error.code() in _damaged() and message.offset() < stop:
            # Without this check the library would skip these records silently.
            raise SourceError(
                f"Kafka: {at.name} cannot be read at offset {message.offset()} ({error.str()}): see to the broker's"
                " copy of it, and to what the library can decompress; what is not read is not done"
            )
        if error.code() in (codes._AUTO_OFFSET_RESET, codes.OFFSET_OUT_OF_RANGE):
            return self._out_of_range(at, position, stop)
        if error.code() in _forbidden():
            raise error_of(error, f"partition {at.name}", self.connection, self._trouble)
        if error.code() != codes._PARTITION_EOF:
            self._trouble = error.str()
        return None

    def _out_of_range(self, at: At, position: int, stop: int) -> Gone | None:
        try:
            low, high = self._consumer.get_watermark_offsets(
                library().TopicPartition(*at), timeout=self.connection.timeout_s
            )
        except library().KafkaException as error:
            self._trouble = error.args[0].str()
            self._assign(at, position)
            return None
        if high < position:
            raise InputChanged(ends_before(at, position, high))
        self._assign(at, max(low, position))
        return Gone(position, min(low, stop)) if low > position else None

    def _stuck(self, at: At, position: int, stop: int) -> SourceError:
        why = f" (last seen: {self._trouble})" if self._trouble else ""
        return Unreachable(
            f"Kafka gave nothing of {at.name} from offset {position}, where records up to {stop} were"
            f" planned, for {self.connection.timeout_s:g} s{why}: see to the brokers {self.connection.servers}"
        )

    def _note_trouble(self, error: Any) -> None:
        self._trouble = error.str()


class TopicWriter:
    """Writes messages to a topic, and waits until they are durable."""

    def __init__(self, connection: KafkaConnection) -> None:
        self.connection = connection
        self._trouble = ""
        settings = {
            "acks": "all",
            "enable.idempotence": True,
            "message.timeout.ms": int(connection.timeout_s * 1000),
            "error_cb": self._note_trouble,
            **connection.settings,
        }
        self._producer = _new_client(lambda: library().Producer(settings, logger=_Whisper()), connection)

    def check_topic(self, topic: str) -> None:
        """Check that the topic exists. Asking may create it, if brokers are set so. Raises ``SourceError``."""
        deadline_s = time.monotonic() + self.connection.timeout_s
        while (error := self._error_of_topic(topic)) is not None:
            # A topic that brokers create on request does not exist at once.
            if error.code() in _forbidden() or time.monotonic() > deadline_s:
                raise error_of(error, f"topic {topic!r}", self.connection, self._trouble)
            time.sleep(PAUSE_S)

    def write(self, topic: str, messages: Iterable[Message]) -> None:
        """Send messages in order, and return once all in-sync replicas have them. Raises ``SourceError``."""
        failed: list[Any] = []

        def delivered(error: Any, message: Any) -> None:
            if error is not None:
                failed.append(error)

        try:
            for message in messages:
                self._produce(topic, message, delivered)
        except BaseException:
            self._purge_unsent()
            raise
        left = self._producer.flush(self.connection.timeout_s + 1)
        if failed or left:
            self._purge_unsent()
            error = failed[0] if failed else library().KafkaError(_codes()._MSG_TIMED_OUT)
            raise error_of(error, f"topic {topic!r}", self.connection, self._trouble)

    def close(self) -> None:
        self._producer.flush(0)

    def _purge_unsent(self) -> None:
        """Drop messages that are not sent yet. They would arrive after their records were read again."""
        self._producer.purge()
        self._producer.flush(1)

    def _produce(self, topic: str, message: Message, delivered: Any) -> None:
        key, value, *headers = message
        while True:
            try:
                self._producer.produce(
                    topic, value, key, on_delivery=delivered, headers=headers[0] if headers else None
                )
            except BufferError:
                self._producer.poll(PAUSE_S)
            except library().KafkaException as error:
                raise error_of(error.args[0], f"topic {topic!r}", self.connection, self._trouble) from None
            else:
                self._producer.poll(0)
                return

    def _error_of_topic(self, topic: str) -> Any:
        try:
            return self._producer.list_topics(topic, timeout=self.connection.timeout_s).topics[topic].error
        except library().KafkaException as error:
            self._producer.poll(0)
            raise error_of(error.args[0], f"topic {topic!r}", self.connection, self._trouble) from None

    def _note_trouble(self, error: Any) -> None:
        self._trouble = error.str()


# Readers by process id: a worker that Spark forks must not use its parent's readers.
_readers: dict[tuple[int, KafkaConnection], Reader] = {}


def reader_of(connection: KafkaConnection) -> Reader:
    """Return the reader that this process keeps for a connection."""
    key = os.getpid(), connection
    if key not in _readers:
        mine = [other for other in _readers if other[0] == key[0]]
        for old in mine[: max(0, len(mine) - READERS_MAX + 1)]:
            _readers.pop(old).close()
        _readers[key] = Reader(connection)
    return _readers[key]


# Writers by process id, for the same reason.
_writers: dict[tuple[int, KafkaConnection], TopicWriter] = {}


def writer_of(connection: KafkaConnection) -> TopicWriter:
    """Return the writer that this process keeps for a connection."""
    key = os.getpid(), connection
    if key not in _writers:
        _writers[key] = TopicWriter(connection)
    return _writers[key]


def forget_writer(connection: KafkaConnection) -> None:
    """Forget the writer of a connection, so that the next :func:`writer_of` makes a new one."""
    _writers.pop((os.getpid(), connection), None)


def library() -> Any:
    """Import confluent-kafka. Raises ``ImportError`` with the extra to install."""
    try:
        import confluent_kafka
    except ImportError as error:
        raise missing("acker_client.source.Kafka", "kafka", error) from error
    return confluent_kafka


def committer() -> str:
    """Return the host and process that commits, for commit metadata."""
    return f"{socket.gethostname()}:{os.getpid()}"


def ends_before(at: At, position: int, end: int) -> str:
    """Return the error text for a log that is shorter than what was read of it."""
    return (
        f"Kafka: {at.name} was read up to offset {position}, and ends at {end} now: the topic was deleted"
        " and made anew, or has lost its end. To read it from its beginning give another source name and group_id, and"
        " no old checkpoint"
    )


def error_of(error: Any, what: str, connection: KafkaConnection, trouble: str) -> SourceError:
    """Turn an error of the library into a ``SourceError`` that says what to do."""
    codes, code = _codes(), error.code()
    why = f"{error.str()}; {trouble}" if trouble and trouble != error.str() else error.str()
    if code in _forbidden():
        return SourceError(f"Kafka: no permission for {what} ({why}): give this user the right to it, or see to config")
    if code == codes.UNKNOWN_TOPIC_OR_PART:
        return SourceError(f"Kafka: {what} does not exist at {connection.servers} ({why}): create it, or name another")
    if code in _passing():
        return Unreachable(
            f"Kafka: no broker at {connection.servers} has answered for {what} in {connection.timeout_s:g} s ({why}):"
            " see to bootstrap_servers, to the brokers, and to the security settings in config"
        )
    return SourceError(f"Kafka: {what}: {why}")


def _codes() -> Any:
    return library().KafkaError


def _forbidden() -> tuple[int, ...]:
    codes = _codes()
    return (
        codes.TOPIC_AUTHORIZATION_FAILED,
        codes.GROUP_AUTHORIZATION_FAILED,
        codes.CLUSTER_AUTHORIZATION_FAILED,
        codes.SASL_AUTHENTICATION_FAILED,
        codes._AUTHENTICATION,
    )


def _damaged() -> tuple[int, ...]:
    """Return the codes for records that exist but cannot be read: a wrong checksum, or an unknown compression."""
    codes = _codes()
    return codes._BAD_MSG, codes._BAD_COMPRESSION, codes._NOT_IMPLEMENTED


def _passing() -> tuple[int, ...]:
    codes = _codes()
    return (
        codes._TRANSPORT,
        codes._TIMED_OUT,
        codes._TIMED_OUT_QUEUE,
        codes._MSG_TIMED_OUT,
        codes._ALL_BROKERS_DOWN,
        codes._RESOLVE,
        codes._DESTROY,
        # The library's codes for a partition whose broker it has lost.
        codes._UNKNOWN_TOPIC,
        codes._UNKNOWN_PARTITION,
        codes._WAIT_COORD,
        codes.LEADER_NOT_AVAILABLE,
        codes.NOT_LEADER_FOR_PARTITION,
        codes.BROKER_NOT_AVAILABLE,
        codes.REPLICA_NOT_AVAILABLE,
        codes.REQUEST_TIMED_OUT,
        codes.NETWORK_EXCEPTION,
        codes.COORDINATOR_LOAD_IN_PROGRESS,
        codes.COORDINATOR_NOT_AVAILABLE,
        codes.NOT_COORDINATOR,
        codes.FENCED_LEADER_EPOCH,
        codes.UNKNOWN_LEADER_EPOCH,
        codes.OFFSET_NOT_AVAILABLE,
        codes.KAFKA_STORAGE_ERROR,
    )


class _Whisper:
    """The library's logger. Debug level only: important events also come as errors."""

    def log(self, level: int, text: str, *values: object) -> None:
        log.debug(text, *values)


def _consumer(connection: KafkaConnection, trouble_seen: Any, **more: Any) -> Any:
    settings = {
        "allow.auto.create.topics": False,
        **more,
        **connection.settings,
        "group.id": connection.group,
        "enable.auto.commit": False,
        "enable.auto.offset.store": False,
        "enable.partition.eof": True,
        "auto.offset.reset": "error",
        "error_cb": trouble_seen,
    }
    return _new_client(lambda: library().Consumer(settings, logger=_Whisper()), connection)


def _new_client(make: Any, connection: KafkaConnection) -> Any:
    try:
        return make()
    except library().KafkaException as error:
        raise SourceError(f"Kafka at {connection.servers}: {error.args[0].str()}: see to config") from None


_error_of = methodcaller("error")
_offset_of = methodcaller("offset")
_key_of = methodcaller("key")
_value_of = methodcaller("value")
_headers_of = methodcaller("headers")
_timestamp_of = methodcaller("timestamp")


def _fetched(messages: Sequence[Any]) -> Fetched:
    unreadable: dict[int, str] = {}
    try:
        headers = list(map(_headers_of, messages))
    except UnicodeDecodeError:
        headers = [_readable_headers(index, message, unreadable) for index, message in enumerate(messages)]
    offsets = np.fromiter(map(_offset_of, messages), np.int64, len(messages))
    times = np.fromiter((moment for _, moment in map(_timestamp_of, messages)), np.int64, len(messages))
    return Fetched(offsets, times, list(map(_key_of, messages)), list(map(_value_of, messages)), headers, unreadable)


def _readable_headers(index: int, message: Any, unreadable: dict[int, str]) -> Any:
    try:
        return message.headers()
    except UnicodeDecodeError as error:
        where = f"{message.topic()}:{message.partition()}:{message.offset()}"
        unreadable[index] = f"{where}: the name of a header is not UTF-8 ({error.reason})"
        return None


def _below(fetched: Fetched, stop: int) -> Fetched:
    """Return the messages below ``stop``."""
    count = int(np.searchsorted(fetched.offsets, stop))
    if count == len(fetched.offsets):
        return fetched
    unreadable = {index: reason for index, reason in fetched.unreadable.items() if index < count}
    return Fetched(
        fetched.offsets[:count],
        fetched.timestamps_ms[:count],
        fetched.keys[:count],
        fetched.values[:count],
        fetched.headers[:count],
        unreadable,
    )


def _next_take(fetched: Fetched, take: int) -> int:
    """Return how many messages the next poll takes, so that they are not too many bytes."""
    size = sum(map(len, filter(None, fetched.values))) // len(fetched.values) + 64
    return max(1, min(MESSAGES_MAX, BYTES_TOGETHER // size, 4 * take))
