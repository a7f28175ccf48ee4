"""Shrinking: reduces a failing case to the smallest one found that fails in the same way."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from tests.simulation.case import Case, Programs
from tests.simulation.world import Result, simulate

TRIES_MAX = 600


def shrunk(result: Result, *, tries_max: int = TRIES_MAX, strict: bool = False) -> Result:
    """Return the result of the smallest case found that fails with the same kind."""
    tries = 0
    while True:
        for smaller in _smaller(result.case):
            tries += 1
            if tries > tries_max:
                return result
            its = simulate(smaller, strict=strict)
            if its.kind == result.kind:
                result = its
                break
        else:
            return result


def _smaller(case: Case) -> Iterator[Case]:
    """Yield cases with one part less, the largest parts first."""
    if case.programs is not None:
        yield from _smaller_programs(case, case.programs)
        return
    for half in (case.records // 2, case.records - 1):
        if 0 < half < case.records:
            yield replace(case, records=half)
    yield from _calmer(case)
    for name in case.tasks:
        yield replace(case, tasks={other: rate for other, rate in case.tasks.items() if other != name})
    for name in ("partitions", "tasks_wide", "executors", "steps"):
        if getattr(case, name) > 1:
            yield replace(case, **{name: getattr(case, name) - 1})
    for index, share in enumerate(case.poison):
        if share:
            fails, breaks, missing = (0.0 if at == index else each for at, each in enumerate(case.poison))
            yield replace(case, poison=(fails, breaks, missing))
    if case.message_entries:
        yield replace(case, message_entries=0)
    if case.through_wire:
        yield replace(case, through_wire=False)
    if case.batch_records < case.records:
        yield replace(case, batch_records=case.records)


def _calmer(case: Case) -> Iterator[Case]:
    """Yield cases with one fault or one server less."""
    for index in range(len(case.faults)):
        yield replace(case, faults=case.faults[:index] + case.faults[index + 1 :])
    for name in case.calls:
        yield replace(case, calls={other: rate for other, rate in case.calls.items() if other != name})
    if case.servers > 2 and not any(getattr(fault, "server", None) == case.servers for fault in case.faults):
        yield replace(case, servers=case.servers - 1)


def _smaller_programs(case: Case, programs: Programs) -> Iterator[Case]:
    for roots in (programs.roots // 2, programs.roots - 1):
        if 0 < roots < programs.roots:
            yield replace(case, programs=replace(programs, roots=roots))
    yield from _calmer(case)
    for name in ("sources", "workers"):
        if getattr(programs, name) > 1:
            yield replace(case, programs=replace(programs, **{name: getattr(programs, name) - 1}))
    calm = (
        replace(programs, fail_share=0.0),
        replace(programs, slow_share=0.0),
        replace(programs, reset_share=0.0),
    )
    yield from (replace(case, programs=calmer) for calmer in calm if calmer != programs)
    if programs.watches_beside:
        yield replace(case, programs=replace(programs, watches_beside=False))
