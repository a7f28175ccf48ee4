"""The bench that runs programs: one Spark session, and one server in this process.

Programs that stop the server get a second one in its own process. Programs whose driver is killed run in a child.
"""

from __future__ import annotations

import contextlib
import logging
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Self

from pyspark.sql import SparkSession

from tests.pipelines.program import Program, generate
from tests.pipelines.runner import Result, Server, run
from tests.spark.local_conf import local_conf

# What the programs of the seeds are changed to.
Change = Callable[[Program], Program]

ROOT = Path(__file__).resolve().parents[2]
CHILD_S = 120.0


def session() -> SparkSession:
    """Return the Spark session that the tests share; create it if there is none yet."""
    from acker_client.spark.driver.session import local_session

    active = SparkSession.getActiveSession()
    if active is not None:
        return active
    folder = Path(tempfile.mkdtemp(prefix="acker-pipelines-"))
    os.environ["PYTHONPATH"] = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
    spark = local_session("acker-pipelines", conf=local_conf(folder))
    spark.sparkContext.setLogLevel("OFF")
    return spark


def unchanged(program: Program) -> Program:
    return program


class Steady(Server):
    """A server that runs to the end."""

    def __init__(self, address: str) -> None:
        self.address = address


class Stopping(Server):
    """A server in its own process, with its state on disk."""

    def __init__(self, folder: Path) -> None:
        from tests.conftest import ServerProcess

        folder.mkdir()
        self._process = ServerProcess(folder, f"--state-dir={folder}/state")
        self.address = self._process.address

    def stop(self, *, kill: bool) -> None:
        self._process.restart(kill=kill)

    def close(self) -> None:
        self._process.close()


@contextmanager
def quiet() -> Iterator[None]:
    """Silence the loggers: they would only report the faults that were injected on purpose."""
    loggers = [logging.getLogger(name) for name in ("acker_client", "acker.spark", "py4j")]
    levels = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)


class Bench:
    """Context manager that runs programs. ``spark``, ``server``: an existing session and server address, if any."""

    def __init__(self, spark: SparkSession | None = None, server: str | None = None) -> None:
        self._given = spark
        self._address = server
        self._stopping: Stopping | None = None
        self._own: Any = None

    def __enter__(self) -> Self:
        # Spark must start before the gRPC server: a fork while gRPC threads run may hang.
        self.spark = self._given or session()
        if self._address is None:
            from acker_service.config import Config
            from acker_service.server import Server as InProcess

            self._own = InProcess(Config(port=0, http_port=None, grace_s=1.0))
            self._own.start()
            self._address = self._own.address
        return self

    def __exit__(self, *_: object) -> None:
        if self._stopping is not None:
            self._stopping.close()
        if self._own is not None:
            self._own.stop(grace_s=0.0)
        if self._given is None:
            self.spark.stop()

    def run(self, program: Program, folder: Path | None = None) -> Result:
        """Run one program in ``folder``; without one, in a temporary folder."""
        if folder is None:
            with tempfile.TemporaryDirectory(prefix="acker-program-", ignore_cleanup_errors=True) as made:
                return self.run(program, Path(made))
        server: Server = Steady(str(self._address))
        if program.of_kind("server restarts", "server killed"):
            server = self._stopping = self._stopping or Stopping(Path(tempfile.mkdtemp(prefix="acker-server-"), "own"))
        if program.of_kind("driver killed"):
            self._kill_driver(program, folder, server)
        with quiet():
            return run(program, self.spark, server, folder)

    def die(self, seed: int, folder: str) -> None:
        """Run a program whose driver is killed. This kills the current process."""
        run(generate(seed), self.spark, Steady(str(self._address)), Path(folder), dies=True)

    def _kill_driver(self, program: Program, folder: Path, server: Server) -> None:
        command = [sys.executable, "-m", "tests.pipelines", f"--seed={program.seed}", "--die", str(folder)]
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])}
        # The child has no pipes, because its JVM and workers would hold them open after its death.
        child = subprocess.Popen(
            [*command, "--server", server.address],
            env=environment,
            cwd=ROOT,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )
        try:
            child.wait(CHILD_S)
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(child.pid, signal.SIGKILL)
            child.wait()

    def report(self, seeds: Sequence[int], *, shrinks: bool, shows: bool, change: Change = unchanged) -> int:
        """Run ``seeds`` and print the findings. Return 1 if there are any, else 0."""
        results = []
        began = time.monotonic()
        for seed in seeds:
            program = change(generate(seed))
            if shows:
                print(program, flush=True)
            started = time.monotonic()
            result = self.run(program)
            results.append(result)
            took = time.monotonic() - started
            if shows or result.findings or result.needless or took > 9:
                print(f"seed {seed}: {told(result)} [{took:.1f} s]", flush=True)
            if result.findings and shrinks:
                from tests.pipelines.shrink import shrunk

                small, its = shrunk(self, program, result)
                print(f"--- seed {seed}, shrunk:\n{small}\n--- {told(its)}", flush=True)
        kinds = Counter(kind for result in results for kind in result.kinds)
        quiet = sum(result.quiet_emissions for result in results)
        needless = sum(result.needless.total() for result in results)
        print(
            f"{len(results)} programs, {sum(result.batches for result in results)} batches,"
            f" {sum(result.emissions for result in results)} emissions in {time.monotonic() - began:.0f} s;"
            f" programs with findings: {dict(kinds) or 'none'};"
            f" needless replays: {needless} of {quiet} emissions in batches in which nothing went wrong"
        )
        return 1 if kinds else 0


def told(result: Result) -> str:
    """Summarize a result in a few lines."""
    counts = Counter(kind for kind, _ in result.findings)
    firsts = dict(reversed(result.findings))
    lines = [f"{result.batches} batches, {result.emissions} emissions"]
    lines += [f"{count} x {kind}, the first: {firsts[kind]}" for kind, count in counts.items()]
    lines += [f"{count} x needless: {reason}" for reason, count in result.needless.items()]
    return "\n    ".join(lines)
