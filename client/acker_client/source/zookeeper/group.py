"""Group: one source's membership of a consumer group in ZooKeeper, with the node layout of old Kafka.

Decides when to read ZooKeeper, and in which order to create and delete nodes. ``rebalance`` decides which partitions to
claim and release. Everything runs on the driver's thread, in ``poll`` and ``release``; a watch only sets a flag. A
failed rebalance is retried every quarter of the session timeout, without a limit. So retries go on until the session of
a dead member has expired and its partitions are free.
"""

from __future__ import annotations

import logging
import os
import socket
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from typing import TypeVar

from acker_client.source.errors import SourceError
from acker_client.source.records.assignment import Handover
from acker_client.source.zookeeper.assignor import ASSIGNORS, in_order, split
from acker_client.source.zookeeper.rebalance import GroupSeen, Rebalance
from acker_client.source.zookeeper.znodes import (
    Create,
    Delete,
    Disconnected,
    GroupPaths,
    Put,
    Require,
    ZnodeSession,
    consumer_id,
    name_of,
    registration,
    topics_of,
    unescaped,
)

# Maximum number of nodes in one request.
TOGETHER = 500
# A failed join or rebalance is retried after the session timeout divided by this.
PAUSES = 4
# How much longer than the session timeout to wait until ZooKeeper removes the node of a dead process.
MARGIN_S = 5.0

log = logging.getLogger("acker_client.source")

T = TypeVar("T")


class ZooKeeperGroup:
    """An ``Assignment``: sources with the same ``group`` share the partitions of one input.

    ``hosts``: host:port,host:port/chroot. ``member``: the unique name of this source in the group. The name must be
    the same at each start; the default is a new name at each start. ``assignor``: "range", or "sticky", which moves as
    few partitions as it can. ``session_s``: session timeout in ZooKeeper, after which the partitions of a dead source
    are reassigned. ``digest``: user:password. ``ca``, ``cert``, ``key``: files; with ``ca`` connections are TLS.
    """

    def __init__(
        self,
        hosts: str,
        group: str,
        *,
        member: str | None = None,
        assignor: str = "range",
        session_s: float = 6.0,
        digest: str | None = None,
        ca: str | None = None,
        cert: str | None = None,
        key: str | None = None,
        session: ZnodeSession | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        for option, given in (("group", group), ("member", member)):
            if (given is not None or option == "group") and not (isinstance(given, str) and given.strip()):
                raise ValueError(f"{option}={given!r}: give a name, like {option}='orders'")
        if assignor not in ASSIGNORS:
            raise ValueError(f"assignor={assignor!r}: give 'range' or 'sticky'")
        if session is None:
            from acker_client.source.zookeeper.connection import ZooKeeperSession

            session = ZooKeeperSession(hosts, session_s=session_s, digest=digest, ca=ca, cert=cert, key=key)
        self.session = session
        self.paths = GroupPaths(group)
        self.consumer = _consumer(group) if member is None else f"{group}_{member}"
        self._clock = clock
        self._rebalance = Rebalance(self.consumer, ASSIGNORS[assignor])
        self._changed = threading.Event()
        self._again_s = float("inf")
        self._partitions: Callable[[], Sequence[str]] = tuple
        self._known: tuple[str, ...] = ()
        self._losses = 0
        self._ensured: set[str] = set()
        # Time of the first failed try to register; None if the last try succeeded.
        self._unnamed_s: float | None = None

    def __str__(self) -> str:
        return f"group {self.paths.group!r} in ZooKeeper at {self.session.place}"

    def __repr__(self) -> str:
        return f"<ZooKeeperGroup {self.paths.group!r}, {self.consumer}: {len(self._rebalance.held)} partitions>"

    # -- joined and left

    def open(self, source: str, partitions: Callable[[], Sequence[str]]) -> None:
        self._partitions = partitions
        self.session.open(self._changed.set)
        try:
            self._join()
        except BaseException:
            self.session.close(self._changed.set)
            raise
        self._changed.set()
        log.info("source %r is %s of %s", source, self.consumer, self)

    def close(self) -> None:
        """Leave the group, and release all partitions. If ZooKeeper does not answer, partitions are released when the
        session times out."""
        self._rebalance.release_partitions(self._rebalance.held)
        try:
            if self._losses == self.session.losses:
                self._delete_owned(self._rebalance.released)
                # Another source may have joined under this name since this session was lost.
                node = self.session.find([self._id]).get(self._id)
                if node is not None and node.session == self.session.id:
                    self.session.transact([Delete(self._id)])
        except (Disconnected, SourceError):
            log.warning("%s: %s could not leave; its session ends by itself", self, self.consumer)
        self._rebalance.lose_all()
        self.session.close(self._changed.set)

    # -- changes

    def poll(self) -> Handover:
        if self._losses != self.session.losses:
            return self._lose_session()
        partitions = tuple(self._partitions())
        if partitions != self._known:
            self._known = partitions
            self._changed.set()
        if not (self._changed.is_set() or self._clock() >= self._again_s) or not self.session.is_connected:
            return Handover()
        # Must come before the first read, so that a later change causes another rebalance.
        self._changed.clear()
        self._again_s = float("inf")
        try:
            return self._follow_rebalance()
        except Disconnected:
            self._retry_later()
            return Handover()

    def release(self, partitions: Sequence[str]) -> None:
        self._rebalance.release_partitions(partitions)
        try:
            if self._losses == self.session.losses:
                self._delete_owned(self._rebalance.released)
        except Disconnected:
            self._changed.set()

    # -- for commits

    def fence(self, partition: str) -> tuple[Require, ...] | None:
        """Return the conditions for a transaction that commits ``partition``; None if this source does not own it.

        The owner's node alone proves nothing: a transaction compares only versions, and another owner's node has the
        same version. So the transaction also requires this consumer's own node, which has a unique name and ends with
        the session that owns the partition.
        """
        if self._losses != self.session.losses or partition not in self._rebalance.held:
            return None
        return Require(self._id), Require(self.paths.owner(partition), 0)

    def disown(self, partitions: Iterable[str]) -> None:
        """Give up partitions whose commit was fenced. The next poll reports them as lost."""
        self._rebalance.disown(partitions)
        self._changed.set()

    # -- the steps of a rebalance

    @property
    def _id(self) -> str:
        return self.paths.id(self.consumer)

    def _lose_session(self) -> Handover:
        """Report all partitions as lost, because the session has ended and its nodes are gone."""
        self._losses = self.session.losses
        self._changed.set()
        lost = self._rebalance.lose_all()
        if lost:
            log.warning("%s: the session of %s was lost, and with it %s", self, self.consumer, _shown_partitions(lost))
        return Handover(lost=lost)

    def _follow_rebalance(self) -> Handover:
        if not self._register():
            # The node of this name belongs to another source, or to an earlier session of this source, which will
            # time out.
            self._check_name(self._clock())
            self._retry_later()
            return Handover()
        self._unnamed_s = None
        self._delete_owned(self._rebalance.released)
        step = self._rebalance.decide(self._seen(), self._known)
        assigned = list(step.found)
        try:
            self._delete_owned(step.surplus)
            assigned += self._claim(step.claim)
        except Disconnected:
            self._retry_later()
        if step.lost:
            self._changed.set()
        handover = Handover(tuple(in_order(assigned)), step.revoked, step.lost)
        self._say(handover)
        return handover

    def _seen(self) -> GroupSeen:
        session, paths = self.session, self.paths
        consumers = session.children(paths.ids, is_watched=True) or []
        registered = session.find([f"{paths.ids}/{each}" for each in consumers], is_watched=True)
        subscriptions = {
            unescaped(path.rpartition("/")[2]): topics_of(node.content) for path, node in registered.items()
        }
        owners, own, id = {}, set(), session.id
        for topic in sorted({split(each)[0] for each in (*self._known, *self._rebalance.held)}):
            folder = paths.owners(topic)
            names = self._ensured_children(folder)
            for path, node in session.find([f"{folder}/{name}" for name in names]).items():
                _, _, element = path.rpartition("/")
                partition = name_of(folder.rpartition("/")[2], element)
                owners[partition] = node.content.decode(errors="replace")
                if node.session == id and owners[partition] == self.consumer:
                    own.add(partition)
        return GroupSeen(subscriptions, owners, frozenset(own))

    def _ensured_children(self, folder: str) -> list[str]:
        names = self.session.children(folder, is_watched=True)
        if names is None:
            self.session.ensure(folder)
            names = self.session.children(folder, is_watched=True)
        return names or []

    def _claim(self, partitions: Sequence[str]) -> Sequence[str]:
        """Create the owner's nodes for all ``partitions``, or for none of them. Returns the claimed partitions."""
        claimed: list[str] = []
        for some in _batches(partitions):
            mine = self.consumer.encode()
            nodes = [Create(self.paths.owner(each), mine, is_ephemeral=True) for each in some]
            if self.session.transact([Require(self._id), *nodes]) is not None:
                # Another member was quicker, or has not released its partition yet.
                self._retry_later()
                self._delete_owned(claimed)
                return ()
            claimed += some
        self._rebalance.claimed(claimed)
        return claimed

    def _delete_owned(self, partitions: Iterable[str]) -> None:
        """Delete those owner nodes of ``partitions`` that this session created."""
        for some in _batches(in_order(partitions)):
            nodes = self.session.find([self.paths.owner(each) for each in some])
            own = [path for path, node in nodes.items() if node.session == self.session.id]
            if own and self.session.transact([Require(self._id), *(Delete(path) for path in own)]) is not None:
                self._retry_later()
                return
            self._rebalance.deleted(some)

    # -- the registration

    def _join(self) -> None:
        """Register. Waits until ZooKeeper has removed a dead process's node of this name. Raises ``SourceError``."""
        deadline_s = self._clock() + self.session.session_s + MARGIN_S
        self._losses = self.session.losses
        self._known = tuple(self._partitions())
        while True:
            try:
                if self._register():
                    return
                trouble = self._taken
            except Disconnected:
                trouble = (
                    f"ZooKeeper at {self.session.place} does not answer: check that it runs, then start the source"
                    " again"
                )
            if self._clock() > deadline_s:
                raise SourceError(trouble)
            self._changed.clear()
            self._changed.wait(self.session.session_s / PAUSES)

    def _check_name(self, now: float) -> None:
        self._unnamed_s = now if self._unnamed_s is None else self._unnamed_s
        if now > self._unnamed_s + self.session.session_s + MARGIN_S:
            raise SourceError(self._taken)

    @property
    def _taken(self) -> str:
        return (
            f"{self}: another source has already joined as {self.consumer!r}: give each source its own member name, or"
            " leave member out; if the other one has just died, start again"
        )

    def _register(self) -> bool:
        """Create or update this consumer's node, which lists topics. Returns False if another session has the node."""
        session, topics = self.session, {split(each)[0] for each in self._known}
        node = session.find([self._id]).get(self._id)
        now_ms = int(time.time() * 1000)
        if node is None:
            if self.paths.ids not in self._ensured:
                session.ensure(self.paths.ids)
                self._ensured.add(self.paths.ids)
            is_made = session.transact([Create(self._id, registration(topics, now_ms), is_ephemeral=True)]) is None
            if not is_made:
                self._ensured.discard(self.paths.ids)
            return is_made
        if node.session != session.id:
            return False
        if topics_of(node.content) == topics:
            return True
        return session.transact([Put(self._id, registration(topics, now_ms), node.version)]) is None

    def _retry_later(self) -> None:
        """Rebalance again after a pause, or at once when a watch fires."""
        self._again_s = self._clock() + self.session.session_s / PAUSES

    def _say(self, handover: Handover) -> None:
        for what in ("assigned", "revoked", "lost"):
            partitions = getattr(handover, what)
            if partitions:
                log.info("%s: %s %s", self, what, _shown_partitions(partitions))


def _consumer(group: str) -> str:
    return consumer_id(group, socket.gethostname(), int(time.time() * 1000), int.from_bytes(os.urandom(4), "big"))


def _shown_partitions(partitions: Sequence[str]) -> str:
    shown = ", ".join(partitions[:8])
    what = "partition" if len(partitions) == 1 else "partitions"
    return f"{len(partitions)} {what}: {shown}" + (" ..." if len(partitions) > 8 else "")


def _batches(items: Sequence[T]) -> list[Sequence[T]]:
    return [items[i : i + TOGETHER] for i in range(0, len(items), TOGETHER)]
