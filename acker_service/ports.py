"""Ports: why a server cannot listen at an address.

Decides the error of an address or port that cannot be bound. To find the reason, this module tries to bind a port
there, and closes it at once.
"""

from __future__ import annotations

from acker_service import config
from acker_service.http.server import HttpServer


class StartError(Exception):
    """The server cannot start; the text says what to do."""


def check_host(host: str) -> None:
    """Raise :class:`StartError` if this machine cannot listen on ``host``."""
    try:
        HttpServer(host, 0, {}).stop()
    except OSError as error:
        raise StartError(
            f"{config.label('host')}: {host}: {(error.strerror or str(error)).lower()}. "
            "Give an address or a name of this machine; 0.0.0.0 listens on all of its addresses"
        ) from None


def port_error(name: str, host: str, port: int) -> StartError:
    """Return the error for a port that cannot be bound. gRPC gives no reason, so this tries to bind the port itself."""
    reason = "it cannot be bound"
    try:
        HttpServer(host, port, {}).stop()
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
    return StartError(
        f"{config.label(name)}: {address(host, port)}: {reason}. "
        f"Stop the process that uses the port, or choose another with {config.flag(name)} (0 takes a free one)"
    )


def address(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host and not host.startswith("[") else f"{host}:{port}"
