"""Conversations: one source at all of its servers.

Decides to which server a conversation belongs when members move, which leases are renewed, and which servers are
forgotten.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterable
from functools import partial

from acker_client.cluster.conversation import Conversation
from acker_client.cluster.membership import Cluster
from acker_client.cluster.open_batches import OpenBatches
from acker_client.cluster.registration import Registration
from acker_client.errors import AckerError
from acker_client.rpc.side_by_side import do_all
from acker_protocol.messages import InitScope
from acker_protocol.placement import Member

log = logging.getLogger("acker_client")

_END_S = 1.0


class Conversations:
    """Thread-safe. Its own lock guards everything here, and is not held over a call. A thread that holds the source's
    lock (``OpenBatches.lock``) may take this lock. A thread that holds this lock must not take the source's lock."""

    def __init__(
        self, cluster: Cluster, name: str, session: int, lease_s: float, batches: OpenBatches, pins: bytes
    ) -> None:
        """``pins``: what the source has published so far."""
        self._cluster = cluster
        self._name = name
        self._session = session
        self._lease_s = lease_s
        self._batches = batches
        self._pins = pins
        # The last answer of all forgotten servers. If there is none, the time when the source was opened.
        self._heard_at = cluster.clock()
        self._lock = threading.Lock()
        # By address: a server that comes back without its state is another member, but keeps its conversation.
        self._by_address: dict[str, Conversation] = {}
        # The last known address of each server that was talked to, by its id and generation.
        self._addresses: dict[tuple[int, int], str] = {}

    @property
    def heard_at(self) -> float:
        """When a server last answered for this source."""
        return max([self._heard_at, *(each.heard_at for each in self._all())])

    def with_member(self, member: Member) -> Conversation:
        """Return the conversation with ``member``. Start one if there is none."""
        address = self._cluster.address_of(member)
        with self._lock:
            known_at = self._addresses.get((member.id, member.generation), address)
            self._addresses[member.id, member.generation] = address
            conversation = self._by_address.get(address)
            if conversation is None and (conversation := self._by_address.pop(known_at, None)) is not None:
                # The server went to another address, with its state.
                self._by_address[address] = conversation
            if conversation is None:
                conversation = self._by_address[address] = self._new(member)
            conversation.now_with(member, address)
            return conversation

    @property
    def watched(self) -> list[Conversation]:
        """The conversations with those servers to watch that this source has already talked to."""
        with self._batches.lock:
            members = self._batches.members_to_watch
        with self._lock:
            known = [member for member in members if (member.id, member.generation) in self._addresses]
        return list(dict.fromkeys(map(self.with_member, known)))

    @property
    def polling(self) -> list[Conversation]:
        """The conversations with a running poll."""
        return [each for each in self._all() if each.running_poll is not None]

    def keep_leases(self) -> None:
        """Renew leases that are about to run out. Called while this client waits for one server and polls no other."""
        for each in self.watched:
            if each.is_lease_due(self._cluster.clock()):
                patience = self._cluster.patience(self._cluster.settings.call_timeout_s)
                each.start_renewal(self._cluster.side_by_side, patience)

    def publish(self, pins: bytes) -> None:
        """Send ``pins`` to each server with its next poll."""
        with self._lock:
            self._pins = pins
            for each in self._by_address.values():
                each.publish(pins)

    def end_batch_on(self, members: Iterable[Member], number: int, undrawn: InitScope | None) -> None:
        """End a batch at ``members`` when they answer next. A server without a conversation has no such batch."""
        with self._lock:
            for address in map(self._cluster.address_of, members):
                if address in self._by_address:
                    self._by_address[address].end_later(number, undrawn)

    def drop_unneeded(self) -> None:
        """Forget the servers that hold nothing and have been silent for longer than a lease. The lease has run out, so
        such a server has forgotten the source, too. The caller holds the source's lock."""
        with self._lock:
            members = self._batches.members_to_watch
            needed = set(map(self._cluster.address_of, members))
            # The conversation with a server that has moved is at the old address until the next poll.
            needed.update(self._addresses.get((member.id, member.generation), "") for member in members)
            for address, each in list(self._by_address.items()):
                silent_s = self._cluster.clock() - each.heard_at
                if address not in needed and each.running_poll is None and silent_s > self._lease_s:
                    del self._by_address[address]
                    self._heard_at = max(self._heard_at, each.heard_at)
            self._addresses = {
                server: address for server, address in self._addresses.items() if address in self._by_address
            }

    def take_all(self) -> list[Conversation]:
        """Return all conversations, and forget them."""
        with self._lock:
            conversations, self._by_address = list(self._by_address.values()), {}
            self._addresses.clear()
        return conversations

    def end_sessions(self, conversations: Iterable[Conversation]) -> None:
        """End the source at each server. Tries for a second; after that, the lease ends the source."""
        deadline = self._cluster.patience(_END_S).deadline
        do_all(self._cluster.side_by_side, [partial(self._end_session, each) for each in conversations], deadline)

    def _end_session(self, conversation: Conversation) -> None:
        try:
            conversation.end_session(self._cluster.patience(_END_S))
        except AckerError as error:
            at = conversation.address
            log.info("source %r could not be closed at %s, and ends with its lease: %s", self._name, at, error)

    def _new(self, member: Member) -> Conversation:
        clock = self._cluster.clock
        registration = Registration(self._name, self._session, self._lease_s, self._pins, clock())
        return Conversation(member, self._cluster.caller_of, registration, self._cluster.settings, clock)

    def _all(self) -> list[Conversation]:
        with self._lock:
            return list(self._by_address.values())
