"""Test vectors of the protocol, shared by the tests of every package: ``from tests.vectors import protocol``.

All 64-bit numbers are hexadecimal strings, because many languages read JSON numbers only up to 2**53.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

from acker_protocol.messages import Apply, Entries, Identity, InitScope

PATH = Path(__file__).parents[2] / "proto/acker/v1/vectors.json"


def protocol() -> dict[str, Any]:
    """Return all vectors, with 64-bit numbers as int. Columns and messages remain bytes in hex."""
    vectors: dict[str, Any] = _numbers(json.loads(PATH.read_text()))
    return vectors


def report(name: str) -> dict[str, Any]:
    """Return the test vector of one report: "inits", "acks", "acks, fails and resets" or "one ack"."""
    return next(vector for vector in protocol()["reports"] if vector["name"] == name)


def apply_of(vector: dict[str, Any]) -> Apply:
    """Return the message that our own code would make for the vector of a report."""

    def column(name: str, dtype: type) -> np.ndarray:
        return np.frombuffer(bytes.fromhex(vector[name]), dtype)

    entries = Entries(
        column("root_ids", np.uint64),
        column("ack_vals", np.uint64),
        column("kinds", np.uint8),
        column("reason_ids", np.uint32),
        tuple(vector["reasons"]),
    )
    inits = vector["inits"]
    scope = inits and InitScope(inits["session"], inits["batch"], np.array(inits["covered"], np.uint64))
    return Apply(Identity(**vector["identity"]), vector["digest"], entries, scope)


def _numbers(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _numbers(held) for name, held in value.items()}
    if isinstance(value, list):
        return [_numbers(held) for held in value]
    return int(value, 16) if isinstance(value, str) and value.startswith("0x") else value
