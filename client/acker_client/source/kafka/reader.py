"""Reader: the messages of one partition at a range of offsets.

Decides how many messages one poll takes, which missing offsets count as deleted, and when a range that does not arrive
is an error. Up to READERS_MAX readers are kept together. A reader never commits, and does not decide which offsets are
read.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from operator import methodcaller
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from acker_client.source.errors import InputChanged, SourceError
from acker_client.source.kafka.connection import (
    Unreachable,
    error_of,
    is_forbidden,
    library,
    new_consumer,
)
from acker_client.source.kafka.names import At, KafkaConnection
from acker_client.source.waiting import Reminder

# A planned range exists already, so waiting for more data, or for room in the queue, only costs time.
READING = {"fetch.wait.max.ms": 10, "fetch.queue.backoff.ms": 5, "fetch.error.backoff.ms": 100}
# The timeout of one poll for messages. A range with missing offsets waits this long.
LOOK_S = 0.05
# One poll takes at most this many messages (fewer at the beginning), with about this many bytes.
MESSAGES_MAX = 10_000
MESSAGES_FIRST = 250
BYTES_TOGETHER = 16 << 20
# Readers that are kept together.
READERS_MAX = 4


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


class Reader:
    """Reads ranges of offsets, one after the other, without joining a group. ``clock``: for tests."""

    def __init__(self, connection: KafkaConnection, clock: Callable[[], float] = time.monotonic) -> None:
        self.connection = connection
        self._clock = clock
        self._trouble = ""
        self._reading: object = None
        self._consumer = new_consumer(connection, self._note_trouble, **READING)

    def read(self, at: At, start: int, stop: int) -> Iterator[Fetched | Gone]:
        """Yield the messages at offsets ``start`` up to ``stop``, ascending. Missing offsets are left out.

        Raises ``InputChanged`` if the log ends before ``start``, ``Unreachable`` if nothing arrives within the timeout.
        """
        position, take = start, MESSAGES_FIRST
        waiting_since_s, mine = self._clock(), object()
        reminder = Reminder(f"{at.name} from Kafka at {self.connection.servers}", clock=self._clock)
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
                    waiting_since_s = self._clock()
                    reminder.restart()
                elif self._clock() - waiting_since_s > self.connection.timeout_s:
                    raise self._stuck(at, position, stop)
                else:
                    reminder.remind(self._trouble)
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
        end_code = library().KafkaError._PARTITION_EOF
        ends = (message for message in messages if message.error() is not None and message.error().code() == end_code)
        return max((end.offset() for end in ends), default=0)

    def _handle_error(self, at: At, message: Any, position: int, stop: int) -> Gone | None:
        """Handle an error among messages. Returns the offsets that were deleted; None for an error that may pass.

        Raises ``SourceError`` for all other errors.
        """
        codes, error = library().KafkaError, message.error()
        if error.code() in _damaged() and message.offset() < stop:
            # Without this check the library would skip these records silently.
            raise SourceError(
                f"Kafka: {at.name} cannot be read at offset {message.offset()} ({error.str()}): check the broker's"
                " copy of it, and the codecs that the library has; records that were not read are not done"
            )
        if error.code() in (codes._AUTO_OFFSET_RESET, codes.OFFSET_OUT_OF_RANGE):
            return self._out_of_range(at, position, stop)
        if is_forbidden(error):
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
            f" planned, for {self.connection.timeout_s:g} s{why}: check the brokers {self.connection.servers}"
        )

    def _note_trouble(self, error: Any) -> None:
        self._trouble = error.str()


class Readers:
    """Up to READERS_MAX readers, one for each connection. Not thread-safe."""

    def __init__(self) -> None:
        # By process id, because a worker that Spark forks must not use the readers of its parent.
        self._kept: dict[tuple[int, KafkaConnection], Reader] = {}

    def of(self, connection: KafkaConnection) -> Reader:
        key, kept = (os.getpid(), connection), self._kept
        if key not in kept:
            mine = [other for other in kept if other[0] == key[0]]
            for old in mine[: max(0, len(mine) - READERS_MAX + 1)]:
                kept.pop(old).close()
            kept[key] = Reader(connection)
        return kept[key]

    def close(self) -> None:
        while self._kept:
            _, reader = self._kept.popitem()
            reader.close()


# The readers that a worker of Spark keeps from task to task.
_of_worker = Readers()


def reader_of(connection: KafkaConnection) -> Reader:
    """Return the reader that this worker keeps for a connection. The driver has readers for each source."""
    return _of_worker.of(connection)


def ends_before(at: At, position: int, end: int) -> str:
    """Return the error text for a log that ends below offsets that were already read."""
    return (
        f"Kafka: {at.name} was read up to offset {position}, and ends at {end} now: the topic was deleted"
        " and created again, or its last records are lost. To read it from its beginning give another source name and"
        " group_id, and no old checkpoint"
    )


def _damaged() -> tuple[int, ...]:
    """Return the codes for records that exist but cannot be read: a wrong checksum, or an unknown compression."""
    codes = library().KafkaError
    return codes._BAD_MSG, codes._BAD_COMPRESSION, codes._NOT_IMPLEMENTED


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
