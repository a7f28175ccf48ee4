"""The source whose records come from a Kinesis stream."""

from __future__ import annotations

from datetime import datetime
from typing import Any, Literal, Unpack

from acker_client.cluster.registration import check_seconds
from acker_client.source.engine.environment import spark_environment
from acker_client.source.engine.given import options_of
from acker_client.source.engine.options import CommonOptions, check_order
from acker_client.source.engine.source import Source
from acker_client.source.kinesis.connection import BotoKinesis, KinesisDoor
from acker_client.source.kinesis.input import KinesisInput, StreamReading, first_begin
from acker_client.source.kinesis.rows import COLUMNS
from acker_client.source.records.input import Input
from acker_client.source.records.stores import SharedCheckpointStore

STOPS = ("never", "end")


class Kinesis(Source):
    """Records of a Kinesis stream as a source, with rows of ``data binary, partition_key string, sequence_number
    string, shard string, arrival_timestamp timestamp``. Needs the extra `kinesis`.

    ``stream``: its name, or its ARN. ``region``, ``endpoint_url``, ``session`` (a ``boto3.Session``): passed to boto3,
    which has defaults for them. ``first_poll``: where to begin in a shard that the checkpoint does not contain:
    "trim_horizon" (the oldest record), "latest" (only records from now on), or a time (Unix seconds, or a datetime with
    a zone). ``ordered_by``: "partition_key" keeps a record back until all earlier ones of its partition key are done. A
    batch then has at most one record of a key. ``stop``: "never" follows the stream. "end" ends the run when all
    existing records are done (but not in a group, where more shards may be assigned).

    Shards that result from a split or a merge are found while the source runs (every ``refresh_s``, and when a shard
    ends). They begin when all records of their parents are done. A shard without new records is polled every
    ``idle_s``. The driver reads each record once and holds it until it is done. It holds at most ``held_bytes_max``
    bytes, in addition to the limit ``max_uncommitted``. ``options``: see ``CommonOptions``.
    """

    def __init__(
        self,
        stream: str,
        *,
        region: str | None = None,
        endpoint_url: str | None = None,
        session: Any = None,
        first_poll: str | float | datetime = "trim_horizon",
        ordered_by: Literal["partition_key"] | None = None,
        stop: str = "never",
        refresh_s: float = 30.0,
        idle_s: float = 1.0,
        held_bytes_max: int = 256 << 20,
        **options: Unpack[CommonOptions],
    ) -> None:
        super().__init__(options_of(Kinesis, options))
        if not isinstance(stream, str) or not stream:
            raise ValueError(f"stream={stream!r}: give the name of a stream, or its ARN")
        if stop not in STOPS:
            raise ValueError(f"stop={stop!r}: give 'never' or 'end'")
        check_order(ordered_by, "partition_key", self.options)
        check_seconds("refresh_s", refresh_s)
        check_seconds("idle_s", idle_s)
        if not isinstance(held_bytes_max, int) or held_bytes_max < 1:
            raise ValueError(f"held_bytes_max={held_bytes_max!r}: give a number of bytes, at least 1")
        self.stream = stream
        self.region = region
        self.endpoint_url = endpoint_url
        self.session = session
        self.reading = StreamReading(
            first_begin(first_poll), stop == "end", refresh_s, idle_s, held_bytes_max, is_ordered=ordered_by is not None
        )

    def input(self) -> tuple[Input[Any], Any]:
        environment = self.options.environment or spark_environment()
        store = self.options.checkpoint
        kinesis = KinesisInput(
            self._open_stream(),
            self.reading,
            clock=environment.clock,
            sleep=environment.sleep,
            random=environment.draw,
            saved=store.load if isinstance(store, SharedCheckpointStore) else None,
        )
        return kinesis, COLUMNS

    def _open_stream(self) -> KinesisDoor:
        return BotoKinesis(self.stream, self.region, self.endpoint_url, self.session)
