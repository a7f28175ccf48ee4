"""Messages: the messages of acker.proto as plain values, under the same names.

Independent of protobuf (``wire`` translates), sockets and clocks. Columns are numpy arrays and may be read-only views,
so never write into a message.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from acker_protocol.ids import Column
from acker_protocol.placement import Member

PROTOCOL_VERSION = 2

# The longest timeout that a server accepts.
TIMEOUT_MAX_S = 24 * 3600
# The longest name of a source.
NAME_CHARACTERS = 256
# The largest ``Watch.pins``.
PINS_MAX_BYTES = 64 << 10

ACK = 1
FAIL = 2
RESET = 4

Kinds = npt.NDArray[np.uint8]
ReasonIds = npt.NDArray[np.uint32]

NO_IDS: Column = np.empty(0, np.uint64)
NO_KINDS: Kinds = np.empty(0, np.uint8)
NO_REASON_IDS: ReasonIds = np.empty(0, np.uint32)


class Status(enum.IntEnum):
    """The server's answer to a message, or to one section of it."""

    APPLIED = 1
    DUPLICATE = 2
    CONFLICT = 3
    STALE = 4
    OVERLOADED = 6
    UNKNOWN_SOURCE = 7
    UNKNOWN_BATCH = 8
    INVALID = 9
    DRAINING = 10


class Verdict(enum.IntEnum):
    """How a root ended."""

    ACKED = 1
    FAILED = 2
    TIMED_OUT = 3
    LOST = 4


class Cause(enum.Enum):
    """Why a server itself ended a root. ``str`` of a cause is its reason as text."""

    MESSAGE_TIMEOUT = 1
    PROGRESS_TIMEOUT = 2
    UNFINISHED = 3
    ABANDONED = 4
    UNREAD = 5
    ROOT_CONFLICT = 6

    def __str__(self) -> str:
        return self.name.lower()


# Why a root was not acked: the text of a fail, or the cause for which the server ended it.
Reason = str | Cause


class Settlement(enum.IntEnum):
    """How a batch ends."""

    DONE = 1
    ABANDON = 2


class MemberState(enum.IntEnum):
    """The state of a member in a view."""

    ACTIVE = 1
    DRAINING = 2
    AWAY = 3


@dataclass(frozen=True, slots=True)
class Identity:
    """The identity of a report: (session, sequence) if ``sequenced``, else a 128-bit hash of what a task consumed."""

    high: int
    low: int
    sequenced: bool = False


@dataclass(frozen=True, slots=True)
class Entries:
    """Entries of a report, strictly ascending by ``mix64(root id)``.

    ``root_ids``, ``ack_vals``: uint64[n]. ``kinds``: uint8[n] of ACK | FAIL | RESET bits, or empty for all ACK.
    ``reason_ids``: uint32. It has one index into ``reasons`` for each entry with the FAIL bit, in the entries' order.
    """

    root_ids: Column
    ack_vals: Column
    kinds: Kinds = field(default_factory=lambda: NO_KINDS)
    reason_ids: ReasonIds = field(default_factory=lambda: NO_REASON_IDS)
    reasons: tuple[str, ...] = ()

    def __len__(self) -> int:
        return len(self.root_ids)


@dataclass(frozen=True, slots=True)
class InitScope:
    """The batch that inits belong to. A report with an InitScope has only inits.

    ``covered``: uint64[k, 2], ranges [start, stop) of the batch's numbers that a task has read.
    """

    session: int
    batch: int
    covered: Column = field(default_factory=lambda: NO_IDS.reshape(0, 2))


@dataclass(frozen=True, slots=True)
class Apply:
    """One message of one report, with some of its sections. ``inits`` None: the entries are updates."""

    identity: Identity
    digest: int
    entries: Entries
    inits: InitScope | None = None


@dataclass(frozen=True, slots=True)
class ApplyReply:
    """``section_statuses``: uint8 per section, in order; empty if every section has ``status``.

    ``inits_known``: inits that changed nothing, as their root was initialised before. ``inits_conflicting``: inits
    whose root was pending in another batch, of any source. Such a root is LOST in both batches, with the reason
    ``root_conflict``.
    """

    incarnation: int
    status: Status
    section_statuses: Kinds = field(default_factory=lambda: NO_KINDS)
    retry_delay_ms: int = 0
    detail: str = ""
    inits_known: int = 0
    inits_conflicting: int = 0
    epoch: int = 0


@dataclass(frozen=True, slots=True)
class Hello:
    protocol_version: int
    client_version: str


@dataclass(frozen=True, slots=True)
class HelloReply:
    """``id``, ``generation``: these identify the server as a member. ``epoch``, here and in every reply: the epoch of
    the server's view, or 0 if the server knows of no other server."""

    protocol_version: int
    server_version: str
    incarnation: int
    max_message_bytes: int
    sequence_window: int
    id: int = 0
    generation: int = 0
    is_draining: bool = False
    epoch: int = 0


@dataclass(frozen=True, slots=True)
class Limits:
    """Timeouts of the roots of a batch; 0 is off."""

    message_timeout_ms: int = 0
    progress_timeout_ms: int = 0


@dataclass(frozen=True, slots=True)
class OpenBatch:
    """Reserve ``up_to`` roots: number i of the batch has root id ``mix64(first + i)``, 0 <= i < up_to.

    ``slots``: the slots for this server, one bit each, 128 bytes. Empty: all slots. If the batch is already open, the
    server adds the slots that it does not have yet.
    """

    session: int
    number: int
    first: int
    up_to: int
    held: bool = True
    limits: Limits = Limits()
    slots: bytes = b""


@dataclass(frozen=True, slots=True)
class OpenBatchReply:
    incarnation: int
    status: Status
    retry_delay_ms: int = 0
    detail: str = ""
    epoch: int = 0


@dataclass(frozen=True, slots=True)
class Settle:
    session: int
    number: int
    settlement: Settlement


@dataclass(frozen=True, slots=True)
class SettleReply:
    """``cursor``: the outcomes of the batch are at or below this cursor. ``roots``: the number of these outcomes,
    unread roots included. ``generation``: of the registration that has settled it; 0 if refused, or from an older
    server."""

    incarnation: int
    status: Status
    detail: str = ""
    cursor: int = 0
    roots: int = 0
    generation: int = 0
    epoch: int = 0


@dataclass(frozen=True, slots=True)
class Watch:
    """Open a source or renew its lease, confirm outcomes up to ``confirmed``, and ask for later outcomes.

    ``max_outcomes``: 0 for no limit. ``pins``: which servers hold the source's roots. The server stores the bytes
    as they are and returns them for :class:`Pins`. Empty: no change.
    """

    source: str
    session: int
    lease_ms: int
    limits: Limits = Limits()
    confirmed: int = 0
    wait_ms: int = 0
    max_outcomes: int = 1_000_000
    close: bool = False
    pins: bytes = b""


class RootOutcome(NamedTuple):
    """How one root ended. ``reason``: "" if there is none."""

    root_id: int
    verdict: Verdict
    reason: str


@dataclass(frozen=True, slots=True)
class Outcomes:
    """Outcomes of roots: ``root_ids`` uint64[n], ``verdicts`` uint8[n]. Iterates as :class:`RootOutcome`.

    ``reason_ids``: uint32[n]. 0: the root has no reason. i > 0: its reason is ``reasons[i - 1]``. The column is empty
    if no root has a reason.
    ``reasons``: the text of a fail, or the `Cause` for which the server ended the root.
    """

    root_ids: Column = field(default_factory=lambda: NO_IDS)
    verdicts: Kinds = field(default_factory=lambda: NO_KINDS)
    reason_ids: ReasonIds = field(default_factory=lambda: NO_REASON_IDS)
    reasons: tuple[Reason, ...] = ()

    def __len__(self) -> int:
        return len(self.root_ids)

    def __iter__(self) -> Iterator[RootOutcome]:
        for index, (root, verdict) in enumerate(zip(self.root_ids.tolist(), self.verdicts.tolist(), strict=True)):
            yield RootOutcome(root, Verdict(verdict), self.reason(index))

    def __repr__(self) -> str:
        """Show only the count of each verdict, since there may be a million outcomes."""
        verdicts, counts = np.unique(self.verdicts, return_counts=True)
        each = [f"{count} {Verdict(verdict).name}" for verdict, count in zip(verdicts, counts, strict=True)]
        return f"<Outcomes: {', '.join(each) or 'none'}>"

    def reason(self, index: int) -> str:
        """Return the reason of the ``index``-th outcome, or the empty string."""
        reason_id = int(self.reason_ids[index]) if len(self.reason_ids) else 0
        return str(self.reasons[reason_id - 1]) if reason_id else ""


def causes_of(reasons: Iterable[Reason]) -> bytes:
    """Return one byte for each reason: the number of its cause, or 0 for the text of a fail."""
    return bytes(reason.value if isinstance(reason, Cause) else 0 for reason in reasons)


def reasons_of(texts: Sequence[str], causes: Sequence[int]) -> tuple[Reason, ...]:
    """Return the reasons with these ``texts`` and ``causes``. Raises ValueError if they differ in number.

    Versions older than `Cause` sent only texts. So if ``causes`` is empty, the text of a cause stands for that cause.
    """
    if not causes:
        return tuple(_CAUSES_BY_TEXT.get(text, text) for text in texts)
    # A newer version may send a cause that this one does not know. Then only its text counts.
    return tuple(_CAUSES.get(cause, text) for text, cause in zip(texts, causes, strict=True))


_CAUSES: dict[int, Cause] = {cause.value: cause for cause in Cause}
_CAUSES_BY_TEXT: dict[str, Cause] = {str(cause): cause for cause in Cause}


@dataclass(frozen=True, slots=True)
class WatchReply:
    """``lease_ms``: the granted lease; 0 if the watch was refused or closed its source. ``pins_crc32``: the checksum of
    the pins that the server keeps, 0 for none."""

    incarnation: int
    status: Status
    detail: str = ""
    is_new: bool = False
    generation: int = 0
    cursor: int = 0
    outcomes: Outcomes = field(default_factory=Outcomes)
    lease_ms: int = 0
    pins_crc32: int = 0
    epoch: int = 0


@dataclass(frozen=True, slots=True)
class StatsRequest:
    """Ask for the server's counters and gauges."""


@dataclass(frozen=True, slots=True)
class StatsReply:
    incarnation: int
    server_version: str
    values: dict[str, float]
    epoch: int = 0


@dataclass(frozen=True, slots=True)
class ListedMember:
    """A member as a view lists it. ``away_ms``: how much longer a member that is AWAY may stay away."""

    member: Member
    state: MemberState = MemberState.ACTIVE
    away_ms: int = 0


@dataclass(frozen=True, slots=True)
class ViewRequest:
    """Ask for the servers of the cluster."""


@dataclass(frozen=True, slots=True)
class ViewReply:
    """All servers, ascending by id. ``epoch`` 0: the server knows of no other and lists only itself."""

    incarnation: int
    epoch: int
    members: tuple[ListedMember, ...]


@dataclass(frozen=True, slots=True)
class DrainRequest:
    """Ask the server to accept no new work, finish what it has, and exit."""


@dataclass(frozen=True, slots=True)
class DrainReply:
    """``detail``: what the server still has to finish, as text for people."""

    incarnation: int
    status: Status
    detail: str = ""
    epoch: int = 0


@dataclass(frozen=True, slots=True)
class Pins:
    """Ask for the pins that a source has sent with its Watch. ``root_id``: names the source by one of the roots that it
    has emitted, if ``session`` is 0."""

    session: int
    root_id: int = 0


@dataclass(frozen=True, slots=True)
class PinsReply:
    incarnation: int
    status: Status
    detail: str = ""
    pins: bytes = b""
    epoch: int = 0


class Transport(Protocol):
    """The interface between a client and one server. The gRPC transport and, for tests, a shard in memory implement it.

    Methods raise ``acker_client.errors.Unavailable`` if no answer came: the call may have been applied or not. They
    raise ``acker_client.errors.Rejected`` if the server answered that the call itself is wrong.
    """

    def hello(self, hello: Hello, timeout_s: float) -> HelloReply: ...
    def apply(self, message: Apply, timeout_s: float) -> ApplyReply: ...
    def open_batch(self, request: OpenBatch, timeout_s: float) -> OpenBatchReply: ...
    def settle(self, request: Settle, timeout_s: float) -> SettleReply: ...
    def watch(self, request: Watch, timeout_s: float) -> WatchReply: ...
    def stats(self, timeout_s: float) -> StatsReply: ...
    def view(self, timeout_s: float) -> ViewReply: ...
    def drain(self, timeout_s: float) -> DrainReply: ...
    def pins(self, request: Pins, timeout_s: float) -> PinsReply: ...
    def close(self) -> None: ...
