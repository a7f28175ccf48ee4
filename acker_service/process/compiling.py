"""Compiling: says in the log when the server compiles its kernels, since the first start then takes long.

Decides how numba is set up: it must be called before a module with kernels is imported.
"""

# numba has no types.
# mypy: disable-error-code="no-untyped-call"

from __future__ import annotations

import os
from typing import Any

from acker_service.process.logs import Log

# The others are numba's own, for what is not a file of a package.
LOCATORS = "acker_service.process.kernel_cache.KernelCache,UserProvidedCacheLocator,IPythonCacheLocator,ZipCacheLocator"

log = Log("acker.server")


def set_up_numba() -> None:
    """Let numba keep kernels where :mod:`~acker_service.process.kernel_cache` says, and log when it compiles."""
    os.environ.setdefault("NUMBA_CACHE_LOCATOR_CLASSES", LOCATORS)
    # Not at the top: the variable counts when numba is imported.
    from numba.core import event

    class Announcing(event.Listener):
        """Logs the first compilation."""

        is_announced = False

        def on_start(self, event: Any) -> None:
            if not self.is_announced:
                self.is_announced = True
                log.warning("kernels_compiling", takes="up to a minute, once for each version and user")

        def on_end(self, event: Any) -> None:
            pass

    event.register("numba:compile", Announcing())
