"""``acker health``: exits with 0 if the server with the same options is ready; else with 1, and prints why."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Callable
from http import HTTPStatus
from pathlib import Path
from typing import Any

import pytest

from acker_service.config import Config
from acker_service.http import health
from acker_service.http.health import NotReady
from acker_service.http.server import HttpServer, text
from acker_service.server import Server


def run(*flags: str, module: str = "acker_service", **environment: str) -> subprocess.CompletedProcess[str]:
    inherited = {key: text for key, text in os.environ.items() if not key.startswith("ACKER_")}
    command = [sys.executable, "-m", module, "health", *flags]
    return subprocess.run(
        command, capture_output=True, text=True, check=False, timeout=60, env={**inherited, **environment}
    )


def port_of(address: str) -> str:
    return address.rpartition(":")[2]


@pytest.mark.long
@pytest.mark.parametrize("module", ["acker_service", "acker_command"])
def test_the_check_follows_the_http_port_by_flag_by_variable_and_by_ready_file(
    server_process: Callable[..., Any], tmp_path: Path, module: str
) -> None:
    ready = str(tmp_path / "ready.json")
    assert run(ACKER_READY_FILE=ready, module=module).returncode == 1
    process = server_process()
    os.symlink(process._ready, ready)
    port = port_of(process.http_address)
    for done in (
        run(f"--http-port={port}", module=module),
        run(ACKER_HTTP_PORT=port, module=module),
        run(ACKER_READY_FILE=ready, ACKER_HOST="0.0.0.0", ACKER_INSECURE="true", module=module),
    ):
        assert (done.returncode, done.stdout) == (0, f"ready at 127.0.0.1:{port}\n")
    process.terminate()
    for done in (run(f"--http-port={port}", module=module), run(ACKER_READY_FILE=ready, module=module)):
        assert (done.returncode, f"no server answers at 127.0.0.1:{port}" in done.stderr) == (1, True)
        assert "Traceback" not in done.stderr


def test_the_health_check_ignores_proxies(server_process: Callable[..., Any]) -> None:
    port = port_of(server_process().http_address)
    assert run(f"--http-port={port}", http_proxy="http://127.0.0.1:9", HTTP_PROXY="http://127.0.0.1:9").returncode == 0


def test_a_server_that_is_not_ready_says_why() -> None:
    server = HttpServer("127.0.0.1", 0, {"/readyz": lambda: text(HTTPStatus.SERVICE_UNAVAILABLE, "stopping")})
    server.start()
    try:
        with pytest.raises(NotReady, match="is not ready: stopping"):
            health.check(Config(http_port=server.port))
    finally:
        server.stop()


@pytest.mark.parametrize(
    ("host", "asked"),
    [
        ("0.0.0.0", "127.0.0.1:1"),
        *((host, "[::1]:1") for host in ("::", "[::]", "::0", "0:0:0:0:0:0:0:0", "::1", "[::1]")),
    ],
)
def test_a_server_that_listens_on_all_addresses_is_checked_on_the_loopback(host: str, asked: str) -> None:
    with pytest.raises(NotReady, match=re.escape(f"no server answers at {asked} ")):
        health.check(Config(host=host, http_port=1, insecure=True))


def test_without_an_http_port_the_port_for_calls_is_asked(start_server: Callable[..., Server]) -> None:
    server = start_server()
    calls = Config(port=int(port_of(server.address)), http_port=None)
    assert health.check(calls) == server.address
    server.stop()
    with pytest.raises(NotReady, match="no server answers"):
        health.check(calls)


def test_a_server_on_free_ports_needs_a_ready_file() -> None:
    with pytest.raises(NotReady, match="--ready-file"):
        health.check(Config(http_port=0))


@pytest.mark.parametrize(
    "content", ["", "[]", "{}", '{"address": 7070, "http_address": null}', '{"address": "host:x"}']
)
def test_a_ready_file_of_something_else_is_one_clear_line(tmp_path: Path, content: str) -> None:
    path = tmp_path / "ready.json"
    path.write_text(content)
    with pytest.raises(NotReady, match=re.escape(f"--ready-file {path} is not the ready file of a server (")):
        health.check(Config(ready_file=str(path)))


def test_the_check_of_the_image_needs_no_word_that_the_server_was_given(
    start_server: Callable[..., Server], tmp_path: Path
) -> None:
    """The image names the address and the ready file by variables. All else may be words after its name."""
    ready = str(tmp_path / "ready.json")
    server = start_server(http_port=0, ready_file=ready)
    done = run(ACKER_HOST="0.0.0.0", ACKER_READY_FILE=ready, ACKER_MAX_MEMORY="1MiB")
    assert (done.returncode, done.stdout) == (0, f"ready at {server.http_address}\n")


def test_a_wrong_option_is_one_clear_line() -> None:
    done = run("--http-prot=1")
    assert (done.returncode, "the nearest is --http-port" in done.stderr, "Traceback" in done.stderr) == (
        1,
        True,
        False,
    )
    assert "acker health" in run("--help").stdout
