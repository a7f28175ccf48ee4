"""Settings: what a client needs to know to reach its server. Frozen and picklable; this is what travels to executors.

Decides the defaults and what a valid option is. Never holds a channel, a session or anything else of one process.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from acker_client.pins import Pin
from acker_protocol.placement import IDS, REPLICAS_MAX, SPREAD

DEFAULT_PORT = 7070
SERVERS_VARIABLE = "ACKER_SERVERS"
ACCESS_FILE_VARIABLE = "ACKER_ACCESS_FILE"
TOKEN_VARIABLE = "ACKER_TOKEN"
TOKEN_FILE_VARIABLE = "ACKER_TOKEN_FILE"
TLS_VARIABLE = "ACKER_TLS"
# The fields of Tls, and their variables.
TLS_FILE_VARIABLES = {"ca": "ACKER_CA", "cert": "ACKER_CERT", "key": "ACKER_KEY"}

# A host's name or IPv4 address, or an IPv6 address in brackets.
_ADDRESS = re.compile(r"(?P<host>[A-Za-z0-9._-]+|\[[0-9A-Fa-f:.]+(%[A-Za-z0-9._-]+)?\])(:(?P<port>[0-9]{1,5}))?")
_WRITE = f"write host:port, like 'localhost:{DEFAULT_PORT}'"


OnUnreachable = Literal["fail", "continue"]


@dataclass(frozen=True, slots=True)
class Tls:
    """TLS to the servers. The fields are paths of PEM files. Each process reads them, and again when they change.

    ``ca``: CAs that the servers' certificates must come from; None: the CAs that come with gRPC. It may also be the
    content of such a file, which then travels with the settings. ``cert`` and ``key``: the client's own certificate,
    for servers that ask for one (``--tls-client-ca``).
    """

    ca: str | None = None
    cert: str | None = None
    key: str | None = None

    def __post_init__(self) -> None:
        if (self.cert is None) != (self.key is None):
            raise ValueError("tls: cert and key belong together: give the paths of both, or of neither")
        if self.key is not None and _is_pem(self.key):
            raise ValueError("tls: key: give the path of a file; settings travel, and a key must not")

    def __repr__(self) -> str:
        ca = "<PEM>" if self.has_ca_content else self.ca
        return f"Tls(ca={ca!r}, cert={self.cert!r}, key={self.key!r})"

    @property
    def has_ca_content(self) -> bool:
        """Whether ``ca`` is not a path, but the content of a file."""
        return self.ca is not None and _is_pem(self.ca)

    @property
    def paths(self) -> tuple[str, ...]:
        """The files, in the order ca, key, cert; without those that are None."""
        ca = None if self.has_ca_content else self.ca
        return tuple(path for path in (ca, self.key, self.cert) if path is not None)


@dataclass(frozen=True, slots=True)
class Settings:
    """How to reach the server, and how long to try.

    ``servers``: addresses ``host:port``. Without ZooKeeper this is the list of all servers, each with its own id. With
    ZooKeeper some of them are enough, because each server knows all others. ``token``: bearer token, or None.
    ``token_file``: a file with the token instead, which each process reads, and reads again when it changes. ``tls``:
    :class:`Tls`, or True for ``Tls()``; None connects without TLS, and then sends a token only to this machine.
    ``budget_s``: how long one flush, report, open or settle may take, retries included. ``call_timeout_s``: a call
    without an answer for this time counts as lost and is sent again. ``on_unreachable``: what to do with a report when
    its budget is spent. "fail" raises. "continue" counts it, logs once and goes on, which is safe and costs replays.
    For some reports the client raises anyway, because their source could not notice the loss: reports for a source that
    the client has joined, and reports with a fail without an edge. ``buffer_entries``: roots that a plain client folds
    before a flush.

    ``replicas``: number of servers that hold each root (None: two if there are two, else one). ``spread``: maximum
    number of servers that hold a batch. ``replica_wait_s``: how long to wait for one server while another answers.
    ``gone_after_s``: without ZooKeeper, a server that was silent for this long is gone. With a ZooKeeper that has lost
    its data, servers have this long to register again. ``pins``: where the roots of batches live, as the client that
    opened the batch decided. ``tracking``: False for the tasks of a source with tracking off. They report nothing, so
    there are no servers.
    """

    servers: tuple[str, ...]
    token: str | None = field(default=None, repr=False)
    token_file: str | None = None
    tls: Tls | None = None
    budget_s: float = 60.0
    on_unreachable: OnUnreachable = "fail"
    call_timeout_s: float = 10.0
    buffer_entries: int = 65_536
    replicas: int | None = None
    spread: int = SPREAD
    replica_wait_s: float = 10.0
    gone_after_s: float = 15.0
    # Not compared, because settings that differ only in their pins share one client.
    pins: tuple[Pin, ...] = field(default=(), repr=False, compare=False)
    tracking: bool = True

    def __post_init__(self) -> None:
        object.__setattr__(self, "servers", addresses(self.servers) if self.tracking else ())
        object.__setattr__(self, "tls", _tls(self.tls))
        check_token(self.token)
        if self.token is not None and self.token_file is not None:
            raise ValueError("token and token_file: give one of them")
        _check_seconds("budget_s", self.budget_s, "a report")
        _check_seconds("call_timeout_s", self.call_timeout_s, "a call")
        _check_seconds("replica_wait_s", self.replica_wait_s, "the answer of one replica")
        _check_seconds("gone_after_s", self.gone_after_s, "the silence of a server")
        _check_members(self.replicas, self.spread)
        if self.on_unreachable not in ("fail", "continue"):
            raise ValueError(f"on_unreachable={self.on_unreachable!r}: give 'fail' or 'continue'")
        if not isinstance(self.buffer_entries, int) or self.buffer_entries < 1:
            raise ValueError(f"buffer_entries={self.buffer_entries!r}: give a whole number of roots, at least 1")

    @classmethod
    def from_environment(cls, environ: Mapping[str, str] = os.environ) -> Settings:
        """Return settings from ``ACKER_ACCESS_FILE``, or else from ``ACKER_SERVERS``, ``ACKER_TOKEN``,
        ``ACKER_TOKEN_FILE``, ``ACKER_TLS``, ``ACKER_CA``, ``ACKER_CERT`` and ``ACKER_KEY``. Raises ValueError if no
        server is named."""
        servers, file = environ.get(SERVERS_VARIABLE, "").strip(), environ.get(ACCESS_FILE_VARIABLE)
        if servers and file:
            raise ValueError(
                f"{SERVERS_VARIABLE} and {ACCESS_FILE_VARIABLE}: the file names the servers; give one of them"
            )
        if file:
            return cls.from_access_file(file)
        if not servers:
            raise ValueError(
                f"no acker server is named: pass AckerClient('host:{DEFAULT_PORT}') or set {SERVERS_VARIABLE}; "
                "`acker serve` starts a server"
            )
        return cls(addresses(servers), **access_from(environ))

    @classmethod
    def from_access_file(cls, path: str | Path, **more: Any) -> Settings:
        """Return settings from the file ``access.json`` of a server with ``--own-access``, and ``more`` settings.

        The settings hold the server's token and its certificate, because executors have no such file. The server keeps
        both when it restarts. Raises ValueError if the file cannot be used."""
        return cls(**read_access_file(path), **more)


def read_access_file(path: str | Path) -> dict[str, Any]:
    """Return the settings ``servers``, ``token`` and ``tls`` from the access file of a server. Raises ValueError."""
    try:
        found = json.loads(Path(path).read_text())
        return {"servers": addresses(found["servers"]), "token": found["token"], "tls": Tls(ca=found["ca"])}
    except OSError as error:
        why = f"{error.strerror}; a server writes it once it serves, and only its own user may read it"
    except (ValueError, KeyError, TypeError):
        why = "is not the access.json of a server with --own-access"
    # Not from the error, which would show what is in the file.
    raise ValueError(f"access file {path}: {why}")


def access_from(environ: Mapping[str, str]) -> dict[str, Any]:
    """Return the settings ``token``, ``token_file`` and ``tls`` from the environment."""
    files = {name: environ.get(variable) or None for name, variable in TLS_FILE_VARIABLES.items()}
    return {
        "token": environ.get(TOKEN_VARIABLE) or None,
        "token_file": environ.get(TOKEN_FILE_VARIABLE) or None,
        "tls": tls_of(environ.get(TLS_VARIABLE), files, TLS_VARIABLE),
    }


def tls_of(switch: str | None, files: Mapping[str, str | None], name: str) -> Tls | None:
    """Return TLS from texts. ``switch``: "true", "false" or nothing, under ``name``; a file alone turns TLS on."""
    if switch and switch.lower() not in ("true", "false"):
        raise ValueError(f"{name}={switch!r}: give true or false")
    if not any(files.values()):
        return Tls() if switch and switch.lower() == "true" else None
    if switch and switch.lower() == "false":
        raise ValueError(f"{name}=false, but files for TLS are named too: leave out one or the other")
    return Tls(**files)


def addresses(servers: str | Iterable[str]) -> tuple[str, ...]:
    """Parse 'a:7070,b' or a sequence of addresses (default port: 7070). Raises ValueError for none, or a bad one."""
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


def _check_members(replicas: object, spread: object) -> None:
    if replicas is not None and (type(replicas) is not int or not 1 <= replicas <= REPLICAS_MAX):
        raise ValueError(f"replicas={replicas!r}: give how many servers each root lives on, 1 to {REPLICAS_MAX}")
    if type(spread) is not int or not (replicas or 1) <= spread <= IDS:
        raise ValueError(f"spread={spread!r}: give on how many servers a batch lives at most, {replicas or 1} to {IDS}")


def _tls(tls: object) -> Tls | None:
    if tls is True:
        return Tls()
    if tls is None or tls is False or isinstance(tls, Tls):
        return tls or None
    raise ValueError(f"tls={tls!r}: give True or Tls(ca=..., cert=..., key=...)")


def _is_pem(text: str) -> bool:
    return text.lstrip().startswith("-----BEGIN ")


def check_token(token: object) -> None:
    """Raise ValueError unless ``token`` is None or can be sent in a header."""
    # The token is sent in an HTTP header. The error must not show it.
    if token is None or (isinstance(token, str) and token.isascii() and token.isprintable()):
        return
    raise ValueError("token: give a string of printable ASCII characters, without a line feed at its end")
