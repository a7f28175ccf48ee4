"""Storm: Apache Storm's own acker and LocalCluster, from Maven Central, under the same work as our benchmarks.

Builds the small Maven project in this folder and runs the project's two programs, each in a JVM of its own. Prints one
JSON object. Storm's log goes to .build/storm/log.

    python -m benchmarks.storm [--quick]
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

from benchmarks import machine

PROJECT = Path(__file__).parent
BUILD = PROJECT.parents[1] / ".build" / "storm"
PENDING = (10_000, 100_000, 1_000_000, 10_000_000)


def measure(quick: bool = False) -> dict[str, Any]:
    """Measure Storm's acker alone at each number of pending trees, and each topology at its best setting. Medians."""
    build()
    seconds = "0.3" if quick else "2"
    pending = PENDING[:2] if quick else PENDING
    return {
        "version": next(path.parent.name for path in classpath() if path.name.startswith("storm-client")),
        "acker": run("acker.AckerAlone", seconds, *map(str, pending)),
        "topologies": best(run("acker.Topologies", "0.5" if quick else "2")),
    }


def best(runs: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return for each shape of topology the run with the setting in which Storm was quickest."""
    fastest: dict[tuple[int, bool], dict[str, Any]] = {}
    for run in sorted(runs, key=lambda run: float(run["trees_per_s"])):
        fastest[run["bolts"], run["acked"]] = run
    return [fastest[shape] for shape in sorted(fastest, key=lambda shape: (shape[0], not shape[1]))]


def build() -> None:
    """Compile the programs, and fetch Storm unless it is here."""
    if shutil.which("mvn") is None:
        sys.exit("benchmarks.storm needs Maven to fetch and build against Apache Storm: install maven (and a JDK)")
    command = ["mvn", "--quiet", "--batch-mode", "--file", str(PROJECT / "pom.xml"), "package"]
    if subprocess.run(command, stdout=sys.stderr, check=False).returncode:
        sys.exit("benchmarks.storm: Maven failed, see above")


def classpath() -> list[Path]:
    """Return the jars of Storm and of its dependencies."""
    return [Path(path) for path in (BUILD / "classpath").read_text().strip().split(os.pathsep)]


def run(program: str, *arguments: str) -> list[dict[str, Any]]:
    """Run a program and return the JSON lines that it prints."""
    java = Path(os.environ["JAVA_HOME"], "bin", "java") if "JAVA_HOME" in os.environ else "java"
    path = os.pathsep.join(map(str, [BUILD / "classes", *classpath()]))
    with open(BUILD / "log", "ab") as log:
        done = subprocess.run(
            [java, "-Xmx8g", "-cp", path, program, *arguments],
            stdout=subprocess.PIPE,
            stderr=log,
            cwd=BUILD,
            text=True,
            check=False,
        )
    if done.returncode:
        sys.exit(f"benchmarks.storm: {program} failed, see {BUILD / 'log'}")
    return [json.loads(line) for line in done.stdout.splitlines() if line.startswith('{"')]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="small and short")
    print(json.dumps({"machine": machine.describe(), "storm": measure(parser.parse_args().quick)}, indent=2))


if __name__ == "__main__":
    main()
