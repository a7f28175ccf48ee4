"""Check: find out whether every executor has what tracked steps need, before a job fails without it.

Decides what to check on an executor, and how to fix what is missing. Runs one small Spark job; emits and acks nothing.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from acker_client.error_text import shorten
from acker_client.settings import Settings
from acker_client.spark.driver.session import SessionError, check_session, settings_of

PACKAGES = ("acker", "pyspark", "pyarrow", "pandas", "numpy", "grpcio", "protobuf", "numba")
# There are more tasks than cores, so that an executor that starts slowly gets a task too.
_TASKS_A_CORE = 2


@dataclass(frozen=True, slots=True)
class Executor:
    """The answer of one executor. ``versions``: package -> version, without missing ones."""

    host: str
    directory: str
    python: str
    versions: dict[str, str]
    server: str
    problem: str


@dataclass(frozen=True, slots=True)
class CheckReport:
    """The answers of all executors that ran a task, and the problems found, each with its fix. Prints as a table."""

    executors: tuple[Executor, ...]
    problems: tuple[str, ...]

    @property
    def ok(self) -> bool:
        return not self.problems

    def __str__(self) -> str:
        head = ("host", "python", *PACKAGES, "server")
        rows = [head, *(_row(executor) for executor in self.executors)]
        widths = [max(len(row[column]) for row in rows) for column in range(len(head))]
        lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
        verdict = [f"! {problem}" for problem in self.problems] or ["everything is in place"]
        return "\n".join([*lines, *verdict])


def check(spark: SparkSession, settings: Settings | None = None) -> CheckReport:
    """Check that the executors have the packages in the right versions and reach the server. Print the report and
    return it.

    Raises :class:`~acker_client.spark.driver.session.SessionError` with the fix if the job itself cannot run.
    """
    check_session(spark)
    settings = settings or settings_of(spark)
    tasks = max(spark.sparkContext.defaultParallelism * _TASKS_A_CORE, 2)
    try:
        rows = spark.range(0, tasks, 1, tasks).mapInArrow(_question(settings), "answer string").collect()
    except (PySparkException, Py4JError) as error:
        raise SessionError(_what_to_do(str(error), shorten(error))) from error
    answers = {row.answer: _executor(row.answer) for row in rows}
    found: dict[tuple[str, str], Executor] = {(one.host, one.directory): one for one in answers.values()}
    executors = tuple(found[key] for key in sorted(found))
    report = CheckReport(executors, tuple(_problems(executors, _driver_versions(), settings, _executors_known(spark))))
    print(report)
    return report


def _question(settings: Settings) -> Callable[[Iterator[Any]], Iterator[Any]]:
    """Return the function that a task runs. It is pickled by value and imports inside, so that it can report missing
    packages."""
    packages, plain = PACKAGES, dataclasses.asdict(dataclasses.replace(settings, pins=()))
    tls = plain.pop("tls")

    def acker_check(batches: Iterator[Any]) -> Iterator[Any]:
        import importlib.metadata
        import json
        import platform
        import socket

        import pyarrow
        from pyspark import SparkFiles

        for _ in batches:
            pass
        versions = {}
        for name in packages:
            try:
                versions[name] = importlib.metadata.version(name)
            except importlib.metadata.PackageNotFoundError:
                continue
        server = problem = ""
        try:
            from acker_client.settings import Settings, Tls
            from acker_client.spark.driver.check import reach

            server = reach(Settings(**plain, tls=tls and Tls(**tls)))
        except Exception as error:  # noqa: BLE001  # any error there is a finding
            problem = f"{type(error).__name__}: {error}"
        answer = {
            "host": socket.gethostname(),
            "directory": SparkFiles.getRootDirectory(),
            "python": platform.python_version(),
            "versions": versions,
            "server": server,
            "problem": problem,
        }
        yield pyarrow.RecordBatch.from_pydict({"answer": [json.dumps(answer, sort_keys=True)]})

    return acker_check


def reach(settings: Settings) -> str:
    """Ask the server for its version, from this process. Raises the errors of the client."""
    from acker_client.client import shared_client

    if not settings.tracking:
        return "tracking is off"
    return shared_client(settings).hello().server_version


def _executor(answer: str) -> Executor:
    return Executor(**json.loads(answer))


def _driver_versions() -> dict[str, str]:
    from importlib import metadata

    found = {}
    for name in PACKAGES:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return found


def _executors_known(spark: SparkSession) -> int:
    """Return how many executors Spark knows now. The driver counts as an executor only in a local session."""
    context: Any = spark.sparkContext
    known = int(context._jsc.sc().getExecutorMemoryStatus().size())
    return known if str(context.master).startswith("local") and "cluster" not in str(context.master) else known - 1


def _problems(executors: Sequence[Executor], driver: dict[str, str], settings: Settings, known: int) -> Iterator[str]:
    for one in executors:
        for name in PACKAGES:
            theirs, ours = one.versions.get(name), driver.get(name)
            if theirs is None and ours is not None:
                yield f"{one.host} lacks {name}: install 'acker[spark]' there, or ship it with --archives"
            elif theirs != ours and _without_patch(theirs) != _without_patch(ours):
                yield f"{one.host} has {name} {theirs}, the driver {ours}: install the same version on both"
        if one.problem.startswith(("ModuleNotFoundError", "ImportError")):
            yield f"{one.host} lacks a package ({one.problem}): install 'acker[spark]' there"
        elif one.problem:
            servers = ", ".join(settings.servers)
            yield (
                f"{one.host} cannot reach the acker at {servers} ({one.problem}): name an address that executors can"
                " reach in spark.acker.servers, and let `acker serve --host` listen on more than loopback"
            )
    if len(executors) < known:
        yield f"only {len(executors)} of {known} executors ran a task: the rest was busy; check again when it is idle"


def _without_patch(version: str | None) -> list[str]:
    """Return the part of a version that must be equal on driver and executors: all but the patch."""
    return (version or "").split(".")[:2]


def _row(executor: Executor) -> tuple[str, ...]:
    versions = (executor.versions.get(name, "-") for name in PACKAGES)
    return (executor.host, executor.python, *versions, executor.server or "unreachable")


def _what_to_do(error: str, line: str) -> str:
    """Return a message with the fix, and with the line of Spark's error that names the cause. If the cause is unknown,
    the message holds ``line``."""
    causes = {
        "PYTHON_VERSION_MISMATCH": "workers run another Python than the driver: set PYSPARK_PYTHON to the same version",
        "No module named": "a package is missing on the executors: install 'acker[spark]' there",
        "Cannot run program": "workers cannot start Python: set PYSPARK_PYTHON to an interpreter that exists there",
        "PACKAGE_NOT_INSTALLED": "a package is missing or too old on the executors: install 'acker[spark]' there",
    }
    lines = error.splitlines()
    for sign, fix in causes.items():
        cause = next((line.strip() for line in lines if sign in line), None)
        if cause:
            return f"the check could not run: {fix} ({cause})"
    return f"the check could not run, and a job would not either: {line}"
