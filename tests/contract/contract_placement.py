"""Computes placements, one slot at a time and with plain integers. Written from chapter 2 of acker.proto alone."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

TOP = 2**64
SLOTS = 1024


def mix64(x: int) -> int:
    x = (x ^ x >> 30) * 0xBF58476D1CE4E5B9 % TOP
    x = (x ^ x >> 27) * 0x94D049BB133111EB % TOP
    return x ^ x >> 31


def score(i: int, slot: int) -> int:
    return mix64(i * 1024 + slot + 1)


def swapped(i: int, slot: int) -> int:
    x = score(i, slot)
    return x % 2**32 * 2**32 + x // 2**32


def defaults(members: int, replicas: int | None = None, spread: int | None = None) -> tuple[int, int]:
    """Return the effective replicas and spread for a user's settings (None: not set)."""
    replicas = min((2 if replicas is None else replicas), members)
    return replicas, max(8 if spread is None else spread, replicas)


def place(ids: Sequence[int], session: int, number: int, replicas: int, spread: int) -> list[list[int]]:
    """Return the member ids of each slot, in order."""
    seats = seated(sorted(ids), session, number, spread)
    lists: list[list[int | None]] = [[seats[seat] for seat in row] for row in table(len(seats), replicas)]
    members = sorted(i for i in seats if i is not None)
    fill(lists, members, -(-105 * SLOTS * replicas // (100 * len(members))))
    exchange(lists, members)
    return [[i for i in row if i is not None] for row in lists]


def seated(ids: list[int], session: int, number: int, spread: int) -> list[int | None]:
    """Return the id of the member in each seat (step 1 of the chapter), or None for an empty seat."""
    if len(ids) <= spread:
        return [i if i in ids else None for i in range(ids[-1] + 1)]
    seats: list[int | None] = []
    for seat in range(spread):
        free = [i for i in ids if i not in seats]
        seats.append(min(free, key=lambda i: mix64(session ^ mix64((number * 2**20 + seat * 2**10 + i) % TOP))))
    return seats


@cache
def table(seats: int, replicas: int) -> list[list[int]]:
    total = SLOTS * replicas
    lists = [list(range(replicas)) for _ in range(SLOTS)]
    appears = [SLOTS] * replicas + [0] * (seats - replicas)
    for k in range(replicas, seats):
        floor, ceil = total // (k + 1), -(-total // (k + 1))
        order = sorted(range(SLOTS), key=lambda slot: score(k, slot))
        for bound, is_second in ((ceil, False), (floor, True)):
            for slot in order:
                if is_second and appears[k] >= floor:
                    break
                row = lists[slot]
                if k in row:
                    continue
                most = max(row, key=lambda seat: appears[seat])
                if appears[most] > bound:
                    row[row.index(most)] = k
                    appears[most] -= 1
                    appears[k] += 1
    return lists


def fill(lists: list[list[int | None]], members: list[int], bound: int) -> None:
    held = {i: {slot for slot, row in enumerate(lists) if i in row} for i in members}
    while True:
        room = {i: bound - len(held[i]) for i in members}
        asked: dict[int, list[int]] = {}
        for slot, row in enumerate(lists):
            able = [i for i in members if room[i] > 0 and slot not in held[i]] if None in row else []
            if able:
                asked.setdefault(min(able, key=lambda i: swapped(i, slot)), []).append(slot)
        if not asked:
            return
        for i, slots in asked.items():
            for slot in sorted(slots, key=lambda slot: swapped(i, slot))[: room[i]]:
                lists[slot][lists[slot].index(None)] = i
                held[i].add(slot)


def exchange(lists: list[list[int | None]], members: list[int]) -> None:
    for row in lists:
        while None in row:
            m = min(members, key=lambda i: (sum(i in other for other in lists), i))
            other = next(other for other in lists if None not in other and m not in other)
            moved = next(i for i in other if i not in row)
            row[row.index(None)] = moved
            other[other.index(moved)] = m
