"""Writes proto/acker/v1/vectors.json: ``python tests/vectors/make.py``.

A second implementation of the protocol's arithmetic and of its one large message. It uses plain integers and bytes, as
an implementation in another language would. It imports nothing of acker, so the vectors check the code instead of
repeating it.
"""

from __future__ import annotations

import hashlib
import json
import math
import random
from fractions import Fraction
from pathlib import Path
from typing import Any

MASK = 2**64 - 1
EDGE0_SALT = 0x243F6A8885A308D3
HIGH_SALT, LOW_SALT = 0x13198A2E03707344, 0xA4093822299F31D0
DIGEST_SALT = 0x082EFA98EC4E6C89
ACK, FAIL, RESET = 1, 2, 4

# (root id, ack val, kind, reason)
Entry = tuple[int, int, int, str]


def mix(value: int) -> int:
    value = (value ^ value >> 30) * 0xBF58476D1CE4E5B9 & MASK
    value = (value ^ value >> 27) * 0x94D049BB133111EB & MASK
    return value ^ value >> 31


def hash_of(name: str) -> int:
    return int.from_bytes(hashlib.blake2b(name.encode(), digest_size=8).digest(), "little")


def slot(root: int) -> int:
    return mix(root) >> 54


def child(edge: int, operator: str, ordinal: int, digest: int) -> int:
    return mix(edge ^ mix(hash_of(operator) + ordinal & MASK) ^ digest)


def identity(operator: str, consumed: list[tuple[int, int]]) -> tuple[int, int]:
    total = 0
    for root, edge in consumed:
        total += mix(root ^ mix(edge ^ HIGH_SALT)) << 64 | mix(edge ^ mix(root ^ LOW_SALT))
    content = operator.encode() + b"\0" + (total % 2**128).to_bytes(16, "little")
    hashed = hashlib.blake2b(content, digest_size=16).digest()
    return int.from_bytes(hashed[8:], "little"), int.from_bytes(hashed[:8], "little")


def digest(entries: list[Entry]) -> int:
    return sum(mix(root ^ (mix(val ^ DIGEST_SALT) + kind & MASK)) for root, val, kind, _ in entries) & MASK


def varint(value: int) -> bytes:
    small, rest = value & 0x7F, value >> 7
    return bytes([small | 0x80]) + varint(rest) if rest else bytes([small])


def fixed64(field: int, value: int) -> bytes:
    return varint(field << 3 | 1) + value.to_bytes(8, "little") if value else b""


def uint(field: int, value: int) -> bytes:
    return varint(field << 3) + varint(value) if value else b""


def span(field: int, content: bytes) -> bytes:
    return varint(field << 3 | 2) + varint(len(content)) + content


def column(field: int, content: bytes) -> bytes:
    return span(field, content) if content else b""


def report(name: str, who: tuple[int, int, bool], entries: list[Entry], inits: dict[str, Any] | None) -> dict[str, Any]:
    entries = sorted(entries, key=lambda entry: mix(entry[0]))
    reasons = list(dict.fromkeys(entry[3] for entry in entries if entry[2] & FAIL))
    columns = {
        "root_ids": b"".join(entry[0].to_bytes(8, "little") for entry in entries),
        "ack_vals": b"".join(entry[1].to_bytes(8, "little") for entry in entries),
        "kinds": b"" if all(entry[2] == ACK for entry in entries) else bytes(entry[2] for entry in entries),
        "reason_ids": b"".join(reasons.index(entry[3]).to_bytes(4, "little") for entry in entries if entry[2] & FAIL),
    }
    message = span(1, fixed64(1, who[0]) + fixed64(2, who[1]) + uint(3, who[2])) + fixed64(2, digest(entries))
    if inits:
        covered = b"".join(bound.to_bytes(8, "little") for pair in inits["covered"] for bound in pair)
        message += span(3, fixed64(1, int(inits["session"], 16)) + uint(2, inits["batch"]) + column(3, covered))
    for field, content in enumerate(columns.values(), 4):
        message += column(field, content)
    message += b"".join(span(8, reason.encode()) for reason in reasons)
    return {
        "name": name,
        "identity": {"high": hex(who[0]), "low": hex(who[1]), "sequenced": who[2]},
        "inits": inits,
        "digest": hex(digest(entries)),
        "slots": [slot(entry[0]) for entry in entries],
        **{name: content.hex() for name, content in columns.items()},
        "reasons": reasons,
        "message": message.hex(),
    }


def reports(draw: random.Random) -> list[dict[str, Any]]:
    base, session = draw.randrange(1, 2**62), draw.getrandbits(64)
    roots = [mix(base + number) for number in range(40)]
    operator = identity("orders.items", [(root, mix(root ^ EDGE0_SALT)) for root in roots])
    scope = {"session": hex(session), "batch": 7, "first": hex(base), "covered": [[0, 30], [30, 40]]}
    mixed = [(root, draw.getrandbits(64), ACK, "") for root in roots]
    mixed[3] = (roots[3], 0, FAIL, "ValueError: no price")
    mixed[8] = (roots[8], 5, ACK | FAIL, "KeyError: 'sku'")
    mixed[9] = (roots[9], 6, ACK | FAIL, "ValueError: no price")
    mixed[20] = (roots[20], 0, RESET, "")
    return [
        report("inits", (*operator, False), [(root, mix(root ^ EDGE0_SALT), ACK, "") for root in roots], scope),
        report("acks", (*operator, False), [(root, draw.getrandbits(64), ACK, "") for root in roots], None),
        report("acks, fails and resets", (session, 0, True), mixed, None),
        report("one ack", (session, 1, True), [(roots[0], 1, ACK, "")], None),
    ]


def placement(ids: list[int], session: int, number: int, replicas: int, spread: int) -> list[list[int]]:
    """Return the ids of the replicas of each slot. Follows the steps in acker.proto."""
    if spread >= len(ids):
        seated = {i: i for i in ids}
        seats = max(ids) + 1
    else:
        seated, seats = {}, spread
        for seat in range(seats):
            unseated = [i for i in ids if i not in seated.values()]
            seated[seat] = min(unseated, key=lambda i: mix(session ^ mix(number * 2**20 + seat * 2**10 + i & MASK)))
    held: list[list[int | None]] = [[seated.get(seat) for seat in slots] for slots in table(seats, replicas)]
    at_most = math.ceil(Fraction(105, 100) * 1024 * replicas / len(seated))
    fill(held, sorted(seated.values()), at_most)
    return held  # type: ignore[return-value]


def table(seats: int, replicas: int) -> list[list[int]]:
    total = 1024 * replicas
    held = [list(range(replicas)) for _ in range(1024)]
    counts = dict.fromkeys(range(replicas), 1024)
    for k in range(replicas, seats):
        counts[k] = 0
        for bound in (math.ceil(Fraction(total, k + 1)), total // (k + 1)):
            for at in sorted(range(1024), key=lambda at: mix(k * 1024 + at + 1)):
                fullest = max(held[at], key=lambda seat: counts[seat])
                enough = bound == total // (k + 1) and counts[k] >= bound
                if k not in held[at] and counts[fullest] > bound and not enough:
                    held[at][held[at].index(fullest)] = k
                    counts[k] += 1
                    counts[fullest] -= 1
    return held


def fill(held: list[list[int | None]], ids: list[int], at_most: int) -> None:
    def count(i: int) -> int:
        return sum(i in owners for owners in held)

    def swapped(at: int, i: int) -> int:
        score = mix(i * 1024 + at + 1)
        return score >> 32 | (score & 2**32 - 1) << 32

    vacant = [at for at in range(1024) if None in held[at]]
    while True:
        room = {i: at_most - count(i) for i in ids}
        asked: dict[int, list[int]] = {}
        for at in vacant:
            able = [i for i in ids if room[i] and i not in held[at]]
            if None in held[at] and able:
                asked.setdefault(min(able, key=lambda i: swapped(at, i)), []).append(at)
        if not asked:
            break
        for i, slots in asked.items():
            for at in sorted(slots, key=lambda at: swapped(at, i))[: room[i]]:
                held[at][held[at].index(None)] = i
    for at in vacant:
        while None in held[at]:
            emptiest = min(ids, key=lambda i: (count(i), i))
            full = (owners for owners in held if None not in owners and emptiest not in owners)
            owners = next(full)
            other = next(i for i in owners if i not in held[at])
            owners[owners.index(other)] = emptiest
            held[at][held[at].index(None)] = other


# Name, ids, replicas, spread.
PLACED = [
    ("one member", [0], 1, 8),
    ("three members", [0, 1, 2], 1, 8),
    ("two replicas, and no member 2", [0, 1, 3, 4], 2, 8),
    ("three replicas on ids far apart", [7, 30, 41, 12], 3, 4),
    ("two replicas on four of seven", [0, 1, 2, 3, 4, 5, 6], 2, 4),
]


def placements(draw: random.Random) -> list[dict[str, Any]]:
    made = []
    for name, ids, replicas, spread in PLACED:
        session, number = draw.getrandbits(64), draw.randrange(2**40)
        held = placement(ids, session, number, replicas, spread)
        members = sorted({i for owners in held for i in owners})
        column = bytes(members.index(i) for owners in held for i in owners)
        made.append(
            {
                "name": name,
                "ids": ids,
                "session": hex(session),
                "number": hex(number),
                "replicas": replicas,
                "spread": spread,
                "members": members,
                "indices": column.hex(),
            }
        )
    return made


def vectors() -> dict[str, Any]:
    draw = random.Random(20261121)
    numbers = [0, 1, 2, 2**63, MASK, 0x9E3779B97F4A7C15, *(draw.getrandbits(64) for _ in range(10))]
    names = ["", "a", "orders.items", "Zähler"]
    bases = [(draw.randrange(1, 2**62), number) for number in (0, 1, 2**32, 2**63)]
    edges = [(draw.getrandbits(64), name, ordinal, draw.getrandbits(64)) for name in names for ordinal in (0, 1, 2**40)]
    consumed = [(draw.getrandbits(64), draw.getrandbits(64)) for _ in range(5)]
    return {
        "about": "Made by tests/vectors/make.py. 64-bit numbers are hexadecimal; columns and messages hex bytes.",
        "mix64": [{"value": hex(value), "mixed": hex(mix(value))} for value in numbers],
        "hash64": [{"name": name, "hash": hex(hash_of(name))} for name in names],
        "roots": [
            {
                "base": hex(base),
                "number": hex(number),
                "root": hex(root := mix(base + number & MASK)),
                "edge0": hex(mix(root ^ EDGE0_SALT)),
                "slot": slot(root),
            }
            for base, number in bases
        ],
        "edges": [
            {
                "edge": hex(edge),
                "operator": name,
                "ordinal": hex(ordinal),
                "digest": hex(content),
                "child": hex(child(edge, name, ordinal, content)),
            }
            for edge, name, ordinal, content in edges
        ],
        "identities": [
            {
                "operator": name,
                "consumed": [[hex(root), hex(edge)] for root, edge in consumed[:count]],
                "high": hex((both := identity(name, consumed[:count]))[0]),
                "low": hex(both[1]),
            }
            for name in names
            for count in (0, 1, 5)
        ],
        "reports": reports(draw),
        "placements": placements(draw),
    }


if __name__ == "__main__":
    path = Path(__file__).parents[2] / "proto/acker/v1/vectors.json"
    path.write_text(json.dumps(vectors(), indent=1, ensure_ascii=False) + "\n")
