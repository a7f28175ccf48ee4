"""The source whose records come from Kafka topics."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from datetime import datetime
from typing import Any, Literal, Unpack

from acker_client.source.engine.environment import arrow_schema, spark_schema
from acker_client.source.engine.given import options_of
from acker_client.source.engine.options import CommonOptions, Options, check_order
from acker_client.source.engine.source import Source
from acker_client.source.kafka.bounds import NO_BOUNDS, Bound, OffsetBounds
from acker_client.source.kafka.connection import library
from acker_client.source.kafka.decoder import deserializer
from acker_client.source.kafka.input import FIRST_POLLS, KafkaInput, KafkaOptions
from acker_client.source.kafka.letters_topic import KafkaTopic
from acker_client.source.kafka.names import KafkaConnection, Topics, milliseconds
from acker_client.source.kafka.offset_store import KafkaOffsets
from acker_client.source.kafka.slices import COLUMNS, schema_of
from acker_client.source.kafka.values import RegisteredValues
from acker_client.source.records.guarantee import Guarantee
from acker_client.source.records.input import Input


class Kafka(Source):
    """Records of Kafka topics as a source, in the columns ``key binary, value binary, topic string, partition int,
    offset bigint, timestamp timestamp, headers array<struct<key: string, value: binary>>``. Needs the extra ``kafka``.

    ``topics``: a topic, or several. Or ``pattern``: a regular expression for the whole name of a topic. Every
    ``refresh_s`` the source looks for new partitions and topics, and reads these from their beginning.
    ``bootstrap_servers``: "host:port", or several. ``group_id`` (default: the source's name): the consumer group under
    which offsets are committed to Kafka, so that tools see the lag. The source does not join the group.

    ``first_poll``: where to begin in a partition without done records. "earliest" and "latest" go on from a
    committed offset only if this source committed it. "uncommitted_earliest" and "uncommitted_latest" go on from any
    committed offset. A ``datetime`` begins at the first record of that time. ``start`` overrides it: an offset,
    "earliest", "latest", a ``datetime``, or a mapping of these by partition, ``{"orders/0": 120}``. ``stop``: "end"
    ends the run after the records that exist when it starts. An offset or a ``datetime`` ends it before that record,
    and a mapping gives one for each partition, with "end" for the others. None never ends.

    ``values``: ``Avro``, ``JsonSchema`` or ``Protobuf``, for values whose schema is in a schema registry. The column
    ``value`` is then a struct. ``null_values``: "emit" or "skip" records without a value. ``ordered_by``: "key" keeps a
    record back until all earlier ones of its key and partition are done. A batch then has at most one record of a key,
    and the driver reads all records for their keys. ``records_per_s``: maximum rate at which new records of one
    partition are read, on average.

    ``acks_upstream``: a record that another job has handed on (see ``hand_on``) is acked there once it is ACKED here,
    and fails there when it is given up here. For this the driver reads the record's headers again. Both jobs need the
    same acker servers. ``timeout_s``: how long to wait for a broker. ``config``: settings of librdkafka (TLS, SASL and
    so on).

    ``checkpoint`` may be "kafka". Records below the group's offsets are then done. The metadata of an offset holds the
    done records beyond it, as many as fit. Without a checkpoint, a start also goes on from the offsets that this source
    has committed. It then reads all records beyond them again, even if they are done. Commits of another checkpoint
    under this name are refused, and of two drivers under one name the later one stops. With
    ``guarantee="at_most_once"`` the default is "kafka". A ``group`` needs ``ZooKeeperOffsets`` instead. Other
    ``options``: see ``CommonOptions``.
    """

    def __init__(
        self,
        topics: str | Iterable[str] | None = None,
        *,
        bootstrap_servers: str | Iterable[str],
        pattern: str | None = None,
        group_id: str | None = None,
        first_poll: str | datetime = "uncommitted_earliest",
        start: Bound | Mapping[str, Bound] | None = None,
        stop: Bound | Mapping[str, Bound] | None = None,
        values: RegisteredValues | None = None,
        null_values: Literal["emit", "skip"] = "emit",
        ordered_by: Literal["key"] | None = None,
        records_per_s: float | None = None,
        acks_upstream: bool = False,
        refresh_s: float = 2.0,
        timeout_s: float = 60.0,
        config: Mapping[str, Any] | None = None,
        **options: Unpack[CommonOptions],
    ) -> None:
        library()
        is_in_kafka = options.get("checkpoint") == "kafka"
        _check_group(options, is_in_kafka or isinstance(options.get("checkpoint"), KafkaOffsets))
        if is_in_kafka:
            options["checkpoint"] = None
        super().__init__(options_of(Kafka, options))
        # A start always goes on from the committed offsets. At-most-once has to commit before it emits records.
        is_early = self.options.guarantee is Guarantee.AT_MOST_ONCE
        is_in_kafka = is_in_kafka or (is_early and self.options.checkpoint is None)
        wanted = Topics.of(topics, pattern)
        connection = KafkaConnection.of(
            bootstrap_servers, self.options.name if group_id is None else group_id, config, timeout_s
        )
        if is_in_kafka:
            self.options = replace(self.options, checkpoint=KafkaOffsets.of(wanted, connection))
        for option in ("dead_letters", "outcomes"):
            _check_written(option, getattr(self.options, option), wanted)
        _check_option("null_values", null_values, ("emit", "skip"))
        check_order(ordered_by, "key", self.options)
        _check_upstream(acks_upstream, self.options)
        if records_per_s is not None and not 0 < records_per_s < float("inf"):
            raise ValueError(f"records_per_s={records_per_s}: give records per second and partition, above 0")
        if not isinstance(values, RegisteredValues | None):
            raise ValueError(f"values={values!r}: give Avro(...), JsonSchema(...) or Protobuf(...)")
        if values is not None:
            deserializer(values.kind)
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
            start=NO_BOUNDS if start is None else OffsetBounds.of("start", start, ("earliest", "latest"), wanted),
            stop=None if stop is None else OffsetBounds.of("stop", stop, ("end",), wanted, others="end"),
            skips_null=null_values == "skip",
            is_ordered=ordered_by == "key",
            records_per_s=records_per_s,
            refresh_s=refresh_s,
            acks_upstream=acks_upstream,
            commits=not isinstance(self.options.checkpoint, KafkaOffsets),
            waits_for_commits=self.options.guarantee is not Guarantee.NO_GUARANTEE,
        )
        self.values = values

    def input(self) -> tuple[Input[Any], Any]:
        if self.values is None:
            return KafkaInput(self.kafka), COLUMNS
        columns = arrow_schema(self.values.schema)
        decoding = self.values.decoding(columns, self.kafka.connection.timeout_s)
        return KafkaInput(replace(self.kafka, decoding=decoding)), spark_schema(schema_of(decoding))


def _check_group(options: CommonOptions, is_in_kafka: bool) -> None:
    if is_in_kafka and options.get("group") is not None:
        raise ValueError(
            "a checkpoint in Kafka's offsets with a group: Kafka accepts every commit, so a driver that was paused"
            " would move back what the new owner of a partition has committed; give ZooKeeperOffsets(group=group)"
        )


def _check_upstream(acks_upstream: bool, options: Options) -> None:
    if acks_upstream and options.track is not None:
        raise ValueError(
            "acks_upstream=True with track: the other job's records would be ACKED for untracked records, which count"
            " as done even if they were not processed; leave one of the two out"
        )


def _check_option(option: str, value: object, known: tuple[object, ...]) -> None:
    if value not in known:
        raise ValueError(f"{option}={value!r}: give one of {', '.join(map(repr, known))}")


def _check_written(option: str, store: object, wanted: Topics) -> None:
    if isinstance(store, KafkaTopic) and wanted.fits(store.topic):
        raise ValueError(f"{option}: topic {store.topic!r} is read by this source: keep it out of {wanted}")
