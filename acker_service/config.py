"""Config: the server's options, from flags and environment.

Declares each option once, as a field of :class:`Config` with its kind, default, help and range. Flags win over the
environment, which wins over defaults. A :class:`Config` that exists is valid. Opens no file and no socket.
"""

from __future__ import annotations

import dataclasses
import difflib
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from ipaddress import IPv4Address, IPv6Address, ip_address
from typing import Any, NamedTuple

from acker_service.core import memory
from acker_service.core.memory import Bounds

PREFIX = "ACKER_"
# Clients on the same machine read these; a server ignores them.
OF_CLIENTS = frozenset(
    {
        "ACKER_SERVERS",
        "ACKER_ACCESS_FILE",
        "ACKER_TOKEN",
        "ACKER_TOKEN_FILE",
        "ACKER_TLS",
        "ACKER_CA",
        "ACKER_CERT",
        "ACKER_KEY",
    }
)
# Kubernetes gives every pod such variables for a Service called `acker` or `acker-prod`,
# ACKER_PROD_PORT=tcp://10.0.0.7:7070 among them.
OF_KUBERNETES = re.compile(r"ACKER_(\w+_)?(SERVICE_(HOST|PORT(_\w+)?)|PORT_\d+_(TCP|UDP)(_\w+)?)")
KUBERNETES_PORT = re.compile(r"ACKER_(\w+_)?PORT=(tcp|udp)://.*")

_SWITCHES = {"true": True, "1": True, "yes": True, "false": False, "0": False, "no": False}
_UNITS = {"": 1, "kib": 1 << 10, "mib": 1 << 20, "gib": 1 << 30}


class ConfigError(ValueError):
    """An option that cannot be used; the text names it, as flag and as variable, and says what to do."""


class _Kind(NamedTuple):
    """How a text becomes a value. ``read`` raises ValueError or KeyError. ``shape``: the words after "should be" in an
    error."""

    read: Callable[[str], Any]
    shape: str

    def __call__(
        self, default: Any, help: str, low: float | None = None, high: float | None = None, shown: str = "off"
    ) -> Any:
        """Return a field of :class:`Config`: an option of this kind. Its value is None, or from ``low`` to ``high``.
        ``shown``: the default in words, if it is None or False."""
        metadata = {**self._asdict(), "help": help, "low": low, "high": high, "shown": shown}
        return field(default=default, metadata=metadata)


def size_of(text: str) -> int:
    """Return the bytes of a size such as 16MiB. Raises ValueError or KeyError."""
    match = re.fullmatch(r"([\d_]+)\s*([a-z]*)", text.strip().lower())
    if match is None:
        raise ValueError(text)
    return int(match[1]) * _UNITS[match[2]]


def _address(text: str, port_min: int = 0) -> str | None:
    if not text:
        return None
    host, _, port = text.rpartition(":")
    if not (host and port_min <= int(port) < 1 << 16):
        raise ValueError(text)
    if {":", "[", "]"} & set(host):
        # Clients need the brackets. Kubernetes gives the address of a pod without them.
        host = f"[{IPv6Address(host[1:-1] if host[0] + host[-1] == '[]' else host)}]"
    return f"{_name(host)}:{port}"


def _addresses(text: str) -> str | None:
    for address in text.partition("/")[0].split(",") if text else ():
        _address(address or ":", 1)
    return text or None


def _user(text: str) -> str | None:
    if text and not all(text.partition(":")[::2]):
        raise ValueError(text)
    return text or None


def _name(text: str) -> str:
    if not text.strip():
        raise ValueError(text)
    # A ValueError if no machine can have this name.
    text.encode("idna")
    return text.strip()


def _one_of(*choices: str) -> _Kind:
    return _Kind(lambda text: choices[choices.index(text.lower())], " or ".join(choices))


_NAME = _Kind(_name, "a name or an address")
# int takes 1_000_000 too.
_WHOLE = _Kind(int, "a whole number")
_WHOLE_OR_OFF = _Kind(lambda text: None if text.lower() == "off" else int(text), "a whole number or 'off'")
_SIZE = _Kind(size_of, "a size such as 16MiB")
_SECONDS = _Kind(float, "seconds")
_SWITCH = _Kind(lambda text: _SWITCHES[text.lower()], "true or false")
_PATH = _Kind(lambda text: text or None, "a path")
_DIRECTORY = _Kind(lambda text: text or None, "a directory")
_ADDRESS = _Kind(_address, "host:port")
_ADDRESSES = _Kind(_addresses, "host:port,host:port/chroot")
_USER = _Kind(_user, "user:password")


@dataclass(frozen=True, slots=True, kw_only=True)
class Config:
    """Every option of the server. A field's name gives its flag and its variable: ``http_port``, ``--http-port``,
    ``ACKER_HTTP_PORT``. Sizes are in bytes, times in seconds, None is off."""

    host: str = _NAME("127.0.0.1", "Address to listen on, for calls and for HTTP.")
    port: int = _WHOLE(7070, "Port for calls (gRPC); 0 takes a free one.", 0, 65535)
    http_port: int | None = _WHOLE_OR_OFF(
        7071, "Port for /metrics, /livez and /readyz; 0 takes a free one, 'off' has none.", 0, 65535
    )
    tls_cert: str | None = _PATH(
        None, "Certificate chain of this server (PEM); calls and HTTP then use TLS. Read again when the file changes."
    )
    tls_key: str | None = _PATH(None, "The key of that certificate (PEM).")
    tls_client_ca: str | None = _PATH(
        None, "CA certificates (PEM); for a call, the caller then needs a certificate from one of these CAs."
    )
    tokens: str | None = _PATH(
        None,
        "File of the callers' hashed tokens, see `acker token`, and of namespaces; a caller then needs a token. Read "
        "again when it changes.",
    )
    own_access: str | None = _DIRECTORY(
        None,
        "Private directory in which the server makes a certificate and a token for itself, and access.json for its "
        "clients; for one application, instead of --tls-cert and --tokens. Pages of HTTP are then open.",
    )
    insecure: bool = _SWITCH(False, "Listen without TLS even where other machines can connect.")
    zookeeper: str | None = _ADDRESSES(
        None, "Servers of ZooKeeper and the chroot of this server's cluster; off: it knows of no other server."
    )
    id: int | None = _WHOLE(
        None, "Id of this server, unique in its cluster: 0, 1, 2 ...; required with --zookeeper, otherwise 0.", 0, 1023
    )
    advertise: str | None = _ADDRESS(
        None, "Where clients reach this server; port 0 stands for the port for calls; off: where it listens."
    )
    advertise_unchecked: bool = _SWITCH(
        False,
        "Start even if this server cannot reach itself at --advertise, as behind some NATs.",
    )
    zookeeper_session_s: float = _SECONDS(
        10.0,
        "Timeout of the ZooKeeper session; at the start, how long to wait for ZooKeeper.",
        0.5,
        600,
    )
    zookeeper_digest: str | None = _USER(
        None, "Credentials for ZooKeeper, as user:password; only this user may then read or change the server's nodes."
    )
    zookeeper_ca: str | None = _PATH(None, "CA certificates to verify ZooKeeper with; connections then use TLS.")
    zookeeper_cert: str | None = _PATH(None, "This server's certificate for ZooKeeper.")
    zookeeper_key: str | None = _PATH(None, "The key of that certificate.")
    away_s: float = _SECONDS(
        60.0, "How long clients wait for this server after a planned stop with --state-dir.", 0, 86_400
    )
    max_memory: int | None = _SIZE(
        None,
        "Memory of the server, from which all its bounds follow; over it, new work is answered OVERLOADED.",
        384 << 20,
        1 << 42,
        shown="3/4 of the container's limit, or half of the machine's memory",
    )
    max_pending: int | None = _WHOLE(
        None,
        "Most roots pending at once; beyond it new roots are answered OVERLOADED.",
        1,
        2_000_000_000,
        shown="from --max-memory",
    )
    max_pending_per_source: int | None = _WHOLE_OR_OFF(
        None, "Most roots pending at once for one source.", 1, 2_000_000_000
    )
    max_message_bytes: int = _SIZE(
        16 << 20, "Largest request; larger ones are refused before they are read.", 64 << 10, 1 << 30
    )
    sequence_window: int = _WHOLE(64, "How many sequences of a plain client are remembered against retries.", 1, 4096)
    orphan_timeout_s: float = _SECONDS(
        600.0, "How long acks and fails of a root that was never initialised are kept.", 1, 86_400
    )
    memory_s: float = _SECONDS(600.0, "How long identities of reports and settled batches are remembered.", 1, 1e6)
    max_identity_bytes: int | None = _SIZE(
        None,
        "Memory for those identities, some 575 bytes each; beyond it the oldest are forgotten early.",
        1 << 20,
        1 << 40,
        shown="from --max-memory",
    )
    max_lease_s: float = _SECONDS(3600.0, "Longest lease that a source may ask for.", 1, 1e6)
    state_dir: str | None = _DIRECTORY(
        None, "Where the state is kept over a planned restart; without it a restart starts empty."
    )
    discard_state: bool = _SWITCH(False, "Start empty, and put aside a state in --state-dir.")
    workers: int = _WHOLE(2, "Threads that take reports.", 1, 1024)
    receive_s: float = _SECONDS(
        10.0, "How long the request of a call may take to arrive; then the call is cancelled.", 0.1, 3600
    )
    send_s: float = _SECONDS(
        10.0, "How long a client may take to read the reply of a call; then the call is cancelled.", 0.1, 3600
    )
    max_calls_per_connection: int = _WHOLE(
        128, "Most calls under way at once on one connection; gRPC clients queue further ones.", 1, 65536
    )
    max_connections: int = _WHOLE(
        10_000, "Most connections for calls; further ones are closed at once (from grpcio 1.68 or so on).", 1, 1_000_000
    )
    max_watches: int = _WHOLE(256, "Most watches that wait at once; beyond it a watch is answered at once.", 1, 8192)
    linger_s: float = _SECONDS(
        0.004, "How long a watch with outcomes waits for more of them before it is answered.", 0, 1
    )
    grace_s: float = _SECONDS(5.0, "How long calls under way may take to finish at a stop.", 0, 3600)
    drain_s: float = _SECONDS(
        600.0, "How long a draining server waits for its batches and roots to end, before it stops.", 0, 1e6
    )
    stay_drained: bool = _SWITCH(
        False,
        "After a drain, stay until SIGTERM, neither ready nor reachable for calls, instead of ending; for supervisors "
        "that start again whatever ends, as Kubernetes does.",
    )
    reflection: bool = _SWITCH(False, "Offer gRPC reflection (for grpcurl and the like).")
    until_stdin_ends: bool = _SWITCH(
        False,
        "End at once when standard input ends, as it does when the process that started the server is gone; "
        "--own-access is then removed.",
    )
    ready_file: str | None = _PATH(None, "File to write once serving: JSON with address, http_address and pid.")
    log_format: str = _one_of("text", "json")("text", "How log lines look.")
    log_level: str = _one_of("debug", "info", "warning", "error")("info", "Least severe lines to log.")

    def __post_init__(self) -> None:
        for option in OPTIONS:
            _check(option, getattr(self, option.name))
        if self.advertise is not None:
            object.__setattr__(self, "advertise", _address(self.advertise))
        if self.discard_state and self.state_dir is None:
            raise ConfigError(
                f"{label('discard_state')}: there is no state to discard without --state-dir; name that too"
            )
        self._check_access()
        self._check_cluster()
        self._check_memory()

    @property
    def memory_bytes(self) -> int:
        """The memory of the server. Without ``max_memory``, a number that is the same on every machine."""
        return memory.DEFAULT_BYTES if self.max_memory is None else self.max_memory

    @property
    def bounds(self) -> Bounds:
        """The bounds that follow from the memory, and those that were given."""
        return memory.bounds_of(self.memory_bytes, self.max_pending, self.max_identity_bytes)

    @property
    def max_unread_bytes(self) -> int:
        """The most bytes of replies that their clients have not read yet."""
        return self.bounds.max_unread_bytes

    def _check_memory(self) -> None:
        try:
            bounds = self.bounds
        except memory.DoesNotFit as error:
            given = [label(name) for name in ("max_pending", "max_identity_bytes") if getattr(self, name) is not None]
            raise ConfigError(
                f"{' and '.join(given)}: needs {_mebibytes(error.needed_bytes)} of memory with the rest of the server, "
                f"and {flag('max_memory')} is {_mebibytes(self.memory_bytes)}; ask for less, or give "
                f"{label('max_memory')} as much and the container a third more"
            ) from None
        assert bounds.needed_bytes <= self.memory_bytes

    def _check_access(self) -> None:
        if (self.tls_cert is None) != (self.tls_key is None):
            raise ConfigError(f"{label('tls_cert')}: goes with --tls-key; give both or neither")
        if self.tls_client_ca is not None and self.tls_cert is None:
            raise ConfigError(f"{label('tls_client_ca')}: callers show certificates only with TLS; give --tls-cert too")
        if self.own_access is not None:
            self._check_own_access()
        has_tls = self.tls_cert is not None or self.own_access is not None
        if not has_tls and not self.insecure and not is_loopback(self.host):
            raise ConfigError(
                f"{label('host')}: other machines reach {self.host}, and without TLS they can read and change calls: "
                "give --tls-cert and --tls-key, or --own-access, or --insecure if you trust everybody on that network"
            )

    def _check_own_access(self) -> None:
        for name in ("tls_cert", "tls_client_ca", "tokens", "zookeeper"):
            if getattr(self, name) is not None:
                raise ConfigError(
                    f"{label('own_access')}: is for one server and one application, and makes the certificate and the "
                    f"token itself: leave out {flag(name)}, or --own-access"
                )
        if self.advertise is None and is_everywhere(self.host):
            raise ConfigError(
                f"{label('advertise')}: needed with --own-access where --host is {self.host}, at which no client "
                "reaches this server; give host:port"
            )

    def _check_cluster(self) -> None:
        if self.zookeeper is None:
            return
        if self.id is None:
            raise ConfigError(
                f"{label('id')}: needed with --zookeeper; number the servers of a cluster 0, 1, 2 ..., each its own"
            )
        if self.advertise is None and is_everywhere(self.host):
            raise ConfigError(
                f"{label('advertise')}: needed with --zookeeper where --host is {self.host}, at which no client "
                "reaches this server; give host:port"
            )
        if (self.zookeeper_cert is None) != (self.zookeeper_key is None):
            raise ConfigError(f"{label('zookeeper_cert')}: goes with --zookeeper-key; give both or neither")
        if self.zookeeper_cert is not None and self.zookeeper_ca is None:
            raise ConfigError(f"{label('zookeeper_ca')}: needed with --zookeeper-cert, to know ZooKeeper by")


OPTIONS: tuple[dataclasses.Field[Any], ...] = dataclasses.fields(Config)
_BY_NAME = {option.name: option for option in OPTIONS}


def is_loopback(host: str) -> bool:
    """Whether only this machine reaches ``host``, an IP address or a name."""
    address = _ip_address(host)
    return host == "localhost" if address is None else address.is_loopback


def is_everywhere(host: str) -> bool:
    """Whether a server at ``host`` listens on all addresses. No client can connect to such a host."""
    address = _ip_address(host)
    return address is not None and address.is_unspecified


def _ip_address(host: str) -> IPv4Address | IPv6Address | None:
    """Return the IP address that ``host`` is, with or without brackets; None for a name."""
    try:
        return ip_address(host.strip("[]"))
    except ValueError:
        return None


def flag(name: str) -> str:
    """``http_port`` -> ``--http-port``."""
    return "--" + name.replace("_", "-")


def variable(name: str) -> str:
    """``http_port`` -> ``ACKER_HTTP_PORT``."""
    return PREFIX + name.upper()


def label(name: str) -> str:
    """Return the name of an option for errors: its flag and its variable."""
    return f"{flag(name)} ({variable(name)})"


def read(arguments: Sequence[str], environment: Mapping[str, str], max_memory: int | None = None) -> Config:
    """Return the Config of these command line arguments and environment. ``max_memory``: if they do not name it.

    Raises :class:`ConfigError`.
    """
    texts = _from_environment(environment) | _from_arguments(arguments)
    values = {name: _value(_BY_NAME[name], text) for name, text in texts.items()}
    if "max_memory" not in values and max_memory is not None:
        _check_default_memory(max_memory)
    return Config(**{"max_memory": max_memory, **values})


def ready_file(arguments: Sequence[str], environment: Mapping[str, str]) -> str | None:
    """Return the ready file that is named, or None. Reads no other option, as only the server needs their values.

    Raises :class:`ConfigError` if an option does not exist.
    """
    return (_from_environment(environment) | _from_arguments(arguments)).get("ready_file") or None


def usage() -> str:
    """Return the table of options as text, for ``--help``."""
    lines = [
        "Usage: acker serve [options]",
        "",
        "Serves until SIGTERM or SIGINT. Each option may also be given in the environment.",
        "",
    ]
    for option in OPTIONS:
        takes = "" if isinstance(option.default, bool) else " " + option.metadata["shape"].removeprefix("a ")
        lines += [
            f"  {flag(option.name)}{takes}",
            f"      {option.metadata['help']} [{variable(option.name)}, default {shown(option)}]",
        ]
    return "\n".join(lines)


def _from_arguments(arguments: Sequence[str]) -> dict[str, str]:
    texts: dict[str, str] = {}
    left = list(arguments)
    while left:
        word, has_value, text = left.pop(0).partition("=")
        if not word.startswith("-"):
            raise ConfigError(f"{word}: not an option; `acker serve` takes options only, like --port 7070")
        option = _BY_NAME.get(word.removeprefix("--").replace("-", "_")) if word.startswith("--") else None
        if option is None:
            raise ConfigError(
                f"{word}: no such option{_nearest(word, map(flag, _BY_NAME))}; `acker serve --help` lists them all"
            )
        if not has_value and isinstance(option.default, bool):
            text = "true"
        elif not has_value:
            if not left or left[0].startswith("--"):
                raise ConfigError(f"{label(option.name)}: has no value; it should be {option.metadata['shape']}")
            text = left.pop(0)
        if option.name in texts:
            raise ConfigError(f"{flag(option.name)}: given twice; leave one")
        texts[option.name] = text
    return texts


def _from_environment(environment: Mapping[str, str]) -> dict[str, str]:
    texts: dict[str, str] = {}
    for key, text in environment.items():
        if not key.startswith(PREFIX) or key in OF_CLIENTS or OF_KUBERNETES.fullmatch(key):
            continue
        if KUBERNETES_PORT.fullmatch(f"{key}={text}"):
            continue
        name = key.removeprefix(PREFIX).lower()
        if name not in _BY_NAME:
            raise ConfigError(f"{key}: no such option{_nearest(key, map(variable, _BY_NAME))}; correct it or unset it")
        texts[name] = text
    return texts


def _value(option: dataclasses.Field[Any], text: str) -> Any:
    try:
        return option.metadata["read"](text)
    except (ValueError, KeyError):
        raise ConfigError(f"{label(option.name)}: {text!r} should be {option.metadata['shape']}") from None


def _check(option: dataclasses.Field[Any], value: Any) -> None:
    if isinstance(value, str):
        # Checked here too, because a Config may also be built in code.
        _value(option, value)
    low, high = option.metadata["low"], option.metadata["high"]
    if None not in (value, low) and not low <= value <= high:
        is_size = option.metadata["shape"] == _SIZE.shape
        given, least, most = map(_size_text, (value, low, high)) if is_size else (str(value), f"{low:,}", f"{high:,}")
        shape = "a size" if is_size else option.metadata["shape"]
        raise ConfigError(f"{label(option.name)}: {given} is outside {least} to {most}; choose {shape} within")


def _check_default_memory(max_memory: int) -> None:
    needed = _BY_NAME["max_memory"].metadata["low"]
    if max_memory < needed:
        raise ConfigError(
            f"a server needs {_mebibytes(needed)}, and takes {_mebibytes(max_memory)} here: by default three quarters "
            "of the container's limit, or half of the machine's memory. Give the container "
            f"{_mebibytes(needed * 4 // 3)} or more, or give {label('max_memory')}"
        )


def shown(option: dataclasses.Field[Any]) -> str:
    """Return the default of an option in words."""
    return str(option.metadata["shown"] if option.default in (None, False) else option.default)


def _size_text(size: int) -> str:
    """Return a size in the largest unit of which it is a multiple."""
    for unit, factor in (("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)):
        if size and size % factor == 0:
            return f"{size // factor}{unit}"
    return str(size)


def _mebibytes(size: int) -> str:
    return f"{-(-size >> 20)}MiB"


def _nearest(word: str, known: Iterable[str]) -> str:
    close = difflib.get_close_matches(word, list(known), n=1, cutoff=0.6)
    return f"; the nearest is {close[0]}" if close else ""
