"""The shard accepts the test vectors as clients in other languages send them: message bytes, sections, roots."""

from __future__ import annotations

import numpy as np
import pytest

from acker_protocol import ids, wire
from acker_protocol.messages import Apply, OpenBatch, Settle, Settlement, Status, Verdict, Watch
from acker_service.core import kernels
from acker_service.core.shard import Shard
from tests.vectors import apply_of, protocol, report

NAMES = [vector["name"] for vector in protocol()["reports"]]


def decoded(name: str) -> Apply:
    return wire.decode(Apply, bytes.fromhex(report(name)["message"]))


@pytest.fixture
def shard() -> Shard:
    """Return a shard that has opened the batch of the test vector "inits"."""
    inits = report("inits")["inits"]
    shard = Shard(incarnation=1, generation=2)
    shard.watch(Watch("vectors", inits["session"], 60_000), 0.0)
    opened = shard.open_batch(OpenBatch(inits["session"], inits["batch"], inits["first"], 40), 0.0)
    assert opened.status == Status.APPLIED
    return shard


@pytest.mark.parametrize("name", NAMES)
def test_a_report_of_the_vectors_is_applied_once(shard: Shard, name: str) -> None:
    assert shard.apply(decoded(name), 0.0).status == Status.APPLIED
    assert shard.stats.sections_applied == len(set(report(name)["slots"]))
    assert shard.apply(decoded(name), 0.0).status == Status.DUPLICATE
    assert shard.stats.sections_duplicate == shard.stats.sections_applied


def test_trees_of_the_vectors_of_which_nothing_is_consumed_fail_at_settle(shard: Shard) -> None:
    inits = report("inits")["inits"]
    shard.apply(decoded("inits"), 0.0)
    settled = shard.settle([Settle(inits["session"], inits["batch"], Settlement.DONE)], 0.0)
    assert settled[0].roots == 40
    reported = shard.watch(Watch("vectors", inits["session"], 60_000), 0.0).outcomes
    assert sorted(reported.root_ids.tolist()) == sorted(apply_of(report("inits")).entries.root_ids.tolist())
    assert set(reported.verdicts.tolist()) == {Verdict.FAILED}


def test_the_kernels_mix_as_the_vectors_do() -> None:
    for vector in protocol()["mix64"]:
        assert int(kernels._mix(np.uint64(vector["value"]))) == vector["mixed"]
        assert int(kernels._unmix(np.uint64(vector["mixed"]))) == vector["value"]


def test_the_shard_names_unread_roots_as_the_vectors_do(shard: Shard) -> None:
    inits = report("inits")["inits"]
    shard.settle([Settle(inits["session"], inits["batch"], Settlement.DONE)], 0.0)
    reported = shard.watch(Watch("vectors", inits["session"], 60_000), 0.0).outcomes
    assert set(reported.verdicts.tolist()) == {Verdict.LOST}
    assert sorted(ids.numbers_of(inits["first"], reported.root_ids).tolist()) == list(range(40))
    assert sorted(reported.root_ids.tolist()) == sorted(apply_of(report("inits")).entries.root_ids.tolist())
