"""Testing: the name under which users import what their tests need.

All of it stands in ``acker_testing``, on client and service; it is looked up when it is asked for, so that the client
itself stands on neither of them. Its types are in the stub beside this file.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any


def __getattr__(name: str) -> Any:
    return getattr(import_module("acker_testing"), name)


def __dir__() -> list[str]:
    return list(import_module("acker_testing").__all__)
