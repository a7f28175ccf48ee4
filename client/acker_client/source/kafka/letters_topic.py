"""Dead letters in a Kafka topic. All in-sync replicas have a letter before its record counts as done.

A message is the same line of JSON as in a file of dead letters. Its key is the origin of the record. A source that
dies right after a write may write the same letters again, so a letter is written at least once.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from acker_client.source.errors import SourceError
from acker_client.source.kafka.connection import library
from acker_client.source.kafka.names import KafkaConnection
from acker_client.source.kafka.topic_writer import TopicWriter
from acker_client.source.records.dead_letter import DeadLetter

# The default of message.max.bytes, and the room for all parts of a message other than its key and value.
MESSAGE_BYTES_MAX = 1_000_000
AROUND_BYTES = 1024
# The origin contains the record's own key, which may be as large as a message.
KEY_BYTES_MAX = 4096


class KafkaTopic:
    """A topic as a ``DeadLetterStore``: ``dead_letters=KafkaTopic("orders.dead", bootstrap_servers=...)``.

    ``config``: settings of librdkafka (TLS, SASL, ``compression.type``). A value that does not fit into
    ``message.max.bytes`` is cut, and ``bytes`` holds its original length. ``timeout_s``: how long to wait for brokers.
    Needs the extra ``kafka``.
    """

    def __init__(
        self,
        topic: str,
        *,
        bootstrap_servers: str | Iterable[str],
        timeout_s: float = 60.0,
        config: Mapping[str, Any] | None = None,
    ) -> None:
        library()
        if not isinstance(topic, str) or not topic:
            raise ValueError(f"topic={topic!r}: name the topic of dead letters")
        self.topic = topic
        self.connection = KafkaConnection.of(bootstrap_servers, "dead-letters", config, timeout_s)
        self._message_bytes_max = int((config or {}).get("message.max.bytes", MESSAGE_BYTES_MAX))
        self._writer: TopicWriter | None = None

    def __str__(self) -> str:
        return f"topic {self.topic!r} at {self.connection.servers}"

    def open(self) -> None:
        self._open_writer()

    def write(self, letters: Iterable[DeadLetter]) -> None:
        """Send ``letters`` and return when they are durable. Raises :class:`SourceError` if that fails."""
        try:
            self._open_writer().write(self.topic, (self._message(letter) for letter in letters))
        except SourceError as error:
            # After a failed write the producer drops its messages, and may drop the next ones too. Use a new one.
            self._writer = None
            raise SourceError(
                f"dead letters cannot be written to {self}: {error}. Nothing is lost: their records are not done, and"
                " are read again at the next start"
            ) from None

    def close(self) -> None:
        if self._writer is not None:
            self._writer.close()
            self._writer = None

    def _open_writer(self) -> TopicWriter:
        if self._writer is None:
            writer = TopicWriter(self.connection)
            writer.check_topic(self.topic)
            self._writer = writer
        return self._writer

    def _message(self, letter: DeadLetter) -> tuple[bytes, bytes]:
        key = ":".join(str(part) for part in letter.origin.values()).encode(errors="surrogatepass")[:KEY_BYTES_MAX]
        text = _bytes_of(letter)
        room = max(0, self._message_bytes_max - len(key) - AROUND_BYTES)
        # JSON escapes need extra room, so cut again until the text fits.
        kept = room
        while len(text) > room and kept:
            text, kept = _bytes_of(_shortened(letter, kept)), kept // 2
        return key, text


def _bytes_of(letter: DeadLetter) -> bytes:
    return letter.to_json().encode(errors="surrogatepass")


def _shortened(letter: DeadLetter, bytes_max: int) -> DeadLetter:
    """Return the letter with the first ``bytes_max`` bytes of its value, and the original length in its origin."""
    whole = letter.value if isinstance(letter.value, bytes) else json.dumps(letter.value, ensure_ascii=False).encode()
    return replace(letter, origin={**letter.origin, "bytes": len(whole)}, value=whole[:bytes_max])
