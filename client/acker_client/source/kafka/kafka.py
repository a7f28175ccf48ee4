"""Kafka: the source whose records are those of Kafka's topics."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from datetime import datetime
from typing import Any, Literal, Unpack

from acker_client.source.engine.given import options_of
from acker_client.source.engine.options import CommonOptions
from acker_client.source.engine.source import Source
from acker_client.source.kafka.connection import library
from acker_client.source.kafka.input import FIRST_POLLS, KafkaInput, KafkaOptions
from acker_client.source.kafka.letters_topic import KafkaTopic
from acker_client.source.kafka.names import KafkaConnection, Topics, milliseconds
from acker_client.source.kafka.offset_store import KafkaOffsets
from acker_client.source.kafka.slices import COLUMNS
from acker_client.source.records.guarantee import Guarantee
from acker_client.source.records.input import Input


class Kafka(Source):
    """Records of Kafka's topics as a source, in the columns ``key binary, value binary, topic string, partition int,
    offset bigint, timestamp timestamp, headers array<struct<key: string, value: binary>>``. Needs the extra ``kafka``.

    ``topics``: a topic, or several; or ``pattern``, a regular expression that a topic's whole name fits. Partitions and
    topics that turn up while it runs are looked for every ``refresh_s`` and read from their beginning.
    ``bootstrap_servers``: "host:port", or several. ``group_id`` (default: the source's name): the name under which
    offsets are committed to Kafka, so that tools which watch lag see it; no group of Kafka's is joined. ``first_poll``:
    where a partition begins of which nothing is done: "earliest", "latest" (what is committed counts only if it was
    this source), "uncommitted_earliest", "uncommitted_latest" (whoever committed), or a ``datetime``: at the first
    record of that time. ``null_values``: "emit", or "skip" records that have no value. ``stop``: "end" ends the run at
    what there is when it starts; None follows for ever. ``acks_upstream``: a record that another job has handed on (see
    ``hand_on``) is acked there once it is ACKED here, and fails there when it is given up here; for that its headers
    are read once more, in the driver. Both jobs need the same servers of the acker. ``timeout_s``: how long a broker is
    waited for. ``config``: settings of librdkafka (TLS, SASL and so on).

    ``checkpoint`` may be "kafka": what is done is kept in the group's offsets, holes in their metadata as far as they
    fit. Without a checkpoint, too, a start goes on from what this source has committed, and reads again what was done
    beyond it; with ``guarantee="at_most_once"`` "kafka" is then the default. Other ``options``: see ``CommonOptions``.
    """

    def __init__(
        self,
        topics: str | Iterable[str] | None = None,
        *,
        bootstrap_servers: str | Iterable[str],
        pattern: str | None = None,
        group_id: str | None = None,
        first_poll: str | datetime = "uncommitted_earliest",
        null_values: Literal["emit", "skip"] = "emit",
        stop: Literal["end"] | None = None,
        acks_upstream: bool = False,
        refresh_s: float = 2.0,
        timeout_s: float = 60.0,
        config: Mapping[str, Any] | None = None,
        **options: Unpack[CommonOptions],
    ) -> None:
        library()
        is_in_kafka = options.get("checkpoint") == "kafka"
        if is_in_kafka:
            options["checkpoint"] = None
        super().__init__(options_of(Kafka, options))
        # A start goes on from what is committed anyway; at most once that has to be there before anything is emitted.
        is_early = self.options.guarantee is Guarantee.AT_MOST_ONCE
        is_in_kafka = is_in_kafka or (is_early and self.options.checkpoint is None)
        wanted = Topics.of(topics, pattern)
        connection = KafkaConnection.of(
            bootstrap_servers, self.options.name if group_id is None else group_id, config, timeout_s
        )
        if is_in_kafka:
            self.options = replace(self.options, checkpoint=KafkaOffsets.of(wanted, connection))
        letters = self.options.dead_letters
        if isinstance(letters, KafkaTopic) and wanted.fits(letters.topic):
            raise ValueError(f"dead_letters: topic {letters.topic!r} is read by this source: keep it out of {wanted}")
        _check_option("null_values", null_values, ("emit", "skip"))
        _check_option("stop", stop, (None, "end"))
        if not self.options.held and null_values == "skip":
            raise ValueError("null_values='skip' with held=False: what is left out would be LOST; use where() instead")
        if isinstance(first_poll, datetime):
            milliseconds(first_poll)
        else:
            _check_option("first_poll", first_poll, FIRST_POLLS)
        if not 0 < refresh_s < float("inf"):
            raise ValueError(f"refresh_s={refresh_s}: give seconds, above 0")
        self.kafka = KafkaOptions(
            source=self.options.name,
            connection=connection,
            topics=wanted,
            first_poll=first_poll,
            skips_null=null_values == "skip",
            stops_at_end=stop == "end",
            refresh_s=refresh_s,
            acks_upstream=acks_upstream,
            commits=not isinstance(self.options.checkpoint, KafkaOffsets),
        )

    def input(self) -> tuple[Input[Any], Any]:
        return KafkaInput(self.kafka), COLUMNS


def _check_option(option: str, value: object, known: tuple[object, ...]) -> None:
    if value not in known:
        raise ValueError(f"{option}={value!r}: give one of {', '.join(map(repr, known))}")
