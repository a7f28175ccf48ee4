"""A standalone Spark cluster on this machine: a master and two workers, from the classes of the PySpark wheel.

Two workers on two loopback addresses: Spark runs a speculative copy only on another host than the original.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pyspark

from acker_client.spark.session import ensure_java

HOSTS = ("127.0.0.1", "127.0.0.2")
START_S = 60.0


@contextmanager
def standalone(folder: Path) -> Iterator[str]:
    """Run the cluster while the body runs; gives the address of its master. Logs go to ``folder``."""
    port = _free_port()
    master = f"spark://127.0.0.1:{port}"
    processes = [_start(folder, "master", "master.Master", "--host", "127.0.0.1", "--port", str(port))]
    try:
        _await(folder / "master.log", "I have been elected leader", processes[0])
        for host in HOSTS:
            flags = ["--host", host, "--cores", "1", "--memory", "1g", "--work-dir", str(folder / host), master]
            processes.append(_start(folder, host, "worker.Worker", *flags))
        for host, process in zip(HOSTS, processes[1:], strict=True):
            _await(folder / f"{host}.log", "Successfully registered with master", process)
        yield master
    finally:
        for process in reversed(processes):
            process.terminate()
        for process in processes:
            process.wait(START_S)


def _start(folder: Path, name: str, kind: str, *flags: str) -> subprocess.Popen[bytes]:
    home = Path(pyspark.__file__).parent
    java = str(ensure_java() / "bin" / "java")
    command = [java, "-Xmx512m", "-XX:+UseSerialGC", *_OPENED, "-cp", f"{home / 'jars'}/*"]
    command += [f"org.apache.spark.deploy.{kind}", "--webui-port", "0", *flags]
    environment = {
        **os.environ,
        "SPARK_HOME": str(home),
        "PYSPARK_PYTHON": sys.executable,
        "SPARK_SCALA_VERSION": "2.13",
    }
    with open(folder / f"{name}.log", "wb") as log:
        return subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT, env=environment, cwd=folder)


# What Spark's own launch scripts pass.
_OPENED = [f"--add-opens=java.base/{name}=ALL-UNNAMED" for name in (
    "java.lang", "java.lang.invoke", "java.lang.reflect", "java.io", "java.net", "java.nio", "java.util",
    "java.util.concurrent", "java.util.concurrent.atomic", "sun.nio.ch", "sun.nio.cs", "sun.security.action",
    "sun.util.calendar",
)]  # fmt: skip


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _await(log: Path, said: str, process: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + START_S
    while said not in log.read_text(errors="replace"):
        if process.poll() is not None or time.monotonic() > deadline:
            raise AssertionError(f"Spark's cluster did not start:\n{log.read_text(errors='replace')}")
        time.sleep(0.02)
