"""Overview: combines the answers of servers: the members, the state of each, and what is wrong. Pure.

Decides which view counts, and the state of each member. If some server knows of the others (ZooKeeper), the newest view
lists the members. Otherwise they are the servers that were named.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from acker_protocol.messages import HelloReply, ListedMember, MemberState, ViewReply
from acker_protocol.placement import Member, View, parts_of


@dataclass(frozen=True, slots=True)
class Answer:
    """The answer of the server at ``address``; ``trouble``: why there is no ``hello``."""

    address: str
    hello: HelloReply | None = None
    view: ViewReply | None = None
    trouble: str = ""


@dataclass(frozen=True, slots=True)
class SeenMember:
    """A server. ``id``, ``generation``, ``state``, ``version``, ``incarnation``: None if unknown.

    ``is_answering``: the server itself has answered. ``away_ms``: how much longer an AWAY server may stay away.
    """

    address: str
    id: int | None = None
    generation: int | None = None
    state: MemberState | None = None
    version: str | None = None
    incarnation: int | None = None
    is_answering: bool = False
    away_ms: int = 0

    @property
    def condition(self) -> str:
        """The member's state in words."""
        if self.state is None:
            return "no answer"
        if self.state == MemberState.AWAY:
            return f"away, {self.away_ms / 1000:.0f} s"
        name = self.state.name.lower()
        return name if self.is_answering else f"{name}, no answer"

    @property
    def takes_batches(self) -> bool:
        """Whether clients place new batches on it."""
        return self.state == MemberState.ACTIVE

    @property
    def short_generation(self) -> str:
        """The first digits of the generation, enough to tell two apart."""
        return "-" if self.generation is None else f"{self.generation:016x}"[:8]


@dataclass(frozen=True, slots=True)
class Overview:
    """Members, sorted by id, with unknown ids last. ``epoch`` 0: no server knows of others. ``notes``: sentences."""

    epoch: int
    members: tuple[SeenMember, ...]
    notes: tuple[str, ...] = ()

    @property
    def view(self) -> View:
        """The view on which clients place new batches."""
        taking = [seen for seen in self.members if seen.takes_batches]
        members = [Member(seen.id or 0, seen.generation or 0, seen.address) for seen in taking]
        return View(self.epoch, tuple(members))

    def summary(self) -> str:
        """One line for people."""
        counts = {state: sum(seen.state == state for seen in self.members) for state in MemberState}
        parts = [f"{len(self.members)} server{'s' * (len(self.members) != 1)}"]
        parts += [f"{count} {state.name.lower()}" for state, count in counts.items() if count]
        silent = sum(not seen.is_answering and seen.state != MemberState.AWAY for seen in self.members)
        parts += [f"{silent} without an answer"] if silent else []
        epoch = f"epoch {parts_of(self.epoch)[1]}" if self.epoch else "no ZooKeeper"
        return f"{epoch}: {', '.join(parts)}"


def newest(answers: Sequence[Answer]) -> ViewReply | None:
    """Return the view that counts; None if no server knows of other servers."""
    views = [answer.view for answer in answers if answer.view is not None and answer.view.epoch]
    return max(views, key=lambda view: view.epoch, default=None)


def registered(view: ViewReply, answers: Sequence[Answer]) -> Overview:
    """Combine ``view`` with the ``answers`` of its members and of the servers that were named."""
    by_address = {answer.address: answer for answer in answers}
    members = tuple(_registered(listed, by_address.get(listed.member.address)) for listed in view.members)
    incarnations = {seen.incarnation for seen in members if seen.is_answering}
    addresses = {seen.address for seen in members if seen.is_answering or seen.state == MemberState.AWAY}
    others = [answer for answer in answers if answer.address not in addresses]
    notes = [note for answer in others if (note := _oddity_of(answer, view, incarnations))]
    return Overview(view.epoch, members, tuple(notes))


def of_list(answers: Sequence[Answer]) -> Overview:
    """Combine the answers of servers without ZooKeeper. Raises ValueError with a sentence if two have the same id."""
    members: dict[int, SeenMember] = {}
    silent: list[SeenMember] = []
    notes: list[str] = []
    for answer in answers:
        if answer.hello is None:
            silent.append(SeenMember(answer.address))
            notes.append(f"{answer.address} does not answer: {answer.trouble}")
            continue
        seen = _seen(answer.address, answer.hello)
        other = members.setdefault(answer.hello.id, seen)
        if other.incarnation != seen.incarnation:
            raise ValueError(same_id(other.address, seen.address, answer.hello.id))
        if other is not seen:
            notes.append(f"{seen.address} is the same server as {other.address}: name it once")
    return Overview(0, tuple(members[id] for id in sorted(members)) + tuple(silent), tuple(notes))


def same_id(one: str, other: str, id: int) -> str:
    """Return the error for two servers of one list that have the same ``id``."""
    return (
        f"the servers at {one} and {other} both have the id {id}: start each with an --id of its own, 0, 1, 2 ..., or "
        "name them apart"
    )


def _registered(listed: ListedMember, answer: Answer | None) -> SeenMember:
    member = listed.member
    hello = None if answer is None else answer.hello
    if hello is None or (hello.id, hello.generation) != (member.id, member.generation):
        return SeenMember(member.address, member.id, member.generation, listed.state, away_ms=listed.away_ms)
    seen = _seen(member.address, hello)
    # The server's own answer may be a moment older, or newer, than another server's view.
    return replace(seen, state=MemberState.DRAINING) if listed.state == MemberState.DRAINING else seen


def _seen(address: str, hello: HelloReply) -> SeenMember:
    state = MemberState.DRAINING if hello.is_draining else MemberState.ACTIVE
    return SeenMember(address, hello.id, hello.generation, state, hello.server_version, hello.incarnation, True)


def _oddity_of(answer: Answer, view: ViewReply, incarnations: set[int | None]) -> str:
    """Return what is wrong with a server that does not answer as a member of the view; "" if nothing is."""
    listed = next((each.member for each in view.members if each.member.address == answer.address), None)
    hello = answer.hello
    if hello is None:
        where = "" if listed is not None else ", and is no member: it has left, or is not where it was named"
        return f"{answer.address} does not answer{where}: {answer.trouble}"
    if hello.incarnation in incarnations:
        return ""
    if listed is not None:
        return (
            f"at {answer.address} server {hello.id} of generation {hello.generation:016x} answers, and the view lists "
            f"{listed.id} of generation {listed.generation:016x}: it was started anew just now, or two servers share "
            "that address"
        )
    if not hello.epoch:
        return f"{answer.address} knows of no other servers and is none of these: start it with --zookeeper"
    epoch = parts_of(view.epoch)[1]
    return f"{answer.address} (id {hello.id}) is none of epoch {epoch}: it has just come, or is of another cluster"
