"""Processes that tests start: servers with their own flags, and ZooKeeper. They end with their parent process."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from acker_testing.child import Child, python_path
from tests.service.caller import Caller, eventually, is_running

# These tests start ZooKeeper.
pytestmark = pytest.mark.jvm

STARTS_ZOOKEEPER = """
import sys, time
from pathlib import Path
from acker_testing import ZooKeeperProcess
print(ZooKeeperProcess(Path(sys.argv[1])).pid, flush=True)
time.sleep(600)
"""


@pytest.mark.long
def test_a_child_takes_flags_stops_as_planned_and_stands_still(tmp_path: Path, zookeeper: str) -> None:
    child = Child(tmp_path, f"--zookeeper={zookeeper}", "--id=4", "--log-format=json")
    with Caller(child.await_ready()) as caller:
        child.stop()
        hello = caller.hello_later()
        child.cont()
        assert hello.result().id == 4
    assert child.terminate() == 0
    assert '"event": "registered"' in child.log


@pytest.mark.long
def test_a_child_that_was_killed_is_gone(tmp_path: Path) -> None:
    child = Child(tmp_path)
    child.await_ready()
    child.kill()
    assert child.wait() == -signal.SIGKILL


@pytest.mark.long
def test_zookeeper_ends_with_the_process_that_started_it(tmp_path: Path) -> None:
    environment = {**os.environ, "PYTHONPATH": python_path()}
    command = [sys.executable, "-c", STARTS_ZOOKEEPER, str(tmp_path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, env=environment) as starter:
        assert starter.stdout is not None
        pid = int(starter.stdout.readline())
        assert b"QuorumPeerMain" in Path(f"/proc/{pid}/cmdline").read_bytes()
        starter.kill()
    eventually(lambda: not is_running(pid))
