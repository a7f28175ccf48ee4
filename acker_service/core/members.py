"""Members: what servers write into ZooKeeper, and the view that follows from what stands there. Pure.

Decides the content of every node, who has an id, which cluster a chroot belongs to, and how a member is listed. Under
the chroot of a cluster:

    config                  persistent: which cluster this is, what all of its servers and clients must agree on, and
                            which incarnation of the ensemble this is: whoever writes it anew counts on
    servers/ids/<id>        ephemeral: a server that serves
    servers/draining/<id>   ephemeral: one that takes nothing new; written before its id goes
    servers/away/<id>       persistent: one that stopped with its state and will be back; written before its id goes
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from acker_protocol.ids import MASK, SLOTS
from acker_protocol.messages import PROTOCOL_VERSION, ListedMember, MemberState
from acker_protocol.placement import Member

# What may stand in the chroot of a cluster that has no `config` yet: all else is somebody else's.
EXPECTED = frozenset({"servers", "consumers", "zookeeper"})

_EVENTS = {
    MemberState.ACTIVE: "member_joined",
    MemberState.DRAINING: "member_draining",
    MemberState.AWAY: "member_away",
}


@dataclass(frozen=True, slots=True)
class Registered:
    """A server as it registers itself. ``incarnation``: of its process; ``generation``: of its state."""

    id: int
    host: str
    port: int
    version: str
    generation: int
    incarnation: int

    @property
    def address(self) -> str:
        return f"{self.host}:{self.port}"

    @property
    def member(self) -> Member:
        return Member(self.id, self.generation, self.address)

    def dump(self) -> bytes:
        """JSON; 64-bit numbers as hex, which no reader rounds."""
        return _json(
            host=self.host,
            port=self.port,
            version=self.version,
            generation=hex(self.generation),
            incarnation=hex(self.incarnation),
        )

    @classmethod
    def load(cls, id: str, content: bytes) -> Registered:
        """Raises ValueError where that is no server."""
        fields = _fields(content)
        try:
            generation, incarnation = int(fields["generation"], 16), int(fields["incarnation"], 16)
            server = cls(int(id), fields["host"], int(fields["port"]), str(fields["version"]), generation, incarnation)
            server.member  # noqa: B018  # checks them
        except (KeyError, TypeError) as error:
            raise ValueError(f"no server of an acker: {error!r}") from None
        return server


@dataclass(frozen=True, slots=True)
class Away:
    """A member that stopped with its state and is to be back before ``until_ms``, Unix time."""

    member: Member
    until_ms: int

    def dump(self) -> bytes:
        generation = hex(self.member.generation)
        return _json(address=self.member.address, generation=generation, until_ms=self.until_ms)

    @classmethod
    def load(cls, id: str, content: bytes) -> Away:
        """Raises ValueError where that is none."""
        fields = _fields(content)
        try:
            member = Member(int(id), int(fields["generation"], 16), fields["address"])
            return cls(member, int(fields["until_ms"]))
        except (KeyError, TypeError) as error:
            raise ValueError(f"no member that is away: {error!r}") from None


@dataclass(frozen=True, slots=True)
class Seen:
    """What stood in ZooKeeper at an epoch, as ``epoch_of`` makes it. ``away``: also those whose time has passed."""

    epoch: int = 0
    serving: tuple[Registered, ...] = ()
    draining: tuple[Registered, ...] = ()
    away: tuple[Away, ...] = ()

    def listed(self, now_ms: int) -> tuple[ListedMember, ...]:
        """The members at ``now_ms``, Unix time, ascending by id. Of nodes that share an id the latest word of its
        server counts: it drains, though its registration still stands; it serves, though it was away or another
        process of it drained."""
        found = {away.member.id: _listed(away, now_ms) for away in self.away if away.until_ms > now_ms}
        found |= {server.id: ListedMember(server.member, MemberState.DRAINING) for server in self.draining}
        draining = {server.incarnation for server in self.draining}
        found |= {s.id: ListedMember(s.member) for s in self.serving if s.incarnation not in draining}
        return tuple(found[id] for id in sorted(found))

    def lacks(self, before: Seen) -> bool:
        """Is a server gone that served or drained ``before``?"""
        here = {server.member for server in self.serving + self.draining} | {away.member for away in self.away}
        return any(server.member not in here for server in before.serving + before.draining)

    def past(self, now_ms: int) -> list[int]:
        """Ids of those whose time is up. Who serves removes its own node: it may be one for a stop that has begun."""
        return [away.member.id for away in self.away if away.until_ms <= now_ms]

    def next_change_ms(self, now_ms: int) -> int | None:
        """In how many ms the list changes by itself, as the time of a member that is away is up."""
        return min((away.until_ms - now_ms for away in self.away if away.until_ms > now_ms), default=None)


def changes(before: Sequence[ListedMember], after: Sequence[ListedMember]) -> list[tuple[str, ListedMember]]:
    """What became of whom, as events of a log."""
    known = {(each.member.id, each.member.generation): each for each in before}
    found = {(each.member.id, each.member.generation): each for each in after}
    gone = [("member_left", each) for key, each in known.items() if key not in found]
    come = [
        (_EVENTS[each.state], each) for key, each in found.items() if key not in known or known[key].state != each.state
    ]
    return gone + come


def loaded(kind: Any, contents: Mapping[str, bytes]) -> tuple[list[Any], list[str]]:
    """Everybody of a ``kind``, and a sentence for each node that holds something else."""
    found, troubles = [], []
    for id, content in contents.items():
        try:
            found.append(kind.load(id, content))
        except ValueError as error:
            troubles.append(f"{id}: {error}")
    return found, troubles


# -- whose id, whose cluster


def rival(server: Registered, others: Iterable[Registered]) -> Registered | None:
    """Whoever keeps ``server`` from registering: it has the id, or the address."""
    for other in others:
        if other.incarnation != server.incarnation and (other.id == server.id or other.address == server.address):
            return other
    return None


def may_be_dead(server: Registered, other: Registered) -> bool:
    """May ``other`` be what is left of a process that was ``server`` before?"""
    return other.id == server.id and other.address == server.address


def refusal(server: Registered, other: Registered) -> str:
    """Why ``other`` keeps ``server`` from registering, and what to do."""
    who = f"{other.address} (acker {other.version})"
    if other.address != server.address:
        return f"id {server.id} is taken by the server at {who}: give this one another --id"
    if other.id == server.id:
        return f"id {server.id} and address {server.address} are taken by a server that runs: stop it first"
    return (
        f"the address {server.address} is that of server {other.id} already: "
        "give every server an --advertise of its own, at which clients reach it alone"
    )


def new_config(cluster: str, ensemble: int) -> bytes:
    """``cluster``: what names it, drawn once. ``ensemble``: the incarnation of the ensemble in which it is written."""
    return _json(acker=cluster, ensemble=ensemble, protocol_version=PROTOCOL_VERSION, slots=SLOTS)


def cluster_of(config: bytes) -> str:
    """What names the cluster of a `config`; "" where that is no acker's."""
    return str(_fields_or_none(config).get("acker") or "")


def ensemble_of(config: bytes) -> int:
    """The incarnation of the ensemble that a `config` was written in, uint64; 0 where an older acker wrote it."""
    ensemble = _fields_or_none(config).get("ensemble")
    return ensemble if type(ensemble) is int and 0 <= ensemble <= MASK else 0


def next_ensemble(known: int, now_ms: int) -> int:
    """The incarnation of an ensemble that has lost its data, above the one that was ``known``, 0 for none.

    ``now_ms``, Unix time, makes it later than others that this server may never have heard of.
    """
    return max(known + 1, now_ms)


def follows(config: bytes, before: bytes) -> bool:
    """May a server that knows the `config` ``before`` ("" for none) go by ``config``? Else the ensemble went back."""
    return not before or config == before or ensemble_of(config) > ensemble_of(before)


def foreign(children: Collection[str]) -> str:
    """Why a chroot without `config` is not an acker's to take, by what stands in it; nothing ("") where it is."""
    others = sorted(set(children) - EXPECTED)
    if not others:
        return ""
    shown = ", ".join(others[:3]) + (" ..." if len(others) > 3 else "")
    return f"it holds {shown}, which is no acker's: name a chroot of its own"


def disagreement(config: bytes) -> str:
    """Why a server of this version is none of the cluster with this `config`; nothing ("") where it is."""
    fields = _fields_or_none(config)
    if not fields.get("acker"):
        return "its `config` is no acker's, so it belongs to another cluster: name a chroot of its own"
    ours = {"protocol_version": PROTOCOL_VERSION, "slots": SLOTS}
    for name, value in ours.items():
        if fields.get(name) != value:
            return (
                f"its servers have {name} {fields.get(name)} and this one has {value}: run one version of acker in a "
                "cluster, stop all of its servers before the first of another version starts, or name another chroot"
            )
    return ""


def renewed(config: bytes, ensemble: int | None = None) -> bytes | None:
    """The `config` of a cluster that is to go on in this version, and in another ``ensemble`` if one is given; None
    where it is no acker's."""
    cluster = cluster_of(config)
    return new_config(cluster, ensemble_of(config) if ensemble is None else ensemble) if cluster else None


def _listed(away: Away, now_ms: int) -> ListedMember:
    return ListedMember(away.member, MemberState.AWAY, min(away.until_ms - now_ms, 0xFFFFFFFF))


def _json(**fields: Any) -> bytes:
    return json.dumps(fields).encode()


def _fields(content: bytes) -> dict[str, Any]:
    fields = json.loads(content)
    if not isinstance(fields, dict):
        raise ValueError("no JSON object")
    return fields


def _fields_or_none(content: bytes) -> dict[str, Any]:
    """The fields of a JSON object; none where it is no such object."""
    try:
        return _fields(content)
    except ValueError:
        return {}
