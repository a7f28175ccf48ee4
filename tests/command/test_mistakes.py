"""A user's mistake ends a command with exit status 2 and one line on standard error that says what to do."""

from __future__ import annotations

import shlex
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest

from acker_client.rpc import connection
from acker_command.demo.command import demo
from acker_command.drain import drain
from acker_command.options import run
from acker_command.ring import ring
from acker_command.status import status
from acker_command.token import token
from acker_service.config import OF_CLIENTS

COMMANDS = {"ring": ring, "status": status, "drain": drain}
ALL = COMMANDS | {"demo": demo, "token": token}


def mistaken(capsys: pytest.CaptureFixture[str], name: str, *words: str) -> str:
    assert run(ALL[name], words) == 2
    out, err = capsys.readouterr()
    assert (out, err.count("\n")) == ("", 1)
    assert err.startswith(f"acker {name}: ")
    return str(err.removeprefix(f"acker {name}: ").strip())


@pytest.fixture(params=COMMANDS)
def name(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.delenv("ACKER_SERVERS", raising=False)
    return str(request.param)


def words(name: str, *more: str) -> list[str]:
    return ["0", *more] if name == "drain" else list(more)


def test_no_servers(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    says = "no servers are named: give --servers host:port,host:port, or set ACKER_SERVERS or ACKER_ACCESS_FILE"
    assert mistaken(capsys, name, *words(name)) == says


def test_a_url_is_refused_as_an_address(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    said = mistaken(capsys, name, *words(name, "--servers", "http://acker:7070"))
    assert said.startswith("servers: 'http://acker:7070' is a URL; write host:port alone")


def test_nobody_answers(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    said = mistaken(capsys, name, *words(name, "--servers", "127.0.0.1:1"))
    assert said == (
        "no server answers (127.0.0.1:1: connection refused); start one with `acker serve`, or name another with "
        "--servers"
    )


def test_an_address_that_resolves_to_nothing(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    said = mistaken(capsys, name, *words(name, "--servers", "no-such-host.invalid"))
    assert said.startswith("no server answers (no-such-host.invalid:7070: ")


def test_two_servers_of_one_id(name: str, start_server: Callable[..., Any], capsys: pytest.CaptureFixture[str]) -> None:
    one, other = start_server().address, start_server().address
    said = mistaken(capsys, name, *words(name, "--servers", f"{one},{other}"))
    assert said.startswith(f"the servers at {one} and {other} both have the id 0: start each with an --id of its own")


def test_another_protocol_version(
    name: str, server: Any, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connection, "PROTOCOL_VERSION", 3)
    said = mistaken(capsys, name, *words(name, "--servers", server.address))
    assert said.startswith(f"the acker at {server.address} answered FAILED_PRECONDITION: ")
    assert said.endswith("Install the same version of acker on both sides.")


def test_a_word_that_is_no_option(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    said = mistaken(capsys, name, *words(name, "--severs", "here"))
    assert said == f"--severs: no such option; the nearest is --servers; `acker {name} --help` lists them all"


def test_a_word_too_many(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    said = mistaken(capsys, name, *words(name, "here:7070"))
    assert said == f"Got unexpected extra argument (here:7070); `acker {name} --help` says what it takes"


@pytest.mark.parametrize("id", ["first", "1024", "²"])
def test_a_word_that_is_not_an_id_is_refused(id: str, capsys: pytest.CaptureFixture[str]) -> None:
    said = mistaken(capsys, "drain", id, "--servers", "127.0.0.1:1")
    assert said == f"{id}: an id is a number from 0 to 1023; `acker ring` lists the ids in use"


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ([], "Missing command; `acker token --help` says what it takes"),
        (
            ["new"],
            "Missing option '--role'. Choose from: client, operator, scraper; `acker token --help` says what it takes",
        ),
    ],
)
def test_a_word_that_is_missing_is_one_sentence(
    words: list[str], says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert mistaken(capsys, "token", *words) == says


def test_an_unknown_command_is_refused() -> None:
    ended = subprocess.run([sys.executable, "-m", "acker_command", "rign"], capture_output=True, text=True, check=False)
    assert (ended.returncode, ended.stdout) == (2, "")
    assert ended.stderr == "acker: rign: no such command; the nearest is ring; `acker --help` lists them all\n"


@pytest.mark.parametrize("name", COMMANDS)
def test_help_names_every_option(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(COMMANDS[name], ["--help"]) == 0
    told = capsys.readouterr().out
    assert told.startswith(f"Usage: acker {name} [OPTIONS]")
    options = [option for parameter in COMMANDS[name].params for option in parameter.opts if option.startswith("--")]
    assert all(option in told for option in [*options, "ACKER_SERVERS"])
    assert all(variable in told for variable in OF_CLIENTS)


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (
            ["--source", "rabbits"],
            "'rabbits' is not one of 'files', 'kafka', 'kinesis', 'frame'; `acker demo --help` says",
        ),
        (["--sorce", "kafka"], "--sorce: no such option; the nearest is --source; `acker demo --help` lists them all"),
        (["--records", "many"], "'many' is not a whole number; `acker demo --help` says what it takes"),
        (["--input", "/nowhere/*.txt"], "--input /nowhere/*.txt: no file matches"),
    ],
)
def test_invalid_options_of_the_demo_are_refused(
    words: list[str], says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert says in mistaken(capsys, "demo", *words)


def test_the_demo_reports_mistakes_like_the_other_commands() -> None:
    ran = subprocess.run(
        [sys.executable, "-m", "acker_command", "demo", "--servers", "0"], check=False, capture_output=True, text=True
    )
    assert (ran.returncode, ran.stdout, ran.stderr.count("\n")) == (2, "", 1)
    assert ran.stderr.startswith("acker demo: Invalid value for '--servers': 0 is not in the range")


def test_help_does_not_truncate_the_descriptions_of_commands() -> None:
    ran = subprocess.run([sys.executable, "-m", "acker_command", "--help"], check=True, capture_output=True, text=True)
    assert "..." not in ran.stdout.partition("Commands:")[2]


def test_an_option_value_that_is_not_a_number_is_refused_in_plain_words(capsys: pytest.CaptureFixture[str]) -> None:
    said = mistaken(capsys, "status", "--servers", "127.0.0.1:1", "--interval-s", "soon")
    assert said == "Invalid value for '--interval-s': 'soon' is not a number; `acker status --help` says what it takes"


@pytest.mark.parametrize(
    "words", [["--help"], ["token", "new", "--role", "client", "--name", "etl"], ["serve", "--help"]]
)
def test_output_to_a_full_disk_is_one_sentence(words: list[str]) -> None:
    with open("/dev/full", "wb", buffering=0) as full:
        ended = subprocess.run(
            [sys.executable, "-m", "acker_command", *words], stdout=full, stderr=subprocess.PIPE, text=True, check=False
        )
    assert (ended.returncode, ended.stderr) == (2, "acker: standard output: No space left on device\n")


@pytest.mark.parametrize("words", [["--version"], ["serve", "--help"]])
def test_a_command_with_closed_output_ends_as_with_any_other(words: list[str]) -> None:
    command = f"exec {shlex.quote(sys.executable)} -m acker_command {shlex.join(words)} >&-"
    ended = subprocess.run(["sh", "-c", command], stderr=subprocess.PIPE, text=True, check=False)
    assert (ended.returncode, ended.stderr) == (0, "")


def test_an_interval_that_is_no_number_of_seconds_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    said = mistaken(capsys, "status", "--servers", "127.0.0.1:1", "--interval-s", "nan")
    assert (
        said
        == "Invalid value for '--interval-s': nan is not a number of seconds; `acker status --help` says what it takes"
    )
