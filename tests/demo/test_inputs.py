"""The demo's inputs: each source gets the lines unchanged, and a record's position tells its line number."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from confluent_kafka import Consumer, TopicPartition

from acker_command.demo import Abort, DemoError, corpus
from acker_command.demo.corpus import Corpus
from acker_command.demo.inputs import kafka
from acker_command.demo.inputs.files import FilesLines
from acker_command.demo.inputs.frame import FrameLines
from acker_command.demo.inputs.kafka import KafkaLines
from acker_command.demo.inputs.kinesis import KinesisLines


@pytest.fixture
def text(tmp_path: Path) -> Corpus:
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "a").write_bytes(b"one\n\nnot \xff text\nfour\n")
    (tmp_path / "in" / "b").write_bytes("fünf\nsix".encode())
    return corpus.measure(corpus.find_files([str(tmp_path / "in")]), None, tmp_path)


@pytest.fixture
def exits() -> Iterator[ExitStack]:
    with ExitStack() as exits:
        yield exits


def contents(text: Corpus) -> list[bytes]:
    return [content for _, _, content in text.lines()]


def save(folder: Path, **partitions: dict[str, Any]) -> None:
    """Write a checkpoint file with these entries, by partition."""
    saved = [{"partition": name, "done": [1], "mark": {}} | each for name, each in partitions.items()]
    (folder / "checkpoint.json").write_text(json.dumps({"partitions": saved}))


def test_lines_are_numbered_over_all_files_in_order(text: Corpus) -> None:
    places = [(path, line) for path, line, _ in text.lines()]
    assert places == [("a", 1), ("a", 2), ("a", 3), ("a", 4), ("b", 1), ("b", 2)]
    assert contents(text) == [b"one", b"", b"not \xff text", b"four", "fünf".encode(), b"six"]
    assert text.first_of == {path: first for at in ("", text.root) for path, first in ((at + "a", 0), (at + "b", 4))}


def test_files_are_at_their_end_only_when_every_byte_of_each_is_done(text: Corpus, tmp_path: Path) -> None:
    input_ = FilesLines(text, tmp_path, 1)
    a, b = text.paths
    save(tmp_path, **{a: {"mark": {"bytes": 21}}, b: {"mark": {"bytes": 9}}})
    assert input_.is_at_end()
    save(tmp_path, **{a: {"mark": {"bytes": 21}}, b: {"mark": {"bytes": 6}}})
    assert not input_.is_at_end()
    save(tmp_path, **{a: {"mark": {"bytes": 21}}})
    assert not input_.is_at_end()


def test_an_offset_of_kafka_says_which_line_is_there(text: Corpus, tmp_path: Path, exits: ExitStack) -> None:
    input_ = KafkaLines(text, tmp_path, 1)
    input_.begin(exits)
    consumer = Consumer({"bootstrap.servers": input_.servers, "group.id": "test", "enable.partition.eof": True})
    found: list[Any] = []
    # Closed before the cluster ends: closing it later would wait for the cluster.
    with closing(consumer):
        consumer.assign([TopicPartition(kafka.TOPIC, partition, 0) for partition in range(kafka.PARTITIONS)])
        while len(found) < text.records:
            found += [message for message in consumer.consume(10, timeout=1) if message.error() is None]
    origins = pa.RecordBatch.from_arrays(
        [pa.array([each.partition() for each in found], pa.int32()), pa.array([each.offset() for each in found])],
        names=["partition", "offset"],
    )
    records = input_.records(origins).tolist()
    assert dict(zip(records, (each.value() for each in found), strict=True)) == dict(enumerate(contents(text)))
    keys = [f"{line}:{path}".encode() for path, line, _ in text.lines()]
    assert dict(zip(records, (each.key() for each in found), strict=True)) == dict(enumerate(keys))


def test_a_topic_is_at_its_end_only_when_every_offset_is_done(text: Corpus, tmp_path: Path) -> None:
    input_ = KafkaLines(text, tmp_path, 1)
    done = {"lines/0": {"done": [2]}, "lines/1": {"done": [2]}, "lines/2": {"done": [1]}, "lines/3": {"done": [1]}}
    save(tmp_path, **done)
    assert input_.is_at_end()
    for behind in ([1], [0, 1, 1]):
        save(tmp_path, **done | {"lines/1": {"done": behind}})
        assert not input_.is_at_end()
    save(tmp_path)
    assert not input_.is_at_end()


def test_more_lines_than_the_mock_of_kafka_keeps_are_refused_by_a_sentence(
    text: Corpus, tmp_path: Path, exits: ExitStack, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(KafkaLines, "_watermarks", lambda input_: [(1, 2)] * 4)
    with pytest.raises(DemoError, match=r"6 lines are more than the mock cluster holds .* give --records N"):
        KafkaLines(text, tmp_path, 1).begin(exits)


def test_a_sequence_number_of_kinesis_says_which_line_is_there(text: Corpus, tmp_path: Path, exits: ExitStack) -> None:
    input_ = KinesisLines(text, tmp_path, 1)
    input_.begin(exits)
    client = input_.session().client("kinesis", endpoint_url=input_.url)
    rows: list[tuple[int, bytes]] = []
    lasts: dict[str, dict[str, Any]] = {}
    for shard in client.list_shards(StreamName="lines")["Shards"]:
        name = shard["ShardId"]
        asked = {"StreamName": "lines", "ShardId": name, "ShardIteratorType": "TRIM_HORIZON"}
        read = client.get_records(ShardIterator=client.get_shard_iterator(**asked)["ShardIterator"])["Records"]
        numbers = [each["SequenceNumber"] for each in read]
        origins = pa.RecordBatch.from_arrays(
            [pa.array([name] * len(read), pa.string()), pa.array(numbers, pa.string())],
            names=["shard", "sequence_number"],
        )
        rows += zip(input_.records(origins).tolist(), (each["Data"] for each in read), strict=True)
        if read:
            lasts[name] = {"mark": {"after": numbers[-1]}}
    assert dict(rows) == dict(enumerate(contents(text)))
    save(tmp_path, **lasts)
    assert input_.is_at_end()
    save(tmp_path, **lasts | {next(iter(lasts)): {"mark": {"at": "1"}}})
    assert not input_.is_at_end()
    save(tmp_path)
    assert not input_.is_at_end()


def test_rows_of_the_frame_are_named_by_path_and_line(text: Corpus, tmp_path: Path, exits: ExitStack) -> None:
    input_ = FrameLines(text, tmp_path, 2)
    input_.begin(exits)
    rows = pq.read_table(tmp_path / "lines").combine_chunks()
    assert len(list((tmp_path / "lines").iterdir())) == 6
    (origins,) = rows.select(["path", "line"]).to_batches()
    records = input_.records(origins).tolist()
    assert dict(zip(records, rows["value"].to_pylist(), strict=True)) == dict(enumerate(contents(text)))


def test_a_query_is_at_its_end_only_when_spark_has_committed_every_micro_batch(text: Corpus, tmp_path: Path) -> None:
    input_ = FrameLines(text, tmp_path, 2)
    commits = tmp_path / "checkpoint" / "commits"
    assert not input_.is_at_end()
    commits.mkdir(parents=True)
    for name, is_at_end in ((".0.crc", False), ("0", False), (".1.crc", False), ("1", True)):
        (commits / name).touch()
        assert input_.is_at_end() == is_at_end


def raising(error: BaseException) -> Callable[[Any, int], None]:
    def function(df: Any, number: int) -> None:
        raise error

    return function


@pytest.mark.parametrize("error", [Abort("the server does not come back"), ValueError("the server does not come back")])
def test_an_error_in_a_micro_batch_ends_the_query_and_is_kept(
    text: Corpus, tmp_path: Path, error: BaseException
) -> None:
    input_ = FrameLines(text, tmp_path, 2)
    with pytest.raises(DemoError, match="does not come back"):
        input_._keep_failure(raising(error))(None, 0)
    assert input_._failure is error
