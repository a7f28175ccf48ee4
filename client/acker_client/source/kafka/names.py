"""The user's options for brokers, topics and settings, with their checks, and the names of partitions. Pure.

Decides which settings of librdkafka only the source may set, and which topics the user's options select. A partition's
name is ``topic/0``; topic names contain no slash.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, NamedTuple

# Settings that only the source may set, each with the reason or the option to use.
OWN_SETTINGS = {
    "bootstrap.servers": "give it as bootstrap_servers",
    "group.id": "give it as group_id",
    "group.instance.id": "no source joins a group of Kafka's",
    "group.protocol": "no source joins a group of Kafka's",
    "group.remote.assignor": "no source joins a group of Kafka's",
    "partition.assignment.strategy": "no source joins a group of Kafka's",
    "enable.auto.commit": "an offset is committed when all that came of its record is done",
    "enable.auto.offset.store": "an offset is committed when all that came of its record is done",
    "auto.commit.interval.ms": "an offset is committed when all that came of its record is done",
    "auto.offset.reset": "give first_poll",
    "enable.partition.eof": "the source watches for ends itself",
}
SettingValue = str | int | float | bool


class At(NamedTuple):
    """A partition of a topic."""

    topic: str
    number: int

    @property
    def name(self) -> str:
        """The partition's name, like ``orders/0``."""
        return f"{self.topic}/{self.number}"

    @classmethod
    def named(cls, name: str) -> At:
        """Parse a name. Raises ``ValueError``."""
        topic, slash, number = name.rpartition("/")
        if not (topic and slash and number.isdecimal()):
            raise ValueError(f"{name!r} is no partition of a topic, like 'orders/0'")
        return cls(topic, int(number))


@dataclass(frozen=True, slots=True)
class KafkaConnection:
    """How to reach Kafka. ``config``: checked settings of librdkafka, left out of ``repr`` because of passwords."""

    servers: str
    group: str
    config: tuple[tuple[str, SettingValue], ...] = field(default=(), repr=False)
    timeout_s: float = 60.0

    @classmethod
    def of(
        cls, servers: str | Iterable[str], group: str, config: Mapping[str, Any] | None, timeout_s: float
    ) -> KafkaConnection:
        """Check the options. Raises ``ValueError`` with the setting and what to do."""
        together = servers if isinstance(servers, str) else ",".join(map(str, servers))
        if not together.strip():
            raise ValueError("bootstrap_servers: name a broker, like bootstrap_servers='localhost:9092'")
        if not isinstance(group, str) or not group.strip():
            raise ValueError(f"group_id={group!r}: give the name under which offsets are committed to Kafka")
        if not 0 < timeout_s < float("inf"):
            raise ValueError(f"timeout_s={timeout_s}: give seconds, above 0")
        settings = dict(config or {})
        for key, value in settings.items():
            if key in OWN_SETTINGS:
                raise ValueError(f"config: {key} is the source's own: {OWN_SETTINGS[key]}")
            if not isinstance(value, SettingValue):
                raise ValueError(
                    f"config: {key} is a {type(value).__name__}: give text or a number, which can be sent to executors"
                    " (for tokens, sasl.oauthbearer.method=oidc)"
                )
        return cls(together, group, tuple(sorted(settings.items())), timeout_s)

    def check_acks(self) -> None:
        """Raise ``ValueError`` if a producer with this config does not wait for all in-sync replicas."""
        acks = [setting for name, setting in self.config if name in ("acks", "request.required.acks")]
        if any(setting not in ("all", -1, "-1") for setting in acks):
            raise ValueError("config: acks must be 'all', so that all in-sync replicas have a message; leave it out")

    @property
    def settings(self) -> dict[str, Any]:
        return {"bootstrap.servers": self.servers, **dict(self.config)}


@dataclass(frozen=True, slots=True)
class Topics:
    """Topics by name, or all topics whose whole name matches ``pattern``."""

    names: tuple[str, ...] = ()
    pattern: str = ""

    @classmethod
    def of(cls, names: str | Iterable[str] | None, pattern: str | None) -> Topics:
        """Check the options. Raises ``ValueError`` for neither, both, or an invalid pattern."""
        if (names is None) == (pattern is None):
            raise ValueError(
                "Kafka: give either topics, like Kafka('orders', ...), or a pattern, like pattern='orders-.*'"
            )
        if pattern is not None:
            try:
                re.compile(pattern)
            except re.error as error:
                raise ValueError(f"pattern={pattern!r} is no regular expression: {error}") from None
            return cls(pattern=pattern)
        given = (names,) if isinstance(names, str) else tuple(names or ())
        if not given or not all(isinstance(name, str) and name for name in given):
            raise ValueError(f"topics={names!r}: name a topic, or several")
        return cls(tuple(dict.fromkeys(given)))

    def fits(self, name: str) -> bool:
        """Whether a topic is selected. A pattern never matches Kafka's internal topics (``__consumer_offsets``)."""
        if self.names:
            return name in self.names
        return not name.startswith("__") and re.fullmatch(self.pattern, name) is not None

    def __str__(self) -> str:
        return f"/{self.pattern}/" if self.pattern else ", ".join(self.names)


def milliseconds(moment: datetime) -> int:
    """Return Unix milliseconds. Raises ``ValueError`` for a time without a zone."""
    if moment.tzinfo is None:
        raise ValueError(f"{moment!r} has no zone: give one, like datetime(2026, 1, 31, tzinfo=UTC)")
    return int(moment.timestamp() * 1000)
