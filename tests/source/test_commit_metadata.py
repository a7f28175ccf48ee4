"""The metadata of a committed offset: written, cut to size, read back, and told apart from that of other writers."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from acker_client.source import Ranges
from acker_client.source.kafka.offset_metadata import UNKNOWN_RUN, CommitMetadata, NewerVersion, RunId

RUNS = st.tuples(
    st.integers(0, 10**12), st.lists(st.tuples(st.integers(1, 10**6), st.integers(1, 10**6)), max_size=40)
).map(lambda drawn: [drawn[0], *(run for pair in drawn[1] for run in pair)])


@given(RUNS, st.integers(150, 600))
def test_metadata_is_read_back_as_far_as_it_fits_with_the_exact_prefix(runs: list[int], bytes_max: int) -> None:
    done = Ranges.from_runs(runs)
    text = CommitMetadata("orders", "host:1", done).to_text(bytes_max)
    assert len(text.encode()) <= bytes_max
    read = CommitMetadata.from_text(text, done.prefix)
    assert read is not None
    assert (read.source, read.by, read.done.prefix) == ("orders", "host:1", done.prefix)
    assert read.done == done.first_holes(read.done.holes)
    assert len(
        CommitMetadata("orders", "host:1", done.first_holes(read.done.holes + 1)).to_text(10**6)
    ) > bytes_max or (read.done == done)


@given(st.text(st.characters(codec="ascii"), max_size=16), st.integers(0, 2**40), st.text(max_size=8))
def test_checkpoint_and_run_are_read_back_and_other_content_counts_as_none(
    checkpoint: str, turn: int, id_: str
) -> None:
    text = CommitMetadata("orders", "h:1", Ranges.below(5), checkpoint=checkpoint, run=RunId(turn, id_)).to_text(4096)
    read = CommitMetadata.from_text(text, 5)
    assert read is not None
    assert (read.checkpoint, read.run) == (checkpoint, RunId(turn, id_))
    others: list[object] = [5, [1], ["1", "a"], {}, None]
    for wrong in others:
        damaged = json.dumps({**json.loads(text), "checkpoint": 5, "run": wrong})
        read = CommitMetadata.from_text(damaged, 5)
        assert read is not None
        assert (read.checkpoint, read.run) == ("", UNKNOWN_RUN)


@given(st.text(st.characters(codec="ascii"), min_size=1, max_size=30))
def test_the_id_of_a_topic_is_read_back_and_other_content_counts_as_none(topic_id: str) -> None:
    text = CommitMetadata("orders", "h:1", Ranges.below(5), topic_id=topic_id).to_text(4096)
    read = CommitMetadata.from_text(text, 5)
    assert read is not None
    assert read.topic_id == topic_id
    others: list[object] = [5, ["a"], None]
    for wrong in others:
        read = CommitMetadata.from_text(json.dumps({**json.loads(text), "topic_id": wrong}), 5)
        assert read is not None
        assert read.topic_id == ""


@given(RUNS, st.integers(0, 10**6))
def test_damaged_or_moved_metadata_counts_as_foreign(runs: list[int], where: int) -> None:
    done = Ranges.from_runs(runs)
    text = CommitMetadata("orders", "host:1", done).to_text(4096)
    assert CommitMetadata.from_text(text, done.prefix + 1) is None
    at = where % len(text)
    damaged = text[:at] + ("x" if text[at] != "x" else "y") + text[at + 1 :]
    read = CommitMetadata.from_text(damaged, done.prefix)
    assert read is None or (read.source == "orders" and read.done == done)


@pytest.mark.parametrize("text", ["", "{}", "null", "[]", "{", '{"acker": "1", "source": 2, "by": 3}', '"acker"'])
def test_metadata_of_other_writers_counts_as_foreign(text: str) -> None:
    assert CommitMetadata.from_text(text, 5) is None


def test_metadata_of_a_newer_version_is_refused() -> None:
    with pytest.raises(NewerVersion, match="version 2, and this acker reads versions up to 1"):
        CommitMetadata.from_text(json.dumps({"acker": 2, "source": "orders", "by": "x", "more": 1}), 5)


def test_thousands_of_holes_fit_into_what_a_broker_takes() -> None:
    done = Ranges.from_runs([10**9, *([20, 100] * 2_000)])
    read = CommitMetadata.from_text(CommitMetadata("orders", "host:1", done).to_text(4096), 10**9)
    assert read is not None
    assert read.done.holes > 1_400
