"""Isolation: callers of one namespace cannot tell whether others use the server at all.

Random calls of three namespaces go to one server, in any order, with the same sessions, batches and roots. The calls of
each namespace also go to a server where nobody else calls. All answers must be equal.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from acker_protocol import ids, reports, wire
from acker_protocol.messages import (
    PROTOCOL_VERSION,
    Apply,
    DrainRequest,
    Hello,
    Identity,
    InitScope,
    Limits,
    OpenBatch,
    Pins,
    Settle,
    Settlement,
    Status,
    Verdict,
    ViewRequest,
    Watch,
    WatchReply,
)
from acker_service.access.roles import Role
from acker_service.access.tokens import LOOK_S
from acker_service.core import ledger
from acker_service.core.tables import Tables
from acker_service.namespaces import Namespace, Namespaces
from tests.access.in_memory import InMemoryServer, Refused, TokensFile, token_of

NAMESPACES = ("", "etl", "ads")
NAMES = ("one", "one", "one", "two")
SESSIONS = (11, 22)
LIMITS = (Limits(), Limits(1000), Limits(0, 500))
QUOTAS = (
    "memory=64MiB",
    "memory=64MiB max_pending=60",
    "memory=64MiB max_pending=20 sources=2",
    "memory=64MiB sources=1 connections=1",
    "memory=64MiB connections=2",
)
OPERATOR = token_of("ops", "")


@pytest.fixture(autouse=True)
def same_secret(monkeypatch: pytest.MonkeyPatch) -> None:
    """Roots that time out together are reported in the order of their cells, which depends on a random number."""
    monkeypatch.setattr(ledger, "Tables", lambda secret: Tables(0))


class Comparison:
    """One server for all namespaces, and one for each alone."""

    def __init__(self, chance: random.Random, folder: Path) -> None:
        self.chance, self.now = chance, 1.0
        self.files = [TokensFile(folder / f"tokens {name}") for name in ("all", *NAMESPACES)]
        for file in self.files:
            file.add("ops", "", Role.OPERATOR)
            for namespace in NAMESPACES[1:]:
                file.declare(namespace)
            for namespace in NAMESPACES:
                for name in set(NAMES):
                    file.add(name, namespace)
        self.together, *alone = [
            InMemoryServer(
                file.path,
                lambda: self.now,
                max_memory=600 << 20,
                max_pending=90,
                memory_s=1e6,
                max_lease_s=20.0,
                state_dir=f"{file.path} state",
            )
            for file in self.files
        ]
        self.alone = dict(zip(NAMESPACES, alone, strict=True))
        # Generations are random: by namespace, those of both servers.
        self.generations: dict[str, set[tuple[int, int]]] = {namespace: set() for namespace in NAMESPACES}
        self.seen: set[tuple[str, str]] = set()

    @property
    def every(self) -> list[InMemoryServer]:
        return [self.together, *self.alone.values()]

    def step(self) -> None:
        steps: list[Callable[[], Any]] = [self.watch] * 4 + [self.open_batch] * 3 + [self.settle] * 2
        steps += [self.update] * 3 + [self.init] * 3 + [self.pins, self.greet, self.pass_time, self.pass_time]
        self.chance.choice(steps)()

    def pass_time(self) -> None:
        self.now += self.chance.randrange(60) / 32
        for server in self.every:
            server.namespaces.tick()

    def watch(self) -> None:
        session, close = self.session(), not self.chance.randrange(12)
        lease_ms, pins = self.chance.choice([2000, 60_000, 60_000]), self.chance.choice([b"", b"here", b"there"])
        confirmed = self.chance.choice([0, 0, 1, 5, 30])
        self.compare(
            Watch("a source", session, lease_ms, self.chance.choice(LIMITS), confirmed, close=close, pins=pins)
        )

    def open_batch(self) -> None:
        number, up_to = self.chance.randrange(1, 6), self.chance.randrange(26)
        held, limits = self.chance.random() < 0.6, self.chance.choice(LIMITS)
        self.compare(OpenBatch(self.session(), number, number * 1000 + 1, up_to, held, limits))

    def settle(self) -> None:
        self.compare(Settle(self.session(), self.chance.randrange(1, 6), self.chance.choice(list(Settlement))))

    def update(self) -> None:
        roots, vals = self.columns(self.chance.randrange(6))
        kinds = np.array([self.chance.choice([1, 1, 1, 2, 3, 4]) for _ in roots], np.uint8)
        reasons = {int(root): self.chance.choice(["", "bad", "worse"]) for root in roots}
        self.send(reports.fold_updates(roots, vals, kinds, reasons), None)

    def init(self) -> None:
        number = self.chance.randrange(6)
        self.send(reports.fold(*self.columns(number)), InitScope(self.session(), number))

    def send(self, entries: Any, scope: InitScope | None) -> None:
        identity = Identity(self.chance.randrange(2), self.chance.randrange(200), self.chance.random() < 0.3)
        self.compare(Apply(identity, reports.digest(entries), entries, scope))

    def pins(self) -> None:
        self.compare(Pins(self.session()))

    def greet(self) -> None:
        self.compare(self.chance.choice([Hello(PROTOCOL_VERSION, "test"), ViewRequest(), DrainRequest()]))

    def change_quotas(self) -> None:
        """Change the quotas of one namespace on all servers."""
        namespace, quotas = self.chance.choice(NAMESPACES[1:]), self.chance.choice(QUOTAS)
        for file in self.files:
            file.declare(namespace, quotas)
        self.now += LOOK_S
        for server in self.every:
            server.call(Hello(PROTOCOL_VERSION, "test"), OPERATOR)

    def restart(self) -> None:
        for server in self.every:
            server.stop()
        self.now += self.chance.randrange(100) / 32
        for server in self.every:
            server.start()
        # A namespace whose shard was not made yet is made anew by both servers, so nothing is known of it.

    def drain(self) -> None:
        for server in self.every:
            assert server.call(DrainRequest(), OPERATOR).status == Status.APPLIED

    def compare(self, request: Any) -> None:
        namespace, name = self.chance.choice(NAMESPACES), self.chance.choice(NAMES)
        token, peer = token_of(name, namespace), f"ipv4:10.0.0.{NAMESPACES.index(namespace)}:{self.chance.randrange(3)}"
        ours = answer(self.together, request, token, peer)
        theirs = answer(self.alone[namespace], request, token, peer)
        if isinstance(ours, WatchReply) and isinstance(theirs, WatchReply):
            self.generations[namespace].add((ours.generation, theirs.generation))
            self.seen |= {("outcome", outcome.verdict.name) for outcome in ours.outcomes}
        assert comparable(ours) == comparable(theirs), f"{namespace} differs: {request} {ours} {theirs}"
        status = ours[0] if isinstance(ours, tuple) else getattr(ours, "status", None)
        self.seen.add((type(request).__name__, getattr(status, "name", "")))

    def compare_generations(self) -> None:
        """Check that a session got another generation on one server whenever it got another one on the other."""
        for pairs in self.generations.values():
            assert len({ours for ours, _ in pairs}) == len({theirs for _, theirs in pairs}) == len(pairs)

    def session(self) -> int:
        return self.chance.choice(SESSIONS)

    def columns(self, number: int) -> tuple[Any, Any]:
        count = self.chance.randrange(1, 13)
        numbers = np.array([self.chance.randrange(26) for _ in range(count)], np.uint64)
        vals = np.array([self.chance.randrange(4) for _ in range(count)], np.uint64)
        return ids.root_ids(number * 1000 + 1, numbers), vals


def answer(server: InMemoryServer, request: Any, token: str, peer: str) -> Any:
    """Return the reply, or the status of gRPC and its text."""
    try:
        return server.call(request, token, peer)
    except Refused as refused:
        return refused.code, refused.sentence


def comparable(answered: Any) -> Any:
    """Return an answer without the random names of a process and of its state."""
    if isinstance(answered, tuple):
        return answered
    masked = {name: 0 for name in ("incarnation", "generation") if hasattr(answered, name)}
    return wire.encode(replace(answered, **masked)).SerializeToString()


def compare(seed: int, folder: Path) -> set[tuple[str, str]]:
    """Make random calls. Returns which calls got which status."""
    comparison = Comparison(random.Random(seed), folder)
    for n in range(240):
        comparison.step()
        if n % 40 == 30:
            comparison.change_quotas()
        if n == 140:
            comparison.restart()
        if n == 220:
            comparison.drain()
    comparison.compare_generations()
    return comparison.seen


def compare_some(seeds: int, folder: Path) -> set[tuple[str, str]]:
    seen: set[tuple[str, str]] = set()
    for seed in range(seeds):
        place = folder / str(seed)
        place.mkdir()
        seen |= compare(seed, place)
    return seen


@pytest.mark.slow
@pytest.mark.parametrize("examples", [6, pytest.param(300, marks=pytest.mark.long)])
def test_no_namespace_can_tell_whether_others_are_used(examples: int, tmp_path_factory: pytest.TempPathFactory) -> None:
    @given(st.integers(0, 1 << 32))
    @settings(max_examples=examples, phases=[Phase.generate])
    def check(seed: int) -> None:
        compare(seed, tmp_path_factory.mktemp("servers"))

    check()


@pytest.mark.slow
def test_the_random_calls_meet_every_refusal(tmp_path: Path) -> None:
    assert compare_some(4, tmp_path) >= {
        *((call, "PERMISSION_DENIED") for call in ("Watch", "OpenBatch", "Settle", "DrainRequest")),
        *((call, "OVERLOADED") for call in ("Watch", "OpenBatch", "Apply")),
        *((call, "UNKNOWN_SOURCE") for call in ("OpenBatch", "Settle", "Pins", "Apply")),
        *((call, "APPLIED") for call in ("Watch", "OpenBatch", "Settle", "Pins", "Apply")),
        *((call, "DRAINING") for call in ("Watch", "OpenBatch")),
        *(("outcome", verdict.name) for verdict in Verdict),
    }


def _one_shard(made: Namespace, first: Namespace) -> None:
    made.shared = first.shared


def _one_count_of_connections(made: Namespace, first: Namespace) -> None:
    made.connections = first.connections


def _one_room(made: Namespace, first: Namespace) -> None:
    made.shared.shard._state.room = first.shared.shard._state.room


def _one_memory_of_identities(made: Namespace, first: Namespace) -> None:
    made.shared.shard._state.dedupe = first.shared.shard._state.dedupe


MUTANTS = (_one_shard, _one_count_of_connections, _one_room, _one_memory_of_identities)


@pytest.mark.sampled(4)
@pytest.mark.slow
@pytest.mark.parametrize("share", MUTANTS, ids=lambda share: share.__name__[1:])
def test_the_comparison_notices_whatever_namespaces_share(
    share: Callable[[Namespace, Namespace], None], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    make = Namespaces._made

    def made(self: Namespaces, *arguments: Any) -> Namespace:
        namespace = make(self, *arguments)
        if hasattr(self, "default"):
            share(namespace, self.default)
        return namespace

    monkeypatch.setattr(Namespaces, "_made", made)
    with pytest.raises(AssertionError, match="differs"):
        compare_some(20, tmp_path)
