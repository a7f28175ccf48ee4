"""Placement: how evenly slots are placed, how many move when a member comes or goes, and how long placing takes.

Measures each join of the next id and each leave, in all views of up to 200 members without a gap in their ids (0 to
n - 1). Views with gaps are drawn at random. ``moved_over_least``: the number of replicas that move, divided by the
least number that must move. A member that joins must receive its replicas, and a member that leaves must give up its
own. Run it: ``python -m benchmarks.placement``.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from acker_protocol import placement
from acker_protocol.ids import SLOTS
from acker_protocol.placement import IDS, Member, View, place, slots_at_most

MEMBERS = 200
REPLICAS = (1, 2, 3)
GAPS = (0.005, 0.01, 0.05, 0.1, 0.5)
DRAWN = 20

Holds = npt.NDArray[np.bool_]


def view(ids: Iterable[int]) -> View:
    return View(1, tuple(Member(each, 1, f"server-{each}:7070") for each in ids))


def holds(ids: list[int], replicas: int) -> Holds:
    """Return which id holds which slot if the spread has no bound: bool[1024, IDS + 1]."""
    placed = place(view(ids), 1, 1, replicas, spread=len(ids))
    found = np.zeros((SLOTS, IDS), bool)
    owners = np.array([member.id for member in placed.members])[placed.replicas]
    np.put_along_axis(found, owners, True, axis=1)
    return found


@dataclass(slots=True)
class Moves:
    """Moves of one kind: how many replicas of slots moved, and how many had to move."""

    moved: list[int] = field(default_factory=list)
    least: list[int] = field(default_factory=list)

    def add(self, before: Holds, after: Holds, coming_or_going: int) -> None:
        self.moved.append(int(np.count_nonzero(after & ~before)))
        self.least.append(int(np.count_nonzero(before[:, coming_or_going] | after[:, coming_or_going])))

    def figures(self) -> dict[str, float]:
        over = [moved / least for moved, least in zip(self.moved, self.least, strict=True)]
        return {
            "moves": len(over),
            "moved_over_least": round(sum(self.moved) / sum(self.least), 3),
            "moved_over_least_at_worst": round(max(over), 3),
        }


def balance(held: Holds, members: int, replicas: int) -> tuple[float, float]:
    """Return the most slots that a member holds, over the mean and over the bound."""
    most, mean = int(held.sum(axis=0).max()), SLOTS * replicas / members
    return most / mean, most / slots_at_most(members, replicas)


def without_gaps(members: int, replicas: int) -> dict[str, Any]:
    """Measure every view of ids 0 to n - 1, each join of the next id, and each leave. The spread has no bound."""
    joins, leaves, over_mean, over_bound = Moves(), Moves(), {}, []
    before = holds(list(range(replicas)), replicas)
    for n in range(replicas, members + 1):
        over_mean[n], over = balance(before, n, replicas)
        over_bound.append(over)
        for going in range(n) if n > replicas else ():
            leaves.add(before, holds([each for each in range(n) if each != going], replicas), going)
        after = holds(list(range(n + 1)), replicas)
        joins.add(before, after, n)
        before = after
    of_many = [over for n, over in over_mean.items() if SLOTS * replicas >= 20 * n]
    return {
        "views": f"0 to n - 1, n up to {members}",
        "replicas": replicas,
        "most_over_mean_of_20_and_more": round(max(of_many), 4),
        "most_over_mean": round(max(over_mean.values()), 4),
        "most_over_bound": round(max(over_bound), 4),
        "joins": joins.figures(),
        "leaves": leaves.figures(),
    }


def with_gaps(members: int, replicas: int, gaps: float, drawn: int) -> dict[str, Any]:
    """Measure joins and leaves in random views of ids below ``members``. ``gaps``: the share of missing ids."""
    draw, joins, leaves, over_bound = random.Random(9), Moves(), Moves(), 0.0
    for _ in range(drawn):
        ids = sorted(draw.sample(range(members), members - round(gaps * members)))
        before = holds(ids, replicas)
        over_bound = max(over_bound, balance(before, len(ids), replicas)[1])
        joins.add(before, holds([*ids, members], replicas), members)
        for going in draw.sample(ids, 3):
            leaves.add(before, holds([each for each in ids if each != going], replicas), going)
    return {
        "views": f"{gaps:.1%} of {members} ids missing",
        "replicas": replicas,
        "most_over_bound": round(over_bound, 4),
        "joins": joins.figures(),
        "leaves": leaves.figures(),
    }


def place_ms(ids: list[int], replicas: int, spread: int) -> float:
    """Return the milliseconds to place a batch: the median of 200, after one that fills the caches."""
    taken, members = [], view(ids)
    for number in range(201):
        begin = time.perf_counter()
        place(members, 1, number, replicas, spread)
        taken.append(time.perf_counter() - begin)
    return round(statistics.median(taken[1:]) * 1e3, 3)


def first_ms(ids: list[int], replicas: int, spread: int) -> float:
    """Return the milliseconds to place the first batch, with empty caches."""
    placement._table.cache_clear()
    members, begin = view(ids), time.perf_counter()
    place(members, 1, 1, replicas, spread)
    return round((time.perf_counter() - begin) * 1e3, 3)


def measure(members: int = MEMBERS, drawn: int = DRAWN) -> dict[str, Any]:
    ids = list(range(members))
    return {
        "without_gaps": [without_gaps(members, replicas) for replicas in REPLICAS],
        "with_gaps": [with_gaps(members, replicas, gaps, drawn) for replicas in REPLICAS[:2] for gaps in GAPS],
        "place_ms": {
            "spread 8": place_ms(ids, 2, 8),
            "spread without a bound": place_ms(ids, 2, members),
            "spread without a bound, one id missing": place_ms(ids[:9] + ids[10:], 2, members),
            "spread without a bound, every other id missing": place_ms(ids[::2], 2, members),
        },
        "first_ms": {"spread 8": first_ms(ids, 2, 8), "spread without a bound": first_ms(ids, 2, members)},
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="views of up to 20 members")
    options = parser.parse_args()
    print(json.dumps({"placement": measure(20, 3) if options.quick else measure()}, indent=1))


if __name__ == "__main__":
    main()
