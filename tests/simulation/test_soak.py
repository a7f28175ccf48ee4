"""Soak: memory does not grow in 90 minutes of virtual time under the mix of ``benchmarks``. The same run detects
mistakes that let memory grow."""

from __future__ import annotations

import contextlib
import multiprocessing
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
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
    """Keep 256 KiB for each source that has ended, without accounting for them."""
    kept: list[bytearray] = []

    def finish(self: State) -> None:
        kept.append(bytearray(1 << 18))
        real(self)

    return finish


# (mutant, the name in the report of `soak.growth`)
MUTANTS = (
    (Mutant("sources that do not expire", ((Shard, "_still_expired", _none_expired),)), "sources"),
    (Mutant("reports that are never forgotten", ((Dedupe, "forget_unused", _nothing),)), "identities"),
    (Mutant("orphans that do not expire", ((Orphans, "ticks", _never),)), "orphans"),
    (Mutant("memory that is not accounted", ((State, "_finish_dropping", _keeps_some),)), "RSS"),
)


def run(mutant: int | None = None) -> tuple[list[str], Counter[str]]:
    """Run the mix in a new process, so that its resident bytes are those of this run alone. Returns what has grown, and
    the mix's counts of opened sources, replayed and recounted reports, and failed sources."""
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as fresh:
        return fresh.submit(_run, mutant).result()


def _run(mutant: int | None) -> tuple[list[str], Counter[str]]:
    with contextlib.nullcontext() if mutant is None else MUTANTS[mutant][0].at_work():
        parts, (mix,) = soak.simulate(PARTS, PART_S, mixes=1)
    counts = {name: getattr(mix, name) for name in ("opened", "replayed", "recounted", "failed")}
    return soak.growth(parts), Counter(counts)


@pytest.mark.long
def test_memory_is_flat() -> None:
    grown, counts = run()
    assert grown == []
    assert counts["opened"] > 50
    assert counts["replayed"] > 50
    assert (counts["recounted"], counts["failed"]) == (0, 0)


@pytest.mark.long
@pytest.mark.parametrize("number", range(len(MUTANTS)), ids=[mutant.name for mutant, _ in MUTANTS])
def test_memory_that_grows_is_found(number: int) -> None:
    grown, _ = run(number)
    assert any(MUTANTS[number][1] in each for each in grown)
