"""Message ids: which message of the user each emission is, from before it is sent until its outcome. Pure.

Emissions that were made one by one are kept by their root id. Emissions that were made as columns have consecutive
numbers, and are kept as blocks: such a block takes one byte a row besides the message ids.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass, field

from acker_protocol.ids import root_id, unmix64


@dataclass(slots=True)
class MessageBlock:
    """Emissions with the numbers from ``first`` on. ``ids``: their message ids, from position ``start`` on; None if
    these are the root ids, signed.

    ``on_end``: called when each of them has its outcome.
    """

    first: int
    count: int
    ids: Sequence[Hashable] | None
    start: int = 0
    on_end: Callable[[], object] | None = None
    left: int = field(init=False)
    taken: bytearray = field(init=False)

    def __post_init__(self) -> None:
        self.left, self.taken = self.count, bytearray(self.count)

    def id_of(self, index: int) -> Hashable:
        return signed(root_id(self.first, index)) if self.ids is None else self.ids[self.start + index]


class MessageIds:
    """The message ids of emissions without an outcome. Not thread-safe: the caller holds a lock around every method."""

    def __init__(self) -> None:
        self._by_root: dict[int, Hashable] = {}
        # By first number, ascending.
        self._blocks: list[MessageBlock] = []
        self._in_blocks = 0

    def __len__(self) -> int:
        return len(self._by_root) + self._in_blocks

    def add(self, root: int, message_id: Hashable) -> None:
        """Add an emission. ``root``: unsigned."""
        self._by_root[root] = message_id

    def add_block(self, block: MessageBlock) -> None:
        """Add emissions with consecutive numbers."""
        at = bisect_right(self._blocks, block.first, key=lambda each: each.first)
        self._blocks.insert(at, block)
        self._in_blocks += block.count

    def remove_block(self, first: int) -> None:
        """Remove the emissions of a block that have no outcome yet."""
        self._in_blocks -= sum(block.left for block in self._blocks if block.first == first)
        self._blocks = [block for block in self._blocks if block.first != first]

    def take(self, root: int) -> tuple[bool, Hashable, Callable[[], object] | None]:
        """Remove an emission. Return whether it was here, its message id, and what to call if its block has ended."""
        if root in self._by_root:
            return True, self._by_root.pop(root), None
        number = unmix64(root)
        at = bisect_right(self._blocks, number, key=lambda each: each.first) - 1
        block = self._blocks[at] if at >= 0 else None
        if block is None or number - block.first >= block.count or block.taken[number - block.first]:
            return False, None, None
        index = number - block.first
        block.taken[index] = 1
        block.left -= 1
        self._in_blocks -= 1
        if not block.left:
            del self._blocks[at]
        return True, block.id_of(index), None if block.left else block.on_end

    def take_all(self) -> tuple[Iterator[Hashable], list[Callable[[], object]]]:
        """Remove all emissions. Return their message ids, and what to call for the blocks among them."""
        by_root, blocks = self._by_root, self._blocks
        self._by_root, self._blocks, self._in_blocks = {}, [], 0

        def ids() -> Iterator[Hashable]:
            yield from by_root.values()
            for block in blocks:
                yield from (block.id_of(index) for index in range(block.count) if not block.taken[index])

        return ids(), [block.on_end for block in blocks if block.on_end is not None]


def signed(value: int) -> int:
    """Return an id of 64 bits as a signed number, which is Spark's ``long``."""
    return value if value < 1 << 63 else value - (1 << 64)
