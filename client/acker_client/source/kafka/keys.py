"""Keys of records: numbers for a source that keeps their order, which the driver reads when it plans, and the keys
themselves for outcomes."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any

from acker_client.source.decoding.values import jsonable
from acker_client.source.errors import SourceError
from acker_client.source.kafka.reader import Reader
from acker_client.source.kafka.slices import KafkaPart, read_chosen
from acker_client.source.records.input import Chosen, OrderKeys
from acker_client.source.records.key_order import order_keys

log = logging.getLogger("acker_client.source.kafka")


def keys_of(reader: Reader, part: KafkaPart) -> OrderKeys:
    """Return the keys of a part. A record without a key, and an offset without a record, waits for no other. Raises
    ``SourceError``."""
    chosen = Chosen(part)
    keys: list[bytes | None] = [None] * len(chosen)
    for where, fetched in read_chosen(reader, chosen):
        for index, key in zip(where.tolist(), fetched.keys, strict=True):
            keys[index] = key
    return order_keys(part.partition, chosen.positions, keys)


def shown_keys_of(reader: Reader, chosen: Sequence[Chosen[KafkaPart]]) -> list[Any]:
    """Read records again, and return their keys as they survive JSON; None for a record without a key. After a failure
    all further keys are None."""
    found: dict[tuple[str, int], Any] = {}
    try:
        for each in chosen:
            for _, fetched in read_chosen(reader, each):
                keys = zip(fetched.offsets.tolist(), fetched.keys, strict=True)
                found |= {(each.part.partition, offset): jsonable(key) for offset, key in keys}
    except SourceError as error:
        log.warning("keys of records could not be read once more, so their outcomes have none: %s", error)
    return [found.get((each.part.partition, offset)) for each in chosen for offset in each.positions.tolist()]
