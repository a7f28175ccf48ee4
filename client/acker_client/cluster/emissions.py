"""Emissions: the batches that emissions draw their numbers from, one after another.

Decides when to open the next batch, how large it is, and what the source publishes about them to other processes.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterable
from functools import partial

import numpy as np

from acker_client.backoff import Patience
from acker_client.cluster.conversations import Conversations
from acker_client.cluster.membership import Cluster
from acker_client.cluster.open_batches import OpenBatches
from acker_client.cluster.opening import Opener
from acker_client.cluster.published import Published
from acker_client.cluster.stream import EmittedBatch, Stream
from acker_client.errors import RETRYABLE, AckerError, Overloaded, Rejected
from acker_client.rpc.side_by_side import do_all
from acker_protocol.messages import InitScope
from acker_protocol.placement import Member

# How long emissions draw from one batch. Servers remember the identities of a batch's reports while it is open. A
# single pending root keeps a batch open, so a batch is not replaced for its age while _OPEN_FEW or more are open.
_BATCH_S = 10.0
_OPEN_FEW = 16
# How long the client waits for room for a batch before it asks for a smaller one.
_ROOM_S = 1.0
_PUBLISH_S = 1.0


class EmissionStream:
    """Thread-safe. The source's lock (``OpenBatches.lock``) guards the stream and what was published."""

    def __init__(
        self,
        cluster: Cluster,
        name: str,
        stream: Stream,
        published: Published,
        batches: OpenBatches,
        conversations: Conversations,
        opener: Opener,
    ) -> None:
        self._cluster = cluster
        self._name = name
        self._stream = stream
        self._published = published
        self._batches = batches
        self._conversations = conversations
        self._opener = opener
        # Held while the next batch is opened, as all waiting threads need that same batch.
        self._opening = threading.Lock()
        # The members of the view when the current batch was opened, and the time.
        self._members: tuple[Member, ...] = ()
        self._since = cluster.clock()
        self._has_user_batches = False

    @property
    def numbers(self) -> tuple[int, int]:
        """The numbers of all emissions so far, as (first, stop)."""
        return self._stream.base, self._stream.stop

    def draw_root(self, note: Callable[[int], object] | None) -> tuple[int, int] | None:
        """Return the root id of the next emission and the number of its batch; None if ``open_next_batch`` has to be
        called first. Calls ``note(root)`` under the source's lock, as a drawn root may be LOST at once."""
        with self._batches.lock:
            drawn = self._stream.draw_root()
            if drawn is not None and note is not None:
                note(drawn[0])
            return drawn

    def draw_roots(
        self, count: int, note: Callable[[int, int], object], forget: Callable[[int], object]
    ) -> list[tuple[int, int, int]]:
        """Draw ``count`` numbers, as runs (first number, how many, batch). Opens batches as ``open_next_batch`` does.
        Calls ``note(first, how many)`` for each run as ``draw_root`` does. If a batch cannot be opened, calls
        ``forget(first)`` for each run, gives up its numbers, and raises."""
        runs = list[tuple[int, int, int]]()
        try:
            while count:
                with self._batches.lock:
                    run = self._stream.draw_roots(count)
                    if run is not None:
                        runs.append(run)
                        note(*run[:2])
                if run is None:
                    self.open_next_batch(None, count)
                else:
                    count -= run[1]
        except BaseException:
            with self._batches.lock:
                for first, length, batch in runs:
                    forget(first)
                    self._batches.inits_answered(batch, length)
            raise
        return runs

    def open_next_batch(self, budget_s: float | None, wanted: int = 0) -> None:
        """Open the batch that emissions draw from next, and tell other processes where it lives. ``wanted``: how many
        numbers it should have."""
        with self._opening:
            with self._batches.lock:
                if self._stream.current is not None and not self._stream.current.is_closed:
                    return
                if self._has_user_batches:
                    raise ValueError(
                        f"source {self._name!r} has batches of open_batch(), whose numbers emit() needs too: emit from"
                        " another AckerClient, with a source of its own"
                    )
            patience = self._cluster.patience(budget_s)
            members = self._cluster.view(patience).members
            batch = self._open_batch_with_room(patience, wanted)
            with self._batches.lock:
                self._stream.mark_placed(batch)
                self.publish_later()
            self._send_published(batch.members)
            with self._batches.lock:
                self._stream.draw_from(batch)
                self._members, self._since = members, self._cluster.clock()

    def end_outdated_batch(self) -> None:
        """Draw no more from the current batch if it is old, or if the view has changed since it was opened."""
        self._cluster.refresh()
        with self._batches.lock:
            batch = self._stream.current
            if batch is None or batch.is_closed:
                return
            is_old = self._cluster.clock() - self._since >= _BATCH_S and len(self._batches) < _OPEN_FEW
        with contextlib.suppress(Rejected):
            if is_old or self._cluster.known_members != self._members:
                with self._batches.lock:
                    batch.stop_drawing()

    def leave_numbers_to_user(self) -> None:
        """Forbid emissions, as the user numbers the batches of this source. Raises ValueError if it has emitted. The
        caller holds the source's lock."""
        if self._stream.batches:
            raise ValueError(
                f"source {self._name!r} has emitted, and emit() numbers its batches by itself: open others on"
                " another AckerClient, with a source of its own"
            )
        self._has_user_batches = True

    # -- publishing

    def current(self) -> Published:
        """Return where emissions live now. The caller holds the source's lock."""
        batches = [batch for batch in self._batches.emitted if batch.is_placed]
        out = {batch.number: frozenset(member.id for member in batch.out) for batch in batches if batch.out}
        pins, (first, stop) = tuple(batch.pin for batch in batches), self.numbers
        return Published(self._published.session, self._published.version + 1, first, stop, pins, out)

    def publish_later(self) -> None:
        """Publish where emissions live now, with the next poll of each server. The caller holds the source's lock."""
        self._published = self.current()
        for batch in self._batches.emitted:
            batch.mark_published()
        self._conversations.publish(self._published.encode())

    def publish_left_out(self) -> None:
        """Tell other processes at once if a server was left out of a batch that they may report about."""
        with self._batches.lock:
            if all(batch.is_published for batch in self._batches.emitted):
                return
            self.publish_later()
            members = self._batches.members_to_watch
        self._send_published(members)

    def _send_published(self, members: Iterable[Member]) -> None:
        """Publish on ``members`` now, and wait a moment. A server that fails gets the pins with its next poll."""

        def send_to(member: Member) -> None:
            with contextlib.suppress(AckerError):
                self._conversations.with_member(member).renew_lease(self._cluster.patience(_PUBLISH_S))

        deadline = self._cluster.patience(_PUBLISH_S).deadline
        do_all(self._cluster.side_by_side, [partial(send_to, member) for member in members], deadline)

    # -- inside

    def _open_batch_with_room(self, patience: Patience, wanted: int) -> EmittedBatch:
        """Open the next batch, or a smaller one if there is no room."""
        while True:
            with self._batches.lock:
                request = self._stream.next_request(len(self._batches), wanted)
            left_s = patience.deadline.left_s
            budget_s = left_s if request.up_to == 1 else min(left_s, max(_ROOM_S, left_s / 8))
            try:
                return self._opener.open_batch(EmittedBatch, request, self._cluster.patience(budget_s))
            except AckerError as error:
                undrawn = InitScope(request.session, request.number, np.array([[0, request.up_to]], np.uint64))
                is_full = isinstance(error, Overloaded | Rejected)
                with self._batches.lock:
                    self._opener.end_unopened(request.number, undrawn)
                    if is_full and not (patience.deadline.left_s and (wanted or self._stream.shrink())):
                        raise
                wanted = 0 if is_full else wanted
                # A try may end just before its budget is spent. Without a wait, many tries would fill the last moment.
                if not is_full and not (isinstance(error, RETRYABLE) and patience.wait()):
                    raise
