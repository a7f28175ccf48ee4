"""Znodes: the paths and contents of a group's nodes, in the layout of old Kafka's consumers, and the interface of a
ZooKeeper session. Pure.

    consumers/GROUP/ids/CONSUMER                ephemeral: a live consumer and its topics
    consumers/GROUP/owners/TOPIC/PARTITION      ephemeral: the consumer that owns the partition
    consumers/GROUP/offsets/TOPIC/PARTITION     persistent: the checkpoint of the partition
    consumers/GROUP/lock                        ephemeral: the run that holds a checkpoint without a group

Topics, partitions and consumers may have any name: characters that ZooKeeper forbids, and "%", become %XX. A
partition without a topic has "@" in the place of TOPIC.
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
    """The content and version of a node. ``session``: the session that owns an ephemeral node; 0 if persistent."""

    content: bytes
    version: int
    session: int = 0


@dataclass(frozen=True, slots=True)
class Require:
    """Require that the node exists with this version (-1: any version)."""

    path: str
    version: int = -1


@dataclass(frozen=True, slots=True)
class Create:
    """Create a node that must not exist."""

    path: str
    content: bytes
    is_ephemeral: bool = False


@dataclass(frozen=True, slots=True)
class Put:
    """Write a node that must exist with this version (-1: any version)."""

    path: str
    content: bytes
    version: int = -1


@dataclass(frozen=True, slots=True)
class Delete:
    """Delete a node that must exist with this version (-1: any version)."""

    path: str
    version: int = -1


Operation = Require | Create | Put | Delete


class Disconnected(Exception):
    """ZooKeeper did not answer. It may or may not have carried out the request."""


class ZnodeSession(Protocol):
    """A session with ZooKeeper. Several holders (the group, its checkpoint) may share it. Methods may raise
    ``Disconnected``, and ``SourceError`` if ZooKeeper refuses this source, unless their docstring says otherwise."""

    @property
    def place(self) -> str:
        """ZooKeeper's location, for a person."""
        ...

    @property
    def session_s(self) -> float:
        """Timeout after which ZooKeeper ends a silent session."""
        ...

    @property
    def id(self) -> int | None:
        """The id of the session; None without a session."""
        ...

    @property
    def losses(self) -> int:
        """Number of lost sessions. When it grows, all ephemeral nodes of the earlier sessions are gone."""
        ...

    @property
    def is_connected(self) -> bool: ...

    def open(self, wake: Callable[[], None]) -> None:
        """Add a holder, and connect if there is no session. ``wake`` is called, in any thread, when a watch fires and
        when the connection comes or goes. Raises only ``SourceError``."""
        ...

    def close(self, wake: Callable[[], None]) -> None:
        """Remove the holder with this ``wake``. End the session if it was the last one. Raises nothing."""
        ...

    def wait(self, most_s: float) -> bool:
        """Wait for a connection, and return whether there is one. Raises nothing."""
        ...

    def ensure(self, path: str) -> None:
        """Create a persistent node and its parents, unless they exist."""
        ...

    def find(self, paths: Iterable[str], *, is_watched: bool = False) -> dict[str, Znode]:
        """Return the nodes at these paths; missing ones are left out."""
        ...

    def children(self, path: str, *, is_watched: bool = False) -> list[str] | None:
        """Return the names of a node's children; None if it does not exist."""
        ...

    def transact(self, operations: Sequence[Operation]) -> int | None:
        """Do all operations, or none. Returns None on success, else the index of the operation that failed."""
        ...


@dataclass(frozen=True, slots=True)
class GroupPaths:
    """The paths of one group's nodes."""

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
    """Escape a name for ZooKeeper."""
    return quote(name, safe="") if name.strip(".") else name.replace(".", "%2E")


def unescaped(element: str) -> str:
    return unquote(element)


def name_of(topic: str, number: str) -> str:
    """Return the name of the partition whose nodes' paths end in ``topic``/``number``."""
    return unescaped(number) if topic == NO_TOPIC else f"{unescaped(topic)}/{unescaped(number)}"


def consumer_id(group: str, host: str, now_ms: int, chance: int) -> str:
    """Return an id that begins with the group, as in old Kafka. ``chance``: 32 random bits.

    A sequential node would not do: a client that misses the answer to its create could not recognize its own node.
    """
    return f"{group}_{host}-{now_ms}-{chance:08x}"


def registration(topics: Iterable[str], now_ms: int) -> bytes:
    """Return the content of a consumer's own node: it reads each topic in one stream."""
    subscription = dict.fromkeys(sorted(topics), 1)
    return _dump({"version": 1, "subscription": subscription, "pattern": "static", "timestamp": str(now_ms)})


def topics_of(content: bytes) -> frozenset[str]:
    """Return the topics of a registration; none for other content."""
    try:
        subscription = json.loads(content)["subscription"]
    except (KeyError, RecursionError, TypeError, ValueError):
        return frozenset()
    return frozenset(subscription) if isinstance(subscription, dict) else frozenset()


def lock_content(about: Mapping[str, object]) -> bytes:
    """Return the content of a lock, which names its holder."""
    return _dump(dict(about))


def _dump(content: dict[str, object]) -> bytes:
    return json.dumps(content, separators=(",", ":")).encode()


def _node_of(partition: str) -> str:
    topic, number = split(partition)
    return f"{_topic(topic)}/{escaped(number)}"


def _topic(topic: str) -> str:
    return escaped(topic) if topic else NO_TOPIC
