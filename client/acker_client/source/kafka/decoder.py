"""Decoder: values as columns, read by confluent-kafka's deserialisers.

Decides what is the fault of a record (it does not decode, it does not fit its columns, the registry has no such schema)
and what is not: a registry that does not answer, or refuses to, fails the task instead.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import Any

import pyarrow as pa

from acker_client.error_text import shorten
from acker_client.extras import missing
from acker_client.source.decoding.fitting import Misfit, fit_of, fitted_column
from acker_client.source.errors import SourceError
from acker_client.source.kafka.protobuf import message_name, plain_message
from acker_client.source.kafka.schema_registry import SchemaRegistry, library, registry_of
from acker_client.source.kafka.values import Decoding

NOT_FOUND = 404
# Reads one value in a context of the library.
Read = Callable[[bytes, Any], Any]


class Decoder:
    """Decodes values into the columns that the user has declared."""

    def __init__(self, decoding: Decoding, registry: SchemaRegistry) -> None:
        self.registry = registry
        self._type = decoding.type
        self._fit = fit_of(decoding.type)
        self._kind = decoding.kind
        self._errors = library().SchemaRegistryError
        try:
            self._read = READERS[decoding.kind](decoding, registry)
        except (ImportError, SourceError):
            raise
        except Exception as error:  # noqa: BLE001  # the library parses the reader's schema here
            raise SourceError(f"values: reader_schema cannot be read ({shorten(error)})") from None

    def decode(
        self, topic: str, values: Sequence[bytes | None], headers: Sequence[Any]
    ) -> tuple[pa.Array, dict[int, str]]:
        """Return the values as structs, null where there is no value or it does not decode, and why by the index of
        the value. Raises ``SourceError`` if no record is at fault."""
        found: list[Any] = []
        bad: dict[int, str] = {}
        for index, value in enumerate(values):
            try:
                found.append(None if value is None else self._read(value, _context(topic, headers[index])))
            except SourceError:
                raise
            except self._errors as error:
                if error.http_status_code != NOT_FOUND:
                    raise self.registry.refusal(error) from None
                bad[index] = f"the schema registry has no schema for it ({shorten(error)})"
                found.append(None)
            except Misfit as error:
                bad[index] = f"value{error.where}: {error.text}" if error.where else error.text
                found.append(None)
            except Exception as error:  # noqa: BLE001  # bytes of any kind may raise anything
                bad[index] = shorten(error)
                found.append(None)
        column, misfits = fitted_column(found, self._type, self._fit)
        reasons = bad | {index: f"value.{why.lstrip('.')}" for index, why in misfits.items()}
        return column, {index: f"the value does not decode as {self._kind}: {why}" for index, why in reasons.items()}


def deserializer(kind: str) -> Any:
    """Import a deserialiser of the library. Raises ``ImportError`` with the extra to install."""
    try:
        if kind == "avro":
            from confluent_kafka.schema_registry.avro import AvroDeserializer

            return AvroDeserializer
        if kind == "json":
            from confluent_kafka.schema_registry.json_schema import JSONDeserializer

            return JSONDeserializer
        from confluent_kafka.schema_registry.protobuf import ProtobufDeserializer
    except ImportError as error:
        raise missing("acker_client.source.Kafka with values=", "schema-registry", error) from error
    return ProtobufDeserializer


def _context(topic: str, headers: Any) -> Any:
    from confluent_kafka.serialization import MessageField, SerializationContext

    return SerializationContext(topic, MessageField.VALUE, headers or [])


def _settings() -> dict[str, Any]:
    # The library's default asks the registry for the subject of each topic.
    return {"subject.name.strategy": library().topic_subject_name_strategy}


def _avro(decoding: Decoding, registry: SchemaRegistry) -> Read:
    read: Read = deserializer("avro")(registry, decoding.reader, conf=_settings())
    return read


def _json(decoding: Decoding, registry: SchemaRegistry) -> Read:
    read: Read = deserializer("json")(None, schema_registry_client=registry, conf=_settings())
    return read


def _protobuf(decoding: Decoding, registry: SchemaRegistry) -> Read:
    # Schemas by their ids and the place of the message in them: the names of the messages.
    names: dict[Any, str] = {}
    wanted = decoding.reader.DESCRIPTOR.full_name

    def take_schema_id(data: bytes, context: Any, schema_id: Any) -> Any:
        payload = library().dual_schema_id_deserializer(data, context, schema_id)
        key = schema_id.id, schema_id.guid, tuple(schema_id.message_indexes or (0,))
        if key not in names:
            names[key] = message_name(_serialized(registry, *key[:2]), key[2])
        if names[key] != wanted:
            raise Misfit(f"it is a message {names[key]}, not {wanted}")
        return payload

    settings = {**_settings(), "use.deprecated.format": False, "schema.id.deserializer": take_schema_id}
    deserialize = deserializer("protobuf")(decoding.reader, settings, schema_registry_client=registry)
    return lambda value, context: plain_message(deserialize(value, context), decoding.type)


def _serialized(registry: SchemaRegistry, id_: int | None, guid: Any) -> str:
    schema = (
        registry.get_schema_by_guid(str(guid), fmt="serialized")
        if id_ is None
        else registry.get_schema(id_, fmt="serialized")
    )
    return str(schema.schema_str)


READERS: dict[str, Callable[[Decoding, SchemaRegistry], Read]] = {"avro": _avro, "json": _json, "protobuf": _protobuf}

# Decoders by process id: a worker that Spark forks must not use its parent's connections.
_decoders: dict[tuple[int, Decoding], Decoder] = {}


def decoder_of(decoding: Decoding) -> Decoder:
    """Return the decoder that this process keeps."""
    key = os.getpid(), decoding
    if key not in _decoders:
        _decoders[key] = Decoder(decoding, registry_of(decoding.registry))
    return _decoders[key]
