"""Settings: what a client needs to know to reach its server. Frozen and picklable; this is what travels to executors.

Decides the defaults and what a valid option is. Never holds a channel, a session or anything else of one process.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Literal

DEFAULT_PORT = 7070
SERVERS_VARIABLE = "ACKER_SERVERS"
TOKEN_VARIABLE = "ACKER_TOKEN"

OnUnreachable = Literal["fail", "continue"]


@dataclass(frozen=True, slots=True)
class Settings:
    """How to reach the server, and how long to try.

    ``servers``: addresses ``host:port``, tried in order; they name one server (for now one server serves every slot).
    ``token``: bearer token, or None. ``budget_s``: how long one flush, report, open or settle may take, retries
    included. ``call_timeout_s``: after this time without an answer a single call counts as lost and is sent again.
    ``on_unreachable``: what to do with a report when its budget is spent: "fail" raises; "continue" counts it, logs
    once and goes on, which is safe and costs replays. ``buffer_entries``: roots that a plain client folds before it
    flushes.
    """

    servers: tuple[str, ...]
    token: str | None = field(default=None, repr=False)
    budget_s: float = 60.0
    on_unreachable: OnUnreachable = "fail"
    call_timeout_s: float = 10.0
    buffer_entries: int = 65_536

    def __post_init__(self) -> None:
        object.__setattr__(self, "servers", addresses(self.servers))
        if self.budget_s <= 0:
            raise ValueError(f"budget_s={self.budget_s}: give the seconds that a report may take, above 0")
        if self.call_timeout_s <= 0:
            raise ValueError(f"call_timeout_s={self.call_timeout_s}: give the seconds that a call may take, above 0")
        if self.on_unreachable not in ("fail", "continue"):
            raise ValueError(f"on_unreachable={self.on_unreachable!r}: give 'fail' or 'continue'")
        if self.buffer_entries < 1:
            raise ValueError(f"buffer_entries={self.buffer_entries}: give a number of roots, at least 1")

    @classmethod
    def from_environment(cls, environ: Mapping[str, str] = os.environ) -> Settings:
        """Settings from ``ACKER_SERVERS`` and ``ACKER_TOKEN``; ValueError when no server is named."""
        if not environ.get(SERVERS_VARIABLE, "").strip():
            raise ValueError(
                f"no acker server is named: pass AckerClient('host:{DEFAULT_PORT}') or set {SERVERS_VARIABLE}; "
                "`acker serve` starts a server"
            )
        return cls(addresses(environ[SERVERS_VARIABLE]), token=environ.get(TOKEN_VARIABLE) or None)


def addresses(servers: str | Iterable[str]) -> tuple[str, ...]:
    """Read 'a:7070,b' or a sequence of such; a missing port is 7070. ValueError when none is left."""
    parts = servers.split(",") if isinstance(servers, str) else servers
    found = tuple(_address(part.strip()) for part in parts if part.strip())
    if not found:
        raise ValueError(f"servers is empty: give at least one address, like 'localhost:{DEFAULT_PORT}'")
    return found


def _address(text: str) -> str:
    if "/" in text:
        raise ValueError(
            f"servers: {text!r} is a URL; write host:port alone, like 'localhost:{DEFAULT_PORT}', with the port of gRPC"
        )
    host, colon, port = text.rpartition(":")
    if not colon or text.endswith("]"):
        return f"{text}:{DEFAULT_PORT}"
    if not host or not port.isdecimal() or not 0 < int(port) < 65536:
        raise ValueError(f"servers: {text!r} is not an address; write host:port, like 'localhost:{DEFAULT_PORT}'")
    return text
