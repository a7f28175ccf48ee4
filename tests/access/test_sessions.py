"""Sessions: each belongs to the caller that opened it, in its namespace. Others are refused, and learn nothing."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import grpc
import pytest

from acker_protocol.ids import session_digest
from acker_protocol.messages import (
    Apply,
    DrainRequest,
    Hello,
    OpenBatch,
    Pins,
    Settle,
    Settlement,
    StatsRequest,
    Status,
    ViewRequest,
    Watch,
)
from acker_service.access.roles import Role
from acker_service.access.tokens import LOOK_S
from tests.access.in_memory import InMemoryServer, Refused, TokensFile, token_of
from tests.service.caller import acks, inits, roots_of

SESSION, NEVER = 7, 8
OPEN = Watch("orders", SESSION, 10_000)
# What a thief of the session may try.
THEFTS = (
    OPEN,
    replace(OPEN, close=True),
    OpenBatch(SESSION, 2, 1 << 40, 5),
    Settle(SESSION, 1, Settlement.ABANDON),
    Settle(SESSION, 1, Settlement.DONE),
)


class Clock:
    now = 1.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def file(tmp_path: Path) -> TokensFile:
    """Callers ``job`` and ``other`` in the namespaces etl and ads, and without one."""
    file = TokensFile(tmp_path / "tokens")
    for namespace in ("etl", "ads"):
        file.declare(namespace)
    for namespace in ("", "etl", "ads"):
        for name in ("job", "other"):
            file.add(name, namespace)
    file.add("ops", "", Role.OPERATOR)
    return file


@pytest.fixture
def server(file: TokensFile, clock: Clock, tmp_path: Path) -> InMemoryServer:
    return InMemoryServer(file.path, clock, max_memory=600 << 20, state_dir=str(tmp_path / "state"))


@pytest.fixture
def lines(caplog: pytest.LogCaptureFixture) -> Callable[[], list[dict[str, Any]]]:
    """Return a function that returns the fields of the lines about refused calls."""

    def of() -> list[dict[str, Any]]:
        return [record.acker_fields for record in caplog.records if record.getMessage() == "call_refused"]  # type: ignore[attr-defined]

    caplog.set_level(logging.INFO)
    return of


JOB, OTHER = token_of("job", "etl"), token_of("other", "etl")


def begin(server: InMemoryServer, token: str = JOB) -> None:
    """Open the session with pins, a batch of 5 roots, and one pending root."""
    assert server.call(replace(OPEN, pins=b"here"), token).is_new
    assert server.call(OpenBatch(SESSION, 1, 1 << 40, 5), token).status == Status.APPLIED
    assert server.call(inits(roots_of([0]), 0, batch=1), token).status == Status.APPLIED


@pytest.mark.parametrize("theft", THEFTS, ids=str)
@pytest.mark.parametrize("namespace", ["", "etl"])
def test_another_caller_of_the_namespace_cannot_use_a_session(
    server: InMemoryServer, theft: Any, namespace: str, lines: Callable[[], list[dict[str, Any]]]
) -> None:
    owner, thief = token_of("job", namespace), token_of("other", namespace)
    begin(server, owner)
    before = server.namespaces.of(namespace).shared.stats
    for _ in range(100):
        with pytest.raises(Refused, match="another caller has opened the source of this session") as refused:
            server.call(theft, thief)
        assert refused.value.code == grpc.StatusCode.PERMISSION_DENIED
        assert "job" not in refused.value.sentence
    assert server.namespaces.of(namespace).shared.stats == before
    (line,) = lines()
    place = {"namespace": namespace} if namespace else {}
    assert line == {
        "call": type(theft).__name__,
        "host": "ipv4:10.0.0.7",
        "caller": "other",
        **place,
        "session_digest": session_digest(SESSION),
        "owner": "job",
        "left_out": 0,
    }
    assert server.namespaces.of(namespace).refused["permission_denied"] == 100
    assert server.call(Settle(SESSION, 1, Settlement.DONE), owner).status == Status.APPLIED


def test_other_callers_of_the_namespace_may_ack_and_ask_for_pins(server: InMemoryServer) -> None:
    begin(server)
    assert server.call(Pins(SESSION), OTHER).pins == b"here"
    assert server.call(acks(roots_of([0]), 1), OTHER).status == Status.APPLIED
    assert server.call(Settle(SESSION, 1, Settlement.DONE), JOB).roots == 5
    outcomes = server.call(OPEN, JOB).outcomes
    assert sorted(outcome.verdict.name for outcome in outcomes) == ["ACKED", "LOST", "LOST", "LOST", "LOST"]


@pytest.mark.parametrize("thief", [token_of("job", "ads"), token_of("job", ""), token_of("other", "ads")])
def test_a_session_of_another_namespace_is_answered_like_one_that_never_was(server: InMemoryServer, thief: str) -> None:
    begin(server)
    before = server.namespaces.of("etl").shared.stats
    asks: list[Any] = [*THEFTS[1:], Pins(SESSION), inits(roots_of([1]), 5, batch=1), inits(roots_of([1]), 6)]
    for ask in asks:
        assert server.answer(ask, thief) == server.answer(with_session(ask, NEVER), thief)
    # A guessed root: the ack waits for an init that never comes.
    assert server.call(acks(roots_of([0]), 1), thief).status == Status.APPLIED
    # The same session opened in another namespace is another session, without pins.
    assert server.call(OPEN, thief).is_new
    assert server.call(Pins(SESSION), thief).pins == b""
    assert server.namespaces.of("etl").shared.stats == before
    assert server.call(Settle(SESSION, 1, Settlement.DONE), JOB).roots == 5
    assert {outcome.verdict.name for outcome in server.call(OPEN, JOB).outcomes} == {"FAILED", "LOST"}


def with_session(ask: Any, session: int) -> Any:
    if isinstance(ask, Apply):
        assert ask.inits is not None
        return replace(ask, inits=replace(ask.inits, session=session))
    return replace(ask, session=session)


@pytest.mark.parametrize("ask", [DrainRequest(), StatsRequest()], ids=str)
def test_no_caller_of_a_namespace_drains_the_server_or_sees_its_figures(
    server: InMemoryServer, ask: Any, lines: Callable[[], list[dict[str, Any]]]
) -> None:
    sentences = set()
    for _ in range(50):
        with pytest.raises(Refused, match="PERMISSION_DENIED") as refused:
            server.call(ask, JOB)
        sentences.add(refused.value.sentence)
        begin_or_end(server)
    # What the server holds is no part of the answer.
    assert len(sentences) == 1
    assert [(line["caller"], line["namespace"]) for line in lines()] == [("job", "etl")]
    assert not server.namespaces.is_draining
    server.call(Hello(2, "test"), JOB)
    server.call(ViewRequest(), JOB)


def begin_or_end(server: InMemoryServer) -> None:
    is_open = server.namespaces.of("etl").shared.has_source(SESSION)
    server.call(replace(OPEN, close=is_open), JOB)


def test_many_thieves_log_a_bounded_number_of_lines(
    server: InMemoryServer, lines: Callable[[], list[dict[str, Any]]]
) -> None:
    begin(server)
    for n in range(1000):
        with pytest.raises(Refused):
            server.call(THEFTS[n % len(THEFTS)], OTHER, f"ipv4:10.0.{n // 250}.{n % 250}:1")
    assert len(lines()) <= 257


def test_a_new_token_of_the_same_name_has_the_sessions_of_the_old_one(
    server: InMemoryServer, file: TokensFile, clock: Clock
) -> None:
    begin(server)
    text = file.path.read_text()
    new = TokensFile(file.path.with_name("new"))
    new.declare("etl")
    new.add("job-2", "etl")
    line = next(line for line in new.path.read_text().splitlines() if "job-2" in line)
    replaced = file.path.with_name("replaced")
    replaced.write_text(f"{text}\n{line.replace('job-2', 'job')}\n")
    replaced.replace(file.path)
    clock.now += LOOK_S
    assert server.call(Settle(SESSION, 1, Settlement.DONE), token_of("job-2", "etl")).status == Status.APPLIED


def test_a_session_is_free_for_others_once_it_has_ended(server: InMemoryServer, clock: Clock) -> None:
    begin(server)
    server.call(replace(OPEN, close=True), JOB)
    assert server.call(OPEN, OTHER).is_new
    with pytest.raises(Refused):
        server.call(OPEN, JOB)
    for _ in range(30):
        clock.now += 0.5
        server.namespaces.tick()
    assert server.call(OPEN, JOB).is_new


def test_the_owner_is_kept_over_a_restart(server: InMemoryServer) -> None:
    begin(server)
    server.stop()
    server.start()
    with pytest.raises(Refused, match="PERMISSION_DENIED"):
        server.call(OPEN, OTHER)
    assert not server.call(OPEN, JOB).is_new


def test_a_session_without_an_owner_belongs_to_the_first_that_watches_it(server: InMemoryServer) -> None:
    begin(server)
    # As a server without tokens, or an older one, has left it.
    source = server.namespaces.of("etl").shared.shard._state.sources[SESSION]
    source.owner = ""
    assert server.call(OpenBatch(SESSION, 2, 1 << 41, 5), OTHER).status == Status.APPLIED
    assert not server.call(OPEN, JOB).is_new
    with pytest.raises(Refused, match="PERMISSION_DENIED"):
        server.call(OPEN, OTHER)
