"""The compiled code of tasks agrees with the test vectors: edges, identities and the order of entries. No Spark."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from acker_client.spark.anchoring import kernels
from acker_client.spark.anchoring.anchors import Anchors
from acker_client.spark.anchoring.tally import Tally
from acker_protocol import ids
from tests.vectors import apply_of, protocol, report

VECTORS = protocol()


def column(*values: int) -> ids.Column:
    return np.array(values, np.uint64)


@pytest.mark.parametrize("vector", VECTORS["edges"], ids=lambda vector: f"{vector['operator']!r} {vector['ordinal']}")
def test_edges_of_children_follow_the_vectors(vector: dict[str, Any]) -> None:
    children, produced, ordinals = column(0), column(0), np.array([vector["ordinal"]], np.int64)
    kernels.thin_children(
        column(vector["edge"]),
        np.zeros(1, np.int64),
        column(vector["digest"]),
        np.uint64(ids.hash64(vector["operator"])),
        ordinals,
        children,
        produced,
    )
    assert children.tolist() == produced.tolist() == [vector["child"]]
    assert ordinals.tolist() == [vector["ordinal"] + 1]


@pytest.mark.parametrize("vector", VECTORS["identities"], ids=lambda vector: f"{vector['operator']!r}")
def test_identities_of_tasks_follow_the_vectors(vector: dict[str, Any]) -> None:
    tally = Tally(vector["operator"])
    for root, edge in vector["consumed"]:
        tally.consume(Anchors(column(root), column(edge)), column(0))
    identity = tally.report().identity
    assert (identity.high, identity.low, identity.sequenced) == (vector["high"], vector["low"], False)


@pytest.mark.parametrize("seed", range(3))
def test_entries_of_a_report_are_put_in_the_order_of_the_vectors(seed: int) -> None:
    entries = apply_of(report("acks")).entries
    order = np.random.default_rng(seed).permutation(len(entries))
    roots, vals = entries.root_ids[order], entries.ack_vals[order]
    assert kernels.sort_and_fold(roots, vals) == len(entries)
    assert roots.tolist() == entries.root_ids.tolist()
    assert vals.tolist() == entries.ack_vals.tolist()
