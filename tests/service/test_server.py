"""The server from the outside: calls, watches, health, HTTP, stop and restart."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc

from acker_protocol.messages import Identity, InitScope, Limits, OpenBatch, Settlement, Status, Verdict
from acker_protocol.reports import fold, pack
from acker_service.ports import StartError
from acker_service.server import Server
from acker_service.state.state_file import StateDir
from tests.service.caller import Caller, ack_a_tree, acks, eventually, inits, roots_of
from tests.service.pages import page

SERVING = health_pb2.HealthCheckResponse.SERVING
NOT_SERVING = health_pb2.HealthCheckResponse.NOT_SERVING
StartServer = Callable[..., Server]


@pytest.fixture
def caller(server: Server) -> Any:
    with Caller(server.address) as caller:
        yield caller


def refusal(call: Callable[[], object]) -> tuple[grpc.StatusCode, str]:
    with pytest.raises(grpc.RpcError) as caught:
        call()
    return caught.value.code(), caught.value.details() or ""


# -- calls


def test_a_tree_goes_in_and_its_outcome_comes_out(caller: Caller) -> None:
    ack_a_tree(caller, 1)


@pytest.mark.matrix
def test_a_server_in_its_own_process_does_the_same(server_process: Callable[..., Any]) -> None:
    with Caller(server_process().address) as caller:
        ack_a_tree(caller, 1)


def test_the_handshake_names_server_and_limits(caller: Caller, server: Server) -> None:
    reply = caller.hello()
    assert (reply.incarnation, reply.max_message_bytes) == (server.shard.incarnation, 16 << 20)
    assert reply.sequence_window == 64


@pytest.mark.parametrize(("version", "older"), [(1, "client"), (3, "server")])
def test_another_protocol_version_is_refused_with_what_to_upgrade(caller: Caller, version: int, older: str) -> None:
    code, said = refusal(lambda: caller.hello(version))
    assert code == grpc.StatusCode.FAILED_PRECONDITION
    assert f"protocol version {version}" in said
    assert "version 2" in said
    assert said.endswith(f"upgrade the {older}")


def test_a_batch_is_opened_and_settled(caller: Caller) -> None:
    caller.begin()
    roots = roots_of(range(4), base=100)
    assert caller.open_batch(OpenBatch(7, 1, first=100, up_to=5)).status == Status.APPLIED
    covered = np.array([[0, 4]], np.uint64)
    message = pack(Identity(1, 2), fold(roots, np.array([0, 0, 0, 9], np.uint64)), InitScope(7, 1, covered))[0]
    assert caller.apply(message).status == Status.APPLIED
    reply = caller.settle(1, Settlement.DONE)
    assert (reply.status, reply.cursor, reply.roots) == (Status.APPLIED, 5, 5)
    outcomes = caller.watch().outcomes
    reported = dict(zip(outcomes.root_ids.tolist(), outcomes.verdicts.tolist(), strict=True))
    expected = [Verdict.ACKED, Verdict.ACKED, Verdict.ACKED, Verdict.FAILED, Verdict.LOST]
    assert reported == dict(zip(roots_of(range(5), base=100).tolist(), expected, strict=True))


def test_a_bug_is_answered_internal_and_logged_and_the_server_goes_on(
    caller: Caller, server: Server, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(*_: object) -> None:
        raise ZeroDivisionError("a secret of the server")

    with monkeypatch.context() as patch:
        patch.setattr(server.shard, "open_batch", broken)
        code, said = refusal(lambda: caller.open_batch(OpenBatch(7, 1, 100, 5)))
    assert code == grpc.StatusCode.INTERNAL
    assert "ZeroDivisionError" in said
    assert "secret" not in said
    assert any(record.message == "call_failed" and record.exc_info for record in caplog.records)
    ack_a_tree(caller, 1)


def test_stats_have_the_same_values_as_metrics(start_server: StartServer) -> None:
    server = start_server(http_port=0)
    with Caller(server.address) as other:
        ack_a_tree(other, 1)
        values = other.stats().values
        assert values['acker_outcomes_total{verdict="acked"}'] == 1
        lines = dict(line.rsplit(" ", 1) for line in page(server, "/metrics")[1].splitlines() if line[0] != "#")
        moving = (
            "acker_call_",
            "acker_lock_wait",
            "acker_source_watch_age",
            "process_",
            'acker_memory_bytes{kind="replies"',
        )
        same = [name for name in values if not name.startswith(moving) and name in lines]
        assert len(same) > 25
        assert {name: float(lines[name]) for name in same} == {name: values[name] for name in same}


# -- watches


def test_a_watch_waits_until_there_is_an_outcome(caller: Caller, server: Server) -> None:
    caller.begin()
    watching = caller.watching()
    eventually(lambda: caller.stats().values["acker_waiting_watches"] == 1)
    roots = roots_of(range(3))
    caller.apply(inits(roots, 0))
    assert not watching.done()
    caller.apply(acks(roots, 1))
    assert watching.result().cursor == 3


def test_a_watch_that_does_not_want_to_wait_is_answered_at_once(caller: Caller) -> None:
    caller.begin()
    assert len(caller.watch(wait_ms=0).outcomes) == 0


def test_a_watch_is_answered_when_its_time_is_up(caller: Caller) -> None:
    caller.begin()
    assert caller.watch(wait_ms=30).status == Status.APPLIED


def test_the_first_watch_of_a_session_does_not_wait(caller: Caller) -> None:
    assert caller.watch(wait_ms=20_000).is_new


def test_unconfirmed_outcomes_are_sent_again(caller: Caller) -> None:
    caller.begin()
    roots = roots_of(range(3))
    caller.apply(inits(roots, 0))
    caller.apply(acks(roots, 1))
    assert caller.watch().cursor == caller.watch(wait_ms=20_000).cursor == 3
    assert len(caller.watch(confirmed=3).outcomes) == 0


def test_watches_beyond_the_limit_are_answered_at_once_and_reports_are_served(start_server: StartServer) -> None:
    server = start_server(max_watches=2, workers=1)
    with Caller(server.address) as caller:
        for session in (1, 2, 3):
            caller.begin(session)
        waiting = [caller.watching(1), caller.watching(2)]
        eventually(lambda: caller.stats().values["acker_waiting_watches"] == 2)
        assert caller.watch(3, wait_ms=20_000).status == Status.APPLIED
        ack_a_tree(caller, 4)
        assert not any(watching.done() for watching in waiting)


def test_a_watch_whose_caller_has_gone_gives_its_place_back(caller: Caller) -> None:
    caller.begin()
    watching = caller.watching()
    eventually(lambda: caller.stats().values["acker_waiting_watches"] == 1)
    watching.cancel()
    eventually(lambda: caller.stats().values["acker_waiting_watches"] == 0)


def test_closing_a_session_answers_its_watch_and_does_not_open_it_again(caller: Caller) -> None:
    caller.begin()
    watching = caller.watching()
    eventually(lambda: caller.stats().values["acker_waiting_watches"] == 1)
    caller.watch(close=True)
    assert not watching.result().is_new
    assert caller.stats().values["acker_sources"] == 0


def test_a_timeout_wakes_the_watch(caller: Caller) -> None:
    caller.watch(limits=Limits(message_timeout_ms=50))
    caller.apply(inits(roots_of([1]), 0))
    reply = caller.watch(wait_ms=20_000, limits=Limits(message_timeout_ms=50))
    assert reply.outcomes.verdicts.tolist() == [Verdict.TIMED_OUT]


# -- health, reflection, HTTP


@pytest.mark.matrix
def test_health_says_serving_and_at_a_stop_first_of_all_not_serving(start_server: StartServer) -> None:
    server = start_server()
    with Caller(server.address) as caller:
        caller.begin()
        watching = caller.watching()
        eventually(lambda: caller.stats().values["acker_waiting_watches"] == 1)
        health = health_pb2_grpc.HealthStub(caller.channel)
        for service in ("", "acker.v1.Acker"):
            assert health.Check(health_pb2.HealthCheckRequest(service=service)).status == SERVING
        changes = health.Watch(health_pb2.HealthCheckRequest())
        assert next(changes).status == SERVING
        server.stop()
        assert next(changes).status == NOT_SERVING
        assert watching.result().status == Status.APPLIED


@pytest.mark.matrix
def test_reflection_is_offered_only_when_asked_for(start_server: StartServer) -> None:
    def services(server: Server) -> list[str]:
        with grpc.insecure_channel(server.address) as channel:
            ask = reflection_pb2.ServerReflectionRequest(list_services="")
            replies = reflection_pb2_grpc.ServerReflectionStub(channel).ServerReflectionInfo(iter([ask]))
            return [service.name for service in next(replies).list_services_response.service]

    assert "acker.v1.Acker" in services(start_server(reflection=True))
    assert refusal(lambda: services(start_server()))[0] == grpc.StatusCode.UNIMPLEMENTED


@pytest.mark.matrix
def test_http_says_live_and_ready_and_measures(start_server: StartServer) -> None:
    server = start_server(http_port=0)
    assert page(server, "/livez") == (200, "ok\n")
    assert page(server, "/readyz") == (200, "ok\n")
    status, body = page(server, "/metrics")
    assert status == 200
    assert "acker_pending_roots 0.0" in body
    status, body = page(server, "/elsewhere")
    assert (status, "/metrics" in body) == (404, True)


def test_no_metric_has_a_label_without_a_bound(start_server: StartServer) -> None:
    server = start_server(http_port=0)
    with Caller(server.address) as caller:
        for session in range(1, 6):
            ack_a_tree(caller, session)
        before = len(page(server, "/metrics")[1].splitlines())
        for session in range(6, 30):
            ack_a_tree(caller, session)
        assert len(page(server, "/metrics")[1].splitlines()) == before


# -- start and stop


@pytest.mark.long
@pytest.mark.parametrize("which", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_stops_it_cleanly(server_process: Callable[..., Any], which: signal.Signals) -> None:
    process = server_process()
    os.kill(process.pid, which)
    assert process.wait() == 0
    events = [json.loads(line)["event"] for line in process.log.splitlines()]
    assert events == ["ready", "signal", "stopping", "stopped"]


@pytest.mark.long
def test_a_stop_answers_waiting_calls(server_process: Callable[..., Any]) -> None:
    process = server_process()
    with Caller(process.address) as caller:
        caller.begin()
        watching = caller.watching()
        eventually(lambda: caller.stats().values["acker_waiting_watches"] == 1)
        assert process.terminate() == 0
        assert watching.result().status == Status.APPLIED


def start_command(*flags: str, module: str = "acker_service") -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", module, "serve", *flags]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)


@pytest.mark.long
def test_a_port_in_use_is_an_error_that_names_port_and_option(server: Server) -> None:
    port = server.address.rpartition(":")[2]
    for flag, other in (("--port", "--http-port=off"), ("--http-port", "--port=0")):
        result = start_command(f"{flag}={port}", other)
        assert result.returncode == 2
        assert f"127.0.0.1:{port}: address already in use" in result.stderr
        assert flag in result.stderr
        assert "ACKER_" in result.stderr
        assert "Traceback" not in result.stderr


@pytest.mark.slow
def test_a_host_of_another_machine_is_one_clear_line() -> None:
    result = start_command("--host", "192.0.2.1", "--port=0", "--http-port=off")
    assert result.returncode == 2
    assert "192.0.2.1" in result.stderr
    assert "--host" in result.stderr


@pytest.mark.matrix
def test_the_command_acker_serve_takes_the_same_options_and_gives_the_same_errors() -> None:
    result = start_command("--prot=1", module="acker_command")
    assert (result.returncode, "the nearest is --port" in result.stderr) == (2, True)
    result = start_command("--help", module="acker_command")
    assert (result.returncode, "--max-pending" in result.stdout) == (0, True)


def test_the_command_says_its_version() -> None:
    for command in (["acker_command", "--version"], ["acker_service", "--version"]):
        result = subprocess.run(
            [sys.executable, "-m", *command], capture_output=True, text=True, timeout=60, check=True
        )
        assert result.stdout.startswith("acker ")


# -- state


@pytest.mark.matrix
def test_a_planned_restart_forgets_nothing(server_process: Callable[..., Any], tmp_path: Path) -> None:
    process = server_process("--state-dir", str(tmp_path / "state"))
    with Caller(process.address) as caller:
        caller.begin()
        generation = caller.watch().generation
        open_roots, told_roots = roots_of(range(100)), roots_of(range(100, 150))
        caller.apply(inits(open_roots, 0))
        caller.apply(inits(told_roots, 1))
        caller.apply(acks(told_roots, 2))
    process.restart()
    with Caller(process.address) as caller:
        reply = caller.watch()
        assert (reply.is_new, reply.generation) == (False, generation)
        assert sorted(reply.outcomes.root_ids.tolist()) == sorted(told_roots.tolist())
        assert caller.apply(acks(told_roots, 2)).status == Status.DUPLICATE
        caller.apply(acks(open_roots, 3))
        reply = caller.watch(confirmed=reply.cursor)
        assert sorted(reply.outcomes.root_ids.tolist()) == sorted(open_roots.tolist())
        assert set(reply.outcomes.verdicts.tolist()) == {Verdict.ACKED}


@pytest.mark.long
@pytest.mark.parametrize("why", ["port", "ready file"])
def test_a_start_that_fails_leaves_the_state_to_the_next_one(
    why: str, server: Server, start_server: StartServer, tmp_path: Path
) -> None:
    state = str(tmp_path / "state")
    first = start_server(state_dir=state)
    with Caller(first.address) as caller:
        generation = (caller.begin(), caller.watch().generation)[1]
    first.stop()
    port = f"--port={server.address.rpartition(':')[2]}" if why == "port" else "--port=0"
    ready = str(tmp_path / ("ready" if why == "port" else "nowhere/ready"))
    result = start_command(port, "--http-port=off", f"--state-dir={state}", f"--ready-file={ready}")
    assert result.returncode == 2
    assert "Traceback" not in result.stderr
    assert ("--port" if why == "port" else "--ready-file") in result.stderr
    with Caller(start_server(state_dir=state).address) as caller:
        reply = caller.watch()
        assert (reply.is_new, reply.generation) == (False, generation)


@pytest.mark.long
def test_a_crash_after_a_restart_does_not_bring_the_old_state_back(
    server_process: Callable[..., Any], tmp_path: Path
) -> None:
    process = server_process("--state-dir", str(tmp_path / "state"))
    with Caller(process.address) as caller:
        caller.begin()
        generation = caller.watch().generation
    process.restart()
    process.restart(kill=True)
    with Caller(process.address) as caller:
        reply = caller.watch()
        assert reply.is_new
        assert reply.generation != generation


@pytest.mark.long
def test_a_damaged_state_stops_the_start_and_discarding_it_starts_empty(
    server_process: Callable[..., Any], tmp_path: Path
) -> None:
    (tmp_path / "acker.state").write_bytes(b"acker-state 2\nand then nothing")
    result = start_command("--port=0", "--http-port=off", "--state-dir", str(tmp_path))
    assert result.returncode == 2
    assert "damaged or cut short" in result.stderr
    assert "--discard-state" in result.stderr
    with Caller(server_process("--state-dir", str(tmp_path), "--discard-state").address) as caller:
        ack_a_tree(caller, 1)


@pytest.mark.long
def test_a_state_that_is_intact_but_not_a_shard_is_refused_and_kept(tmp_path: Path) -> None:
    state_dir = StateDir(str(tmp_path))
    state_dir.write([("something", {"numbers": np.arange(3)})])
    state_dir.close()
    result = start_command("--port=0", "--http-port=off", "--state-dir", str(tmp_path))
    assert result.returncode == 2
    assert "Nothing of it was used" in result.stderr
    assert (tmp_path / "acker.state").exists()


def test_a_failed_start_lets_the_state_directory_go(server: Server, start_server: StartServer, tmp_path: Path) -> None:
    with pytest.raises(StartError):
        start_server(port=int(server.address.rpartition(":")[2]), state_dir=str(tmp_path))
    start_server(state_dir=str(tmp_path))


def test_reports_are_taken_by_threads_of_their_own(start_server: StartServer) -> None:
    before = set(threading.enumerate())
    server = start_server(workers=1)
    with Caller(server.address) as caller:
        ack_a_tree(caller, 1)
    names = [thread.name for thread in set(threading.enumerate()) - before]
    assert names.count("acker-apply_0") == 1


@pytest.mark.slow
@pytest.mark.sampled(4)
@pytest.mark.parametrize("other", ["--http-port=0", "--http-port=off"])
@pytest.mark.parametrize("host", ["nosuchhost.invalid", "192.0.2.1"])
def test_a_host_that_is_not_to_be_had_is_blamed_on_the_host_and_not_on_the_port(host: str, other: str) -> None:
    result = start_command(f"--host={host}", "--port=0", "--insecure", other)
    assert result.returncode == 2
    assert result.stderr.startswith(f"acker serve: --host (ACKER_HOST): {host}: ")
    assert "--port" not in result.stderr
    assert len(result.stderr.splitlines()) == 1


@pytest.mark.long
@pytest.mark.parametrize("what", ["state", "consumed", "ready"])
def test_a_full_disk_is_one_line_that_names_the_path_and_the_state_stays(
    what: str, server_process: Callable[..., Any], tmp_path: Path
) -> None:
    state, ready = tmp_path / "state", tmp_path / "ready.json"
    process = server_process("--state-dir", str(state))
    with Caller(process.address) as caller:
        generation = (caller.begin(), caller.watch().generation)[1]
    assert process.terminate() == 0
    # Writes to these files fail with a full disk.
    full = {
        "state": state / "acker.state.tmp",
        "consumed": state / "consumed.tmp",
        "ready": tmp_path / "ready.json.tmp",
    }
    full[what].symlink_to("/dev/full")
    if what == "state":
        process.start()
        assert process.terminate() == 1
        last = [json.loads(line) for line in process.log.splitlines()][-1]
        assert (last["event"], "No space left on device" in last["error"]) == ("state_lost", True)
        assert str(state / "acker.state") in last["error"]
        assert "traceback" not in last
        return
    result = start_command("--port=0", "--http-port=off", f"--state-dir={state}", f"--ready-file={ready}")
    assert result.returncode == 2
    complaint = result.stderr.splitlines()[-1]
    assert complaint.startswith(f"acker serve: {'--state-dir' if what == 'consumed' else '--ready-file'}")
    assert str(state / "consumed" if what == "consumed" else ready) in complaint
    assert "No space left on device" in complaint
    assert "Traceback" not in result.stderr
    full[what].unlink(missing_ok=True)
    process.start()
    with Caller(process.address) as caller:
        reply = caller.watch()
        assert (reply.is_new, reply.generation) == (False, generation)
