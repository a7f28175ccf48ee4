"""Config: the server's options, from flags and environment, checked once.

Decides which options there are (one table), how a value is read and which range it has. Flags win over the environment,
the environment wins over defaults. Opens nothing and reads nothing but its arguments; whoever gets a :class:`Config`
need not check it again.
"""

from __future__ import annotations

import dataclasses
import difflib
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

PREFIX = "ACKER_"
# Clients on the same machine read these; a server ignores them.
OF_CLIENTS = frozenset({"ACKER_SERVERS", "ACKER_TOKEN"})
# Kubernetes gives every pod such variables for a Service called `acker`, ACKER_PORT=tcp://10.0.0.7:7070 among them.
OF_KUBERNETES = re.compile(r"ACKER_(SERVICE_(HOST|PORT(_\w+)?)|PORT_\d+_(TCP|UDP)(_\w+)?)")
KUBERNETES_PORT = re.compile(r"(tcp|udp)://")

# Listened at, and no address at which anybody is reached.
EVERYWHERE = frozenset({"0.0.0.0", "::", "[::]"})

_UNITS = {"": 1, "kib": 1 << 10, "mib": 1 << 20, "gib": 1 << 30}


class ConfigError(ValueError):
    """An option that cannot be used; the text names it, as flag and as variable, and says what to do."""


def _whole(text: str) -> int:
    return int(text.replace("_", ""))


def _size(text: str) -> int:
    match = re.fullmatch(r"([\d_]+)\s*([a-z]*)", text.strip().lower())
    if match is None:
        raise ValueError(text)
    return _whole(match[1]) * _UNITS[match[2]]


def _or_off(read: Callable[[str], int]) -> Callable[[str], int | None]:
    return lambda text: None if text.lower() == "off" else read(text)


def _text(text: str) -> str | None:
    return text or None


def _place(text: str) -> str | None:
    if not text:
        return None
    host, _, port = text.rpartition(":")
    if not host or not 0 < _whole(port) < 1 << 16:
        raise ValueError(text)
    return text


def _places(text: str) -> str | None:
    for place in text.partition("/")[0].split(",") if text else ():
        _place(place or ":")
    return text or None


def _user(text: str) -> str | None:
    if text and not all(text.partition(":")[::2]):
        raise ValueError(text)
    return text or None


def _switch(text: str) -> bool:
    return {"true": True, "1": True, "yes": True, "false": False, "0": False, "no": False}[text.lower()]


def _name(text: str) -> str:
    if not text.strip():
        raise ValueError(text)
    return text.strip()


def _option(
    default: Any,
    read: Callable[[str], Any],
    shape: str,
    help: str,
    *,
    low: float | None = None,
    high: float | None = None,
    choices: tuple[str, ...] = (),
) -> Any:
    """A field of :class:`Config`: one row of the table of options. ``shape`` completes "should be"."""
    row = {"read": read, "shape": shape, "help": help, "low": low, "high": high, "choices": choices}
    return field(default=default, metadata=row)


@dataclass(frozen=True, slots=True, kw_only=True)
class Config:
    """Every option of the server. A field's name gives its flag and its variable: ``http_port``, ``--http-port``,
    ``ACKER_HTTP_PORT``. Sizes are in bytes, times in seconds, None is off."""

    host: str = _option("127.0.0.1", _name, "a name or an address", "Address to listen on, for calls and for HTTP.")
    port: int = _option(7070, _whole, "a whole number", "Port for calls (gRPC); 0 takes a free one.", low=0, high=65535)
    http_port: int | None = _option(
        7071,
        _or_off(_whole),
        "a whole number or 'off'",
        "Port for /metrics, /livez and /readyz; 0 takes a free one, 'off' has none.",
        low=0,
        high=65535,
    )
    zookeeper: str | None = _option(
        None,
        _places,
        "host:port,host:port/chroot",
        "Servers of ZooKeeper and the chroot of this server's cluster; off: it knows of no other server.",
    )
    id: int | None = _option(
        None,
        _whole,
        "a whole number",
        "Number of this server in its cluster: 0, 1, 2 ...; needed with --zookeeper, else 0.",
        low=0,
        high=1023,
    )
    advertise: str | None = _option(
        None,
        _place,
        "host:port",
        "Where clients reach this server; off: where it listens.",
    )
    advertise_unchecked: bool = _option(
        False,
        _switch,
        "true or false",
        "Start also where this server does not reach itself at --advertise, as behind a NAT that does not lead back.",
    )
    zookeeper_session_s: float = _option(
        10.0,
        float,
        "seconds",
        "How long ZooKeeper believes a silent server to be there; at the start, how long to wait for ZooKeeper.",
        low=0.5,
        high=600,
    )
    zookeeper_digest: str | None = _option(
        None,
        _user,
        "user:password",
        "Who this server is to ZooKeeper, as user:password; then nobody else may read or change its nodes.",
    )
    zookeeper_ca: str | None = _option(
        None, _text, "a path", "CA certificates that ZooKeeper's own has to be signed by; with it, TLS is used."
    )
    zookeeper_cert: str | None = _option(None, _text, "a path", "This server's certificate for ZooKeeper.")
    zookeeper_key: str | None = _option(None, _text, "a path", "The key of that certificate.")
    away_s: float = _option(
        60.0,
        float,
        "seconds",
        "How long clients wait for this server after a planned stop with --state-dir.",
        low=0,
        high=86_400,
    )
    max_pending: int = _option(
        20_000_000,
        _whole,
        "a whole number",
        "Most roots pending at once; beyond it new roots are answered OVERLOADED.",
        low=1,
        high=2_000_000_000,
    )
    max_pending_per_source: int | None = _option(
        None,
        _or_off(_whole),
        "a whole number or 'off'",
        "Most roots pending at once for one source.",
        low=1,
        high=2_000_000_000,
    )
    max_message_bytes: int = _option(
        16 << 20,
        _size,
        "a size such as 16MiB",
        "Largest request; larger ones are refused before they are read.",
        low=64 << 10,
        high=1 << 30,
    )
    sequence_window: int = _option(
        64,
        _whole,
        "a whole number",
        "How many sequences of a plain client are remembered against retries.",
        low=1,
        high=4096,
    )
    orphan_timeout_s: float = _option(
        600.0,
        float,
        "seconds",
        "How long acks and fails of a root that was never initialised are kept.",
        low=1,
        high=1e6,
    )
    memory_s: float = _option(
        600.0, float, "seconds", "How long identities of reports and settled batches are remembered.", low=1, high=1e6
    )
    max_identity_bytes: int = _option(
        512 << 20,
        _size,
        "a size such as 512MiB",
        "Memory for those identities, some 525 bytes each; beyond it the oldest are forgotten early.",
        low=1 << 20,
        high=1 << 40,
    )
    max_lease_s: float = _option(3600.0, float, "seconds", "Longest lease that a source may ask for.", low=1, high=1e6)
    state_dir: str | None = _option(
        None, _text, "a directory", "Where the state is kept over a planned restart; without it a restart starts empty."
    )
    discard_state: bool = _option(
        False, _switch, "true or false", "Start empty and put aside whatever state lies in --state-dir."
    )
    workers: int = _option(
        2,
        _whole,
        "a whole number",
        "Threads that take reports.",
        low=1,
        high=1024,
    )
    receive_s: float = _option(
        10.0,
        float,
        "seconds",
        "How long the request of a call may take to arrive; then the call is cancelled.",
        low=0.1,
        high=3600,
    )
    max_calls_per_connection: int = _option(
        128,
        _whole,
        "a whole number",
        "Most calls under way at once on one connection; gRPC clients keep further ones to themselves.",
        low=1,
        high=65536,
    )
    max_connections: int = _option(
        10_000,
        _whole,
        "a whole number",
        "Most connections for calls; further ones are closed at once (from grpcio 1.68 or so on).",
        low=1,
        high=1_000_000,
    )
    max_watches: int = _option(
        256,
        _whole,
        "a whole number",
        "Most watches that wait at once; beyond it a watch is answered at once.",
        low=1,
        high=8192,
    )
    linger_s: float = _option(
        0.004,
        float,
        "seconds",
        "How long a watch with outcomes waits for more of them before it is answered.",
        low=0,
        high=1,
    )
    grace_s: float = _option(
        5.0, float, "seconds", "How long calls under way may take to finish at a stop.", low=0, high=3600
    )
    drain_s: float = _option(
        600.0,
        float,
        "seconds",
        "How long a server that was asked to drain waits for the end of what it has, before it stops.",
        low=0,
        high=1e6,
    )
    reflection: bool = _option(False, _switch, "true or false", "Offer gRPC reflection (for grpcurl and the like).")
    ready_file: str | None = _option(
        None, _text, "a path", "File to write once serving: JSON with address, http_address and pid."
    )
    log_format: str = _option("text", str.lower, "", "How log lines look.", choices=("text", "json"))
    log_level: str = _option(
        "info", str.lower, "", "Least severe lines to log.", choices=("debug", "info", "warning", "error")
    )

    def __post_init__(self) -> None:
        for option in OPTIONS:
            _check(option, getattr(self, option.name))
        if self.discard_state and self.state_dir is None:
            raise ConfigError(
                f"{label('discard_state')}: there is no state to discard without --state-dir; name that too"
            )
        self._check_cluster()

    def _check_cluster(self) -> None:
        if self.zookeeper is None:
            return
        if self.id is None:
            raise ConfigError(
                f"{label('id')}: needed with --zookeeper; number the servers of a cluster 0, 1, 2 ..., each its own"
            )
        if self.advertise is None and self.host in EVERYWHERE:
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


def flag(name: str) -> str:
    """``http_port`` -> ``--http-port``."""
    return "--" + name.replace("_", "-")


def variable(name: str) -> str:
    """``http_port`` -> ``ACKER_HTTP_PORT``."""
    return PREFIX + name.upper()


def label(name: str) -> str:
    """How errors name an option: by its flag and its variable."""
    return f"{flag(name)} ({variable(name)})"


def read(arguments: Sequence[str], environment: Mapping[str, str]) -> Config:
    """Config from command line arguments and environment. Raises :class:`ConfigError`."""
    texts = _from_environment(environment) | _from_arguments(arguments)
    return Config(**{name: _value(_BY_NAME[name], text) for name, text in texts.items()})


def usage() -> str:
    """The table of options as text, for ``--help``."""
    lines = [
        "Usage: acker serve [options]",
        "",
        "Serves until SIGTERM or SIGINT. Each option may also be given in the environment.",
        "",
    ]
    for option in OPTIONS:
        takes = "" if option.metadata["read"] is _switch else " " + (_shape(option).removeprefix("a "))
        lines += [
            f"  {flag(option.name)}{takes}",
            f"      {option.metadata['help']} [{variable(option.name)}, default {_shown(option)}]",
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
        if not has_value and option.metadata["read"] is _switch:
            text = "true"
        elif not has_value:
            if not left or left[0].startswith("--"):
                raise ConfigError(f"{label(option.name)}: has no value; it should be {_shape(option)}")
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
        if key == "ACKER_PORT" and KUBERNETES_PORT.match(text):
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
        raise ConfigError(f"{label(option.name)}: {text!r} should be {_shape(option)}") from None


def _check(option: dataclasses.Field[Any], value: Any) -> None:
    low, high, choices = (option.metadata[key] for key in ("low", "high", "choices"))
    if choices and value not in choices:
        raise ConfigError(f"{label(option.name)}: {value!r} should be {_shape(option)}")
    if value is not None and low is not None and not low <= value <= high:
        raise ConfigError(
            f"{label(option.name)}: {value} is outside {low:,} to {high:,}; choose {_shape(option)} within"
        )


def _shape(option: dataclasses.Field[Any]) -> str:
    return option.metadata["shape"] or " or ".join(option.metadata["choices"])


def _shown(option: dataclasses.Field[Any]) -> str:
    return "off" if option.default in (None, False) else str(option.default)


def _nearest(word: str, known: Iterable[str]) -> str:
    close = difflib.get_close_matches(word, list(known), n=1, cutoff=0.6)
    return f"; the nearest is {close[0]}" if close else ""
