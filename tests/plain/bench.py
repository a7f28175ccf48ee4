"""The bench that runs plain programs: one Spark session, one server, and a cluster of three servers as processes."""

from __future__ import annotations

import itertools
import tempfile
import time
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import Self

from pyspark.sql import SparkSession

from tests.conftest import ServerProcess
from tests.pipelines.bench import quiet, session
from tests.plain.program import generate
from tests.plain.runner import Result, run

CLUSTER = 3


class Bench:
    """Context manager that runs programs. ``spark``: an existing session, if any."""

    def __init__(self, spark: SparkSession | None = None) -> None:
        self._given = spark
        self._servers: list[ServerProcess] = []
        self._victims = itertools.cycle(range(1, 1 + CLUSTER))

    def __enter__(self) -> Self:
        # Spark must start before a gRPC channel of this process: a fork beside gRPC's threads may hang.
        self._spark = self._given or session()
        folder = Path(tempfile.mkdtemp(prefix="plain-servers-"))
        for number in range(1 + CLUSTER):
            (folder / str(number)).mkdir()
            self._servers.append(ServerProcess(folder / str(number), f"--id={number}"))
        return self

    def __exit__(self, *_: object) -> None:
        for server in self._servers:
            server.close()
        if self._given is None:
            self._spark.stop()

    def run(self, seed: int) -> Result:
        """Run the program of a seed. The first server stands alone; the others are a cluster."""
        program = generate(seed)
        servers = self._servers[1:] if program.servers > 1 else self._servers[:1]
        victim = self._servers[next(self._victims)]
        with quiet():
            return run(program, self._spark, [each.address for each in servers], lambda: victim.restart(kill=True))

    def report(self, seeds: Iterable[int], *, shows: bool) -> int:
        """Run programs and print what is found. Return 1 if anything was."""
        began, failed, kinds, outcomes, count = time.perf_counter(), list[int](), Counter[str](), Counter[str](), 0
        for seed in seeds:
            result = self.run(seed)
            count += 1
            outcomes += result.outcomes
            kinds.update(finding.partition(":")[0] for finding in result.findings)
            print(told(result, shows=shows or bool(result.findings)), flush=True)
            if result.findings:
                failed.append(seed)
                print(f"again: python -m tests.plain --seed {seed}", flush=True)
        took_s = time.perf_counter() - began
        print(f"{count} programs in {took_s:.0f} s; {dict(outcomes)}; {len(failed)} failed: {failed} {dict(kinds)}")
        return 1 if failed else 0


def told(result: Result, *, shows: bool) -> str:
    """Return what happened in a run, in one line or whole."""
    said = ", ".join(f"{count} {verdict}" for verdict, count in sorted(result.outcomes.items()))
    end = f"{len(result.findings)} FINDINGS" if result.findings else "ok"
    line = f"seed {result.program.seed}: {end} in {result.seconds:.1f} s, {said}; {result.program.fault}"
    return "\n".join([str(result.program), *result.transcript, *result.findings[:10], line]) if shows else line
