"""`check(spark)`: one small task per executor reports the installed versions and whether it reaches the server."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
from pyspark.sql import SparkSession

from acker_client import Settings
from acker_client.spark.driver.check import CheckReport, Executor, _problems, _what_to_do, check
from acker_client.spark.driver.session import SessionError

VERSIONS = dict.fromkeys(("acker", "pyspark", "pyarrow", "pandas", "numpy", "grpcio", "protobuf", "numba"), "1.2.3")
GOOD = Executor("node-1", "/spark/1", "3.11.4", VERSIONS, "0.1.0", "")
SETTINGS = Settings(servers=("acker.example:7070",))


@pytest.mark.long
@pytest.mark.matrix
def test_every_executor_of_a_local_session_reaches_the_server(
    spark: SparkSession, server: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    report = check(spark, Settings(servers=(server.address,)))

    assert report.ok, report.problems
    assert len(report.executors) == 1
    assert report.executors[0].versions["pyspark"].startswith("4.")
    assert "everything is in place" in capsys.readouterr().out


def test_a_server_that_is_not_there_is_told_with_what_to_do(spark: SparkSession, server: Any) -> None:
    address = server.address
    server.stop()
    report = check(spark, Settings(servers=(address,), budget_s=0.5))

    assert not report.ok
    assert f"cannot reach the acker at {address}" in report.problems[0]
    assert "spark.acker.servers" in report.problems[0]


def test_workers_without_the_package_are_named(spark: SparkSession) -> None:
    lacking = dataclasses.replace(GOOD, host="node-2", versions={**VERSIONS, "grpcio": "9.9.9"} | {"numpy": "1.3.0"})
    bare = dataclasses.replace(GOOD, host="node-3", versions={"pyspark": "1.2.9"}, problem="ModuleNotFoundError: grpc")
    problems = list(_problems([GOOD, lacking, bare], VERSIONS, SETTINGS, 4))

    assert "node-2 has grpcio 9.9.9, the driver 1.2.3: install the same version on both" in problems
    assert "node-2 has numpy 1.3.0, the driver 1.2.3: install the same version on both" in problems
    assert any(problem.startswith("node-3 lacks acker: install") for problem in problems)
    assert any("node-3 lacks a package (ModuleNotFoundError: grpc)" in problem for problem in problems)
    assert problems[-1].startswith("only 3 of 4 executors ran a task")


def test_an_executor_without_numba_is_told_what_to_install_and_not_that_the_server_is_away() -> None:
    versions = {name: version for name, version in VERSIONS.items() if name != "numba"}
    problem = "ImportError: acker_client.spark needs numba, which is not here: pip install 'acker[spark]'"
    problems = list(_problems([dataclasses.replace(GOOD, versions=versions, problem=problem)], VERSIONS, SETTINGS, 1))

    assert problems[0] == "node-1 lacks numba: install 'acker[spark]' there, or ship it with --archives"
    assert problems[1].startswith("node-1 lacks a package (ImportError: acker_client.spark needs numba")


def test_versions_that_differ_in_a_patch_are_no_problem() -> None:
    newer = dataclasses.replace(GOOD, versions={**VERSIONS, "numpy": "1.2.9"})

    assert not list(_problems([newer], VERSIONS, SETTINGS, 1))


def test_the_table_has_a_line_for_each_executor() -> None:
    lines = str(CheckReport((GOOD, GOOD), ())).splitlines()

    assert lines[0].split()[:3] == ["host", "python", "acker"]
    assert lines[1].split()[:3] == ["node-1", "3.11.4", "1.2.3"]
    assert len(lines) == 4


def test_a_check_that_cannot_run_says_why_and_what_to_do() -> None:
    missing = "An error occurred\nModuleNotFoundError: No module named 'pyarrow'\n"
    assert _what_to_do(missing, "x").startswith(
        "the check could not run: a package is missing on the executors: install"
    )
    assert _what_to_do("An exception\nTraceback", "OSError: no space left") == (
        "the check could not run, and a job would not either: OSError: no space left"
    )
    with pytest.raises(SessionError, match="a SparkSession is expected, got a str"):
        check("localhost:7070")  # type: ignore[arg-type]
