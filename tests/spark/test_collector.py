"""Collector: the reports of explicit emits, acks and fails in one partition."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import Row, SparkSession

from acker_client.spark import Collector, CollectorError, collector_settings, process_client
from acker_client.spark.anchoring.tally import Report
from acker_client.spark.driver.session import SessionError
from acker_protocol.ids import MASK, edge0, identity_of, identity_term
from acker_protocol.messages import ACK, FAIL, RESET
from tests.spark.live_batch import ACKED, FAILED, LiveBatch, texts, words_of

ROOT = 13 << 60
EDGE = edge0(ROOT)
ROW = Row(text="a b", _root=ROOT - (1 << 64), _edge=EDGE - (EDGE >> 63 << 64))


def collector(sent: list[Report], name: str = "words") -> Collector:
    return Collector(name, "127.0.0.1:1", send=sent.append)


def val_of(report: Report) -> int:
    return int(report.entries.ack_vals[0])


def test_what_it_says_is_parent_and_children_in_one_number() -> None:
    sent: list[Report] = []
    with collector(sent) as out:
        children = [out.emit(word, anchors=[ROW]) for word in ("a", "b")]
        out.ack(ROW)
    assert [child.value for child in children] == ["a", "b"]
    assert [child._root for child in children] == [ROW._root] * 2
    assert val_of(sent[0]) == EDGE ^ (children[0]._edge & MASK) ^ (children[1]._edge & MASK)
    identity = sent[0].identity
    assert (identity.high, identity.low) == identity_of("words", identity_term(ROOT, EDGE))


def test_nothing_is_said_when_the_block_raises() -> None:
    sent: list[Report] = []

    def work() -> None:
        with collector(sent) as out:
            out.ack(ROW)
            raise RuntimeError("boom")

    with pytest.raises(RuntimeError, match="boom"):
        work()
    assert sent == []


def test_children_of_a_row_that_was_not_acked_are_not_said() -> None:
    sent: list[Report] = []
    with collector(sent) as out:
        out.emit("a", anchors=[ROW])
    assert sent == []


def test_edges_hang_on_the_content_and_the_order() -> None:
    def edges(*values: Any) -> list[int]:
        out = collector([])
        return [out.emit(value, anchors=[ROW])._edge for value in values]

    assert edges("a", "b") == edges("a", "b")
    assert edges("a", "a")[0] != edges("a", "a")[1]
    assert not set(edges("a", "b")) & set(edges("b", "a"))
    assert edges({"x": 1, "y": [2]}) == edges({"x": 1, "y": [2]})


def test_a_row_handled_twice_is_refused() -> None:
    out = collector([])
    out.ack(ROW)
    with pytest.raises(CollectorError, match="twice"):
        out.fail(ROW, "no")
    with pytest.raises(CollectorError, match="acked or failed already"):
        out.emit("late", anchors=[ROW])


def test_several_parents_make_packed_anchors_with_one_edge_a_root() -> None:
    other = Row(_root=7, _edge=8)
    out = collector([])
    child = out.emit("both", anchors=[ROW, other, other])
    assert sorted(root for root, _ in pairs(child)) == [7, ROOT]
    out.ack(ROW)
    out.ack(other)
    vals = dict(zip(out.report().entries.root_ids.tolist(), out.report().entries.ack_vals.tolist(), strict=True))
    assert vals == {root: edge ^ {7: 8, ROOT: EDGE}[root] for root, edge in pairs(child)}
    again = collector([]).emit("next", anchors=[child])
    assert {root for root, _ in pairs(again)} == {7, ROOT}


def pairs(row: Row) -> list[tuple[int, int]]:
    words = [int.from_bytes(row._anchors[at : at + 8], "little") for at in range(0, len(row._anchors), 8)]
    return list(zip(words[0::2], words[1::2], strict=True))


def test_a_fail_consumes_its_row_and_gives_its_reason() -> None:
    sent: list[Report] = []
    with collector(sent) as out:
        out.fail(ROW, "too old")
    entries = sent[0].entries
    assert (entries.kinds.tolist(), entries.reasons) == ([ACK | FAIL], ("words: too old",))
    assert val_of(sent[0]) == EDGE


def test_resets_are_sent_at_once() -> None:
    sent: list[Report] = []
    out = collector(sent)
    out.reset_timeout(ROW)
    out.reset_timeout(ROW)
    assert [report.entries.kinds.tolist() for report in sent] == [[RESET], [RESET]]
    assert sent[0].identity != sent[1].identity


def test_a_record_without_anchors_is_refused_and_an_unanchored_one_is_not() -> None:
    out = collector([])
    with pytest.raises(CollectorError, match="_root and _edge"):
        out.ack("words")
    out.ack(Row(_root=None, _edge=None))
    assert out.emit("x", anchors=[Row(_root=None, _edge=None)])._root is None
    assert out.report().is_empty


@pytest.mark.long
@pytest.mark.matrix
def test_an_rdd_job_is_acked_over_two_collectors(spark: SparkSession, server: Any) -> None:
    with LiveBatch(spark, server.address, texts(20)) as live:
        settings = collector_settings_of(live)

        def split(rows: Iterable[Row]) -> Iterator[Row]:
            with Collector("split", settings) as out:
                for row in rows:
                    for word in row.text.split():
                        yield out.emit({"number": row.number, "word": word}, anchors=[row])
                    out.ack(row)

        def finish(rows: Iterable[Row]) -> Iterator[tuple[int, str]]:
            with Collector("finish", settings) as out:
                for row in rows:
                    yield row.number, row.word
                    if row.word == "w3.1":
                        out.fail(row, "on purpose")
                    else:
                        out.ack(row)

        split_rows = live.df.rdd.mapPartitions(split)
        assert set(split_rows.repartition(3).mapPartitions(finish).collect()) == words_of(texts(20))
        assert live.settle() == {number: FAILED if number == 3 else ACKED for number in range(20)}
        assert live.reasons[3] == "finish: on purpose"


@pytest.mark.matrix
def test_foreach_partition_acks(spark: SparkSession, server: Any) -> None:
    with LiveBatch(spark, server.address, texts(20)) as live:
        settings = collector_settings_of(live)

        def write(rows: Iterator[Row]) -> None:
            with Collector("write", settings) as out:
                for row in rows:
                    out.ack(row)

        live.df.foreachPartition(write)
        assert live.settle() == dict.fromkeys(range(20), ACKED)


def test_a_collector_in_a_task_goes_to_the_servers_of_the_session(live: Callable[..., Any]) -> None:
    batch = live(texts(20))

    def split(rows: Iterable[Row]) -> Iterator[Row]:
        with Collector("split") as out:
            for row in rows:
                for word in row.text.split():
                    yield out.emit({"number": row.number, "word": word}, anchors=[row])
                out.ack(row)

    def write(rows: Iterable[Row]) -> None:
        with Collector("write") as out:
            for row in rows:
                out.ack(row)

    batch.df.rdd.mapPartitions(split).repartition(3).foreachPartition(write)
    assert batch.settle() == dict.fromkeys(range(20), ACKED)


@pytest.mark.matrix
def test_a_collector_in_a_job_of_frames_goes_to_the_servers_of_the_session(live: Callable[..., Any]) -> None:
    batch = live(texts(20))

    def write(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        with Collector("write") as out:
            for rows in batches:
                for row in rows.to_pylist():
                    out.ack(row)
                yield rows

    batch.df.mapInArrow(write, batch.df.schema).collect()
    assert batch.settle() == dict.fromkeys(range(20), ACKED)


def test_a_collector_made_in_the_driver_takes_its_session_along(live: Callable[..., Any]) -> None:
    batch = live(texts(20))
    made = Collector("write")

    def write(rows: Iterable[Row]) -> None:
        with made as out:
            for row in rows:
                out.ack(row)

    batch.df.foreachPartition(write)
    assert batch.settle() == dict.fromkeys(range(20), ACKED)


@pytest.mark.parametrize("servers", ["a:1, b:2", ("a:1", "b:2")])
@pytest.mark.parametrize("make", [lambda servers: Collector("words", servers), process_client])
def test_servers_may_be_given_as_one_text_or_several(make: Callable[[Any], Any], servers: Any) -> None:
    assert make(servers)._settings.servers == ("a:1", "b:2")


def test_a_collector_that_finds_no_server_says_what_to_give_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("ACKER_SERVERS", raising=False)
    monkeypatch.setattr(SparkSession, "getActiveSession", lambda: None)
    monkeypatch.setattr(SparkSession, "_instantiatedSession", None)
    what = r"settings = collector_settings\(spark\), or source\.settings, in the driver, and give them to Collector"
    with pytest.raises(SessionError, match=what):
        Collector("words")
    with pytest.raises(TypeError, match="give its name first"):
        Collector([ROW])  # type: ignore[arg-type]


def test_rows_of_a_union_of_thin_and_packed_have_their_anchors_in_one_form() -> None:
    thin, packed = (Row(_root=7, _edge=8, _anchors=None), Row(_root=None, _edge=None, _anchors=b"\7" * 16))
    out = collector([])
    out.ack(thin)
    out.ack(packed)
    out.ack(Row(_root=None, _edge=None, _anchors=None))
    assert sorted(out.report().entries.root_ids.tolist()) == [7, int.from_bytes(b"\7" * 8, "little")]


def collector_settings_of(live: LiveBatch) -> Any:
    live.spark.conf.set("spark.acker.servers", live.settings.servers[0])
    try:
        return collector_settings(live.spark)
    finally:
        live.spark.conf.unset("spark.acker.servers")
