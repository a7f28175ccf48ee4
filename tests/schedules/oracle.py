"""Oracle: what really happened to each root, and whether its outcome may be said of it. Pure.

Decides by the order in which the parent of all processes saw things: what it has not yet told any process to do has not
been done, and what a process has answered has been done. Shares no code with the product.
"""

from __future__ import annotations

import itertools
from collections import Counter
from dataclasses import dataclass, field

# A root that is emitted so long after a server was well again, or was gone, does not live on what was hit: a session
# with ZooKeeper lasts 2 s, then the source hears of it.
GRACE_S = 10.0


@dataclass
class Edge:
    """One record. Moments (counts of what the parent saw): when its ack was asked for, and when that was answered."""

    ack_begun: int = 0
    ack_sure: int = 0


@dataclass
class Root:
    """``edges``: the records that are known so far; ``awaited``: how many are not known yet. ``failed_sure``: when the
    flush of a fail had returned. ``until_s``: when it may time out at the earliest."""

    emitter: int
    begun_s: float
    until_s: float
    edges: dict[int, Edge] = field(default_factory=dict)
    awaited: int = 0
    fail_begun: int = 0
    failed_sure: int = 0
    # The moment on the clock at which the last ack was answered; infinite while one is not.
    acked_at_s: float = float("inf")
    outcome: str = ""
    why: str = ""

    @property
    def acks_begun(self) -> bool:
        """Whether somebody was told to ack every record of the tree."""
        return not self.awaited and all(edge.ack_begun for edge in self.edges.values())

    @property
    def is_acked(self) -> bool:
        return not self.awaited and all(edge.ack_sure for edge in self.edges.values())


class Oracle:
    """Not thread-safe. ``replicas``: on how many servers a root lives."""

    def __init__(self, replicas: int) -> None:
        self._replicas = replicas
        self._moments = itertools.count(1)
        # By server, and the process that cannot reach it (-1: no process can): until when, infinite while it is so.
        self._hit: dict[tuple[int, int], float] = {}
        self.roots: dict[int, Root] = {}
        self.findings: list[str] = []
        self.outcomes: Counter[str] = Counter()
        self.excused = 0

    def emit(self, root: int, edge: int, emitter: int, begun_s: float, timeout_s: float) -> None:
        """``begun_s``: before it was emitted."""
        assert root not in self.roots, "two roots have one id"
        self.roots[root] = Root(emitter, begun_s, begun_s + timeout_s, {edge: Edge()})

    def begin_ack(self, root: int, edge: int, children: int) -> None:
        """Somebody is about to be told to ack ``edge``, and to derive so many records from it."""
        of = self.roots[root]
        of.edges[edge].ack_begun = next(self._moments)
        of.awaited += children

    def derive(self, root: int, edges: list[int]) -> None:
        of = self.roots[root]
        of.awaited -= len(edges)
        of.edges |= {edge: Edge() for edge in edges}

    def end_ack(self, root: int, edge: int, now_s: float) -> None:
        """The flush of the ack has returned."""
        of = self.roots[root]
        of.edges[edge].ack_sure = next(self._moments)
        if of.is_acked:
            of.acked_at_s = now_s

    def begin_fail(self, root: int) -> None:
        self.roots[root].fail_begun = next(self._moments)

    def end_fail(self, root: int) -> None:
        """The flush of the fail has returned."""
        self.roots[root].failed_sure = self.roots[root].failed_sure or next(self._moments)

    def end_call(self, worker: int, how: str, took_s: float, troubles: list[str]) -> None:
        """A process has come back from a call."""
        last = troubles[-1] if troubles else "no trouble"
        if how == "unknown":
            self.findings.append(f"stuck: process {worker} gave up after {took_s:.0f} s: {last}")
        elif how == "refused" and len(hit := self._hit_since(0.0)) < self._replicas:
            self.findings.append(f"refused: process {worker}, and servers {hit} were hit: {last}")

    def hit(self, server: int, worker: int = -1) -> None:
        """From here on what the server knew may be lost, or of no use."""
        self._hit[server, worker] = float("inf")

    def heal(self, server: int, now_s: float, worker: int = -1) -> None:
        """The server is well, or gone for good, if it was hit."""
        if (server, worker) in self._hit:
            self._hit[server, worker] = now_s

    def hear(self, root: int, verdict: str, reason: str, emitter: int) -> None:
        """An outcome has come."""
        self.outcomes[verdict] += 1
        of = self.roots.get(root)
        if of is None:
            self._find("stranger", root, f"{verdict} ({reason}), and nobody has emitted it")
            return
        if of.emitter != emitter:
            self._find("stranger", root, f"{verdict} came to process {emitter}, and it is of {of.emitter}")
        if of.outcome:
            self._find("twice", root, f"{of.outcome} ({of.why}), then {verdict} ({reason})")
            return
        of.outcome, of.why = verdict, reason
        if verdict == "ACKED":
            self._check_ack(root, of)
        else:
            self._check_replay(root, of)

    def _check_ack(self, root: int, of: Root) -> None:
        if not of.acks_begun:
            self._find("false ACK", root, "ACKED before every record of it was acked")
        elif of.failed_sure and any(edge.ack_begun > of.failed_sure for edge in of.edges.values()):
            self._find("false ACK", root, "ACKED, though its fail was flushed before the last ack began")

    def _check_replay(self, root: int, of: Root) -> None:
        said = f"{of.outcome} ({of.why})"
        hit = self._hit_since(of.begun_s)
        is_excused = len(hit) >= self._replicas
        if of.outcome == "FAILED":
            if not of.fail_begun:
                self._find("needless", root, f"{said}, and nobody has failed it")
        elif is_excused:
            self.excused += of.is_acked
        elif of.outcome == "LOST":
            done = "all was acked" if of.is_acked else "not all was acked"
            self._find("needless", root, f"{said}, {done}, and servers {hit} were hit")
        elif not of.fail_begun and of.acked_at_s < of.until_s:
            early_s = of.until_s - of.acked_at_s
            self._find("needless", root, f"{said}, and all was acked {early_s:.1f} s before it could time out")

    def _hit_since(self, begun_s: float) -> list[int]:
        """The servers that were hit when a root that was begun then may have lived on them."""
        return sorted({server for (server, _), until_s in self._hit.items() if begun_s < until_s + GRACE_S})

    @property
    def pending(self) -> list[int]:
        return [root for root, of in self.roots.items() if not of.outcome]

    def finish(self) -> None:
        """Nothing more will come."""
        for root in self.pending:
            of = self.roots[root]
            done = "all acked" if of.is_acked else "failed" if of.failed_sure else "not all acked"
            self._find("missing", root, f"no outcome; {done}")

    def _find(self, kind: str, root: int, what: str) -> None:
        self.findings.append(f"{kind}: root {root:#x}: {what}")
