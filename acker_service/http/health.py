"""Health: whether the server on this machine is ready. Container health checks run it as ``acker health``.

Decides where the server is: at the address in its ready file, or, without a ready file, at the address of its options.
So the check finds the server's ports however they were set. Uses no proxy.
"""

from __future__ import annotations

import json
import socket
import ssl
from http.client import HTTPConnection, HTTPException, HTTPSConnection
from pathlib import Path

from acker_service.config import Config, is_everywhere

TIMEOUT_S = 5.0
USAGE = """Usage: acker health [options of acker serve]

Asks the server that was started with the same options and environment whether it is ready. Exits with status 0 if it
is, with 1 and a line that says why if not. With --ready-file (ACKER_READY_FILE) it finds a server whatever its other
options are, and needs none of them."""

_Place = tuple[str, int]


class NotReady(Exception):
    """No server is ready; the text says which address was tried and what happened."""


def check(options: Config) -> str:
    """Return the address of a ready server. Raises :class:`NotReady`.

    A server without an HTTP port counts as ready if its port for calls accepts a connection.
    """
    return _check(*(_from_file(Path(options.ready_file)) if options.ready_file else _from_options(options)))


def check_ready_file(path: str) -> str:
    """Return the address of the ready server that has written this file. Raises :class:`NotReady`."""
    return _check(*_from_file(Path(path)))


def _check(calls: _Place, http: _Place | None, tls: bool) -> str:
    try:
        if http is not None:
            _ask(http, tls)
        else:
            socket.create_connection(calls, TIMEOUT_S).close()
    except (OSError, HTTPException) as error:
        raise NotReady(f"no server answers at {_shown(http or calls)} ({error})") from None
    return _shown(http or calls)


def _from_file(path: Path) -> tuple[_Place, _Place | None, bool]:
    try:
        fields = json.loads(path.read_text())
        http = _parse_address(fields["http_address"]) if fields["http_address"] else None
        return _parse_address(fields["address"]), http, bool(fields["http_tls"])
    except OSError as error:
        raise NotReady(f"--ready-file {path}: no server has written it yet ({error})") from None
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise NotReady(f"--ready-file {path} is not the ready file of a server ({error!r})") from None


def _from_options(options: Config) -> tuple[_Place, _Place | None, bool]:
    if 0 in (options.port, options.http_port):
        raise NotReady("a server on free ports can be found only by its --ready-file; give both the same one")
    http = None if options.http_port is None else (_near(options.host), options.http_port)
    return (_near(options.host), options.port), http, options.tls_cert is not None


def _parse_address(address: str) -> _Place:
    host, _, port = address.rpartition(":")
    return _near(host), int(port)


def _near(host: str) -> str:
    """Return the host at which this machine reaches a server that listens at ``host``."""
    host = host.strip("[]")
    if is_everywhere(host):
        return "::1" if ":" in host else "127.0.0.1"
    return host


def _shown(place: _Place) -> str:
    host, port = place
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _ask(place: _Place, tls: bool) -> None:
    # Not verified: the certificate is for the name that clients use, and the server is on this machine.
    context = ssl._create_unverified_context() if tls else None
    connection = (
        HTTPSConnection(*place, timeout=TIMEOUT_S, context=context)
        if tls
        else HTTPConnection(*place, timeout=TIMEOUT_S)
    )
    try:
        connection.request("GET", "/readyz")
        reply = connection.getresponse()
        said = reply.read().decode(errors="replace").strip()
    finally:
        connection.close()
    if reply.status != 200:
        raise NotReady(f"the server at {_shown(place)} is not ready: {said}")
