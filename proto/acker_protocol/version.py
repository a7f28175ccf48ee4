"""Version: the version of the installed package, which client and server send in the handshake."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version


def _installed() -> str:
    try:
        return version("acker")
    except PackageNotFoundError:  # imported from a source tree, not installed
        return "0+unknown"


VERSION = _installed()
