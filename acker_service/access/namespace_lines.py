"""Namespace lines: what a line of the tokens file says about a namespace. Pure.

namespace NAMESPACE memory=SIZE [max_pending=N] [sources=N] [connections=N]
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from acker_service.config import size_of
from acker_service.core.quotas import Quotas

# It is a label of metrics and a field of log lines.
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}")
# Names of quotas, and the fields of `Quotas`.
_FIELDS = {"memory": "memory_bytes", "max_pending": "max_pending", "sources": "sources", "connections": "connections"}
_NUMBER_MAX = 2_000_000_000


def parse_quotas(words: Sequence[str]) -> tuple[str, Quotas]:
    """Return the namespace of a line, and its quotas. Raises ValueError."""
    name = words[1] if len(words) > 1 else ""
    check_name(name)
    found: dict[str, int] = {}
    for word in words[2:]:
        key, _, value = word.partition("=")
        if key not in _FIELDS:
            raise ValueError(f"{word!r} is not a quota; the quotas are {', '.join(f'{each}=' for each in _FIELDS)}")
        if _FIELDS[key] in found:
            raise ValueError(f"{key}= is given twice; leave one")
        found[_FIELDS[key]] = _read(key, value)
    if "memory_bytes" not in found:
        raise ValueError(f"namespace {name} needs memory=, such as memory=512MiB")
    return name, Quotas(**found)


def check_name(name: str) -> None:
    """Raise ValueError if no namespace can have this name."""
    if not _NAME.fullmatch(name):
        raise ValueError(f"{name!r} is not the name of a namespace: give 1 to 63 letters, digits, dots, - and _")


def _read(key: str, value: str) -> int:
    try:
        number = size_of(value) if key == "memory" else int(value)
    except (ValueError, KeyError):
        number = 0
    if not 0 < number <= (1 << 42 if key == "memory" else _NUMBER_MAX):
        shape = "a size such as 512MiB" if key == "memory" else f"a whole number from 1 to {_NUMBER_MAX:,}"
        raise ValueError(f"{key}={value}: should be {shape}")
    return number
