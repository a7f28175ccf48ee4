"""Log lines about sources, refusals and the state. Each names its subject, and none floods the log."""

from __future__ import annotations

import io
import json
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import grpc
import pytest

from acker_protocol.messages import OpenBatch, Settle, Settlement, Status, Watch
from acker_service.core.shard import Shard
from acker_service.locked_shard import SharedShard
from acker_service.process import logs
from acker_service.process.logs import Log, RateLimit
from acker_service.server import Server
from acker_service.state.state_file import StateError
from tests.service.caller import SESSION, Caller, eventually, inits, roots_of
from tests.service.half_sent import HalfSender

Lines = Callable[[str], list[dict[str, Any]]]
SOURCE = {"source": "orders", "session": SESSION}


@pytest.fixture
def lines(caplog: pytest.LogCaptureFixture) -> Lines:
    """Return a function: ``lines(event)`` returns level and fields of each line of this event so far."""
    caplog.set_level(logging.INFO)

    def of(event: str) -> list[dict[str, Any]]:
        so_far = caplog.get_records("setup") + caplog.get_records("call")
        records = [record for record in so_far if record.message == event]
        return [{"level": record.levelname, **record.acker_fields} for record in records]  # type: ignore[attr-defined]

    return of


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def shared(clock: Clock, lines: Lines) -> SharedShard:
    shard = Shard(incarnation=1, generation=2, max_pending=1000)
    shared = SharedShard(shard, clock=clock, max_watches=4, linger_s=0.0)
    shared.watch(Watch("orders", SESSION, 10_000))
    return shared


# -- sources


def test_a_source_that_opens_is_named_once(shared: SharedShard, lines: Lines) -> None:
    shared.watch(Watch("returns", 8, 10_000))
    shared.watch(Watch("returns", 8, 10_000))
    assert lines("source_opened") == [
        {"level": "INFO", **SOURCE},
        {"level": "INFO", "source": "returns", "session": 8},
    ]


def test_the_log_of_a_closed_source_has_its_counts(shared: SharedShard, lines: Lines) -> None:
    shared.open_batch(OpenBatch(SESSION, 1, 1 << 40, 20))
    shared.apply(inits(roots_of(range(5)), 0, batch=1))
    shared.watch(Watch("orders", SESSION, 10_000, close=True))
    had = {"pending": 5, "unconfirmed": 0, "open_batches": 1}
    assert lines("source_closed") == [{"level": "INFO", **SOURCE, **had}]
    shared.watch(Watch("orders", SESSION, 10_000, close=True))
    assert len(lines("source_closed")) == 1


def test_an_expired_lease_is_logged_with_its_pending_roots(shared: SharedShard, clock: Clock, lines: Lines) -> None:
    shared.open_batch(OpenBatch(SESSION, 1, 1 << 40, 20))
    shared.apply(inits(roots_of(range(5)), 0, batch=1))
    shared.settle(Settle(SESSION, 1, Settlement.ABANDON))
    shared.apply(inits(roots_of([100]), 1))
    for tenths in range(100):
        clock.now = tenths / 10
        shared.tick()
    assert lines("source_expired") == []
    for tenths in range(100, 103):
        clock.now = tenths / 10
        shared.tick()
    had = {"pending": 1, "unconfirmed": 20, "open_batches": 0}
    assert lines("source_expired") == [{"level": "WARNING", **SOURCE, **had}]


def test_a_real_server_logs_opened_and_expired_sources(start_server: Callable[..., Server], lines: Lines) -> None:
    with Caller(start_server().address) as caller:
        caller.watch(lease_ms=1)
        eventually(lambda: bool(lines("source_expired")))
    assert [line["source"] for line in lines("source_opened")] == ["test"]


# -- refusals


def test_a_refused_batch_names_its_source_and_says_why(shared: SharedShard, lines: Lines) -> None:
    shared.open_batch(OpenBatch(SESSION, 1, 100, 2000))
    shared.open_batch(OpenBatch(99, 4, 100, 5))
    shared.settle(Settle(SESSION, 3, Settlement.DONE))
    too_large, stranger = lines("batch_refused")
    assert too_large == {
        "level": "WARNING",
        **SOURCE,
        "batch": 1,
        "status": "INVALID",
        "detail": "up_to: 2000 roots never fit into 1000; make smaller batches",
        "left_out": 0,
    }
    assert (stranger["source"], stranger["session"], stranger["status"]) == (None, 99, "UNKNOWN_SOURCE")
    (settled,) = lines("settlement_refused")
    assert (settled["source"], settled["batch"], settled["status"]) == ("orders", 3, "UNKNOWN_BATCH")


def test_the_log_of_a_refused_watch_has_what_it_asked_for_cut_to_the_length_of_a_name(
    shared: SharedShard, lines: Lines
) -> None:
    shared.watch(Watch("n" * 5000, 99, 10_000))
    shared.watch(Watch("orders", SESSION, 10_000, confirmed=77))
    unnamed, beyond = lines("watch_refused")
    assert (unnamed["source"], unnamed["session"], unnamed["asked"]) == (None, 99, "n" * 256)
    assert (beyond["source"], beyond["session"], beyond["status"]) == ("orders", SESSION, "INVALID")
    assert "confirmed: 77" in beyond["detail"]


def test_a_batch_that_is_refused_again_and_again_is_one_line_a_minute(
    shared: SharedShard, clock: Clock, lines: Lines
) -> None:
    shared.open_batch(OpenBatch(SESSION, 1, 100, 900))
    for _ in range(100):
        clock.now += 0.2
        assert shared.open_batch(OpenBatch(SESSION, 2, 5000, 900)).status == Status.OVERLOADED
    assert len(lines("batch_refused")) == 1
    clock.now += 60
    shared.watch(Watch("orders", SESSION, 10_000))
    shared.open_batch(OpenBatch(SESSION, 2, 5000, 900))
    assert [line["left_out"] for line in lines("batch_refused")] == [0, 99]


def test_a_refused_greeting_says_from_where_and_why_and_is_not_repeated(
    start_server: Callable[..., Server], lines: Lines
) -> None:
    with Caller(start_server().address) as caller:
        for _ in range(5):
            with pytest.raises(grpc.RpcError):
                caller.hello(version=99)
        with pytest.raises(grpc.RpcError):
            caller.raw("Hello", b"\xff")
    other_version, malformed = lines("hello_refused")
    assert (other_version["level"], other_version["status"]) == ("WARNING", "FAILED_PRECONDITION")
    assert other_version["peer"].startswith("ipv4:127.0.0.1:")
    assert "version 99" in other_version["detail"]
    assert malformed["status"] == "INVALID_ARGUMENT"


def test_a_rate_limit_has_a_bound_however_many_keys_there_are(clock: Clock) -> None:
    limit = RateLimit(clock, every_s=60.0, keys_max=10)
    assert [limit.admit(key) for key in range(1000)].count(None) == 1000 - 11
    clock.now = 59.0
    assert limit.admit(5) is None
    clock.now = 60.0
    assert limit.admit(5) == 1
    assert limit.admit("new") == 0


def test_text_from_outside_cannot_forge_a_log_line_or_field() -> None:
    stream, logger = io.StringIO(), logging.getLogger("acker.test")
    before, level = logging.root.handlers[:], logging.root.level
    try:
        logs.configure(stream, format="text", level="info")
        Log(logger.name).info("source_opened", source="a\rb", detail="\x1b[2J", other="x pending=1", plain="orders-ü")
    finally:
        logging.root.handlers[:] = before
        logging.root.setLevel(level)
    assert stream.getvalue().endswith('source="a\\rb" detail="\\u001b[2J" other="x pending=1" plain=orders-ü\n')
    assert len(stream.getvalue().splitlines()) == 1


# -- state


def events(process: Any) -> list[dict[str, Any]]:
    return [json.loads(line) for line in process.log.splitlines()]


def named(process: Any, event: str) -> list[dict[str, Any]]:
    return [line for line in events(process) if line["event"] == event]


def leave_roots(address: str) -> None:
    with Caller(address) as caller:
        caller.begin()
        caller.apply(inits(roots_of(range(7)), 0))


@pytest.mark.long
def test_a_restored_state_and_one_that_a_crash_has_lost_are_told_apart(
    server_process: Callable[..., Any], tmp_path: Path
) -> None:
    process = server_process("--state-dir", str(tmp_path / "state"))
    assert named(process, "state_lost") == []
    leave_roots(process.address)
    process.restart()
    (restored,) = named(process, "state_restored")
    assert (restored["pending"], restored["sources"]) == (7, 1)
    assert named(process, "state_lost") == []
    process.restart(kill=True)
    (lost,) = named(process, "state_lost")
    assert lost["level"] == "warning"
    assert "replay" in lost["reason"]
    process.restart()
    assert len(named(process, "state_lost")) == 1


def test_a_stop_without_a_state_directory_logs_what_is_lost(start_server: Callable[..., Server], lines: Lines) -> None:
    start_server().stop()
    assert lines("state_lost") == []
    server = start_server()
    leave_roots(server.address)
    server.stop()
    (lost,) = lines("state_lost")
    assert (lost["level"], lost["pending"], lost["sources"]) == ("WARNING", 7, 1)


def test_a_state_that_cannot_be_written_is_lost_and_the_log_says_so(
    server_process: Callable[..., Any], tmp_path: Path
) -> None:
    process = server_process("--state-dir", str(tmp_path))
    (tmp_path / "acker.state.tmp").mkdir()
    assert process.terminate() == 1
    (lost,) = named(process, "state_lost")
    assert (lost["level"], "--state-dir" in lost["error"]) == ("error", True)


def test_after_a_failed_state_write_the_shard_still_answers(
    start_server: Callable[..., Server], tmp_path: Path
) -> None:
    server = start_server(state_dir=str(tmp_path))
    with Caller(server.address) as caller:
        caller.watch()
        # More than a file's buffer holds, so that the write meets the full disk midway.
        caller.apply(inits(roots_of(range(4000)), 0))
    (tmp_path / "acker.state.tmp").symlink_to("/dev/full")
    with pytest.raises(StateError) as lost:
        server.stop(0.0)
    # The held error keeps the frames of the failed write alive.
    assert lost.value is not None
    assert server._shared.answers(0.0)


def test_calls_that_are_cut_as_their_requests_do_not_arrive_get_one_line(
    start_server: Callable[..., Server], lines: Lines
) -> None:
    server = start_server(receive_s=0.2)
    with HalfSender(server.address) as sender:
        for _ in range(2):
            sender.until_ended({sender.begin("Apply")})
    (line,) = lines("calls_overdue")
    assert (line["level"], line["calls"], line["receive_s"]) == ("WARNING", 1, 0.2)
