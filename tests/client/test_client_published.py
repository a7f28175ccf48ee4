"""The pins that a source publishes for other processes."""

from __future__ import annotations

import json
import zlib

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from acker_client.cluster.published import Published, decode
from acker_client.pins import Pin
from acker_protocol.ids import root_ids
from acker_protocol.messages import PINS_MAX_BYTES
from acker_protocol.placement import Member, View, epoch_of, place

MEMBER_IDS = st.sets(st.integers(0, 40), min_size=1, max_size=20)


def member(id_: int) -> Member:
    return Member(id_, (id_ + 1) * 0x9E3779B97F4A7C15 & (1 << 64) - 1, f"acker-{id_}.acker.default.svc:7070")


def published(views: list[set[int]], session: int, replicas: int, spread: int) -> Published:
    """Return the pins of one batch for each view, ten numbers each. The first member of each batch is left out."""
    pins = []
    for number, ids in enumerate(views, 1):
        view = View(epoch_of(1 << 63, number), tuple(map(member, ids)))
        placement = place(view, session, number, min(replicas, len(ids)), spread)
        pins.append(Pin(session, number, 90 + number * 10, 10, placement))
    out = {pin.batch: frozenset({pin.placement.members[0].id}) for pin in pins}
    return Published(session, 7, 100, 100 + 10 * len(views), tuple(pins), out)


@given(st.lists(MEMBER_IDS, max_size=5), st.integers(0, 2**64 - 1), st.integers(1, 3), st.integers(3, 10))
def test_published_pins_are_read_back_unchanged_for_batches_of_different_views(
    views: list[set[int]], session: int, replicas: int, spread: int
) -> None:
    given_ = published(views, session, replicas, spread)
    read = decode(session, given_.encode())
    assert (read.session, read.version, read.first, read.stop) == (session, 7, 100, given_.stop)
    assert read.out == given_.out
    for one, other in zip(given_.pins, read.pins, strict=True):
        assert (one.batch, one.first, one.up_to) == (other.batch, other.first, other.up_to)
        assert (one.placement.epoch, one.placement.members) == (other.placement.epoch, other.placement.members)
        assert np.array_equal(one.placement.replicas, other.placement.replicas)


def test_a_root_is_of_the_source_by_its_number_and_a_batch_that_is_not_there_is_over() -> None:
    known = published([{1, 2}, {2, 3}], 5, 2, 8)
    numbers = np.arange(98, 123, dtype=np.uint64)
    assert known.has(root_ids(0, numbers)).tolist() == [100 <= number < 120 for number in range(98, 123)]
    assert (known.is_out(1, 1), known.is_out(1, 2), known.is_out(2, 2), known.is_out(2, 3)) == (
        True,
        False,
        True,
        False,
    )
    assert known.is_out(3, 1)


@pytest.mark.long
def test_the_pins_of_a_thousand_batches_on_a_thousand_servers_are_no_longer_than_a_server_takes() -> None:
    most = published([set(range(1000))] * 1024, 5, 2, 8)
    assert len(most.encode()) <= PINS_MAX_BYTES
    read = decode(5, most.encode())
    assert np.array_equal(read.pins[-1].placement.replicas, most.pins[-1].placement.replicas)


@pytest.mark.parametrize("content", [b"", b"no zlib", zlib.compress(b"{}"), zlib.compress(json.dumps([1]).encode())])
def test_unreadable_content_is_refused_with_advice(content: bytes) -> None:
    with pytest.raises(ValueError, match="install the same version of acker everywhere"):
        decode(5, content)
