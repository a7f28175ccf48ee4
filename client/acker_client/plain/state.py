"""State: what a client has in one process: its sending session, its buffer, its source and its servers.

Decides which identity a report gets, and which root id an emission. Never sends: the client does.
"""

from __future__ import annotations

import logging
import secrets
import threading
from collections import deque

import numpy as np

from acker_client.core.accumulator import Accumulator, Draft
from acker_client.core.delivery import ReportResult
from acker_client.core.pins import ANY_NUMBER, Pin, Pins, decode
from acker_client.core.replication import Replication
from acker_client.errors import AckerError, Unavailable, UnknownSource
from acker_client.members.cluster import Cluster
from acker_client.members.source_session import SourceSession
from acker_protocol.messages import Identity, InitScope, PinsReply, Status
from acker_protocol.placement import Member, View, place

# How long it is looked who there is, before a report that goes to the only server anyway.
GREETING_S = 1.0

log = logging.getLogger("acker_client")


class ClientState:
    """What a client has in one process: its sending session, its buffer, its source and its servers."""

    __slots__ = (
        "accumulator",
        "cluster",
        "drafts",
        "is_closed",
        "joined",
        "lock",
        "sending",
        "sequence",
        "session",
        "session_of_source",
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
        # What is to become a report, once it is known where its roots live.
        self.drafts: deque[Draft] = deque()
        self.unanswered: deque[Replication] = deque()
        self.source_or_none: SourceSession | None = None
        # That of the source that was open last: what is buffered is sent for it, also when it was closed meanwhile.
        self.session_of_source = 0
        # Where the roots of other processes' sources live, by their sessions.
        self.joined: dict[int, Pins] = {}
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
        """Where the roots live that this client may speak of."""
        own = () if self.source_or_none is None else self.source_or_none.pins
        pins = (*own, *(pin for pins in self.joined.values() for pin in pins))
        return pins or self._pins_of_the_only_server()

    def seal(self) -> bool:
        """Turn what is buffered into reports with identities; False when there is nothing."""
        with self.lock:
            self.drafts += self.accumulator.take()
        while self.drafts:
            draft = self.drafts[0]
            pins = self._pins_of(draft)
            identity = Identity(self.session, self.sequence, sequenced=True)
            self.sequence += 1
            inits = None if draft.batch is None else InitScope(self.session_of_source, draft.batch)
            self.unanswered.append(Replication(identity, draft.entries, inits, pins))
            self.drafts.popleft()
        return bool(self.unanswered)

    def join(self, session: int) -> None:
        """Learn where the roots of another process's source live. Raises ``UnknownSource`` where no server knows it."""
        members = self.cluster.view(self.cluster.patience()).members
        found: dict[int, Pin] = {}
        for member in members:
            reply = self._asked_for_pins(member, session)
            if reply is not None and reply.status == Status.APPLIED:
                found |= {pin.first: pin for pin in decode(reply.pins)}
        if not found:
            raise UnknownSource(
                f"no server knows where the roots of session {session} live: it has to be open, with the session that"
                " its open_source() returned"
            )
        self.joined[session] = tuple(found[first] for first in sorted(found))

    def _asked_for_pins(self, member: Member, session: int) -> PinsReply | None:
        caller, patience = self.cluster.caller_of(member), self.cluster.patience(GREETING_S)
        try:
            return caller.answer(lambda transport, timeout_s: transport.pins(session, timeout_s), patience)
        except Unavailable as error:
            log.debug("%s", error)
            return None

    def _pins_of(self, draft: Draft) -> Pins:
        pins = self.pins()
        if draft.batch is not None or not self.joined:
            return pins
        is_known = np.logical_or.reduce([pin.has(draft.entries.root_ids) for pin in pins])
        if is_known.all():
            return pins
        # The stream of a source may have been pinned anew.
        for session in list(self.joined):
            try:
                self.join(session)
            except UnknownSource:
                del self.joined[session]
        return self.pins()

    def counted(self, result: ReportResult) -> ReportResult:
        """Add to the totals."""
        with self.lock:
            self.totals += result
        return result

    def go_on_without(self, error: AckerError) -> None:
        """Under ``on_unreachable="continue"``: what is unreported costs replays, never a false ACK."""
        if not self.totals.unreported:
            log.error('going on without reporting (on_unreachable="continue"): %s', error)

    def _pins_of_the_only_server(self) -> Pins:
        """Where there is one server, all roots live there."""
        members = self._members()
        if len(members) > 1:
            raise UnknownSource(
                f"there are {len(members)} servers, and this client does not know on which of them the roots live that"
                " it speaks of: join(session) the source first, with the session that its open_source() returned"
            )
        return (Pin(0, 0, 1, ANY_NUMBER, place(View(0, members), 0, 0, 1)),)

    def _members(self) -> tuple[Member, ...]:
        try:
            return self.cluster.view(self.cluster.patience(GREETING_S)).members
        except Unavailable:
            if not self.cluster.is_alone:
                raise
            # Whoever answers there in time.
            return (Member(0, 0, self.cluster.settings.servers[0]),)
