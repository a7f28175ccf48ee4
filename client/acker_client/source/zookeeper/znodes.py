"""Znodes: where a group has its nodes in ZooKeeper and what stands in them, as consumers of old Kafka have it; and the
port to ZooKeeper. Pure.

    consumers/GROUP/ids/CONSUMER                ephemeral: who is there, and what topics it reads
    consumers/GROUP/owners/TOPIC/PARTITION      ephemeral: the consumer that owns it
    consumers/GROUP/offsets/TOPIC/PARTITION     persistent: what is done of it
    consumers/GROUP/lock                        ephemeral: of a checkpoint without a group, the run that holds it

Topics, partitions and consumers have any name: what ZooKeeper forbids in one, and "%", stands as %XX. The topic of a
partition without one is "@".
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol
from urllib.parse import quote, unquote

from acker_client.source.zookeeper.assignor import split

NO_TOPIC = "@"


@dataclass(frozen=True, slots=True)
class Znode:
    """``session``: that an ephemeral node ends with; 0: it is persistent."""

    content: bytes
    version: int
    session: int = 0


@dataclass(frozen=True, slots=True)
class Require:
    """The node is there, with this version; -1: with any."""

    path: str
    version: int = -1


@dataclass(frozen=True, slots=True)
class Create:
    """The node is not there, and is made."""

    path: str
    content: bytes
    is_ephemeral: bool = False


@dataclass(frozen=True, slots=True)
class Put:
    """The node is there with this version, and has this content."""

    path: str
    content: bytes
    version: int = -1


@dataclass(frozen=True, slots=True)
class Delete:
    """The node is there with this version, and is deleted."""

    path: str
    version: int = -1


Operation = Require | Create | Put | Delete


class Disconnected(Exception):
    """ZooKeeper did not answer. Whether it did what it was asked is not known."""


class ZnodeSession(Protocol):
    """A session with ZooKeeper, which its holders share. But for the three that say otherwise, each method raises
    ``Disconnected``, and ``SourceError`` where ZooKeeper refuses this source."""

    @property
    def place(self) -> str:
        """Where it is, for a person."""
        ...

    @property
    def session_s(self) -> float:
        """How long ZooKeeper believes a silent session to be there."""
        ...

    @property
    def id(self) -> int | None:
        """The session's; None: there is none just now."""
        ...

    @property
    def losses(self) -> int:
        """How many sessions were lost: when it grows, no ephemeral node of this source is there any more."""
        ...

    @property
    def is_connected(self) -> bool: ...

    def open(self, wake: Callable[[], None]) -> None:
        """Take hold of it, and connect unless it is. ``wake`` is called, in any thread, whenever a watch fires, and
        when the connection comes or goes. Raises ``SourceError`` alone."""
        ...

    def close(self, wake: Callable[[], None]) -> None:
        """Let go of it; the last of those that hold it ends the session. Raises nothing."""
        ...

    def wait(self, most_s: float) -> bool:
        """Wait for a connection; whether there is one. Raises nothing."""
        ...

    def ensure(self, path: str) -> None:
        """Make a persistent node, and those above it, unless they are there."""
        ...

    def find(self, paths: Iterable[str], *, is_watched: bool = False) -> dict[str, Znode]:
        """The nodes at these paths; those that are not there are left out."""
        ...

    def children(self, path: str, *, is_watched: bool = False) -> list[str] | None:
        """Names of the nodes in one; None: it is not there."""
        ...

    def transact(self, operations: Sequence[Operation]) -> int | None:
        """All of it or nothing: None, or the index of the operation that could not be."""
        ...


@dataclass(frozen=True, slots=True)
class GroupPaths:
    """Where the nodes of one group are."""

    group: str

    @property
    def root(self) -> str:
        return f"/consumers/{escaped(self.group)}"

    @property
    def ids(self) -> str:
        return f"{self.root}/ids"

    @property
    def offsets(self) -> str:
        return f"{self.root}/offsets"

    @property
    def lock(self) -> str:
        return f"{self.root}/lock"

    def id(self, consumer: str) -> str:
        return f"{self.ids}/{escaped(consumer)}"

    def owners(self, topic: str) -> str:
        return f"{self.root}/owners/{_topic(topic)}"

    def owner(self, partition: str) -> str:
        return f"{self.root}/owners/{_node_of(partition)}"

    def offset(self, partition: str) -> str:
        return f"{self.offsets}/{_node_of(partition)}"


def escaped(name: str) -> str:
    """A name as ZooKeeper takes it."""
    return quote(name, safe="") if name.strip(".") else name.replace(".", "%2E")


def unescaped(element: str) -> str:
    return unquote(element)


def name_of(topic: str, number: str) -> str:
    """The partition whose nodes have these names."""
    return unescaped(number) if topic == NO_TOPIC else f"{unescaped(topic)}/{unescaped(number)}"


def consumer_id(group: str, host: str, now_ms: int, chance: int) -> str:
    """Old Kafka's: it begins with the group, and is not ZooKeeper's to number: who does not hear the answer would not
    know which node is its own. ``chance``: 32 bits."""
    return f"{group}_{host}-{now_ms}-{chance:08x}"


def registration(topics: Iterable[str], now_ms: int) -> bytes:
    """What stands in a consumer's own node: it reads each topic in one stream."""
    subscription = dict.fromkeys(sorted(topics), 1)
    return _dump({"version": 1, "subscription": subscription, "pattern": "static", "timestamp": str(now_ms)})


def topics_of(content: bytes) -> frozenset[str]:
    """The topics of a registration; none of what is not one."""
    try:
        subscription = json.loads(content)["subscription"]
    except (KeyError, TypeError, ValueError):
        return frozenset()
    return frozenset(subscription) if isinstance(subscription, dict) else frozenset()


def lock_content(about: Mapping[str, object]) -> bytes:
    """What stands in a lock: who has it."""
    return _dump(dict(about))


def _dump(content: dict[str, object]) -> bytes:
    return json.dumps(content, separators=(",", ":")).encode()


def _node_of(partition: str) -> str:
    topic, number = split(partition)
    return f"{_topic(topic)}/{escaped(number)}"


def _topic(topic: str) -> str:
    return escaped(topic) if topic else NO_TOPIC
