"""Oracle: knows what really happened to each root, and decides whether its outcome is allowed. Without I/O.

It relies on the order of events in the parent of all processes. A command that was not sent yet has not been executed.
A command that was answered has been executed. It shares no code with the product.
"""

from __future__ import annotations

import itertools
from collections import Counter
from dataclasses import dataclass, field

# A root that is emitted this long after a server recovered or was lost is not affected by the fault. The server's
# ZooKeeper session lasts 2 s; then the source hears of the change.
GRACE_S = 10.0


@dataclass
class Edge:
    """One record. The moments (event counts) at which its ack was requested, and at which the request was answered."""

    ack_begun: int = 0
    ack_sure: int = 0


@dataclass
class Root:
    """One root. ``edges``: the known records of its tree; ``awaited``: number of derived records not known yet.

    ``failed_sure``: moment at which the flush of a fail returned. ``until_s``: earliest time of a timeout.
    """

    emitter: int
    begun_s: float
    until_s: float
    edges: dict[int, Edge] = field(default_factory=dict)
    awaited: int = 0
    fail_begun: int = 0
    failed_sure: int = 0
    # Clock time at which the last ack was answered; infinite while one is missing.
    acked_at_s: float = float("inf")
    outcome: str = ""
    why: str = ""

    @property
    def acks_begun(self) -> bool:
        """Whether an ack was requested for every record of the tree."""
        return not self.awaited and all(edge.ack_begun for edge in self.edges.values())

    @property
    def is_acked(self) -> bool:
        return not self.awaited and all(edge.ack_sure for edge in self.edges.values())


class Oracle:
    """Judges the outcomes of one run. Not thread-safe. ``replicas``: number of servers that hold a root."""

    def __init__(self, replicas: int) -> None:
        self._replicas = replicas
        self._moments = itertools.count(1)
        # Key: server, and the process that cannot reach it (-1: all). Value: end of the fault; infinite while it lasts.
        self._hit: dict[tuple[int, int], float] = {}
        self.roots: dict[int, Root] = {}
        self.findings: list[str] = []
        self.outcomes: Counter[str] = Counter()
        self.excused = 0

    def emit(self, root: int, edge: int, emitter: int, begun_s: float, timeout_s: float) -> None:
        """Register a root. ``begun_s``: a time before it was emitted."""
        assert root not in self.roots, "two roots have one id"
        self.roots[root] = Root(emitter, begun_s, begun_s + timeout_s, {edge: Edge()})

    def begin_ack(self, root: int, edge: int, children: int) -> None:
        """Note that a process is about to ack ``edge`` and to derive ``children`` records from it."""
        of = self.roots[root]
        of.edges[edge].ack_begun = next(self._moments)
        of.awaited += children

    def derive(self, root: int, edges: list[int]) -> None:
        of = self.roots[root]
        of.awaited -= len(edges)
        of.edges |= {edge: Edge() for edge in edges}

    def end_ack(self, root: int, edge: int, now_s: float) -> None:
        """Note that the flush of the ack has returned."""
        of = self.roots[root]
        of.edges[edge].ack_sure = next(self._moments)
        if of.is_acked:
            of.acked_at_s = now_s

    def begin_fail(self, root: int) -> None:
        self.roots[root].fail_begun = next(self._moments)

    def end_fail(self, root: int) -> None:
        """Note that the flush of the fail has returned."""
        self.roots[root].failed_sure = self.roots[root].failed_sure or next(self._moments)

    def end_call(self, worker: int, how: str, took_s: float, troubles: list[str]) -> None:
        """Check the end of a process's command: "unknown" is a finding, and "refused" unless faults explain it."""
        last = troubles[-1] if troubles else "no trouble"
        if how == "unknown":
            self.findings.append(f"stuck: process {worker} gave up after {took_s:.0f} s: {last}")
        elif how == "refused" and len(hit := self._hit_since(0.0)) < self._replicas:
            self.findings.append(f"refused: process {worker}, and servers {hit} were hit: {last}")

    def hit(self, server: int, worker: int = -1) -> None:
        """Note a fault: from now on, the server's state may be lost or unreachable."""
        self._hit[server, worker] = float("inf")

    def heal(self, server: int, now_s: float, worker: int = -1) -> None:
        """Note the end of a fault, if there was one: the server has recovered, or is gone for good."""
        if (server, worker) in self._hit:
            self._hit[server, worker] = now_s

    def hear(self, root: int, verdict: str, reason: str, emitter: int) -> None:
        """Check an outcome that an emitter has received."""
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
        """Return the servers whose faults may affect a root that was emitted at ``begun_s``."""
        return sorted({server for (server, _), until_s in self._hit.items() if begun_s < until_s + GRACE_S})

    @property
    def pending(self) -> list[int]:
        return [root for root, of in self.roots.items() if not of.outcome]

    def finish(self) -> None:
        """Add a finding for each root without an outcome. Call at the end of the run."""
        for root in self.pending:
            of = self.roots[root]
            done = "all acked" if of.is_acked else "failed" if of.failed_sure else "not all acked"
            self._find("missing", root, f"no outcome; {done}")

    def _find(self, kind: str, root: int, what: str) -> None:
        self.findings.append(f"{kind}: root {root:#x}: {what}")
