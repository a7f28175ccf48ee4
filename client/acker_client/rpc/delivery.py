"""Delivery: one report on its way, from the first try until every section of it has a final answer. Pure.

Decides what is sent next (the sections without a final answer; what is covered last, and only when all the rest was
counted) and what the answers add up to. Never sends, waits or gives up.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace

import numpy as np
import numpy.typing as npt

from acker_protocol.messages import FAIL, Apply, ApplyReply, Entries, Identity, InitScope, Kinds, Status
from acker_protocol.reports import MESSAGE_BYTES, digest, pack, section_starts

# The answers after which a section is never sent again. The higher the other ones, the less a retry can do about them.
_FINAL_MAX = int(Status.STALE)


@dataclass(frozen=True, slots=True)
class ReportResult:
    """What became of one report, in sections. ``unreported``: given up under ``on_unreachable="continue"``.

    ``inits_known``: inits that changed nothing, as their root had been initialised before. ``inits_conflicting``: inits
    of roots that another source, or another batch, had pending: each is LOST, there and here. ``without``: ids of the
    servers that were gone, or were not waited for any longer, as replicas of theirs had answered.
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
    """An answer that is not final, or not good: ``status`` is the worst of its sections'."""

    status: Status
    detail: str = ""
    retry_delay_ms: int = 0


class Delivery:
    """One report: its messages still to be answered, and the counts of the answers that came."""

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
        """``report_digest``: of the whole report, where ``entries`` are the part of it that one member gets."""
        self.identity = identity
        self.inits = inits
        self._counts = np.zeros(max(Status) + 1, np.int64)
        self._inits_known = self._inits_conflicting = 0
        self._message_bytes = MESSAGE_BYTES
        whole = digest(entries) if report_digest is None else report_digest
        self._messages = _numbered(pack(identity, entries, inits, report_digest=whole))
        # The key of the message that says what is covered: it has to be answered last.
        self._covering = len(self._messages) - 1 if inits is not None and len(inits.covered) else -1

    @property
    def done(self) -> bool:
        """Whether every section has its final answer."""
        return not self._messages

    @property
    def result(self) -> ReportResult:
        """The counts so far; what has no final answer yet stands under ``unreported``."""
        # A copy: whoever asks may have given up on the server, whose answers are still counted in another thread.
        messages = list(self._messages.values())
        left = sum(len(section_starts(message.entries.root_ids)) for message in messages)
        applied, duplicate, conflict, stale = (int(count) for count in self._counts[1 : _FINAL_MAX + 1])
        return ReportResult(applied, duplicate, conflict, stale, left, self._inits_known, self._inits_conflicting)

    def fit(self, message_bytes: int) -> None:
        """Pack what is left anew, for a server that takes only messages up to ``message_bytes``."""
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
        """(key, message) of all that may be sent now, in any order. What says what is covered comes alone, last."""
        if len(self._messages) == 1 and self._covering in self._messages:
            self._uncover_after_conflict()
        rest = [(key, message) for key, message in self._messages.items() if key != self._covering]
        return rest or list(self._messages.items())

    def answered(self, key: int, reply: ApplyReply) -> ErrorReply | None:
        """Count what is final in the answer to message ``key``; an error when something of it is left to send.

        ValueError when the answer does not match the message: the server is broken.
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
        # Numbers whose inits were not counted under this identity are not covered by it: they end as LOST, never as
        # read.
        if not self._counts[Status.CONFLICT] and not self._counts[Status.STALE]:
            return
        message = self._messages.pop(self._covering)
        if message.inits is not None and len(message.entries):
            bare = InitScope(message.inits.session, message.inits.batch)
            self._messages[self._covering] = replace(message, inits=bare)


def _numbered(messages: list[Apply]) -> dict[int, Apply]:
    return dict(enumerate(messages))


def _section_statuses(reply: ApplyReply, sections: int) -> Kinds:
    # A message without sections (it only says what is covered) has the status of the whole as its one answer.
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
