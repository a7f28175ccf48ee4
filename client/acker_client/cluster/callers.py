"""Callers: one for each server that this process calls, by address.

Decides when a channel is closed because nothing uses it. Knows what each server last said about itself: its greeting,
its silence, and whether it takes anything new. Never decides which servers there are, or which of them is gone.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any

from acker_client.backoff import Clock
from acker_client.errors import Closed
from acker_client.rpc.caller import Caller
from acker_client.rpc.connection import Connect, Connection
from acker_client.settings import Settings
from acker_protocol.messages import HelloReply

# The caller of a server that was not used for this time is dropped. No call takes longer. The transport closes idle
# connections much earlier.
IDLE_S = 600.0


class Callers:
    """Thread-safe; belongs to one process. ``heard`` is called with each reply."""

    def __init__(self, settings: Settings, connect: Connect, clock: Clock, heard: Callable[[Any], None]) -> None:
        self._settings, self._connect, self._clock, self._heard = settings, connect, clock, heard
        self._callers: dict[str, Caller] = {}
        self._used_at: dict[str, float] = {}
        self._swept_at = clock()
        self._is_closed = False
        # (address, incarnation) of the servers that have said that they take nothing new.
        self._draining: set[tuple[str, int]] = set()

    def at(self, address: str) -> Caller:
        """Return the caller of the server at ``address``. Use it at once: its channel may be closed later."""
        self._used_at[address] = now = self._clock()
        if now - self._swept_at > IDLE_S / 10:
            self._close_idle()
        caller = self._callers.get(address)
        if caller is None:
            if self._is_closed:
                raise Closed("this client was closed: make another AckerClient")
            connection = Connection(address, self._settings, self._connect)
            caller = self._callers.setdefault(address, Caller(self._settings, connection, self._clock, self._heard))
        return caller

    def known(self, address: str) -> Caller | None:
        """Return the caller of the server at ``address`` if it was called already. Opens nothing."""
        return self._callers.get(address)

    @property
    def addresses(self) -> tuple[str, ...]:
        """The addresses that were called."""
        return tuple(self._callers)

    def close(self) -> None:
        """Close every channel."""
        self._is_closed = True
        for caller in list(self._callers.values()):
            caller.connection.close_channel()

    @property
    def is_greeted(self) -> bool:
        """Whether some server has answered the handshake and every call since."""
        return any(caller.connection.is_greeted for caller in list(self._callers.values()))

    @property
    def silent_since(self) -> float | None:
        """When the servers fell silent; None if one answers, or none was called."""
        callers = list(self._callers.values())
        since = [caller.silent_since for caller in callers]
        known = [each for each in since if each is not None]
        return min(known) if known and len(known) == len(since) else None

    def hello_of(self, address: str) -> HelloReply | None:
        """Return the last greeting of the server at ``address``; None if it was not greeted."""
        caller = self._callers.get(address)
        return None if caller is None else caller.connection.hello

    def silent_s(self, address: str) -> float:
        """Return ``Caller.silent_s``; 0 for a server that was never called."""
        caller = self._callers.get(address)
        return 0.0 if caller is None else caller.silent_s

    def shown_silent_s(self, address: str, begun_at: float = float("-inf")) -> float:
        """Return ``Caller.shown_silent_s``; 0 for a server that was never called."""
        caller = self._callers.get(address)
        return 0.0 if caller is None else caller.shown_silent_s(begun_at)

    def hears_others_than(self, address: str) -> bool:
        """Whether another server answers. If none does, this process itself may be cut off."""
        return any(
            caller.connection.is_greeted and caller.silent_since is None
            for other, caller in list(self._callers.items())
            if other != address
        )

    # -- servers that take nothing new

    @property
    def has_noted_draining(self) -> bool:
        """Whether there is a note about some server that takes nothing new."""
        return bool(self._draining)

    def note_draining(self, address: str) -> None:
        """Note that the server at ``address`` has said that it takes nothing new."""
        hello = self.hello_of(address)
        if hello is not None:
            self._draining.add((address, hello.incarnation))

    def keep_draining(self, addresses: Collection[str]) -> None:
        """Forget the notes about servers at other addresses than these."""
        # Copied, as another thread may add a note meanwhile.
        self._draining = {each for each in tuple(self._draining) if each[0] in addresses}

    def is_draining(self, address: str) -> bool:
        """Whether the server at ``address`` takes nothing new, as it says itself."""
        hello = self.hello_of(address)
        if hello is None:
            return False
        return hello.is_draining or (address, hello.incarnation) in self._draining

    def _close_idle(self) -> None:
        """Close channels that were not used for long, as a batch lives on at most eight of many servers."""
        self._swept_at = self._clock()
        idle_since = self._swept_at - IDLE_S
        for address in [address for address, used_at in list(self._used_at.items()) if used_at < idle_since]:
            if address in self._settings.servers:
                continue
            caller = self._callers.pop(address, None)
            self._used_at.pop(address, None)
            if caller is not None:
                caller.connection.close_channel()
