"""Registry: this server's registration in ZooKeeper, and the view of all servers.

Decides when a server registers, waits, gives up and registers again, also with an ensemble that has lost its data. Once
the server runs, only one thread talks to ZooKeeper. Callers get the view that was read last, so a slow or absent
ZooKeeper never delays a call. ``core.members`` decides the content of nodes and what it means.
"""

from __future__ import annotations

import contextlib
import threading
import time
import uuid
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from kazoo.exceptions import BadVersionError, KazooException, NoAuthError, NodeExistsError, NoNodeError
from kazoo.handlers.threading import KazooTimeoutError
from kazoo.protocol.states import KazooState

from acker_protocol.messages import ListedMember, MemberState
from acker_protocol.placement import epoch_of, parts_of
from acker_service.core import members
from acker_service.core.members import Away, Registered, Seen
from acker_service.process.logs import Log
from acker_zookeeper.session import KazooSession, NoAnswerError

# The timeout of one ZooKeeper operation.
ANSWER_S = 5.0
RETRY_S = 0.5
# How long after the session timeout a node of a dead process may still be there.
MARGIN_S = 5.0
# The timeout of one operation during a stop. If it fails, the nodes go when the session ends.
LEAVE_S = 2.0
# An away node is removed only so long after its time, since another clock has set that time.
SKEW_MS = 60_000
# The version of a node that may have any.
ANY = -1

FAILURES = (KazooException, KazooTimeoutError)

log = Log("acker.registry")


class RegistryError(Exception):
    """The server cannot join its cluster; the text says what to do."""


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


class Registry:
    """One server's registration. Call :meth:`register`, :meth:`leave` and :meth:`close` once each.

    ``on_taken`` is called once, in its own thread, if another server takes this one's id after a lost session.
    """

    def __init__(self, zookeeper: ZooKeeper, server: Registered, on_taken: Callable[[], object] = lambda: None) -> None:
        self._zookeeper, self._server, self._on_taken = zookeeper, server, on_taken
        self._seen = Seen()
        # The children of `ids` at that epoch.
        self._ids: set[str] = set()
        # The `config` that this server accepted last. It names the incarnation of the ensemble.
        self._config = b""
        self._listed: tuple[ListedMember, ...] = ()
        self._is_draining = self._is_closing = self._is_lost = self._is_taken = False
        # Why the last update of the nodes failed; "" if it succeeded.
        self._failure = ""
        self._connection_states: deque[str] = deque()
        # Until then the node of a dead process of this server may still be there.
        self._grace_until = 0.0
        self._woken, self._closing = threading.Event(), threading.Event()
        self._connected = threading.Event()
        self._nodes = _Nodes(zookeeper, self._on_connection_state, self._woken.set)
        self._thread = threading.Thread(target=self._run, name="acker-registry", daemon=True)

    # -- the view that was read last

    @property
    def epoch(self) -> int:
        return self._seen.epoch

    @property
    def _epoch_fields(self) -> dict[str, int]:
        """The epoch as fields of a log line."""
        ensemble, number = parts_of(self.epoch)
        return {"epoch": number, "ensemble": ensemble}

    @property
    def is_connected(self) -> bool:
        return self._connected.is_set()

    def view(self) -> tuple[int, tuple[ListedMember, ...]]:
        """Return the epoch and members that were read last. This server is listed as draining at once."""
        seen, own = self._seen, self._server.member
        listed = seen.listed(_now_ms())
        if self._is_draining:
            drains = ListedMember(own, MemberState.DRAINING)
            listed = tuple(drains if each.member == own else each for each in listed)
        return seen.epoch, listed

    # -- join and leave

    def register(self) -> None:
        """Connect, check that the chroot is this server's cluster, and register. Raises :class:`RegistryError`."""
        try:
            self._nodes.connect()
            deadline = time.monotonic() + self._zookeeper.session_s + MARGIN_S
            self._retry_until(deadline, self._join)
        except BaseException:
            self._nodes.close()
            raise
        self._thread.start()
        server = {"id": self._server.id, "address": self._server.address}
        log.info("registered", **server, **self._epoch_fields, members=len(self._listed))

    def drain(self) -> None:
        """List this server as draining, as soon as ZooKeeper answers."""
        self._is_draining = True
        self._woken.set()

    def leave(self, away_s: float | None = None) -> None:
        """End the registration. ``away_s``: this server will be back with its state within so many seconds.

        The connection stays open until :meth:`close`, so that :meth:`withdraw` can use it.
        """
        if self._is_closing:
            return
        self._is_closing = True
        self._closing.set()
        self._woken.set()
        self._nodes.answer_s = LEAVE_S
        if self._thread.ident is None:
            return
        self._thread.join()
        self._try_update(lambda: self._unregister(away_s))

    def _unregister(self, away_s: float | None) -> None:
        if away_s is not None:
            self._nodes.put(self._own("away"), Away(self._server.member, _now_ms() + int(away_s * 1000)).dump())
        self._nodes.delete(self._own("known"))
        self._nodes.delete(self._own("ids"))

    def withdraw(self) -> None:
        """Delete the away node: this server will not be back with its state, so no client should wait for it."""
        self._try_update(lambda: self._nodes.delete(self._own("away")))

    def close(self) -> None:
        """Leave, and close the connection."""
        self.leave()
        self._nodes.close()

    def _try_update(self, update: Callable[[], None]) -> None:
        """Update nodes of this server, if ZooKeeper is connected and the id was not taken. Logs a failure."""
        if not self.is_connected or self._is_taken:
            return
        try:
            update()
        except FAILURES as error:
            log.warning("registry_failed", error=_error_text(error))

    # -- start

    def _retry_until(self, deadline: float, step: Callable[[], None]) -> None:
        """Run a step. Repeat it until the deadline while ZooKeeper fails or nodes of a dead process are still there."""
        has_waited = False
        while True:
            try:
                return step()
            except NoAuthError:
                raise RegistryError(
                    f"ZooKeeper denies access to {self._zookeeper.place}: its nodes belong to another user; "
                    "give the --zookeeper-digest with which they were created, or another chroot"
                ) from None
            except _Rival as rival:
                if not rival.may_be_dead or time.monotonic() > deadline:
                    raise RegistryError(str(rival)) from None
                if not has_waited:
                    at_most_s = round(deadline - time.monotonic(), 1)
                    log.info("registration_waits", reason="the node of a dead process", at_most_s=at_most_s)
                has_waited = True
            except FAILURES as error:
                if time.monotonic() > deadline:
                    raise RegistryError(f"ZooKeeper at {self._zookeeper.place}: {_error_text(error)}") from None
            time.sleep(RETRY_S / 5)

    def _join(self) -> None:
        self._agree_on_config()
        self._claim_id()
        self._refresh_view()

    def _agree_on_config(self) -> None:
        """Check that the chroot belongs to this server's cluster, and create its nodes if it belongs to none.

        If the chroot is empty, or has another `config` whose ensemble is not later, ZooKeeper has lost data of this
        cluster. The cluster then continues in a later incarnation of the ensemble. Raises :class:`RegistryError` if the
        chroot belongs to another cluster.
        """
        nodes, place = self._nodes, self._zookeeper.place
        found = nodes.find("/config", watched=True)
        if found is not None and self._config == found[0] != b"" and not self._failure:
            return
        nodes.ensure("")
        # Must come before looking for `config`, since another server may create nodes at any time.
        children = nodes.children("")[0]
        if nodes.find("/config") is None:
            trouble = members.foreign(children)
            if trouble:
                raise RegistryError(f"{place}: {trouble}")
            cluster = members.cluster_of(self._config) or uuid.uuid4().hex
            with contextlib.suppress(NodeExistsError):
                nodes.create("/config", members.new_config(cluster, self._next_ensemble()))
        config, stat = nodes.get("/config", watched=True)
        trouble, renewed = members.disagreement(config), members.renewed(config)
        if renewed is None:
            raise RegistryError(f"{place}: {trouble}")
        for folder in ("ids", "draining", "away", "known"):
            nodes.ensure(f"/servers/{folder}")
        if trouble and (nodes.children("/servers/ids")[0] or nodes.children("/servers/draining")[0]):
            raise RegistryError(f"{place}: {trouble}")
        if not members.follows(config, self._config):
            renewed = members.renewed(config, self._next_ensemble()) or config
        if trouble or not members.follows(config, self._config):
            nodes.replace("/config", renewed, stat.version)
            config = renewed
        if self._config and config != self._config:
            self._expect_all()
            log.warning("ensemble_lost_data", **self._epoch_fields, ensemble_now=members.ensemble_of(config))
        self._config = config

    def _next_ensemble(self) -> int:
        return members.next_ensemble(members.ensemble_of(self._config), _now_ms())

    def _restore_nodes(self) -> None:
        """Create nodes again that the ensemble has lost: nodes of expected servers, and nodes of away members, which
        cannot create their own."""
        nodes, seen = self._nodes, self._seen
        present = {id for folder in ("ids", "draining", "away") for id in nodes.children(f"/servers/{folder}")[0]}
        lost = [("away", each.member.id, each.dump()) for each in seen.away if each.until_ms > _now_ms()]
        lost += [("known", each.id, each.dump()) for each in seen.serving + seen.draining]
        for folder, id, content in lost:
            if str(id) not in present:
                with contextlib.suppress(NodeExistsError):
                    nodes.create(f"/servers/{folder}/{id}", content)

    # -- registration

    def _claim_id(self) -> None:
        """Create this server's node in ids if it is missing. Raises :class:`_Rival` if its id or address is taken."""
        found = self._nodes.find(self._own("ids"))
        if found is not None and self._is_own(found[0]):
            if found[1].ephemeralOwner == self._nodes.session:
                return
            # The node is of an earlier session of this process.
            self._nodes.delete(self._own("ids"))
        self._check_rivals()
        self._nodes.create(self._own("ids"), self._server.dump(), ephemeral=True)
        try:
            # Two servers that register at once may have missed each other. The first one has the lower zxid and stays.
            self._check_rivals(before=self._nodes.get(self._own("ids"))[1].czxid)
        except _Rival:
            self._nodes.delete(self._own("ids"))
            raise
        self._nodes.delete(self._own("away"))
        # Each registration gives the node a new version: `_forget`.
        self._nodes.put(self._own("known"), self._server.dump())

    def _check_rivals(self, before: float = float("inf")) -> None:
        """Raise :class:`_Rival` if another server, created before that zxid, has this one's id or address."""
        for folder in ("ids", "draining"):
            found = self._nodes.contents(f"/servers/{folder}")
            servers, _ = members.loaded(
                Registered, {id: content for id, (content, stat) in found.items() if stat.czxid < before}
            )
            other = members.rival(self._server, servers)
            if other is not None:
                raise _Rival(members.refusal(self._server, other), members.may_be_dead(self._server, other))

    def _keep_registered(self) -> None:
        """Create what is missing of this server's nodes, in ids or in draining."""
        if self._is_taken:
            return
        if not self._is_draining:
            try:
                self._claim_id()
            except _Rival as rival:
                if rival.may_be_dead and time.monotonic() < self._grace_until + MARGIN_S:
                    # A restored backup may hold a node of this server's own dead process, which goes by itself.
                    return
                self._is_taken = True
                log.error("id_taken", id=self._server.id, reason=str(rival))  # noqa: TRY400  # not a bug: no traceback
                threading.Thread(target=self._on_taken, name="acker-taken", daemon=True).start()
            return
        if self._nodes.find(self._own("draining")) is None:
            self._nodes.create(self._own("draining"), self._server.dump(), ephemeral=True)
        found = self._nodes.find(self._own("ids"))
        if found is not None and self._is_own(found[0]):
            self._nodes.delete(self._own("ids"))

    def _is_own(self, content: bytes) -> bool:
        try:
            return Registered.load(str(self._server.id), content).incarnation == self._server.incarnation
        except ValueError:
            return False

    def _own(self, folder: str) -> str:
        return f"/servers/{folder}/{self._server.id}"

    # -- the view

    def _refresh_view(self) -> None:
        """Read the nodes of all servers and update the view.

        When ZooKeeper comes back, or this server starts, a missing server has probably lost its session as well. It is
        expected for the time of a session, unless it has left, or another server has dropped it from its view.
        """
        nodes = self._nodes
        # Reads ids first: a server that leaves ids has created its node in draining or away before.
        ids, stat = nodes.children("/servers/ids", watched=True)
        serving = self._loaded(Registered, "ids", ids)
        draining = self._loaded(Registered, "draining", nodes.children("/servers/draining", watched=True)[0])
        away = self._loaded(Away, "away", nodes.children("/servers/away", watched=True)[0])
        if nodes.get("/config")[0] != self._config:
            raise BadVersionError("`config` changed during the read, so the ensemble of these nodes is unknown")
        seen = Seen(epoch_of(members.ensemble_of(self._config), stat.pzxid), serving, draining, away)
        if (seen.epoch, set(ids)) != (self._seen.epoch, self._ids) and seen.epoch <= self._seen.epoch:
            self._advance_ensemble()
            return
        known = nodes.children("/servers/known")[0]
        if not self.epoch:
            self._expect(self._loaded(Registered, "known", known))
        self._seen, self._ids = replace(seen, expected=self._seen.still_expecting(known, _now_ms())), set(ids)
        self._log_changes()
        self._keep_known(known)
        # A server that serves deletes its own away node, since it may just be about to stop and be away.
        for id in self._seen.expired_away_ids(_now_ms() - SKEW_MS):
            nodes.delete(f"/servers/away/{id}")

    def _expect(self, servers: Sequence[Registered]) -> None:
        """List these as away for the time of a session, unless they register."""
        self._seen = self._seen.expecting(servers, _now_ms() + int(self._zookeeper.session_s * 1000))

    def _expect_all(self) -> None:
        """Expect the servers of the last view: ZooKeeper has ended their sessions, or lost its data."""
        self._grace_until = time.monotonic() + self._zookeeper.session_s
        self._expect(self._seen.serving + self._seen.draining)

    def _keep_known(self, known: Sequence[str]) -> None:
        """Delete the nodes in known of servers that are no longer listed, and write this server's own if it is missing.

        Another server may delete that node while this one registers.
        """
        listed = {str(each.member.id) for each in self._listed}
        for id in set(known) - listed:
            self._forget(id)
        if str(self._server.id) not in known and not self._is_taken:
            self._nodes.put(self._own("known"), self._server.dump())

    def _forget(self, id: str) -> None:
        """Delete a node in known, unless its server registers meanwhile: it then writes another version of the node."""
        found = self._nodes.find(f"/servers/known/{id}")
        if found is not None and self._nodes.find(f"/servers/ids/{id}") is None:
            with contextlib.suppress(BadVersionError):
                self._nodes.delete(f"/servers/known/{id}", found[1].version)

    def _advance_ensemble(self) -> None:
        """Write a later incarnation of the ensemble, because its epoch went back: it was restored from a backup."""
        config, stat = self._nodes.get("/config")
        renewed = members.renewed(config, self._next_ensemble())
        if config == self._config and renewed is not None:
            self._nodes.replace("/config", renewed, stat.version)
        self._woken.set()

    def _loaded(self, kind: Any, folder: str, names: Sequence[str]) -> tuple[Any, ...]:
        contents = self._nodes.contents(f"/servers/{folder}", names)
        found, troubles = members.loaded(kind, {name: content for name, (content, _) in contents.items()})
        for trouble in troubles:
            log.warning("node_passed_over", node=f"servers/{folder}/{trouble}")
        return tuple(found)

    def _log_changes(self) -> None:
        """Update the list of members, and log each change."""
        before, self._listed = self._listed, self._seen.listed(_now_ms())
        # Not at the start, since the line `registered` counts the members that were there before.
        for event, each in members.changes(before, self._listed) if self._thread.ident is not None else ():
            member = {"id": each.member.id, "address": each.member.address, "generation": each.member.generation}
            log.info(event, **member, **self._epoch_fields)

    # -- the thread

    def _on_connection_state(self, state: str) -> None:
        """Called in kazoo's threads when the connection comes or goes."""
        if state == KazooState.CONNECTED:
            self._connected.set()
        else:
            self._connected.clear()
        self._connection_states.append(state)
        self._woken.set()

    def _run(self) -> None:
        while not self._is_closing:
            self._woken.wait(self._pause_s())
            self._woken.clear()
            try:
                self._synchronise()
            except FAILURES as error:
                if self.is_connected and not self._failure:
                    log.warning("registry_failed", error=_error_text(error))
                self._failure = self._failure or _error_text(error)
                self._retry_later()
            except RegistryError as error:
                # The chroot now belongs to another cluster. This server goes on with its last view.
                if str(error) != self._failure:
                    log.error("registry_failed", error=str(error))  # noqa: TRY400  # not a bug: no traceback
                self._failure = str(error)
                self._retry_later()
            except Exception:
                log.exception("registry_failed")
                self._retry_later()
            else:
                self._failure = ""

    def _synchronise(self) -> None:
        """Bring this server's nodes and the view up to date."""
        while self._connection_states:
            state = self._connection_states.popleft()
            if state != KazooState.CONNECTED and not self._is_lost and not self._is_closing:
                self._is_lost = True
                log.warning("registry_lost", **self._epoch_fields, members=len(self._listed))
        if self._is_closing:
            return
        if not self.is_connected:
            self._log_changes()
            return
        if self._is_lost:
            self._expect_all()
            # The new connection may lead to another server of the ensemble, which may be behind the previous one.
            self._nodes.sync()
        self._agree_on_config()
        if members.ensemble_of(self._config) != parts_of(self.epoch)[0]:
            self._restore_nodes()
        self._keep_registered()
        self._refresh_view()
        if self._is_lost:
            self._is_lost = False
            log.info("registry_back", **self._epoch_fields, members=len(self._listed))

    def _retry_later(self) -> None:
        self._closing.wait(RETRY_S)
        self._woken.set()

    def _pause_s(self) -> float | None:
        """Return how long the thread may wait until the view changes by itself, and a moment more; None: for ever."""
        change_ms = self._seen.next_change_ms(_now_ms())
        return None if change_ms is None else change_ms / 1000 + 0.05


class _Rival(Exception):
    """Another server has this one's id or address; the text is for the user."""

    def __init__(self, sentence: str, may_be_dead: bool) -> None:
        super().__init__(sentence)
        self.may_be_dead = may_be_dead


class _Nodes:
    """Nodes under a chroot. Each operation has a timeout and raises kazoo's exceptions.

    ``on_state``: called with each state of the connection. ``wake``: called when a watched node changes.
    """

    def __init__(self, zookeeper: ZooKeeper, on_state: Callable[[str], object], wake: Callable[[], object]) -> None:
        self._root = zookeeper.chroot
        self._wake = wake
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
        self._client.add_listener(self._reset_zxid)
        self._client.add_listener(on_state)

    def _reset_zxid(self, state: str) -> None:
        """Forget the last zxid before kazoo reconnects. Called in kazoo's threads.

        An ensemble that has lost its data never accepts a client that has seen a later zxid, nor does it tell it that
        its session is over. Because of the reset, the caller must :meth:`sync` before it reads over a new connection.
        """
        if state != KazooState.CONNECTED:
            self._client.last_zxid = 0

    @property
    def session(self) -> int | None:
        """The session id; None without a session."""
        return self._session.id

    def connect(self) -> None:
        """Raises :class:`RegistryError` if ZooKeeper does not answer within the session timeout."""
        try:
            self._session.start()
        except NoAnswerError as error:
            raise RegistryError(str(error)) from None

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

    def _changed(self, event: object) -> None:
        """Called in kazoo's threads when a watch has fired, or was lost with its connection."""
        self._wake()


def _error_text(error: BaseException) -> str:
    return f"{type(error).__name__} {error}".strip()


def _now_ms() -> int:
    return int(time.time() * 1000)
