"""Drain: a server takes no new sources or batches, finishes the open ones, and then ends."""

from __future__ import annotations

import json
import shutil
import socket
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from acker_protocol.messages import MemberState, OpenBatch, Settlement, Status
from acker_service.config import Config
from acker_service.server import Server
from tests.service.caller import SESSION, Caller, acks, eventually, inits, roots_of
from tests.service.pages import page

FIRST = 1 << 40


def events(process: Any) -> list[str]:
    return [json.loads(line)["event"] for line in process.log.splitlines()]


def line(process: Any, event: str) -> dict[str, Any]:
    [found] = [fields for fields in map(json.loads, process.log.splitlines()) if fields["event"] == event]
    return dict(found)


def test_a_server_with_nothing_to_do_ends_at_once_with_status_0(server_process: Callable[..., Any]) -> None:
    process = server_process()
    with Caller(process.address) as caller:
        assert caller.drain().status == Status.APPLIED
    assert process.wait() == 0
    assert events(process) == ["ready", "drain_began", "drained", "stopping", "stopped"]


def test_a_server_that_drains_ends_when_the_last_outcome_is_confirmed(server_process: Callable[..., Any]) -> None:
    process = server_process()
    with Caller(process.address) as caller:
        caller.begin()
        stream, batch = roots_of([900]), roots_of([0, 1])
        caller.apply(inits(stream, 0))
        assert caller.open_batch(OpenBatch(SESSION, 1, FIRST, 2)).status == Status.APPLIED
        left = caller.drain().detail
        assert left == "open batches: 1, pending roots: 1"
        assert caller.hello().is_draining
        assert caller.view().members[0].state == MemberState.DRAINING
        status, content = page(process, "/readyz")
        assert (status, content.strip()) == (503, "draining")
        assert caller.watch(SESSION + 1).status == Status.DRAINING
        assert caller.open_batch(OpenBatch(SESSION, 2, FIRST + 9, 2)).status == Status.DRAINING
        # Open batches and the open stream go on: inits, acks and the settlement.
        more = roots_of([901])
        caller.apply(inits(more, 1))
        caller.apply(inits(batch, 2, batch=1))
        for sequence, roots in enumerate((stream, more, batch), 3):
            assert caller.apply(acks(roots, sequence)).status == Status.APPLIED
        assert caller.settle(1, Settlement.DONE).roots == 2
        heard = caller.watch()
        assert len(heard.outcomes) == 4
        assert "drained" not in events(process)
        caller.watch(confirmed=heard.cursor)
    assert process.wait() == 0
    assert line(process, "drain_began")["left"] == left
    assert "left" not in line(process, "drained")


def test_a_drain_that_takes_too_long_ends_with_what_is_left_in_its_log(server_process: Callable[..., Any]) -> None:
    process = server_process("--drain-s=0.2")
    with Caller(process.address) as caller:
        caller.begin()
        caller.open_batch(OpenBatch(SESSION, 1, FIRST, 2))
        caller.drain()
        assert process.wait() == 0
    assert line(process, "drained")["left"] == "open batches: 1"


def test_a_signal_ends_a_drain_as_it_ends_every_server(server_process: Callable[..., Any]) -> None:
    process = server_process()
    with Caller(process.address) as caller:
        caller.begin()
        caller.open_batch(OpenBatch(SESSION, 1, FIRST, 2))
        caller.drain()
    assert process.terminate() == 0
    assert "drained" not in events(process)
    assert events(process)[-1] == "stopped"


def test_a_server_may_stay_drained_until_a_signal_so_that_no_supervisor_starts_it_again(
    server_process: Callable[..., Any],
) -> None:
    process = server_process("--stay-drained")
    with Caller(process.address) as caller:
        caller.drain()
    host, _, port = process.address.rpartition(":")
    eventually(lambda: "stays_drained" in events(process))
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection((host, int(port)), 10.0)
    assert page(process, "/livez") == (200, "ok\n")
    assert page(process, "/readyz") == (503, "drained\n")
    assert page(process, "/metrics") == (200, "")
    assert process.terminate() == 0
    assert events(process)[-5:] == ["drained", "stopping", "stopped", "stays_drained", "signal"]


def test_a_server_stays_drained_although_its_state_cannot_be_written(
    server_process: Callable[..., Any], tmp_path: Path
) -> None:
    state = tmp_path / "state"
    process = server_process("--stay-drained", "--state-dir", str(state))
    shutil.rmtree(state)
    state.write_text("no folder")
    with Caller(process.address) as caller:
        caller.drain()
    eventually(lambda: "stays_drained" in events(process))
    assert process.terminate() == 1
    assert "state_lost" in events(process)


def test_a_signal_ends_a_server_that_would_stay_drained(server_process: Callable[..., Any]) -> None:
    process = server_process("--stay-drained")
    assert process.terminate() == 0
    assert events(process)[-1] == "stopped"


def test_an_error_in_a_namespace_does_not_keep_a_drain_from_its_end(monkeypatch: pytest.MonkeyPatch) -> None:
    over = threading.Event()
    server = Server(Config(port=0, http_port=None), on_drained=over.set)

    def fail() -> None:
        raise KeyError("a bug")

    monkeypatch.setattr(server.namespaces, "tick", fail)
    server.start()
    try:
        server.drain()
        assert over.wait(30)
    finally:
        server.stop(grace_s=0.0)


def test_the_end_of_a_drain_is_logged_once_for_many_requests() -> None:
    ended: list[bool] = []
    over = threading.Event()

    def end() -> None:
        ended.append(True)
        over.set()

    server = Server(Config(port=0, http_port=None), on_drained=end)
    server.start()
    try:
        server.drain()
        server.drain()
        assert over.wait(30)
        server.drain()
    finally:
        server.stop(grace_s=0.0)
    assert ended == [True]
