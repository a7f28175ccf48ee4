"""Clean up: runs a list of steps when some work ends, also after an exception.

Decides that all steps run even if one raises, and that the first exception is the one to raise. Does not know the
purpose of the steps.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from types import TracebackType

from acker_client.error_text import shorten

log = logging.getLogger("acker_client")


class CleanUp(ExitStack):
    """An ``ExitStack`` that raises the first exception, and logs later exceptions."""

    def add(self, step: Callable[[], object]) -> None:
        """Run ``step`` at the end, before the steps that were added earlier."""
        self.push(partial(_run, step))


def _run(
    step: Callable[[], object], _: type[BaseException] | None, first: BaseException | None, at: TracebackType | None
) -> None:
    try:
        step()
    except Exception as error:
        # GeneratorExit is no failure: it only says that the caller left a loop.
        if first is None or isinstance(first, GeneratorExit):
            raise
        log.warning("the clean-up after %r failed too: %s", shorten(first), shorten(error))
