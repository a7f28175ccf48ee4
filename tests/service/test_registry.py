"""Registry: servers find each other through a real ZooKeeper, lose the connection, and come back."""

from __future__ import annotations

import contextlib
import json
import logging
import shutil
import socket
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any, Self

import grpc
import pytest
from kazoo.client import KazooClient
from kazoo.exceptions import NoAuthError

from acker_protocol.messages import ListedMember, MemberState, OpenBatch, Status
from acker_protocol.placement import parts_of
from acker_protocol.version import VERSION
from acker_service.core import members
from acker_service.core.members import Away, Registered
from acker_service.ports import StartError
from acker_service.zookeeper import registry
from acker_service.zookeeper.nodes import Nodes
from tests.service.caller import SESSION, Caller, eventually
from tests.service.pages import page

# Long enough that sessions end only where a test ends them.
SESSION_S = 20.0
SHORT_S = 2.0
FIRST = 1 << 40
NINE = Registered(9, "nine.example", 7070, "0.1.0", 7, 8)
ACTIVE, DRAINING, AWAY = MemberState.ACTIVE, MemberState.DRAINING, MemberState.AWAY


@pytest.fixture
def join(start_server: Callable[..., Any], zookeeper: str) -> Callable[..., Any]:
    """``join(1)``: start a server with this id in this test's cluster."""

    def start(id: int, **options: Any) -> Any:
        return start_server(**{"zookeeper": zookeeper, "id": id, "zookeeper_session_s": SESSION_S, **options})

    return start


@pytest.fixture
def start_with_short_session(start_server: Callable[..., Any]) -> Callable[..., Any]:
    """Start a server as a supervisor does: again, if a busy machine kept ZooKeeper from answering within SHORT_S."""

    def start(**options: Any) -> Any:
        for left in range(9, -1, -1):
            try:
                return start_server(zookeeper_session_s=SHORT_S, **options)
            except StartError as error:
                if "no ZooKeeper answered" not in str(error) or not left:
                    raise
        raise AssertionError

    return start


def states(server: Any) -> dict[int, MemberState]:
    return {each.member.id: each.state for each in server.view().members}


def listed(server: Any, id: int) -> ListedMember:
    found: ListedMember
    [found] = [each for each in server.view().members if each.member.id == id]
    return found


def await_states(server: Any, expected: dict[int, MemberState]) -> None:
    eventually(lambda: states(server) == expected)


def lines(process: Any, event: str) -> list[dict[str, Any]]:
    return [fields for fields in map(json.loads, process.log.splitlines()) if fields["event"] == event]


# -- joined


def test_servers_see_each_other_come_and_go_and_the_epoch_grows(join: Callable[..., Any]) -> None:
    one, two = join(1), join(2)
    assert states(two) == {1: ACTIVE, 2: ACTIVE}
    await_states(one, {1: ACTIVE, 2: ACTIVE})
    assert one.view().epoch == two.view().epoch > 0
    assert listed(one, 2).member.address == two.address
    assert listed(one, 2).member.generation == two.shard.generation
    before = one.view().epoch
    two.stop(grace_s=0.0)
    await_states(one, {1: ACTIVE})
    assert one.view().epoch > before


def test_every_reply_has_the_epoch_of_the_view(join: Callable[..., Any]) -> None:
    server = join(5)
    epoch = server.view().epoch
    with Caller(server.address) as caller:
        caller.begin()
        opened = caller.open_batch(OpenBatch(SESSION, 1, FIRST, 1))
        hello, pins = caller.hello(), caller.pins()
        assert {reply.epoch for reply in (hello, opened, caller.watch(), caller.stats(), caller.view(), pins)} == {
            epoch
        }
        assert (hello.id, hello.generation) == (5, server.shard.generation)


def test_a_server_registers_where_clients_reach_it(join: Callable[..., Any], nodes: Any) -> None:
    server = join(3, advertise="acker-3.example:1234", advertise_unchecked=True, host="0.0.0.0", insecure=True)
    content, stat = nodes.get("/servers/ids/3")
    assert stat.ephemeralOwner
    assert json.loads(content) == {
        "host": "acker-3.example",
        "port": 1234,
        "version": VERSION,
        "generation": hex(server.shard.generation),
        "incarnation": hex(server.shard.incarnation),
    }
    config = json.loads(nodes.get("/config")[0])
    assert (config["protocol_version"], config["slots"], len(config["acker"])) == (2, 1024, 32)
    assert config["ensemble"] == parts_of(server.view().epoch)[0] > 1_700_000_000_000


def test_metrics_say_epoch_members_and_connection(join: Callable[..., Any]) -> None:
    server, other = join(1, http_port=0), join(2)
    await_states(server, {1: ACTIVE, 2: ACTIVE})
    before = server.view().epoch
    other.drain()
    eventually(lambda: server.view().epoch > before)
    assert states(server) == {1: ACTIVE, 2: DRAINING}
    _, text = page(server, "/metrics")
    found = dict(line.rsplit(" ", 1) for line in text.splitlines() if line.startswith("acker_"))
    assert (float(found["acker_view_ensemble"]), float(found["acker_view_epoch"])) == parts_of(server.view().epoch)
    assert [found[f'acker_view_members{{state="{state}"}}'] for state in ("active", "draining", "away")] == [
        "1.0",
        "1.0",
        "0.0",
    ]
    assert found["acker_zookeeper_connected"] == "1.0"


def test_the_first_servers_of_a_cluster_may_start_together(
    join: Callable[..., Any], nodes: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    find = Nodes.find

    def found(self: Any, path: str, **options: Any) -> Any:
        """Read `config`; another server writes it a moment later."""
        answer = find(self, path, **options)
        if path == "/config" and answer is None and not nodes.exists(path):
            nodes.create("/config", members.new_config("f" * 32, 7))
        return answer

    monkeypatch.setattr(Nodes, "find", found)
    assert states(join(1)) == {1: ACTIVE}


# -- refused


def test_an_id_that_is_taken_is_refused_by_a_sentence_and_the_state_stays(
    join: Callable[..., Any], tmp_path: Path
) -> None:
    kept = join(2, state_dir=str(tmp_path))
    with Caller(kept.address) as caller:
        caller.begin()
    kept.stop(grace_s=0.0)
    holder = join(1)
    with pytest.raises(StartError, match=rf"id 1 is taken by the server at {holder.address} .*another --id"):
        join(1, state_dir=str(tmp_path))
    assert join(2, state_dir=str(tmp_path)).shard.stats.sources == 1


def test_two_servers_of_one_address_are_refused_by_a_sentence(join: Callable[..., Any]) -> None:
    join(1, advertise="acker.example:7070", advertise_unchecked=True)
    with pytest.raises(StartError, match=r"server 1 already uses the address acker\.example:7070"):
        join(2, advertise="acker.example:7070", advertise_unchecked=True)


@pytest.mark.parametrize(
    ("made", "sentence"),
    [
        ({"/config": b"", "/brokers": b""}, "its `config` is not from an acker, so it belongs to another cluster"),
        ({"/brokers": b"", "/controller": b""}, "it holds brokers, controller, which is not from an acker"),
        (
            {"/config": b'{"acker": "c", "protocol_version": 1, "slots": 1024}', "/servers/ids/9": b"{}"},
            "its servers have protocol_version 1 and this one has 2",
        ),
    ],
)
def test_a_chroot_of_another_cluster_is_refused_by_a_sentence(
    join: Callable[..., Any], nodes: Any, made: dict[str, bytes], sentence: str
) -> None:
    for path, content in made.items():
        nodes.create(path, content, makepath=True)
    with pytest.raises(StartError, match=sentence):
        join(1)


def test_a_stopped_cluster_may_start_in_another_version(join: Callable[..., Any], nodes: Any) -> None:
    nodes.create("/config", b'{"acker": "c", "protocol_version": 1, "slots": 1024}', makepath=True)
    join(1)
    assert nodes.get("/config")[0] == members.new_config("c", 0)


def test_a_zookeeper_that_does_not_answer_is_named_by_a_sentence_with_the_reason(join: Callable[..., Any]) -> None:
    said = r"no ZooKeeper answered at 127\.0\.0\.1:1 within 1 s \(.*Connection refused\): start it"
    with pytest.raises(StartError, match=said):
        join(1, zookeeper="127.0.0.1:1/acker", zookeeper_session_s=1.0)


def test_a_digest_keeps_others_out(join: Callable[..., Any], nodes: Any) -> None:
    join(1, zookeeper_digest="acker:secret")
    with pytest.raises(NoAuthError):
        nodes.get("/servers/ids/1")
    join(2, zookeeper_digest="acker:secret")
    for digest in (None, "acker:another"):
        with pytest.raises(StartError, match="its nodes belong to another user"):
            join(3, zookeeper_digest=digest)


# -- draining and away


def test_a_draining_server_is_listed_as_such_and_its_id_stays_taken(join: Callable[..., Any], nodes: Any) -> None:
    one, two = join(1), join(2)
    with Caller(two.address) as caller:
        caller.begin()
        caller.open_batch(OpenBatch(SESSION, 1, FIRST, 1))
        before = one.view().epoch
        caller.drain()
        assert states(two)[2] == DRAINING
        await_states(one, {1: ACTIVE, 2: DRAINING})
        eventually(lambda: one.view().epoch > before)
        assert not nodes.exists("/servers/ids/2")
        with pytest.raises(StartError, match="id 2 is taken by the server at"):
            join(2)
        two.stop(grace_s=0.0)
        await_states(one, {1: ACTIVE})


def test_a_server_that_stops_with_its_state_is_away_until_it_is_back(
    join: Callable[..., Any], nodes: Any, tmp_path: Path
) -> None:
    one, two = join(1), join(2, state_dir=str(tmp_path), away_s=30.0)
    generation = two.shard.generation
    two.stop(grace_s=0.0)
    await_states(one, {1: ACTIVE, 2: AWAY})
    away = listed(one, 2)
    assert away.member.generation == generation
    assert 0 < away.away_ms <= 30_000
    with Caller(one.address) as caller:
        assert caller.view().members[1].state == AWAY
    back = join(2, state_dir=str(tmp_path))
    assert back.shard.generation == generation
    await_states(one, {1: ACTIVE, 2: ACTIVE})
    assert not nodes.exists("/servers/away/2")


def test_a_server_that_was_asked_to_drain_is_not_away_when_it_stops_with_work_left(
    join: Callable[..., Any], nodes: Any, tmp_path: Path
) -> None:
    one, two = join(1), join(2, state_dir=str(tmp_path), away_s=30.0)
    with Caller(two.address) as caller:
        caller.begin()
        caller.open_batch(OpenBatch(SESSION, 1, FIRST, 1))
        caller.drain()
    await_states(one, {1: ACTIVE, 2: DRAINING})
    two.stop(grace_s=0.0)
    assert not nodes.exists("/servers/away/2")
    await_states(one, {1: ACTIVE})


def test_a_server_that_did_not_come_back_in_time_is_gone(join: Callable[..., Any], nodes: Any, tmp_path: Path) -> None:
    one, two = join(1), join(2, state_dir=str(tmp_path), away_s=0.3)
    seen = two.view().members[1].member
    two.stop(grace_s=0.0)
    await_states(one, {1: ACTIVE})
    # Any server that reads a node in away removes it if its time is over.
    nodes.set("/servers/away/2", Away(seen, 1).dump())
    join(3)
    eventually(lambda: not nodes.exists("/servers/away/2"))


@pytest.mark.long
def test_a_server_that_could_not_write_its_state_leaves_at_once(
    join: Callable[..., Any], server_process: Callable[..., Any], nodes: Any, zookeeper: str, tmp_path: Path
) -> None:
    watching = join(1)
    process = server_process(f"--zookeeper={zookeeper}", "--id=2", f"--state-dir={tmp_path}", "--away-s=600")
    await_states(watching, {1: ACTIVE, 2: ACTIVE})
    # Writes to this file fail with a full disk.
    (tmp_path / "acker.state.tmp").symlink_to("/dev/full")
    assert process.terminate() == 1
    assert not nodes.exists("/servers/away/2")
    await_states(watching, {1: ACTIVE})


# -- reachable at the advertised address


@pytest.fixture
def brief(monkeypatch: pytest.MonkeyPatch) -> None:
    """Shorten the time for which a server tries a wrong address."""
    monkeypatch.setattr("acker_service.server.ADVERTISED_S", 0.5)


@pytest.mark.usefixtures("brief")
def test_a_server_that_is_not_where_it_says_does_not_start_and_leaves_nothing(
    join: Callable[..., Any], nodes: Any, tmp_path: Path
) -> None:
    with socket.socket() as nobody:
        nobody.bind(("127.0.0.1", 0))
        dead = f"127.0.0.1:{nobody.getsockname()[1]}"
        said = rf"--advertise .*does not answer at {dead} \(.*\).*give the host:port at which they reach this server"
        with pytest.raises(StartError, match=said):
            join(1, advertise=dead, state_dir=str(tmp_path))
    assert not nodes.exists("/servers/ids/1")
    # Its port and its state are free again.
    assert states(join(1, state_dir=str(tmp_path))) == {1: ACTIVE}


@pytest.mark.usefixtures("brief")
@pytest.mark.parametrize("unchecked", [False, True])
def test_a_server_does_not_start_with_the_address_of_another_one(join: Callable[..., Any], *, unchecked: bool) -> None:
    other = join(1)
    with pytest.raises(StartError, match=rf"another server answers at {other.address}, server 1 \(acker .*\)"):
        join(2, advertise=other.address, advertise_unchecked=unchecked)
    with Caller(other.address) as caller:
        caller.begin()


def test_a_server_answers_only_after_it_reached_its_own_address(
    join: Callable[..., Any], zookeeper: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    early: list[grpc.StatusCode] = []
    register = registry.Registry.register

    def ask_and_register(self: Any) -> None:
        with Caller(f"localhost:{port}") as caller, pytest.raises(grpc.RpcError) as refused:
            caller.hello()
        early.append(refused.value.code())
        register(self)

    monkeypatch.setattr(registry.Registry, "register", ask_and_register)
    server = join(1, port=port, advertise=f"localhost:{port}")
    assert early == [grpc.StatusCode.UNAVAILABLE]
    with Caller(f"localhost:{port}") as caller:
        caller.begin()
        assert [each.member.address for each in caller.view().members] == [f"localhost:{port}"]
    server.stop(grace_s=0.0)


@pytest.mark.usefixtures("brief")
def test_a_server_that_cannot_reach_itself_starts_with_advertise_unchecked_and_logs_it(
    join: Callable[..., Any], caplog: pytest.LogCaptureFixture
) -> None:
    assert states(join(1, advertise="127.0.0.1:1", advertise_unchecked=True)) == {1: ACTIVE}
    assert "advertise_unreachable" in caplog.messages


# -- lost and back


def expire(server: Any, zookeeper: str) -> None:
    """End a server's ZooKeeper session from outside. The server cannot reconnect meanwhile."""
    client = server._registry._nodes._client

    def refused(*_: object, **__: object) -> Any:
        raise OSError("cut off")

    connect, client.handler.create_connection = client.handler.create_connection, refused
    thief = KazooClient(zookeeper.partition("/")[0], client_id=client.client_id, timeout=SESSION_S)
    thief.start()
    thief.stop()
    thief.close()
    client.handler.create_connection = connect


def test_a_server_whose_session_has_ended_registers_again_with_the_generation_it_has(
    join: Callable[..., Any], nodes: Any, zookeeper: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "acker.registry")
    server = join(1)
    generation, epoch, owner = (
        server.shard.generation,
        server.view().epoch,
        nodes.get("/servers/ids/1")[1].ephemeralOwner,
    )
    expire(server, zookeeper)
    eventually(lambda: server.view().epoch > epoch)
    content, stat = nodes.get("/servers/ids/1")
    assert stat.ephemeralOwner not in (0, owner)
    assert Registered.load("1", content).generation == generation
    eventually(lambda: caplog.messages[-1] == "registry_back")
    assert caplog.messages.count("registry_lost") == caplog.messages.count("registry_back") == 1


def test_a_server_whose_id_was_taken_meanwhile_drains(
    join: Callable[..., Any], nodes: Any, caplog: pytest.LogCaptureFixture
) -> None:
    server = join(1)
    with Caller(server.address) as caller:
        caller.begin()
        caller.open_batch(OpenBatch(SESSION, 1, FIRST, 1))
        other = Registered(1, "other.example", 7070, "0.1.0", 7, 8)
        swap = nodes.transaction()
        swap.delete("/servers/ids/1")
        swap.create("/servers/ids/1", other.dump())
        swap.commit()
        eventually(lambda: bool(caller.hello().is_draining))
        assert "id_taken" in caplog.messages
        # Its open batches go on, but the id belongs to the other server.
        assert caller.open_batch(OpenBatch(SESSION, 1, FIRST, 1)).status == Status.APPLIED
        eventually(lambda: caller.view().members == (ListedMember(other.member),))
    server.stop(grace_s=0.0)
    assert nodes.get("/servers/ids/1")[0] == other.dump()


def test_a_server_waits_for_the_node_of_its_own_dead_process_to_go(
    join: Callable[..., Any], nodes: Any, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "acker.registry")
    join(1)
    dead = Registered(2, "two.example", 7070, "0.1.0", 7, 8)
    nodes.create("/servers/ids/2", dead.dump(), ephemeral=True)
    with ThreadPoolExecutor(1) as starting:
        server = starting.submit(join, 2, advertise=dead.address, advertise_unchecked=True)
        eventually(lambda: "registration_waits" in caplog.messages)
        assert not server.done()
        nodes.delete("/servers/ids/2")
        assert listed(server.result(), 2).member.generation == server.result().shard.generation


@pytest.mark.long
def test_a_server_that_was_killed_or_paused_is_gone_and_comes_back(
    server_process: Callable[..., Any], join: Callable[..., Any], zookeeper: str
) -> None:
    watching = join(1)
    process = server_process(f"--zookeeper={zookeeper}", "--id=2", f"--zookeeper-session-s={SHORT_S}")
    await_states(watching, {1: ACTIVE, 2: ACTIVE})
    before = listed(watching, 2).member
    process.pause()
    await_states(watching, {1: ACTIVE})
    process.resume()
    await_states(watching, {1: ACTIVE, 2: ACTIVE})
    assert listed(watching, 2).member == before
    with Caller(process.address) as caller:
        caller.begin()
    eventually(lambda: bool(lines(process, "registry_back")))
    process.kill()
    await_states(watching, {1: ACTIVE})
    process.start()
    await_states(watching, {1: ACTIVE, 2: ACTIVE})
    # It has the same port, but lost its state.
    after = listed(watching, 2).member
    assert after.address == before.address
    assert after.generation != before.generation


@pytest.mark.long
@pytest.mark.jvm
def test_without_zookeeper_servers_keep_their_view(
    tmp_path: Path, start_server: Callable[..., Any], caplog: pytest.LogCaptureFixture
) -> None:
    from acker_testing import ZooKeeperProcess

    caplog.set_level(logging.INFO, "acker.registry")
    zookeeper = ZooKeeperProcess(tmp_path)
    try:
        place = {"zookeeper": f"{zookeeper.address}/acker", "zookeeper_session_s": SESSION_S}
        one, two = (start_server(id=id, http_port=0, **place) for id in (1, 2))
        await_states(one, {1: ACTIVE, 2: ACTIVE})
        before = one.view()
        zookeeper.kill()
        eventually(lambda: caplog.messages.count("registry_lost") == 2)
        assert "acker_zookeeper_connected 0.0" in page(one, "/metrics")[1]
        with Caller(one.address) as caller:
            caller.begin()
            assert caller.open_batch(OpenBatch(SESSION, 1, FIRST, 1)).epoch == before.epoch
            assert caller.view() == before
        zookeeper.start()
        # Both servers are in every view in between.
        while caplog.messages.count("registry_back") < 2:
            assert states(one) == states(two) == {1: ACTIVE, 2: ACTIVE}
            time.sleep(0.001)
        three = start_server(id=3, **place)
        for server in (one, two, three):
            await_states(server, {1: ACTIVE, 2: ACTIVE, 3: ACTIVE})
        assert caplog.messages.count("registry_lost") == 2
        for server in (one, two, three):
            server.stop(grace_s=0.0)
    finally:
        zookeeper.kill()


@contextlib.contextmanager
def own_zookeeper(folder: Path) -> Iterator[Any]:
    """A ZooKeeper that only this test uses."""
    from acker_testing import ZooKeeperProcess

    zookeeper = ZooKeeperProcess(folder)
    try:
        yield zookeeper
    finally:
        zookeeper.kill()


@pytest.mark.long
@pytest.mark.jvm
def test_servers_register_again_with_a_zookeeper_that_has_lost_its_data_and_their_epoch_grows(
    tmp_path: Path, start_with_short_session: Callable[..., Any]
) -> None:
    (tmp_path / "zookeeper").mkdir()
    with own_zookeeper(tmp_path / "zookeeper") as zookeeper:
        place = {"zookeeper": f"{zookeeper.address}/acker"}
        one, two = (start_with_short_session(id=id, **place) for id in (1, 2))
        gone = start_with_short_session(id=3, state_dir=str(tmp_path / "state"), away_s=600.0, **place)
        gone.stop(grace_s=0.0)
        for server in (one, two):
            await_states(server, {1: ACTIVE, 2: ACTIVE, 3: AWAY})
        before = one.view()
        zookeeper.empty()
        # Every view in between has both servers, and also the third server, which is away and cannot register itself.
        while min(server.view().epoch for server in (one, two)) <= before.epoch:
            assert states(one).keys() == states(two).keys() == {1, 2, 3}
            assert states(one)[3] == states(two)[3] == AWAY
            time.sleep(0.001)
        assert {each.member for each in one.view().members} == {each.member for each in before.members}
        back = start_with_short_session(id=3, state_dir=str(tmp_path / "state"), **place)
        for server in (one, two, back):
            await_states(server, {1: ACTIVE, 2: ACTIVE, 3: ACTIVE})
        eventually(lambda: one.view().epoch == two.view().epoch == back.view().epoch)
        for server in (one, two, back):
            server.stop(grace_s=0.0)


@pytest.mark.long
@pytest.mark.jvm
def test_servers_go_on_in_a_zookeeper_that_was_restored_from_a_backup(
    tmp_path: Path, start_with_short_session: Callable[..., Any]
) -> None:
    with own_zookeeper(tmp_path) as zookeeper:
        place = {"zookeeper": f"{zookeeper.address}/acker"}
        one = start_with_short_session(id=1, **place)
        zookeeper.kill()
        shutil.copytree(tmp_path / "data", tmp_path / "backup")
        zookeeper.start()
        two = start_with_short_session(id=2, **place)
        for _ in range(10):
            # The backup must be older by more writes than the servers make when they come back.
            passing = start_with_short_session(id=3, **place)
            passing.stop(grace_s=0.0)
        await_states(one, {1: ACTIVE, 2: ACTIVE})
        before = max(one.view().epoch, two.view().epoch)
        zookeeper.kill()
        shutil.rmtree(tmp_path / "data")
        (tmp_path / "backup").rename(tmp_path / "data")
        zookeeper.start()
        eventually(lambda: min(one.view().epoch, two.view().epoch) > before)
        # A server that had stopped would be missing from the views.
        for server in (one, two):
            await_states(server, {1: ACTIVE, 2: ACTIVE})
        for server in (one, two):
            server.stop(grace_s=0.0)


@pytest.mark.sampled(3)
@pytest.mark.parametrize(
    "config",
    [None, members.new_config("f" * 32, 5), b'{"acker": "older", "protocol_version": 2, "slots": 1024}'],
    ids=["none", "of a server whose clock is behind", "of an older version"],
)
def test_the_cluster_continues_in_an_emptied_chroot_whatever_config_is_there(
    join: Callable[..., Any], nodes: Any, config: bytes | None
) -> None:
    one, two = join(1), join(2)
    await_states(one, {1: ACTIVE, 2: ACTIVE})
    before = max(one.view().epoch, two.view().epoch)
    lost = nodes.transaction()
    for path in ("ids/1", "ids/2", "known/1", "known/2", "ids", "draining", "away", "known"):
        lost.delete(f"/servers/{path}")
    lost.delete("/servers")
    lost.delete("/config")
    if config is not None:
        lost.create("/config", config)
    assert not any(isinstance(result, Exception) for result in lost.commit())
    eventually(lambda: min(one.view().epoch, two.view().epoch) > before)
    for server in (one, two):
        await_states(server, {1: ACTIVE, 2: ACTIVE})
    found = nodes.get("/config")[0]
    assert members.ensemble_of(found) > parts_of(before)[0]
    assert config is None or members.cluster_of(found) == members.cluster_of(config)


def test_a_server_whose_chroot_was_taken_by_another_version_meanwhile_says_so_and_keeps_its_view(
    join: Callable[..., Any], nodes: Any, caplog: pytest.LogCaptureFixture
) -> None:
    server = join(1)
    before = server.view()
    nodes.create("/servers/draining/9", Registered(9, "nine.example", 7070, "0.2.0", 7, 8).dump())
    nodes.set("/config", b'{"acker": "c", "protocol_version": 3, "slots": 1024, "ensemble": 9999999999999}')
    eventually(lambda: any("protocol_version 3" in str(record.__dict__) for record in caplog.records))
    assert states(server)[1] == ACTIVE
    assert parts_of(server.view().epoch)[0] == parts_of(before.epoch)[0]


def test_a_server_that_is_missing_when_zookeeper_comes_back_is_away_for_a_session(
    join: Callable[..., Any], nodes: Any
) -> None:
    server = join(1)
    nodes.create("/servers/known/9", NINE.dump())
    nodes.create("/servers/ids/9", NINE.dump())
    await_states(server, {1: ACTIVE, 9: ACTIVE})
    registry = server._registry
    registry._expect([NINE])
    nodes.delete("/servers/ids/9")
    await_states(server, {1: ACTIVE, 9: AWAY})
    assert 0 < listed(server, 9).away_ms <= SESSION_S * 1000
    assert sorted(nodes.get_children("/servers/known")) == ["1", "9"]
    registry._seen = replace(registry._seen, expected=(Away(NINE.member, 0),))
    registry._refresh_view()
    assert states(server) == {1: ACTIVE}
    assert nodes.get_children("/servers/known") == ["1"]


def test_a_server_that_starts_lists_a_missing_server_as_away_until_it_registers_again_or_leaves(
    join: Callable[..., Any], nodes: Any
) -> None:
    nodes.create("/servers/known/9", NINE.dump(), makepath=True)
    server = join(1)
    assert states(server) == {1: ACTIVE, 9: AWAY}
    nodes.create("/servers/ids/9", NINE.dump())
    await_states(server, {1: ACTIVE, 9: ACTIVE})
    nodes.delete("/servers/known/9")
    nodes.delete("/servers/ids/9")
    await_states(server, {1: ACTIVE})
    server.stop(grace_s=0.0)
    assert nodes.get_children("/servers/known") == []


def test_a_server_writes_its_node_in_known_again_if_another_has_deleted_it(
    join: Callable[..., Any], nodes: Any
) -> None:
    server = join(1)
    nodes.delete("/servers/known/1")
    join(2)
    await_states(server, {1: ACTIVE, 2: ACTIVE})
    eventually(lambda: sorted(nodes.get_children("/servers/known")) == ["1", "2"])


@pytest.mark.long
def test_servers_whose_sessions_end_while_another_one_starts_stay_in_every_view(
    server_process: Callable[..., Any], join: Callable[..., Any], nodes: Any, zookeeper: str
) -> None:
    process = server_process(f"--zookeeper={zookeeper}", "--id=2", f"--zookeeper-session-s={SHORT_S}")
    eventually(lambda: nodes.exists("/servers/ids/2") is not None)
    process.pause()
    eventually(lambda: not nodes.get_children("/servers/ids"))
    server = join(1)
    assert states(server) == {1: ACTIVE, 2: AWAY}
    expected = listed(server, 2).member
    process.resume()
    await_states(server, {1: ACTIVE, 2: ACTIVE})
    assert listed(server, 2).member == expected


def test_a_zookeeper_that_takes_a_connection_and_is_silent_on_it_does_not_cost_the_session(
    join: Callable[..., Any], zookeeper: str
) -> None:
    """A starting ZooKeeper does this sometimes; kazoo by itself waits for the whole session."""
    place, _, chroot = zookeeper.partition("/")
    with SilentAtFirst(place) as silent:
        server = join(1, zookeeper=f"{silent.address}/{chroot}", zookeeper_session_s=5.0)
        assert states(server) == {1: ACTIVE}
        server.stop(grace_s=0.0)
    assert silent.connections > 1


class SilentAtFirst:
    """Accepts connections in place of ZooKeeper, and never answers the first one."""

    def __init__(self, place: str) -> None:
        host, _, port = place.rpartition(":")
        self._place = host, int(port)
        self._listening = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._listening.getsockname()[1]}"
        self.connections = 0
        self._open: list[socket.socket] = []
        self._threads = [threading.Thread(target=self._take)]

    def __enter__(self) -> Self:
        self._threads[0].start()
        return self

    def __exit__(self, *_: object) -> None:
        self._listening.shutdown(socket.SHUT_RDWR)
        self._threads[0].join()
        for each in [self._listening, *self._open]:
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
        for thread in self._threads:
            thread.join()
        for each in [self._listening, *self._open]:
            each.close()

    def _take(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                taken, _ = self._listening.accept()
                self.connections += 1
                self._open.append(taken)
                if self.connections > 1:
                    self._join(taken, socket.create_connection(self._place))

    def _join(self, one: socket.socket, other: socket.socket) -> None:
        self._open.append(other)
        for source, target in ((one, other), (other, one)):
            thread = threading.Thread(target=_copy, args=(source, target))
            self._threads.append(thread)
            thread.start()


def _copy(source: socket.socket, target: socket.socket) -> None:
    with contextlib.suppress(OSError):
        while content := source.recv(65536):
            target.sendall(content)
        target.shutdown(socket.SHUT_WR)


@pytest.mark.long
@pytest.mark.jvm
def test_a_server_stops_in_time_also_while_zookeeper_is_away(tmp_path: Path, start_server: Callable[..., Any]) -> None:
    from acker_testing import ZooKeeperProcess

    zookeeper = ZooKeeperProcess(tmp_path)
    server = start_server(id=1, zookeeper=f"{zookeeper.address}/acker", zookeeper_session_s=SESSION_S)
    zookeeper.kill()
    eventually(lambda: not server._registry.is_connected)
    server.stop(grace_s=0.0)
