"""``acker ring`` and ``acker status`` on real servers: three in a list, and three in ZooKeeper."""

from __future__ import annotations

import json
import random
import re
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from acker_client import AckerClient, Settings
from acker_client.cluster.membership import Cluster
from acker_client.rpc.side_by_side import Threads
from acker_client.rpc.transport import GrpcTransport
from acker_command.drain import drain
from acker_command.options import run
from acker_command.ring import ring
from acker_command.status import status
from acker_protocol.messages import OpenBatch
from acker_protocol.version import VERSION
from acker_service.access import tokens
from acker_service.access.roles import Role
from acker_testing.child import Child
from tests.service.caller import SESSION, Caller, eventually

ROOTS = 500


@pytest.fixture(scope="module")
def children(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[..., list[Child]]]:
    """Return a function that starts servers: ``children(3, "--flag")`` starts the ids 0, 1, 2."""
    started: list[Child] = []

    def start(count: int, *flags: str, has_state: bool = False) -> list[Child]:
        folders = [tmp_path_factory.mktemp("server") for _ in range(count)]
        those = [
            Child(folder, f"--id={id}", *flags, *([f"--state-dir={folder}/state"] if has_state else []))
            for id, folder in enumerate(folders)
        ]
        started.extend(those)
        for child in those:
            child.await_ready()
        return those

    yield start
    for child in started:
        child.end()


@pytest.fixture(scope="module")
def listed(children: Callable[..., list[Child]]) -> str:
    """Return the addresses of three servers that do not know of each other."""
    return ",".join(child.address for child in children(3))


def printed(capsys: pytest.CaptureFixture[str], command: Any, *words: str) -> str:
    """Run ``command`` and return its output. Asserts that it succeeds without an error."""
    ended = run(command, words)
    out, err = capsys.readouterr()
    assert (ended, err) == (0, "")
    return str(out)


def rows(text: str) -> dict[str, list[str]]:
    """Return the words of each member's row, by id."""
    return {line.split()[0]: line.split()[1:] for line in text.splitlines() if re.match(r" ?[\d-]+  ", line)}


def states(found: dict[str, Any]) -> list[tuple[int, str, bool]]:
    return [(each["id"], each["state"], each["answers"]) for each in found["members"]]


@pytest.mark.long
def test_ring_shows_a_list_of_servers_and_how_many_slots_each_holds(
    listed: str, capsys: pytest.CaptureFixture[str]
) -> None:
    text = printed(capsys, ring, "--servers", listed)
    assert text.startswith("no ZooKeeper: 3 servers, 3 active\n")
    found = rows(text)
    assert [found[id][0] for id in "012"] == listed.split(",")
    assert sum(int(found[id][4]) for id in "012") == 1024
    assert sum(int(found[id][6]) for id in "012") == 2048
    assert {each[5] for each in found.values()} <= {"#" * 15, "#" * 16}


def test_ring_shows_what_a_client_places_new_batches_on(listed: str, capsys: pytest.CaptureFixture[str]) -> None:
    found = json.loads(printed(capsys, ring, "--servers", listed, "--json"))
    cluster = Cluster(
        Settings(tuple(listed.split(","))), GrpcTransport, time.monotonic, time.sleep, random.random, Threads()
    )
    members = cluster.view(cluster.patience()).members
    cluster.callers.close()
    assert [(each["id"], each["generation"], each["address"]) for each in found["members"]] == [
        (member.id, f"{member.generation:016x}", member.address) for member in members
    ]
    assert found["epoch"] == 0
    assert found["members"][0]["version"] == VERSION
    assert found["members"][0]["slots"].keys() == {"1", "2"}


def test_a_server_of_the_list_that_is_down_is_shown_as_not_answering(
    listed: str, capsys: pytest.CaptureFixture[str]
) -> None:
    text = printed(capsys, ring, "--servers", f"{listed},127.0.0.1:1")
    assert rows(text)["-"][0] == "127.0.0.1:1"
    assert "1 without an answer" in text
    assert text.endswith("\n! 127.0.0.1:1 does not answer: connection refused\n")


def test_status_shows_what_each_server_has_and_their_total(
    listed: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ACKER_SERVERS", listed)
    with AckerClient(listed.split(","), replicas=2) as client:
        client.open_source("orders")
        emitted = [client.emit() for _ in range(ROOTS)]
        client.ack(*emitted[0])
        client.flush()
        found = json.loads(printed(capsys, status, "--interval-s", "0.1", "--json"))
        text = printed(capsys, status, "--interval-s", "0.1")
    each = found["members"]
    assert found["total"]["pending"] == sum(one["pending"] for one in each) == 2 * (ROOTS - 1)
    assert all(one["pending"] > 0 for one in each)
    assert [(one["sources"], one["open_batches"]) for one in each] == [(1, 1)] * 3
    assert found["total"]["unconfirmed"] == 2
    assert found["total"]["updates_per_s"] == 0.0
    assert rows(text)["0"][1] == "active"
    assert rows(text)["0"][2] == str(each[0]["pending"])
    assert re.search(r"^    total +998 ", text, re.MULTILINE)


@pytest.mark.long
def test_any_server_of_a_cluster_in_zookeeper_shows_all_also_who_drains_and_who_is_away(
    children: Callable[..., list[Child]], zookeeper: str, capsys: pytest.CaptureFixture[str]
) -> None:
    one, two, three = children(3, f"--zookeeper={zookeeper}", has_state=True)
    addresses = [child.address for child in (one, two, three)]
    with Caller(two.address) as caller:
        caller.begin()
        caller.open_batch(OpenBatch(SESSION, 1, 1 << 40, 2))
        said = printed(capsys, drain, "1", "--servers", one.address)
        assert said.startswith(
            f"server 1 at {two.address} drains: new batches go to 0, 2, and it ends once nothing is left of open ba"
        )
        assert three.terminate() == 0

        def look() -> dict[str, Any]:
            found: dict[str, Any] = json.loads(printed(capsys, ring, "--servers", one.address, "--json"))
            return found

        # The servers get a new view at slightly different times.
        expected = [(0, "active", True), (1, "draining", True), (2, "away", False)]
        eventually(lambda: states(look()) == expected)
        found = look()
        assert [each["address"] for each in found["members"]] == addresses
        assert found["epoch"] > 0
        assert 0 < found["members"][2]["away_s"] <= 60
        assert [each["slots"] for each in found["members"]] == [{"1": 1024.0}, {}, {}]
        text = ""

        def shows_the_same_view() -> bool:
            nonlocal text
            epoch = look()["epoch"]
            text = printed(capsys, status, "--servers", two.address, "--interval-s", "0.1")
            return text.startswith(f"epoch {epoch}: 3 servers, 1 active, 1 draining, 1 away\n")

        # On a loaded machine, servers may lose their sessions and register again between the two commands.
        eventually(shows_the_same_view)
        assert rows(text)["1"][1:4] == ["draining", "0", "1"]
        again = printed(capsys, drain, "1", "--servers", f"{one.address},{two.address}")
        assert again.startswith(f"server 1 at {two.address} is draining already: new batches go to 0, and it ends once")
        assert run(drain, ["2", "--servers", one.address]) == 2
        assert capsys.readouterr().err.startswith("acker drain: server 2 is away: it has stopped with its state")
        assert run(drain, ["0", "--servers", one.address]) == 2
        assert "server 0 is the only one that takes new batches" in capsys.readouterr().err


def test_a_picture_is_written_into_a_pipe_by_the_command_itself(listed: str, tmp_path: Path) -> None:
    import subprocess
    import sys

    ended = subprocess.run(
        [sys.executable, "-m", "acker_command", "ring", f"--servers={listed}"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert ended.stdout.isascii()
    assert ended.stdout.startswith("no ZooKeeper: 3 servers, 3 active\n")
    assert ended.stderr == ""


@pytest.mark.parametrize("as_json", [False, True])
def test_a_token_that_may_not_see_figures_is_refused_and_not_shown_zeros(
    start_server: Callable[..., Any],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    as_json: bool,
) -> None:
    made = tokens.new_token()
    file = tmp_path / "tokens"
    file.write_text(tokens.line_of(made, [Role.CLIENT], "etl") + "\n")
    server = start_server(tokens=str(file))
    monkeypatch.setenv("ACKER_TOKEN", made)
    words = ["--servers", server.address, "--interval-s", "0.1", *(["--json"] if as_json else [])]
    assert run(status, words) == 2
    out, err = capsys.readouterr()
    assert (out, err.count("\n")) == ("", 1)
    assert "Stats needs the role operator or scraper: give etl the role, or use another token" in err
