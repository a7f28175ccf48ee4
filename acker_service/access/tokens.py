"""Tokens: the callers that a server knows, from a file of hashed tokens and names of certificates.

Decides what a line of the file means:

    sha256:HEX ROLE[,ROLE] NAME [NAMESPACE]     whoever shows the token with this SHA-256
    certificate:CN ROLE[,ROLE] NAME [NAMESPACE] whoever shows a certificate with this common name, from --tls-client-ca
    namespace NAMESPACE memory=SIZE [max_pending=N] [sources=N] [connections=N]

A namespace has to be declared, so that a typing error makes no new one. Empty lines and lines that begin with # mean
nothing. The file never holds a token itself. Tokens are 256 random bits, so a plain hash is enough: nobody can guess
one from its hash.
"""

from __future__ import annotations

import hashlib
import hmac
import re
import secrets
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from acker_service.access.files import WatchedFiles
from acker_service.access.namespace_lines import check_name, parse_quotas
from acker_service.access.roles import OF_SERVER, Principal, Role
from acker_service.core.quotas import Quotas
from acker_service.process.logs import Log

TOKEN_BYTES = 32
BEARER = "Bearer "
# How often the file is looked at.
LOOK_S = 1.0
_HASH = re.compile("[0-9a-f]{64}")

log = Log("acker.access")


class TokensError(Exception):
    """A file of tokens that cannot be used; the text names the file and the line."""


@dataclass(slots=True)
class KnownCallers:
    """The content of a file: callers by the hashes of their tokens and by the common names of their certificates, and
    the quotas of namespaces by their names."""

    by_hash: dict[str, Principal] = field(default_factory=dict)
    by_certificate: dict[str, Principal] = field(default_factory=dict)
    quotas: dict[str, Quotas] = field(default_factory=dict)


class Tokens:
    """The callers in a file. Thread-safe. ``clock`` is in seconds."""

    def __init__(
        self,
        path: str,
        clock: Callable[[], float],
        set_quotas: Callable[[Mapping[str, Quotas]], object] = lambda quotas: None,
    ) -> None:
        """Read the file. ``set_quotas`` is called with the namespaces each time that the file is read; it raises
        ValueError if they do not fit. Raises :class:`TokensError`."""
        self._path, self._clock, self._set_quotas = path, clock, set_quotas
        self._files = WatchedFiles([path])
        self._lock = threading.Lock()
        self._looked = clock()
        try:
            self._files.have_changed()
            self._callers = self._read()
        except (OSError, ValueError) as error:
            raise TokensError(f"{path}: {_reason(error)}") from None

    def identify(self, authorization: str | None, certificate_names: Sequence[bytes] = ()) -> Principal | None:
        """Return the caller with this header, or with one of these common names; None if it is unknown."""
        self._renew()
        callers = self._callers
        if authorization is None:
            found = (callers.by_certificate.get(name.decode(errors="replace")) for name in certificate_names)
            return next((identity for identity in found if identity is not None), None)
        if not authorization.startswith(BEARER):
            return None
        shown = hash_of(authorization.removeprefix(BEARER))
        identity = None
        # Looks at every line, so that the time tells nothing.
        for hash, each in callers.by_hash.items():
            if hmac.compare_digest(hash, shown):
                identity = each
        return identity

    def _renew(self) -> None:
        now = self._clock()
        if now - self._looked < LOOK_S:
            return
        with self._lock:
            self._looked = now
            try:
                if self._files.have_changed():
                    self._callers = found = self._read()
                    tokens, namespaces = len(found.by_hash), len(found.quotas)
                    log.info("tokens_read", file=self._path, tokens=tokens, namespaces=namespaces)
            except (OSError, ValueError) as error:
                # The system may be able to read the file soon. A wrong content stays wrong until the file changes.
                if not isinstance(error, OSError) or self._files.look_again():
                    log.warning("tokens_not_read", file=self._path, reason=_reason(error))

    def _read(self) -> KnownCallers:
        callers = parse(self._files.read()[0].decode())
        # Comes first, so that nobody is known whose namespace is not.
        self._set_quotas(callers.quotas)
        return callers


def new_token() -> str:
    return secrets.token_urlsafe(TOKEN_BYTES)


def hash_of(token: str) -> str:
    return hashlib.sha256(token.encode()).hexdigest()


def line_of(token: str, roles: Sequence[Role], name: str, namespace: str = "") -> str:
    """Return the line of a file for a token."""
    return f"sha256:{hash_of(token)} {','.join(roles)} {name} {namespace}".rstrip()


def check_line(line: str) -> None:
    """Raise ValueError if no file can have this line of a caller, whichever namespaces the file declares."""
    _, _, caller = _parse_caller(line.split())
    if caller.namespace:
        check_name(caller.namespace)


def parse(text: str) -> KnownCallers:
    """Return the content of a file. Raises ValueError with the number of the line and what is wrong."""
    callers = KnownCallers()
    used: dict[str, int] = {}
    for number, line in enumerate(text.splitlines(), 1):
        words = line.split()
        if not words or words[0].startswith("#"):
            continue
        try:
            if words[0] == "namespace":
                _declare(callers, words)
            else:
                used.setdefault(_add_caller(callers, words).namespace, number)
        except ValueError as error:
            raise ValueError(f"line {number}: {error}") from None
    for namespace, number in used.items():
        if namespace and namespace not in callers.quotas:
            raise ValueError(f"line {number}: no line declares {namespace}: add `namespace {namespace} memory=512MiB`")
    return callers


def _declare(callers: KnownCallers, words: Sequence[str]) -> None:
    name, quotas = parse_quotas(words)
    if name in callers.quotas:
        raise ValueError(f"a second line for namespace {name}; leave one")
    callers.quotas[name] = quotas


def _add_caller(callers: KnownCallers, words: Sequence[str]) -> Principal:
    try:
        kind, value, caller = _parse_caller(words)
    except ValueError as error:
        raise ValueError(f"{error}; `acker token new` writes such a line") from None
    known = callers.by_hash if kind == "sha256" else callers.by_certificate
    if value in known:
        raise ValueError(f"the same {kind} as {known[value].name}; leave one")
    known[value] = caller
    return caller


def _parse_caller(words: Sequence[str]) -> tuple[str, str, Principal]:
    if len(words) not in (3, 4):
        raise ValueError("should be: sha256:HEX ROLE[,ROLE] NAME [NAMESPACE]")
    kind, _, value = words[0].partition(":")
    if kind == "sha256" and not _HASH.fullmatch(value):
        raise ValueError("sha256 should be 64 digits of hex, in lower case")
    if kind not in ("sha256", "certificate") or not value:
        raise ValueError("should begin with sha256: or certificate:")
    unknown = [role for role in words[1].split(",") if role not in set(Role)]
    if unknown:
        raise ValueError(f"{unknown[0]!r} is not a role; the roles are {', '.join(Role)}")
    roles, namespace = frozenset(map(Role, words[1].split(","))), "".join(words[3:])
    if namespace and roles & OF_SERVER:
        role = min(roles & OF_SERVER)
        raise ValueError(f"{role} is a role for the whole server: leave out the namespace, or the role")
    return kind, value, Principal(words[2], roles, namespace)


def _reason(error: Exception) -> str:
    if isinstance(error, UnicodeDecodeError):
        return "not a text in UTF-8"
    return str(getattr(error, "strerror", None) or error)
