"""Nodes: a thin client of ZooKeeper, for the nodes under one chroot.

Decides how long an operation may take, and how a client reconnects to an ensemble that has lost its data. Does not
know what nodes contain, and never retries. Only this module of the server imports kazoo, so callers find the exceptions
that they handle here.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from kazoo.exceptions import BadVersionError, KazooException, NoAuthError, NodeExistsError, NoNodeError
from kazoo.handlers.threading import KazooTimeoutError
from kazoo.protocol.states import KazooState

from acker_zookeeper.session import KazooSession

__all__ = ["FAILURES", "BadVersionError", "NoAuthError", "NodeExistsError", "Nodes", "ZooKeeper"]

# The timeout of one operation.
ANSWER_S = 5.0
# Matches every version of a node.
ANY = -1

FAILURES = (KazooException, KazooTimeoutError)


@dataclass(frozen=True, slots=True)
class ZooKeeper:
    """How to connect to ZooKeeper. ``place``: host:port,host:port/chroot. ``digest``: user:password. ``ca``, ``cert``,
    ``key``: files; connections use TLS if ``ca`` is given."""

    place: str
    session_s: float = 10.0
    digest: str | None = None
    ca: str | None = None
    cert: str | None = None
    key: str | None = None

    @property
    def hosts(self) -> str:
        return self.place.partition("/")[0]

    @property
    def chroot(self) -> str:
        path = self.place.partition("/")[2].strip("/")
        return f"/{path}" if path else ""


class Nodes:
    """Nodes under a chroot. Each operation has a timeout and raises kazoo's exceptions.

    ``on_connected``: called in kazoo's threads when the connection comes (True) or goes. ``wake``: called there when a
    watched node changes.
    """

    def __init__(
        self, zookeeper: ZooKeeper, on_connected: Callable[[bool], object], wake: Callable[[], object]
    ) -> None:
        self._root = zookeeper.chroot
        self._on_connected, self._wake = on_connected, wake
        self.answer_s = ANSWER_S
        self._session = KazooSession(
            zookeeper.hosts,
            zookeeper.session_s,
            digest=zookeeper.digest,
            ca=zookeeper.ca,
            cert=zookeeper.cert,
            key=zookeeper.key,
        )
        self._client = self._session.client
        self._client.add_listener(self._on_kazoo_state)

    @property
    def session(self) -> int | None:
        """The session id; None without a session."""
        return self._session.id

    def connect(self) -> None:
        """Raises :class:`acker_zookeeper.session.NoAnswerError`."""
        self._session.start()

    def close(self) -> None:
        self._session.close()

    def ensure(self, path: str) -> None:
        """Create a persistent node and its parents if they are missing."""
        self._client.ensure_path_async(self._root + path or "/").get(timeout=self.answer_s)

    def create(self, path: str, content: bytes, *, ephemeral: bool = False) -> None:
        self._client.create_async(self._root + path, content, ephemeral=ephemeral).get(timeout=self.answer_s)

    def put(self, path: str, content: bytes) -> None:
        """Set a persistent node; create it if it is missing."""
        try:
            self._client.set_async(self._root + path, content).get(timeout=self.answer_s)
        except NoNodeError:
            self.create(path, content)

    def delete(self, path: str, version: int = ANY) -> None:
        """Delete a node if it exists. Raises BadVersionError if it has another version than ``version``."""
        with contextlib.suppress(NoNodeError):
            self._client.delete_async(self._root + path, version).get(timeout=self.answer_s)

    def replace(self, path: str, content: bytes, version: int) -> None:
        """Set a node if it has this version. Raises BadVersionError if it has another."""
        self._client.set_async(self._root + path, content, version).get(timeout=self.answer_s)

    def sync(self) -> None:
        """Wait until later reads return data that is at least as new as now."""
        self._client.sync_async(self._root or "/").get(timeout=self.answer_s)

    def get(self, path: str, *, watched: bool = False) -> tuple[bytes, Any]:
        """Return content and stat. ``watched``: wake when they change."""
        watch = self._changed if watched else None
        content, stat = self._client.get_async(self._root + path, watch).get(timeout=self.answer_s)
        return content, stat

    def find(self, path: str, *, watched: bool = False) -> tuple[bytes, Any] | None:
        """Return content and stat, or None if the node does not exist; then it is not watched."""
        try:
            return self.get(path, watched=watched)
        except NoNodeError:
            return None

    def children(self, path: str, *, watched: bool = False) -> tuple[list[str], Any]:
        """Return the names of the children of a node, and its stat. ``watched``: wake when they change."""
        watch = self._changed if watched else None
        asked = self._client.get_children_async(self._root + path or "/", watch, include_data=True)
        names, stat = asked.get(timeout=self.answer_s)
        return names, stat

    def contents(self, path: str, names: Sequence[str] | None = None) -> dict[str, tuple[bytes, Any]]:
        """Return content and stat of each child of a node, by name. Sends all requests at once; skips missing nodes."""
        names = self.children(path)[0] if names is None else names
        asked = {name: self._client.get_async(f"{self._root}{path}/{name}") for name in names}
        found: dict[str, tuple[bytes, Any]] = {}
        for name, answer in asked.items():
            with contextlib.suppress(NoNodeError):
                found[name] = answer.get(timeout=self.answer_s)
        return found

    def _on_kazoo_state(self, state: str) -> None:
        """Forget the last zxid before kazoo reconnects.

        An ensemble that has lost its data never accepts a client that has seen a later zxid (transaction id), and does
        not say that the client's session is over. Because the client forgets the zxid, a new connection may return old
        data until the caller has called :meth:`sync`.
        """
        if state != KazooState.CONNECTED:
            self._client.last_zxid = 0
        self._on_connected(state == KazooState.CONNECTED)

    def _changed(self, event: object) -> None:
        """Called when a watch has fired, or was lost with its connection."""
        self._wake()
