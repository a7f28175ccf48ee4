"""Pages: detect a reading whose rows differ from the counted ones, and accept one with the same rows. No Spark."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from acker_client.cluster.scope import BatchScope
from acker_client.spark.anchoring.pages import PAGE_SHIFT, OtherRows, PageCheck, Pages, Runs, place_of
from acker_client.spark.anchoring.tally import Report
from acker_client.spark.operators.read_frame import FrameReading
from acker_protocol.ids import mix64_column

PAGE = 1 << PAGE_SHIFT
TWO_PAGES = PAGE + 904


def digests(places: np.ndarray, salt: int = 0) -> np.ndarray:
    """Return a stand-in for the hash of each row and its place."""
    return mix64_column(places.view(np.uint64) ^ np.uint64(salt << 40))


def counted(places: np.ndarray, salt: int = 0) -> Pages:
    ids, starts, rows = np.unique(places >> PAGE_SHIFT, return_index=True, return_counts=True)
    return Pages(ids, rows, np.bitwise_xor.reduceat(digests(places, salt), starts))


def rows_of(partition: int, rows: int) -> np.ndarray:
    return np.arange(rows, dtype=np.int64) + place_of(partition, 0)


def read(noted: Pages, places: np.ndarray, found: np.ndarray, cut: int) -> None:
    check = PageCheck(noted)
    for start in range(0, len(places), cut):
        check.count_rows(places[start : start + cut], found[start : start + cut])
    check.check_partition(int(places[0]) >> 33)


@given(st.integers(1, TWO_PAGES), st.integers(500, 6000), st.integers(0, 3))
def test_unchanged_rows_pass_in_pieces_of_any_size(rows: int, cut: int, partition: int) -> None:
    places = rows_of(partition, rows)
    read(counted(np.concatenate([places, rows_of(7, 3)])), places, digests(places), cut)


@pytest.mark.parametrize(
    "what", ["a value", "two rows swapped", "a row less", "a row more", "a page more", "a page less"]
)
def test_changed_rows_are_detected(what: str) -> None:
    places = rows_of(2, TWO_PAGES)
    noted, found = counted(places), digests(places)
    if what == "a value":
        found[5] ^= np.uint64(1)
    if what == "two rows swapped":
        # A digest includes the row's place, so swapped rows have other digests.
        found[[5, 6]] = digests(places[[6, 5]], salt=1)
    if what == "a row less":
        places, found = places[:-1], found[:-1]
    if what == "a page less":
        places, found = places[:PAGE], found[:PAGE]
    if what == "a row more":
        places = rows_of(2, TWO_PAGES + 1)
    if what == "a page more":
        places = rows_of(2, 2 * PAGE + 1)
    found = digests(places) if what.endswith("more") else found
    with pytest.raises(OtherRows, match=r"gives other rows when it is computed anew .*nothing of these rows was acked"):
        read(noted, places, found, 1000)


@pytest.mark.long
@given(st.lists(st.sets(st.integers(0, 3 * PAGE), min_size=1, max_size=40), min_size=1, max_size=4))
def test_runs_give_the_number_of_each_place_and_the_pages_that_hold_them(wanted: list[set[int]]) -> None:
    pieces = [np.array(sorted(rows), np.int64) + place_of(3 - number, 0) for number, rows in enumerate(wanted)]
    firsts = np.cumsum([0, *map(len, pieces)]).tolist()
    runs = Runs.of(pieces, firsts[:-1])
    everything = np.unique(np.concatenate([rows_of(number, 3 * PAGE + 5) for number in range(4)]))
    kept, numbers = runs.number_places(everything)
    expected = {
        place: first + at for piece, first in zip(pieces, firsts, strict=False) for at, place in enumerate(piece)
    }
    assert dict(zip(everything[kept].tolist(), numbers.tolist(), strict=True)) == expected
    assert runs.pages().tolist() == sorted({place >> PAGE_SHIFT for place in expected})


def reported(salt: int, words: list[str], numbers: tuple[int, int] = (0, 3)) -> tuple[list[list[str]], list[Report]]:
    places = rows_of(0, 3)
    batch = pa.RecordBatch.from_arrays(
        [pa.array(words), pa.array(places), pa.array(digests(places, salt).view(np.int64))], names=["_0", "p", "d"]
    )
    runs = Runs.of([places], [numbers[0]])
    scope = BatchScope(session=1, number=1, first=1000)
    reading = FrameReading(scope, ("word",), runs, counted(places, salt), ((0, *numbers),))
    reports: list[Report] = []
    given = [rows.data.column("word").to_pylist() for rows in reading.rows([batch], reports)]
    return given, reports


def test_reading_a_number_again_with_other_rows_gives_other_edges_and_another_identity() -> None:
    """Otherwise rows derived from one reading could close the tree of the other."""
    given, (once,) = reported(0, ["a", "b", "c"])
    _, (same,) = reported(0, ["a", "b", "c"])
    _, (other,) = reported(1, ["a", "b", "x"])
    assert given == [["a", "b", "c"]]
    assert once.identity == same.identity
    assert (once.entries.ack_vals == same.entries.ack_vals).all()
    assert once.identity != other.identity
    assert not np.isin(once.entries.ack_vals, other.entries.ack_vals).any()
    assert (once.entries.root_ids == other.entries.root_ids).all()
    assert once.inits is not None
    assert once.inits.covered.tolist() == [[0, 3]]
