"""Source session: one source on all servers that its roots live on.

Puts the parts of a source together, and takes the source's lock where a call only concerns its batches. The parts, each
with the state that it owns:

| part | owns | guarded by |
|---|---|---|
| ``open_batches`` | the batches that are not over, what the next watch returns | the source's lock |
| ``stream`` and ``emissions`` | numbers of emissions, what was published about them | the source's lock |
| ``opening`` | where a batch that has no placement yet may be open | the source's lock |
| ``settling`` | one call of ``settle_batch`` | the source's lock, for the batch |
| ``conversations`` | the servers that were talked to | its own lock, taken after the source's |
| ``conversation`` | registration, lease and polls at one server | its own lock, taken after both |
| ``watching`` | nothing; it runs the polls | one thread at a time |

No thread makes a call to a server while it holds one of these locks. One more lock, in ``emissions``, is held over
calls: all threads that emit wait while one of them opens the next batch. It is taken before all others.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Set as AbstractSet
from dataclasses import replace

from acker_client.backoff import Patience
from acker_client.cluster.conversations import Conversations
from acker_client.cluster.emissions import EmissionStream
from acker_client.cluster.membership import Cluster
from acker_client.cluster.open_batches import OpenBatches
from acker_client.cluster.opening import Opener
from acker_client.cluster.pinned_batch import WENT_WITHOUT, PinnedBatch
from acker_client.cluster.published import Published, issued
from acker_client.cluster.settling import BatchSettling
from acker_client.cluster.stream import Stream
from acker_client.cluster.watched import WatchResult
from acker_client.cluster.watching import ServerWatch
from acker_client.pins import Mask, Pin, Pins
from acker_protocol.ids import Column
from acker_protocol.messages import Limits, OpenBatch, Settle, Settlement
from acker_protocol.placement import Member

# How many numbers of forgotten batches are remembered.
_FORGOTTEN_MAX = 256


class SourceSession:
    """Thread-safe; ``watch`` is for one thread at a time. ``emissions``: the emissions of this source."""

    def __init__(self, cluster: Cluster, name: str, session: int, lease_s: float, limits: Limits, base: int) -> None:
        """``limits``: the timeouts of emissions, whose numbers begin with ``base``."""
        self.name = name
        self.session = session
        self.lease_s = lease_s
        self._cluster = cluster
        self._batches = OpenBatches(threading.Lock())
        published = Published(session, 0, base, base)
        self._conversations = Conversations(cluster, name, session, lease_s, self._batches, published.encode())
        # Numbers of batches that were forgotten while servers may have had them open.
        self._forgotten = deque[int](maxlen=_FORGOTTEN_MAX)
        self._opener = Opener(cluster, session, self._batches, self._conversations)
        stream = Stream(session, base, limits)
        self.emissions = EmissionStream(
            cluster, name, stream, published, self._batches, self._conversations, self._opener
        )
        self._watching = ServerWatch(
            cluster, name, lease_s, self._batches, self._conversations, self.emissions, self._opener
        )

    def open_on_servers(self, patience: Patience) -> None:
        """Open the source on some servers, where other processes learn of it."""
        self._opener.open_source(patience)

    def end_source(self) -> Published:
        """End the source on all servers, which drop its roots. Tries for a second; after that, the lease ends the
        source. Return where its emissions lived. All of them are over now."""
        with self._batches.lock:
            conversations = self._conversations.take_all()
            self._batches.end_all()
            published = replace(self.emissions.current(), ended=self._batches.ended)
        self._conversations.end_sessions(conversations)
        return published

    # -- leases

    @property
    def heard_at(self) -> float:
        """When a server last answered for this source."""
        return self._conversations.heard_at

    def renew_lease(self, member: Member, patience: Patience) -> None:
        """Register the source again at ``member``, which does not know it. Reports call this, as perhaps no watch runs.
        The next watch learns what the server has lost. Raises ``Draining`` if it does not register sources any more."""
        self._conversations.with_member(member).renew_lease(patience)

    def keep_leases(self) -> None:
        """Renew the leases that are about to run out, while this client waits for a server."""
        self._conversations.keep_leases()

    # -- where roots live

    @property
    def pins(self) -> Pins:
        """The pins of batches that are not over, oldest first."""
        with self._batches.lock:
            return self._batches.pins

    def pin_of(self, number: int) -> Pin | None:
        """Return the pin of a batch; None if it is over."""
        with self._batches.lock:
            batch = self._batches.find_batch(number)
        return None if batch is None else batch.pin

    def check_open(self, number: int) -> None:
        """Raise ``UnknownBatch`` if a batch of open_batch is settled or was not opened here."""
        with self._batches.lock:
            self._batches.check_open(number)

    def check_root(self, number: int, root: int) -> None:
        """Raise ``UnknownBatch`` as ``check_open`` does, or ValueError if ``root`` is not of the batch."""
        with self._batches.lock:
            self._batches.check_root(number, root)

    def has_issued(self, root_ids: Column) -> Mask:
        """Return which of ``root_ids: uint64[n]`` were emitted, or are of a batch of open_batch that is over."""
        return issued(root_ids, (self.emissions.numbers, *self._batches.ended))

    # -- batches

    def open_batch(self, request: OpenBatch, budget_s: float | None) -> Pin:
        """Place a batch and open it on all its members. Place it again if one of them is gone or takes nothing new.
        Raises ValueError if another batch has this number and is not over, or was forgotten."""
        with self._batches.lock:
            if request.number in self._forgotten:
                # The servers may end the forgotten batch later, and would end this one in its place.
                raise ValueError(f"batch {request.number} was forgotten: give this one a number of its own")
            known = self._batches.find_batch(request.number)
            self.emissions.leave_numbers_to_user()
        if known is not None and known.request != request:
            raise ValueError(
                f"batch {request.number} is not over, and was opened with other parameters: give this one a number of"
                " its own"
            )
        if known is not None:
            return known.pin
        return self._opener.open_batch(PinnedBatch, request, self._cluster.patience(budget_s)).pin

    def settle_batch(self, number: int, settlement: Settlement, budget_s: float | None) -> None:
        """Settle a batch on all its members. Raises ``UnknownBatch`` if it is not open here."""
        with self._batches.lock:
            batch = self._batches.start_settling(number, settlement)
        request = Settle(self.session, number, settlement)
        BatchSettling(self._cluster, self._batches, self._conversations, batch, request).settle_on_members(budget_s)

    def leave_out_servers(self, number: int, servers: AbstractSet[int], why: str = WENT_WITHOUT) -> None:
        """Leave servers, by their ids, out of a batch, because reports were sent without them."""
        with self._batches.lock:
            batch = self._batches.find_batch(number)
            for member in () if batch is None else batch.members:
                if batch is not None and member.id in servers:
                    self._batches.leave_out_member(batch, member, why)

    def has_left_out(self, number: int, server: int) -> bool:
        """Whether a server, by its id, was left out of a batch, or the batch is over."""
        with self._batches.lock:
            batch = self._batches.find_batch(number)
            return batch is None or batch.has_left_out(server)

    def is_unsettled(self, number: int) -> bool:
        """Whether a batch is open and not being settled."""
        with self._batches.lock:
            batch = self._batches.find_batch(number)
            return batch is not None and batch.settlement is None

    def inits_answered(self, number: int, count: int) -> None:
        """Note that ``count`` inits of a batch were answered or given up."""
        with self._batches.lock:
            self._batches.inits_answered(number, count)

    def abandon_batch(self, number: int) -> None:
        """Return no more outcomes of a batch, and end it on servers that have not settled it. Also ends a batch that
        could not be opened."""
        with self._batches.lock:
            batch = self._batches.find_batch(number)
            if batch is not None:
                self._batches.forget_batch(batch)
                self._conversations.end_batch_on(batch.members_not_settled, number, None)
            elif not self._opener.end_unopened(number, None):
                return
            self._forgotten.append(number)

    # -- outcomes

    def watch(self, wait_s: float, max_outcomes: int) -> WatchResult:
        """Return the news, waiting up to ``wait_s`` for the first. Confirms what earlier calls returned."""
        return self._watching.next_result(wait_s, max_outcomes)
