"""TLS and tokens end to end: real servers, real certificates, the real client."""

from __future__ import annotations

import errno
import socket
import ssl
import threading
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import grpc
import pytest
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc

from acker_client import AckerClient, Settings, Tls
from acker_client.errors import Rejected, Unavailable
from acker_client.rpc.transport import GrpcTransport
from acker_protocol.messages import PROTOCOL_VERSION, Hello, Pins
from acker_service.access import tokens
from acker_service.access.certificates import Certificates
from acker_service.access.files import WatchedFiles
from acker_service.access.roles import Role
from acker_service.config import Config, ConfigError
from acker_service.http import health
from acker_service.ports import StartError
from tests.access.authority import Authority, replace

StartServer = Callable[..., Any]


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path)


def test_a_client_that_trusts_the_servers_ca_works_over_tls(start_server: StartServer, authority: Authority) -> None:
    server = start_server(**_tls_options(authority))
    with AckerClient(server.address, tls=Tls(ca=authority.path)) as client:
        client.open_source("orders")
        root, edge = client.emit()
        client.ack(root, edge)
        client.flush()
        assert [each.verdict.name for each in client.watch(wait_s=10).outcomes] == ["ACKED"]


@pytest.mark.parametrize("tls", [None, True, "another ca"])
def test_a_client_without_tls_or_with_another_ca_does_not_reach_the_server(
    start_server: StartServer, authority: Authority, tmp_path: Path, tls: Any
) -> None:
    server = start_server(**_tls_options(authority))
    ca = Tls(ca=Authority(tmp_path, "another").path) if tls == "another ca" else tls
    with pytest.raises((Unavailable, Rejected)):
        _hello(GrpcTransport(server.address, Settings((server.address,), tls=ca)))


def test_a_server_with_a_ca_for_clients_takes_no_client_without_a_certificate(
    start_server: StartServer, authority: Authority, tmp_path: Path
) -> None:
    server = start_server(**_tls_options(authority), tls_client_ca=authority.path)
    cert, key = authority.issue("client")
    foreign_cert, foreign_key = Authority(tmp_path, "foreign").issue("foreign")
    for tls in (Tls(authority.path), Tls(authority.path, foreign_cert, foreign_key)):
        with pytest.raises(Unavailable):
            _hello(GrpcTransport(server.address, Settings((server.address,), tls=tls)))
    _hello(GrpcTransport(server.address, Settings((server.address,), tls=Tls(authority.path, cert, key))))


def test_a_server_whose_certificate_is_none_for_callers_says_so_when_it_does_not_reach_itself(
    start_server: StartServer, authority: Authority, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("acker_service.server.ADVERTISED_S", 0.0)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    cluster = {"zookeeper": "127.0.0.1:1", "id": 1, "port": port, "advertise": f"127.0.0.1:{port}"}
    with pytest.raises(StartError) as refused:
        start_server(**_tls_options(authority), tls_client_ca=Authority(tmp_path, "callers").path, **cluster)
    assert (
        "With --tls-client-ca the server shows --tls-cert as its own caller: take a certificate for callers too, from "
        "one of these CAs" in str(refused.value)
    )


def test_a_certificate_may_stand_for_a_token(start_server: StartServer, authority: Authority, tmp_path: Path) -> None:
    (tmp_path / "tokens").write_text("certificate:etl client etl\n")
    server = start_server(**_tls_options(authority), tls_client_ca=authority.path, tokens=str(tmp_path / "tokens"))
    for name, is_known in (("etl", True), ("another", False)):
        cert, key = authority.issue(name, common_name=name)
        transport = GrpcTransport(server.address, Settings((server.address,), tls=Tls(authority.path, cert, key)))
        if is_known:
            _hello(transport)
        else:
            with pytest.raises(Rejected, match="UNAUTHENTICATED"):
                _hello(transport)


def test_no_call_fails_while_certificates_and_tokens_are_replaced(
    start_server: StartServer, authority: Authority, tmp_path: Path
) -> None:
    old, new = tokens.new_token(), tokens.new_token()
    known, shown = tmp_path / "tokens", tmp_path / "token"
    known.write_text("\n".join(tokens.line_of(token, [Role.CLIENT], f"etl-{n}") for n, token in enumerate((old, new))))
    shown.write_text(old + "\n")
    server = start_server(**_tls_options(authority), tls_client_ca=authority.path, tokens=str(known))
    cert, key = authority.issue("client")
    settings = Settings((server.address,), tls=Tls(authority.path, cert, key), token_file=str(shown))
    transports = [GrpcTransport(server.address, settings) for _ in range(4)]
    failures: list[Exception] = []
    stop, rounds = threading.Event(), threading.Semaphore(0)

    def call(transport: GrpcTransport) -> None:
        while not stop.is_set():
            try:
                _hello(transport)
            except Exception as error:  # noqa: BLE001  # each failure is shown below
                failures.append(error)
            rounds.release()

    # Files that do not fit each other are left alone, unless they are the first that a transport reads.
    for transport in transports:
        _hello(transport)
    threads = [threading.Thread(target=call, args=(transport,)) for transport in transports]
    for thread in threads:
        thread.start()
    writes = [authority.issuing("client") for _ in range(10)] + [authority.issuing("server") for _ in range(10)]
    for n, write in enumerate(writes):
        write()
        replace(shown, f"{(old, new)[n % 2]}\n".encode())
        for _ in range(20):
            rounds.acquire()
    stop.set()
    for thread in threads:
        thread.join()
    assert failures == []
    # A connection made now gets the last of the certificates.
    served = ssl.get_server_certificate(_place(server.http_address))
    assert served in (tmp_path / "server.crt").read_text()


def test_a_role_opens_its_calls_only_and_a_refusal_tells_nothing(
    start_server: StartServer, authority: Authority, tmp_path: Path
) -> None:
    made = {role: tokens.new_token() for role in Role}
    (tmp_path / "tokens").write_text("".join(f"{tokens.line_of(made[role], [role], role)}\n" for role in Role))
    server = start_server(**_tls_options(authority), tokens=str(tmp_path / "tokens"))

    def transport(token: str | None) -> GrpcTransport:
        return GrpcTransport(server.address, Settings((server.address,), tls=Tls(authority.path), token=token))

    for token in (None, "guessed"):
        with pytest.raises(Rejected, match=r"UNAUTHENTICATED.*the server does not know this caller"):
            transport(token).pins(Pins(1), 10)
    of_client = transport(made[Role.CLIENT])
    for call in (of_client.drain, of_client.stats):
        with pytest.raises(Rejected, match=r"PERMISSION_DENIED.*needs the role operator"):
            call(10)
    with pytest.raises(Rejected, match=r"PERMISSION_DENIED.*Hello needs the role client or operator"):
        _hello(transport(made[Role.SCRAPER]))
    transport(made[Role.SCRAPER]).stats(10)
    transport(made[Role.OPERATOR]).drain(10)


def test_pages_need_a_token_and_probes_need_none(
    start_server: StartServer, authority: Authority, tmp_path: Path
) -> None:
    scraper, client = tokens.new_token(), tokens.new_token()
    lines = [tokens.line_of(scraper, [Role.SCRAPER], "prometheus"), tokens.line_of(client, [Role.CLIENT], "etl")]
    (tmp_path / "tokens").write_text("\n".join(lines))
    ready = tmp_path / "ready.json"
    server = start_server(
        **_tls_options(authority), tokens=str(tmp_path / "tokens"), ready_file=str(ready), host="127.0.0.1"
    )
    assert _page(server, authority, "/livez", None)[0] == 200
    assert _page(server, authority, "/readyz", None)[0] == 200
    assert _page(server, authority, "/metrics", None)[0] == 401
    assert _page(server, authority, "/metrics", client)[0] == 403
    status, text = _page(server, authority, "/metrics", scraper)
    assert status == 200
    assert "acker_pending" in text
    assert health.check(Config(ready_file=str(ready))) == server.http_address


def test_reflection_needs_an_operator(start_server: StartServer, tmp_path: Path) -> None:
    operator, client = tokens.new_token(), tokens.new_token()
    lines = [tokens.line_of(operator, [Role.OPERATOR], "ops"), tokens.line_of(client, [Role.CLIENT], "etl")]
    (tmp_path / "tokens").write_text("\n".join(lines))
    server = start_server(tokens=str(tmp_path / "tokens"), reflection=True)
    with grpc.insecure_channel(server.address) as channel:
        stub = reflection_pb2_grpc.ServerReflectionStub(channel)
        request = reflection_pb2.ServerReflectionRequest(list_services="")
        for token, is_allowed in ((operator, True), (client, False), ("", False)):
            replies = stub.ServerReflectionInfo(
                iter([request]), metadata=(("authorization", f"Bearer {token}"),), timeout=10
            )
            if is_allowed:
                assert next(replies).list_services_response.service
            else:
                with pytest.raises(grpc.RpcError) as refused:
                    next(replies)
                assert refused.value.code() == grpc.StatusCode.PERMISSION_DENIED


def test_a_token_goes_to_this_machine_without_tls_and_to_no_other() -> None:
    for address in ("acker.example:7070", "10.1.2.3:7070", "localhost.example:7070"):
        with pytest.raises(Rejected, match="the token would be sent unencrypted, so it was not"):
            _hello(GrpcTransport(address, Settings((address,), token="secret")))
    for address in ("127.0.0.1:1", "localhost:1", "[::1]:1"):
        with pytest.raises(Unavailable):
            _hello(GrpcTransport(address, Settings((address,), token="secret")), 0.2)


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "10.1.2.3", "acker.example"])
def test_a_server_that_others_reach_needs_tls_or_a_word_that_it_needs_none(host: str) -> None:
    with pytest.raises(ConfigError, match="give --tls-cert and --tls-key, or --own-access, or --insecure"):
        Config(host=host)
    Config(host=host, insecure=True)
    Config(host=host, tls_cert="server.crt", tls_key="server.key")


def test_files_that_cannot_be_used_are_named_at_the_start(
    start_server: StartServer, authority: Authority, tmp_path: Path
) -> None:
    cert, key = authority.issue("server")
    _, other_key = authority.issue("other")
    (tmp_path / "text").write_text("no PEM")
    for options, expected in (
        ({"tls_cert": cert, "tls_key": other_key}, "the key does not belong to the certificate"),
        ({"tls_cert": cert, "tls_key": str(tmp_path / "none")}, "No such file"),
        ({"tls_cert": str(tmp_path / "text"), "tls_key": key}, "not a certificate, key or CA in PEM"),
        ({"tls_cert": cert, "tls_key": key, "tls_client_ca": str(tmp_path / "text")}, "not a certificate"),
        ({"tokens": str(tmp_path / "none")}, "No such file"),
    ):
        with pytest.raises(StartError, match=expected):
            start_server(**options)
    with pytest.raises(ConfigError, match="goes with --tls-key"):
        Config(tls_cert=cert)
    with pytest.raises(Rejected, match="each process reads these files itself"):
        _hello(GrpcTransport("127.0.0.1:1", Settings(("127.0.0.1:1",), tls=Tls(ca=str(tmp_path / "none")))))


def test_a_certificate_that_cannot_be_read_for_a_while_is_read_as_soon_as_it_can_be(
    authority: Authority, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    cert, key = authority.issue("server")
    certificates = Certificates(cert, key, None)
    old = certificates.renew()
    authority.issue("server")
    with monkeypatch.context() as failing:
        failing.setattr(WatchedFiles, "read", Mock(side_effect=OSError(errno.EMFILE, "Too many open files")))
        assert {certificates.renew() for _ in range(3)} == {old}
    assert [record.getMessage() for record in caplog.records] == ["certificate_not_read"]
    assert certificates.renew().certificate == Path(cert).read_bytes() != old.certificate


def test_files_that_do_not_fit_each_other_are_read_once(authority: Authority, caplog: pytest.LogCaptureFixture) -> None:
    cert, key = authority.issue("server")
    certificates = Certificates(cert, key, None)
    old = certificates.renew()
    Path(key).write_text("no PEM")
    assert {certificates.renew() for _ in range(3)} == {old}
    assert [record.getMessage() for record in caplog.records] == ["certificate_not_read"]


def _tls_options(authority: Authority) -> dict[str, Any]:
    cert, key = authority.issue("server")
    return {"tls_cert": cert, "tls_key": key, "http_port": 0}


def _hello(transport: GrpcTransport, timeout_s: float = 10.0) -> None:
    transport.hello(Hello(PROTOCOL_VERSION, "test"), timeout_s)


def _page(server: Any, authority: Authority, path: str, token: str | None) -> tuple[int, str]:
    headers = {} if token is None else {"Authorization": f"Bearer {token}"}
    request = urllib.request.Request(f"https://{server.http_address}{path}", headers=headers)
    try:
        context = ssl.create_default_context(cafile=authority.path)
        with urllib.request.urlopen(request, timeout=20, context=context) as reply:
            return reply.status, reply.read().decode()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read().decode()


def _place(address: str) -> tuple[str, int]:
    host, _, port = address.rpartition(":")
    return host, int(port)
