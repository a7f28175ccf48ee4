"""Cluster: which servers there are, as far as this process knows.

Decides the view that new batches are placed on, and which member is gone for good. If the servers have a registry
(ZooKeeper), they hand the view out: its members, and which of them drain or are away for a planned restart. Without a
registry, ``server_list`` has the view, and a member is gone after it has been silent for ``gone_after_s`` while others
answered. Never places anything, and does not decide what a lost member means for a root.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from acker_client.backoff import Backoff, Clock, Deadline, Patience, Random, Sleep
from acker_client.cluster.callers import Callers
from acker_client.cluster.server_list import ServerList
from acker_client.cluster.view_pace import ViewPace
from acker_client.errors import AckerError, Rejected, Unavailable
from acker_client.rpc.caller import Caller, Retrying, unanswered
from acker_client.rpc.connection import FIRST_GREETING_S, Connect
from acker_client.rpc.side_by_side import SideBySide
from acker_client.settings import Settings
from acker_protocol.messages import HelloReply, ListedMember, MemberState, ViewReply
from acker_protocol.placement import Member, Placement, View, parts_of

log = logging.getLogger("acker_client")

# Time limit of one request for the view, and the budget of a refresh that nothing waits for.
AGAIN_S = 1.0
# After the client has waited for a member in vain, it waits only BRIEF_WAIT_S for that member during the next SLOW_S.
BRIEF_WAIT_S = 0.5
SLOW_S = 60.0
# The longest pause between two tries, as a part of the time after which a replica is left out.
TRIES_SHARE = 1 / 4


class Cluster:
    """Thread-safe; belongs to one process. No lock is held over a call."""

    def __init__(
        self, settings: Settings, connect: Connect, clock: Clock, sleep: Sleep, random: Random, side_by_side: SideBySide
    ) -> None:
        self.settings = settings
        self.clock = clock
        self.sleep = sleep
        self.side_by_side = side_by_side
        self.callers = Callers(settings, connect, clock, self._heard)
        self._random = random
        self._server_list = ServerList(settings, self.callers, clock, side_by_side)
        self._view_pace = ViewPace(clock, random)
        # Several tries fall into the time after which a replica is left out, so that one that is back is noticed.
        self._backoff = Backoff(cap_s=min(Backoff().cap_s, settings.replica_wait_s * TRIES_SHARE))
        # The last view of a registry; None if there is no registry, or it was not heard yet.
        self._listed: ViewReply | None = None
        # When the first view of the current ZooKeeper ensemble came.
        self._ensemble_since = float("-inf")
        # Maps (id, generation) of a member to the newest ensemble that had this member.
        self._ensembles: dict[tuple[int, int], int] = {}
        self._epoch_heard = 0
        self._slow: dict[Member, float] = {}
        # The first reply that spoke against a member, by member and type of reply (greeting or view). This reply proves
        # nothing, as it may be older than the member. None: a later reply spoke against the member, too.
        self._doubted: dict[tuple[Member, type[Any]], HelloReply | ViewReply | None] = {}
        # Whether to ask for the view because of such a reply.
        self._is_in_doubt = False
        # Members of placements, on this view or on older ones, and since when the silence of each counts: since this
        # process first heard of it, or since it was last away.
        self._placed: dict[Member, float] = {}
        self._placed_on = 0

    # -- calls

    def caller_of(self, member: Member) -> Caller:
        """Return the caller of ``member``. Use it at once."""
        return self.callers.at(self.address_of(member))

    def calls_to(self, member: Member) -> Retrying:
        """Return calls to ``member`` that follow it to another address."""
        return Retrying(lambda: self.caller_of(member))

    def address_of(self, member: Member) -> str:
        """Return the present address of ``member``."""
        listed = self._listing_of(member)
        return member.address if listed is None else listed.member.address

    def patience(self, budget_s: float | None = None, *, meanwhile: Callable[[], object] = lambda: None) -> Patience:
        """Return a new budget. None: the budget of the settings. ``meanwhile``: called before each wait."""

        def sleep(seconds: float) -> None:
            meanwhile()
            self.sleep(seconds)

        deadline = Deadline(self.settings.budget_s if budget_s is None else budget_s, self.clock)
        return Patience(deadline, sleep, self._random, self._backoff)

    @property
    def is_alone(self) -> bool:
        """Whether there is only one server. It is never given up."""
        return len(self.settings.servers) == 1 and not self._epoch_heard

    # -- the view

    def calls_to_any(self, patience: Patience) -> Retrying:
        """Return calls to some server that answers."""
        view = self.view(patience)
        return self.calls_to(min(view.members, key=lambda member: self.callers.silent_s(member.address)))

    def view(self, patience: Patience) -> View:
        """Return the members to place new batches on. Waits until there is one."""
        while True:
            view = self._look(patience)
            if view.members:
                return view
            if not patience.wait():
                raise Unavailable(
                    f"every server of {', '.join(self.settings.servers)} is draining or away: start another one"
                )

    def serving(self, patience: Patience) -> list[Member]:
        """Return the servers that answer calls, draining ones among them. Waits only until some server was heard."""
        self._look(patience)
        if self._listed is None:
            return self._server_list.serving()
        return [each.member for each in self._listed.members if each.state != MemberState.AWAY]

    @property
    def known_addresses(self) -> set[str]:
        """The addresses of all servers in the registry, or else in the settings, whatever their state."""
        if self._listed is None:
            return set(self.settings.servers)
        return {each.member.address for each in self._listed.members}

    def refresh(self) -> None:
        """Look for changes of the view if there is reason to. Raises nothing. May wait a second for each silent server
        that is asked."""
        if self.is_alone:
            return
        try:
            self._look(self.patience(AGAIN_S))
        except AckerError as error:
            log.debug("the view could not be refreshed: %s", error)

    @property
    def known_members(self) -> tuple[Member, ...]:
        """The members that something new would be placed on, as far as is known. Makes no call."""
        return self._known_view().members

    def is_away(self, member: Member) -> bool:
        """Whether ``member`` has stopped with its state and said that it will be back."""
        listed = self._listing_of(member)
        return listed is not None and listed.state == MemberState.AWAY

    def drains(self, member: Member) -> None:
        """Note that ``member`` has said that it takes nothing new."""
        self.callers.note_draining(member.address)
        self._server_list.look_soon()
        self._view_pace.ask_at_once()

    def hear_of(self, placement: Placement) -> None:
        """Note that roots live on the members of ``placement``. A view with an older epoch is no evidence against these
        members."""
        self._placed_on = max(self._placed_on, placement.epoch)
        now = self.clock()
        for member in placement.members:
            self._placed.setdefault(member, now)
            self._note_ensemble(member, placement.epoch)

    def gone(self, member: Member, *, is_silence_enough: bool = True) -> str:
        """Return why ``member`` is gone for good; "" while it may come back with its state.

        ``is_silence_enough``: whether silence towards this process is enough to count as gone, although the server may
        answer others. Matters only without a registry.
        """
        hello = self.callers.hello_of(self.address_of(member))
        if hello is not None and not _is_of(hello, member):
            if self._is_news_of(member, hello):
                return "its server came back without its state"
            self.caller_of(member).connection.greet_anew()
            return ""
        if self._listed is not None:
            if self._listing_of(member) is not None:
                return ""
            is_known = member in self._placed or self._is_news_of(member, self._listed)
            is_newest = self._listed.epoch >= max(self._epoch_heard, self._placed_on)
            if is_newest and is_known and self._had_time_to_register(member, self._listed.epoch):
                return "its server is gone"
            self._is_in_doubt = True
            return ""
        if self._epoch_heard:
            # There is a registry, and its view was not heard yet.
            self._is_in_doubt = True
            return ""
        return self.out_of_reach(member, self.settings.gone_after_s) if is_silence_enough else ""

    def out_of_reach(self, member: Member, for_s: float) -> str:
        """Return for how long ``member`` has not answered this process, as a sentence. Return "" if that is less than
        ``for_s``, if no other server answers, or if it is away for a planned restart."""
        if self.is_away(member):
            # Its silence counts from its return.
            self._placed[member] = self.clock()
            return ""
        address = self.address_of(member)
        silent_s = self.callers.shown_silent_s(address, self._placed.get(member, float("-inf")))
        if silent_s < for_s or not self.callers.hears_others_than(address):
            return ""
        return f"its server has not answered for {silent_s:.0f} s"

    def is_replaced(self, member: Member, patience: Patience) -> bool:
        """Whether the server at the address of ``member`` is another one, or has lost its state."""
        calls = self.calls_to(member)
        if _is_of(calls.greeted(patience).hello, member):
            return False
        # The greeting may be older than what this process knows about the member.
        self.caller_of(member).connection.greet_anew()
        return not _is_of(calls.greeted(patience).hello, member)

    def greet_again(self, member: Member) -> None:
        """Greet the server at the address of ``member`` once more. The answer may show that ``member`` is gone."""
        with suppress(AckerError):
            greeted = self.caller_of(member).greet(Deadline(FIRST_GREETING_S, self.clock))
            if not _is_of(greeted.hello, member):
                self._doubted[member, HelloReply] = None

    def _had_time_to_register(self, member: Member, epoch: int) -> bool:
        """Whether ``member`` would be in a view of that epoch if it were running. A later ensemble means that ZooKeeper
        has lost its data. It begins without members, and the running servers register again."""
        was_in = self._ensembles.get((member.id, member.generation), 0)
        return was_in == parts_of(epoch)[0] or self.clock() - self._ensemble_since >= self.settings.gone_after_s

    def _note_ensemble(self, member: Member, epoch: int) -> None:
        key, ensemble = (member.id, member.generation), parts_of(epoch)[0]
        self._ensembles[key] = max(ensemble, self._ensembles.get(key, 0))

    def _is_news_of(self, member: Member, said: HelloReply | ViewReply) -> bool:
        """Whether ``said``, which speaks against ``member``, came after this process had heard of the member. An older
        reply proves nothing, as the server may have started or come back since."""
        if self._doubted.setdefault((member, type(said)), said) is said:
            return False
        # From now on every reply is news. Stores None instead of the view, which may be large.
        self._doubted[member, type(said)] = None
        return True

    def answering_instead_of(self, member: Member) -> set[Member]:
        """Return the members of the known view that have answered since ``member`` fell silent. Empty if ``member`` is
        not silent. A full server is not silent, as it answers calls."""
        caller = self.callers.known(member.address)
        if caller is None or caller.silent_since is None:
            return set()
        try:
            members = self._known_view().members
        except Rejected:
            # The next look at the view raises this error.
            return set()
        others = {other: self.callers.known(other.address) for other in members}
        return {other for other, its in others.items() if its is not None and its.heard_at > caller.silent_since}

    # -- replicas that keep others waiting

    def replica_wait_s(self, member: Member) -> float:
        """Return how long to wait for ``member`` after another replica has answered."""
        is_slow = self._slow.get(member, float("-inf")) > self.clock()
        return min(BRIEF_WAIT_S, self.settings.replica_wait_s) if is_slow else self.settings.replica_wait_s

    def note_slow(self, member: Member, *, is_slow: bool) -> None:
        """Note that the client waited for ``member`` in vain (``is_slow``), or that ``member`` answered."""
        if is_slow:
            self._slow[member] = self.clock() + SLOW_S
        else:
            self._slow.pop(member, None)

    # -- inside

    def _heard(self, reply: Any) -> None:
        if reply.epoch > self._epoch_heard:
            self._epoch_heard = reply.epoch
            self._view_pace.ask_at_once()

    def _listing_of(self, member: Member) -> ListedMember | None:
        """Return what a registry says about ``member``, which may have another address by now."""
        listed = () if self._listed is None else self._listed.members
        same = (each for each in listed if (each.member.id, each.member.generation) == (member.id, member.generation))
        return next(same, None)

    def _look(self, patience: Patience) -> View:
        if self._listed is None and self._epoch_heard == 0:
            self._server_list.greet(patience)
        if self._epoch_heard:
            self._ask_registry(patience)
        return self._known_view()

    def _known_view(self) -> View:
        return self._server_list.view() if self._listed is None else self._listed_view(self._listed)

    def _ask_registry(self, patience: Patience) -> None:
        """Ask for the view if the known one is not the newest, or if a server is silent."""
        known = self._listed
        if known is not None and not self._view_pace.is_due(self._reasons_to_ask(known)):
            return
        self._view_pace.asked()
        while True:
            try:
                reply = self._asked()
            except Unavailable as error:
                if known is not None:
                    return
                if not patience.wait():
                    raise unanswered(", ".join(self.settings.servers), patience, error) from error
            else:
                if known is None or reply.epoch >= known.epoch:
                    self._note_changes(known, reply)
                    self._listed = reply
                    self._is_in_doubt = False
                return

    def _reasons_to_ask(self, known: ViewReply) -> frozenset[str]:
        """Return why to ask: the addresses of members that are silent, draining or away, and names of what else is in
        doubt."""
        reasons = {
            "a server says that it drains": self.callers.has_noted_draining,
            "a doubt": self._is_in_doubt,
            f"epoch {self._epoch_heard}": known.epoch < self._epoch_heard,
        }
        return frozenset(reason for reason, holds in reasons.items() if holds) | frozenset(
            listed.member.address
            for listed in known.members
            if listed.state != MemberState.ACTIVE or self.callers.silent_s(listed.member.address)
        )

    def _asked(self) -> ViewReply:
        """Return a view of the newest epoch that was heard of, else the newest view of all answers. Asks members of
        placements, too, as an executor may know servers only from placements."""
        known = () if self._listed is None else tuple(listed.member.address for listed in self._listed.members)
        addresses = dict.fromkeys((*known, *self.callers.addresses, *self.settings.servers))
        failures: list[str] = []
        newest: ViewReply | None = None
        for address in sorted(addresses, key=self._rank):
            try:
                reply = self.callers.at(address).once(
                    lambda transport, timeout_s: transport.view(timeout_s), Deadline(AGAIN_S, self.clock), AGAIN_S
                )
            except Unavailable as error:
                failures.append(str(error))
                continue
            if not reply.epoch:
                failures.append(f"{address}: this server knows of no others")
            elif newest is None or reply.epoch > newest.epoch:
                newest = reply
            if newest is not None and newest.epoch >= self._epoch_heard:
                break
        if newest is not None:
            return newest
        raise Unavailable("; ".join(failures))

    def _rank(self, address: str) -> tuple[float, bool, float]:
        """Return the rank of a server among those to ask. Silent servers come last. Servers that this process calls
        anyway come first, as they need no new channel. Equals come in random order, so that many processes do not all
        ask the same server, and no process always asks a server with an old view."""
        caller = self.callers.known(address)
        is_connected = caller is not None and caller.connection.is_greeted
        return self.callers.silent_s(address), not is_connected, self._random()

    def _note_changes(self, known: ViewReply | None, reply: ViewReply) -> None:
        # A server that says that it drains counts as draining, even if others have not seen it yet.
        active = {each.member.address for each in reply.members if each.state == MemberState.ACTIVE}
        self.callers.keep_draining(active)
        ensemble, epoch = parts_of(reply.epoch)
        if known is None or parts_of(known.epoch)[0] != ensemble:
            self._ensemble_since = self.clock()
        for each in reply.members:
            # Servers also list a member as AWAY if it has not registered in this ensemble yet.
            if each.state != MemberState.AWAY:
                self._note_ensemble(each.member, reply.epoch)
        if known is not None and known.members != reply.members:
            log.info("view %d: %s", epoch, ", ".join(map(_described, reply.members)))

    def _listed_view(self, listed: ViewReply) -> View:
        members = [each.member for each in listed.members if each.state == MemberState.ACTIVE]
        return View(listed.epoch, tuple(member for member in members if not self.callers.is_draining(member.address)))


def _is_of(hello: HelloReply, member: Member) -> bool:
    return (hello.id, hello.generation) == (member.id, member.generation)


def _described(listed: ListedMember) -> str:
    state = "" if listed.state == MemberState.ACTIVE else f" ({listed.state.name.lower()})"
    return f"{listed.member.id} at {listed.member.address}{state}"
