"""Registry: keeps this server registered in ZooKeeper, and reads the view of all servers.

Decides when a server registers, waits, gives up and registers again, and which missing servers are expected back. Once
the server runs, only one thread talks to ZooKeeper. Callers get the view that was read last, so a slow or absent
ZooKeeper never delays a call. ``core.members`` decides the content of nodes and its meaning, ``own_nodes`` writes
this server's nodes, and ``cluster_config`` the `config`.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from acker_protocol.messages import ListedMember, MemberState
from acker_protocol.placement import epoch_of, parts_of
from acker_service.core import members
from acker_service.core.members import Away, Registered, Seen
from acker_service.process.logs import Log
from acker_service.zookeeper.cluster_config import ClusterConfig, RegistryError
from acker_service.zookeeper.nodes import FAILURES, BadVersionError, NoAuthError, NodeExistsError, Nodes, ZooKeeper
from acker_service.zookeeper.own_nodes import OwnNodes, Rival
from acker_zookeeper.session import NoAnswerError

RETRY_S = 0.5
# How long after the session timeout a node of a dead process may still be there.
MARGIN_S = 5.0
# The timeout of one operation during a stop. If it fails, the nodes go when the session ends.
LEAVE_S = 2.0
# An away node is removed only this long after its time is up, since another machine's clock has set that time.
SKEW_MS = 60_000

log = Log("acker.registry")


class Registry:
    """One server's registration. Call :meth:`register`, :meth:`leave` and :meth:`close` once each.

    ``on_taken`` is called once if another server takes this server's id after a lost session. It must not wait for
    ZooKeeper.
    """

    def __init__(self, zookeeper: ZooKeeper, server: Registered, on_taken: Callable[[], object] = lambda: None) -> None:
        self._zookeeper, self._server, self._on_taken = zookeeper, server, on_taken
        self._seen = Seen()
        # The children of `ids` at that epoch.
        self._ids: set[str] = set()
        self._listed: tuple[ListedMember, ...] = ()
        self._is_draining = self._is_closing = self._is_lost = self._is_taken = False
        # Why the last update of the nodes failed; "" if it succeeded.
        self._failure = ""
        self._connection_states: deque[bool] = deque()
        # Until then the node of a dead process of this server may still be there.
        self._grace_until = 0.0
        self._woken, self._closing = threading.Event(), threading.Event()
        self._connected = threading.Event()
        self._nodes = Nodes(zookeeper, self._on_connected, self._woken.set)
        self._config = ClusterConfig(self._nodes, zookeeper.place)
        self._own_nodes = OwnNodes(self._nodes, server)
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
            self._connect()
            deadline = time.monotonic() + self._zookeeper.session_s + MARGIN_S
            self._retry_until(deadline, self._join)
        except BaseException:
            self._nodes.close()
            raise
        self._thread.start()
        server = {"id": self._server.id, "address": self._server.address}
        log.info("registered", **server, **self._epoch_fields, members=len(self._listed))

    def _connect(self) -> None:
        try:
            self._nodes.connect()
        except NoAnswerError as error:
            raise RegistryError(str(error)) from None

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
        away = None if away_s is None else Away(self._server.member, _now_ms() + int(away_s * 1000))
        self._try_update(lambda: self._own_nodes.remove(away))

    def withdraw(self) -> None:
        """Delete the away node: this server will not be back with its state, so no client should wait for it."""
        self._try_update(self._own_nodes.remove_away)

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
            except Rival as rival:
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
        self._own_nodes.claim_id()
        self._refresh_view()

    def _agree_on_config(self) -> None:
        if self._config.agree(is_due=bool(self._failure)):
            self._expect_all()
            log.warning("ensemble_lost_data", **self._epoch_fields, ensemble_now=self._config.ensemble)

    def _restore_nodes(self) -> None:
        """Create nodes again that the ensemble has lost: the nodes of away members, which cannot create them
        themselves, and the nodes of expected servers."""
        nodes, seen = self._nodes, self._seen
        present = {id for folder in ("ids", "draining", "away") for id in nodes.children(f"/servers/{folder}")[0]}
        lost = [("away", each.member.id, each.dump()) for each in seen.away if each.until_ms > _now_ms()]
        lost += [("known", each.id, each.dump()) for each in seen.serving + seen.draining]
        for folder, id, content in lost:
            if str(id) not in present:
                with contextlib.suppress(NodeExistsError):
                    nodes.create(f"/servers/{folder}/{id}", content)

    # -- registration

    def _keep_registered(self) -> None:
        """Create this server's missing nodes, in ids or in draining."""
        if self._is_taken:
            return
        if not self._is_draining:
            try:
                self._own_nodes.claim_id()
            except Rival as rival:
                if rival.may_be_dead and time.monotonic() < self._grace_until + MARGIN_S:
                    # A restored backup may hold a node of this server's own dead process. Such a node goes by itself.
                    return
                self._is_taken = True
                log.error("id_taken", id=self._server.id, reason=str(rival))  # noqa: TRY400  # not a bug: no traceback
                self._on_taken()
            return
        self._own_nodes.list_as_draining()

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
        if not self._config.is_unchanged():
            raise BadVersionError("`config` changed during the read, so the ensemble of these nodes is unknown")
        seen = Seen(epoch_of(self._config.ensemble, stat.pzxid), serving, draining, away)
        if (seen.epoch, set(ids)) != (self._seen.epoch, self._ids) and seen.epoch <= self._seen.epoch:
            # The epoch went back, so the ensemble was restored from a backup.
            self._config.begin_next_ensemble()
            self._woken.set()
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
        """List ``servers`` as away for the time of a session, unless they register."""
        self._seen = self._seen.expecting(servers, _now_ms() + int(self._zookeeper.session_s * 1000))

    def _expect_all(self) -> None:
        """Expect the servers of the last view: ZooKeeper has ended their sessions, or lost its data."""
        self._grace_until = time.monotonic() + self._zookeeper.session_s
        self._expect(self._seen.serving + self._seen.draining)

    def _keep_known(self, known: Sequence[str]) -> None:
        """Delete the nodes in known of servers that are no longer listed, and write this server's own node if it is
        missing.

        Another server may delete that node while this server registers.
        """
        listed = {str(each.member.id) for each in self._listed}
        for id in set(known) - listed:
            self._forget(id)
        if str(self._server.id) not in known and not self._is_taken:
            self._own_nodes.write_known()

    def _forget(self, id: str) -> None:
        """Delete a node in known, unless its server registers meanwhile: it then writes another version of the node."""
        found = self._nodes.find(f"/servers/known/{id}")
        if found is not None and self._nodes.find(f"/servers/ids/{id}") is None:
            with contextlib.suppress(BadVersionError):
                self._nodes.delete(f"/servers/known/{id}", found[1].version)

    def _loaded(self, kind: Any, folder: str, names: Sequence[str]) -> tuple[Any, ...]:
        contents = self._nodes.contents(f"/servers/{folder}", names)
        found, troubles = members.loaded(kind, {name: content for name, (content, _) in contents.items()})
        for trouble in troubles:
            log.warning("node_passed_over", node=f"servers/{folder}/{trouble}")
        return tuple(found)

    def _log_changes(self) -> None:
        """Update the list of members, and log each change."""
        before, self._listed = self._listed, self._seen.listed(_now_ms())
        # Log no changes at the start, since the line `registered` counts the members that were there before.
        for event, each in members.changes(before, self._listed) if self._thread.ident is not None else ():
            member = {"id": each.member.id, "address": each.member.address, "generation": each.member.generation}
            log.info(event, **member, **self._epoch_fields)

    # -- the thread

    def _on_connected(self, is_connected: bool) -> None:
        """Called in kazoo's threads when the connection comes or goes."""
        if is_connected:
            self._connected.set()
        else:
            self._connected.clear()
        self._connection_states.append(is_connected)
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
            was_connected = self._connection_states.popleft()
            if not was_connected and not self._is_lost and not self._is_closing:
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
        if self._config.ensemble != parts_of(self.epoch)[0]:
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
        """Return the seconds until the view changes by itself, and a moment more; None if it does not change by
        itself."""
        change_ms = self._seen.next_change_ms(_now_ms())
        return None if change_ms is None else change_ms / 1000 + 0.05


def _error_text(error: BaseException) -> str:
    return f"{type(error).__name__} {error}".strip()


def _now_ms() -> int:
    return int(time.time() * 1000)
