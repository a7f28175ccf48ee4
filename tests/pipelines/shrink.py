"""Shrinking: reduce a failing program to a smaller one that fails in the same way."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING

from tests.pipelines.program import End, Program

if TYPE_CHECKING:
    from tests.pipelines.bench import Bench
    from tests.pipelines.runner import Result

TRIES_MAX = 40


def shrunk(bench: Bench, program: Program, result: Result) -> tuple[Program, Result]:
    """Return the smallest program found that has a finding of the same kind, and its result."""
    kinds, tries = result.kinds, 0
    while True:
        for smaller in _smaller(program):
            tries += 1
            if tries > TRIES_MAX:
                return program, result
            its = bench.run(smaller)
            if its.kinds & kinds:
                program, result = smaller, its
                break
        else:
            return program, result


def _smaller(program: Program) -> Iterator[Program]:
    """Yield programs that have one part less. The largest parts go first."""
    yield from _without_a_step(program)
    for index in range(len(program.faults)):
        yield replace(program, faults=program.faults[:index] + program.faults[index + 1 :])
    for index in range(len(program.looks)):
        yield replace(program, looks=program.looks[:index] + program.looks[index + 1 :])
    for index, end in enumerate(program.ends):
        for less in _less(end):
            yield replace(program, ends=(*program.ends[:index], less, *program.ends[index + 1 :]))
    if program.batch_records < program.records:
        yield replace(program, batch_records=program.records)
    if program.records > 12:
        keeps = [number for fault in program.faults for number in fault.numbers]
        fewer = max(12, program.records // 2, *(number + 1 for number in keeps))
        if fewer < program.records:
            yield replace(program, records=fewer, batch_records=min(program.batch_records, fewer))
    if program.partitions > 1:
        yield replace(program, partitions=1)
    if len(program.conf) > 1:
        yield replace(program, conf=program.conf[:1])
    if program.parse != "select":
        yield replace(program, parse="select")
    if program.threads:
        yield replace(program, threads=False)
    if program.shares_sink:
        yield replace(program, shares_sink=False)
    if program.form != "run" and not program.second:
        yield replace(program, form="run")
    if program.concurrency > 1:
        yield replace(program, concurrency=1)


def _without_a_step(program: Program) -> Iterator[Program]:
    """Yield programs without one step (its consumers take its input), or without one leg of a branch and its sink."""
    for index, step in enumerate(program.steps):
        if any(fault.at in step.gives for fault in program.faults):
            continue
        if len(step.of) == len(step.gives) == 1:
            yield _renamed(program, index, step.gives[0], step.of[0])
        if step.op == "branch":
            for gone in step.gives:
                ends = tuple(end for end in program.ends if end.frame != gone)
                if len(ends) < len(program.ends) and ends:
                    (kept,) = (frame for frame in step.gives if frame != gone)
                    looks = tuple(look for look in program.looks if look[0] != gone)
                    faults = tuple(fault for fault in program.faults if fault.at != gone)
                    less = replace(program, ends=ends, looks=looks, faults=faults)
                    yield _renamed(less, index, kept, step.of[0])


def _renamed(program: Program, index: int, old: str, new: str) -> Program:
    def name(frame: str) -> str:
        return new if frame == old else frame

    steps = [replace(step, of=tuple(map(name, step.of))) for at, step in enumerate(program.steps) if at != index]
    return replace(
        program,
        steps=tuple(steps),
        ends=tuple(replace(end, frame=name(end.frame)) for end in program.ends),
        looks=tuple((name(frame), when, how) for frame, when, how in program.looks),
        faults=tuple(replace(fault, at=name(fault.at)) for fault in program.faults),
    )


def _less(end: End) -> Iterator[End]:
    for index in range(len(end.first)):
        if len(end.first) > 1 or end.first != end.then:
            yield replace(end, first=end.first[:index] + end.first[index + 1 :])
    if end.first != end.then and len(end.then) > 1:
        yield replace(end, then=tuple(act for act in end.then if act.what == "deliver")[:1])
