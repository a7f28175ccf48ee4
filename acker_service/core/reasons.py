"""Reasons: a table of the texts that tombstones keep until their init arrives. A tombstone holds the text's number.

Decides how much text is kept, since it comes from clients. When the table is full, a new tombstone gets `LOST` instead
of its text. The table also holds the server's own reason for a conflicting init, since inits take their reasons here.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from acker_protocol.messages import Cause, Kinds, Reason
from acker_service.core import kernels

# The longest reason that is kept, in bytes of UTF-8.
REASON_BYTES = 4096
REASONS_MAX = kernels.TOMBSTONE_REASONS
LOST = "(the server kept too many reasons to keep this one)"


class Reasons:
    """Ids 1 to REASONS_MAX are texts of clients. Id 0 is the empty reason; the last two are `LOST`, ROOT_CONFLICT."""

    def __init__(self) -> None:
        self.texts: list[Reason] = [LOST] * kernels.BY_LOST_REASON + [Cause.ROOT_CONFLICT]
        self._ids: dict[str, int] = {}
        self._free = list(range(REASONS_MAX, 0, -1))

    @property
    def is_full(self) -> bool:
        return not self._free

    def id_of(self, text: str) -> int:
        """Return the id of a text, truncated to REASON_BYTES. Adds a new text. Returns the id of `LOST` if there is no
        room."""
        if not text:
            return 0
        text = truncated(text)
        known = self._ids.get(text)
        if known is not None:
            return known
        if not self._free:
            return kernels.BY_LOST_REASON
        reason_id = self._free.pop()
        self._ids[text] = reason_id
        self.texts[reason_id - 1] = text
        return reason_id

    def free_unused(self, used: Kinds) -> None:
        """Free the ids that no tombstone uses. ``used``: uint8[REASONS_MAX + 2], nonzero at each id in use."""
        for text, reason_id in list(self._ids.items()):
            if not used[reason_id]:
                del self._ids[text]
                self.texts[reason_id - 1] = LOST
                self._free.append(reason_id)

    def empty_marks(self) -> Kinds:
        return np.zeros(kernels.BY_LOST_REASON + 1, np.uint8)

    # -- state

    def dump(self) -> list[tuple[int, str]]:
        return [(reason_id, text) for text, reason_id in self._ids.items()]

    def load(self, pairs: Sequence[tuple[int, str]]) -> None:
        for reason_id, text in pairs:
            if not 0 < reason_id <= REASONS_MAX:
                raise ValueError("a reason has a number beyond the table")
            self._ids[text] = reason_id
            self.texts[reason_id - 1] = text
        self._free = sorted(set(range(1, REASONS_MAX + 1)) - set(self._ids.values()), reverse=True)


def truncated(reason: str) -> str:
    """Return the first REASON_BYTES of a reason, without cutting a character in half."""
    reason = reason[:REASON_BYTES]
    return reason if reason.isascii() else reason.encode()[:REASON_BYTES].decode(errors="ignore")
