"""Test vectors of the protocol, shared by the tests of every package: ``from vectors import protocol``.

All 64-bit numbers stand as hexadecimal strings, since JSON's numbers end at 2**53 in many a language.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

PATH = Path(__file__).with_name("protocol.json")


def protocol() -> dict[str, Any]:
    """The vectors as read, hexadecimal strings made numbers again (columns and messages stay bytes in hex)."""
    return _numbers(json.loads(PATH.read_text()))


def _numbers(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _numbers(held) for name, held in value.items()}
    if isinstance(value, list):
        return [_numbers(held) for held in value]
    return int(value, 16) if isinstance(value, str) and value.startswith("0x") else value
