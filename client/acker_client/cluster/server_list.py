"""ServerList: the cluster without a registry, which is the list of addresses in the settings.

Decides when the servers of the list are greeted. New batches are placed on those that answer. Does not decide what a
silent server means for a batch.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Future

from acker_client.backoff import Clock, Deadline, Patience
from acker_client.cluster.callers import Callers
from acker_client.errors import Rejected, Unavailable
from acker_client.rpc.caller import Caller, Retrying, unanswered
from acker_client.rpc.connection import FIRST_GREETING_S, Greeted
from acker_client.rpc.side_by_side import SideBySide, errors_of, wait_for
from acker_client.settings import Settings
from acker_protocol.placement import Member, View

# Pace of greeting servers that are silent or were never heard.
AGAIN_S = 1.0
# Pace of greeting the servers that answer.
GREET_S = 2.0


class ServerList:
    """Thread-safe; belongs to one process."""

    def __init__(self, settings: Settings, callers: Callers, clock: Clock, side_by_side: SideBySide) -> None:
        self._settings, self._callers, self._clock, self._side_by_side = settings, callers, clock, side_by_side
        self._looked_at = self._greeted_at = float("-inf")
        # The last view. Its epoch counts changes.
        self._view: View | None = None

    def look_soon(self) -> None:
        """Greet absent servers at the next :meth:`greet`, whatever the pace."""
        self._looked_at = float("-inf")

    def greet(self, patience: Patience) -> None:
        """Greet the servers that are not greeted yet. The first call waits until one has answered, and up to 2 s for
        the others. Later calls do not wait, unless the list has only one server and this server drains."""
        seeds = self._settings.servers
        if len(seeds) == 1:
            self._greet_one(self._callers.at(seeds[0]), patience)
            return
        callers = [self._callers.at(seed) for seed in seeds]
        absent = [caller for caller in callers if not caller.connection.is_greeted]
        if self._view is not None:
            self._greet_beside(callers, absent)
            return
        self._looked_at = self._greeted_at = self._clock()
        calls = [self._started(caller) for caller in absent]
        while self._view is None:
            self._await(calls)
            failures = errors_of(calls)
            for error in failures:
                if not isinstance(error, Unavailable):
                    raise error
            if any(caller.connection.is_greeted for caller in map(self._callers.at, seeds)):
                return
            said = Unavailable("; ".join(map(str, failures)))
            if not patience.wait():
                raise unanswered(", ".join(seeds), patience, said)
            calls = [self._started(caller) for caller in absent]

    def _greet_beside(self, callers: Sequence[Caller], absent: Sequence[Caller]) -> None:
        """Begin to greet the absent servers. Now and then greet all, as only a server itself can say that it drains."""
        now = self._clock()
        if now - self._greeted_at >= GREET_S:
            self._looked_at = self._greeted_at = now
            due = callers
        elif now - self._looked_at >= AGAIN_S:
            self._looked_at = now
            due = absent
        else:
            due = []
        for caller in due:
            self._started(caller)

    def _greet_one(self, caller: Caller, patience: Patience) -> None:
        if self._view is None or self._callers.has_noted_draining:
            if self._callers.has_noted_draining:
                self._callers.keep_draining(())
                caller.connection.greet_anew()
            Retrying(lambda: caller).greeted(patience)

    def _started(self, caller: Caller) -> Future[Greeted]:
        return self._side_by_side.start(lambda: caller.greet(Deadline(FIRST_GREETING_S, self._clock)))

    def _await(self, calls: Sequence[Future[Greeted]]) -> None:
        """Wait for all of ``calls``. Each ends within the time of a greeting."""
        wait_for(self._side_by_side, calls, Deadline(2 * FIRST_GREETING_S, self._clock))

    def view(self) -> View:
        """Return the servers of the list that answer and have not said that they take nothing new."""
        open_to_new = tuple(member for member in self.serving() if not self._callers.is_draining(member.address))
        if self._view is None or self._view.members != tuple(sorted(open_to_new, key=lambda each: each.id)):
            self._view = View(0 if self._view is None else self._view.epoch + 1, open_to_new)
        return self._view

    def serving(self) -> list[Member]:
        """Return the servers of the list that answer, draining ones among them."""
        members: dict[int, Member] = {}
        seen: set[int] = set()
        for seed in self._settings.servers:
            hello = self._callers.hello_of(seed)
            if hello is None or hello.incarnation in seen or self._is_out(seed):
                continue
            seen.add(hello.incarnation)
            member = Member(hello.id, hello.generation, seed)
            other = members.setdefault(hello.id, member)
            if other is not member:
                raise Rejected(
                    f"the servers at {other.address} and {seed} both have the id {hello.id}: start each with an --id of"
                    " its own, 0, 1, 2 ..."
                )
        return list(members.values())

    def _is_out(self, seed: str) -> bool:
        return len(self._settings.servers) > 1 and self._callers.shown_silent_s(seed) >= self._settings.gone_after_s
