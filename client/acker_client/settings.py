"""Settings: what a client needs to know to reach its server. Frozen and picklable; this is what travels to executors.

Decides the defaults and what a valid option is. Never holds a channel, a session or anything else of one process.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

DEFAULT_PORT = 7070
SERVERS_VARIABLE = "ACKER_SERVERS"
TOKEN_VARIABLE = "ACKER_TOKEN"

# A host's name or IPv4 address, or an IPv6 address in brackets.
_ADDRESS = re.compile(r"(?P<host>[A-Za-z0-9._-]+|\[[0-9A-Fa-f:.]+(%[A-Za-z0-9._-]+)?\])(:(?P<port>[0-9]{1,5}))?")
_WRITE = f"write host:port, like 'localhost:{DEFAULT_PORT}'"

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
        _check_token(self.token)
        _check_seconds("budget_s", self.budget_s, "a report")
        _check_seconds("call_timeout_s", self.call_timeout_s, "a call")
        if self.on_unreachable not in ("fail", "continue"):
            raise ValueError(f"on_unreachable={self.on_unreachable!r}: give 'fail' or 'continue'")
        if not isinstance(self.buffer_entries, int) or self.buffer_entries < 1:
            raise ValueError(f"buffer_entries={self.buffer_entries!r}: give a whole number of roots, at least 1")

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
    """Read 'a:7070,b' or a sequence of such; a missing port is 7070. ValueError when none is left, or one is none."""
    parts: Any = servers.split(",") if isinstance(servers, str) else servers
    if isinstance(parts, bytes) or not isinstance(parts, Iterable):
        raise ValueError(f"servers={servers!r}: {_WRITE}")
    found = tuple(_address(part) for part in parts if not (isinstance(part, str) and not part.strip()))
    if not found:
        raise ValueError(f"servers is empty: give at least one address, like 'localhost:{DEFAULT_PORT}'")
    return found


def _address(given: str) -> str:
    if not isinstance(given, str):
        raise ValueError(f"servers: {given!r} is not an address; {_WRITE}")
    text = given.strip()
    if "/" in text:
        raise ValueError(
            f"servers: {text!r} is a URL; write host:port alone, like 'localhost:{DEFAULT_PORT}', with the port of gRPC"
        )
    if text.count(":") > 1 and "[" not in text:
        raise ValueError(f"servers: {text!r} is an IPv6 address; write it in brackets, like '[::1]:{DEFAULT_PORT}'")
    found = _ADDRESS.fullmatch(text)
    if found is None or (found["port"] and not 0 < int(found["port"]) < 65536):
        raise ValueError(f"servers: {text!r} is not an address; {_WRITE}")
    return text if found["port"] else f"{text}:{DEFAULT_PORT}"


def _check_seconds(option: str, value: object, of: str) -> None:
    if not isinstance(value, int | float) or not 0 < value < float("inf"):
        raise ValueError(f"{option}={value!r}: give the seconds that {of} may take, above 0")


def _check_token(token: object) -> None:
    # It travels in a header of HTTP. What it is is never shown.
    if token is None or (isinstance(token, str) and token.isascii() and token.isprintable()):
        return
    raise ValueError("token: give a string of printable ASCII characters, without a line feed at its end")
