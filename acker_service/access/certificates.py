"""Certificates: the server's certificate with its key, and the CAs that the certificates of callers must come from.

Decides which files are served: the newest that fit each other. A certificate and its key are two files, and nobody
replaces both in one step. So files that do not fit are left alone, and the last good ones stay in use.
"""

from __future__ import annotations

import ssl
import threading
from typing import NamedTuple

from acker_service.access.files import WatchedFiles
from acker_service.process.logs import Log

log = Log("acker.access")


class CertificateError(Exception):
    """Certificate files that cannot be used; the text names the files."""


class Pems(NamedTuple):
    """Contents of the files, in PEM. ``client_ca``: None if callers need no certificate."""

    certificate: bytes
    key: bytes
    client_ca: bytes | None


class Certificates:
    """The files of one server. Thread-safe."""

    def __init__(self, certificate: str, key: str, client_ca: str | None) -> None:
        """Read the files. Raises :class:`CertificateError`."""
        self.needs_client_certificate = client_ca is not None
        self._files = WatchedFiles([certificate, key] + ([client_ca] if client_ca else []))
        self._lock = threading.Lock()
        # For HTTP. Its pages need no certificate of the caller, since probes have none.
        self.http = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self.http.minimum_version = ssl.TLSVersion.TLSv1_2
        try:
            self._read()
        except (OSError, ssl.SSLError) as error:
            raise CertificateError(f"{', '.join(self._files.paths)}: {_reason(error)}") from None

    def renew(self) -> Pems:
        """Return the contents to serve now. Reads the files again if they have changed."""
        with self._lock:
            try:
                if self._read():
                    log.info("certificate_read", files=self._files.paths)
            except (OSError, ssl.SSLError) as error:
                # The system may be able to read the files soon. A wrong content stays wrong until a file changes.
                if isinstance(error, ssl.SSLError) or self._files.look_again():
                    log.warning("certificate_not_read", files=self._files.paths, reason=_reason(error))
            return self._pems

    def _read(self) -> bool:
        """Read the files if they have changed, and check that they fit each other. Returns whether they have."""
        was_read = False
        # Repeated, since files that are replaced while they are read may come from different certificates.
        while self._files.have_changed():
            certificate, key, *client_ca = self._files.read()
            paths = self._files.paths
            ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(paths[0], paths[1], password=_no_password)
            if client_ca:
                ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_verify_locations(paths[2])
            self.http.load_cert_chain(paths[0], paths[1], password=_no_password)
            self._pems = Pems(certificate, key, client_ca[0] if client_ca else None)
            was_read = True
        return was_read


def _no_password() -> str:
    # Without it, OpenSSL would ask on the terminal.
    raise ssl.SSLError("the key is encrypted; give one without a passphrase")


def _reason(error: Exception) -> str:
    if isinstance(error, ssl.SSLError):
        reasons = {"KEY_VALUES_MISMATCH": "the key does not belong to the certificate"}
        return reasons.get(error.reason or "", f"not a certificate, key or CA in PEM ({error})")
    return f"{getattr(error, 'filename', None) or ''}: {getattr(error, 'strerror', None) or error}".removeprefix(": ")
