"""Builders of server answers, for tests that start no server."""

from __future__ import annotations

from acker_command.overview import Answer
from acker_protocol.messages import HelloReply, ListedMember, MemberState, ViewReply
from acker_protocol.placement import Member

GENERATION = 0x5F1D0A7700000000


def address(id: int) -> str:
    return f"10.0.0.{id + 1}:7070"


def member(id: int, generation: int | None = None) -> Member:
    return Member(id, GENERATION + id if generation is None else generation, address(id))


def listed(id: int, state: MemberState = MemberState.ACTIVE, away_ms: int = 0) -> ListedMember:
    return ListedMember(member(id), state, away_ms)


def hello(id: int, *, epoch: int = 0, is_draining: bool = False, generation: int | None = None) -> HelloReply:
    it = member(id, generation)
    return HelloReply(2, "0.1.0", it.generation ^ 1, 1 << 24, 64, id, it.generation, is_draining, epoch)


def answer(id: int, view: ViewReply | None = None, *, at: str = "", is_draining: bool = False) -> Answer:
    """Return the answer of server ``id``. Without ``view``, the server knows of no other server."""
    said = hello(id, epoch=0 if view is None else view.epoch, is_draining=is_draining)
    return Answer(at or address(id), said, view or ViewReply(said.incarnation, 0, (listed(id),)))


def silence(at: str, trouble: str = "connection refused") -> Answer:
    return Answer(at, trouble=trouble)


def view(epoch: int, *members: ListedMember) -> ViewReply:
    return ViewReply(1, epoch, members)
