"""Two namespaces end to end: a real server, real tokens and the real client."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from acker_client import AckerClient
from acker_client.errors import Overloaded, Rejected, UnknownSource
from acker_client.rpc.transport import GrpcTransport
from acker_client.settings import Settings
from acker_command.options import run
from acker_command.status import status
from acker_protocol.messages import OpenBatch, Pins, Settle, Settlement, Status, Watch
from acker_service.access.roles import Role
from tests.access.in_memory import TokensFile, token_of
from tests.service.caller import eventually

StartServer = Callable[..., Any]
SESSION = 7


@pytest.fixture
def file(tmp_path: Path) -> TokensFile:
    file = TokensFile(tmp_path / "tokens")
    for namespace in ("etl", "ads"):
        file.declare(namespace)
        file.add("job", namespace)
    file.add("worker", "etl")
    file.add("ops", "", Role.OPERATOR)
    return file


def client_of(address: str, name: str, namespace: str, **settings: Any) -> AckerClient:
    return AckerClient(Settings((address,), token=token_of(name, namespace), **settings))


def outcomes_of(client: AckerClient, count: int) -> list[str]:
    """Watch until there are ``count`` outcomes, and return their verdicts."""
    found: list[str] = []
    deadline = time.monotonic() + 60
    while len(found) < count and time.monotonic() < deadline:
        found += [outcome.verdict.name for outcome in client.watch(wait_s=5.0).outcomes]
    return found


def test_two_jobs_with_the_same_session_work_side_by_side_and_do_not_see_each_other(
    start_server: StartServer, file: TokensFile
) -> None:
    server = start_server(tokens=str(file.path))
    with (
        client_of(server.address, "job", "etl") as etl,
        client_of(server.address, "job", "ads") as ads,
        client_of(server.address, "worker", "etl") as worker,
    ):
        # Both jobs draw the same session, so that batches and sequences have the same numbers.
        for client in (etl, ads):
            client.open_source("orders", session=SESSION)
        of_etl, of_ads = ([client.emit() for _ in range(10)] for client in (etl, ads))
        for client in (etl, ads):
            client.flush()
        # Another caller of the namespace may ack, with a token of its own.
        worker.join(SESSION)
        for root, edge in of_etl:
            worker.ack(root, edge)
        worker.flush()
        assert outcomes_of(etl, 10) == ["ACKED"] * 10
        # The other namespace knows these roots no more than roots that never were.
        for root, edge in of_etl:
            ads.ack(root, edge)
        for root, _ in of_ads:
            ads.fail(root, "bad")
        ads.flush()
        assert outcomes_of(ads, 10) == ["FAILED"] * 10


def test_a_stolen_session_is_refused_by_the_real_server(start_server: StartServer, file: TokensFile) -> None:
    server = start_server(tokens=str(file.path))
    with (
        client_of(server.address, "job", "etl") as owner,
        client_of(server.address, "worker", "etl") as thief,
        client_of(server.address, "job", "ads") as stranger,
    ):
        owner.open_source("orders", session=SESSION)
        root, _ = owner.emit()
        owner.flush()
        with pytest.raises(Rejected, match=r"PERMISSION_DENIED: another caller has opened the source of this session"):
            thief.open_source("orders", session=SESSION)
        with pytest.raises(UnknownSource):
            stranger.join(SESSION)
        ours, transport = (
            GrpcTransport(server.address, Settings((server.address,), token=token_of("job", namespace)))
            for namespace in ("etl", "ads")
        )
        with pytest.raises(Rejected, match=r"PERMISSION_DENIED.*Drain needs the role operator"):
            transport.drain(10)
        for request in (Pins(SESSION), Pins(0, root)):
            assert ours.pins(request, 10).status == Status.APPLIED
            assert transport.pins(request, 10).status == Status.UNKNOWN_SOURCE


@pytest.mark.long
def test_a_restart_with_its_state_keeps_both_namespaces_and_a_kill_loses_both(
    server_process: Callable[..., Any], file: TokensFile, tmp_path: Path
) -> None:
    process = server_process(f"--tokens={file.path}", f"--state-dir={tmp_path}/state")
    clients = [client_of(process.address, "job", namespace) for namespace in ("etl", "ads")]
    emitted: list[list[Any]] = []
    for client in clients:
        client.open_source("orders", session=SESSION, message_timeout_s=None)
        emitted.append([client.emit() for _ in range(20)])
        client.ack(*emitted[-1][0])
        client.flush()
    process.restart()
    for n, client in enumerate(clients):
        for root, edge in emitted[n][1 : 10 + n]:
            client.ack(root, edge)
        client.flush()
        assert outcomes_of(client, 10 + n) == ["ACKED"] * (10 + n)
    with client_of(process.address, "worker", "etl") as thief, pytest.raises(Rejected, match="PERMISSION_DENIED"):
        thief.open_source("orders", session=SESSION)
    process.restart(kill=True)
    for n, client in enumerate(clients):
        # The server has forgotten these roots, and the client says so.
        assert outcomes_of(client, 10 - n) == ["LOST"] * (10 - n)
        client.close()
    events = [json.loads(line) for line in process.log.splitlines() if line.startswith("{")]
    opened = [event["namespace"] for event in events if event["event"] == "source_opened"]
    assert set(opened) == {"etl", "ads"}
    assert [event["sources"] for event in events if event["event"] == "state_restored"] == [2]


@pytest.mark.long
def test_quotas_change_under_load_and_no_call_fails_of_it(start_server: StartServer, file: TokensFile) -> None:
    server = start_server(tokens=str(file.path))
    transports = {
        namespace: GrpcTransport(server.address, Settings((server.address,), token=token_of("job", namespace)))
        for namespace in ("etl", "ads")
    }
    problems: list[BaseException] = []
    batches = {"etl": 0, "ads": 0}
    stop = threading.Event()

    def work(namespace: str) -> None:
        transport, confirmed = transports[namespace], 0
        try:
            for number in range(1, 1 << 30):
                if stop.is_set():
                    return
                reply = transport.watch(Watch("orders", SESSION, 60_000, confirmed=confirmed), 10)
                assert reply.status == Status.APPLIED
                confirmed = reply.cursor
                opened = transport.open_batch(OpenBatch(SESSION, number, number << 20, 10), 10)
                # With 15 roots at most, a batch fits once the outcomes of the last one are confirmed.
                assert opened.status == Status.APPLIED or namespace == "etl", opened
                assert opened.status in (Status.APPLIED, Status.OVERLOADED, Status.INVALID), opened
                if opened.status == Status.APPLIED:
                    assert transport.settle(Settle(SESSION, number, Settlement.ABANDON), 10).status == Status.APPLIED
                    batches[namespace] += 1
        except BaseException as error:  # noqa: BLE001  # shown below
            problems.append(error)

    threads = [threading.Thread(target=work, args=(namespace,)) for namespace in transports]
    for thread in threads:
        thread.start()
    for most in (9, 500, 5, 15):
        file.declare("etl", f"memory=64MiB max_pending={most}")
        eventually(lambda most=most: server.namespaces.of("etl").shared.stats.max_pending == most)  # type: ignore[misc]
        before = dict(batches)
        eventually(lambda before=before: batches["ads"] > before["ads"] + 5)  # type: ignore[misc]
        if most < 10:
            # One batch may have been opened before the change.
            assert batches["etl"] <= before["etl"] + 1
        else:
            eventually(lambda before=before: batches["etl"] > before["etl"] + 5)  # type: ignore[misc]
    stop.set()
    for thread in threads:
        thread.join()
    assert problems == []


def test_a_full_namespace_is_named_by_the_clients_error_and_leaves_room_for_others(
    start_server: StartServer, file: TokensFile
) -> None:
    file.declare("etl", "memory=64MiB sources=1")
    server = start_server(tokens=str(file.path))
    with (
        client_of(server.address, "job", "etl") as first,
        client_of(server.address, "job", "etl", budget_s=1.0) as second,
        client_of(server.address, "job", "ads") as other,
    ):
        first.open_source("orders")
        with pytest.raises(Overloaded, match="sources=1 of the namespace are the most"):
            second.open_source("returns")
        other.open_source("returns")


def test_status_shows_namespaces_to_an_operator(
    start_server: StartServer, file: TokensFile, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    server = start_server(tokens=str(file.path))
    monkeypatch.setenv("ACKER_TOKEN", token_of("ops", ""))
    words = ["--servers", server.address, "--interval-s", "0.1"]
    with client_of(server.address, "job", "etl") as client:
        client.open_source("orders")
        client.emit()
        client.flush()
        assert run(status, [*words, "--json"]) == 0
        found = json.loads(capsys.readouterr().out)
        assert run(status, words) == 0
    assert found["namespaces"].keys() == {"", "etl", "ads"}
    assert found["namespaces"]["etl"]["sources"] == 1
    assert found["namespaces"]["etl"]["connections"] >= 1
    assert found["namespaces"]["ads"]["memory_limit_bytes"] == 64 << 20
    assert found["total"]["sources"] == 1
    assert "\netl " in capsys.readouterr().out
