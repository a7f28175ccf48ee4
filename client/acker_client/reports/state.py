"""State: all that a client has in one process.

Decides which identity a report gets, and where its roots live, according to what sources published. Sends no reports.
"""

from __future__ import annotations

import logging
import secrets
import threading
from collections import deque
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from acker_client.backoff import Patience
from acker_client.cluster.membership import Cluster
from acker_client.cluster.source_session import SourceSession
from acker_client.errors import AckerError, Closed, Rejected, Unavailable, UnknownSource
from acker_client.pins import ANY_NUMBER, Mask, Pin, Pins, only, parted
from acker_client.reports.accumulator import Accumulator, Draft
from acker_client.reports.other_sources import DISOWNED_S, GREETING_S, LEARN_S, NOT_WATCHED, OtherSources
from acker_client.reports.replication import Replication, has_bare_fail
from acker_client.rpc.delivery import Delivery, ReportResult
from acker_protocol.ids import Column
from acker_protocol.messages import NO_IDS, Entries, Identity, InitScope
from acker_protocol.placement import View, place
from acker_protocol.reports import bare_fails

NO_ENTRIES = Entries(NO_IDS, NO_IDS)

log = logging.getLogger("acker_client")


class Placed(NamedTuple):
    """Where n roots live. ``is_placed``: the roots that live on the servers of ``pins``. ``is_unknown``: the roots that
    cannot be placed, because of ``why``. The others are over."""

    pins: Pins
    is_placed: Mask
    is_unknown: Mask
    why: AckerError | None


class ClientState:
    """The sending session, buffer, source and servers of a client in one process."""

    __slots__ = (
        "accumulator",
        "cluster",
        "drafts",
        "is_closed",
        "lock",
        "others",
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
        self.others = OtherSources(cluster)
        self.totals = ReportResult()
        self.is_closed = False

    def source(self) -> SourceSession:
        if self.source_or_none is None:
            raise UnknownSource("no source is open on this client in this process: call open_source(name) first")
        return self.source_or_none

    def refuse_closed(self, source: SourceSession) -> None:
        """Raise ``Closed`` if ``source`` or this client was closed meanwhile. The caller holds the lock."""
        if self.is_closed:
            raise Closed("the client was closed meanwhile")
        if self.source_or_none is not source:
            raise Closed.of_source(source.name)

    def buffered(self) -> int:
        with self.lock:
            return len(self.accumulator) + sum(len(draft.entries) for draft in self.drafts)

    def pins(self) -> Pins:
        """Return the pins of all roots that this client may report about."""
        own = () if self.source_or_none is None else self.source_or_none.pins
        return (*own, *(pin for published in self.others for pin in published.pins))

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
            unplaced = self._without_disowned(unplaced)
            inits = None if draft.batch is None or not pins else InitScope(*draft.batch)
            if len(entries):
                identity = Identity(self.session, self.sequence, sequenced=True)
                self.sequence += 1
                self.unanswered.append(Replication(identity, entries, inits, pins))
            if may_drop and isinstance(reason, Unavailable) and not has_bare_fail(unplaced):
                self.go_on_without(reason)
                self._count_unreported(unplaced)
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
            self.others.closed.append(source.end_source())

    # -- the sources of other processes

    def join(self, session: int) -> None:
        """Learn where the roots of another process's source live: see ``OtherSources.join``."""
        if self.source_or_none is None or session != self.source_or_none.session:
            # This client knows its own source better than the servers do, and decides itself which to leave out.
            self.others.join(session)

    def wait_to_learn(self, patience: Patience) -> bool:
        """Wait before the servers are asked again where roots live. Return False if the budget is spent."""
        if self.source_or_none is not None:
            self.source_or_none.keep_leases()
        return patience.wait(LEARN_S)

    def is_out(self, pin: Pin, server: int) -> bool:
        """Whether the source of ``pin`` has left ``server`` out of the batch, or the batch is over."""
        if self.source_or_none is not None and pin.session == self.source_or_none.session:
            return self.source_or_none.has_left_out(pin.batch, server)
        return self.others.is_out(pin, server)

    # -- inside

    def _without_disowned(self, unplaced: Entries) -> Entries:
        """Return the updates without those that are given up, as all servers have long disowned their roots. Counts
        these as unreported. A fail without an edge is never given up, as its root might be falsely ACKED."""
        is_over = self.others.are_disowned(unplaced.root_ids) & ~bare_fails(unplaced)
        if not is_over.any():
            return unplaced
        dropped = only(unplaced, is_over)
        log.error("dropped %d updates, as for %.0f s no server has known their roots", len(dropped), DISOWNED_S)
        self._count_unreported(dropped)
        return only(unplaced, ~is_over)

    def _count_unreported(self, entries: Entries) -> None:
        self.add_to_totals(Delivery(Identity(self.session, self.sequence), entries).result)

    def _routed(self, draft: Draft) -> tuple[Pins, Entries, Entries, AckerError | None]:
        """Return where the roots of a draft live, the entries to report, the entries of roots that cannot be placed,
        and the reason (None if all can be placed). Drops entries of roots that are over."""
        if draft.batch is not None:
            session, number = draft.batch
            source = self.source_or_none
            pin = source.pin_of(number) if source is not None and source.session == session else None
            if pin is None:
                return (), NO_ENTRIES, NO_ENTRIES, None
            return (pin,), draft.entries, NO_ENTRIES, None
        placed = self.place(draft.entries.root_ids)
        return placed.pins, only(draft.entries, placed.is_placed), only(draft.entries, placed.is_unknown), placed.why

    def place(self, roots: Column) -> Placed:
        """Find the servers of ``roots: uint64[n]``. Asks the servers about roots of unknown sources.

        A root cannot be placed if there are several servers and none of them knows its source.
        """
        pins, indices, is_unknown = self._sorted(roots)
        has_heard_all = True
        why: AckerError | None = None
        try:
            if is_unknown.any() and self.others.joined:
                # A batch may have been opened since this client asked. The server that knows it may not answer now.
                has_heard_all = self.others.learn(self.others.joined)
                pins, indices, is_unknown = self._sorted(roots)
            if is_unknown.any():
                only_server = self._only_server(self.cluster.patience(GREETING_S))
                if only_server is None:
                    has_heard_all = self.others.find(roots[is_unknown]) and has_heard_all
                    pins, indices, is_unknown = self._sorted(roots)
                elif has_heard_all:
                    indices[is_unknown] = len(pins)
                    pins, is_unknown = (*pins, only_server), np.zeros_like(is_unknown)
                if is_unknown.any():
                    why = _unknown(int(roots[is_unknown][0]), has_heard_all=has_heard_all)
        except AckerError as error:
            why = error
        except ValueError as error:
            # The pins of a source cannot be read.
            why = Rejected(str(error))
        named = tuple(pins[index] for index in np.unique(indices[indices >= 0]).tolist())
        return Placed(named, indices >= 0, is_unknown, why)

    def _sorted(self, roots: Column) -> tuple[Pins, npt.NDArray[np.int64], Mask]:
        """Return the known pins, the index of each root's pin (-1 for none), and the roots that no source emitted."""
        source, others = self.source_or_none, tuple(self.others)
        # One snapshot of the other sources for both steps: a join in between would make new roots look finished.
        own = () if source is None else source.pins
        pins = (*own, *(pin for published in others for pin in published.pins))
        indices = parted(pins, roots)
        is_unknown = indices < 0
        if source is not None:
            is_unknown &= ~source.has_issued(roots)
        for published in others:
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

    def pin_of_the_only_server(self, patience: Patience) -> Pin:
        """Return a pin that places all roots on the only server. Raises ``UnknownSource`` if there may be several."""
        pin = self._only_server(patience)
        if pin is None:
            raise UnknownSource(
                "there may be several servers, and this client does not know on which of them these roots live: call"
                " join(session) for the source that emitted, with the session that its open_source() returned"
            )
        return pin

    def _only_server(self, patience: Patience) -> Pin | None:
        """Return a pin that places all roots on the only server, or None if there may be several.

        One server that answers or is active need not be the only one. It would accept a fail of a root that lives on
        another server, and that root might be ACKED there. So the server first has to say whether there are others.
        """
        # It may drain: it takes reports as long as it has roots.
        members = tuple(self.cluster.serving(patience))
        return Pin(0, 0, 1, ANY_NUMBER, place(View(0, members), 0, 0, 1)) if self.cluster.is_alone else None


def _unknown(root: int, *, has_heard_all: bool) -> AckerError:
    if not has_heard_all:
        return Unavailable(f"no server that answers knows where root {root} lives")
    return UnknownSource(f"no server knows root {root}: it was emitted to other servers, or {NOT_WATCHED}")
