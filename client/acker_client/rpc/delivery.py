"""Delivery: one report, from the first try until every section of it has a final answer. Pure.

Decides what to send next, and adds up the answers. The covered numbers come last, after all inits were counted. Never
sends, waits or gives up.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace

import numpy as np
import numpy.typing as npt

from acker_protocol.messages import FAIL, Apply, ApplyReply, Entries, Identity, InitScope, Kinds, Status
from acker_protocol.reports import MESSAGE_BYTES, digest, pack, section_starts

# A section with a status up to this one is not sent again. Above it, the higher a status, the less a retry helps.
_FINAL_MAX = int(Status.STALE)


@dataclass(frozen=True, slots=True)
class ReportResult:
    """The result of one report, counted in sections. ``unreported``: given up, because of
    ``on_unreachable="continue"`` or because no server has known the roots for ten minutes.

    ``inits_known``: inits that changed nothing, as their root had been initialised before. ``inits_conflicting``: inits
    of roots that were pending in another source or batch; such a root ends as LOST in the old batch and in the new one.
    ``without``: ids of the servers that were left out, because they were gone or other replicas had answered.
    """

    applied: int = 0
    duplicate: int = 0
    conflict: int = 0
    stale: int = 0
    unreported: int = 0
    inits_known: int = 0
    inits_conflicting: int = 0
    without: frozenset[int] = frozenset()

    def __add__(self, other: ReportResult) -> ReportResult:
        counts = {name: getattr(self, name) + getattr(other, name) for name in _COUNTS}
        return ReportResult(**counts, without=self.without | other.without)


_COUNTS = [each.name for each in fields(ReportResult) if each.name != "without"]


@dataclass(frozen=True, slots=True)
class ErrorReply:
    """An answer that is not final, or not a success. ``status``: the worst status of its sections."""

    status: Status
    detail: str = ""
    retry_delay_ms: int = 0


class Delivery:
    """The messages of one report that still need an answer, and the counts of the answers so far."""

    __slots__ = (
        "_counts",
        "_covering",
        "_inits_conflicting",
        "_inits_known",
        "_message_bytes",
        "_messages",
        "identity",
        "inits",
    )

    def __init__(
        self,
        identity: Identity,
        entries: Entries,
        inits: InitScope | None = None,
        *,
        report_digest: int | None = None,
    ) -> None:
        """``report_digest``: digest of the whole report, if ``entries`` are only the part for one member."""
        self.identity = identity
        self.inits = inits
        self._counts = np.zeros(max(Status) + 1, np.int64)
        self._inits_known = self._inits_conflicting = 0
        self._message_bytes = MESSAGE_BYTES
        whole = digest(entries) if report_digest is None else report_digest
        self._messages = _numbered(pack(identity, entries, inits, report_digest=whole))
        # The key of the message with the covered numbers. This message is sent last. -1 if there is none.
        self._covering = len(self._messages) - 1 if inits is not None and len(inits.covered) else -1

    @property
    def done(self) -> bool:
        """Whether every section has its final answer."""
        return not self._messages

    @property
    def result(self) -> ReportResult:
        """The counts so far. Sections without a final answer count as ``unreported``."""
        # A copy, as another thread may still count answers of a server that the caller has given up.
        messages = list(self._messages.values())
        left = sum(len(section_starts(message.entries.root_ids)) for message in messages)
        applied, duplicate, conflict, stale = (int(count) for count in self._counts[1 : _FINAL_MAX + 1])
        return ReportResult(applied, duplicate, conflict, stale, left, self._inits_known, self._inits_conflicting)

    def fit(self, message_bytes: int) -> None:
        """Pack the rest again, for a server that only takes messages up to ``message_bytes``."""
        if message_bytes >= self._message_bytes:
            return
        self._message_bytes = message_bytes
        packed: list[Apply] = []
        for message in self._messages.values():
            packed += pack(
                self.identity,
                message.entries,
                message.inits,
                message_bytes=message_bytes,
                report_digest=message.digest,
            )
        self._messages = _numbered(packed)
        self._covering = len(packed) - 1 if self._covering >= 0 else -1

    def ready(self) -> list[tuple[int, Apply]]:
        """Return (key, message) of all messages to send now, in any order. The covered numbers come alone, last."""
        if len(self._messages) == 1 and self._covering in self._messages:
            self._uncover_after_conflict()
        rest = [(key, message) for key, message in self._messages.items() if key != self._covering]
        return rest or list(self._messages.items())

    def answered(self, key: int, reply: ApplyReply) -> ErrorReply | None:
        """Count the final sections in the answer to message ``key``. Return an error if some have to be sent again.

        Raises ValueError if the answer does not match the message, which is a bug of the server.
        """
        message = self._messages[key]
        starts = section_starts(message.entries.root_ids)
        statuses = _section_statuses(reply, len(starts))
        final = statuses <= _FINAL_MAX
        if len(starts):
            self._counts += np.bincount(statuses[final], minlength=len(self._counts))
        self._inits_known += reply.inits_known
        self._inits_conflicting += reply.inits_conflicting
        if final.all():
            del self._messages[key]
            return None
        self._messages[key] = replace(message, entries=_without(message.entries, starts, final))
        return ErrorReply(Status(int(statuses.max())), reply.detail, reply.retry_delay_ms)

    def _uncover_after_conflict(self) -> None:
        # The server did not count the inits of sections that it refused (CONFLICT, STALE). Their numbers must end as
        # LOST. If the message covered them, they would end as absent.
        if not self._counts[Status.CONFLICT] and not self._counts[Status.STALE]:
            return
        message = self._messages.pop(self._covering)
        if message.inits is not None and len(message.entries):
            bare = InitScope(message.inits.session, message.inits.batch)
            self._messages[self._covering] = replace(message, inits=bare)


def _numbered(messages: list[Apply]) -> dict[int, Apply]:
    return dict(enumerate(messages))


def _section_statuses(reply: ApplyReply, sections: int) -> Kinds:
    # A message without sections (it only has covered numbers) has one status for the whole.
    if not len(reply.section_statuses):
        return np.full(max(sections, 1), int(reply.status), np.uint8)
    if len(reply.section_statuses) != sections or reply.section_statuses.max() > max(Status):
        raise ValueError(f"{len(reply.section_statuses)} section statuses for {sections} sections, or an unknown one")
    return reply.section_statuses


def _without(entries: Entries, starts: npt.NDArray[np.int64], final: npt.NDArray[np.bool_]) -> Entries:
    if not len(entries):
        return entries
    keep = np.repeat(~final, np.diff(np.append(starts, len(entries))))
    roots, vals = entries.root_ids[keep], entries.ack_vals[keep]
    if not len(entries.kinds):
        return Entries(roots, vals)
    kept_fails = keep[(entries.kinds & FAIL) != 0]
    return Entries(roots, vals, entries.kinds[keep], entries.reason_ids[kept_fails], entries.reasons)
