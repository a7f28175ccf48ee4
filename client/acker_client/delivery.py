"""Delivery: one report on its way, from the first try until every section of it has a final answer. Pure.

Decides what is sent next (the sections without a final answer, packed anew; what is covered last and only when everything
else was counted) and what the answers add up to. Never sends, waits or gives up.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ReportResult:
    """What became of one report, in sections. ``unreported``: given up under ``on_unreachable="continue"``.

    ``inits_known``: inits that changed nothing, as their root had been initialised before.
    """

    applied: int = 0
    duplicate: int = 0
    conflict: int = 0
    stale: int = 0
    unreported: int = 0
    inits_known: int = 0
