"""Membership: who serves.

Decides what a member and a view are. Without ZooKeeper there is one server, and the view never changes.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Member:
    """One server process. ``incarnation``: random u64, drawn at each start: a restarted server is another one."""

    id: int
    incarnation: int
    address: str


@dataclass(frozen=True, slots=True)
class View:
    """Who serves at an epoch; a view with a higher epoch is newer."""

    epoch: int
    members: tuple[Member, ...]


class StaticMembership:
    """A membership that is given once: here one server, which owns every slot."""

    def __init__(self, me: Member) -> None:
        self.me = me
        self.view = View(epoch=1, members=(me,))
