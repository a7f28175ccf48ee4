"""Trees: the oracle of plain sources. Records what programs did to each tree, and decides which outcomes are allowed.

Shares no code with the acker: a tree is the set of its edges that were not acked. Programs record what they do before
they call the client, and what a flush has delivered after it returned.

Promise 1. A root is ACKED only if every record of its tree was acked, and no failure was reported before the last of
them was acked.

Promise 2. Each root that was emitted has exactly one outcome. It comes soon after the root's timeout, if the source can
reach all servers of the root.

Promise 3. Each root that was not ACKED had a reason:

    outcome               is justified if
    FAILED                some program called ``fail`` on the root
    TIMED_OUT             not every report of the tree was answered within the timeout
    LOST                  the report of its init was refused
    any of them           every replica of the root was in trouble, see ``troubles``
    any but FAILED        never if a replica said ACKED, and has neither lost its state nor left the view since
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Collection
from dataclasses import dataclass, field

from acker_protocol.messages import Verdict
from tests.simulation.oracle import Violation

# Reports answered this long before the timeout were in time.
NEARLY_S = 0.5
# Longest delay between the timeout of a root and its outcome at a source that can reach its servers.
LATE_S = 15.0


@dataclass(eq=False)
class Tree:
    """One root. ``since``: when its batch was opened; ``servers``: the ids of its replicas."""

    source: str
    record: int
    root: int
    emitted_at: float
    since: float
    timeout_s: float
    servers: tuple[int, ...]
    open_edges: set[int] = field(default_factory=set)
    unreported: int = 0
    reported_at: float = 0.0
    is_init_refused: bool = False
    # When its init was reported; None if not yet, or if its timeout was reset.
    began_at: float | None = None
    has_failed: bool = False
    is_failure_reported: bool = False
    # Whether a failure was reported before all the rest was acked.
    is_doomed: bool = False
    outcome: Verdict | None = None

    @property
    def was_in_time(self) -> bool:
        """Whether all updates of the tree were reported within its timeout."""
        in_time = self.reported_at < self.emitted_at + self.timeout_s - NEARLY_S
        return not self.open_edges and not self.unreported and in_time

    def __str__(self) -> str:
        return f"record {self.record} of {self.source}"


@dataclass
class Update:
    """One call of one program on a tree."""

    tree: Tree
    is_init: bool = False
    is_fail: bool = False
    is_touch: bool = False


class Trees:
    """The oracle of one run."""

    def __init__(self) -> None:
        # Returns why trouble at its servers excuses a tree that is not ACKED; "" if nothing does.
        self.excuse: Callable[[Tree], str] = lambda tree: ""
        # Whether the ACKED of a server may be ignored.
        self.is_out: Callable[[Tree, int], bool] = lambda tree, server: False
        # Returns for how long the source could not reach some replica.
        self.unreached_s: Callable[[Tree], float] = lambda tree: 0.0
        self.replays: Counter[str] = Counter()
        self.acked = 0
        self._trees: dict[int, Tree] = {}
        self._unflushed: defaultdict[str, list[Update]] = defaultdict(list)
        # By root, the servers that have reported ACKED.
        self._acked_by: defaultdict[int, set[int]] = defaultdict(set)

    # -- what programs do

    def emitted(self, tree: Tree, edge: int, program: str) -> None:
        """Record that a program has emitted the root of ``tree``."""
        if tree.root in self._trees:
            raise Violation("root twice", f"{tree} has a root id that was emitted before")
        self._trees[tree.root] = tree
        tree.open_edges.add(edge)
        self._note(program, Update(tree, is_init=True))

    def acked_record(self, program: str, root: int, edge: int, children: Collection[int]) -> None:
        """Record that a program acks the record of ``edge``, with the children ``children``."""
        tree = self._trees[root]
        tree.open_edges.update(children)
        tree.open_edges.discard(edge)
        if not tree.open_edges and tree.is_failure_reported:
            tree.is_doomed = True
        self._note(program, Update(tree))

    def failed_record(self, program: str, root: int) -> None:
        tree = self._trees[root]
        tree.has_failed = True
        self._note(program, Update(tree, is_fail=True))

    def touched(self, program: str, root: int) -> None:
        """Record that a program resets the timeout of the root."""
        self._note(program, Update(self._trees[root], is_touch=True))

    def unflushed(self, program: str) -> list[Update]:
        """Return the updates that a flush has to deliver now."""
        return list(self._unflushed[program])

    def flushed(self, program: str, updates: list[Update], now: float) -> None:
        """Record that a flush has delivered these updates."""
        for update in updates:
            tree = update.tree
            tree.unreported -= 1
            tree.reported_at = now
            tree.began_at = now if update.is_init else tree.began_at
            tree.began_at = None if update.is_touch else tree.began_at
            if update.is_fail and not tree.is_failure_reported:
                tree.is_failure_reported = True
        self._forget(program, updates)

    def refused(self, program: str, updates: list[Update]) -> None:
        """Record that a flush has failed for good, and dropped some of these updates. All stay unreported."""
        for update in updates:
            update.tree.is_init_refused |= update.is_init
        self._forget(program, updates)

    def died(self, program: str) -> None:
        """Record that a program has ended, and lost what it had not flushed."""
        self._unflushed[program].clear()

    # -- what is reported

    def said(self, server: int, root: int, verdict: Verdict) -> None:
        """Record what a server reports of a root."""
        tree = self._trees.get(root)
        if tree is None or verdict != Verdict.ACKED:
            return
        if tree.open_edges:
            raise Violation("false ACK", f"server {server} says ACKED of {tree}: {len(tree.open_edges)} edges are open")
        self._acked_by[root].add(server)

    def ended(
        self, root: int, verdict: Verdict, reason: str, now: float, unwatched_s: Callable[[float], float]
    ) -> Tree:
        """Check the outcome of a root at its source. ``unwatched_s``: returns how long the source did not watch since
        a given time. That time does not make an outcome late."""
        tree = self._trees.get(root)
        if tree is None:
            raise Violation("unknown root", f"an outcome {verdict.name} of a root that was not emitted")
        if tree.outcome is not None:
            raise Violation("outcome twice", f"{tree} is {verdict.name} ({reason}), and was {tree.outcome.name} before")
        tree.outcome = verdict
        due_at = now if tree.began_at is None else tree.began_at + tree.timeout_s
        late_s = now - due_at - unwatched_s(due_at)
        if late_s > LATE_S and self.unreached_s(tree) < 1.0:
            raise Violation("late", f"{tree} is {verdict.name} ({reason}) {late_s:.1f} s after its timeout")
        if verdict == Verdict.ACKED:
            self._check_whole(tree)
            self.acked += 1
            return tree
        why = self._called_for(tree, verdict, reason)
        self.replays[why] += 1
        return tree

    def pending_of(self, source: str) -> list[Tree]:
        """Return the trees of a source that have no outcome yet."""
        return [tree for tree in self._trees.values() if tree.source == source and tree.outcome is None]

    def healthy(self, updates: list[Update]) -> list[Tree]:
        """Return the trees of these updates without an outcome and without an excuse."""
        trees = {update.tree.root: update.tree for update in updates}
        return [tree for tree in trees.values() if tree.outcome is None and not self.excuse(tree)]

    # -- inside

    def _check_whole(self, tree: Tree) -> None:
        if tree.open_edges:
            raise Violation("false ACK", f"{tree} is ACKED, and {len(tree.open_edges)} of its records were not acked")
        if tree.is_doomed:
            raise Violation("false ACK", f"{tree} is ACKED, and its failure was reported before")

    def _called_for(self, tree: Tree, verdict: Verdict, reason: str) -> str:
        if verdict == Verdict.FAILED and tree.has_failed:
            return "failed by the user"
        heard = sorted(server for server in self._acked_by[tree.root] if not self.is_out(tree, server))
        if heard and not tree.has_failed:
            raise Violation("needless", f"{tree} is {verdict.name} ({reason}), and server {heard[0]} said ACKED")
        if verdict == Verdict.TIMED_OUT and not tree.was_in_time:
            return "took too long"
        if tree.is_init_refused:
            return "its init was refused"
        why = self.excuse(tree)
        if not why:
            raise Violation("needless", f"{tree} is {verdict.name} ({reason}), for no reason")
        return why

    def _note(self, program: str, update: Update) -> None:
        update.tree.unreported += 1
        self._unflushed[program].append(update)

    def _forget(self, program: str, updates: list[Update]) -> None:
        gone = set(map(id, updates))
        self._unflushed[program] = [each for each in self._unflushed[program] if id(each) not in gone]
