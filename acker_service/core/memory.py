"""Memory: how the memory of a server is divided among its kinds of data.

Decides the bounds of each kind that follow from the memory of the whole server, and what they add up to. The shares are
for the worst case: as many roots, orphans and outcomes as there can be at once.
"""

from __future__ import annotations

from dataclasses import dataclass

# The process with its threads, and the requests that it is reading.
PROCESS_BYTES = 320 << 20
# An empty shard: the process has room for one, and each further namespace counts its own.
SHARD_BYTES = 5 << 20
# Per root of ``max_pending``: 40 for its cell, 20 for half an orphan, 16 for its outcome while the ledger keeps the
# room of its cell, 4 for the bit maps of its batch.
ROOT_BYTES = 80
# Other bounds leave at least this much for the kinds that follow from the memory.
REST_MIN_BYTES = 32 << 20
# The memory of a server that knows of no limit: enough for 20 million roots.
DEFAULT_BYTES = 2816 << 20

# Weights of the kinds. SPARE is for sources, answers to Settle, and what an allocator cannot use.
_WEIGHTS = {"pending": 64, "identities": 20, "reasons": 4, "pins": 4, "unread": 4}
_SPARE = 4


class DoesNotFit(ValueError):
    """Bounds that need more than the memory. ``needed_bytes``: what they need."""

    def __init__(self, needed_bytes: int) -> None:
        super().__init__(f"{needed_bytes} bytes are needed")
        self.needed_bytes = needed_bytes


@dataclass(frozen=True, slots=True)
class Bounds:
    """The bounds of one server: ``max_pending`` in roots, the others in bytes. ``max_unread_bytes`` is for replies that
    their clients have not read yet."""

    max_pending: int
    max_identity_bytes: int
    max_reasons_bytes: int
    max_pins_bytes: int
    max_unread_bytes: int

    @property
    def needed_bytes(self) -> int:
        """The memory that the server needs when all bounds are reached."""
        kept = self.max_identity_bytes + self.max_reasons_bytes + self.max_pins_bytes + self.max_unread_bytes
        return PROCESS_BYTES + ROOT_BYTES * self.max_pending + kept


def bounds_of(
    max_memory: int,
    max_pending: int | None = None,
    max_identity_bytes: int | None = None,
    process_bytes: int = PROCESS_BYTES,
) -> Bounds:
    """Divide ``max_memory`` bytes among all kinds. Bounds that are given stay, and the others share the rest.
    ``process_bytes``: what is used before any data comes.

    Raises :class:`DoesNotFit` if the bounds that are given leave less than REST_MIN_BYTES.
    """
    given = ROOT_BYTES * (max_pending or 0) + (max_identity_bytes or 0)
    rest = max_memory - process_bytes - given
    if rest < REST_MIN_BYTES:
        raise DoesNotFit(process_bytes + given + REST_MIN_BYTES)
    is_given = {"pending": max_pending is not None, "identities": max_identity_bytes is not None}
    weights = {kind: weight for kind, weight in _WEIGHTS.items() if not is_given.get(kind)}
    of_one = rest / (sum(weights.values()) + _SPARE)

    def share(kind: str) -> int:
        return int(of_one * _WEIGHTS[kind])

    return Bounds(
        share("pending") // ROOT_BYTES if max_pending is None else max_pending,
        share("identities") if max_identity_bytes is None else max_identity_bytes,
        share("reasons"),
        share("pins"),
        share("unread"),
    )
