"""Upstream: when a record is done, acks or fails the anchors from another job that came with it.

Decides that an ack is sent after the record's own outcome and never before. A failed report is sent again under the
same identity, so that it counts once. An anchor is acked only once. Trees whose report is never sent time out in the
other job, which replays them, so there is never a false ACK.
"""

from __future__ import annotations

import contextlib
import logging
import secrets
from collections import deque
from collections.abc import Callable, Iterable, Sequence

import numpy as np

from acker_client.client import AckerClient
from acker_client.cluster.handed_on import HandedOn, Replica
from acker_client.error_text import REASON_LENGTH_MAX
from acker_client.errors import RETRYABLE, AckerError
from acker_client.pins import ANY_NUMBER, Pin
from acker_protocol.ids import SLOTS
from acker_protocol.messages import ACK, FAIL, Entries, Identity
from acker_protocol.placement import Member, Placement
from acker_protocol.reports import fold_updates

log = logging.getLogger("acker_client.source")

# Maximum number of waiting reports. Beyond it the oldest is dropped, and its roots time out.
UNSENT_MAX = 1_000
# Pause after a server has not answered.
PAUSE_S = 10.0
# Maximum number of log lines about unknown servers.
SAID_MAX = 10
# Remembered acked anchors: at least this many, and at most twice as many.
RECENT = 1_000_000

Key = tuple[Replica, ...]


class UpstreamTrees:
    """Reports on other sources' roots, to the servers that ``client`` knows. Use it from one thread."""

    def __init__(self, client: AckerClient, clock: Callable[[], float]) -> None:
        self._client = client
        self._clock = clock
        self._not_before_s = 0.0
        self._unsent: deque[tuple[Identity, Key, Entries]] = deque()
        self._recent: set[tuple[int, int]] = set()
        self._before: set[tuple[int, int]] = set()
        # All servers ever seen, by their ids, because views for new batches omit servers that drain or are away.
        self._met: dict[int, Member] = {}
        self._said: set[Key] = set()
        with contextlib.suppress(*RETRYABLE):
            self._meet()

    def ack_anchors(self, handed: Iterable[HandedOn]) -> None:
        """Ack the anchors of records that are done."""
        updates: dict[Key, list[tuple[int, int, int]]] = {}
        for each in handed:
            fresh = [anchor for anchor in each.anchors if self._is_new(anchor)]
            updates.setdefault(each.replicas, []).extend((root, edge, ACK) for root, edge in fresh)
        self._queue(updates, {})

    def fail_anchors(self, handed: Iterable[tuple[HandedOn, str]]) -> None:
        """Fail the anchors of records that were given up, with their reasons."""
        updates: dict[Key, list[tuple[int, int, int]]] = {}
        reasons: dict[int, str] = {}
        for each, reason in handed:
            updates.setdefault(each.replicas, []).extend((root, 0, FAIL) for root, _ in each.anchors)
            reasons |= {root: reason[:REASON_LENGTH_MAX] for root, _ in each.anchors if root not in reasons}
        self._queue(updates, reasons)

    def send(self) -> None:
        """Send waiting reports in order. Pauses for ``PAUSE_S`` when a server does not answer."""
        while self._unsent and self._clock() >= self._not_before_s:
            identity, key, entries = self._unsent[0]
            try:
                pin = self._pin(key)
                if pin is None:
                    self._log_unknown(key)
                else:
                    self._client.report_pinned(identity, entries, None, (pin,), may_leave=True)
            except RETRYABLE as error:
                log.warning("could not deliver a report to another job's servers yet: %s", error)
                self._not_before_s = self._clock() + PAUSE_S
                return
            except AckerError as error:
                log.warning("dropped a report to another job's servers, so its roots time out there: %s", error)
            self._unsent.popleft()

    def close(self) -> None:
        """Try to send waiting reports once more, log how many were never sent, and close the client."""
        self._not_before_s = 0.0
        self.send()
        if self._unsent:
            log.warning("%d reports to another job's servers were never sent: their roots time out", len(self._unsent))
        self._client.close()

    def _is_new(self, anchor: tuple[int, int]) -> bool:
        if anchor in self._recent or anchor in self._before:
            return False
        self._recent.add(anchor)
        if len(self._recent) >= RECENT:
            self._before, self._recent = self._recent, set()
        return True

    def _queue(self, updates: dict[Key, list[tuple[int, int, int]]], reasons: dict[int, str]) -> None:
        for key, rows in updates.items():
            if not rows:
                continue
            roots, vals = (np.array([row[column] for row in rows], np.uint64) for column in (0, 1))
            kinds = np.array([row[2] for row in rows], np.uint8)
            identity = Identity(secrets.randbits(64), secrets.randbits(64))
            self._unsent.append((identity, key, fold_updates(roots, vals, kinds, reasons)))
        # Must come before the limit: reports for unknown servers are dropped at once, and displace no other reports.
        self.send()
        while len(self._unsent) > UNSENT_MAX:
            self._unsent.popleft()
            log.error(
                "more than %d reports wait for another job's servers: dropped the oldest one, so its roots time out"
                " there and are replayed",
                UNSENT_MAX,
            )

    def _meet(self) -> None:
        self._met |= {member.id: member for member in self._client.members()}

    def _pin(self, key: Key) -> Pin | None:
        """Return a pin on the servers of ``key`` that this client has ever seen; None if it has seen none.

        The client leaves out servers that are gone for good.
        """
        if not set(key) <= {(each.id, each.generation) for each in self._met.values()}:
            self._meet()
        members = sorted(each for each in self._met.values() if (each.id, each.generation) in key)
        return _everywhere(members) if members else None

    def _log_unknown(self, key: Key) -> None:
        if key in self._said or len(self._said) >= SAID_MAX:
            return
        self._said.add(key)
        log.warning(
            "another job handed on records whose roots are on servers unknown here (ids %s; known are %s), so these"
            " roots time out there and are replayed. Either these servers lost their state, or the jobs use different"
            " servers: give both the same spark.acker.servers",
            ", ".join(str(id_) for id_, _ in key) or "none",
            ", ".join(f"{member.id} at {member.address}" for member in sorted(self._met.values())),
        )


def _everywhere(members: Sequence[Member]) -> Pin:
    """Return a pin that places every root on all ``members``."""
    replicas = np.tile(np.arange(len(members), dtype=np.uint16), (SLOTS, 1))
    return Pin(0, 0, 1, ANY_NUMBER, Placement(0, tuple(members), replicas))
