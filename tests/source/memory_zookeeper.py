"""A ZooKeeper in memory. Tests let its sessions expire and its answers get lost."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from acker_client.source.zookeeper.znodes import Create, Delete, Disconnected, Operation, Put, Require, Znode


class MemoryZooKeeper:
    def __init__(self) -> None:
        self.nodes: dict[str, Znode] = {"/consumers": Znode(b"", 0)}
        self.watching: set[MemorySession] = set()
        self.sessions = 0
        self.is_away = False

    def session(self) -> MemorySession:
        return MemorySession(self)

    def apply(self, operations: Sequence[Operation], session: int) -> int | None:
        before = dict(self.nodes)
        for index, each in enumerate(operations):
            if not self._apply(each, session):
                self.nodes = before
                return index
        self._fire()
        return None

    def expire(self, session: int) -> None:
        self.nodes = {path: node for path, node in self.nodes.items() if node.session != session}
        self._fire()

    def ensure(self, path: str) -> None:
        while path:
            self.nodes.setdefault(path, Znode(b"", 0))
            path = path.rpartition("/")[0]

    def _apply(self, each: Operation, session: int) -> bool:
        node = self.nodes.get(each.path)
        if isinstance(each, Create):
            if node is not None or each.path.rpartition("/")[0] not in self.nodes:
                return False
            self.nodes[each.path] = Znode(each.content, 0, session if each.is_ephemeral else 0)
            return True
        if node is None or each.version not in (-1, node.version):
            return False
        if isinstance(each, Put):
            self.nodes[each.path] = Znode(each.content, node.version + 1, node.session)
        elif isinstance(each, Delete):
            del self.nodes[each.path]
        else:
            assert isinstance(each, Require)
        return True

    def _fire(self) -> None:
        """Fire every watch, whatever node it is on: an unneeded read does no harm."""
        fired, self.watching = self.watching, set()
        for session in fired:
            session.wake()


class MemorySession:
    """A ``ZnodeSession``. ``lose_answer``: the next transaction is applied, but its answer is lost.
    ``before_transact``: called once, before the next transaction reaches ZooKeeper."""

    session_s = 0.4
    place = "memory"

    def __init__(self, zookeeper: MemoryZooKeeper) -> None:
        self._zookeeper = zookeeper
        self._wakes: list[Callable[[], None]] = []
        self._id: int | None = None
        self.losses = 0
        self.lose_answer = False
        self.before_transact: Callable[[], None] | None = None
        self.requests: list[Sequence[Operation]] = []
        self._is_expired = False

    @property
    def id(self) -> int | None:
        return self._id

    @property
    def is_connected(self) -> bool:
        return self._id is not None and not self._zookeeper.is_away

    def open(self, wake: Callable[[], None]) -> None:
        self._wakes.append(wake)
        if self._id is None:
            self._begin()

    def close(self, wake: Callable[[], None]) -> None:
        self._wakes.remove(wake)
        if not self._wakes and self._id is not None:
            self._zookeeper.expire(self._id)
            self._id = None

    def expire(self) -> None:
        """End the session in ZooKeeper only. The client gets no more answers, but does not know why yet."""
        assert self._id is not None
        self._is_expired = True
        self._zookeeper.expire(self._id)

    def notice(self) -> None:
        """Let the client learn that its session has ended, and open a new one."""
        self.losses += 1
        self._is_expired = False
        self._begin()
        self.wake()

    def wake(self) -> None:
        for wake in self._wakes:
            wake()

    def wait(self, most_s: float) -> bool:
        if self._is_expired:
            self.notice()
        return self.is_connected

    def ensure(self, path: str) -> None:
        self._check()
        self._zookeeper.ensure(path)

    def find(self, paths: Iterable[str], *, is_watched: bool = False) -> dict[str, Znode]:
        self._check()
        if is_watched:
            self._zookeeper.watching.add(self)
        return {path: self._zookeeper.nodes[path] for path in paths if path in self._zookeeper.nodes}

    def children(self, path: str, *, is_watched: bool = False) -> list[str] | None:
        self._check()
        if path not in self._zookeeper.nodes:
            return None
        if is_watched:
            self._zookeeper.watching.add(self)
        under = [each[len(path) + 1 :] for each in self._zookeeper.nodes if each.startswith(f"{path}/")]
        return sorted(each for each in under if "/" not in each)

    def transact(self, operations: Sequence[Operation]) -> int | None:
        if self.before_transact is not None:
            before, self.before_transact = self.before_transact, None
            before()
        self._check()
        self.requests.append(operations)
        assert self._id is not None
        refused = self._zookeeper.apply(operations, self._id)
        if self.lose_answer:
            self.lose_answer = False
            raise Disconnected
        return refused

    @property
    def is_expired(self) -> bool:
        return self._is_expired

    def _begin(self) -> None:
        self._zookeeper.sessions += 1
        self._id = self._zookeeper.sessions

    def _check(self) -> None:
        if not self.is_connected or self._is_expired:
            raise Disconnected
