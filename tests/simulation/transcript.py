"""Transcript: what happened, line by line, as a conversation between named processes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from acker_protocol.messages import (
    Apply,
    ApplyReply,
    Hello,
    HelloReply,
    OpenBatch,
    OpenBatchReply,
    Outcomes,
    Settle,
    SettleReply,
    ViewReply,
    Watch,
    WatchReply,
)
from acker_protocol.reports import section_starts


class Transcript:
    """``is_kept``: whether lines are kept. Callers check it before they make a line that costs time."""

    def __init__(self, clock: Callable[[], float], *, is_kept: bool) -> None:
        self.is_kept = is_kept
        self.lines: list[str] = []
        self._clock = clock
        self._reports: dict[Any, str] = {}
        self._roots: dict[int, str] = {}

    def say(self, line: str) -> None:
        if self.is_kept:
            self.lines.append(f"{self._clock():9.3f} s  {line}")

    def name_report(self, identity: Any, name: str) -> None:
        if self.is_kept:
            self._reports.setdefault(identity, f"{name} [{len(self._reports) + 1}]")

    def name_root(self, root: int, name: str) -> None:
        self._roots[root] = name

    def root(self, root: int) -> str:
        return self._roots.get(root, f"root {root:x}")

    def request(self, request: Any) -> str:
        match request:
            case Hello():
                return "Hello"
            case Apply(identity, _, entries, inits):
                name = self._reports.get(identity, f"report {identity.high & 0xFFFF:x}")
                roots = ", ".join(map(self.root, entries.root_ids.tolist()))
                covers = f", covers {inits.covered.tolist()}" if inits is not None else ""
                sections = len(section_starts(entries.root_ids))
                return f"Apply {name}: {sections} section{'' if sections == 1 else 's'} ({roots}){covers}"
            case OpenBatch():
                return f"OpenBatch {request.number} for {request.up_to}"
            case Settle():
                return f"Settle {request.number} {request.settlement.name.lower()}"
            case Watch():
                how = "close" if request.close else f"confirms {request.confirmed}, waits {request.wait_ms / 1000:g} s"
                return f"Watch: {how}"
        return type(request).__name__

    def reply(self, reply: Any) -> str:
        match reply:
            case HelloReply():
                drains = ", draining" if reply.is_draining else ""
                return f"I am generation {reply.generation % 10_000}, incarnation {reply.incarnation % 10_000}{drains}"
            case ApplyReply():
                statuses = f" {reply.section_statuses.tolist()}" if len(reply.section_statuses) else ""
                return f"{reply.status.name}{statuses}{_detail(reply.detail)}"
            case OpenBatchReply():
                return f"{reply.status.name}{_detail(reply.detail)}"
            case SettleReply():
                return f"{reply.status.name}, cursor {reply.cursor}, {reply.roots} roots{_detail(reply.detail)}"
            case ViewReply():
                each = (f"{listed.member.id} {listed.state.name.lower()}" for listed in reply.members)
                return f"view {reply.epoch}: {', '.join(each)}"
            case WatchReply():
                new = ", new" if reply.is_new else ""
                said = f": {self.outcomes(reply.outcomes)}" if len(reply.outcomes) else ""
                return (
                    f"{reply.status.name}{new}, generation {reply.generation % 10_000},"
                    f" cursor {reply.cursor}{said}{_detail(reply.detail)}"
                )
        return type(reply).__name__

    def outcomes(self, outcomes: Outcomes) -> str:
        return ", ".join(
            f"{self.root(each.root_id)} {each.verdict.name}{f' ({_brief(each.reason)})' if each.reason else ''}"
            for each in outcomes
        )


def _detail(detail: str) -> str:
    return f" ({detail})" if detail else ""


def _brief(reason: str) -> str:
    return reason.partition("\n")[0]
