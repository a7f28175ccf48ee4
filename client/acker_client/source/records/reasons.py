"""Reasons: separates a reason from the traceback that an operator adds to it. Pure."""

from __future__ import annotations

# Start of the traceback in the reason of an operator's failure.
TRACEBACK = "\nTraceback (most recent call last)"


def split_reason(reason: str) -> tuple[str, str]:
    """Return (reason without its traceback, the traceback or "")."""
    at = reason.find(TRACEBACK)
    return (reason[:at], reason[at + 1 :]) if at >= 0 else (reason, "")
