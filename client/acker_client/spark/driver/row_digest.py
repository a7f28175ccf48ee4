"""Row digest: Spark itself computes a digest of each row, so that no row has to go to Python for it.

Decides what goes into the digest, so that different values have different digests. Spark's own hash skips nulls and
flattens nested arrays, so the positions of nulls and the lengths of arrays go in too. The hash refuses maps, so their
entries go in. Two strings that are equal by their collation have the same hash, so strings with a collation go in as
bytes.
"""

from __future__ import annotations

from collections.abc import Sequence

from pyspark.sql.types import ArrayType, DataType, MapType, StringType, StructField, StructType

from acker_client.spark.driver.columns import quoted

# How many columns' "is null" bits fit into one number.
BITS = 63
# Without these formats, JSON drops the microseconds of times.
JSON = (
    "map('ignoreNullFields', 'false', 'timestampFormat', \"yyyy-MM-dd'T'HH:mm:ss.SSSSSSXXX\","
    " 'timestampNTZFormat', \"yyyy-MM-dd'T'HH:mm:ss.SSSSSS\")"
)


def row_digest(place: str, names: Sequence[str], fields: Sequence[StructField]) -> str:
    """Return a SQL expression for a digest of the column ``place`` and the columns ``names``.

    ``fields``: the fields of the columns ``names``. All names are plain, for example ``_0``.
    """
    pairs = list(zip(names, fields, strict=True))
    nullable = [name for name, field in pairs if field.nullable]
    masks = [_null_mask(nullable[at : at + BITS]) for at in range(0, len(nullable), BITS)]
    values = [part for name, field in pairs for part in _parts(name, field.dataType)]
    return f"xxhash64({', '.join([place, *masks, *values])})"


def _null_mask(names: Sequence[str]) -> str:
    return " + ".join(f"if({name} is null, {1 << bit}L, 0L)" for bit, name in enumerate(names))


def _parts(value: str, kind: DataType) -> list[str]:
    """Return SQL expressions that go into the hash for a value of this type. The null bit is not among them."""
    if isinstance(kind, MapType):
        entry = StructType().add("key", kind.keyType, False).add("value", kind.valueType, kind.valueContainsNull)
        return _parts(f"map_entries({value})", ArrayType(entry, False))
    if isinstance(kind, ArrayType):
        return [f"size({value})", *_elements(value, kind)]
    if isinstance(kind, StructType) and _has_plain_names(kind.names):
        return [part for field in kind.fields for part in _field(f"{value}.{quoted(field.name)}", field)]
    if isinstance(kind, StructType) or kind.typeName() == "variant":
        return [f"to_json(struct({value}), {JSON})"]
    return [f"cast({value} as binary)" if isinstance(kind, StringType) and _folds(kind) else value]


def _field(value: str, field: StructField) -> list[str]:
    parts = _parts(value, field.dataType)
    return [f"{value} is null", *parts] if field.nullable else parts


def _elements(value: str, kind: ArrayType) -> list[str]:
    element = kind.elementType
    if _is_hashed_as_it_is(element):
        return [value, *([f"transform({value}, each -> each is null)"] if kind.containsNull else [])]
    # The name `each` hides the `each` of an outer lambda. The inner lambda does not need the outer value.
    return [f"transform({value}, each -> xxhash64({', '.join(['each is null', *_parts('each', element)])}))"]


def _is_hashed_as_it_is(kind: DataType) -> bool:
    if isinstance(kind, (ArrayType, MapType, StructType)) or kind.typeName() == "variant":
        return False
    return not (isinstance(kind, StringType) and _folds(kind))


def _folds(kind: StringType) -> bool:
    """Whether different strings may be equal by their collation."""
    return "collate" in kind.simpleString() and not kind.simpleString().endswith("UTF8_BINARY")


def _has_plain_names(names: Sequence[str]) -> bool:
    """Whether each field of a struct can be read by its name. Spark may ignore case in names."""
    return len({name.lower() for name in names}) == len(names)
