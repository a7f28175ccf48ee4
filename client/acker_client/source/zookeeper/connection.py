"""ZooKeeper: a session with it for a group, its checkpoints, or both. The client's only door to kazoo.

Decides how ZooKeeper is reached, how long one answer is waited for, what kazoo's errors mean here, and that a lost
connection is logged once. What stands in the nodes is ``core.znodes``'s. kazoo's threads do no more than note what
happened; they call nothing of the source's but ``wake``.
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
    from kazoo.client import KazooClient
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
    from kazoo.handlers.threading import KazooTimeoutError, SequentialThreadingHandler
    from kazoo.protocol.states import KazooState
    from kazoo.retry import KazooRetry
    from kazoo.security import CREATOR_ALL_ACL
except ImportError as error:
    raise missing("a group of sources, or a checkpoint in ZooKeeper,", "zookeeper", error) from error

# One answer of ZooKeeper.
ANSWER_S = 5.0
# How often a lost connection is tried anew within the time of a session, at least: a ZooKeeper that starts may take one
# and never answer on it, and kazoo would wait for that until the session is over.
ATTEMPTS = 5

_GONE = (ConnectionLoss, ConnectionClosedError, SessionExpiredError, OperationTimeoutError, KazooTimeoutError)
# A server of ZooKeeper: a name, or an IPv6 address in brackets, and a port.
_ADDRESS = re.compile(r"\s*([\w.-]+|\[[0-9A-Fa-f:.%\w]+\])(:[0-9]{1,5})?\s*")
# What a transaction answers for the operations before and behind the one that failed.
_UNTOUCHED = (RolledBackError, RuntimeInconsistency)

log = logging.getLogger("acker_client.source")


class ZooKeeperSession:
    """A ``ZnodeSession`` of ``core.znodes``.

    ``hosts``: host:port,host:port/chroot, where the chroot has to be there; ``session_s``: seconds; ``digest``:
    user:password, and then nobody else may read or change the nodes that it makes; ``ca``, ``cert``, ``key``: files;
    with ``ca`` connections are TLS. ValueError for what none of these can be.
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
            raise ValueError("cert, key: give ca too, the certificates that ZooKeeper's may be signed by")
        self._session_s = session_s
        self._digest = digest
        self._tls = {"use_ssl": ca is not None, "check_hostname": ca is not None, "ca": ca, "certfile": cert}
        self._tls["keyfile"] = key
        self._holders: list[Callable[[], None]] = []
        self._connected = threading.Event()
        self._losses = 0
        self._was_lost = self._is_closing = False
        self._client: Any = None

    @property
    def place(self) -> str:
        return f"{self._hosts}{self._chroot}"

    @property
    def session_s(self) -> float:
        return self._session_s

    @property
    def id(self) -> int | None:
        client_id = None if self._client is None else self._client.client_id
        return None if client_id is None else int(client_id[0])

    @property
    def losses(self) -> int:
        return self._losses

    @property
    def is_connected(self) -> bool:
        return self._connected.is_set()

    def open(self, wake: Callable[[], None]) -> None:
        self._holders.append(wake)
        if self._client is not None:
            return
        try:
            self._connect()
        except BaseException:
            self.close(wake)
            raise

    def close(self, wake: Callable[[], None]) -> None:
        if wake in self._holders:
            self._holders.remove(wake)
        if self._holders or self._client is None:
            return
        self._is_closing = True
        # kazoo complains of a connection that is ended while it is being made.
        with contextlib.suppress(Exception):
            self._client.stop()
        with contextlib.suppress(Exception):
            self._client.close()
        self._client = None
        self._connected.clear()

    def wait(self, most_s: float) -> bool:
        return self._connected.wait(most_s)

    def ensure(self, path: str) -> None:
        self._answer(self._asked().ensure_path_async(self._chroot + path))

    def find(self, paths: Iterable[str], *, is_watched: bool = False) -> dict[str, Znode]:
        watch = self._watch if is_watched else None
        client = self._asked()
        asked = {path: client.get_async(self._chroot + path, watch) for path in paths}
        found: dict[str, Znode] = {}
        for path, answer in asked.items():
            with contextlib.suppress(NoNodeError):
                content, stat = self._answer(answer)
                found[path] = Znode(content, stat.version, stat.ephemeralOwner)
        return found

    def children(self, path: str, *, is_watched: bool = False) -> list[str] | None:
        watch = self._watch if is_watched else None
        try:
            names: list[str] = self._answer(self._asked().get_children_async(self._chroot + path, watch))
        except NoNodeError:
            return None
        return sorted(names)

    def transact(self, operations: Sequence[Operation]) -> int | None:
        transaction = self._asked().transaction()
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
        trouble = _Trouble()
        handler = SequentialThreadingHandler()
        attempt_s = self._session_s / ATTEMPTS
        handler.create_connection = _within(handler.create_connection, attempt_s)
        self._is_closing, self._was_lost = False, False
        self._client = KazooClient(
            # An answer to the greeting is awaited for the time of a session divided by the hosts.
            hosts=",".join([self._hosts] * ATTEMPTS),
            handler=handler,
            timeout=self._session_s,
            default_acl=CREATOR_ALL_ACL if self._digest else None,
            auth_data=[("digest", self._digest)] if self._digest else None,
            # ZooKeeper that comes back gives every session its whole time anew: be there before that is over.
            connection_retry=KazooRetry(max_tries=-1, delay=0.1, backoff=2, max_delay=attempt_s),
            logger=trouble.logger,
            **self._tls,
        )
        self._client.add_listener(self._hear)
        if not self._client.start_async().wait(self._session_s):
            raise SourceError(
                f"no ZooKeeper answered at {self._hosts} within {self._session_s:g} s{trouble.last}: start it, or give"
                " the addresses at which it is, and the certificates if it speaks TLS"
            )
        self._look_for_chroot()

    def _look_for_chroot(self) -> None:
        deadline_s = time.monotonic() + self._session_s
        while self._chroot:
            try:
                self._answer(self._client.get_async(self._chroot))
            except NoNodeError:
                raise SourceError(
                    f"ZooKeeper at {self._hosts} has no node {self._chroot}: correct the chroot behind the hosts, or"
                    f" create it if this is where the group's first source begins (create {self._chroot})"
                ) from None
            except Disconnected:
                if time.monotonic() > deadline_s:
                    raise SourceError(
                        f"ZooKeeper at {self._hosts} does not answer: see to it, and start again"
                    ) from None
                self.wait(self._session_s / ATTEMPTS)
            else:
                return

    def _asked(self) -> Any:
        """The client, to be asked something; what is asked of kazoo without a connection would wait for the next."""
        if self._client is None or not self._connected.is_set():
            raise Disconnected
        return self._client

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
                f"ZooKeeper at {self.place}: {type(error).__name__} {error}".rstrip() + ": see to its log"
            ) from None

    def _refused(self) -> SourceError:
        who = "nobody in particular" if self._digest is None else f"{self._digest.partition(':')[0]!r}"
        return SourceError(
            f"ZooKeeper at {self.place} does not let this source, which is {who} to it, read or change the group's"
            " nodes: give the digest='user:password' of whoever made them"
        )

    def _hear(self, state: str) -> None:
        """kazoo's threads: the connection came or went."""
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
                    "ZooKeeper at %s is away: this source goes on with what it has, and commits when it is back",
                    self.place,
                )
        self._wake()

    def _watch(self, event: object) -> None:
        """kazoo's threads: a watch has fired, or is gone with its connection."""
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


def _within(connect: Callable[..., Any], most_s: float) -> Callable[..., Any]:
    """``connect`` with a timeout of ``most_s`` at most."""
    return lambda *given, timeout, **options: connect(*given, timeout=min(timeout, most_s), **options)


class _Trouble(logging.Handler):
    """Keeps what kazoo complained of last. It does so at every try, and what it means is logged here once."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.last = ""
        # Known to nobody else: what it is given does not reach the log.
        self.logger = logging.Logger("kazoo", logging.WARNING)  # noqa: LOG001
        self.logger.addHandler(self)

    def emit(self, record: logging.LogRecord) -> None:
        error = record.exc_info[1] if record.exc_info else None
        said = record.getMessage() if error is None else f"{type(error).__name__}: {error}"
        if "Transition" not in said:
            self.last = f" ({said})"
