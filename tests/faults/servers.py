"""Several real server processes, with or without ZooKeeper, to start, restart, kill, pause and drain."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from acker_client.rpc.transport import GrpcTransport
from acker_protocol.messages import DrainReply, MemberState, StatsReply, ViewReply
from acker_testing.child import Child

Reply = TypeVar("Reply")

# Timeout of a server's ZooKeeper session.
SESSION_S = 2.0
START_S = 30.0
CALL_S = 10.0
PAUSE_S = 0.02


class Servers:
    """Server processes by id. Each keeps its id, port and state directory over restarts."""

    def __init__(self, folder: Path, zookeeper: str | None = None) -> None:
        self.zookeeper = zookeeper
        # Session timeout of the servers that start from now on.
        self.session_s = SESSION_S
        self.addresses: dict[int, str] = {}
        self._folder = folder
        self._children: dict[int, Child] = {}
        self._starts = 0

    def start(self, *ids: int) -> None:
        """Start servers side by side. Returns when all of them serve and know of each other."""
        for id in ids:
            self._children[id] = self._begin(id)
        for id in ids:
            self._children[id].await_ready()
        if self.zookeeper is not None:
            for id in self._children:
                self.await_view(id, lambda active: active >= set(ids))

    def start_alone(self, id: int) -> None:
        """Start a server. Returns when it serves, even if the others do not know of it yet."""
        self._children[id] = self._begin(id)
        self._children[id].await_ready()

    def restart(self, id: int) -> None:
        """Restart a server with its state, as planned restarts do."""
        assert self._children.pop(id).terminate() == 0
        self.start(id)

    def stop(self, id: int) -> None:
        """Stop a server with its state, and do not start it again."""
        assert self._children.pop(id).terminate() == 0

    def kill(self, id: int) -> None:
        self._children.pop(id).kill()

    def pause(self, id: int) -> None:
        self._children[id].stop()

    def resume(self, id: int) -> None:
        self._children[id].cont()

    def drain(self, id: int) -> DrainReply:
        """Ask a server to drain."""
        return self._ask(id, lambda transport: transport.drain(CALL_S))

    def await_end(self, id: int) -> int:
        """Wait until a server ends by itself. Returns the exit status."""
        return self._children.pop(id).wait()

    def stats(self, id: int) -> StatsReply:
        return self._ask(id, lambda transport: transport.stats(CALL_S))

    def view(self, id: int) -> ViewReply:
        """Return the view of server ``id``."""
        return self._ask(id, lambda transport: transport.view(CALL_S))

    def await_view(self, id: int, condition: Callable[[set[int]], bool]) -> None:
        """Wait until ``condition`` holds for the ids of the ACTIVE members in the view of server ``id``."""
        await_until(lambda: condition({m.member.id for m in self.view(id).members if m.state == MemberState.ACTIVE}))

    def log(self, id: int) -> str:
        return self._children[id].log

    def close(self) -> None:
        for child in self._children.values():
            child.kill()

    def _begin(self, id: int) -> Child:
        self._starts += 1
        folder = self._folder / f"{self._starts}-server-{id}"
        folder.mkdir()
        address = self.addresses.setdefault(id, f"127.0.0.1:{_free_port()}")
        flags = [f"--port={address.rpartition(':')[2]}", f"--id={id}", f"--state-dir={self._folder / str(id)}"]
        if self.zookeeper is not None:
            flags += [f"--zookeeper={self.zookeeper}", f"--zookeeper-session-s={self.session_s}"]
        return Child(folder, *flags)

    def _ask(self, id: int, call: Callable[[GrpcTransport], Reply]) -> Reply:
        transport = GrpcTransport(self.addresses[id])
        try:
            return call(transport)
        finally:
            transport.close()


def await_until(condition: Callable[[], bool], *, within_s: float = START_S) -> None:
    """Poll ``condition`` until it holds. Fails after ``within_s``."""
    deadline = time.monotonic() + within_s
    while not condition():
        assert time.monotonic() < deadline, "this was waited for in vain"
        time.sleep(PAUSE_S)


def _free_port() -> int:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        return int(taken.getsockname()[1])
