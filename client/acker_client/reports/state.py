"""State: all that a client has in one process.

Decides which identity a report gets, and where its roots live, according to what sources published. Sends no reports.
"""

from __future__ import annotations

import logging
import secrets
import threading
from collections import deque
from collections.abc import Collection
from functools import partial

import numpy as np
import numpy.typing as npt

from acker_client.backoff import Patience
from acker_client.cluster.membership import Cluster
from acker_client.cluster.published import Published, decode
from acker_client.cluster.source_session import SourceSession
from acker_client.errors import RETRYABLE, AckerError, Unavailable, UnknownSource
from acker_client.pins import ANY_NUMBER, Mask, Pin, Pins, only, parted
from acker_client.reports.accumulator import Accumulator, Draft
from acker_client.reports.replication import Replication, has_bare_fail
from acker_client.rpc.delivery import Delivery, ReportResult
from acker_client.rpc.side_by_side import do_all, errors_of
from acker_protocol.ids import Column
from acker_protocol.messages import NO_IDS, Entries, Identity, InitScope, Status
from acker_protocol.placement import View, place

# How long to look for servers before a report that goes to the only server anyway.
GREETING_S = 1.0
# Minimum time between two requests to the servers about the sources of other processes.
LEARN_S = 0.5

NO_ENTRIES = Entries(NO_IDS, NO_IDS)

log = logging.getLogger("acker_client")


class ClientState:
    """The sending session, buffer, source and servers of a client in one process."""

    __slots__ = (
        "accumulator",
        "cluster",
        "drafts",
        "is_closed",
        "joined",
        "learnt_at",
        "lock",
        "sending",
        "sequence",
        "session",
        "source_or_none",
        "totals",
        "unanswered",
    )

    def __init__(self, cluster: Cluster) -> None:
        self.cluster = cluster
        self.lock = threading.Lock()
        self.sending = threading.Lock()
        self.session = secrets.randbits(64)
        self.sequence = 0
        self.accumulator = Accumulator()
        # Contents of later reports, whose roots were not placed yet.
        self.drafts: deque[Draft] = deque()
        self.unanswered: deque[Replication] = deque()
        self.source_or_none: SourceSession | None = None
        # By session, what sources in other processes have published. Also has the closed sources of this client, whose
        # roots are all over.
        self.joined: dict[int, Published] = {}
        self.learnt_at = float("-inf")
        self.totals = ReportResult()
        self.is_closed = False

    def source(self) -> SourceSession:
        if self.source_or_none is None:
            raise UnknownSource("no source is open on this client in this process: call open_source(name) first")
        return self.source_or_none

    def buffered(self) -> int:
        with self.lock:
            return len(self.accumulator) + sum(len(draft.entries) for draft in self.drafts)

    def pins(self) -> Pins:
        """Return the pins of all roots that this client may report about."""
        own = () if self.source_or_none is None else self.source_or_none.pins
        return (*own, *(pin for published in tuple(self.joined.values()) for pin in published.pins))

    def seal(self, *, may_drop: bool = False) -> AckerError | None:
        """Turn the buffered calls into reports with identities. Updates of roots that cannot be placed stay in the
        buffer, and delay nothing else. Returns why they cannot be placed, or None if there are none.

        ``may_drop``: drop such updates and count them as unreported, if no server answers and no false ACK can follow.
        """
        why: AckerError | None = None
        with self.lock:
            self.drafts += self.accumulator.take_drafts()
        while self.drafts:
            draft = self.drafts[0]
            pins, entries, unplaced, reason = self._routed(draft)
            inits = None if draft.batch is None or not pins else InitScope(pins[0].session, draft.batch)
            if len(entries):
                identity = Identity(self.session, self.sequence, sequenced=True)
                self.sequence += 1
                self.unanswered.append(Replication(identity, entries, inits, pins))
            if may_drop and isinstance(reason, Unavailable) and not has_bare_fail(unplaced):
                self.go_on_without(reason)
                self.add_to_totals(Delivery(Identity(self.session, self.sequence), unplaced).result)
                unplaced, reason = NO_ENTRIES, None
            with self.lock:
                self.drafts.popleft()
                self.accumulator.put_back(unplaced)
            why = why or reason
        return why

    def drop_oldest(self) -> None:
        """Remove the oldest report, which was answered or given up."""
        replication, source = self.unanswered.popleft(), self.source_or_none
        if replication.inits is not None and source is not None and replication.inits.session == source.session:
            source.inits_answered(replication.inits.batch, replication.roots)

    def close_source(self) -> None:
        """End this client's source. Its roots are over, and its buffered inits are not sent."""
        with self.lock:
            source, self.source_or_none = self.source_or_none, None
            self.accumulator.drop_inits()
        if source is not None:
            self.joined[source.session] = source.end_source()

    # -- the sources of other processes

    def join(self, session: int) -> None:
        """Learn where the roots of another process's source live. Raises ``UnknownSource`` if all listed and
        configured servers answer, and none knows the source. Raises ``Unavailable`` if the budget is spent first."""
        if self.source_or_none is not None and session == self.source_or_none.session:
            # This client knows its own source better than the servers do, and decides itself which to leave out.
            return None
        patience = self.cluster.patience()
        while True:
            addresses = self._addresses_for(session)
            published, has_heard_all = self._asked_for(session, addresses)
            if published is None:
                # A server whose ZooKeeper session has ended is in no view, and may still hold the roots of a source.
                unlisted = [address for address in self.cluster.settings.servers if address not in addresses]
                published, has_heard_unlisted = self._asked_for(session, unlisted)
                has_heard_all = has_heard_all and has_heard_unlisted
            if published is not None:
                return self._learnt(published)
            if has_heard_all:
                raise UnknownSource(
                    f"no server knows where the roots of session {session} live: it has to be open, with the session"
                    " that its open_source() returned"
                )
            if not patience.wait():
                raise Unavailable(f"no server that answers knows where the roots of session {session} live")

    def _learnt(self, published: Published) -> None:
        """Keep what a source has published, unless something newer is known."""
        with self.lock:
            known = self.joined.get(published.session)
            if known is None or published.version > known.version:
                self.joined[published.session] = published

    def is_out(self, pin: Pin, server: int) -> bool:
        """Whether the source of ``pin`` has left ``server`` out of the batch, or the batch is over."""
        if self.source_or_none is not None and pin.session == self.source_or_none.session:
            return self.source_or_none.has_left_out(pin.batch, server)
        return pin.session in self.joined and self.joined[pin.session].is_out(pin.batch, server)

    def learn(self, sessions: Collection[int]) -> bool:
        """Ask the servers what joined sources have published by now, unless they were asked a moment ago. Return
        whether every server has answered."""
        if self.cluster.clock() - self.learnt_at < LEARN_S:
            return False
        # Copied, as another thread may join a source meanwhile.
        asked = [self._asked_for(session, self._addresses_for(session)) for session in tuple(sessions)]
        for published, _ in asked:
            if published is not None:
                self._learnt(published)
        self.learnt_at = self.cluster.clock()
        return all(has_heard_all for _, has_heard_all in asked)

    def _addresses_for(self, session: int) -> Collection[str]:
        """Return the addresses of the servers in the view, and of those where roots of the source are known to live."""
        cluster = self.cluster
        pins = self.joined[session].pins if session in self.joined else ()
        known = (cluster.address_of(member) for pin in pins for member in pin.placement.members)
        return dict.fromkeys((*cluster.serving_addresses(cluster.patience()), *known))

    def _asked_for(self, session: int, addresses: Collection[str]) -> tuple[Published | None, bool]:
        """Ask these servers at once. Return the newest publication of a source, and whether every server answered."""
        cluster, found = self.cluster, list[Published]()

        def ask(address: str) -> None:
            deadline = cluster.patience(GREETING_S).deadline
            caller = cluster.callers.at(address)
            reply = caller.once(lambda transport, left_s: transport.pins(session, left_s), deadline)
            if reply.status == Status.APPLIED and reply.pins:
                found.append(decode(session, reply.pins))

        deadline = cluster.patience(GREETING_S).deadline
        calls = do_all(cluster.side_by_side, [partial(ask, address) for address in addresses], deadline)
        errors = errors_of(calls)
        for error in errors:
            if not isinstance(error, RETRYABLE):
                raise error
        newest = max(found, key=lambda each: each.version, default=None)
        for pin in () if newest is None else newest.pins:
            cluster.hear_of(pin.placement)
        return newest, not errors

    # -- inside

    def _routed(self, draft: Draft) -> tuple[Pins, Entries, Entries, AckerError | None]:
        """Return where the roots of a draft live, the entries to report, the entries of roots that cannot be placed,
        and the reason (None if all can be placed). Drops entries of roots that are over.

        A root cannot be placed if there are several servers and no known source has emitted it.
        """
        if draft.batch is not None:
            pin = None if self.source_or_none is None else self.source_or_none.pin_of(draft.batch)
            if pin is None:
                return (), NO_ENTRIES, NO_ENTRIES, None
            return (pin,), draft.entries, NO_ENTRIES, None
        roots = draft.entries.root_ids
        pins, indices, is_unknown = self._sorted(roots)
        has_heard_all = True
        if is_unknown.any() and self.joined:
            # A batch may have been opened since this client asked. The server that knows it may not answer now.
            has_heard_all = self.learn(self.joined)
            pins, indices, is_unknown = self._sorted(roots)
        named = tuple(pins[index] for index in np.unique(indices[indices >= 0]).tolist())
        if not is_unknown.any():
            return named, only(draft.entries, indices >= 0), NO_ENTRIES, None
        root = roots[is_unknown][0]
        try:
            if not has_heard_all:
                raise Unavailable(f"no server that answers knows where root {root} lives")
            everywhere = self.pin_of_the_only_server(self.cluster.patience(GREETING_S), f"root {root} lives")
        except (UnknownSource, Unavailable) as error:
            return named, only(draft.entries, indices >= 0), only(draft.entries, is_unknown), error
        return (*named, everywhere), only(draft.entries, (indices >= 0) | is_unknown), NO_ENTRIES, None

    def _sorted(self, roots: Column) -> tuple[Pins, npt.NDArray[np.int64], Mask]:
        """Return the known pins, the index of each root's pin (-1 for none), and the roots that no source emitted."""
        source, joined = self.source_or_none, tuple(self.joined.values())
        # One snapshot of the joined sources for both steps: a join in between would make new roots look finished.
        own = () if source is None else source.pins
        pins = (*own, *(pin for published in joined for pin in published.pins))
        indices = parted(pins, roots)
        is_unknown = indices < 0
        if source is not None:
            is_unknown &= ~source.has_issued(roots)
        for published in joined:
            is_unknown &= ~published.has(roots)
        return pins, indices, is_unknown

    def add_to_totals(self, result: ReportResult) -> ReportResult:
        """Add ``result`` to the totals and return it."""
        with self.lock:
            self.totals += result
        return result

    def go_on_without(self, error: AckerError) -> None:
        """Log once that reports are dropped (``on_unreachable="continue"``). That costs replays, never a false ACK."""
        if not self.totals.unreported:
            log.error('going on without reporting (on_unreachable="continue"): %s', error)

    def pin_of_the_only_server(self, patience: Patience, what: str = "these roots live") -> Pin:
        """Return a pin that places all roots on the only server. Raises ``UnknownSource`` if there may be several.

        One server that answers or is active need not be the only one. It would accept a fail of a root that lives on
        another server, and that root might be ACKED there. So the server first has to say whether there are others.
        """
        members = self.cluster.view(patience).members
        if not self.cluster.is_alone:
            raise UnknownSource(
                f"there may be several servers, and this client does not know on which of them {what}:"
                " call join(session) for the source that emitted, with the session that its open_source() returned"
            )
        return Pin(0, 0, 1, ANY_NUMBER, place(View(0, members), 0, 0, 1))
