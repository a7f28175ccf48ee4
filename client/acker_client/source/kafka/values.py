"""Values: the formats of values whose schema is in a schema registry, as the user gives them, and as slices carry them.

Decides that the user declares the columns, and a record has to fit them. The schemas of writers may change: what the
columns do not name is ignored, and what they name and a record lacks is null. Can be imported without confluent-kafka;
``decoder`` reads the values.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar
from urllib.parse import urlsplit

import pyarrow as pa

from acker_client.source.decoding.fitting import fit_of
from acker_client.source.kafka.names import SettingValue

# Settings of the library's client that only the source may set, each with the reason.
OWN_SETTINGS = {
    "url": "give it as registry",
    "max.retries": "the source waits for the registry itself, up to its timeout_s",
    "retries.wait.ms": "the source waits for the registry itself, up to its timeout_s",
    "retries.max.wait.ms": "the source waits for the registry itself, up to its timeout_s",
}


@dataclass(frozen=True, slots=True)
class RegistryConnection:
    """How to reach a schema registry. ``config``: checked settings of confluent-kafka's client."""

    url: str = field(repr=False)
    config: tuple[tuple[str, Any], ...] = field(default=(), repr=False)
    timeout_s: float = 60.0

    @property
    def shown_url(self) -> str:
        """The address without user and password, for logs and errors."""
        return ",".join(
            urlsplit(url)._replace(netloc=urlsplit(url).netloc.rpartition("@")[2]).geturl()
            for url in self.url.split(",")
        )


@dataclass(frozen=True, slots=True)
class Decoding:
    """How slices decode values. ``kind``: "avro", "json" or "protobuf"; ``type``: the struct that a value becomes;
    ``reader``: the reader's schema of Avro, or the message class of Protobuf."""

    kind: str
    type: pa.DataType
    registry: RegistryConnection
    reader: Any = None


@dataclass(frozen=True)
class RegisteredValues:
    """Values of Kafka records that were written with a schema of a schema registry.

    ``schema``: the columns that the value becomes, as ``"sku string, qty int NOT NULL"`` or a ``StructType``. Fields
    that it does not name are ignored. Fields that a record lacks are null; if they are NOT NULL, the record fails.
    ``registry``: the URL of the registry, or several, with commas. ``config``: settings of confluent-kafka's
    ``SchemaRegistryClient`` (``basic.auth.user.info``, ``ssl.ca.location`` and so on).
    """

    schema: Any
    registry: str = field(repr=False)
    config: Mapping[str, Any] | None = field(default=None, repr=False)

    kind: ClassVar[str] = ""

    def __post_init__(self) -> None:
        if not (isinstance(self.registry, str) and self.registry.startswith(("http://", "https://", "mock://"))):
            raise ValueError(f"registry={self.registry!r}: give the URL, like registry='http://localhost:8081'")
        for key, value in (self.config or {}).items():
            if key in OWN_SETTINGS:
                raise ValueError(f"config of the schema registry: {key} is the source's own: {OWN_SETTINGS[key]}")
            if not isinstance(value, SettingValue):
                raise ValueError(
                    f"config of the schema registry: {key} is a {type(value).__name__}: give text or a number, which"
                    " can be sent to executors"
                )

    def decoding(self, columns: pa.Schema, timeout_s: float) -> Decoding:
        """Return the picklable form. ``columns``: ``schema`` as Arrow's. Raises ``ValueError`` for a column type that
        no value can have."""
        type_ = pa.struct(list(columns))
        fit_of(type_)
        connection = RegistryConnection(self.registry, tuple(sorted((self.config or {}).items())), timeout_s)
        return Decoding(self.kind, type_, connection, self._reader)

    @property
    def _reader(self) -> Any:
        return None


@dataclass(frozen=True)
class Avro(RegisteredValues):
    """Avro values. ``reader_schema``: Avro's own schema text, in whose terms values are read: its names, aliases and
    defaults. Without it, values are read with the schema that wrote them. For the others see ``RegisteredValues``."""

    reader_schema: str | None = None

    kind = "avro"

    @property
    def _reader(self) -> Any:
        return self.reader_schema


@dataclass(frozen=True)
class JsonSchema(RegisteredValues):
    """JSON values, each checked against the JSON Schema that wrote it. For the options see ``RegisteredValues``."""

    kind = "json"


@dataclass(frozen=True)
class Protobuf(RegisteredValues):
    """Protobuf values. ``message``: the class that protoc has generated, which executors must be able to import. A
    value of another message type, or with a field whose type has changed, fails. For the others see
    ``RegisteredValues``."""

    message: Any = None

    kind = "protobuf"

    def __post_init__(self) -> None:
        super().__post_init__()
        if not hasattr(self.message, "DESCRIPTOR"):
            raise ValueError(f"Protobuf(message={self.message!r}): give the class that protoc generated, like Order")

    @property
    def _reader(self) -> Any:
        return self.message
