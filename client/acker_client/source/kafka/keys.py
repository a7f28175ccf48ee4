"""Keys of records, for a source that keeps their order. The driver reads them when it plans."""

from __future__ import annotations

from acker_client.source.kafka.reader import Reader
from acker_client.source.kafka.slices import KafkaPart, read_chosen
from acker_client.source.records.input import Chosen, OrderKeys
from acker_client.source.records.key_order import order_keys


def keys_of(reader: Reader, part: KafkaPart) -> OrderKeys:
    """Return the keys of a part. A record without a key, and an offset without a record, waits for no other. Raises
    ``SourceError``."""
    chosen = Chosen(part)
    keys: list[bytes | None] = [None] * len(chosen)
    for where, fetched in read_chosen(reader, chosen):
        for index, key in zip(where.tolist(), fetched.keys, strict=True):
            keys[index] = key
    return order_keys(part.partition, chosen.positions, keys)
