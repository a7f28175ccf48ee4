"""Errors: what stops the demo before it has shown anything. The text says what to do."""

from __future__ import annotations


class DemoError(Exception):
    """The demo cannot run; the text names the thing and the fix."""


class Abort(BaseException):
    """Ends the run from within a batch, where an ``Exception`` would only have the batch replayed."""
