"""Row digest: a digest of a row that Spark itself computes, so that no row has to go to Python for it.

Decides what of a value goes in: all that tells it from another. Spark's own hash passes nulls over and takes an array
of arrays for what is in them, so where nulls stand and how long an array is go in, too; it refuses maps, which go in as
their entries, and takes strings for equal that are so by their collation, which go in as their bytes.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce

from pyspark.sql import Column
from pyspark.sql import functions as F
from pyspark.sql.types import ArrayType, DataType, MapType, StringType, StructField, StructType

# In one number there is room for so many columns' "is null".
BITS = 63
# As JSON writes them, times lose their microseconds.
JSON = {
    "ignoreNullFields": "false",
    "timestampFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSSXXX",
    "timestampNTZFormat": "yyyy-MM-dd'T'HH:mm:ss.SSSSSS",
}


def row_digest(place: str, names: Sequence[str], fields: Sequence[StructField]) -> Column:
    """A digest of the column ``place``, and of the columns ``names``, which are as ``fields`` say."""
    pairs = list(zip(names, fields, strict=True))
    nullable = [name for name, field in pairs if field.nullable]
    masks = [_null_mask(nullable[at : at + BITS]) for at in range(0, len(nullable), BITS)]
    values = [part for name, field in pairs for part in _parts(F.col(name), field.dataType)]
    return F.xxhash64(F.col(place), *masks, *values)


def _null_mask(names: Sequence[str]) -> Column:
    bits = [F.when(F.col(name).isNull(), F.lit(1 << bit)).otherwise(F.lit(0)) for bit, name in enumerate(names)]
    return reduce(lambda mask, bit: mask + bit, bits).cast("long")


def _parts(value: Column, kind: DataType) -> list[Column]:
    """What of a value of this type a hash is to take, beside whether it is null."""
    if isinstance(kind, MapType):
        entry = StructType().add("key", kind.keyType, False).add("value", kind.valueType, kind.valueContainsNull)
        return _parts(F.map_entries(value), ArrayType(entry, False))
    if isinstance(kind, ArrayType):
        return [F.size(value), *_elements(value, kind)]
    if isinstance(kind, StructType) and _can_be_told_apart(kind.names):
        return [part for field in kind.fields for part in _field(value.getField(field.name), field)]
    if isinstance(kind, StructType) or kind.typeName() == "variant":
        return [F.to_json(F.struct(value), JSON)]
    return [value.cast("binary") if isinstance(kind, StringType) and _folds(kind) else value]


def _field(value: Column, field: StructField) -> list[Column]:
    parts = _parts(value, field.dataType)
    return [value.isNull(), *parts] if field.nullable else parts


def _elements(value: Column, kind: ArrayType) -> list[Column]:
    element = kind.elementType
    if _is_hashed_as_it_is(element):
        return [value, *([F.transform(value, F.isnull)] if kind.containsNull else [])]
    return [F.transform(value, lambda each: F.xxhash64(each.isNull(), *_parts(each, element)))]


def _is_hashed_as_it_is(kind: DataType) -> bool:
    if isinstance(kind, (ArrayType, MapType, StructType)) or kind.typeName() == "variant":
        return False
    return not (isinstance(kind, StringType) and _folds(kind))


def _folds(kind: StringType) -> bool:
    """Whether strings that differ may be equal by their collation."""
    return "collate" in kind.simpleString() and not kind.simpleString().endswith("UTF8_BINARY")


def _can_be_told_apart(names: Sequence[str]) -> bool:
    """Whether each of a struct's fields can be asked for by its name, which Spark may read without its case."""
    return len({name.lower() for name in names}) == len(names)
