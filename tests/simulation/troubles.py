"""Troubles: records cuts, pauses and lost state, and decides whether they excuse a replay.

A record need not be ACKED if every replica of its slot was in trouble while its batch was open:

    lost its state     it died, or stopped without its state, or the lease of the source ran out there
    not in the view    its ZooKeeper session expired unannounced (the server was paused, cut off or dead for too long),
                       and another server, in touch with ZooKeeper for a whole session timeout, saw that;
                       or the server answered no call the whole time
    out of reach       there are other replicas, or the cluster is a plain list of servers, and some client could not
                       reach the server for half of ``replica_wait_s`` or half of ``gone_after_s``. A call that failed
                       by chance counts for the time that it cost, and for a minute after it: the client then waits
                       only briefly for a slow server

Every client waits for a server that has announced its return in the registry. So the absence of such a server is no
trouble if nothing else went wrong.

Clients wait for a server that is the only replica and comes back with its state. Its absence excuses a replay only if
its return was not announced because ZooKeeper was away, or if the absence outlasted the driver's whole budget.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from itertools import pairwise

from tests.simulation.case import Case
from tests.simulation.scheduler import Scheduler

# This share of a budget counts as the whole budget. The rest passes while the last failing try ends.
NEARLY = 0.9
# Delay after the session timeout until servers drop a server that they expected.
DROP_S = 0.1
# After waiting for a server in vain, a client waits only briefly for it during this time.
SLOW_S = 60.0


@dataclass(frozen=True)
class Stretch:
    """From ``start`` to ``until`` nothing passed between a client (None: any) and a server (None: any, by id).
    ``is_one_call``: only one call was hit. ``is_announced``: the server was down, and had announced its return in the
    registry."""

    start: float
    until: float
    client: str | None
    server: int | None
    is_one_call: bool = False
    is_announced: bool = False


class Troubles:
    """The troubles of one run."""

    def __init__(self, scheduler: Scheduler, case: Case) -> None:
        self._scheduler = scheduler
        self._case = case
        self._stretches: list[Stretch] = []
        self._unlisted: list[tuple[float, int]] = []
        self._relisted: list[tuple[float, float, int]] = []
        # (from, until, server): the server was cut off from ZooKeeper. None: ZooKeeper was away.
        self._unheard: list[tuple[float, float, int | None]] = []
        self._down: dict[int, float] = {}
        self._away: set[int] = set()
        self._first_up: dict[int, float] = {}
        self._unregistered: list[tuple[float, float]] = []
        self._losses: list[tuple[float, int, str]] = []
        self._gaps: list[tuple[float, int, str]] = []

    def out_of_reach(self, for_s: float, client: str | None, server: int | None, *, is_one_call: bool = False) -> None:
        """Record that a client cannot reach a server from now on, for this time."""
        now = self._scheduler.now
        self._stretches.append(Stretch(now, now + for_s, client, server, is_one_call))

    def lost(self, server: int, why: str) -> None:
        self._losses.append((self._scheduler.now, server, why))

    def zookeeper_away(self, for_s: float) -> None:
        """Record that no server reaches ZooKeeper from now on, for this time."""
        now = self._scheduler.now
        self._unregistered.append((now, now + for_s))
        self._unheard.append((now, now + for_s, None))

    def unheard(self, server: int, for_s: float) -> None:
        """Record that a server is cut off from ZooKeeper from now on, for this time."""
        now = self._scheduler.now
        self._unheard.append((now, now + for_s, server))

    def is_down(self, server: int) -> None:
        """Record that a server answers no calls from now on."""
        self._down.setdefault(server, self._scheduler.now)

    def is_away(self, server: int) -> None:
        """Record that a stopping server has announced its return with its state."""
        self._away.add(server)

    def is_up(self, server: int) -> None:
        """Record that the server answers, again or for the first time."""
        self._first_up.setdefault(server, self._scheduler.now)
        if server in self._down:
            is_announced = server in self._away
            stretch = Stretch(self._down.pop(server), self._scheduler.now, None, server, is_announced=is_announced)
            self._stretches.append(stretch)
        self._away.discard(server)

    def left_view(self, server: int) -> None:
        """Record that a server has left the list unannounced."""
        self._unlisted.append((self._scheduler.now, server))

    def is_in_view(self, server: int) -> None:
        """Record that the server is listed again."""
        now = self._scheduler.now
        self._relisted += [(start, now, left) for start, left in self._unlisted if left == server]
        self._unlisted = [(start, left) for start, left in self._unlisted if left != server]

    def gap(self, server: int, what: str) -> None:
        """Record a known gap: an event that should cost no replay, but does."""
        self._gaps.append((self._scheduler.now, server, what))

    def unreached_s(self, client: str, servers: Collection[int], since: float) -> float:
        """Return for how many seconds since then the client could not reach the least reachable of ``servers``."""
        return max((self._unreached_s(client, server, since) for server in servers), default=0.0)

    def absent_s(self, server: int, since: float) -> float:
        """Return for how many seconds since then a server had never been up: it joined late or could not register."""
        now = self._scheduler.now
        return max(0.0, self._first_up.get(server, now) - since)

    def clients_of(self, server: int) -> set[str]:
        return {each.client for each in self._stretches if each.client and each.server in (None, server)}

    def is_out(self, server: int, since: float, *, source: str) -> bool:
        """Whether a source may have stopped listening to a server for good since then."""
        if self._noted(self._losses, server, since) or self._was_unlisted(server, since):
            return True
        patience_s = min(self._case.replica_wait_s, self._case.gone_after_s) / 2
        return self._unreached_s(source, server, since - SLOW_S) >= patience_s

    def excuse(self, server: int, since: float, *, is_only: bool, source: str = "driver") -> str:
        """Return why a server may have missed updates of roots pending since then; "" if nothing excuses it."""
        lost = self._noted(self._losses, server, since)
        return (
            lost
            or self.hindrance(server, since, is_only=is_only, source=source)
            or self._noted(self._gaps, server, since)
        )

    def has_lost(self, server: int, since: float) -> bool:
        return bool(self._noted(self._losses, server, since))

    def _was_unlisted(self, server: int, since: float) -> bool:
        absences = [(start, end) for start, end, left in self._relisted if left == server and end >= since]
        absences += [(start, self._scheduler.now + 1e-6) for start, left in self._unlisted if left == server]
        return any(
            self._was_silent(server, start, end) or self._is_noticed(server, start, end) for start, end in absences
        )

    def _was_silent(self, server: int, start: float, end: float) -> bool:
        """Whether the server answered no call during its absence, and for a session timeout before it."""
        return any(
            each.client is None
            and each.server == server
            and each.start + self._case.session_s <= start + 1e-6
            and end <= each.until
            for each in self._stretches
        )

    def _is_noticed(self, server: int, start: float, end: float) -> bool:
        """Whether another server saw an absence from the list, and had reason to believe it."""
        for other in self._first_up:
            believes_at = start
            for lost_at, back_at, whom in sorted(self._unheard, key=lambda each: each[0]):
                if whom in (None, other) and lost_at <= believes_at < back_at + self._case.session_s:
                    believes_at = back_at + self._case.session_s + DROP_S
            if other != server and believes_at < end:
                return True
        return False

    def hindrance(self, server: int, since: float, *, is_only: bool, source: str = "driver") -> str:
        """Like ``excuse``, but only for a server out of the view or out of reach; lost state does not count."""
        if self._was_unlisted(server, since):
            return f"server {server} was not in the view"
        had_no_registry = any(until >= since for _, until in self._unregistered)
        if is_only and self._case.cluster != "list" and not had_no_registry:
            is_beyond_budget = self._unreached_s(source, server, since) >= NEARLY * self._case.budget_s
            return f"server {server} was out of {source}'s reach for its whole budget" if is_beyond_budget else ""
        patience_s = self._case.gone_after_s if is_only else min(self._case.replica_wait_s, self._case.gone_after_s)
        if self._is_waited_for(server, since):
            return ""
        for client in (source, *sorted(self.clients_of(server))):
            if self._unreached_s(client, server, since - SLOW_S) >= patience_s / 2:
                if is_only and self._case.cluster == "list" and not self._heard_others_s(client, server, since):
                    # A client that hears no server is cut off itself, and considers no server gone.
                    continue
                return f"server {server} was out of reach"
        return ""

    def _is_waited_for(self, server: int, since: float) -> bool:
        """Whether a server was out of reach only during an announced restart, for less than a third of a budget. There
        must have been no other trouble, so that every client could know of the restart."""
        begun = since - SLOW_S
        others = [each for each in self._stretches if each.until >= begun and not each.is_announced]
        own = [each for each in self._stretches if each.until >= begun and each.server == server]
        is_short = sum(each.until - each.start for each in own) < self._case.budget_s / 3
        has_registry = self._case.cluster == "zookeeper" and not self._unheard
        return has_registry and is_short and not others and not self._down

    def _heard_others_s(self, client: str, server: int, since: float) -> float:
        """Return for how long a client may have reached another server, but not this one."""
        now, start = self._scheduler.now, since - SLOW_S
        changes = [*self._down.values(), *self._first_up.values()]
        changes += [at for each in self._stretches for at in (each.start, each.until)]
        marks = {start, now, *(min(max(at, start), now) for at in changes)}
        heard_s, ordered = 0.0, sorted(marks)
        for begin, end in pairwise(ordered):
            middle = (begin + end) / 2
            others = [other for other in self._first_up if other != server and self._first_up[other] <= middle]
            if self._is_unreached(client, server, middle) and any(
                not self._is_unreached(client, other, middle, by_any_call=True) for other in others
            ):
                heard_s += end - begin
        return heard_s

    def _is_unreached(self, client: str, server: int, at: float, *, by_any_call: bool = False) -> bool:
        is_down = server in self._down and self._down[server] <= at
        return is_down or any(
            each.start <= at < each.until and each.client in (None, client) and each.server in (None, server)
            for each in self._stretches
            if not (by_any_call and each.is_one_call)
        )

    def _noted(self, notes: list[tuple[float, int, str]], server: int, since: float) -> str:
        return next((what for at, noted, what in notes if noted == server and at >= since), "")

    def _unreached_s(self, client: str, server: int, since: float) -> float:
        now = self._scheduler.now
        stretches = [
            (max(since, each.start), min(now, each.until))
            for each in self._stretches
            if each.client in (None, client) and each.server in (None, server)
        ]
        if server in self._down:
            stretches.append((max(since, self._down[server]), now))
        unreached_s, counted = 0.0, since
        for start, until in sorted(stretches):
            unreached_s += max(0.0, until - max(start, counted))
            counted = max(counted, until)
        return unreached_s
