"""Registration: what a source knows of itself at the server, poll by poll. Pure.

Decides what each poll asks and confirms, and when the server has lost what it knew. Never waits or sends.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from acker_protocol.messages import Outcomes


@dataclass(frozen=True, slots=True)
class Watched:
    """What one watch brought.

    ``generation_changed``: the server no longer knows what this source had pending (it restarted without its state, or the
    lease ran out): every root that is pending at the source is LOST, now. It is told once, and ``outcomes`` are then of
    roots of the new state. ``answered``: False when the server was silent for the whole call. ``cursor``: all outcomes up
    to it have been handed over (compare ``SettleReply.cursor``).
    """

    outcomes: Outcomes = field(default_factory=Outcomes)
    generation_changed: bool = False
    answered: bool = False
    cursor: int = 0
