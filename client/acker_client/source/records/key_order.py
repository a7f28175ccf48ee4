"""Key order: holds back records until all earlier ones of their key are done. Pure.

Decides that at most one record of a key is emitted at a time. So a record is never handed out before an earlier one of
its key is acked or in the dead letters, however often that one fails, and records of other keys never wait for it.
Memory: two numbers for each record that is planned and not done, which the source's limits of such records bound.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt

from acker_client.source.records.input import OrderKeys
from acker_client.source.records.ranges import Positions
from acker_client.source.records.tracker import NO_RECORDS, RecordNumbers

NO_KEYS: OrderKeys = np.empty(0, np.uint64)
# An odd number, so that no two positions of a partition get the same product.
SPREAD = np.uint64(0x9E3779B97F4A7C15)


def order_keys(partition: str, positions: Positions, keys: Sequence[bytes | str | None]) -> OrderKeys:
    """Return a number for the key of each of ``positions: int64[n]``. Equal keys of one partition have equal numbers;
    without a key (None) a position has a number of its own. The numbers differ from process to process."""
    numbers = positions.astype(np.uint64) * SPREAD + np.uint64(_hash(partition, None))
    for index, key in enumerate(keys):
        if key is not None:
            numbers[index] = _hash(partition, key)
    return numbers


def _hash(partition: str, key: bytes | str | None) -> int:
    return hash((partition, key)) & 0xFFFFFFFFFFFFFFFF


class KeyOrder:
    """The records of one run that are planned and not done, each with its key.

    ``open_among``: returns those of some records that are not done.
    """

    __slots__ = ("_emitted", "_emitted_keys", "_held", "_held_keys", "_is_waiting", "_open_among")

    def __init__(self, open_among: Callable[[RecordNumbers], RecordNumbers]) -> None:
        self._open_among = open_among
        # In the order of their keys, so that millions of records are never sorted again. No key is twice among the
        # emitted records. Records of one key that are held back ascend.
        self._emitted, self._emitted_keys = NO_RECORDS, NO_KEYS
        self._held, self._held_keys = NO_RECORDS, NO_KEYS
        # Whether all records that are held back wait for emitted ones.
        self._is_waiting = True

    @property
    def held_back(self) -> int:
        """The number of records that are planned and were never emitted."""
        return len(self._held)

    def hold_back(self, records: RecordNumbers, keys: OrderKeys) -> None:
        """Hold newly planned ``records`` back (ascending, above all earlier ones), until they are taken."""
        self._held, self._held_keys = _merged(self._held, self._held_keys, records, keys)
        self._is_waiting = False

    def take(self, records_max: int) -> RecordNumbers:
        """Return up to ``records_max`` of the records that are held back, ascending: those of whose key no earlier
        record is open. The caller emits them."""
        is_open = np.isin(self._emitted, self._open_among(self._emitted))
        if self._is_waiting and is_open.all():
            return NO_RECORDS
        self._emitted, self._emitted_keys = self._emitted[is_open], self._emitted_keys[is_open]
        firsts = np.flatnonzero(np.append(True, self._held_keys[1:] != self._held_keys[:-1])[: len(self._held)])
        firsts = firsts[~_are_among(self._held_keys[firsts], self._emitted_keys)]
        firsts = firsts[np.argsort(self._held[firsts])]
        self._is_waiting = len(firsts) <= records_max
        firsts = firsts[:records_max]
        taken, keys = self._held[firsts], self._held_keys[firsts]
        self._emitted, self._emitted_keys = _merged(self._emitted, self._emitted_keys, taken, keys)
        self._held, self._held_keys = np.delete(self._held, firsts), np.delete(self._held_keys, firsts)
        return taken

    def drop(self, records: RecordNumbers) -> RecordNumbers:
        """Forget ``records``, which belong to another source now. Returns those that were held back, ascending."""
        is_held, is_emitted = np.isin(self._held, records), np.isin(self._emitted, records)
        dropped, self._is_waiting = np.sort(self._held[is_held]), False
        self._held, self._held_keys = self._held[~is_held], self._held_keys[~is_held]
        self._emitted, self._emitted_keys = self._emitted[~is_emitted], self._emitted_keys[~is_emitted]
        return dropped


def _merged(
    records: RecordNumbers, keys: OrderKeys, more: RecordNumbers, more_keys: OrderKeys
) -> tuple[RecordNumbers, OrderKeys]:
    """Return two columns in the order of their keys, with ``more`` behind the records of equal keys."""
    order = np.argsort(more_keys, kind="stable")
    where = np.searchsorted(keys, more_keys[order], side="right")
    return np.insert(records, where, more[order]), np.insert(keys, where, more_keys[order])


def _are_among(keys: OrderKeys, others: OrderKeys) -> npt.NDArray[np.bool_]:
    """Return whether each key is among ``others``, which ascend."""
    if not len(others):
        return np.zeros(len(keys), np.bool_)
    at = np.minimum(np.searchsorted(others, keys), len(others) - 1)
    found: npt.NDArray[np.bool_] = others[at] == keys
    return found
