"""State: what a client has in one process: its sending session, its buffer, its source and its channels.

Decides which identity a report gets, and which root id an emission. Never sends: the client does.
"""

from __future__ import annotations

import itertools
import logging
import secrets
import threading
from collections import deque

from acker_client.core.accumulator import Accumulator
from acker_client.core.delivery import Delivery, ReportResult
from acker_client.core.registration import Registration
from acker_client.errors import AckerError, UnknownSource
from acker_client.members.caller import Caller
from acker_protocol.ids import BASE_MAX, root_id
from acker_protocol.messages import Identity, InitScope

log = logging.getLogger("acker_client")


class ClientState:
    """What a client has in one process: its sending session, its buffer, its source and its channels."""

    __slots__ = (
        "accumulator",
        "base",
        "caller",
        "emissions",
        "is_closed",
        "lock",
        "registration",
        "sending",
        "sequence",
        "session",
        "source_session",
        "totals",
        "unanswered",
    )

    def __init__(self, caller: Caller) -> None:
        self.caller = caller
        self.lock = threading.Lock()
        self.sending = threading.Lock()
        self.session = secrets.randbits(64)
        # Base of the root ids that `emit` gives out.
        self.base = 1 + secrets.randbelow(BASE_MAX - 1)
        self.emissions = itertools.count()
        self.sequence = 0
        self.accumulator = Accumulator()
        self.unanswered: deque[Delivery] = deque()
        self.registration: Registration | None = None
        self.source_session = 0
        self.totals = ReportResult()
        self.is_closed = False

    def source(self) -> Registration:
        if self.registration is None:
            raise UnknownSource("no source is open on this client in this process: call open_source(name) first")
        return self.registration

    def new_root(self) -> int:
        # One step of a counter: no lock is needed for it.
        return root_id(self.base, next(self.emissions))

    def buffered(self) -> int:
        with self.lock:
            return len(self.accumulator)

    def seal(self) -> bool:
        """Turn what is buffered into reports with identities; False when there is nothing."""
        with self.lock:
            drafts = self.accumulator.take()
        for draft in drafts:
            identity = Identity(self.session, self.sequence, sequenced=True)
            self.sequence += 1
            inits = None if draft.batch is None else InitScope(self.source_session, draft.batch)
            self.unanswered.append(Delivery(identity, draft.entries, inits))
        return bool(drafts)

    def counted(self, result: ReportResult) -> ReportResult:
        """Add to the totals."""
        with self.lock:
            self.totals += result
        return result

    def go_on_without(self, delivery: Delivery, error: AckerError) -> None:
        """Under ``on_unreachable="continue"``: what is unreported costs replays, never a false ACK."""
        if not self.totals.unreported:
            log.error('going on without reporting (on_unreachable="continue"): %s', error)
