"""Own access: a server makes its certificate and its token itself, and only clients with its access file reach it."""

from __future__ import annotations

import json
import os
import pickle
import ssl
import stat
import subprocess
import sys
import urllib.request
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from acker_client.client import AckerClient
from acker_client.errors import Rejected, Unavailable
from acker_client.rpc.transport import GrpcTransport
from acker_client.settings import Settings, Tls
from acker_command import options
from acker_protocol.messages import PROTOCOL_VERSION, Hello, HelloReply
from acker_service.access import own_access, tokens
from acker_service.config import Config, ConfigError
from acker_service.core.memory import DEFAULT_BYTES
from acker_service.ports import StartError
from tests.access.authority import Authority
from tests.conftest import PATHS
from tests.service.caller import eventually, is_running

StartServer = Callable[..., Any]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "own"


def hello(settings: Settings) -> HelloReply:
    transport = GrpcTransport(settings.servers[0], settings)
    try:
        return transport.hello(Hello(PROTOCOL_VERSION, "test"), 10.0)
    finally:
        transport.close()


def test_only_clients_with_the_access_file_reach_the_server(
    start_server: StartServer, folder: Path, tmp_path: Path
) -> None:
    server = start_server(own_access=str(folder), http_port=0)
    settings = Settings.from_access_file(folder / "access.json")
    assert settings.servers == (server.address,)
    assert hello(settings).incarnation == server.shard.incarnation
    with pytest.raises(Rejected, match="the server does not know this caller"):
        hello(replace(settings, token=tokens.new_token()))
    with pytest.raises(Rejected, match="the server does not know this caller"):
        hello(replace(settings, token=None))
    for tls in (None, Tls(), Tls(Authority(tmp_path).path)):
        with pytest.raises((Unavailable, Rejected)):
            hello(Settings(settings.servers, token=settings.token, tls=tls))


def test_the_files_are_private_and_hold_the_token_only_where_they_must(
    start_server: StartServer, folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    start_server(own_access=str(folder))
    modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in folder.iterdir()}
    assert modes == dict.fromkeys(own_access.NAMES, 0o600)
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    token = (folder / "token").read_text().strip()
    assert {path.name for path in folder.iterdir() if token in path.read_text()} == {"token", "access.json"}
    assert token not in caplog.text


def test_pages_are_open_and_need_no_tls(start_server: StartServer, folder: Path) -> None:
    server = start_server(own_access=str(folder), http_port=0)
    for page in ("metrics", "livez", "readyz"):
        with urllib.request.urlopen(f"http://{server.http_address}/{page}", timeout=10) as reply:
            assert reply.status == 200


def test_a_client_goes_on_after_the_server_has_crashed(start_server: StartServer, folder: Path) -> None:
    first = start_server(own_access=str(folder))
    settings = Settings.from_access_file(folder / "access.json")
    with AckerClient(settings) as client:
        client.stats()
        first.stop(0.0)
        start_server(own_access=str(folder), port=int(first.address.rpartition(":")[2]))
        client.stats()
    assert Settings.from_access_file(folder / "access.json") == settings


def works(folder: Path, access: own_access.OwnAccess) -> bool:
    """Whether the files are those of one server: the certificate has its key, and the token its line."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(access.certificate, access.key)
    known = tokens.Tokens(access.tokens, lambda: 0.0)
    return known.identify(f"Bearer {(folder / 'token').read_text().strip()}") is not None


FILES = st.dictionaries(st.sampled_from(own_access.NAMES), st.none() | st.binary(max_size=40), max_size=5)


@pytest.mark.slow
@given(FILES, st.sets(st.sampled_from(own_access.NAMES)))
def test_a_server_has_access_that_works_whatever_was_in_the_directory(
    tmp_path_factory: pytest.TempPathFactory, damaged: dict[str, bytes | None], foreign: set[str]
) -> None:
    folder, other = (tmp_path_factory.mktemp("access") / name for name in ("own", "other"))
    for each in (folder, other):
        own_access.prepare(each, ["10.1.2.3"]).publish("10.1.2.3:7070", "10.1.2.3:7070", None)
    before = {name: (folder / name).read_bytes() for name in own_access.NAMES}
    for name in foreign:
        (folder / name).write_bytes((other / name).read_bytes())
    for name, content in damaged.items():
        (folder / name).unlink() if content is None else (folder / name).write_bytes(content)
    is_whole = all(
        (folder / name).exists() and (folder / name).read_bytes() == content
        for name, content in before.items()
        if name != "access.json"
    )
    assert works(folder, own_access.prepare(folder, ["10.1.2.3"]))
    is_kept = (folder / "token").read_bytes() == before["token"] and (folder / "tls.crt").read_bytes() == before[
        "tls.crt"
    ]
    assert is_kept >= is_whole


def test_another_host_makes_other_access_and_the_same_host_does_not(folder: Path) -> None:
    def token_for(*hosts: str) -> str:
        own_access.prepare(folder, hosts)
        return (folder / "token").read_text()

    first = token_for("10.1.2.3", "driver.jobs.svc")
    assert token_for("driver.jobs.svc", "10.1.2.3") == token_for("10.1.2.3") == token_for("::1") == first
    assert token_for("10.1.2.4") != first


def test_a_certificate_that_ends_soon_is_not_used_again(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(own_access, "VALID", own_access.LEFT)
    own_access.prepare(folder, [])
    first = (folder / "token").read_text()
    own_access.prepare(folder, [])
    assert (folder / "token").read_text() != first


def test_a_directory_that_others_may_write_is_refused(start_server: StartServer, folder: Path) -> None:
    folder.mkdir()
    folder.chmod(0o777)
    with pytest.raises(StartError, match=r"--own-access .*: other users may write there, .* chmod 700"):
        start_server(own_access=str(folder))
    assert list(folder.iterdir()) == []


def test_a_file_in_the_place_of_the_directory_is_named(start_server: StartServer, folder: Path) -> None:
    folder.write_text("")
    with pytest.raises(StartError, match=rf"--own-access \(ACKER_OWN_ACCESS\): .*{folder}"):
        start_server(own_access=str(folder))


def test_options_that_contradict_own_access_are_named() -> None:
    for more in ({"tls_cert": "a", "tls_key": "b"}, {"tokens": "a"}, {"zookeeper": "a:1", "id": 1}):
        with pytest.raises(ConfigError, match=f"leave out --{next(iter(more)).replace('_', '-')}, or --own-access"):
            Config(own_access="own", **more)
    with pytest.raises(ConfigError, match=r"--advertise .*: needed with --own-access where --host is 0\.0\.0\.0"):
        Config(own_access="own", host="0.0.0.0")
    assert Config(own_access="own", host="0.0.0.0", advertise="driver:0").memory_bytes == DEFAULT_BYTES


def test_port_0_of_advertise_stands_for_the_port_for_calls(start_server: StartServer, folder: Path) -> None:
    server = start_server(own_access=str(folder), advertise="localhost:0")
    settings = Settings.from_access_file(folder / "access.json")
    assert settings.servers == (f"localhost:{server.address.rpartition(':')[2]}",)
    assert hello(settings).incarnation == server.shard.incarnation


# -- settings


def test_settings_show_neither_token_nor_certificate_and_a_pickle_holds_both(
    start_server: StartServer, folder: Path
) -> None:
    start_server(own_access=str(folder))
    settings = Settings.from_access_file(folder / "access.json")
    assert settings.token is not None
    assert settings.tls is not None
    assert settings.tls.ca == (folder / "tls.crt").read_text()
    for shown in (repr(settings), str(settings.tls), repr(AckerClient(settings))):
        assert settings.token not in shown
        assert "BEGIN" not in shown
    travelled = pickle.loads(pickle.dumps(settings))
    assert travelled == settings
    key = (folder / "tls.key").read_text()
    assert key.splitlines()[1].encode() not in pickle.dumps(settings)
    with pytest.raises(ValueError, match="key: give the path of a file"):
        Tls(cert="client.crt", key=key)


@pytest.mark.parametrize("content", ["", "{}", "[1]", '{"servers": ["a:1"], "token": "secret"}', "\udc80"])
def test_a_file_that_is_no_access_file_is_named_and_not_shown(tmp_path: Path, content: str) -> None:
    path = tmp_path / "access.json"
    path.write_bytes(content.encode(errors="surrogateescape"))
    with pytest.raises(ValueError, match=rf"access file {path}: is not the access\.json of a server") as raised:
        Settings.from_access_file(path)
    assert "secret" not in str(raised.value)


def test_a_missing_access_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"access file .*: No such file or directory; a server writes it"):
        Settings.from_access_file(tmp_path / "access.json")


def test_clients_and_commands_take_the_file_from_an_argument_or_a_variable(
    start_server: StartServer, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    start_server(own_access=str(folder))
    path = folder / "access.json"
    settings = Settings.from_access_file(path)
    assert AckerClient(access_file=path, replicas=1).settings == replace(settings, replicas=1)
    assert Settings.from_environment({"ACKER_ACCESS_FILE": str(path)}) == settings
    assert options.settings(None, {"ACKER_ACCESS_FILE": str(path)}) == settings
    with pytest.raises(ValueError, match="leave out servers, token, tls"):
        AckerClient("a:1", access_file=path)
    with pytest.raises(ValueError, match=r"ACKER_SERVERS and ACKER_ACCESS_FILE: .*; give one of them"):
        Settings.from_environment({"ACKER_ACCESS_FILE": str(path), "ACKER_SERVERS": "a:1"})


# -- the end of the process that started the server

PARENT = """
import subprocess, sys
child = subprocess.Popen([sys.executable, "-m", "acker_service", *sys.argv[1:]], stdin=subprocess.PIPE)
print(child.pid, flush=True)
child.wait()
"""


@pytest.mark.slow
def test_a_server_ends_with_the_process_that_started_it_and_removes_its_access(folder: Path) -> None:
    flags = ["serve", "--port=0", "--http-port=off", f"--own-access={folder}", "--until-stdin-ends"]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(PATHS)}
    with subprocess.Popen([sys.executable, "-c", PARENT, *flags], stdout=subprocess.PIPE, env=environment) as parent:
        assert parent.stdout is not None
        pid = int(parent.stdout.readline())
        eventually((folder / "access.json").exists, within_s=60.0)
        assert json.loads((folder / "access.json").read_text())["http_address"] is None
        parent.kill()
    eventually(lambda: not is_running(pid), within_s=60.0)
    assert not folder.exists()
