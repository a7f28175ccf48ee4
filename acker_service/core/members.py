"""Members: what servers write into ZooKeeper, and the view that is read from it. Pure.

Decides the content of every node, which server owns an id, which cluster a chroot belongs to, and how a member is
listed. Nodes under the chroot of a cluster:

    config                  persistent: the cluster's name, the settings that all servers and clients must share, and
                            the incarnation of the ensemble, which grows when the ensemble has lost data
    servers/ids/<id>        ephemeral: a server that serves
    servers/draining/<id>   ephemeral: a server that drains; created before the server deletes its node in ids
    servers/away/<id>       persistent: a server that stopped with its state and will be back; created before the server
                            deletes its node in ids
    servers/known/<id>      persistent: a server that has registered and not left. A server that starts while others
                            have lost their sessions learns of them here. Any server deletes the node once it no longer
                            lists that server
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from acker_protocol.ids import MASK, SLOTS
from acker_protocol.messages import PROTOCOL_VERSION, ListedMember, MemberState
from acker_protocol.placement import Member

# The nodes that a chroot without `config` may hold. Any other node means that the chroot is not an acker's.
EXPECTED = frozenset({"servers", "consumers", "zookeeper"})

_EVENTS = {
    MemberState.ACTIVE: "member_joined",
    MemberState.DRAINING: "member_draining",
    MemberState.AWAY: "member_away",
}


@dataclass(frozen=True, slots=True)
class Registered:
    """The node of a server in ids and draining. ``incarnation`` names its process, ``generation`` its state."""

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
        """Return JSON. 64-bit numbers are hex text, since JSON readers may round large numbers."""
        return _json(
            host=self.host,
            port=self.port,
            version=self.version,
            generation=hex(self.generation),
            incarnation=hex(self.incarnation),
        )

    @classmethod
    def load(cls, id: str, content: bytes) -> Registered:
        """Parse a node. Raises ValueError if ``content`` is not a server."""
        fields = _fields(content)
        try:
            generation, incarnation = int(fields["generation"], 16), int(fields["incarnation"], 16)
            server = cls(int(id), fields["host"], int(fields["port"]), str(fields["version"]), generation, incarnation)
            server.member  # noqa: B018  # raises ValueError for an invalid id, generation or address
        except (KeyError, OverflowError, TypeError) as error:
            raise ValueError(f"not a server of an acker: {error!r}") from None
        return server


@dataclass(frozen=True, slots=True)
class Away:
    """A member that stopped with its state and will be back before ``until_ms``, Unix time."""

    member: Member
    until_ms: int

    def dump(self) -> bytes:
        generation = hex(self.member.generation)
        return _json(address=self.member.address, generation=generation, until_ms=self.until_ms)

    @classmethod
    def load(cls, id: str, content: bytes) -> Away:
        """Parse a node. Raises ValueError if ``content`` is not an away member."""
        fields = _fields(content)
        try:
            member = Member(int(id), int(fields["generation"], 16), fields["address"])
            return cls(member, int(fields["until_ms"]))
        except (KeyError, OverflowError, TypeError) as error:
            raise ValueError(f"not a member that is away: {error!r}") from None


@dataclass(frozen=True, slots=True)
class Seen:
    """The content of ZooKeeper at an epoch (see ``epoch_of``). ``away`` includes members whose time has passed.

    ``expected``: servers that have probably lost their sessions and are about to register again, and for how long they
    are expected. They are listed as away: clients wait for them and place nothing new on them. Only a later read of
    ZooKeeper removes them, since they cannot register while ZooKeeper is unreachable.
    """

    epoch: int = 0
    serving: tuple[Registered, ...] = ()
    draining: tuple[Registered, ...] = ()
    away: tuple[Away, ...] = ()
    expected: tuple[Away, ...] = ()

    def expecting(self, servers: Iterable[Registered], until_ms: int) -> Seen:
        """Return a copy that also expects ``servers``. All expected servers get the time ``until_ms``, Unix time."""
        expected = {each.member.id: each.member for each in self.expected} | {each.id: each.member for each in servers}
        return replace(self, expected=tuple(Away(member, until_ms) for member in expected.values()))

    def still_expecting(self, known: Collection[str], now_ms: int) -> tuple[Away, ...]:
        """Return the ``expected`` servers whose time is not up and whose ids are in ``known``: the others have left."""
        return tuple(each for each in self.expected if str(each.member.id) in known and each.until_ms > now_ms)

    def listed(self, now_ms: int) -> tuple[ListedMember, ...]:
        """Return the members at ``now_ms``, Unix time, ascending by id.

        If several nodes have one id, the latest state of the server counts. A draining node overrides the registration
        of the same process. A registration overrides an away node, and the draining node of another process. Each of
        these nodes overrides an expected server, and so does any server at its address.
        """
        addresses = {server.address for server in self.serving + self.draining}
        absent = [each for each in self.expected if each.member.address not in addresses]
        absent += [each for each in self.away if each.until_ms > now_ms]
        found = {each.member.id: _listed_away(each, now_ms) for each in absent}
        found |= {server.id: ListedMember(server.member, MemberState.DRAINING) for server in self.draining}
        draining = {server.incarnation for server in self.draining}
        found |= {s.id: ListedMember(s.member) for s in self.serving if s.incarnation not in draining}
        return tuple(found[id] for id in sorted(found))

    def expired_away_ids(self, now_ms: int) -> list[int]:
        """Return the ids of away members whose time is up."""
        return [away.member.id for away in self.away if away.until_ms <= now_ms]

    def next_change_ms(self, now_ms: int) -> int | None:
        """Return the ms until the time of an away or expected member is up; None if there is no such member."""
        absent = self.away + self.expected
        return min((each.until_ms - now_ms for each in absent if each.until_ms > now_ms), default=None)


def changes(before: Sequence[ListedMember], after: Sequence[ListedMember]) -> list[tuple[str, ListedMember]]:
    """Return (log event, member) for each member that left, joined or changed its state."""
    known = {(each.member.id, each.member.generation): each for each in before}
    found = {(each.member.id, each.member.generation): each for each in after}
    left = [("member_left", each) for key, each in known.items() if key not in found]
    changed = [
        (_EVENTS[each.state], each) for key, each in found.items() if key not in known or known[key].state != each.state
    ]
    return left + changed


def loaded(kind: Any, contents: Mapping[str, bytes]) -> tuple[list[Any], list[str]]:
    """Load nodes as ``kind`` (Registered or Away). Returns the objects, and an error for each invalid node."""
    found, troubles = [], []
    for id, content in contents.items():
        try:
            found.append(kind.load(id, content))
        except ValueError as error:
            troubles.append(f"{id}: {error}")
    return found, troubles


# -- which server owns an id, which cluster owns a chroot


def rival(server: Registered, others: Iterable[Registered]) -> Registered | None:
    """Return another process that has the id or the address of ``server``; None if there is none."""
    for other in others:
        if other.incarnation != server.incarnation and (other.id == server.id or other.address == server.address):
            return other
    return None


def may_be_dead(server: Registered, other: Registered) -> bool:
    """May ``other`` be the leftover node of an earlier process of ``server``?"""
    return other.id == server.id and other.address == server.address


def refusal(server: Registered, other: Registered) -> str:
    """Return why ``other`` keeps ``server`` from registering, and what to do."""
    holder = f"{other.address} (acker {other.version})"
    if other.address != server.address:
        return f"id {server.id} is taken by the server at {holder}: give this one another --id"
    if other.id == server.id:
        return f"id {server.id} and address {server.address} are taken by a server that runs: stop it first"
    return (
        f"server {other.id} already uses the address {server.address}: "
        "give every server its own --advertise, an address that leads to that server only"
    )


def new_config(cluster: str, ensemble: int) -> bytes:
    """Return a `config`. ``cluster``: a random name, drawn once. ``ensemble``: the incarnation of the ensemble."""
    return _json(acker=cluster, ensemble=ensemble, protocol_version=PROTOCOL_VERSION, slots=SLOTS)


def cluster_of(config: bytes) -> str:
    """Return the name of the cluster in a `config`; "" if it is not an acker's."""
    return str(_fields_or_none(config).get("acker") or "")


def ensemble_of(config: bytes) -> int:
    """Return the incarnation of the ensemble in a `config`, uint64; 0 if an older acker wrote it."""
    ensemble = _fields_or_none(config).get("ensemble")
    return ensemble if type(ensemble) is int and 0 <= ensemble <= MASK else 0


def next_ensemble(known: int, now_ms: int) -> int:
    """Return the incarnation for an ensemble that has lost its data, above ``known`` (0 for none).

    ``now_ms``, Unix time, makes the result larger than incarnations that this server has never seen.
    """
    return max(known + 1, now_ms)


def follows(config: bytes, before: bytes) -> bool:
    """Is ``config`` equal to or later than ``before`` (empty: none)? If not, the ensemble went back."""
    return not before or config == before or ensemble_of(config) > ensemble_of(before)


def foreign(children: Collection[str]) -> str:
    """Return why a chroot without `config`, but with these ``children``, is not free; "" if it is free."""
    others = sorted(set(children) - EXPECTED)
    if not others:
        return ""
    shown = ", ".join(others[:3]) + (" ..." if len(others) > 3 else "")
    return f"it holds {shown}, which is not from an acker: use another chroot"


def disagreement(config: bytes) -> str:
    """Return why a server of this version cannot join the cluster of this `config`; "" if it can."""
    fields = _fields_or_none(config)
    if not fields.get("acker"):
        return "its `config` is not from an acker, so it belongs to another cluster: use another chroot"
    ours = {"protocol_version": PROTOCOL_VERSION, "slots": SLOTS}
    for name, value in ours.items():
        if fields.get(name) != value:
            return (
                f"its servers have {name} {fields.get(name)} and this one has {value}: run one version of acker in a "
                "cluster, stop all of its servers before the first of another version starts, or use another chroot"
            )
    return ""


def renewed(config: bytes, ensemble: int | None = None) -> bytes | None:
    """Return ``config`` rewritten for this version, and for ``ensemble`` if given; None if it is not an acker's."""
    cluster = cluster_of(config)
    return new_config(cluster, ensemble_of(config) if ensemble is None else ensemble) if cluster else None


def _listed_away(away: Away, now_ms: int) -> ListedMember:
    return ListedMember(away.member, MemberState.AWAY, min(max(away.until_ms - now_ms, 0), 0xFFFFFFFF))


def _json(**fields: Any) -> bytes:
    return json.dumps(fields).encode()


def _fields(content: bytes) -> dict[str, Any]:
    try:
        fields = json.loads(content)
    except RecursionError:
        raise ValueError("its brackets have no end") from None
    if not isinstance(fields, dict):
        raise ValueError("not a JSON object")
    return fields


def _fields_or_none(content: bytes) -> dict[str, Any]:
    """Return the fields of a JSON object; an empty dictionary if ``content`` is not one."""
    try:
        return _fields(content)
    except ValueError:
        return {}
