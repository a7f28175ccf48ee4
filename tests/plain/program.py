"""Program: a random plain program and its faults, generated from a seed. It is fixed before the run.

Shares no code with the product: tokens, fan-out and leaves are computed here.
"""

from __future__ import annotations

import random
import zlib
from dataclasses import dataclass

# How the driver makes roots: a frame of its own, one by one into an RDD, or as columns into a frame.
EMITS = ("frame", "frame", "frame", "one by one", "columns")
# What makes several rows of a row, before the end.
FANS = ("", "", "collector", "operator", "udf", "emit column")
# What ends the trees.
ENDS = (
    *("collector", "collector", "row udf", "row udf", "pandas udf", "pandas iterator", "arrow iterator"),
    *("ack after", "fail column", "process client"),
)
# Ends that are functions over partitions of an RDD.
OVER_PARTITIONS = frozenset({"collector", "process client"})
FAULTS = (
    "",
    "",
    "kill in fan",
    "kill at end",
    "raise in block",
    "raise after report",
    "twice",
    "part first",
    "part only",
    "kill server",
)


@dataclass(frozen=True)
class Program:
    """``poison``: records for which the code at the end always raises. ``flaky``: it raises once in each round.

    ``http``: the sink is an HTTP server, which refuses some requests. ``at``: the row of a task before which a
    worker is killed, or a block raises. ``rounds``: how often records that are not ACKED are emitted.
    """

    seed: int
    servers: int
    records: int
    partitions: int
    emits: str
    fan: str
    reparts: int
    end: str
    fault: str
    poison: frozenset[int]
    flaky: frozenset[int]
    http: bool
    at: int
    rounds: int

    @property
    def job_fails(self) -> bool:
        """Whether a row that raises fails the whole job, as in a UDF of Spark's own."""
        return self.end == "ack after" and bool(self.poison or self.flaky or self.http)

    @property
    def names_no_column(self) -> bool:
        """Whether ``ack(after=...)`` gets the work as an expression, and nothing else computes it."""
        return self.records % 2 == 1

    @property
    def may_be_late(self) -> bool:
        """Whether the program leaves rows undone, which then time out."""
        return self.job_fails or self.fault == "part only"

    def leaves(self, token: str) -> list[str]:
        """Return what the sink receives of a record."""
        return children_of(token) if self.fan else [token]

    def __str__(self) -> str:
        parts = [
            f"seed {self.seed}: {self.servers} servers, {self.records} records in {self.partitions} partitions",
            f"emits {self.emits}, fan {self.fan or 'none'}, {self.reparts or 'no'} new partitions, end {self.end}",
            f"fault {self.fault or 'none'} at {self.at}, poison {sorted(self.poison)}, flaky {sorted(self.flaky)}",
            f"{'HTTP' if self.http else 'file'} sink, {self.rounds} rounds",
        ]
        return "; ".join(parts)


def token_of(number: int, emitted_in: int) -> str:
    return f"{number}r{emitted_in}"


def message_of(token: str) -> tuple[int, int]:
    number, _, rest = token.partition("r")
    return int(number), int(rest.partition(".")[0])


def children_of(token: str) -> list[str]:
    """Return zero to three tokens, always the same."""
    return [f"{token}.{index}" for index in range(zlib.crc32(token.encode()) % 4)]


def generate(seed: int) -> Program:
    rng = random.Random(f"plain {seed}")
    emits, end = rng.choice(EMITS), rng.choice(ENDS)
    fan = "collector" if emits == "one by one" and rng.random() < 0.3 else rng.choice(FANS)
    if emits != "frame" and fan == "operator":
        # Operators take frames of a source.
        fan = "udf"
    records = rng.randint(5, 40)
    servers = rng.choice((1, 3, 3))
    faults = [fault for fault in FAULTS if _is_possible(fault, servers, emits, fan, end)]
    some = [number for number in range(records) if rng.random() < 0.15]
    return Program(
        seed,
        servers,
        records,
        rng.randint(1, 4),
        emits,
        fan,
        rng.choice((0, 0, 2, 3)),
        end,
        rng.choice(faults),
        poison=frozenset(some[::2] if rng.random() < 0.5 else ()),
        flaky=frozenset(some[1::2] if rng.random() < 0.5 else ()),
        http=rng.random() < 0.4,
        at=rng.choice((0, 1, 3)),
        rounds=rng.randint(1, 3),
    )


def _is_possible(fault: str, servers: int, emits: str, fan: str, end: str) -> bool:
    if fault == "kill in fan":
        # An emit column is an expression of the library's, without code of the program.
        return fan not in ("", "emit column")
    if fault in ("raise in block", "raise after report"):
        return end in OVER_PARTITIONS or fan == "collector"
    if fault in ("part first", "part only"):
        return emits == "frame"
    return fault != "kill server" or servers == 3
