"""Roles: which callers may make which call. Pure.

Decides the role that a call or a page needs. A caller without the role gets the same answer whatever the server holds,
so the answer tells nothing about sources and roots.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Role(StrEnum):
    """What a caller may do."""

    CLIENT = "client"  # open sources, emit, ack and fail
    OPERATOR = "operator"  # see the state of the servers, and drain them
    SCRAPER = "scraper"  # read metrics


@dataclass(frozen=True, slots=True)
class Principal:
    """A caller that the server knows. ``name``: a session belongs to the name that opened it. ``namespace``: "" for the
    default one."""

    name: str
    roles: frozenset[Role]
    namespace: str = ""


_ALL_BUT_SCRAPERS = frozenset({Role.CLIENT, Role.OPERATOR})
_CLIENTS = frozenset({Role.CLIENT})
# These concern the whole server, so no caller of a namespace has them.
OF_SERVER = frozenset({Role.OPERATOR, Role.SCRAPER})

# By the names of the .proto, and by the paths of pages. What is not listed needs an operator.
NEEDED: dict[str, frozenset[Role]] = {
    "Hello": _ALL_BUT_SCRAPERS,
    "View": _ALL_BUT_SCRAPERS,
    "Apply": _CLIENTS,
    "OpenBatch": _CLIENTS,
    "Settle": _CLIENTS,
    "Watch": _CLIENTS,
    "Pins": _CLIENTS,
    "Stats": OF_SERVER,
    "/metrics": OF_SERVER,
}
# Whoever probes a server has no token.
OPEN = frozenset({"/livez", "/readyz"})
UNKNOWN = "the server does not know this caller: send a token of its --tokens file, as `authorization: Bearer ...`"


class AccessDenied(Exception):
    """A call that its caller may not make. ``is_known``: the caller is known, but it lacks the role, or another caller
    has opened the session."""

    def __init__(self, sentence: str, *, is_known: bool) -> None:
        super().__init__(sentence)
        self.is_known = is_known


def check(call: str, caller: Principal | None) -> None:
    """Raise :class:`AccessDenied` unless ``caller`` may make this call. None: an unknown caller. Not for ``OPEN``."""
    if caller is None:
        raise AccessDenied(UNKNOWN, is_known=False)
    needed = NEEDED.get(call, frozenset({Role.OPERATOR}))
    if not needed & caller.roles:
        roles = " or ".join(sorted(needed))
        raise AccessDenied(
            f"{call} needs the role {roles}: give {caller.name} the role, or use another token", is_known=True
        )
