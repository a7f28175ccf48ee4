"""Tokens: the callers that a server knows, from a file of hashed tokens and names of certificates.

Decides what a line of the file means:

    sha256:HEX ROLE[,ROLE] NAME     whoever shows the token with this SHA-256
    certificate:CN ROLE[,ROLE] NAME whoever shows a certificate with this common name, from --tls-client-ca

Empty lines and lines that begin with # mean nothing. The file never holds a token itself. Tokens are 256 random bits,
so a plain hash is enough: nobody can guess one from its hash.
"""

from __future__ import annotations

import hashlib
import hmac
import re
import secrets
import threading
from collections.abc import Callable, Sequence

from acker_service.access.files import WatchedFiles
from acker_service.access.roles import Principal, Role
from acker_service.process.logs import Log

TOKEN_BYTES = 32
BEARER = "Bearer "
# How often the file is looked at.
LOOK_S = 1.0
_HASH = re.compile("[0-9a-f]{64}")

log = Log("acker.access")


class TokensError(Exception):
    """A file of tokens that cannot be used; the text names the file and the line."""


class Tokens:
    """The callers in a file. Thread-safe. ``clock`` is in seconds."""

    def __init__(self, path: str, clock: Callable[[], float]) -> None:
        """Read the file. Raises :class:`TokensError`."""
        self._path, self._clock = path, clock
        self._files = WatchedFiles([path])
        self._lock = threading.Lock()
        self._looked = clock()
        try:
            self._files.have_changed()
            self._by_hash, self._by_certificate = self._read()
        except (OSError, ValueError) as error:
            raise TokensError(f"{path}: {_reason(error)}") from None

    def identify(self, authorization: str | None, certificate_names: Sequence[bytes] = ()) -> Principal | None:
        """Return the caller with this header, or with one of these common names; None if it is unknown."""
        self._renew()
        if authorization is None:
            found = (self._by_certificate.get(name.decode(errors="replace")) for name in certificate_names)
            return next((identity for identity in found if identity is not None), None)
        if not authorization.startswith(BEARER):
            return None
        shown = hash_of(authorization.removeprefix(BEARER))
        identity = None
        # Looks at every line, so that the time tells nothing.
        for hash, each in self._by_hash.items():
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
                    self._by_hash, self._by_certificate = self._read()
                    log.info("tokens_read", file=self._path, tokens=len(self._by_hash))
            except (OSError, ValueError) as error:
                log.warning("tokens_not_read", file=self._path, reason=_reason(error))

    def _read(self) -> tuple[dict[str, Principal], dict[str, Principal]]:
        return parse(self._files.read()[0].decode())


def new_token() -> str:
    return secrets.token_urlsafe(TOKEN_BYTES)


def hash_of(token: str) -> str:
    return hashlib.sha256(token.encode()).hexdigest()


def line_of(token: str, roles: Sequence[Role], name: str) -> str:
    """Return the line of a file for a token."""
    return f"sha256:{hash_of(token)} {','.join(roles)} {name}"


def parse(text: str) -> tuple[dict[str, Principal], dict[str, Principal]]:
    """Return the callers by the hashes of their tokens, and by the common names of their certificates.

    Raises ValueError with the number of the line and what is wrong.
    """
    by_hash: dict[str, Principal] = {}
    by_certificate: dict[str, Principal] = {}
    for number, line in enumerate(text.splitlines(), 1):
        words = line.split()
        if not words or words[0].startswith("#"):
            continue
        try:
            kind, value, identity = _parse_line(words)
        except ValueError as error:
            raise ValueError(f"line {number}: {error}; `acker token new` writes such a line") from None
        known = by_hash if kind == "sha256" else by_certificate
        if value in known:
            raise ValueError(f"line {number}: the same {kind} as {known[value].name}; leave one")
        known[value] = identity
    return by_hash, by_certificate


def _parse_line(words: Sequence[str]) -> tuple[str, str, Principal]:
    if len(words) != 3:
        raise ValueError("should be: sha256:HEX ROLE[,ROLE] NAME")
    kind, _, value = words[0].partition(":")
    if kind == "sha256" and not _HASH.fullmatch(value):
        raise ValueError("sha256 should be 64 digits of hex, in lower case")
    if kind not in ("sha256", "certificate") or not value:
        raise ValueError("should begin with sha256: or certificate:")
    unknown = [role for role in words[1].split(",") if role not in set(Role)]
    if unknown:
        raise ValueError(f"{unknown[0]!r} is not a role; the roles are {', '.join(Role)}")
    return kind, value, Principal(words[2], frozenset(map(Role, words[1].split(","))))


def _reason(error: Exception) -> str:
    if isinstance(error, UnicodeDecodeError):
        return "not a text in UTF-8"
    return str(getattr(error, "strerror", None) or error)
