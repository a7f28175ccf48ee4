"""Message ids of emissions, compared with a dict."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from acker_client.message_ids import MessageBlock, MessageIds, signed
from acker_protocol.ids import root_id

# Blocks and single emissions, as sizes: a block of that many numbers, or one emission for 0. Gaps lie between them.
SIZES = st.lists(st.tuples(st.integers(0, 5), st.integers(0, 3), st.booleans()), max_size=8)


@given(SIZES, st.data())
def test_each_emission_is_taken_once_and_blocks_end_with_their_last_one(sizes: Any, data: st.DataObject) -> None:
    ids, twin, ended, number = MessageIds(), dict[int, Any](), list[int](), 7
    expected_end = dict[int, set[int]]()
    for index, (size, gap, has_ids) in enumerate(sizes):
        number += gap
        roots = [root_id(0, number + at) for at in range(max(1, size))]
        if not size:
            ids.add(roots[0], ("single", index))
            twin[roots[0]] = ("single", index)
        else:
            names = [(index, at) for at in range(size)] if has_ids else None
            before = [("of another block", index)] * gap if has_ids else []
            given = None if names is None else [*before, *names]
            ids.add_block(MessageBlock(number, size, given, len(before), lambda index=index: ended.append(index)))  # type: ignore[misc]
            twin |= zip(roots, names or map(signed, roots), strict=True)
            expected_end[index] = set(roots)
        number += len(roots)
    stranger = root_id(0, 3)
    order = data.draw(st.permutations(list(twin)))
    stop = data.draw(st.integers(0, len(order)))
    for root in [*order[:stop], stranger]:
        was_here, message_id, on_end = ids.take(root)
        assert (was_here, message_id) == (root in twin, twin.pop(root, None))
        if on_end is not None:
            on_end()
        assert ids.take(root)[0] is False
        assert len(ids) == len(twin)
    done = [index for index, roots in expected_end.items() if not roots & twin.keys()]
    assert sorted(ended) == done
    left, calls = ids.take_all()
    assert sorted(left, key=repr) == sorted(twin.values(), key=repr)
    for call in calls:
        call()
    assert sorted(ended) == sorted(expected_end)
    assert len(ids) == 0
