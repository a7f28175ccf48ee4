"""Testing: another name of ``acker_testing``, which stands on client and service.

What it gives is looked up when it is asked for, so that the client itself stands on neither of them. Type checkers want
the package's own name.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any


def __getattr__(name: str) -> Any:
    return getattr(import_module("acker_testing"), name)


def __dir__() -> list[str]:
    return list(import_module("acker_testing").__all__)
