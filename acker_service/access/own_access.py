"""Own access: the certificate and the token that a server makes for itself, for the clients of one application.

Decides what is in the directory of ``--own-access``:

    tls.crt, tls.key   a self-signed certificate and its key
    tokens             the line of the token, as in any file of tokens
    token              the token
    access.json        what clients need; written when the server serves

Decides when access that is there is used again. A server that crashes and starts again keeps it, because tasks that run
have it, and could not get another.
"""

from __future__ import annotations

import contextlib
import json
import os
import stat
from collections.abc import Collection
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from ipaddress import ip_address
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from acker_service.access import tokens
from acker_service.access.roles import Role
from acker_service.process.logs import Log

ACCESS, TOKEN, TOKENS, CERTIFICATE, KEY = "access.json", "token", "tokens", "tls.crt", "tls.key"
NAMES = (ACCESS, TOKEN, TOKENS, CERTIFICATE, KEY)

# Nobody but the server's own application has the certificate, so it lasts as long as the directory does.
VALID = timedelta(days=3650)
# A certificate that ends earlier is not used again.
LEFT = timedelta(days=365)
# Other machines' clocks may be behind.
SKEW = timedelta(days=1)
# These always lead to this machine.
LOOPBACK = ("localhost", "127.0.0.1", "::1")
# The file of tokens and the log have this name of a caller.
CALLER = "own-access"

log = Log("acker.access")


@dataclass(frozen=True, slots=True)
class OwnAccess:
    """Access in a directory. ``directory`` is private."""

    directory: Path

    @property
    def certificate(self) -> str:
        return str(self.directory / CERTIFICATE)

    @property
    def key(self) -> str:
        return str(self.directory / KEY)

    @property
    def tokens(self) -> str:
        return str(self.directory / TOKENS)

    def publish(self, advertised: str, address: str, http_address: str | None) -> None:
        """Write what clients need. ``advertised``: where they reach the server; ``address`` and ``http_address``: where
        it listens. Raises OSError."""
        fields = {
            "servers": [advertised],
            "address": address,
            "http_address": http_address,
            "token": (self.directory / TOKEN).read_text().strip(),
            "ca": (self.directory / CERTIFICATE).read_text(),
        }
        _write(self.directory / ACCESS, json.dumps(fields, indent=1).encode() + b"\n")


def prepare(directory: Path, hosts: Collection[str]) -> OwnAccess:
    """Return the access in ``directory``, which is made if it is not there. The certificate names ``hosts``, by which
    clients reach the server. Raises OSError, whose text names the file."""
    names = {_general_name(host) for host in (*hosts, *LOOPBACK)}
    directory.mkdir(mode=0o700, parents=True, exist_ok=True)
    _check_private(directory)
    is_kept = _suits(directory, names)
    if not is_kept:
        _make(directory, names)
    log.info("own_access", directory=str(directory), is_kept=is_kept)
    return OwnAccess(directory)


def remove(directory: Path) -> None:
    """Remove the access, and the directory if nothing else is in it. Raises no error."""
    for name in NAMES:
        with contextlib.suppress(OSError):
            (directory / name).unlink()
    with contextlib.suppress(OSError):
        directory.rmdir()


def _check_private(directory: Path) -> None:
    found = directory.stat()
    if found.st_uid != os.geteuid() or stat.S_IMODE(found.st_mode) & 0o022:
        raise OSError(
            f"{directory}: other users may write there, and could replace the server's key: name a directory that does "
            f"not exist yet, or make this one your own: chmod 700 {directory}"
        )


def _suits(directory: Path, names: Collection[x509.GeneralName]) -> bool:
    """Return whether complete access for these names is there."""
    try:
        certificate = x509.load_pem_x509_certificate((directory / CERTIFICATE).read_bytes())
        key = serialization.load_pem_private_key((directory / KEY).read_bytes(), None)
        token = (directory / TOKEN).read_text().strip()
        known = (directory / TOKENS).read_text()
        named = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except (OSError, ValueError, TypeError, x509.ExtensionNotFound):
        return False
    return (
        certificate.public_key() == key.public_key()
        and tokens.hash_of(token) in known
        and set(named) >= set(names)
        and certificate.not_valid_after_utc > datetime.now(UTC) + LEFT
    )


def _make(directory: Path, names: Collection[x509.GeneralName]) -> None:
    key = ec.generate_private_key(ec.SECP256R1())
    token = tokens.new_token()
    line = tokens.line_of(token, [Role.CLIENT, Role.OPERATOR], CALLER)
    # The token comes last: without it, the next start makes everything anew.
    _write(directory / TOKEN, b"")
    _write(
        directory / KEY,
        key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()),
    )
    _write(directory / CERTIFICATE, _self_signed(key, names).public_bytes(serialization.Encoding.PEM))
    _write(directory / TOKENS, f"{line}\n".encode())
    _write(directory / TOKEN, f"{token}\n".encode())


def _self_signed(key: ec.EllipticCurvePrivateKey, names: Collection[x509.GeneralName]) -> x509.Certificate:
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "acker")])
    now = datetime.now(UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - SKEW)
        .not_valid_after(now + VALID)
        .add_extension(x509.SubjectAlternativeName(names), critical=False)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        .sign(key, hashes.SHA256())
    )


def _general_name(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ip_address(host))
    except ValueError:
        return x509.DNSName(host.encode("idna").decode())


def _write(path: Path, content: bytes) -> None:
    """Write a file that only this user can read. A reader finds the old content or the new one."""
    temporary = path.with_name(path.name + ".tmp")
    temporary.unlink(missing_ok=True)
    with open(temporary, "xb", opener=lambda name, flags: os.open(name, flags, 0o600)) as file:
        file.write(content)
    temporary.replace(path)
