"""Values: a digest of each row of an Arrow batch.

Decides that two rows with the same values have the same digest, however Arrow lays them out (slices, offsets, nulls,
batch boundaries). Rows with other values have another digest, except by chance. Knows neither edges nor trees.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import types

from acker_client.spark.anchoring import kernels
from acker_protocol.ids import Column, hash64

# Digits of pi. A seed of 0 would give a row of zeros the hash 0.
SEED = 0x9216D5D98979FB1B

_ALL_VALID = np.empty(0, np.uint8)
_WORDS = {8: np.uint8, 16: np.uint16, 32: np.uint32, 64: np.uint64}


def digest_rows(columns: Iterable[Any], rows: int) -> Column:
    """Return uint64[rows]: a hash of each row's values. The order of ``columns`` (Arrow arrays) counts."""
    hashes = np.full(rows, SEED, np.uint64)
    for column in columns:
        _chain(column, hashes)
    return hashes


def _chain(column: Any, hashes: Column) -> None:
    """Chain the values of an Arrow array of any type into ``hashes``."""
    kind = column.type
    if types.is_null(kind):
        _chain_words(np.zeros(len(column), np.uint64), np.zeros(len(column) // 8 + 1, np.uint8), 0, hashes)
    elif types.is_boolean(kind):
        _chain(column.cast(pa.uint8()), hashes)
    elif types.is_string(kind) or types.is_binary(kind) or types.is_large_string(kind) or types.is_large_binary(kind):
        _chain_bytes(column, offsets_of(column), column.buffers()[2], hashes)
    elif types.is_map(kind):
        _chain_lists(column, [column.keys, column.items], hashes)
    elif types.is_list(kind) or types.is_large_list(kind):
        _chain_lists(column, [column.values], hashes)
    elif types.is_struct(kind):
        words = digest_rows((column.field(index) for index in range(kind.num_fields)), len(column))
        _chain_words(words, *_validity(column), hashes)
    elif types.is_dictionary(kind):
        _chain(column.dictionary_decode(), hashes)
    elif isinstance(column, pa.ExtensionArray):
        _chain(column.storage, hashes)
    elif types.is_primitive(kind) or types.is_decimal(kind) or types.is_fixed_size_binary(kind):
        _chain_fixed(column, kind.bit_width, hashes)
    else:
        _chain_others(column, hashes)


def _chain_fixed(column: Any, bit_width: int, hashes: Column) -> None:
    if bit_width in _WORDS:
        words = np.frombuffer(column.buffers()[1], _WORDS[bit_width]) if len(column) else np.empty(0, np.uint64)
        words = words[column.offset : column.offset + len(column)]
        _chain_words(words.astype(np.uint64, copy=False), *_validity(column), hashes)
    else:
        width = bit_width // 8
        offsets = np.arange(column.offset, column.offset + len(column) + 1, dtype=np.int64) * width
        _chain_bytes(column, offsets, column.buffers()[1], hashes)


def _chain_words(words: Column, validity: npt.NDArray[np.uint8], first: int, hashes: Column) -> None:
    kernels.hash_words(words, validity, first, hashes)


def _chain_bytes(column: Any, offsets: npt.NDArray[np.int64], data: Any, hashes: Column) -> None:
    content = _ALL_VALID if data is None else np.frombuffer(data, np.uint8)
    kernels.hash_bytes(offsets, content, *_validity(column), hashes)


def _chain_lists(column: Any, children: list[Any], hashes: Column) -> None:
    offsets = offsets_of(column)
    first, after = int(offsets[0]), int(offsets[-1])
    elements = digest_rows((child.slice(first, after - first) for child in children), after - first)
    kernels.hash_lists(offsets - first, elements, *_validity(column), hashes)


def _chain_others(column: Any, hashes: Column) -> None:
    """Chain an Arrow type that no Spark column has. This is slow: it hashes the ``repr`` of each value."""
    decoded = column.cast(pa.string()) if types.is_string_view(column.type) else column
    texts = [hash64(repr(value)) for value in decoded.to_pylist()]
    _chain_words(np.array(texts, np.uint64), _ALL_VALID, 0, hashes)


def offsets_of(column: Any) -> npt.NDArray[np.int64]:
    """Return int64[n + 1]: the offsets of a column of strings, bytes, lists or maps."""
    kind = column.type
    wide = types.is_large_string(kind) or types.is_large_binary(kind) or types.is_large_list(kind)
    buffer = column.buffers()[1]
    if buffer is None or not len(column):
        return np.zeros(len(column) + 1, np.int64)
    offsets = np.frombuffer(buffer, np.int64 if wide else np.int32)
    return offsets[column.offset : column.offset + len(column) + 1].astype(np.int64, copy=False)


def _validity(column: Any) -> tuple[npt.NDArray[np.uint8], int]:
    """Return Arrow's validity bitmap and the position of the first row's bit. Without nulls, the bitmap is empty."""
    if not column.null_count:
        return _ALL_VALID, 0
    bitmap = column.buffers()[0]
    if bitmap is None:
        nulls = pc.is_valid(column).cast(pa.uint8()).to_numpy(zero_copy_only=False)
        return np.packbits(nulls, bitorder="little"), 0
    return np.frombuffer(bitmap, np.uint8), column.offset
