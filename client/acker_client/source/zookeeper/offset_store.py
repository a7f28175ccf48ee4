"""ZooKeeper offsets: a checkpoint in ZooKeeper, one node per partition.

Decides which source may write a node. A commit is one transaction. It succeeds only if this source is still the owner
(``Owner.fence``), and if the nodes still have the versions that this source has seen. A source that is assigned a
partition rewrites its node unchanged before it reads on. The new version fences off late commits of earlier owners.
``offsets`` says what a node contains. The folder of the nodes contains the identity of the checkpoint, once the input
has asked for it. All sources of a group share it.

A commit waits while ZooKeeper does not answer, and the source reads nothing meanwhile.
"""

from __future__ import annotations

import logging
import os
import secrets
import socket
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Protocol, TypeVar

from acker_client.source.errors import CheckpointError, Fenced, SourceError
from acker_client.source.records.input import Committed
from acker_client.source.zookeeper.offsets import Offset
from acker_client.source.zookeeper.znodes import (
    Create,
    Delete,
    Disconnected,
    GroupPaths,
    Operation,
    Put,
    Require,
    Znode,
    ZnodeSession,
    lock_content,
    name_of,
)

# ZooKeeper accepts requests below 1 MiB by default, and the content of a node is part of a request.
NODE_BYTES = 1_000_000
# Size in bytes of one operation in a request, without its content and path.
OVERHEAD = 64
# Log a warning when a larger share of a node is used.
WARN_SHARE = 0.5
# How much longer than the session timeout to wait until ZooKeeper removes the lock of a dead process.
MARGIN_S = 5.0

log = logging.getLogger("acker_client.source")

T = TypeVar("T")


class Owner(Protocol):
    """The owner of partitions' checkpoints: a ``ZooKeeperGroup``."""

    @property
    def session(self) -> ZnodeSession: ...
    @property
    def paths(self) -> GroupPaths: ...
    @property
    def consumer(self) -> str: ...
    def fence(self, partition: str) -> tuple[Require, ...] | None: ...
    def disown(self, partitions: Iterable[str]) -> None: ...


class Writer(Protocol):
    """The run that commits: its session at the servers, and its process."""

    @property
    def session(self) -> int: ...
    @property
    def pid(self) -> int: ...


class ZooKeeperOffsets:
    """A ``SharedCheckpointStore`` of a group, or the checkpoint of one source.

    ``ZooKeeperOffsets(group=group)``: each source of a ``ZooKeeperGroup`` writes the partitions that it owns.
    ``ZooKeeperOffsets("zk1:2181/chroot")``: the checkpoint of one source, which one run holds at a time. ``name``: name
    of its nodes' folder, by default the source's name. The other options are as for ``ZooKeeperGroup``.

    ``deadline_s``: longest wait for ZooKeeper. ``node_bytes``: maximum size of a node, below ZooKeeper's
    ``jute.maxbuffer``.
    """

    def __init__(
        self,
        hosts: str | None = None,
        *,
        group: Owner | None = None,
        name: str | None = None,
        session_s: float = 6.0,
        digest: str | None = None,
        ca: str | None = None,
        cert: str | None = None,
        key: str | None = None,
        deadline_s: float = 300.0,
        node_bytes: int = NODE_BYTES,
        session: ZnodeSession | None = None,
    ) -> None:
        if (group is None) == (hosts is None and session is None):
            raise ValueError("give either hosts='host:port/chroot', or group=ZooKeeperGroup(...)")
        if group is not None:
            session = group.session
        elif session is None:
            from acker_client.source.zookeeper.connection import ZooKeeperSession

            session = ZooKeeperSession(str(hosts), session_s=session_s, digest=digest, ca=ca, cert=cert, key=key)
        if not 0 < deadline_s < float("inf"):
            raise ValueError(f"deadline_s={deadline_s}: give seconds, above 0")
        self.session = session
        self._group, self._name = group, name
        self._paths = GroupPaths(name or "") if group is None else group.paths
        self._owner: Owner | _Lock
        self._deadline_s, self._node_bytes = deadline_s, node_bytes
        self._source = self._kind = self._signature = self._identity = ""
        # Per partition that this source may write: the version of its node (None: no node yet), and its last write.
        self._versions: dict[str, int | None] = {}
        self._written: dict[str, Committed] = {}
        self._is_open = False
        self._filled: set[str] = set()

    def __str__(self) -> str:
        return f"{self._paths.offsets} in ZooKeeper at {self.session.place}"

    def open(self, source: str, kind: str) -> None:
        self._source, self._kind = source, kind
        if self._group is None:
            self._paths = GroupPaths(self._name or source)
        self._versions, self._written, self._identity = {}, {}, ""
        try:
            self.session.open(_nothing)
        except SourceError as error:
            raise CheckpointError(f"checkpoint {self}: {error}") from None
        try:
            self._until_done(lambda: self.session.ensure(self._paths.offsets))
            if self._group is None:
                lock = _Lock(self.session, self._paths, source)
                self._acquire_lock(lock)
                self._owner = lock
            else:
                self._owner = self._group
        except BaseException:
            self.session.close(_nothing)
            raise
        self._is_open = True

    def sign(self, by: Writer) -> None:
        """From now on also write the run's session and process into the nodes, after the consumer's id."""
        self._signature = f", session {by.session}, pid {by.pid}"

    def identity(self) -> str:
        """Return the identity; "" if there is none. Raises ``CheckpointError``."""
        if not self._identity:
            folder = self._until_done(self._folder)
            self._identity = folder.content.decode(errors="replace")
        return self._identity

    def draw_identity(self) -> str:
        """Return the identity. If there is none, create it for all sources. Raises ``CheckpointError``."""
        while not self.identity():
            self._until_done(self._put_identity)
        return self._identity

    def close(self) -> None:
        self._versions, self._written = {}, {}
        if not self._is_open:
            return
        self._is_open = False
        if isinstance(self._owner, _Lock):
            self._owner.release()
        self.session.close(_nothing)

    # -- read

    def load(self) -> dict[str, Committed]:
        """Load the last saved state by partition. In a group, other sources may change it at any time."""
        names = self._until_done(self._names)
        if self._group is None:
            return self.load_partitions(names)
        return self._loaded(names, self._until_done(lambda: self._nodes(names)))

    def load_partitions(self, partitions: Sequence[str]) -> dict[str, Committed]:
        """Load the last saved state of these partitions, and fence off earlier owners. From then on another source can
        save a partition only after it is assigned that partition. This source cannot save partitions that it lost."""
        for partition in partitions:
            self._versions.pop(partition, None)
            self._written.pop(partition, None)
        names = list(partitions)
        if not names:
            return {}
        # Raises for another source's checkpoint, before any node is written.
        self._loaded(names, self._until_done(lambda: self._nodes(names)))
        contents: dict[str, bytes] = {}
        left = set(names)
        while left:
            left -= self._until_done(partial(self._take_over, sorted(left), contents))
        loaded = self._loaded(names, contents)
        self._written |= {name: each for name, each in loaded.items() if name in self._versions}
        return loaded

    # -- written

    def save(self, committed: Mapping[str, Committed]) -> None:
        changed = {name: each for name, each in committed.items() if self._written.get(name) != each}
        if not changed:
            return
        fenced: set[str] = set()
        for some in self._requests({name: self._content(name, each) for name, each in changed.items()}):
            fenced |= self._save(some)
        for name in changed.keys() - fenced:
            self._written[name] = changed[name]
        if fenced:
            self._raise_fenced(sorted(fenced))

    def _save(self, contents: dict[str, bytes]) -> set[str]:
        """Set these nodes in one transaction. Leaves out and returns partitions that another source owns by now."""
        left, fenced, since_s = dict(contents), set[str](), time.monotonic()
        while left:
            fences = self._fences(left)
            fenced |= left.keys() - fences.keys()
            left = {name: left[name] for name in fences}
            operations, whose = self._operations(fences, left)
            try:
                refused = self.session.transact(operations) if left else None
            except Disconnected:
                self._await(since_s)
                continue
            except SourceError as error:
                raise CheckpointError(f"checkpoint {self}: {error}") from None
            if refused is None:
                self._versions |= {name: self._next_version(name) for name in left}
                return fenced
            if not self._was_lock(operations[refused]):
                contested = {name: left.pop(name) for name in whose[refused]}
                saved = {name for name in contested if self._until_done(partial(self._was_saved, name, contested))}
                fenced |= contested.keys() - saved
        return fenced

    def _fences(self, partitions: Iterable[str]) -> dict[str, tuple[Require, ...]]:
        """Return the conditions for writing each partition. Leaves out partitions that this source may not write."""
        self._acquire_lost_lock()
        fences = {name: self._fence(name) for name in partitions}
        if self._has_lost_lock:
            return self._fences(partitions)
        return {name: fence for name, fence in fences.items() if fence is not None}

    def _was_lock(self, refused: Operation) -> bool:
        """Return whether a commit was refused because the lock of a checkpoint without a group is gone. If so, note
        that the lock has to be acquired again."""
        if not isinstance(self._owner, _Lock) or not isinstance(refused, Require):
            return False
        self._owner.lose()
        return True

    def _operations(
        self, fences: Mapping[str, tuple[Require, ...]], contents: Mapping[str, bytes]
    ) -> tuple[list[Operation], list[list[str]]]:
        """Return the operations of a transaction, and the partitions that each operation belongs to."""
        checks: dict[Require, list[str]] = {}
        for name, fence in fences.items():
            for check in fence:
                checks.setdefault(check, []).append(name)
        writes = [self._put_offset(name, content) for name, content in contents.items()]
        return [*checks, *writes], [*checks.values(), *([name] for name in contents)]

    def _put_offset(self, partition: str, content: bytes) -> Operation:
        path, version = self._paths.offset(partition), self._versions[partition]
        return Create(path, content) if version is None else Put(path, content, version)

    def _next_version(self, partition: str) -> int:
        version = self._versions[partition]
        return 0 if version is None else version + 1

    def _was_saved(self, partition: str, contents: Mapping[str, bytes]) -> bool:
        """Return whether a transaction without an answer has set this node. The content names this consumer."""
        path = self._paths.offset(partition)
        node = self.session.find([path]).get(path)
        if node is None or node.content != contents[partition] or node.version != self._next_version(partition):
            return False
        self._versions[partition] = node.version
        return True

    def _fence(self, partition: str) -> tuple[Require, ...] | None:
        """Return the conditions for writing ``partition``; None if this source may not write it."""
        if partition not in self._versions:
            if self._group is not None:
                return None
            # The lock excludes other writers, so the node is still missing, as it was when the checkpoint was read.
            self._until_done(lambda: self._ensure_topic(partition))
            self._versions[partition] = None
        return self._owner.fence(partition)

    def _raise_fenced(self, fenced: Sequence[str]) -> None:
        for name in fenced:
            self._versions.pop(name, None)
            self._written.pop(name, None)
        shown = ", ".join(fenced[:8]) + (" ..." if len(fenced) > 8 else "")
        if self._group is None:
            raise CheckpointError(
                f"checkpoint {self}: another run has written {shown}: stop that one, or give this one a name of its"
                " own. Nothing is lost: the records that this run has done since are read again"
            )
        self._group.disown(fenced)
        raise Fenced(
            f"checkpoint {self}: {shown} went to another source of the group before this was committed; that one reads"
            " the uncommitted records again",
            fenced,
        )

    # -- taken over

    def _take_over(self, partitions: Sequence[str], contents: dict[str, bytes]) -> set[str]:
        """Rewrite nodes unchanged, or create them, so that no earlier owner can write them any more. Puts their content
        into ``contents``. Returns the finished partitions: this source has taken them over, or does not own them.
        The caller tries the others again, as another process has just written their nodes, or the lock was lost."""
        ended = set[str]()
        self._acquire_lost_lock()
        nodes = self._found(partitions)
        contents |= {name: nodes[name].content if name in nodes else b"" for name in partitions}
        for some in self._requests({name: contents[name] for name in partitions}):
            fences = {name: self._owner.fence(name) for name in some}
            ours = {name: content for name, content in some.items() if fences[name] is not None}
            if not self._has_lost_lock:
                ended |= some.keys() - ours.keys()
            if not ours:
                continue
            for name in ours:
                self._versions[name] = nodes[name].version if name in nodes else None
                if name not in nodes:
                    self._ensure_topic(name)
            operations, whose = self._operations({name: fences[name] or () for name in ours}, ours)
            failed = self.session.transact(operations)
            if failed is None:
                self._versions |= {name: self._next_version(name) for name in ours}
                ended |= ours.keys()
                continue
            for name in ours:
                del self._versions[name]
            if isinstance(operations[failed], Require) and not self._was_lock(operations[failed]):
                ended |= set(whose[failed])
        return ended

    @property
    def _has_lost_lock(self) -> bool:
        """Whether this checkpoint is without a group, and another run may have its lock."""
        return isinstance(self._owner, _Lock) and self._owner.is_lost

    def _acquire_lost_lock(self) -> None:
        while isinstance(self._owner, _Lock) and self._owner.is_lost:
            self._acquire_lock(self._owner)

    def _acquire_lock(self, lock: _Lock) -> None:
        """Acquire the lock of a checkpoint without a group. Waits until ZooKeeper removes a dead process's lock."""
        deadline_s = time.monotonic() + self.session.session_s + MARGIN_S
        while not self._until_done(lock.acquire):
            if time.monotonic() > deadline_s:
                raise CheckpointError(
                    f"checkpoint {self} is in use by another running source ({lock.holder}): stop that one, or give"
                    " this one a name of its own"
                )
            time.sleep(min(0.2, self.session.session_s / 4))

    # -- nodes

    def _content(self, partition: str, committed: Committed) -> bytes:
        offset = self._offset(partition)
        content, left_out = offset.dump(committed, self._owner.consumer + self._signature, self._node_bytes)
        is_full = len(content) > WARN_SHARE * self._node_bytes or left_out > 0
        if is_full and partition not in self._filled:
            log.warning(
                "checkpoint %s: %s takes %d of the %d bytes that a node holds, for %d stretches of open records; if"
                " it is full, further done records are left out, and read again after a restart",
                offset.place,
                partition,
                len(content),
                self._node_bytes,
                committed.done.holes,
            )
        (self._filled.add if is_full else self._filled.discard)(partition)
        return content

    def _offset(self, partition: str) -> Offset:
        place = f"{self._paths.offset(partition)} in ZooKeeper at {self.session.place}"
        return Offset(self._source, self._kind, partition, place)

    def _loaded(self, names: Iterable[str], contents: Mapping[str, bytes]) -> dict[str, Committed]:
        return {name: self._offset(name).load(contents[name]) for name in names if contents.get(name)}

    def _nodes(self, partitions: Iterable[str]) -> dict[str, bytes]:
        return {name: node.content for name, node in self._found(partitions).items()}

    def _found(self, partitions: Iterable[str]) -> dict[str, Znode]:
        paths = {self._paths.offset(name): name for name in partitions}
        return {paths[path]: node for path, node in self.session.find(paths).items()}

    def _folder(self) -> Znode:
        return self.session.find([self._paths.offsets])[self._paths.offsets]

    def _put_identity(self) -> None:
        folder = self._folder()
        if not folder.content:
            # Fails if another source of the group was quicker.
            self.session.transact([Put(self._paths.offsets, secrets.token_hex(8).encode(), folder.version)])

    def _names(self) -> list[str]:
        """Return all partitions that have a node."""
        folders = self.session.children(self._paths.offsets) or []
        return [
            name_of(folder, number)
            for folder in folders
            for number in self.session.children(f"{self._paths.offsets}/{folder}") or []
        ]

    def _ensure_topic(self, partition: str) -> None:
        self.session.ensure(self._paths.offset(partition).rpartition("/")[0])

    def _requests(self, contents: Mapping[str, bytes]) -> list[dict[str, bytes]]:
        """Split ``contents`` into requests that ZooKeeper accepts."""
        requests: list[dict[str, bytes]] = []
        room = 0
        for name, content in contents.items():
            # A partition takes up to three operations, each with a path.
            size = len(content) + 3 * (OVERHEAD + len(self._paths.offset(name)))
            if not requests or size > room:
                requests.append({})
                room = self._node_bytes
            requests[-1][name] = content
            room -= size
        return requests

    def _until_done(self, ask: Callable[[], T]) -> T:
        """Call ``ask`` until ZooKeeper answers. Raises ``CheckpointError`` after the deadline."""
        since_s = time.monotonic()
        while True:
            try:
                return ask()
            except Disconnected:
                self._await(since_s)
            except CheckpointError:
                raise
            except SourceError as error:
                raise CheckpointError(f"checkpoint {self}: {error}") from None

    def _await(self, since_s: float) -> None:
        """Wait for a connection, until ``deadline_s`` after ``since_s``."""
        left_s = since_s + self._deadline_s - time.monotonic()
        if left_s <= 0 or not self.session.wait(left_s):
            raise CheckpointError(
                f"checkpoint {self} cannot be written or read: ZooKeeper has not answered for {self._deadline_s:g} s:"
                " check that it runs, then start the source again. Nothing is lost: records that were done since"
                " the last commit are read again"
            )


class _Lock:
    """One run's lock of a checkpoint without a group."""

    def __init__(self, session: ZnodeSession, paths: GroupPaths, source: str) -> None:
        self._session, self._path = session, paths.lock
        self.consumer = f"{source}_{socket.gethostname()}-{os.getpid()}"
        about = {
            "source": source,
            "host": socket.gethostname(),
            "pid": os.getpid(),
            "since_ms": int(time.time() * 1000),
        }
        self._content = lock_content(about)
        self._losses = -1
        self.holder = ""

    @property
    def is_lost(self) -> bool:
        return self._losses != self._session.losses

    def lose(self) -> None:
        """Note that the lock's node is gone."""
        self._losses = -1

    def acquire(self) -> bool:
        """Create the lock's node unless this session has it. Returns False when another session holds the lock."""
        losses = self._session.losses
        node = self._session.find([self._path]).get(self._path)
        if node is None:
            mine = Create(self._path, self._content, is_ephemeral=True)
            is_taken = self._session.transact([mine]) is None
        else:
            self.holder = node.content.decode(errors="replace")
            is_taken = node.session == self._session.id
        if is_taken:
            self._losses = losses
        return is_taken

    def fence(self, partition: str) -> tuple[Require, ...] | None:
        return None if self.is_lost else (Require(self._path),)

    def release(self) -> None:
        """Delete the lock's node if it is this session's."""
        try:
            node = self._session.find([self._path]).get(self._path)
            if node is not None and node.session == self._session.id:
                self._session.transact([Delete(self._path)])
        except (Disconnected, SourceError):
            log.debug("the lock %s ends with its session", self._path)


def _nothing() -> None:
    """Do nothing: a checkpoint waits for no watch."""
