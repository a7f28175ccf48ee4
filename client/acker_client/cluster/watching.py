"""Watching: polls the servers of a source and counts their answers.

Decides which servers are polled and for how long. Leaves a server that is gone, or has lost its state, out of the
batches that it holds.
"""

from __future__ import annotations

import logging
from concurrent.futures import Future
from functools import partial
from typing import Any

from acker_client.cluster.conversation import Conversation, Polled
from acker_client.cluster.conversations import Conversations
from acker_client.cluster.emissions import EmissionStream
from acker_client.cluster.membership import Cluster
from acker_client.cluster.open_batches import OpenBatches
from acker_client.cluster.opening import Opener
from acker_client.cluster.pinned_batch import PinnedBatch
from acker_client.cluster.stream import EmittedBatch
from acker_client.cluster.watched import WatchResult
from acker_client.errors import AckerError
from acker_client.rpc.silence import IDLE_S
from acker_protocol.placement import Member

log = logging.getLogger("acker_client")

# Pause before a poll is repeated that was answered early without outcomes: the server is short of threads, or stops.
_POLL_PAUSE_S = 0.05
# Longest wait for running polls before checking whether other servers have to be polled.
_LOOK_S = 0.5
# How long to try to open a lost batch again on its server.
_REOPEN_S = 3.0


class ServerWatch:
    """Only one thread at a time may use it. Takes the source's lock (``OpenBatches.lock``) where it changes batches."""

    def __init__(
        self,
        cluster: Cluster,
        name: str,
        lease_s: float,
        batches: OpenBatches,
        conversations: Conversations,
        emissions: EmissionStream,
        opener: Opener,
    ) -> None:
        self._cluster = cluster
        self._name = name
        self._lease_s = lease_s
        self._batches = batches
        self._conversations = conversations
        self._emissions = emissions
        self._opener = opener

    def next_result(self, wait_s: float, max_outcomes: int) -> WatchResult:
        """Return the news, waiting up to ``wait_s`` for the first. Confirms what earlier calls returned."""
        patience = self._cluster.patience(wait_s)
        answered = False
        while True:
            asked_at = self._cluster.clock()
            heard = self._poll_servers(0.0 if self._batches.news.done() else patience.deadline.left_s, max_outcomes)
            answered = answered or heard
            self._emissions.end_outdated_batch()
            self._leave_out_failed_servers()
            self._emissions.publish_left_out()
            result = self._take_result(answered=answered)
            if result.says_something or not patience.deadline.left_s:
                return result
            # If polls of other servers are still running, `_poll_servers` has waited already.
            if not heard and not self._conversations.polling and not patience.wait():
                return result
            if heard and self._cluster.clock() - asked_at < _POLL_PAUSE_S:
                self._cluster.sleep(min(_POLL_PAUSE_S, patience.deadline.left_s))

    # -- polls

    def _poll_servers(self, wait_s: float, max_outcomes: int) -> bool:
        """Poll all servers to watch, until one has answered or there is news. Return whether one has answered."""
        conversations = self._conversations.watched
        is_only = len(conversations) == 1
        if not wait_s and is_only and not self._conversations.polling:
            polled = conversations[0].poll(0.0, max_outcomes)
            return polled is not None and self._take_answer(conversations[0], polled)
        now = self._cluster.clock()
        due = [each for each in conversations if each.running_poll is None and (is_only or each.may_poll(now))]
        for each in due:
            each.start_poll(self._cluster.side_by_side, wait_s, max_outcomes)
        # A poll that begins now gets time for its answer. An earlier one with a longer timeout may still be running.
        least_s = self._cluster.settings.call_timeout_s if due and not wait_s else 0.0
        polls = [(each, each.running_poll) for each in self._conversations.polling if each.running_poll is not None]
        waited_for: list[Future[Any]] = [*(poll for _, poll in polls), self._batches.news]
        self._cluster.side_by_side.wait(waited_for, max(least_s, min(wait_s, _LOOK_S)))
        heard = False
        for each, poll in polls:
            if poll.done():
                polled = each.finish_poll()
                heard = (polled is not None and self._take_answer(each, polled)) or heard
        return heard

    def _take_answer(self, conversation: Conversation, polled: Polled) -> bool:
        """Count the answer to a poll, and end the batches that are due on the server. False: repeat the poll."""
        heard = conversation.take_answer(polled)
        if heard is None:
            return False
        if heard.lost_because:
            self._leave_out_lost_state(conversation, heard.lost_because)
        with self._batches.lock:
            here = self._members_at(conversation.address)
            self._batches.count_answer(here, heard)
            conversation.counted_up_to(heard.generation, heard.cursor)
            for number, undrawn in self._batches.take_due(here).items():
                conversation.end_later(number, undrawn)
            to_end = conversation.take_to_end()
        for number, numbers_undrawn in to_end.items():
            patience = self._cluster.patience(self._lease_s / 3)
            call = partial(conversation.end_on_server, number, numbers_undrawn, patience)
            self._cluster.side_by_side.start(call)
        return True

    def _members_at(self, address: str) -> set[Member]:
        """Return the members that are at ``address``. The caller holds the source's lock."""
        return self._batches.members_where(lambda member: self._cluster.address_of(member) == address)

    # -- servers that have lost something

    def _leave_out_lost_state(self, conversation: Conversation, why: str) -> None:
        """Leave a server out of the batches that it lost, as it has another registration of this source."""
        conversation.take_to_end()
        with self._batches.lock:
            here = self._members_at(conversation.address)
            lost = self._batches.leave_out_lost(here, conversation.generation, why)
        if lost:
            log.warning(
                "the server at %s: what it had pending of source %r is LOST there: %s",
                conversation.address,
                self._name,
                why,
            )
        for batch, member in lost:
            self._reopen_batch(batch, member, conversation)

    def _reopen_batch(self, batch: PinnedBatch, member: Member, conversation: Conversation) -> None:
        """Open a batch again where it was lost while Spark may still work on it, so that its tasks can end. Its roots
        are LOST all the same, whatever the server says about them."""
        if batch.settlement is not None or len(batch.members) > 1 or isinstance(batch, EmittedBatch):
            return
        # This thread also watches, so it must return before the lease has to be renewed.
        patience = self._cluster.patience(min(_REOPEN_S, self._lease_s / 3))
        try:
            conversation.open_on_server(batch.request_for(member), patience)
        except AckerError as error:
            log.warning("batch %d could not be opened again: %s", batch.number, error)

    def _leave_out_failed_servers(self) -> None:
        """Leave servers that are gone, or out of reach for too long, out of all open batches. Move a source that has no
        other server."""
        if self._cluster.is_alone:
            return
        with self._batches.lock:
            members = self._batches.members_to_watch
            holding = set(filter(self._batches.is_held_by, members))
        for member in members:
            why = self._cluster.gone(member)
            if not why and member in holding:
                # Nothing was heard for a lease and IDLE_S, so the lease must have run out there, and the roots are lost
                # even if the server runs.
                why = self._cluster.out_of_reach(member, self._lease_s + IDLE_S)
            if why:
                log.warning("source %r: the server %d at %s is out: %s", self._name, member.id, member.address, why)
                with self._batches.lock:
                    self._batches.leave_out_failed_server(member, why)
        with self._batches.lock:
            is_nowhere = not self._batches.members_to_watch
        if is_nowhere:
            # Without a server to poll, the source would hear of nothing and take all servers for silent.
            self._opener.move_source()

    # -- results

    def _take_result(self, *, answered: bool) -> WatchResult:
        """Return everything that no watch has returned yet."""
        with self._batches.lock:
            result, ended = self._batches.take_result(answered=answered)
            for batch in ended:
                self._conversations.end_batch_on(batch.members_not_settled, batch.number, None)
            if any(isinstance(batch, EmittedBatch) for batch in ended):
                # Otherwise other processes would wait for the servers of a batch that is over.
                self._emissions.publish_later()
            self._conversations.drop_unneeded()
        return result
