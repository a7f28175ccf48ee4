"""Registry: this server's registration in ZooKeeper, and the view of all servers. The only door to kazoo.

Decides when a server registers, waits, gives up and comes back, also to an ensemble that has lost its data. One thread
asks ZooKeeper once the server runs; whoever calls is answered from what was seen last, so ZooKeeper may be slow or away
and no call notices. What stands in the nodes, and what follows from it, is ``core.members``'s.
"""

from __future__ import annotations

import contextlib
import logging
import threading
import time
import uuid
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from kazoo.client import KazooClient
from kazoo.exceptions import BadVersionError, KazooException, NoAuthError, NodeExistsError, NoNodeError
from kazoo.handlers.threading import KazooTimeoutError, SequentialThreadingHandler
from kazoo.protocol.states import KazooState
from kazoo.retry import KazooRetry
from kazoo.security import CREATOR_ALL_ACL

from acker_protocol.messages import ListedMember, MemberState
from acker_protocol.placement import epoch_of, parts_of
from acker_service.core import members
from acker_service.core.members import Away, Registered, Seen
from acker_service.process.logs import Log

# One answer of ZooKeeper.
ANSWER_S = 5.0
RETRY_S = 0.5
# How often a lost connection is tried anew within the time of a session, at least: a ZooKeeper that starts may take one
# and never answer on it, and kazoo would wait for that until the session is over.
ATTEMPTS = 5
# How much longer than its session nodes of a dead process are waited for.
MARGIN_S = 5.0
# A stop waits no longer: what was not said by then shows itself when the session ends.
LEAVE_S = 2.0
# Who is away said so by another clock: its node is removed only so long after its time.
SKEW_MS = 60_000

FAILURES = (KazooException, KazooTimeoutError)

log = Log("acker.registry")


class RegistryError(Exception):
    """A server that cannot be one of its cluster; the text says what to do."""


@dataclass(frozen=True, slots=True)
class ZooKeeper:
    """Where ZooKeeper is and how it is spoken to. ``place``: host:port,host:port/chroot; ``digest``: user:password;
    ``ca``, ``cert``, ``key``: files; with ``ca`` connections are TLS."""

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
    """One server's place among the others: :meth:`register`, :meth:`leave` and :meth:`close`, each once.

    ``on_taken`` is called once, in a thread of its own, where another server has this one's id after a lost session.
    """

    def __init__(self, zookeeper: ZooKeeper, server: Registered, on_taken: Callable[[], object] = lambda: None) -> None:
        self._zookeeper, self._server, self._on_taken = zookeeper, server, on_taken
        self._seen = Seen()
        # The names that stood in `ids` at that epoch.
        self._ids: set[str] = set()
        # `config` as it was agreed to: it names the incarnation of the ensemble.
        self._config = b""
        self._listed: tuple[ListedMember, ...] = ()
        self._is_draining = self._is_closing = self._is_lost = self._is_taken = False
        # Why nodes could not be kept at the last try; "" where they could.
        self._failure = ""
        self._heard: deque[str] = deque()
        # Until then who is missing may be about to come back: `_look`.
        self._trusts_at = 0.0
        self._woken, self._closing = threading.Event(), threading.Event()
        self._connected = threading.Event()
        self._nodes = _Nodes(zookeeper, self._hear, self._woken.set)
        self._thread = threading.Thread(target=self._run, name="acker-registry", daemon=True)

    # -- what is known, at once

    @property
    def epoch(self) -> int:
        return self._seen.epoch

    @property
    def _said_epoch(self) -> dict[str, int]:
        """The epoch as fields of a line of the log."""
        ensemble, number = parts_of(self.epoch)
        return {"epoch": number, "ensemble": ensemble}

    @property
    def is_connected(self) -> bool:
        return self._connected.is_set()

    def view(self) -> tuple[int, tuple[ListedMember, ...]]:
        """Epoch and members as they were seen last; of itself a server knows at once that it drains."""
        seen, own = self._seen, self._server.member
        listed = seen.listed(_now_ms())
        if self._is_draining:
            drains = ListedMember(own, MemberState.DRAINING)
            listed = tuple(drains if each.member == own else each for each in listed)
        return seen.epoch, listed

    # -- joined and left

    def register(self) -> None:
        """Connect, see that the cluster is this server's, and register. Raises :class:`RegistryError`."""
        try:
            self._nodes.connect()
            deadline = time.monotonic() + self._zookeeper.session_s + MARGIN_S
            self._insist(self._join, deadline)
        except BaseException:
            self._nodes.close()
            raise
        self._thread.start()
        who = {"id": self._server.id, "address": self._server.address}
        log.info("registered", **who, **self._said_epoch, members=len(self._listed))

    def drain(self) -> None:
        """List this server as one that drains, as soon as ZooKeeper can be asked."""
        self._is_draining = True
        self._woken.set()

    def leave(self, away_s: float | None = None) -> None:
        """End the registration; ``away_s``: this server will be back with its state within so many seconds.

        The connection stays, for :meth:`withdraw`, until :meth:`close`.
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
        self._say(lambda: self._say_goodbye(away_s))

    def _say_goodbye(self, away_s: float | None) -> None:
        if away_s is not None:
            self._nodes.put(self._own("away"), Away(self._server.member, _now_ms() + int(away_s * 1000)).dump())
        self._nodes.delete(self._own("ids"))

    def withdraw(self) -> None:
        """This server will not be back with its state after all, so that nobody waits for it."""
        self._say(lambda: self._nodes.delete(self._own("away")))

    def close(self) -> None:
        """Leave, and close the connection."""
        self.leave()
        self._nodes.close()

    def _say(self, word: Callable[[], None]) -> None:
        """Change nodes of this server's, as far as ZooKeeper can be asked and the id is not another's."""
        if not self.is_connected or self._is_taken:
            return
        try:
            word()
        except FAILURES as error:
            log.warning("registry_failed", error=_said(error))

    # -- the start

    def _insist(self, step: Callable[[], None], deadline: float) -> None:
        """Do a step, again while ZooKeeper fails or nodes of a dead process are there, until the deadline."""
        has_waited = False
        while True:
            try:
                return step()
            except NoAuthError:
                raise RegistryError(
                    f"ZooKeeper refuses this server at {self._zookeeper.place}: its nodes belong to another user; "
                    "give the --zookeeper-digest with which they were made, or another chroot"
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
                    raise RegistryError(f"ZooKeeper at {self._zookeeper.place}: {_said(error)}") from None
            time.sleep(RETRY_S / 5)

    def _join(self) -> None:
        for step in (self._agree, self._claim, self._look):
            step()

    def _agree(self) -> None:
        """The chroot is of this server's cluster, or nobody's, and becomes one's.

        A chroot that is empty, or where the ensemble is not a later one, has lost the data of this cluster: the cluster
        goes on in it, in a later incarnation of the ensemble. Raises :class:`RegistryError` where it is another's.
        """
        nodes, place = self._nodes, self._zookeeper.place
        found = nodes.find("/config", watched=True)
        if found is not None and self._config == found[0] != b"" and not self._failure:
            return
        nodes.ensure("")
        # First: another server may write `config` as soon as there was none.
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
        for folder in ("ids", "draining", "away"):
            nodes.ensure(f"/servers/{folder}")
        if trouble and (nodes.children("/servers/ids")[0] or nodes.children("/servers/draining")[0]):
            raise RegistryError(f"{place}: {trouble}")
        if not members.follows(config, self._config):
            renewed = members.renewed(config, self._next_ensemble()) or config
        if trouble or not members.follows(config, self._config):
            nodes.replace("/config", renewed, stat.version)
            config = renewed
        if self._config and config != self._config:
            self._trusts_at = time.monotonic() + self._zookeeper.session_s
            log.warning("ensemble_lost_data", **self._said_epoch, ensemble_now=members.ensemble_of(config))
        self._config = config

    def _next_ensemble(self) -> int:
        return members.next_ensemble(members.ensemble_of(self._config), _now_ms())

    def _restore_away(self) -> None:
        """Write again what the ensemble has lost of members that are away, which cannot do so themselves."""
        nodes = self._nodes
        here = {id for folder in ("ids", "draining", "away") for id in nodes.children(f"/servers/{folder}")[0]}
        for away in self._seen.away:
            if away.until_ms > _now_ms() and str(away.member.id) not in here:
                with contextlib.suppress(NodeExistsError):
                    nodes.create(f"/servers/away/{away.member.id}", away.dump())

    # -- the registration

    def _claim(self) -> None:
        """Make this server's node, unless it is there. Raises :class:`_Rival` where another has its id or address."""
        found = self._nodes.find(self._own("ids"))
        if found is not None and self._is_own(found[0]):
            if found[1].ephemeralOwner == self._nodes.session:
                return
            # Of the session that this process lost.
            self._nodes.delete(self._own("ids"))
        self._look_for_rivals()
        self._nodes.create(self._own("ids"), self._server.dump(), ephemeral=True)
        try:
            # Two that came at once may have missed each other; the one that came first has the lower zxid.
            self._look_for_rivals(before=self._nodes.get(self._own("ids"))[1].czxid)
        except _Rival:
            self._nodes.delete(self._own("ids"))
            raise
        self._nodes.delete(self._own("away"))

    def _look_for_rivals(self, before: float = float("inf")) -> None:
        """Raise :class:`_Rival` where another server has this one's id or address since before that zxid."""
        for folder in ("ids", "draining"):
            found = self._nodes.contents(f"/servers/{folder}")
            servers, _ = members.loaded(
                Registered, {id: content for id, (content, stat) in found.items() if stat.czxid < before}
            )
            other = members.rival(self._server, servers)
            if other is not None:
                raise _Rival(members.refusal(self._server, other), members.may_be_dead(self._server, other))

    def _hold(self) -> None:
        """See to it that this server is listed as what it is."""
        if self._is_taken:
            return
        if not self._is_draining:
            try:
                self._claim()
            except _Rival as rival:
                if rival.may_be_dead and time.monotonic() < self._trusts_at + MARGIN_S:
                    # Data of an earlier time may hold a node of this server's own dead process; it goes by itself.
                    return
                self._is_taken = True
                log.error("id_taken", id=self._server.id, reason=str(rival))  # noqa: TRY400  # no bug: no traceback
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

    def _look(self) -> None:
        """See who is there. First who serves: whoever leaves that list has written before where it went.

        Who is missing when ZooKeeper comes back has lost it too, as like as not, and gets the time of a session to come
        back as well; until then the view stays as it was.
        """
        nodes = self._nodes
        ids, stat = nodes.children("/servers/ids", watched=True)
        serving = self._loaded(Registered, "ids", ids)
        draining = self._loaded(Registered, "draining", nodes.children("/servers/draining", watched=True)[0])
        away = self._loaded(Away, "away", nodes.children("/servers/away", watched=True)[0])
        if nodes.get("/config")[0] != self._config:
            raise BadVersionError("`config` has changed meanwhile: of which ensemble this is nobody knows")
        seen = Seen(epoch_of(members.ensemble_of(self._config), stat.pzxid), serving, draining, away)
        if (seen.epoch, set(ids)) != (self._seen.epoch, self._ids) and seen.epoch <= self._seen.epoch:
            self._count_on()
            return
        if time.monotonic() < self._trusts_at and seen.misses_servers_of(self._seen):
            return
        self._seen, self._ids = seen, set(ids)
        self._notice()
        for id in self._seen.expired_away_ids(_now_ms() - SKEW_MS):
            nodes.delete(f"/servers/away/{id}")

    def _count_on(self) -> None:
        """Make the ensemble a later one, since it has gone back: it was restored from a backup."""
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

    def _notice(self) -> None:
        """Log who came, went, drains or is away."""
        before, self._listed = self._listed, self._seen.listed(_now_ms())
        # Who was here before this server is counted in its first line.
        for event, each in members.changes(before, self._listed) if self._thread.ident is not None else ():
            who = {"id": each.member.id, "address": each.member.address, "generation": each.member.generation}
            log.info(event, **who, **self._said_epoch)

    # -- the thread

    def _hear(self, state: str) -> None:
        """kazoo's threads: the connection came or went."""
        if state == KazooState.CONNECTED:
            self._connected.set()
        else:
            self._connected.clear()
        self._heard.append(state)
        self._woken.set()

    def _run(self) -> None:
        while not self._is_closing:
            self._woken.wait(self._pause_s())
            self._woken.clear()
            try:
                self._keep_up()
            except FAILURES as error:
                if self.is_connected and not self._failure:
                    log.warning("registry_failed", error=_said(error))
                self._failure = self._failure or _said(error)
                self._try_again()
            except RegistryError as error:
                # The data of this cluster is lost and another one's is there. This server serves with the view it had.
                if str(error) != self._failure:
                    log.error("registry_failed", error=str(error))  # noqa: TRY400  # no bug: no traceback
                self._failure = str(error)
                self._try_again()
            except Exception:
                log.exception("registry_failed")
                self._try_again()
            else:
                self._failure = ""

    def _keep_up(self) -> None:
        while self._heard:
            if self._heard.popleft() != KazooState.CONNECTED and not self._is_lost and not self._is_closing:
                self._is_lost = True
                log.warning("registry_lost", **self._said_epoch, members=len(self._listed))
        if self._is_closing:
            return
        if not self.is_connected:
            self._notice()
            return
        if self._is_lost:
            self._trusts_at = time.monotonic() + self._zookeeper.session_s
            # The connection may lead to another server of the ensemble, that knows less than the one before.
            self._nodes.sync()
        self._agree()
        if members.ensemble_of(self._config) != parts_of(self.epoch)[0]:
            self._restore_away()
        self._hold()
        self._look()
        if self._is_lost:
            self._is_lost = False
            log.info("registry_back", **self._said_epoch, members=len(self._listed))

    def _try_again(self) -> None:
        self._closing.wait(RETRY_S)
        self._woken.set()

    def _pause_s(self) -> float | None:
        """Until the view changes by itself, and a moment more."""
        change_ms = self._seen.next_change_ms(_now_ms())
        pauses_s = [self._trusts_at - time.monotonic()] if self._trusts_at > time.monotonic() else []
        pauses_s += [] if change_ms is None else [change_ms / 1000]
        return min(pauses_s) + 0.05 if pauses_s else None


class _Rival(Exception):
    """Another server has this one's id or address; the text is for the user."""

    def __init__(self, sentence: str, may_be_dead: bool) -> None:
        super().__init__(sentence)
        self.may_be_dead = may_be_dead


class _Nodes:
    """Nodes under a chroot, each call with a bound of its own; raise what kazoo raises."""

    def __init__(self, zookeeper: ZooKeeper, hear: Callable[[str], object], wake: Callable[[], object]) -> None:
        self._zookeeper, self._root = zookeeper, zookeeper.chroot
        self._wake = wake
        self.answer_s = ANSWER_S
        self._trouble = _Trouble()
        attempt_s = zookeeper.session_s / ATTEMPTS
        handler = SequentialThreadingHandler()
        handler.create_connection = _within(handler.create_connection, attempt_s)
        has_tls = zookeeper.ca is not None
        self._client = KazooClient(
            # An answer to the greeting is awaited for the time of a session divided by the hosts.
            hosts=",".join([zookeeper.hosts] * ATTEMPTS),
            handler=handler,
            timeout=zookeeper.session_s,
            default_acl=CREATOR_ALL_ACL if zookeeper.digest else None,
            auth_data=[("digest", zookeeper.digest)] if zookeeper.digest else None,
            # ZooKeeper that comes back gives every session its whole time anew: be there before that is over.
            connection_retry=KazooRetry(max_tries=-1, delay=0.1, backoff=2, max_delay=attempt_s),
            logger=self._trouble.logger,
            use_ssl=has_tls,
            check_hostname=has_tls,
            ca=zookeeper.ca,
            certfile=zookeeper.cert,
            keyfile=zookeeper.key,
        )
        self._client.add_listener(self._forget)
        self._client.add_listener(hear)

    def _forget(self, state: str) -> None:
        """kazoo's threads, before a new try: forget how far ZooKeeper was. An ensemble that has lost its data refuses
        whoever has seen more than it has, for ever; nor does it say then that the session is over. Reads after a new
        connection are preceded by :meth:`sync`."""
        if state != KazooState.CONNECTED:
            self._client.last_zxid = 0

    @property
    def session(self) -> int | None:
        """The id of the session; None without a connection."""
        client_id = self._client.client_id
        return None if client_id is None else int(client_id[0])

    def connect(self) -> None:
        """Raises :class:`RegistryError` when nobody answers for as long as a session would last."""
        wait_s = self._zookeeper.session_s
        if not self._client.start_async().wait(wait_s):
            raise RegistryError(
                f"no ZooKeeper answered at {self._zookeeper.hosts} within {wait_s:g} s{self._trouble.last}: "
                "start it, or give the addresses at which it is, and the certificates if it speaks TLS"
            )

    def close(self) -> None:
        # kazoo complains of a connection that is ended while it is being made.
        with contextlib.suppress(Exception):
            self._client.stop()
        with contextlib.suppress(Exception):
            self._client.close()

    def ensure(self, path: str) -> None:
        """Make a persistent node, and those above it, unless they are there."""
        self._client.ensure_path_async(self._root + path or "/").get(timeout=self.answer_s)

    def create(self, path: str, content: bytes, *, ephemeral: bool = False) -> None:
        self._client.create_async(self._root + path, content, ephemeral=ephemeral).get(timeout=self.answer_s)

    def put(self, path: str, content: bytes) -> None:
        """Set a persistent node, new or not."""
        try:
            self._client.set_async(self._root + path, content).get(timeout=self.answer_s)
        except NoNodeError:
            self.create(path, content)

    def delete(self, path: str) -> None:
        """Delete a node; one that is not there is as good as deleted."""
        with contextlib.suppress(NoNodeError):
            self._client.delete_async(self._root + path).get(timeout=self.answer_s)

    def replace(self, path: str, content: bytes, version: int) -> None:
        """Set a node that is at this version; BadVersionError where it is at another."""
        self._client.set_async(self._root + path, content, version).get(timeout=self.answer_s)

    def sync(self) -> None:
        """See to it that what is read from now on is no older than now."""
        self._client.sync_async(self._root or "/").get(timeout=self.answer_s)

    def get(self, path: str, *, watched: bool = False) -> tuple[bytes, Any]:
        """Content and stat; ``watched``: wake when they change."""
        watch = self._changed if watched else None
        content, stat = self._client.get_async(self._root + path, watch).get(timeout=self.answer_s)
        return content, stat

    def find(self, path: str, *, watched: bool = False) -> tuple[bytes, Any] | None:
        """Content and stat, or None where there is no such node, which is not watched."""
        try:
            return self.get(path, watched=watched)
        except NoNodeError:
            return None

    def children(self, path: str, *, watched: bool = False) -> tuple[list[str], Any]:
        """Names of the nodes in one, and its stat; ``watched``: wake when they change."""
        watch = self._changed if watched else None
        asked = self._client.get_children_async(self._root + path or "/", watch, include_data=True)
        names, stat = asked.get(timeout=self.answer_s)
        return names, stat

    def contents(self, path: str, names: Sequence[str] | None = None) -> dict[str, tuple[bytes, Any]]:
        """Content and stat of each node in one, by name; all asked for at once. One that has just gone is left out."""
        names = self.children(path)[0] if names is None else names
        asked = {name: self._client.get_async(f"{self._root}{path}/{name}") for name in names}
        found: dict[str, tuple[bytes, Any]] = {}
        for name, answer in asked.items():
            with contextlib.suppress(NoNodeError):
                found[name] = answer.get(timeout=self.answer_s)
        return found

    def _changed(self, event: object) -> None:
        """kazoo's threads: a watch has fired, or is gone with its connection."""
        self._wake()


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


def _said(error: BaseException) -> str:
    return f"{type(error).__name__} {error}".strip()


def _now_ms() -> int:
    return int(time.time() * 1000)
