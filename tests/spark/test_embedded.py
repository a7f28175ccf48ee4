"""The embedded server: an application that names no server has its own, from its first question to the end of Spark."""

from __future__ import annotations

import json
import logging
import os
import re
import resource
import shutil
import signal
import subprocess
import sys
import urllib.request
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, SparkSession

from acker_client.client import AckerClient
from acker_client.errors import Rejected
from acker_client.settings import Settings
from acker_client.source import Files
from acker_client.spark import check, collector_settings, functions, sink
from acker_client.spark.driver import embedded
from acker_client.spark.driver.session import PINS, SessionError, settings_of
from tests.conftest import ROOT
from tests.service.caller import eventually, is_running


@pytest.fixture
def alone(spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> Iterator[SparkSession]:
    """The session, which names no server. The tests of this file share its embedded server."""
    for name in ("ACKER_SERVERS", "ACKER_ACCESS_FILE"):
        monkeypatch.delenv(name, raising=False)
    # An earlier test may have emitted a frame in this thread, which hands its servers down.
    spark.sparkContext.setLocalProperty(PINS, None)  # type: ignore[arg-type]
    before = spark.conf.get("spark.acker.servers", None)
    spark.conf.unset("spark.acker.servers")
    yield spark
    if before is not None:
        spark.conf.set("spark.acker.servers", before)


@pytest.fixture
def anew(alone: SparkSession) -> SparkSession:
    """The session, without a server yet."""
    end_server()
    return alone


def end_server() -> None:
    if embedded._server is not None:
        embedded._server.end()
        embedded._server = None


def server() -> embedded.EmbeddedServer:
    assert embedded._server is not None
    return embedded._server


def lines(folder: Path, *texts: str) -> Path:
    path = folder / "in.txt"
    path.write_text("".join(f"{text}\n" for text in texts))
    return path


@pytest.mark.long
def test_all_threads_get_the_one_server_which_one_line_announces(
    anew: SparkSession, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "acker_client")
    with ThreadPoolExecutor(8) as threads:
        found = list(threads.map(lambda _: settings_of(anew), range(8)))
    assert len(set(found)) == 1
    (line,) = [record.getMessage() for record in caplog.records]
    assert record_of(line) == (found[0].servers[0], "127.0.0.1")
    assert "set spark.acker.servers or ACKER_SERVERS" in line
    metrics = re.search(r"http://\S+/metrics", line)
    assert metrics
    with urllib.request.urlopen(metrics[0], timeout=10) as reply:
        assert b"acker_pending_roots" in reply.read()
    assert found[0].token is not None
    assert found[0].token not in line + repr(found[0])


def record_of(line: str) -> tuple[str, str]:
    """Return the address that the line announces, and its host."""
    address = re.search(r"its own: (\S+),", line)
    assert address
    return address[1], address[1].rpartition(":")[0]


def test_another_user_of_the_machine_cannot_call_it(alone: SparkSession) -> None:
    settings = settings_of(alone)
    with pytest.raises(Rejected, match="the server does not know this caller"):
        AckerClient(replace(settings, token=None, budget_s=10.0)).open_source("stranger")
    assert server()._directory.stat().st_mode & 0o777 == 0o700


class Context:
    """A SparkContext whose server is tested without Spark."""

    master, _jsc, _conf = "local[2]", object(), None


def test_a_server_whose_process_cannot_be_made_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", "/no/such/python")
    with pytest.raises(embedded.NotStarted, match=r"did not start: .*/no/such/python"):
        embedded.EmbeddedServer(Context())  # type: ignore[arg-type]


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.parametrize("trouble", ["its access file is gone", "its directory is gone", "no process can be made"])
def test_a_server_that_dies_is_started_again_or_serves_no_run_any_more(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, trouble: str
) -> None:
    with low_descriptors_taken():
        started = embedded.EmbeddedServer(Context())  # type: ignore[arg-type]
    try:
        before, settings = started._ready, started.settings
        if trouble == "its access file is gone":
            started._access.unlink()
        elif trouble == "its directory is gone":
            shutil.rmtree(started._directory)
        else:
            monkeypatch.setattr(sys, "executable", "/no/such/python")
        os.kill(started.pid, signal.SIGKILL)
        if trouble == "no process can be made":
            eventually(lambda: not started.serves(started._context), within_s=60.0)
            assert "did not start: " in caplog.text
            return
        eventually(lambda: started._ready is not before, within_s=60.0)
        assert started.serves(started._context)
        assert started.settings["servers"] == settings["servers"]
        assert (started.settings == settings) == (trouble == "its access file is gone")
        client = AckerClient(Settings(**started.settings))
        client.open_source("again")
        client.close()
    finally:
        started.end()


@contextmanager
def low_descriptors_taken() -> Iterator[None]:
    """Take all descriptors below 1024 in this block. ``select`` cannot wait for others."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(4096, hard), hard))
    taken = [os.open(os.devnull, os.O_RDONLY)]
    while taken[-1] < 1024:
        taken.append(os.open(os.devnull, os.O_RDONLY))
    try:
        yield
    finally:
        for descriptor in taken:
            os.close(descriptor)
        resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, 2048), hard))


@pytest.mark.long
def test_every_entry_of_the_driver_finds_it(alone: SparkSession, tmp_path: Path, capsys: Any) -> None:
    out: list[str] = []

    @sink
    def save(rows: DataFrame) -> None:
        out.extend(row.value for row in rows.collect())

    summary = Files(lines(tmp_path, "one", "two"), name="lines").run(alone, lambda batch: save(batch.df))
    assert (summary.acked, sorted(out)) == (2, ["one", "two"])

    def write(batch: Any) -> None:
        batch.df.select("value", functions.ack()).write.parquet(f"{tmp_path}/out")

    assert Files(lines(tmp_path, "three"), name="acks").run(alone, write).acked == 1
    assert collector_settings(alone) == settings_of(alone)
    assert check(alone).ok


@pytest.mark.long
def test_a_server_that_was_killed_is_started_again_with_the_same_address_and_access(
    alone: SparkSession, caplog: pytest.LogCaptureFixture
) -> None:
    settings, killed = settings_of(alone), server().pid
    with AckerClient(settings) as client:
        client.open_source("before")
        os.kill(killed, 9)
        eventually(lambda: server().pid != killed, within_s=60.0)
        client.stats()
    assert settings_of(alone) == settings
    assert "ended with status -9: it is started again" in caplog.text


@pytest.mark.long
def test_without_the_extra_one_error_says_what_to_install_or_to_set(
    anew: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "kazoo.py").write_text("raise ModuleNotFoundError('no kazoo', name='kazoo')\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(SessionError) as raised:
        settings_of(anew)
    assert "did not start: the server needs kazoo: pip install 'acker[service]'" in str(raised.value)
    assert "set spark.acker.servers" in str(raised.value)
    # The next question starts it, when what was missing is there.
    (tmp_path / "kazoo.py").unlink()
    assert settings_of(anew).servers


@pytest.mark.parametrize(
    ("master", "conf", "expected"),
    [
        ("local", {}, ("127.0.0.1", "127.0.0.1")),
        ("local[2,4]", {"spark.driver.host": "10.1.2.3"}, ("127.0.0.1", "127.0.0.1")),
        ("local-cluster[2,1,1024]", {"spark.driver.host": "10.1.2.3"}, ("10.1.2.3", "10.1.2.3")),
        ("yarn", {"spark.driver.host": "driver.example"}, ("driver.example", "driver.example")),
        (
            "k8s://https://kubernetes:443",
            {"spark.driver.host": "orders-driver-svc.jobs.svc", "spark.driver.bindAddress": "10.1.2.3"},
            ("orders-driver-svc.jobs.svc", "10.1.2.3"),
        ),
    ],
)
def test_only_a_local_master_has_its_server_on_loopback(
    master: str, conf: dict[str, str], expected: tuple[str, str]
) -> None:
    class Context:
        _conf = conf

    Context.master = master  # type: ignore[attr-defined]
    assert embedded._place_of(Context()) == expected  # type: ignore[arg-type]


# -- applications of their own


def start(folder: Path, *words: str) -> subprocess.Popen[str]:
    environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])}
    command = [sys.executable, "-m", "tests.spark.embedded_driver", str(folder), *words]
    return subprocess.Popen(
        command, cwd=folder, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )


def told(driver: subprocess.Popen[str]) -> Any:
    """Return what the driver says next."""
    assert driver.stdout is not None
    line = driver.stdout.readline()
    assert line, f"the driver ended with status {driver.wait()}"
    return json.loads(line)


@pytest.mark.long
def test_a_driver_that_is_killed_takes_its_server_with_it_and_the_next_one_replays_what_was_open(
    tmp_path: Path,
) -> None:
    lines(tmp_path, *map(str, range(100)))
    with start(tmp_path, "hang") as driver:
        before = told(driver)
        assert before["acked"] == 40
        driver.kill()
    eventually(lambda: not is_running(before["server"]), within_s=60.0)
    assert not Path(before["directory"]).exists()
    with start(tmp_path, "go on") as driver:
        after = told(driver)
        driver.communicate("")
    assert after["open"] == 0
    assert after["records"] == after["acked"] >= 60
    assert after["server"] != before["server"]
    rows = Counter(value for file in (tmp_path / "out").glob("*") for value in json.loads(file.read_text()))
    assert set(rows) == set(map(str, range(100)))
    assert sum(rows.values()) <= 120  # the batch that hung had been written


@pytest.mark.long
def test_each_session_of_a_process_has_a_server_of_its_own_which_ends_with_it(tmp_path: Path) -> None:
    with start(tmp_path, "sessions") as driver:
        found = [told(driver) for _ in range(2)]
        driver.communicate("")
    assert found[0]["server"] != found[1]["server"]
    assert [each["has_ended"] for each in found] == [True, True]
    assert not any(Path(each["directory"]).exists() for each in found)


@pytest.mark.long
@pytest.mark.parametrize("how", ["own", "variable", "session"])
def test_an_event_log_of_a_job_shows_no_token(tmp_path: Path, how: str) -> None:
    lines(tmp_path, "one", "two")
    with start(tmp_path, "event log", how) as driver:
        found = told(driver)
        driver.communicate("")
    logged = "".join(path.read_text() for path in (tmp_path / "events").rglob("*") if path.is_file())
    assert "SparkListenerJobStart" in logged
    assert found["token"] not in logged
    assert found["acked"] == 2


@pytest.mark.long
def test_executors_of_a_cluster_reach_the_server_of_the_driver(tmp_path: Path) -> None:
    lines(tmp_path, *map(str, range(100)))
    with start(tmp_path, "cluster") as driver:
        found = told(driver)
        driver.communicate("")
    assert found["acked"] == 100
    assert found["tls"]
