"""Hypothesis strategies for the contents of reports: roots that share slots, and updates of all kinds."""

from __future__ import annotations

import numpy as np
from hypothesis import strategies as st

from acker_protocol.ids import SLOT_SHIFT, Column, unmix64
from acker_protocol.messages import Kinds

# Root, val; root, val, kind, reason.
Ack = tuple[int, int]
Update = tuple[int, int, int, str]

uint64 = st.integers(0, 2**64 - 1)

# Few slots and few numbers in each, so that roots repeat and sections have several entries.
root_ids = st.builds(
    lambda slot, number: unmix64(slot << SLOT_SHIFT | number),
    st.sampled_from([0, 1, 2, 511, 1022, 1023]),
    st.integers(1, 9),
)
reasons = st.sampled_from(["", "ValueError: no price", "KeyError: 'sku'", "späte Zeile"])


def ids(values: list[int]) -> Column:
    return np.array(values, np.uint64)


def kinds(values: list[int]) -> Kinds:
    return np.array(values, np.uint8)


updates = st.lists(st.tuples(root_ids, uint64, st.integers(1, 7), reasons), max_size=80)
acks = st.lists(st.tuples(root_ids, uint64), max_size=80)
