"""Access: how the client proves itself to a server, and checks the server: TLS and the token.

Decides when files are read again, and that a token is never sent without TLS, except to this machine.
"""

from __future__ import annotations

import os
import ssl
from collections.abc import Sequence
from ipaddress import ip_address

import grpc

from acker_client.errors import Rejected
from acker_client.settings import Settings, Tls, check_token

Metadata = tuple[tuple[str, str], ...]


class ServerAccess:
    """The access to the server at ``address`` (host:port). ``settings``: None for neither TLS nor a token."""

    def __init__(self, address: str, settings: Settings | None) -> None:
        self._address = address
        self._tls = None if settings is None else settings.tls
        self._token = None if settings is None else settings.token
        self._token_file = None if settings is None else settings.token_file
        self._of_tls: tuple[tuple[int, ...], ...] | None = None
        self._of_token: tuple[tuple[int, ...], ...] | None = None

    def new_channel(self, options: Sequence[tuple[str, int]], *, anew: bool = False) -> grpc.Channel | None:
        """Return a channel at the first call, when the files of TLS have changed, and if it is asked for ``anew``; None
        otherwise.

        Files that do not fit each other count as not changed yet, since nobody replaces a certificate and its key in
        one step. At the first call they raise :class:`Rejected`.
        """
        if self._tls is None:
            is_wanted, self._of_tls = anew or self._of_tls is None, ()
            return grpc.insecure_channel(self._address, options) if is_wanted else None
        states = _states(self._tls.paths)
        if states == self._of_tls and not anew:
            return None
        try:
            credentials = _credentials(self._tls)
        except (OSError, ssl.SSLError) as error:
            if self._of_tls is not None:
                return None
            paths = ", ".join(self._tls.paths) or "the content of ca"
            raise Rejected(f"tls: {paths}: {error}; each process reads these files itself") from None
        if states != _states(self._tls.paths) and self._of_tls is not None:
            return None
        self._of_tls = states
        return grpc.secure_channel(self._address, credentials, options)

    def metadata(self) -> Metadata:
        """Return the headers of a call. Raises :class:`Rejected` if there is no token to send, or no safe way to."""
        if self._token is None and self._token_file is None:
            return ()
        if self._tls is None and not _is_loopback(self._address):
            raise Rejected(
                f"{self._address}: the token would be sent unencrypted, so it was not: connect with TLS (tls=, "
                "ACKER_TLS or spark.acker.tls), or leave out the token"
            )
        return (("authorization", f"Bearer {self._read_token()}"),)

    def _read_token(self) -> str | None:
        if self._token_file is None:
            return self._token
        states = _states((self._token_file,))
        if states == self._of_token:
            return self._token
        try:
            token = (_content(self._token_file) or b"").decode().strip()
            if not token:
                raise ValueError("it is empty")
            check_token(token)
        except (OSError, ValueError) as error:
            # A file that is being written is left alone, unless it is the first.
            if self._of_token is not None:
                return self._token
            raise Rejected(f"token_file: {self._token_file}: {error}; each process reads this file itself") from None
        self._token, self._of_token = token, states
        return token


def _content(path: str | None) -> bytes | None:
    if path is None:
        return None
    with open(path, "rb") as file:
        return file.read()


def _credentials(tls: Tls) -> grpc.ChannelCredentials:
    """Read the files. gRPC would not say what is wrong with them, so the standard library reads them first."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    if tls.ca is not None and tls.has_ca_content:
        context.load_verify_locations(cadata=tls.ca)
    elif tls.ca is not None:
        context.load_verify_locations(tls.ca)
    if tls.cert is not None:
        context.load_cert_chain(tls.cert, tls.key)
    ca = tls.ca.encode() if tls.ca is not None and tls.has_ca_content else _content(tls.ca)
    return grpc.ssl_channel_credentials(ca, _content(tls.key), _content(tls.cert))


def _states(paths: Sequence[str]) -> tuple[tuple[int, ...], ...]:
    return tuple(_state(path) for path in paths)


def _state(path: str) -> tuple[int, ...]:
    try:
        found = os.stat(path)
    except OSError:
        return ()
    return found.st_ino, found.st_mtime_ns, found.st_size


def _is_loopback(address: str) -> bool:
    host = address.rpartition(":")[0].strip("[]")
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
