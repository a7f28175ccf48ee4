"""Dead letters, or outcomes, in a Kafka topic. All in-sync replicas have one before its record counts as done.

A letter is the same line of JSON as in a file of dead letters. Its key is the origin of the record. A letter that does
not fit into a message becomes several, each with a part of the value, so that nothing of the record is lost. An outcome
is a line of JSON whose key is the record's own, or else its origin. A source that dies right after a write may write
the same messages again, so each is written at least once.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from itertools import chain, islice
from typing import Any

from acker_client.source.errors import SourceError
from acker_client.source.kafka.connection import library
from acker_client.source.kafka.names import KafkaConnection
from acker_client.source.kafka.topic_writer import TopicWriter
from acker_client.source.records.dead_letter import NOTHING_LOST, VALUE_BYTES_MAX, DeadLetter
from acker_client.source.records.outcome import RecordOutcome

# The default of message.max.bytes, and the room for all parts of a message other than its key and value.
MESSAGE_BYTES_MAX = 1_000_000
AROUND_BYTES = 1024
# The origin contains the record's own key, which may be as large as a message.
KEY_BYTES_MAX = 4096
# A letter is not cut if the rest of it leaves less room than this for the value.
PART_BYTES_MIN = 4096


class KafkaTopic:
    """A topic for dead letters or outcomes: ``dead_letters=KafkaTopic("orders.dead", bootstrap_servers=...)``,
    ``outcomes=KafkaTopic("orders.outcomes", bootstrap_servers=...)``.

    ``config``: settings of librdkafka (TLS, SASL, ``compression.type``). A value that does not fit into
    ``message.max.bytes`` comes in several letters of the same key: ``bytes`` holds its whole length, and ``from_byte``
    where the part begins in all but the first. ``timeout_s``: how long to wait for brokers. Needs the extra ``kafka``.
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
            raise ValueError(f"topic={topic!r}: name the topic")
        self.topic = topic
        self.connection = KafkaConnection.of(bootstrap_servers, "dead-letters", config, timeout_s)
        self.connection.check_acks()
        self._message_bytes_max = int((config or {}).get("message.max.bytes", MESSAGE_BYTES_MAX))
        self._writer: TopicWriter | None = None

    def __str__(self) -> str:
        return f"topic {self.topic!r} at {self.connection.servers}"

    def open(self) -> None:
        self._open_writer()

    def write(self, written: Iterable[DeadLetter] | Iterable[RecordOutcome]) -> None:
        """Send letters, or outcomes, and return when they are durable. Raises :class:`SourceError` if that fails."""
        rows: Iterator[DeadLetter | RecordOutcome] = iter(written)
        first = list(islice(rows, 1))
        what = "outcomes" if first and isinstance(first[0], RecordOutcome) else "dead letters"

        def messages() -> Iterator[tuple[bytes, bytes]]:
            for each in chain(first, rows):
                if isinstance(each, DeadLetter):
                    yield from self._messages(each)
                else:
                    yield _key_of(each), _encoded(each.to_json())

        try:
            self._open_writer().write(self.topic, messages())
        except SourceError as error:
            # After a failed write the producer drops its messages, and may drop the next ones too. Use a new one.
            self._writer = None
            raise SourceError(f"{what} cannot be written to {self}: {error}. {NOTHING_LOST}") from None

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

    def _messages(self, letter: DeadLetter) -> Iterator[tuple[bytes, bytes]]:
        """Yield the letter as one message, or as several, each with a part of the value."""
        key = _encoded(":".join(str(part) for part in letter.origin.values()))[:KEY_BYTES_MAX]
        room = self._message_bytes_max - len(key) - AROUND_BYTES
        text, value = _bytes_of(letter), _value_of(letter)
        is_whole = len(text) <= room and len(value) <= VALUE_BYTES_MAX
        if is_whole or room - len(_bytes_of(replace(letter, value=b""))) < PART_BYTES_MIN:
            yield key, text  # a text without room for the value is refused: nothing is lost
            return
        start, first = 0, replace(letter, value_bytes=letter.value_bytes or len(value))
        rest = replace(first, schema="", columns=None)
        while start < len(value):
            part = replace(rest, origin={**letter.origin, "from_byte": start}) if start else first
            count = min(room, VALUE_BYTES_MAX)
            # JSON escapes need extra room, so cut again until the text fits.
            while len(text := _bytes_of(replace(part, value=value[start : start + count]))) > room:
                count //= 2
            yield key, text
            start += count


def _key_of(outcome: RecordOutcome) -> bytes:
    """Return the record's own key as it was, so that the outcomes of a key stay in order; without one, its origin."""
    key = outcome.key
    if isinstance(key, Mapping):
        return base64.b64decode(key["base64"])
    return _encoded(outcome.where if key is None else str(key))


def _bytes_of(letter: DeadLetter) -> bytes:
    return _encoded(letter.to_json())


def _encoded(text: str) -> bytes:
    return text.encode(errors="surrogatepass")


def _value_of(letter: DeadLetter) -> bytes:
    """Return the bytes of the value; of columns, those of their JSON."""
    if isinstance(letter.value, Mapping):
        return json.dumps(dict(letter.value), ensure_ascii=False).encode(errors="surrogatepass")
    return letter.value or b""
