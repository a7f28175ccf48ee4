"""TopicWriter: messages to a topic, which are durable when ``write`` returns.

Drops messages that were not sent in time, since their records are read again. A process keeps its writers.
Does not decide what is written.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterable
from typing import Any

from acker_client.source.kafka.connection import (
    PAUSE_S,
    error_of,
    is_forbidden,
    library,
    new_producer,
)
from acker_client.source.kafka.names import KafkaConnection
from acker_client.source.waiting import FIRST_REMINDER_S, Reminder

# A key and a value, either of which may be None, and headers.
Message = tuple[bytes | None, bytes | None] | tuple[bytes | None, bytes | None, list[tuple[str, bytes]]]


class TopicWriter:
    """Writes messages to a topic, and waits until they are durable."""

    def __init__(self, connection: KafkaConnection) -> None:
        self.connection = connection
        self._trouble = ""
        self._producer = new_producer(connection, self._note_trouble)

    def check_topic(self, topic: str) -> None:
        """Check that the topic exists. Asking may create it, if brokers are set so. Raises ``SourceError``."""
        deadline_s = time.monotonic() + self.connection.timeout_s
        while (error := self._error_of_topic(topic)) is not None:
            # A topic that brokers create on request does not exist at once.
            if is_forbidden(error) or time.monotonic() > deadline_s:
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
        left = self._flush(topic)
        if failed or left:
            self._purge_unsent()
            error = failed[0] if failed else library().KafkaError(library().KafkaError._MSG_TIMED_OUT)
            raise error_of(error, f"topic {topic!r}", self.connection, self._trouble)

    def close(self) -> None:
        self._producer.flush(0)

    def _flush(self, topic: str) -> int:
        """Wait until all messages are delivered or have failed. Returns the number of messages that are left."""
        deadline_s = time.monotonic() + self.connection.timeout_s + 1
        reminder = Reminder(f"room in topic {topic!r} of Kafka at {self.connection.servers}")
        while left := self._producer.flush(min(FIRST_REMINDER_S, max(0.0, deadline_s - time.monotonic()))):
            if time.monotonic() >= deadline_s:
                break
            reminder.remind(self._trouble)
        return int(left)

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


# Writers by process id: a worker that Spark forks must not use the writers of its parent.
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
