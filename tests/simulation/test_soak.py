"""Soak: 90 minutes of the mix of ``benchmarks`` in virtual time take no more memory at their end. The same run finds
mistakes that let memory grow."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from acker_service.core.dedupe import Dedupe
from acker_service.core.orphans import Orphans
from acker_service.core.shard import Shard
from acker_service.core.state import State
from benchmarks import soak
from tests.simulation.mutants import Mutant

PARTS, PART_S = 12, 450.0


def _none_expired(real: Callable[..., Any]) -> Callable[..., Any]:
    return lambda self, sources: iter(())


def _nothing(real: Callable[..., Any]) -> Callable[..., Any]:
    return lambda *_: None


def _never(real: Any) -> property:
    return property(lambda self: 1 << 40)


def _keeps_some(real: Callable[..., Any]) -> Callable[..., Any]:
    """The server keeps 256 KiB of each source that has ended, and does not account for them."""
    kept: list[bytearray] = []

    def finish(self: State) -> None:
        kept.append(bytearray(1 << 18))
        real(self)

    return finish


# (mutant, what is found to grow)
MUTANTS = (
    (Mutant("sources that do not expire", ((Shard, "_still_expired", _none_expired),)), "sources"),
    (Mutant("reports that are never forgotten", ((Dedupe, "forget_unused", _nothing),)), "identities"),
    (Mutant("orphans that do not expire", ((Orphans, "ticks", _never),)), "orphans"),
    (Mutant("memory that is not accounted", ((State, "_finish_dropping", _keeps_some),)), "RSS"),
)


def run() -> tuple[list[str], list[Any]]:
    parts, mixes = soak.simulate(PARTS, PART_S, mixes=1)
    return soak.growth(parts), mixes


@pytest.mark.long
def test_memory_is_flat() -> None:
    grown, (mix,) = run()
    assert grown == []
    assert mix.opened > 50
    assert mix.replayed > 50
    assert (mix.recounted, mix.failed) == (0, 0)


@pytest.mark.long
@pytest.mark.parametrize(("mutant", "grows"), MUTANTS, ids=[mutant.name for mutant, _ in MUTANTS])
def test_memory_that_grows_is_found(mutant: Mutant, grows: str) -> None:
    with mutant.at_work():
        grown, _ = run()
    assert any(grows in each for each in grown)
