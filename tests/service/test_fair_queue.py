"""The queue in which owners take turns."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from acker_service.process.fair_queue import FairQueue

OWNERS = st.sampled_from([None, "a", "b", "c"])


@given(st.lists(st.tuples(OWNERS, st.none() | st.frozensets(OWNERS))))
def test_owners_take_turns_and_each_keeps_its_order(
    steps: list[tuple[str | None, frozenset[str | None] | None]],
) -> None:
    """The twin is a list of items, and a list of owners in the order of their turns."""
    queue: FairQueue[int] = FairQueue()
    items: list[tuple[str | None, int]] = []
    turns: list[str | None] = []
    for number, (owner, refused) in enumerate(steps):
        if refused is None:
            queue.append(owner, number)
            items.append((owner, number))
            turns += [owner] if owner not in turns else []
        else:
            allowed = [each for each in turns if each not in refused]
            expected = next((item for item in items if item[0] == allowed[0]), None) if allowed else None
            assert queue.pop(lambda each: each not in refused) == expected  # noqa: B023  # used at once
            if expected is not None:
                items.remove(expected)
                turns.remove(expected[0])
                turns += [expected[0]] if any(item[0] == expected[0] for item in items) else []
        assert len(queue) == len(items)
        assert [owner for owner, _ in queue] == turns
        assert all(list(left) == [each for o, each in items if o == owner] for owner, left in queue)


def test_an_owner_with_many_items_delays_another_by_one() -> None:
    queue: FairQueue[int] = FairQueue()
    for number in range(1000):
        queue.append("greedy", number)
    queue.append("modest", 0)
    assert [queue.pop() for _ in range(3)] == [("greedy", 0), ("modest", 0), ("greedy", 1)]
