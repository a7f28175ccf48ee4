"""Balance: divides the chosen positions among tasks."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TypeVar

from acker_client.source.records.input import Chosen, P

S = TypeVar("S")


def sliced(chosen: Sequence[Chosen[P]], tasks: int, make: Callable[[int, int, tuple[Chosen[P], ...]], S]) -> list[S]:
    """Call ``make(start, stop, chosen)`` for at most ``tasks`` slices of about equal size, and return them in order.
    The chosen positions are numbered from 0. A slice gets the numbers ``start`` to ``stop - 1``."""
    slices: list[S] = []
    number = 0
    for together in balanced(chosen, tasks):
        stop = number + sum(map(len, together))
        slices.append(make(number, stop, tuple(together)))
        number = stop
    return slices


def balanced(chosen: Sequence[Chosen[P]], tasks: int) -> Iterator[list[Chosen[P]]]:
    """Divide ``chosen``, in order, into at most ``tasks`` groups of about equal size."""
    total = sum(map(len, chosen))
    together: list[Chosen[P]] = []
    before, group = 0, 0
    for each in chosen:
        wanted = before * tasks // max(1, total)
        if together and wanted != group:
            yield together
            together = []
        group = wanted
        together.append(each)
        before += len(each)
    if together:
        yield together
