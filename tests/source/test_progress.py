"""The progress of a source: for programs, in the log, in a bar."""

from __future__ import annotations

import dataclasses
import io
import logging
import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from types import SimpleNamespace
from typing import Any

import pytest

from acker_client.source import Batch, Emissions, Listener, Progress, Retry
from acker_client.source.engine.environment import Environment
from acker_client.source.engine.progress_bar import ProgressBar, bar_for
from acker_client.source.engine.progress_report import ProgressReport, start_report
from acker_client.source.engine.timer import start_timer
from tests.source.executors import NO_SPARK, Cluster, breaking, failing, save_all
from tests.source.logs import LogSource, MemoryLetters, log_of


@dataclass
class HandTimer:
    """A ``Timer`` whose calls a test makes by hand."""

    calls: list[Callable[[], float | None]] = field(default_factory=list)
    stops: int = 0

    def __call__(self, delay_s: float, call: Callable[[], float | None]) -> Callable[[], None]:
        self.calls.append(call)
        return self._stop

    def _stop(self) -> None:
        self.stops += 1


def source(cluster: Cluster, count: int = 4, **options: Any) -> LogSource:
    log = log_of(a=count)
    defaults = {"environment": cluster.environment(), "dead_letters": MemoryLetters(), "max_dead_share": 1.0}
    return LogSource(log, **{**defaults, **options})


# -- for programs


def test_a_program_asks_from_any_thread_what_a_source_has_done_and_does(cluster: Cluster) -> None:
    found: list[Progress] = []
    asked = source(cluster, 10, batch_records=4, retry=Retry(max_retries=1, initial_s=8, cap_s=8))

    def ask() -> None:
        thread = threading.Thread(target=lambda: found.append(asked.progress()))
        thread.start()
        thread.join()

    def process(batch: Batch) -> None:
        cluster.time.sleep(3)
        ask()
        failing(lambda row: row.value == "a1")(batch)

    ask()
    asked.run(NO_SPARK, process)
    ask()
    assert [each.doing for each in found] == ["not started", *["working"] * 4, "ended"]
    assert [(each.batch, each.batch_records) for each in found] == [(0, 0), (1, 4), (2, 4), (3, 2), (4, 1), (4, 1)]
    assert [(each.records, each.acked, each.failed, each.open) for each in found] == [
        (0, 0, 0, 0), (4, 0, 0, 4), (8, 3, 1, 5), (10, 7, 1, 3), (10, 9, 1, 1), (10, 9, 2, 0)
    ]  # fmt: skip
    assert [each.retrying for each in found] == [0, 0, 1, 1, 0, 0]
    assert {each.doing_s for each in found[1:-1]} == {3.0}
    assert (found[-1].done, found[-1].dead_lettered) == (10, 1)
    with pytest.raises(dataclasses.FrozenInstanceError):
        found[0].acked = 5  # type: ignore[misc]


def test_a_batch_that_failed_as_a_whole_has_its_number_of_attempts(cluster: Cluster) -> None:
    attempts: list[tuple[int, int]] = []
    asked = source(cluster, retry=Retry(initial_s=0, cap_s=0))

    def process(batch: Batch) -> None:
        attempts.append((asked.progress().batch_records, asked.progress().batch_attempt))
        breaking(lambda row: row.value == "a3" and len(attempts) < 3)(batch)

    asked.run(NO_SPARK, process)
    assert attempts == [(4, 1), (4, 2), (1, 3), (1, 3), (1, 3), (1, 3)]


def test_what_a_source_waits_for_is_said(cluster: Cluster) -> None:
    waits: list[tuple[str, float | None]] = []
    environment = cluster.environment()

    def sleep(seconds: float) -> None:
        waits.append((asked.progress().doing, asked.progress().left_s))
        cluster.sleep(seconds)

    options: dict[str, Any] = {"retry": Retry(max_retries=1, initial_s=5, cap_s=5)}
    asked = source(cluster, environment=replace(environment, sleep=sleep), **options)
    asked.run(NO_SPARK, failing(lambda row: row.value == "a1"))
    assert {doing for doing, _ in waits} == {"waiting for a retry"}
    assert [left_s for _, left_s in waits] == pytest.approx([2.5, 1.5, 0.5])


def test_what_is_done_is_said_to_callbacks_too(cluster: Cluster) -> None:
    said: list[str] = []

    class Asking(Listener):
        def on_emit(self, batch: int, emitted: Emissions, is_replay: bool) -> None:
            said.append(asked.progress().doing)

        def on_ack(self, acked: Emissions) -> None:
            said.append(asked.progress().doing)

    asked = source(cluster, listener=Asking())
    taken = [asked.progress().doing for _ in asked.outcomes(NO_SPARK, save_all)]
    assert said == ["waiting for room at the servers", "settling"]
    assert taken == ["waiting until outcomes are taken"] * 4


# -- in the log


def progress(elapsed_s: float, acked: int, **fields: Any) -> Progress:
    return Progress("orders", 1_250_000, acked, 0, 0, 1_250_000 - acked, elapsed_s, 0.0, **fields)


def test_a_line_a_minute_says_what_is_done_and_how_fast(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "acker_client.source")
    now = [progress(0.0, 0)]
    report = ProgressReport(lambda: now[0], None)
    working = {"doing": "working", "batch": 12, "batch_records": 125_000, "batch_attempt": 1}
    for second in range(0, 181, 20):
        now[0] = progress(float(second), second * 1000, doing_s=second % 60, **working)
        report.tick()
    now_ = "1,000 records/s, batch 12 (125,000 records): working for 0 s"
    assert caplog.messages == [
        f"source 'orders': 1,250,000 read, {acked:,} acked, {now_}" for acked in (60_000, 120_000, 180_000)
    ]


def test_nothing_is_logged_while_nothing_happens(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "acker_client.source")
    now = [progress(0.0, 0)]
    report = ProgressReport(lambda: now[0], None)
    for minute in range(1, 10):
        now[0] = progress(60.0 * minute, 1000 if minute < 5 else 2000, doing="waiting for new records", batch=3)
        report.tick()
    assert [line.partition(" acked")[0] for line in caplog.messages] == [
        "source 'orders': 1,250,000 read, 1,000", "source 'orders': 1,250,000 read, 2,000",
    ]  # fmt: skip


def test_the_rate_is_that_of_the_last_minute() -> None:
    rates, now = list[float](), [progress(0.0, 0)]

    class Bar:
        def show(self, shown: Progress, records_per_s: float) -> None:
            rates.append(records_per_s)

        def close(self) -> None: ...

    report = ProgressReport(lambda: now[0], Bar())
    for second in range(1, 241):
        now[0] = progress(float(second), 1000 * min(second, 120))
        report.tick()
    assert rates[:120] == pytest.approx([1000.0] * 120)
    assert rates[149] == pytest.approx(500.0)
    assert rates[179:] == pytest.approx([0.0] * 61)


WORKING = {"doing": "working", "doing_s": 70, "batch": 9, "batch_records": 4, "batch_attempt": 2}
WAITING = {"doing": "waiting for a retry", "left_s": 12.4, "retrying": 3, "batch": 9}


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        (WAITING, "9 batches, waiting for a retry of 3 records in 12 s"),
        (WORKING, "batch 9 (4 records, attempt 2): working for 70 s"),
        ({"doing": "planning a batch"}, "0 batches, planning a batch"),
    ],
)
def test_a_line_says_what_the_source_does_now(fields: dict[str, Any], says: str) -> None:
    assert progress(1.0, 0, **fields).line(7.0) == f"1,250,000 read, 0 acked, 7 records/s, {says}"


def test_dead_letters_and_failed_attempts_are_in_the_line_only_if_there_are_any() -> None:
    shown = replace(progress(1.0, 5), dead_lettered=2, failed=1_003).line(0.0)
    assert shown.startswith("1,250,000 read, 5 acked, 2 dead letters, 1,003 failed attempts, 0 records/s")


@pytest.mark.parametrize(
    ("option", "level", "starts"),
    [(None, logging.INFO, 1), (True, logging.WARNING, 1), (False, logging.INFO, 0), (None, logging.WARNING, 0)],
)
def test_a_run_reports_until_it_ends_if_anybody_sees_it(
    cluster: Cluster, caplog: pytest.LogCaptureFixture, option: Any, level: int, starts: int
) -> None:
    timer = HandTimer()
    caplog.set_level(level, "acker_client.source")
    environment = replace(cluster.environment(), timer=timer)
    made = source(cluster, progress=option, environment=environment, lease_s=600.0)

    def process(batch: Batch) -> None:
        assert (len(timer.calls), timer.stops) == (starts, 0)
        cluster.time.sleep(61)
        for call in timer.calls:
            assert call() == (60.0 if option is None else 1.0)
        save_all(batch)

    made.run(NO_SPARK, process)
    assert timer.stops == starts
    said = [line for line in caplog.messages if "read, 0 acked" in line]
    assert len(said) == (1 if starts and level == logging.INFO else 0)


class Broken:
    """A bar in a terminal that was closed."""

    def show(self, progress: Progress, records_per_s: float) -> None:
        raise BrokenPipeError

    def close(self) -> None:
        raise BrokenPipeError


def test_a_report_that_fails_ends_without_a_traceback_and_without_an_error(capfd: pytest.CaptureFixture[str]) -> None:
    report, ended = ProgressReport(lambda: progress(0.0, 0), Broken()), threading.Event()

    def timer(delay_s: float, call: Callable[[], float | None]) -> Callable[[], None]:
        def tick() -> float | None:
            found = call()
            if found is None:
                ended.set()
            return found

        return start_timer(0.0, tick)

    end = start_report(report, timer)
    assert ended.wait(30)
    end()
    assert capfd.readouterr() == ("", "")


# -- in a bar


def test_records_that_are_untracked_or_dropped_are_done(cluster: Cluster) -> None:
    summary = replace(source(cluster).summary(), records=100, acked=5, absent=90, dropped=5, open=0)
    assert Progress.of(summary).done == 100
    assert Progress.of(replace(summary, records=101, open=1)).done == 100


class Terminal(io.StringIO):
    encoding = "utf-8"

    def isatty(self) -> bool:
        return True


def new_terminal(patched: pytest.MonkeyPatch) -> Terminal:
    """Take the place of stderr. A fixture cannot: pytest replaces stderr between fixtures and the test."""
    terminal = Terminal()
    patched.setattr(sys, "stderr", terminal)
    return terminal


def test_a_bar_draws_what_is_done_of_what_was_read(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = new_terminal(monkeypatch)
    monkeypatch.setenv("COLUMNS", "200")
    bar = bar_for(None, "orders")
    assert bar is not None
    bar.show(progress(10.0, 625_000, doing="working", batch=12, batch_records=125_000, batch_attempt=1), 41_000.4)
    bar.show(progress(11.0, 1_250_000, doing="ended"), 0.0)
    bar.close()
    drawn = terminal.getvalue().split("\r")
    half, whole = (line.strip() for line in drawn if "orders:" in line)
    assert half.startswith("50%|██████████          | orders: 1,250,000 read, 625,000 acked, 41,000 records/s")
    assert "batch 12 (125,000 records): working for 0 s" in half
    assert whole.startswith("100%|████████████████████| orders: 1,250,000 read, 1,250,000 acked")
    assert drawn[-2].strip() == ""


def test_a_run_that_reads_nothing_draws_an_empty_bar(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = new_terminal(monkeypatch)
    bar = ProgressBar("orders")
    bar.show(replace(progress(1.0, 0), records=0), 0.0)
    bar.close()
    assert "orders: 0 read, 0 acked" in terminal.getvalue()


def test_a_run_that_ends_at_once_draws_nothing(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = new_terminal(monkeypatch)
    environment = replace(cluster.environment(), timer=HandTimer())
    source(cluster, environment=environment).run(NO_SPARK, save_all)
    assert terminal.getvalue() == ""


def test_there_is_a_bar_in_a_terminal_and_in_a_notebook_and_nowhere_else(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stderr", io.StringIO())
    assert (bar_for(None, "orders"), bar_for(False, "orders")) == (None, None)
    shell = SimpleNamespace()
    monkeypatch.setitem(sys.modules, "IPython", SimpleNamespace(get_ipython=lambda: shell))
    assert bar_for(None, "orders") is None
    shell.kernel = object()
    assert bar_for(None, "orders") is not None
    monkeypatch.setattr("acker_client.source.engine.progress_bar.util.find_spec", lambda name: None)
    assert bar_for(None, "orders") is None
    monkeypatch.setattr(sys, "stderr", None)
    monkeypatch.delitem(sys.modules, "IPython")
    assert bar_for(None, "orders") is None


@pytest.mark.parametrize("given", [2, "yes", "auto"])
def test_a_wrong_value_is_refused(cluster: Cluster, given: Any) -> None:
    with pytest.raises(ValueError, match=r"progress=.*: give True, False, or None"):
        source(cluster, progress=given)


def test_the_environment_of_a_real_run_calls_by_the_clock() -> None:
    assert {each.name: each.default for each in dataclasses.fields(Environment)}["timer"] is start_timer
