"""Connection: a session with ZooKeeper for a group, its checkpoints, or both. Only this module imports kazoo.

Decides how long to wait for one answer, and what kazoo's errors mean here. Logs a lost connection once. ``znodes`` says
what the nodes contain. kazoo's threads only note events, and call nothing of the source but ``wake``.
"""

from __future__ import annotations

import contextlib
import logging
import re
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from acker_client.extras import missing
from acker_client.source.errors import SourceError
from acker_client.source.zookeeper.znodes import Create, Disconnected, Operation, Put, Require, Znode

try:
    from kazoo.exceptions import (
        AuthFailedError,
        ConnectionClosedError,
        ConnectionLoss,
        KazooException,
        NoAuthError,
        NoNodeError,
        OperationTimeoutError,
        RolledBackError,
        RuntimeInconsistency,
        SessionExpiredError,
    )
    from kazoo.handlers.threading import KazooTimeoutError
    from kazoo.protocol.states import KazooState

    from acker_zookeeper.session import ATTEMPTS, KazooSession, NoAnswerError
except ImportError as error:
    raise missing("a group of sources, or a checkpoint in ZooKeeper,", "zookeeper", error) from error

# Longest wait for one answer of ZooKeeper.
ANSWER_S = 5.0

_GONE = (ConnectionLoss, ConnectionClosedError, SessionExpiredError, OperationTimeoutError, KazooTimeoutError)
# Address of a ZooKeeper server: a name, or an IPv6 address in brackets, and a port.
_ADDRESS = re.compile(r"\s*([\w.-]+|\[[0-9A-Fa-f:.%\w]+\])(:[0-9]{1,5})?\s*")
# The results, in a failed transaction, of the operations that did not cause the failure.
_UNTOUCHED = (RolledBackError, RuntimeInconsistency)

log = logging.getLogger("acker_client.source")


class ZooKeeperSession:
    """A ``ZnodeSession`` (see ``znodes``).

    ``hosts``: host:port,host:port/chroot, where the chroot has to exist. ``session_s``: session timeout in seconds.
    ``digest``: user:password. Only this user may read or change the nodes that the session creates. ``ca``, ``cert``,
    ``key``: files. With ``ca``, connections are TLS. Raises ``ValueError`` for invalid values.
    """

    def __init__(
        self,
        hosts: str,
        *,
        session_s: float = 6.0,
        digest: str | None = None,
        ca: str | None = None,
        cert: str | None = None,
        key: str | None = None,
    ) -> None:
        self._hosts, self._chroot = _hosts_and_chroot(hosts)
        if not 0 < session_s < float("inf"):
            raise ValueError(f"session_s={session_s!r}: give seconds, above 0")
        if digest is not None and not all(digest.partition(":")):
            raise ValueError("digest: give user:password")
        if ca is None and (cert is not None or key is not None):
            raise ValueError(
                "cert, key: give ca too: the certificates of the authorities that sign ZooKeeper's certificate"
            )
        self._session_s = session_s
        self._digest = digest
        self._tls = {"ca": ca, "cert": cert, "key": key}
        self._holders: list[Callable[[], None]] = []
        self._connected = threading.Event()
        self._losses = 0
        self._was_lost = self._is_closing = False
        self._session: KazooSession | None = None

    @property
    def place(self) -> str:
        return f"{self._hosts}{self._chroot}"

    @property
    def session_s(self) -> float:
        return self._session_s

    @property
    def id(self) -> int | None:
        session = self._session
        return None if session is None else session.id

    @property
    def losses(self) -> int:
        return self._losses

    @property
    def is_connected(self) -> bool:
        return self._connected.is_set()

    def open(self, wake: Callable[[], None]) -> None:
        self._holders.append(wake)
        if self._session is not None:
            return
        try:
            self._connect()
        except BaseException:
            self.close(wake)
            raise

    def close(self, wake: Callable[[], None]) -> None:
        if wake in self._holders:
            self._holders.remove(wake)
        if self._holders or self._session is None:
            return
        self._is_closing = True
        self._session.close()
        self._session = None
        self._connected.clear()

    def wait(self, most_s: float) -> bool:
        return self._connected.wait(most_s)

    def ensure(self, path: str) -> None:
        self._answer(self._connected_client().ensure_path_async(self._chroot + path))

    def find(self, paths: Iterable[str], *, is_watched: bool = False) -> dict[str, Znode]:
        watch = self._wake_holders if is_watched else None
        client = self._connected_client()
        asked = {path: client.get_async(self._chroot + path, watch) for path in paths}
        found: dict[str, Znode] = {}
        for path, answer in asked.items():
            with contextlib.suppress(NoNodeError):
                content, stat = self._answer(answer)
                found[path] = Znode(content, stat.version, stat.ephemeralOwner)
        return found

    def children(self, path: str, *, is_watched: bool = False) -> list[str] | None:
        watch = self._wake_holders if is_watched else None
        try:
            names: list[str] = self._answer(self._connected_client().get_children_async(self._chroot + path, watch))
        except NoNodeError:
            return None
        return sorted(names)

    def transact(self, operations: Sequence[Operation]) -> int | None:
        transaction = self._connected_client().transaction()
        for each in operations:
            path = self._chroot + each.path
            if isinstance(each, Require):
                transaction.check(path, each.version)
            elif isinstance(each, Create):
                transaction.create(path, each.content, ephemeral=each.is_ephemeral)
            elif isinstance(each, Put):
                transaction.set_data(path, each.content, each.version)
            else:
                transaction.delete(path, each.version)
        for index, result in enumerate(self._answer(transaction.commit_async())):
            if isinstance(result, Exception) and not isinstance(result, _UNTOUCHED):
                if isinstance(result, NoAuthError):
                    raise self._refused()
                return index
        return None

    # -- the connection

    def _connect(self) -> None:
        self._is_closing, self._was_lost = False, False
        self._session = KazooSession(self._hosts, self._session_s, digest=self._digest, **self._tls)
        self._session.client.add_listener(self._note_state)
        try:
            self._session.start()
        except NoAnswerError as error:
            raise SourceError(str(error)) from None
        self._check_chroot(self._session.client)

    def _check_chroot(self, client: Any) -> None:
        deadline_s = time.monotonic() + self._session_s
        while self._chroot:
            try:
                self._answer(client.get_async(self._chroot))
            except NoNodeError:
                raise SourceError(
                    f"ZooKeeper at {self._hosts} has no node {self._chroot}: correct the chroot after the hosts, or"
                    f" create it if this is the group's first source (create {self._chroot})"
                ) from None
            except Disconnected:
                if time.monotonic() > deadline_s:
                    raise SourceError(
                        f"ZooKeeper at {self._hosts} does not answer: check that it runs, then start the source again"
                    ) from None
                self.wait(self._session_s / ATTEMPTS)
            else:
                return

    def _connected_client(self) -> Any:
        """Return kazoo's client. Raises ``Disconnected`` without a connection, whereas kazoo would wait for one."""
        if self._session is None or not self._connected.is_set():
            raise Disconnected
        return self._session.client

    def _answer(self, asked: Any) -> Any:
        try:
            return asked.get(timeout=ANSWER_S)
        except _GONE:
            raise Disconnected from None
        except (NoAuthError, AuthFailedError):
            raise self._refused() from None
        except NoNodeError:
            raise
        except KazooException as error:
            raise SourceError(
                f"ZooKeeper at {self.place}: {type(error).__name__} {error}".rstrip() + ": look into ZooKeeper's log"
            ) from None

    def _refused(self) -> SourceError:
        digest = "no digest" if self._digest is None else f"the digest of {self._digest.partition(':')[0]!r}"
        return SourceError(
            f"ZooKeeper at {self.place} does not let this source, which has {digest}, read or change the group's"
            " nodes: give the digest='user:password' of their creator"
        )

    def _note_state(self, state: str) -> None:
        """Note that the connection came or went. Called in kazoo's threads."""
        if state == KazooState.CONNECTED:
            self._connected.set()
            if self._was_lost:
                log.warning("ZooKeeper at %s is back", self.place)
            self._was_lost = False
        else:
            self._connected.clear()
            self._losses += state == KazooState.LOST
            if not self._was_lost and not self._is_closing:
                self._was_lost = True
                log.warning(
                    "ZooKeeper at %s is unreachable: this source continues with its partitions, and commits after"
                    " ZooKeeper is back",
                    self.place,
                )
        self._wake()

    def _wake_holders(self, event: object) -> None:
        """Wake the holders when a watch has fired, or was lost with its connection. Called in kazoo's threads."""
        self._wake()

    def _wake(self) -> None:
        for wake in tuple(self._holders):
            wake()


def _hosts_and_chroot(hosts: str) -> tuple[str, str]:
    if not isinstance(hosts, str):
        raise ValueError(f"hosts={hosts!r}: give host:port,host:port/chroot")
    listed, _, path = hosts.partition("/")
    path = path.rstrip("/")
    if not all(map(_ADDRESS.fullmatch, listed.split(","))) or (path and not all(path.split("/"))):
        raise ValueError(f"hosts={hosts!r}: give host:port,host:port/chroot")
    return listed, f"/{path}" if path else ""
