"""Version: of the distribution that this server came with."""

from __future__ import annotations

from importlib.metadata import PackageNotFoundError, version

try:
    VERSION = version("acker")
except PackageNotFoundError:  # run from a source tree that is not installed
    VERSION = "0+source"
