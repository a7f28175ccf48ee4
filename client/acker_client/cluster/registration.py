"""Registration: one source at one server, with its lease, generation and cursor. Pure.

Decides what each poll asks for and confirms, and when the server has lost its state. Never waits or sends.
"""

from __future__ import annotations

import zlib
from dataclasses import dataclass
from numbers import Integral
from typing import Any

from acker_protocol.ids import MASK
from acker_protocol.messages import NAME_CHARACTERS, TIMEOUT_MAX_S, Limits, Outcomes, Status, Watch, WatchReply

# On the wire, times are milliseconds in 32 bits.
SECONDS_MAX = 4_294_967

# Reasons for leaving a server out of the batches that it has lost. Roots that are LOST because of it have the same
# reason.
LOST_STATE = "the server lost its state"
NOT_WATCHED = (
    "the source was not watched for {:.0f} s, and its lease is {:.0f} s: read outcomes() or watch() while jobs run, or"
    " give open_source() a longer lease_s"
)


def check_source(name: str, session: int | None, lease_s: float) -> None:
    """Raise ValueError, with the name of the argument, if a source cannot be opened with it."""
    if not isinstance(name, str) or not name.strip():
        raise ValueError(f"name={name!r}: give the source a name, like 'orders'; logs and metrics show it")
    if len(name) > NAME_CHARACTERS or name.encode(errors="ignore").decode() != name:
        raise ValueError(f"name={name[:100]!r}: give up to {NAME_CHARACTERS} characters, and no lone surrogate")
    if session is not None:
        check_number("session", session, least=1)
    check_seconds("lease_s", lease_s)


def limits_of(message_timeout_s: float | None, progress_timeout_s: float | None) -> Limits:
    """Return the timeouts of a batch as they are on the wire. None turns one off. Raises ValueError."""
    return Limits(
        _milliseconds("message_timeout_s", message_timeout_s), _milliseconds("progress_timeout_s", progress_timeout_s)
    )


def check_seconds(name: str, value: float, most: int = SECONDS_MAX, hint: str = "") -> None:
    """Raise ValueError unless ``value`` is a number of seconds above 0 and up to ``most``."""
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value <= most:
        raise ValueError(f"{name}={value!r}: give seconds, above 0 and up to {most:,}{hint}")


def check_number(name: str, value: Any, *, least: int = 0, most: int = MASK) -> None:
    """Raise ValueError unless ``value`` is a whole number from ``least`` to ``most``."""
    is_whole = isinstance(value, Integral) and not isinstance(value, bool)
    if not is_whole or not least <= value <= most:
        shown = "2**64 - 1" if most == MASK else f"{most:,}"
        raise ValueError(f"{name}={value!r}: give a whole number from {least} to {shown}")


@dataclass(frozen=True, slots=True)
class Heard:
    """The content of one answer of one server.

    ``lost_because``: why the server has lost what this source had pending there (it restarted without its state, or the
    lease ran out); "" if it has not. Set once per loss. ``outcomes`` belong to the registration with this
    ``generation``. ``cursor``: all outcomes up to it have been returned (compare ``SettleReply.cursor``).
    """

    outcomes: Outcomes
    lost_because: str
    cursor: int
    generation: int


class Registration:
    """One source of one client. Not thread-safe: the caller holds a lock around every method."""

    __slots__ = (
        "_granted_ms",
        "_lost_because",
        "_pins",
        "_unsent",
        "cursor",
        "generation",
        "heard_at",
        "lease_ms",
        "name",
        "session",
    )

    def __init__(self, name: str, session: int, lease_s: float, pins: bytes, now: float) -> None:
        self.name = name
        self.session = session
        self.lease_ms = _in_milliseconds(lease_s)
        self.cursor = 0
        self.heard_at = now
        self.generation: int | None = None
        # Tells other processes where this source's roots live. ``_unsent`` is b"" once the server has these pins.
        self._pins = self._unsent = pins
        self._lost_because = ""
        self._granted_ms = self.lease_ms

    def is_fresh(self, now: float) -> bool:
        """Whether less than a third of the granted lease has passed, so that the next poll renews it in time."""
        return self.generation is not None and now - self.heard_at < self._granted_ms / 3000

    @property
    def wait_max_s(self) -> float:
        """Longest wait of one poll at the server, in seconds. It leaves time to renew the lease before it runs out."""
        return self.lease_ms / 3000

    def request(self, wait_s: float, max_outcomes: int, *, close: bool = False) -> Watch:
        """Return the next poll. It confirms the outcomes that earlier ones returned."""
        wait_ms = round(min(wait_s, self.wait_max_s) * 1000)
        return Watch(
            self.name,
            self.session,
            self.lease_ms,
            confirmed=self.cursor,
            wait_ms=wait_ms,
            max_outcomes=max_outcomes,
            close=close,
            pins=self._unsent,
        )

    def publish(self, pins: bytes) -> None:
        """Send ``pins`` to the server with the next poll."""
        self._pins = self._unsent = pins

    def renewed(self, request: Watch, reply: WatchReply, now: float) -> bool:
        """Note whether the server still knows this source. Ignores the outcomes, which the server sends again.

        Return False if the poll has to be made again, since it confirmed a cursor of an earlier registration.
        """
        is_foreign = _is_foreign(request, reply)
        known, self.generation = self.generation, reply.generation
        # ``reply.is_new`` says no more than the generation, and may come after the answer to a later poll.
        is_other = reply.generation != known or is_foreign
        if known is not None and is_other:
            silent_s, lease_s = now - self.heard_at, self._granted_ms / 1000
            is_over = silent_s > lease_s
            self._lost_because = NOT_WATCHED.format(silent_s, lease_s) if is_over else LOST_STATE
            self.cursor = 0
        self.heard_at = max(self.heard_at, now)
        self._granted_ms = reply.lease_ms or self._granted_ms
        # A delayed poll may have replaced the pins with older ones.
        self._unsent = b"" if reply.pins_crc32 == zlib.crc32(self._pins) else self._pins
        return reply.status != Status.INVALID or not is_foreign

    def heard(self, request: Watch, reply: WatchReply, now: float) -> Heard | None:
        """Return the content of an answer. The next request confirms it. None if the poll has to be made again."""
        if not self.renewed(request, reply, now):
            return None
        self.cursor = reply.cursor
        lost_because, self._lost_because = self._lost_because, ""
        return Heard(reply.outcomes, lost_because, reply.cursor, reply.generation)


def _milliseconds(name: str, value_s: float | None) -> int:
    if value_s is None:
        return 0
    check_seconds(name, value_s, TIMEOUT_MAX_S, "; None for no timeout")
    return _in_milliseconds(value_s)


def _in_milliseconds(value_s: float) -> int:
    # 0 on the wire means no timeout.
    return max(1, round(value_s * 1000))


def _is_foreign(request: Watch, reply: WatchReply) -> bool:
    # The server counts outcomes of another registration if it does not know the cursor, or if the cursor went back.
    return reply.cursor < request.confirmed or (reply.status == Status.INVALID and request.confirmed > 0)
