"""Version: of the distribution that a client or server came with, as the handshake says it."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version


def _installed() -> str:
    try:
        return version("acker")
    except PackageNotFoundError:  # on the path, but not installed
        return "0+unknown"


VERSION = _installed()
