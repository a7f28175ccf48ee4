"""Which batch an emission draws its number from, and how large the next batch is."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from acker_client.cluster.stream import NUMBERS_FIRST, NUMBERS_MAX, EmittedBatch, Stream
from acker_client.pins import Pin
from acker_protocol.ids import MASK, unmix64
from acker_protocol.messages import Limits
from acker_protocol.placement import Member, View, place

BASE = 1000
STEPS = st.lists(st.sampled_from(["draw", "draw", "draw", "end", "shrink", "fails", "much"]), max_size=60)


def begun(stream: Stream, open_batches: int = 0) -> EmittedBatch:
    request = stream.next_request(open_batches)
    placement = place(View(1, (Member(0, 1, "a:1"),)), 5, request.number, 1)
    batch = EmittedBatch(Pin(5, request.number, request.first, request.up_to, placement), request)
    stream.mark_placed(batch)
    stream.draw_from(batch)
    return batch


@given(STEPS)
def test_no_number_is_drawn_twice_and_each_is_in_its_batch_below_the_published_limit(steps: list[str]) -> None:
    stream, drawn, batches = Stream(5, BASE, Limits()), list[int](), dict[int, EmittedBatch]()
    for step in steps:
        if step == "end" and stream.current is not None:
            stream.current.stop_drawing()
        elif step == "shrink":
            stream.shrink()
        elif step == "fails":
            stream.next_request(0)
        for _ in range({"draw": 1, "much": 700}.get(step, 0)):
            while (found := stream.draw_root()) is None:
                batch = begun(stream)
                batches[batch.request.number] = batch
            root, number = found
            drawn.append(unmix64(root))
            request = batches[number].request
            assert request.first <= drawn[-1] < min(request.first + request.up_to, stream.stop)
    assert len(set(drawn)) == len(drawn)
    assert drawn == sorted(drawn)


def test_a_batch_is_as_large_as_the_last_ones_were_used_up_and_the_number_of_open_ones_asks_for() -> None:
    stream = Stream(5, BASE, Limits())
    sizes = []
    for _ in range(6):
        batch = begun(stream)
        sizes.append(batch.request.up_to)
        while not batch.is_closed:
            stream.draw_root()
    assert sizes == [NUMBERS_FIRST, 4096, 16384, NUMBERS_MAX, NUMBERS_MAX, NUMBERS_MAX]
    assert [stream.next_request(count).up_to // NUMBERS_MAX for count in (255, 256, 512, 1023)] == [1, 2, 4, 8]
    begun(stream).stop_drawing()
    assert begun(stream).request.up_to == NUMBERS_MAX


def test_a_source_that_finds_no_room_asks_for_less_down_to_one_root() -> None:
    stream = Stream(5, BASE, Limits())
    sizes = [stream.next_request(0).up_to]
    while stream.shrink():
        sizes.append(stream.next_request(0).up_to)
    assert sizes == [1024, 256, 64, 16, 4, 1]


def test_the_numbers_of_the_largest_base_stay_below_two_to_the_64() -> None:
    stream = Stream(5, 1 << 62, Limits())
    while not stream.draw_root():
        begun(stream, 1023)
    assert stream.stop < MASK
