"""Other sources: where the roots of sources in other processes live.

Decides how a process finds the servers of a root that it did not emit. It asks the servers by the source's session
(``join``), or by the root itself. A source that was found by a root is known under the number of its first emission,
because servers do not give its session away. Sends no reports.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Collection, Iterator
from functools import partial

import numpy as np

from acker_client.cluster.membership import Cluster
from acker_client.cluster.published import Published, decode
from acker_client.errors import RETRYABLE, Unavailable, UnknownSource
from acker_client.pins import Mask, Pin
from acker_client.rpc.side_by_side import do_all, errors_of
from acker_protocol.ids import Column, root_id
from acker_protocol.messages import Pins, Status

# How long to wait for the answers of servers about a source.
GREETING_S = 1.0
# Minimum time between two requests to the servers about the sources of other processes.
LEARN_S = 0.5
# The client remembers so many sources that it has found by a root. It finds a forgotten source again.
FOUND_MAX = 256
# The client remembers so many closed sources of its own. The roots of earlier ones are unknown to it.
CLOSED_MAX = 256
# A search ends after so many roots that no server knows. The next search begins with the roots behind them.
MISSES_MAX = 16
# An update is given up once all servers have disowned its root for this time. The client remembers so many such roots.
DISOWNED_S = 600.0
DISOWNED_MAX = 65_536

NOT_WATCHED = (
    "its source was closed, or was not watched for its lease_s and so has ended; while a job runs, read outcomes() or"
    " watch() in another thread, or give open_source() a longer lease_s"
)


class OtherSources:
    """Thread-safe. No lock is held over a call.

    ``joined``: what the known sources have published, by session. ``closed``: the last sources of this client that were
    closed. Their roots are all over, so no server is asked about them.
    """

    def __init__(self, cluster: Cluster) -> None:
        self.joined: dict[int, Published] = {}
        self.closed: deque[Published] = deque(maxlen=CLOSED_MAX)
        self._cluster = cluster
        self._lock = threading.Lock()
        self._learnt_at = self._missed_at = float("-inf")
        # By root: when all servers answered for the first and for the last time that they do not know it. Every answer
        # between these was the same.
        self._disowned: dict[int, tuple[float, float]] = {}
        # How many roots were looked up that no server knew.
        self._misses = 0

    def __iter__(self) -> Iterator[Published]:
        # Copied, as another thread may join a source meanwhile.
        return iter((*self.joined.values(), *self.closed))

    def is_out(self, pin: Pin, server: int) -> bool:
        """Whether the source of ``pin`` has left ``server`` out of the batch, or the batch is over."""
        known = self.joined.get(pin.session)
        if known is None:
            return any(pin.session == closed.session for closed in tuple(self.closed))
        return known.is_out(pin.batch, server)

    def has_emitted(self, roots: Column) -> bool:
        """Whether known sources have emitted all of ``roots``."""
        known = [published.has(roots) for published in self]
        return bool(known) and bool(np.logical_or.reduce(known).all())

    def join(self, session: int) -> None:
        """Learn where the roots of a source live. Raises ``UnknownSource`` if all listed and configured servers answer,
        and none knows the source. Raises ``Unavailable`` if the budget is spent first."""
        patience, request = self._cluster.patience(), Pins(session)
        while True:
            addresses = self._addresses_for(session)
            published, has_heard_all = self._asked(request, addresses)
            # A server whose ZooKeeper session has ended is in no view, and may still hold the roots of a source.
            unlisted = [address for address in self._cluster.settings.servers if address not in addresses]
            if published is None and unlisted:
                published, has_heard_unlisted = self._asked(request, unlisted)
                has_heard_all = has_heard_all and has_heard_unlisted
            if published is not None:
                return self._keep(published)
            if has_heard_all:
                raise UnknownSource(
                    f"no server knows session {session}: it is not what open_source() returned, or {NOT_WATCHED}"
                )
            if not patience.wait():
                raise Unavailable(f"no server that answers knows where the roots of session {session} live")

    def learn(self, sessions: Collection[int]) -> bool:
        """Ask the servers what known sources have published by now, unless they were asked a moment ago. Return
        whether every server has answered."""
        if self._cluster.clock() - self._learnt_at < LEARN_S:
            return False
        asked = [self._asked(self._request_for(session), self._addresses_for(session)) for session in tuple(sessions)]
        for published, _ in asked:
            if published is not None:
                self._keep(published)
        self._learnt_at = self._cluster.clock()
        return all(has_heard_all for _, has_heard_all in asked)

    def find(self, roots: Column) -> bool:
        """Ask the servers which sources have emitted ``roots``, of which no known source knows anything. Return False
        if the servers were asked just now, if some did not answer, or if the newest pins of a source are still on their
        way to them."""
        if self._cluster.clock() - self._missed_at < LEARN_S:
            return False
        deadline, may_miss, is_certain = self._cluster.patience(GREETING_S).deadline, MISSES_MAX, True
        roots = np.roll(roots, -self._misses % len(roots))
        while len(roots) and may_miss:
            addresses = self._addresses_for(0)
            published, has_heard_all = self._asked(Pins(0, int(roots[0])), addresses)
            is_unknown = has_heard_all and published is None
            # A server that is away, or was never heard of, may have the roots of a source.
            self._note_disowned(int(roots[0]), is_unknown and self._cluster.known_addresses <= set(addresses))
            if published is not None and published.has(roots[:1]).all():
                self._keep(published)
                roots = roots[~published.has(roots)]
                continue
            is_certain = is_certain and is_unknown
            roots = roots[1:]
            self._missed_at = self._cluster.clock()
            self._misses += 1
            # A server that does not answer makes each miss take long.
            may_miss = may_miss - 1 if deadline.left_s else 0
        return is_certain

    def are_disowned(self, roots: Column) -> Mask:
        """Return which of ``roots: uint64[n]`` all servers have disowned for so long that their source has ended."""
        times = (self._disowned.get(root, (0.0, 0.0)) for root in roots.tolist())
        return np.array([last - first >= DISOWNED_S for first, last in times], np.bool_)

    def _note_disowned(self, root: int, by_all: bool) -> None:
        now = self._cluster.clock()
        with self._lock:
            first, _ = self._disowned.pop(root, (now, now))
            if by_all:
                self._disowned[root] = first, now
            if len(self._disowned) > DISOWNED_MAX:
                del self._disowned[next(iter(self._disowned))]

    def _keep(self, published: Published) -> None:
        """Keep what a source has published, unless something newer is known."""
        with self._lock:
            same = [session for session, each in self.joined.items() if each.first == published.first]
            if same and _is_found(published):
                published = published.of_session(same[0])
            elif same and same != [published.session]:
                # Found by a root before its session was known.
                del self.joined[same[0]]
            known = self.joined.get(published.session)
            if known is None or published.version > known.version:
                self.joined[published.session] = published
            found = [session for session, each in self.joined.items() if _is_found(each)]
            for oldest in found[:-FOUND_MAX]:
                del self.joined[oldest]

    def _request_for(self, session: int) -> Pins:
        known = self.joined.get(session)
        return Pins(session) if known is None or not _is_found(known) else Pins(0, root_id(known.first, 0))

    def _addresses_for(self, session: int) -> Collection[str]:
        """Return the addresses of the servers that answer, and of those where roots of the source are known to live and
        count."""
        cluster, known = self._cluster, list[str]()
        if (source := self.joined.get(session)) is not None:
            homes = ((pin.batch, member) for pin in source.pins for member in pin.placement.members)
            known = [
                cluster.address_of(member) for batch, member in homes if member.id not in source.out.get(batch, ())
            ]
        serving = (member.address for member in cluster.serving(cluster.patience()))
        return dict.fromkeys((*serving, *known))

    def _asked(self, request: Pins, addresses: Collection[str]) -> tuple[Published | None, bool]:
        """Ask these servers at once. Return the newest publication of a source, and whether every server answered."""
        cluster, found = self._cluster, list[Published]()

        def ask(address: str) -> None:
            deadline = cluster.patience(GREETING_S).deadline
            caller = cluster.callers.at(address)
            reply = caller.once(lambda transport, left_s: transport.pins(request, left_s), deadline)
            if reply.status == Status.APPLIED and reply.pins:
                found.append(decode(request.session or None, reply.pins))

        deadline = cluster.patience(GREETING_S).deadline
        calls = do_all(cluster.side_by_side, [partial(ask, address) for address in addresses], deadline)
        errors = errors_of(calls)
        for error in errors:
            if not isinstance(error, RETRYABLE):
                raise error
        newest = max(found, key=lambda each: each.version, default=None)
        for pin in () if newest is None else newest.pins:
            cluster.hear_of(pin.placement)
        # If no server answers calls, none was asked.
        return newest, bool(calls) and not errors


def _is_found(published: Published) -> bool:
    """Whether the source was found by a root, so that its session is not known."""
    return published.session == published.first
