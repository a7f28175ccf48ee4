"""Settling: settles one batch on all its members.

Decides what the answer of a member means for the batch. A member that does not know the batch has lost it, and so has
a member that opened it again after a loss.
"""

from __future__ import annotations

import logging

from acker_client.backoff import Patience
from acker_client.cluster.conversations import Conversations
from acker_client.cluster.membership import Cluster
from acker_client.cluster.open_batches import OpenBatches
from acker_client.cluster.pinned_batch import LOST_BATCH, PinnedBatch
from acker_client.cluster.replicas import ask_members
from acker_client.errors import Draining, UnknownBatch
from acker_protocol.messages import Settle
from acker_protocol.placement import Member

log = logging.getLogger("acker_client")


class BatchSettling:
    """A batch that is to be settled: see :class:`acker_client.cluster.replicas.Party`. Takes the source's lock
    (``OpenBatches.lock``) where it changes the batch."""

    def __init__(
        self, cluster: Cluster, batches: OpenBatches, conversations: Conversations, batch: PinnedBatch, request: Settle
    ) -> None:
        self._cluster = cluster
        self._batches = batches
        self._conversations = conversations
        self._batch = batch
        self._request = request

    def settle_on_members(self, budget_s: float | None) -> None:
        """Settle the batch on all its members. Raises one of ``errors.RETRYABLE`` when the budget is spent."""
        if self.unanswered_members:
            keep_leases = self._conversations.keep_leases
            ask_members(self._cluster, self, self._settle_on_member, budget_s, excuse=lambda _: keep_leases())
        with self._batches.lock:
            self._batches.wake_watch(self._batch)

    @property
    def unanswered_members(self) -> list[Member]:
        return self._batch.members_to_settle

    def can_do_without(self, member: Member) -> bool:
        return self._batch.is_settled_without(member)

    def drop_member(self, member: Member, why: str) -> None:
        with self._batches.lock:
            self._batches.leave_out_member(self._batch, member, why)

    def _settle_on_member(self, member: Member, patience: Patience) -> None:
        conversation = self._conversations.with_member(member)
        try:
            reply = conversation.settle_on_server(self._request, patience)
        except (UnknownBatch, Draining) as error:
            self._lost_on(member, str(error))
            return
        # A delayed request may have opened the batch again under a later registration, which knows nothing of what
        # happened before. An older server does not say which registration has answered.
        with self._batches.lock:
            is_lost = bool(reply.generation) and self._batch.was_lost_by(member, reply.generation)
            if not is_lost:
                self._batches.note_settled(self._batch, member, reply, conversation.progress)
        if is_lost:
            self._lost_on(member, "a later registration of the source has answered")

    def _lost_on(self, member: Member, why: str) -> None:
        number, at = self._batch.number, member.address
        log.warning("batch %d is not known to the server at %s any more: %s", number, at, why)
        self.drop_member(member, LOST_BATCH)
