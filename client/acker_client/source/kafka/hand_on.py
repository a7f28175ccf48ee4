"""The sink that hands records and their trees to another job, through a Kafka topic."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from acker_client.source.errors import SourceError
from acker_client.source.kafka.connection import library
from acker_client.source.kafka.names import KafkaConnection
from acker_client.source.kafka.topic_writer import Message, forget_writer, writer_of

if TYPE_CHECKING:
    from acker_client.spark.operators.hand_on import HandOn


def hand_on(
    topic: str,
    *,
    bootstrap_servers: str | Iterable[str],
    key: str | None = None,
    value: str = "value",
    timeout_s: float = 60.0,
    config: Mapping[str, Any] | None = None,
) -> HandOn:
    """Return a sink that writes each row to ``topic`` and hands its tree on: ``hand_on("orders", ...)(batch.df)``.

    The row is ACKED when the source that reads the topic, ``Kafka(..., acks_upstream=True)``, has ACKED the message. It
    fails when that source gives the message up. If neither happens within ``message_timeout_s``, the row is replayed.
    Set this option and ``held=False`` on the source of the row. A message may be written more than once. ``key``,
    ``value``: columns of type string or binary. ``config``: settings of librdkafka. ``timeout_s``: how long to wait for
    brokers before the task fails. Needs the extra ``kafka``.
    """
    library()
    if not isinstance(topic, str) or not topic:
        raise ValueError(f"topic={topic!r}: name the topic to hand records on to")
    from acker_client.spark.operators.hand_on import HandOn

    connection = KafkaConnection.of(bootstrap_servers, "hand-on", config, timeout_s)
    connection.check_acks()
    return HandOn(TopicMessages(topic, connection), key, value)


@dataclass(frozen=True, slots=True)
class TopicMessages:
    """A topic as the destination of messages. Uses the writer that the process keeps."""

    topic: str
    connection: KafkaConnection

    def __str__(self) -> str:
        return f"{self.topic} at {self.connection.servers}"

    def write(self, messages: Iterable[Message]) -> None:
        """Write the messages in order. On return every in-sync replica has them. Raises ``SourceError``."""
        try:
            writer_of(self.connection).write(self.topic, messages)
        except SourceError:
            # An idempotent producer may be unusable after an error, and Spark's Python workers live long.
            forget_writer(self.connection)
            raise
