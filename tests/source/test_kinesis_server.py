"""Kinesis through boto3 and a real socket. ``kinesis_server`` lists the patches that it applies to moto's server."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from acker_client.source import CheckpointError, SourceError
from acker_client.source.kinesis.connection import (
    LATEST,
    TRIM_HORIZON,
    Begin,
    BotoKinesis,
    Expired,
    NotThere,
    Throttled,
    Unanswered,
)
from acker_client.source.kinesis.input import KinesisInput, StreamReading
from tests.source.driven import Driven
from tests.source.kinesis_server import ENVIRONMENT, REGION, KinesisServer

pytestmark = pytest.mark.matrix


@pytest.fixture(scope="module")
def server() -> Iterator[KinesisServer]:
    with KinesisServer() as running:
        yield running


@pytest.fixture(autouse=True)
def dummy_credentials(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in ENVIRONMENT.items():
        monkeypatch.setenv(name, value)


class Polled(Driven):
    """Drives the input over a stream of the server, in simulated time."""

    def __init__(self, server: KinesisServer, stream: str, committed: Any = None) -> None:
        self._seconds = 0.0
        door = BotoKinesis(stream, REGION, server.url)
        kinesis = KinesisInput(
            door, StreamReading(is_to_end=True), clock=self._clock, sleep=self._sleep, random=lambda: 0.5
        )
        self.is_over = False
        super().__init__(kinesis, committed)

    def _clock(self) -> float:
        return self._seconds

    def _sleep(self, seconds: float) -> None:
        self._seconds += seconds

    def read(self, records_max: int = 1000) -> list[int]:
        plan = self.input.plan(records_max, 2)
        self.is_over = plan.is_end
        records: list[int] = self.parts.add_parts(plan.parts).tolist()
        self._open |= set(records)
        self._sleep(1.0)
        return records

    def work_off(self, but: Callable[[str], bool] = lambda data: False) -> list[str]:
        """Read to the end, and finish all records except those with ``but(data)``. Return the data of all."""
        found: list[str] = []
        for _ in range(200):
            if self.is_over:
                break
            records = self.read()
            data = [bytes(value).decode() for value in self.values(records)]
            self.finish([record for record, each in zip(records, data, strict=True) if not but(each)])
            self.committed()
            found += data
        return found


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.parametrize("mended", [True, False])
def test_a_stream_is_split_and_merged_under_its_reader_and_every_record_is_read_once(mended: bool) -> None:
    with KinesisServer(mended=mended) as server:
        server.create("orders", 2)
        everything = [str(k) for k in range(4000)]
        server.put("orders", everything[:1000])
        reader = Polled(server, "orders")
        first = reader.read(300)
        found = [bytes(value).decode() for value in reader.values(first)]
        reader.finish(first)
        server.split("orders", 0)
        server.put("orders", everything[1000:2000])
        server.merge("orders", 3, 1)
        server.put("orders", everything[2000:3000])
        open_ones = set(everything[100:110])
        found += reader.work_off(lambda data: data in open_ones and data not in found)
        assert len(found) == len(set(found))
        left = set(everything[:3000]) - set(found) | (open_ones - set(found[: len(first)]))
        server.put("orders", everything[3000:])
        again = Polled(server, "orders", reader.committed())
        assert sorted(again.work_off()) == sorted(left | set(everything[3000:]))
        assert again.description == "end of the stream (5 shards)"


@pytest.mark.long
def test_a_stream_is_read_by_its_arn_from_a_time_and_from_the_newest_on(server: KinesisServer) -> None:
    server.create("by-arn", 1)
    door = BotoKinesis("by-arn", REGION, server.url)
    stream = door.describe()
    door = BotoKinesis(stream.arn, REGION, server.url)
    (shard,) = door.shards()
    newest = door.iterator(shard.name, LATEST)
    server.put("by-arn", ["a", "b", "c"])
    rows = door.read_records(newest, 2).rows
    assert rows.column("data").to_pylist() == [b"a", b"b"]
    numbers = rows.column("sequence_number").to_pylist()
    since = Begin.since(rows.column("arrival_timestamp")[1].as_py())
    for begin, expected in (
        (TRIM_HORIZON, [b"a", b"b", b"c"]),
        (Begin.at(numbers[1]), [b"b", b"c"]),
        (Begin.after(numbers[1]), [b"c"]),
    ):
        assert door.read_records(door.iterator(shard.name, begin), 100).rows.column("data").to_pylist() == expected
    assert b"c" in door.read_records(door.iterator(shard.name, since), 100).rows.column("data").to_pylist()


@pytest.mark.sampled(8)
@pytest.mark.parametrize(
    ("code", "kind"),
    [
        ("ProvisionedThroughputExceededException", Throttled),
        ("KMSThrottlingException", Throttled),
        ("LimitExceededException", Throttled),
        ("ExpiredIteratorException", Expired),
        ("InternalFailure", Unanswered),
        ("503", Unanswered),
        ("500", Unanswered),
        ("InvalidArgumentException", NotThere),
    ],
)
def test_each_error_of_a_read_is_what_it_means_and_each_call_is_tried_once(
    server: KinesisServer, code: str, kind: type[Exception]
) -> None:
    server.create(f"errors-{code}", 1)
    door = BotoKinesis(f"errors-{code}", REGION, server.url)
    iterator = door.iterator("shardId-000000000000", TRIM_HORIZON)
    server.fail("GetRecords", code)
    with pytest.raises(kind):
        door.read_records(iterator, 10)
    assert door.read_records(iterator, 10).rows.num_rows == 0


def test_trouble_on_the_wire_is_waited_out_and_no_record_is_lost_or_read_twice(server: KinesisServer) -> None:
    server.create("troubled", 2)
    everything = [str(k) for k in range(600)]
    server.put("troubled", everything)
    for operation in ("DescribeStreamSummary", "ListShards", "GetShardIterator"):
        server.fail(operation, "LimitExceededException", "503")
    codes = ("ProvisionedThroughputExceededException", "ExpiredIteratorException", "500", "InternalFailure")
    server.fail("GetRecords", *codes, *codes)
    assert sorted(Polled(server, "troubled").work_off()) == sorted(everything)


@pytest.mark.long
@pytest.mark.parametrize("code", ["AccessDeniedException", "ExpiredTokenException"])
def test_a_permission_that_ends_in_the_middle_ends_the_run_and_the_next_start_goes_on(
    server: KinesisServer, code: str
) -> None:
    stream = f"ending-{code}"
    server.create(stream, 1)
    server.put(stream, "abcd")
    reader = Polled(server, stream)
    first = reader.read(2)
    reader.finish(first[:1])
    server.fail("GetRecords", code)
    with pytest.raises(SourceError, match=rf"stream '{stream}': .*{code}"):
        reader.read()
    assert Polled(server, stream, reader.committed()).work_off() == ["b", "c", "d"]


@pytest.mark.long
def test_a_stream_that_is_deleted_under_its_reader_ends_the_run_and_made_anew_its_checkpoint_is_refused(
    server: KinesisServer,
) -> None:
    server.create("deleted", 1)
    server.put("deleted", "abcd")
    reader = Polled(server, "deleted")
    reader.finish(reader.read(2))
    server.client.delete_stream(StreamName="deleted")
    with pytest.raises(SourceError, match="there is no stream 'deleted'"):
        reader.read()
    server.create("deleted", 1)
    with pytest.raises(CheckpointError, match="was deleted and created anew since the checkpoint was written"):
        Polled(server, "deleted", reader.committed())


@pytest.mark.sampled(4)
@pytest.mark.parametrize(
    ("code", "says"),
    [
        ("AccessDeniedException", r"stream 'orders': no permission .* allow this identity .*kinesis:GetRecords"),
        ("UnrecognizedClientException", r"does not accept these credentials .* renew them"),
        ("ExpiredTokenException", r"does not accept these credentials .* renew them, and start again; nothing is lost"),
        ("SomethingNewException", r"refuses describe_stream_summary \(SomethingNewException"),
    ],
)
def test_an_error_of_aws_is_one_sentence_with_advice(server: KinesisServer, code: str, says: str) -> None:
    server.fail("DescribeStreamSummary", code)
    with pytest.raises(SourceError, match=says):
        BotoKinesis("orders", REGION, server.url).describe()


def test_a_stream_that_does_not_exist_is_one_sentence(server: KinesisServer) -> None:
    with pytest.raises(SourceError, match=r"there is no stream 'nope' at http://127.0.0.1:\d+: create it, or name"):
        Polled(server, "nope")


def test_the_name_of_no_stream_is_one_sentence(server: KinesisServer) -> None:
    with pytest.raises(SourceError, match=r"'': it is not the name of a stream, or its ARN"):
        BotoKinesis("", REGION, server.url).describe()


@pytest.mark.long
def test_a_wrong_endpoint_is_one_sentence() -> None:
    with KinesisServer() as gone:
        pass
    with pytest.raises(SourceError, match=rf"Kinesis cannot be asked: {gone.url} does not answer .*endpoint_url="):
        Polled(gone, "orders")
    with pytest.raises(SourceError, match=r"boto3 cannot open it \(Invalid endpoint: nonsense\): check region="):
        BotoKinesis("orders", REGION, "nonsense")


@pytest.mark.slow
def test_no_region_and_no_credentials_are_one_sentence_each(
    server: KinesisServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("AWS_DEFAULT_REGION", "AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name)
    with pytest.raises(SourceError, match="no region is set: give region="):
        BotoKinesis("orders", None, None)
    with pytest.raises(SourceError, match="there are no credentials: set AWS_ACCESS_KEY_ID"):
        BotoKinesis("orders", REGION, server.url).describe()
