"""Fair queue: items that wait, each with an owner. Pure.

Decides who is next: owners take turns, and the items of one owner keep their order. So one owner with many items delays
another owner by one item only. Not thread-safe.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Hashable, Iterator
from typing import Generic, TypeVar

Item = TypeVar("Item")


class FairQueue(Generic[Item]):
    """Items by owner. Owners that have waited for longest are first."""

    def __init__(self) -> None:
        # In the order of their next turns. No owner is without items.
        self._items: dict[Hashable, deque[Item]] = {}
        self._length = 0

    def __len__(self) -> int:
        return self._length

    def __iter__(self) -> Iterator[tuple[Hashable, Collection[Item]]]:
        """Yield each owner and its items. The owner of the next turn is first."""
        return iter(self._items.items())

    def __contains__(self, owner: object) -> bool:
        """Whether items of this owner wait."""
        return owner in self._items

    def append(self, owner: Hashable, item: Item) -> None:
        self._items.setdefault(owner, deque()).append(item)
        self._length += 1

    def pop(self, may: Callable[[Hashable], bool] = lambda owner: True) -> tuple[Hashable, Item] | None:
        """Remove and return the next owner and item; None if no owner is allowed. ``may``: whether an owner is."""
        for owner in self._items:
            if may(owner):
                break
        else:
            return None
        items = self._items.pop(owner)
        item = items.popleft()
        if items:
            self._items[owner] = items
        self._length -= 1
        return owner, item
