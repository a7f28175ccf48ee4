"""Opening: something of a source is opened at all its members, placed anew while one of them does not answer.

Decides who is tried next, and how the time is shared out between attempts.
"""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Set as AbstractSet

from acker_client.backoff import Patience
from acker_client.errors import Draining, Unavailable
from acker_protocol.placement import Member, View


class Opening:
    """Something that is to be opened at its members. ``opened``: those at which it is; ``is_there_another``: whether it
    might be placed on somebody else instead of one."""

    def __init__(self, members: tuple[Member, ...], is_there_another: Callable[[Member], bool]) -> None:
        self.left = members
        self._is_there_another = is_there_another
        self.opened: set[Member] = set()
        self.out: set[Member] = set()

    def covers(self, member: Member) -> bool:
        # It is placed anew then, without those that are silent.
        return any(other != member for other in self.opened) or self._is_there_another(member)

    def leave(self, member: Member, why: str) -> None:
        self.out.add(member)


def until_opened(attempt: Callable[[AbstractSet[Member], float], AbstractSet[Member]], patience: Patience) -> None:
    """Make attempts until one leaves nobody out, each without the members that were silent so far; when those that are
    left do not answer either, half of the time goes to all of them again.

    ``attempt(silent, budget_s)`` returns who was silent in it."""
    silent: AbstractSet[Member] = set()
    while True:
        left_s = patience.deadline.left_s
        try:
            out = attempt(silent, left_s / 2 if silent else left_s)
        except Draining:
            continue
        except Unavailable:
            if not silent:
                raise
            silent = set()
            continue
        if not out:
            return
        if out <= silent and not patience.wait():
            raise Unavailable("no server took it in time: those that there are do not answer, or lost what they knew")
        silent = silent | out


def answering(view: View, silent: AbstractSet[Member]) -> View:
    """The view without those that are silent, unless all are."""
    left = tuple(member for member in view.members if member not in silent)
    return View(view.epoch, left or view.members)
