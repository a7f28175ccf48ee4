"""Messages of Protobuf as plain values.

Decides that a field whose type has changed since is an error: Protobuf itself puts such a field aside, and leaves the
default in its place.
"""

from __future__ import annotations

import base64
from collections.abc import Sequence
from datetime import UTC
from typing import Any

import pyarrow as pa

from acker_client.source.decoding.fitting import Misfit


def message_name(serialized: str, indexes: Sequence[int]) -> str:
    """Return the full name of the message at ``indexes`` of a schema, given as a registry serializes it."""
    from google.protobuf.descriptor_pb2 import FileDescriptorProto

    file = FileDescriptorProto.FromString(base64.b64decode(serialized))
    names, messages = [file.package] if file.package else [], file.message_type
    for index in indexes:
        names.append(messages[index].name)
        messages = messages[index].nested_type
    return ".".join(names)


def plain_message(message: Any, type_: Any) -> dict[str, Any]:
    """Return the fields of a message that ``type_`` names. Raises ``Misfit`` for a field that the writer has with
    another type, which Protobuf drops without a word."""
    from google.protobuf.unknown_fields import UnknownFieldSet

    known, unknowns = message.DESCRIPTOR.fields_by_number, UnknownFieldSet(message)
    for unknown in (unknowns[index] for index in range(len(unknowns))):
        if unknown.field_number in known:
            raise Misfit(
                f"field {unknown.field_number} was written with another type", f".{known[unknown.field_number].name}"
            )
    fields = message.DESCRIPTOR.fields_by_name
    return {each.name: _field(message, fields[each.name], each.type) for each in type_ if each.name in fields}


def _field(message: Any, field: Any, type_: Any) -> Any:
    value = getattr(message, field.name)
    if _is_repeated(field):
        item_type = type_.value_type if pa.types.is_list(type_) else None
        if field.message_type is None or not field.message_type.GetOptions().map_entry:
            return [_plain(each, field, item_type) for each in value]
        item, item_type = (
            field.message_type.fields_by_name["value"],
            type_.item_type if pa.types.is_map(type_) else None,
        )
        return {key: _plain(value[key], item, item_type) for key in value}
    if field.has_presence and not message.HasField(field.name):
        return None
    return _plain(value, field, type_)


def _is_repeated(field: Any) -> bool:
    # Protobuf before version 6 has only the label, which later versions warn of.
    return bool(field.is_repeated if hasattr(field, "is_repeated") else field.label == field.LABEL_REPEATED)


def _plain(value: Any, field: Any, type_: Any) -> Any:
    """Return one value of a field: a message as a dict, a well-known type as what it stands for, an enum as its name
    unless the column is a number."""
    if field.enum_type is not None:
        known = field.enum_type.values_by_number.get(value)
        return value if known is None or (type_ is not None and pa.types.is_integer(type_)) else known.name
    if field.message_type is None:
        return value
    if type_ is not None and pa.types.is_struct(type_):
        return plain_message(value, type_)
    if field.message_type.full_name == "google.protobuf.Timestamp":
        return value.ToDatetime(UTC)
    # Such as google.protobuf.StringValue.
    return value.value if field.message_type.full_name.startswith("google.protobuf.") else value
