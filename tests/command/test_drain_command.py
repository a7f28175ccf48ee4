"""``acker drain``: which server it picks, what it refuses, and when it reports that a server has gone."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest

from acker_command import drain as drain_module
from acker_command.drain import drain, found, is_gone, refuse_the_only
from acker_command.options import Mistake, run
from acker_command.overview import Answer, of_list, registered
from acker_protocol.messages import MemberState, OpenBatch, Settlement
from tests.command.seen import address, answer, listed, silence, view
from tests.service.caller import SESSION, Caller, eventually, inits, roots_of

AWAY, DRAINING = MemberState.AWAY, MemberState.DRAINING


def silent() -> list[Answer]:
    return [silence(address(9))]


def test_an_id_that_nobody_has_is_refused_with_those_that_there_are() -> None:
    with pytest.raises(Mistake, match=r"^no server has the id 7: there are 0, 1; 10\.0\.0\.10:7070 does not answer: c"):
        found(of_list([answer(1), answer(0), *silent()]), 7)


@pytest.mark.parametrize(
    ("id", "says"),
    [
        (
            1,
            "server 1 is away: it has stopped with its state and said to be back; start it to drain it, or let its 42",
        ),
        (2, "server 2 at 10.0.0.3:7070 does not answer, so it cannot be asked"),
    ],
)
def test_a_server_that_cannot_be_asked_is_refused(id: int, says: str) -> None:
    there = view(9, listed(0), listed(1, AWAY, 42_000), listed(2))
    with pytest.raises(Mistake) as refused:
        found(registered(there, [answer(0, there), silence(address(2))]), id)
    assert refused.value.message.startswith(says)


def test_the_only_one_that_takes_new_batches_is_refused_however_many_drain_beside_it() -> None:
    seen = of_list([answer(0), answer(1, is_draining=True), *silent()])
    with pytest.raises(Mistake, match=r"server 0 is the only one .* name the others with --servers, or give --force"):
        refuse_the_only(seen, seen.members[0])
    seen = of_list([answer(0), answer(1)])
    refuse_the_only(seen, seen.members[0])


def test_a_server_has_gone_when_the_view_of_another_lacks_it_or_else_after_some_silence() -> None:
    member = of_list([answer(1)]).members[0]
    assert not is_gone(view(9, listed(0), listed(1, DRAINING)), member, 99.0)
    assert is_gone(view(9, listed(0)), member, 0.0)
    assert not is_gone(None, member, 1.0)
    assert is_gone(None, member, 3.0)


def test_the_only_server_drains_by_force_and_a_second_time_with_status_0(
    start_server: Callable[..., Any], capsys: pytest.CaptureFixture[str]
) -> None:
    server = start_server(id=4)
    words = ["4", "--servers", server.address]
    assert run(drain, words) == 2
    assert capsys.readouterr().err.startswith("acker drain: server 4 is the only one that takes new batches, and jobs")
    assert server.view().members[0].state != DRAINING
    assert run(drain, [*words, "--force"]) == 0
    assert server.view().members[0].state == DRAINING
    assert run(drain, words) == 0
    first, second = capsys.readouterr().out.splitlines()
    ends = "no server takes new batches, and it has nothing left, and ends now"
    assert first == f"server 4 at {server.address} drains: {ends}"
    assert second == f"server 4 at {server.address} is draining already: {ends}"


@pytest.mark.long
def test_waiting_shows_what_is_left_and_ends_when_the_server_has_gone(
    server_process: Callable[..., Any],
    start_server: Callable[..., Any],
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(drain_module, "GONE_S", 0.1)
    monkeypatch.setattr(drain_module, "LOOK_S", 0.01)
    other, server = start_server(id=0), server_process("--id=1")
    ended: list[int] = []
    with Caller(server.address) as caller:
        caller.begin()
        caller.open_batch(OpenBatch(SESSION, 1, 1 << 40, 2))
        caller.apply(inits(roots_of([0, 1]), 1, batch=1))
        words = ["1", "--wait", "--servers", f"{other.address},{server.address}"]
        waiting = threading.Thread(target=lambda: ended.append(run(drain, words)))
        waiting.start()
        eventually(lambda: caller.hello().is_draining)
        caller.settle(1, Settlement.ABANDON)
        caller.watch(confirmed=caller.watch().cursor)
    waiting.join()
    assert ended == [0]
    first, *between, last = capsys.readouterr().out.splitlines()
    assert first == (
        f"server 1 at {server.address} drains: new batches go to 0, and it ends once nothing is left of "
        "open batches: 1, pending roots: 2"
    )
    assert all(line.endswith("unconfirmed") for line in between)
    assert last.endswith(" s  server 1 has gone")
    assert server.wait() == 0


@pytest.mark.long
def test_a_server_that_was_started_anew_at_the_address_of_one_that_drained_is_left_alone(
    server_process: Callable[..., Any],
    start_server: Callable[..., Any],
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    other, server = start_server(id=0), server_process("--id=1")

    first_pid = server.pid

    def supervised(_: float) -> None:
        """Stands for ``sleep``: returns after a supervisor has restarted the server."""
        if server.pid == first_pid:
            server.wait()
            server.start()

    monkeypatch.setattr(drain_module, "sleep", supervised)
    monkeypatch.setattr(drain_module, "is_gone", lambda *_: False)
    assert run(drain, ["1", "--wait", "--servers", f"{other.address},{server.address}"]) == 0
    assert capsys.readouterr().out.splitlines()[-1].endswith("server 1 has gone")
    with Caller(server.address) as caller:
        assert not caller.hello().is_draining
