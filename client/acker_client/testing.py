"""Testing: another name for the package ``acker_testing``, which depends on the client and the service.

Imports ``acker_testing`` only when an attribute is used, so that the client itself depends on neither it nor the
service. Type checkers need the package's own name.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any


def __getattr__(name: str) -> Any:
    return getattr(import_module("acker_testing"), name)


def __dir__() -> list[str]:
    return list(import_module("acker_testing").__all__)
