"""Worker: a process that emits, acks and fails with the public API of ``AckerClient``, on its parent's command.

It knows nothing of schedules. Each command is a tuple and has one answer. Outcomes go to the parent separately.
"""

from __future__ import annotations

import threading
import time
from multiprocessing.connection import Connection
from typing import Any

import grpc

from acker_client import AckerClient, AckerError, Overloaded, Settings, Unavailable, UnknownSource

# Give up a call after this time, even if reports are still buffered.
GIVE_UP_S = 90.0
WATCH_S = 0.2
PAUSE_S = 0.05
# Errors after which a retry may succeed.
AGAIN = (Unavailable, Overloaded, UnknownSource)


def work(pipe: Connection, servers: list[str], options: dict[str, Any], paths: dict[str, str], mutant: str) -> None:
    """Execute commands from the pipe until it ends. ``paths``: maps a server's address to that of its proxy."""
    direct = grpc.insecure_channel

    def connect(target: str, *given: Any, **named: Any) -> grpc.Channel:
        return direct(paths.get(target, target), *given, **named)

    grpc.insecure_channel = connect
    if mutant:
        from tests.schedules.mutants import MUTANTS

        MUTANTS[mutant]()
    Worker(pipe, AckerClient(Settings(tuple(servers), **options))).run()


class Worker:
    def __init__(self, pipe: Connection, client: AckerClient) -> None:
        self._pipe = pipe
        self._client = client
        self._listens = False
        self._aside: threading.Thread | None = None
        self._is_over = False
        self._sending = threading.Lock()

    def run(self) -> None:
        """Answer commands, and watch between them."""
        while True:
            while not self._pipe.poll(0 if self._watches_here else None):
                self._watch(WATCH_S)
            try:
                name, given, named = self._pipe.recv()
            except EOFError:
                return
            try:
                getattr(self, f"_{name}")(*given, **named)
            except Exception as error:  # noqa: BLE001 - the parent judges the error
                self._send("answer", "raised", f"{name}: {error!r}")
            if name == "close":
                return

    @property
    def _watches_here(self) -> bool:
        return self._listens and self._aside is None

    def _open(self, name: str, lease_s: float, timeout_s: float) -> None:
        session = self._client.open_source(name, lease_s=lease_s, message_timeout_s=timeout_s)
        self._send("answer", "done", session)

    def _listen(self, *, aside: bool) -> None:
        """Watch from now on, in a thread or between commands."""
        self._listens = True
        if aside:
            self._aside = threading.Thread(target=self._watch_on, daemon=True)
            self._aside.start()
        self._send("answer", "done", [])

    def _join(self, sessions: list[int]) -> None:
        deadline, troubles = time.monotonic() + GIVE_UP_S, list[str]()
        left = list(sessions)
        while left and time.monotonic() < deadline:
            try:
                self._client.join(left[0])
                left.pop(0)
            except AGAIN as error:
                troubles.append(f"join: {error!r}")
                self._rest()
        self._send("answer", "unknown" if left else "done", troubles)

    def _emit(self, count: int) -> None:
        """Emit and flush. Send the anchors before the flush, because an outcome may come during it."""
        anchors, troubles = list[tuple[int, int]](), list[str]()
        deadline = time.monotonic() + GIVE_UP_S
        while len(anchors) < count and time.monotonic() < deadline:
            try:
                root, edge = self._client.emit()
                anchors.append((root, edge))
            except AGAIN as error:
                troubles.append(f"emit: {error!r}")
                self._rest()
        self._send("emitted", anchors)
        how = self._flush(troubles)
        self._send("answer", how, troubles)

    def _handle(self, acks: list[tuple[int, int, int]], fails: list[tuple[int, int]], *, early: bool) -> None:
        """Ack (root, edge, number of children), fail (root, edge), and flush. Also send the children's edges."""
        edges, troubles = [], list[str]()
        for root, edge, count in acks:
            children = [self._client.new_edge() for _ in range(count)]
            edges.append(children)
            self._client.ack(root, edge, emitted=children)
        for root, edge in fails:
            self._client.fail(root, "the schedule says so", edge=edge)
        if early:
            self._send("handled", edges)
        how = self._flush(troubles)
        if not early:
            self._send("handled", edges)
        self._send("answer", how, troubles)

    def _close(self) -> None:
        self._is_over = True
        if self._aside is not None:
            self._aside.join()
        self._client.close()
        self._send("answer", "done", None)

    def _flush(self, troubles: list[str]) -> str:
        """Flush until it succeeds. Return "done", "refused" if a report was dropped, or "unknown" on timeout."""
        deadline, how = time.monotonic() + GIVE_UP_S, "done"
        while time.monotonic() < deadline:
            try:
                self._client.flush()
            except AGAIN as error:
                troubles.append(f"flush: {error!r}")
                self._rest()
            except AckerError as error:
                troubles.append(f"flush: {error!r}")
                how = "refused"
            else:
                return how
        return "unknown"

    def _rest(self) -> None:
        if self._watches_here:
            self._watch(PAUSE_S)
        else:
            time.sleep(PAUSE_S)

    def _watch_on(self) -> None:
        while not self._is_over:
            try:
                self._watch(WATCH_S)
            except Exception as error:  # noqa: BLE001 - a finding, whatever it is
                self._send("raised", f"watch: {error!r}")
                return

    def _watch(self, wait_s: float) -> None:
        outcomes = self._client.watch(wait_s).outcomes
        if len(outcomes):
            self._send("outcomes", [(each.root_id, each.verdict.name, each.reason) for each in outcomes])

    def _send(self, *message: Any) -> None:
        with self._sending:
            self._pipe.send(message)
