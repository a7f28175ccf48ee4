"""Signals: a server stops and keeps its state."""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import signal
import subprocess
import sys
import threading
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from acker_protocol.messages import OpenBatch, Status
from acker_service.http import probes
from acker_service.server import Server
from acker_service.state.state_file import StateDir
from tests.service.caller import Caller, eventually, inits, roots_of
from tests.service.load import Load
from tests.service.pages import page

SYS_TGKILL = {"x86_64": 234, "aarch64": 131}[os.uname().machine]


def events(process: Any) -> list[str]:
    return [json.loads(line)["event"] for line in process.log.splitlines()]


@pytest.mark.long
@pytest.mark.parametrize("which", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_that_the_system_gives_to_another_thread_stops_the_server_too(
    server_process: Callable[..., Any], which: signal.Signals
) -> None:
    process = server_process()
    threads = sorted(int(name) for name in os.listdir(f"/proc/{process.pid}/task"))
    others = [thread for thread in threads if thread != process.pid]
    assert others
    libc = ctypes.CDLL(None, use_errno=True)
    assert libc.syscall(SYS_TGKILL, process.pid, others[-1], int(which)) == 0
    assert process.wait() == 0
    assert events(process) == ["ready", "signal", "stopping", "stopped"]


LOADING = """
import os, signal, sys

class Finder:
    def find_spec(self, name, path, target=None):
        if name == "acker_service.server":
            os.kill(os.getpid(), signal.SIGTERM)

sys.meta_path.insert(0, Finder())
from acker_service.__main__ import main
sys.exit(main(["serve", "--port=0", "--http-port=off", "--log-format=json"]))
"""


@pytest.mark.long
def test_a_signal_that_comes_while_the_program_is_loaded_stops_it_once_it_can() -> None:
    ran = subprocess.run([sys.executable, "-c", LOADING], stderr=subprocess.PIPE, text=True, check=False, timeout=120)
    assert ran.returncode == 0, ran.stderr
    assert [json.loads(line)["event"] for line in ran.stderr.splitlines()] == ["ready", "signal", "stopping", "stopped"]


def test_a_server_that_writes_its_state_for_long_is_not_called_stuck(
    start_server: Callable[..., Server], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = start_server(state_dir=str(tmp_path), http_port=0)
    seen = []

    def write(state_dir: StateDir, parts: object) -> int:
        monkeypatch.setattr(probes, "STUCK_S", 0.0)
        seen.append((page(server, "/livez"), page(server, "/readyz")))
        return 0

    monkeypatch.setattr(StateDir, "write", write)
    server.stop()
    assert seen == [((200, "ok\n"), (503, "stopping\n"))]


@pytest.mark.long
def test_a_second_signal_does_not_throw_the_state_away(server_process: Callable[..., Any], tmp_path: Path) -> None:
    process = server_process("--state-dir", str(tmp_path / "state"))
    with Caller(process.address) as caller:
        caller.begin()
        caller.apply(inits(roots_of(range(1000)), 0))
        generation = caller.watch().generation
    for which in (signal.SIGTERM, signal.SIGINT, signal.SIGTERM):
        os.kill(process.pid, which)
    assert process.wait() == 0
    process.start()
    with Caller(process.address) as caller:
        reply = caller.watch()
        assert (reply.is_new, reply.generation) == (False, generation)
        assert caller.stats().values["acker_pending_roots"] == 1000


def test_a_hurried_stop_waits_for_no_call_and_writes_the_state(
    start_server: Callable[..., Server], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = start_server(state_dir=str(tmp_path), grace_s=3600.0)
    entered, leave = threading.Event(), threading.Event()

    def slow(*_: object) -> None:
        entered.set()
        leave.wait()

    monkeypatch.setattr(server.namespaces.default.shared, "open_batch", slow)
    with Caller(server.address) as caller:
        caller.begin()
        calling = caller.opening(OpenBatch(7, 1, 100, 5))
        assert entered.wait(20)
        stopping = threading.Thread(target=server.stop)
        stopping.start()
        eventually(lambda: not server._probes.is_serving)
        server.hurry()
        stopping.join(20)
        assert not stopping.is_alive()
        assert (tmp_path / "acker.state").exists()
        leave.set()
        assert calling.exception() is not None


def await_progress(load: Load) -> None:
    reports, probes = load.reports, load.probes
    eventually(lambda: load.reports > reports + 20 and load.probes > probes + 20, 60)


@pytest.mark.long
@pytest.mark.parametrize("stops", [2, pytest.param(50, marks=[pytest.mark.long, pytest.mark.timeout(1500)])])
def test_every_sigterm_under_load_is_a_clean_stop_that_costs_no_replay(
    server_process: Callable[..., Any], tmp_path: Path, stops: int
) -> None:
    process = server_process("--state-dir", str(tmp_path / "state"))
    load = Load(process.address, lambda: process.http_address)
    statuses = []
    for _ in range(stops):
        await_progress(load)
        statuses.append(process.terminate())
        process.start()
    load.stop()
    print(f"{stops} stops, {load.reports} reports, {load.probes} probes")
    assert statuses == [0] * stops
    assert events(process).count("state_restored") == stops
    assert (load.registrations, len(load.generations)) == (1, 1)


# Runs a server in which no thread can be started once it is ready.
WITHOUT_THREADS = """
import sys, threading
from acker_service.process.signals import Signals

wait, start = Signals.wait, threading.Thread.start
tried = []

def refuse(thread):
    tried.append(thread.name)
    raise RuntimeError("can't start new thread")

def wait_without_threads(signals):
    if threading.current_thread() is threading.main_thread():
        threading.Thread.start = refuse
        print("refusing", flush=True)
    return wait(signals)

Signals.wait = wait_without_threads
from acker_service.__main__ import main
status = main(["serve", *sys.argv[1:]])
print(*tried, flush=True)
sys.exit(status)
"""


@pytest.mark.long
def test_a_server_that_can_start_no_thread_answers_calls_and_writes_its_state(tmp_path: Path) -> None:
    ready, state = tmp_path / "ready.json", tmp_path / "state"
    flags = ["--port=0", "--http-port=0", f"--ready-file={ready}", f"--state-dir={state}", "--log-format=json"]
    with subprocess.Popen(
        [sys.executable, "-c", WITHOUT_THREADS, *flags], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "refusing\n"
        addresses = json.loads(ready.read_text())
        with contextlib.ExitStack() as stack:
            callers = [stack.enter_context(Caller(addresses["address"])) for _ in range(8)]
            callers[0].begin()
            callers[0].apply(inits(roots_of(range(1000)), 0))
            watching = [caller.watching(wait_ms=1) for caller in callers for _ in range(8)]
            assert all(each.result().status == Status.APPLIED for each in watching)
            with urllib.request.urlopen(f"http://{addresses['http_address']}/livez") as page:
                assert page.status == 200
            process.send_signal(signal.SIGTERM)
            _, log = process.communicate(timeout=60)
        assert process.returncode == 0, log
    events = [json.loads(line)["event"] for line in log.splitlines()]
    assert events == ["ready", "source_opened", "signal", "stopping", "state_written", "stopped"]
    stored = StateDir(str(state))
    assert stored.read() is not None
    stored.close()
