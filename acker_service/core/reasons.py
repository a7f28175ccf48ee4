"""Reasons: a table of the texts that tombstones keep until their init arrives. A tombstone holds the text's number.

Decides how much text is kept, since it comes from clients, and what it takes. When the table or the memory for reasons
is full, a new tombstone gets `LOST` instead of its text. The table also holds the server's own reason for a conflicting
init, since inits take their reasons here.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping

import numpy as np

from acker_protocol.messages import Cause, Reason
from acker_service.core import kernels
from acker_service.core.parts import Array, joined_texts, split_texts
from acker_service.core.room import HeldBytes

# The longest reason that is kept, in bytes of UTF-8.
REASON_BYTES = 4096
# Most that a table needs for a reason besides its text: an entry of a dict that has just grown, a number, and an entry
# of a list.
ENTRY_BYTES = 100
# A text of REASON_BYTES takes at most this, with four bytes a character, and its UTF-8.
HELD_MAX_BYTES = 6 * REASON_BYTES
REASONS_MAX = kernels.TOMBSTONE_REASONS
LOST = "(the server kept too many reasons to keep this one)"


class Reasons:
    """Ids 1 to REASONS_MAX are texts of clients. Id 0 is the empty reason; the last two are `LOST`, ROOT_CONFLICT."""

    def __init__(self, held: HeldBytes) -> None:
        """``held``: the memory of all reasons of the server."""
        self._held = held
        self.texts: list[Reason] = [LOST] * kernels.BY_LOST_REASON + [Cause.ROOT_CONFLICT]
        self._ids: dict[str, int] = {}
        self._free = list(range(REASONS_MAX, 0, -1))
        # The memory of each text, by its id.
        self._sizes = [0] * (REASONS_MAX + 1)

    @property
    def is_full(self) -> bool:
        """Whether a new text may find no room, and unused ones could make some."""
        return bool(self._ids) and not (self._free and self._held.fits(HELD_MAX_BYTES))

    def id_of(self, text: str) -> int:
        """Return the id of a text of at most REASON_BYTES. Adds a new text. Returns the id of `LOST` if there is no
        room."""
        if not text:
            return 0
        known = self._ids.get(text)
        if known is not None:
            return known
        # A text has no more characters than bytes. Most texts that do not fit are not encoded for that.
        if not self._free or not self._held.fits(len(text)) or not self._held.fits(held_bytes(text)):
            return kernels.BY_LOST_REASON
        reason_id = self._free.pop()
        try:
            self._keep(text, reason_id)
        except MemoryError:
            self._free.append(reason_id)
            raise
        return reason_id

    def free_unused(self, uses: Array) -> None:
        """Free the ids that no tombstone uses. ``uses``: how many tombstones have each id."""
        for text, reason_id in [*self._ids.items()]:
            if uses[reason_id]:
                continue
            held_bytes_left = self._held.bytes - self._sizes[reason_id]
            self._free.append(reason_id)
            # Nothing below can fail.
            del self._ids[text]
            self.texts[reason_id - 1] = LOST
            self._held.bytes = held_bytes_left

    # -- state

    def dump(self) -> dict[str, Array]:
        """Return the columns ``ids`` (uint32), ``texts`` and ``text_sizes`` (see `joined_texts`)."""
        return {"ids": np.array([*self._ids.values()], np.uint32), **joined_texts(self._ids)}

    def load(self, columns: Mapping[str, Array]) -> None:
        """Load the result of `dump`. Raises ValueError if it is incomplete."""
        for reason_id, text in zip(columns["ids"].tolist(), split_texts(columns), strict=True):
            if not 0 < reason_id <= REASONS_MAX:
                raise ValueError("a reason has a number beyond the table")
            self._keep(text, reason_id)
        self._free = sorted(set(range(1, REASONS_MAX + 1)) - set(self._ids.values()), reverse=True)

    def _keep(self, text: str, reason_id: int) -> None:
        size = held_bytes(text)
        held = self._held.bytes + size
        self._ids[text] = reason_id
        # Nothing below can fail.
        self.texts[reason_id - 1], self._sizes[reason_id] = text, size
        self._held.bytes = held


def held_bytes(text: str, size: int | None = None) -> int:
    """Return the memory of a kept text: the string, its UTF-8 that Python keeps once it was sent, and its entry.
    ``size``: of the UTF-8, if it is known."""
    if text.isascii():
        return sys.getsizeof(text) + ENTRY_BYTES
    return sys.getsizeof(text) + (len(text.encode()) if size is None else size) + 1 + ENTRY_BYTES


def truncated(reason: str) -> str:
    """Return the first REASON_BYTES of a reason, without cutting a character in half."""
    reason = reason[:REASON_BYTES]
    # Decoded text has no UTF-8 yet, so `held_bytes` does not count it twice.
    return reason if reason.isascii() else reason.encode()[:REASON_BYTES].decode(errors="ignore")
