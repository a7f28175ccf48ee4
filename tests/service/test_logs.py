"""Log lines about sources, refusals and the state. Each names its subject, and none floods the log."""

from __future__ import annotations

import io
import json
import logging
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest

from acker_protocol.ids import session_digest
from acker_protocol.messages import OpenBatch, Settle, Settlement, Status, Watch
from acker_service.core.shard import Shard
from acker_service.process import logs
from acker_service.process.logs import Log, RateLimit
from acker_service.server import Server
from acker_service.shared_shard import SharedShard
from acker_service.state.state_file import StateError
from tests.service.caller import SESSION, Caller, eventually, inits, roots_of
from tests.service.half_sent import HalfSender

Lines = Callable[[str], list[dict[str, Any]]]
SOURCE = {"source": "orders", "session_digest": session_digest(SESSION)}


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
        {"level": "INFO", "source": "returns", "session_digest": session_digest(8)},
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
    assert (stranger["source"], stranger["session_digest"], stranger["status"]) == (
        None,
        session_digest(99),
        "UNKNOWN_SOURCE",
    )
    (settled,) = lines("settlement_refused")
    assert (settled["source"], settled["batch"], settled["status"]) == ("orders", 3, "UNKNOWN_BATCH")


def test_the_log_of_a_refused_watch_has_what_it_asked_for_cut_to_the_length_of_a_name(
    shared: SharedShard, lines: Lines
) -> None:
    shared.watch(Watch("n" * 5000, 99, 10_000))
    shared.watch(Watch("orders", SESSION, 10_000, confirmed=77))
    unnamed, beyond = lines("watch_refused")
    assert (unnamed["source"], unnamed["session_digest"], unnamed["asked"]) == (None, session_digest(99), "n" * 256)
    assert (beyond["source"], beyond["session_digest"]) == ("orders", session_digest(SESSION))
    assert beyond["status"] == "INVALID"
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


def test_a_rate_limit_admits_several_lines_of_a_key_in_its_time(clock: Clock) -> None:
    limit = RateLimit(clock, every_s=60.0, lines=3)
    assert [limit.admit("key") for _ in range(5)] == [0, 0, 0, None, None]
    clock.now = 60.0
    assert [limit.admit("key") for _ in range(4)] == [2, 0, 0, None]
    assert limit.suppressed == 3


@pytest.fixture
def written(clock: Clock) -> Iterator[Callable[..., tuple[io.StringIO, logs.LineLimit]]]:
    """Return a function that sends log lines to a stream, as a server process does, and returns it and the limit."""
    before, level = logging.root.handlers[:], logging.root.level

    def configure(format: str = "json") -> tuple[io.StringIO, logs.LineLimit]:
        stream = io.StringIO()
        return stream, logs.configure(stream, format=format, level="info", clock=clock)

    yield configure
    logging.root.handlers[:] = before
    logging.root.setLevel(level)


Written = Callable[..., tuple[io.StringIO, logs.LineLimit]]


def test_text_from_outside_cannot_forge_a_log_line_or_field(written: Written) -> None:
    stream, _ = written("text")
    Log("acker.test").info("source_opened", source="a\rb", detail="\x1b[2J", other="x pending=1", plain="orders-ü")
    assert stream.getvalue().endswith('source="a\\rb" detail="\\u001b[2J" other="x pending=1" plain=orders-ü\n')
    assert len(stream.getvalue().splitlines()) == 1


def test_sources_that_open_and_close_in_a_loop_write_a_bounded_log(
    written: Written, clock: Clock, shared: SharedShard
) -> None:
    stream, limit = written()
    longest = "\U000e0001" * 256
    for session in range(100, 1100):
        shared.watch(Watch(longest, session, 10_000))
        shared.watch(Watch(longest, session, 10_000, close=True))
    assert len(stream.getvalue().splitlines()) == 2 * logs.LINES_A_MINUTE
    assert len(stream.getvalue()) < 2 * logs.LINES_A_MINUTE * (logs.FIELD_BYTES + 300)
    assert limit.left_out == 2 * (1000 - logs.LINES_A_MINUTE)
    clock.now += 60
    shared.watch(Watch("orders", 1, 10_000))
    (line,) = [json.loads(line) for line in stream.getvalue().splitlines()[2 * logs.LINES_A_MINUTE :]]
    assert (line["source"], line["left_out"]) == ("orders", 1000 - logs.LINES_A_MINUTE)


def test_lines_of_one_event_leave_room_for_other_events_and_other_programs(written: Written) -> None:
    stream, _ = written("text")
    for _ in range(1000):
        Log("acker.test").info("often")
        logging.getLogger("another").warning("anything")
    Log("acker.test").info("rare", left_out=0)
    text = stream.getvalue()
    assert [text.count(word) for word in ("often", "anything", "rare")] == [logs.LINES_A_MINUTE] * 2 + [1]


def test_lines_that_are_left_out_twice_are_counted_together(written: Written, clock: Clock) -> None:
    stream, _ = written()
    for _ in range(logs.LINES_A_MINUTE + 5):
        Log("acker.test").info("often", left_out=7)
    clock.now = 60.0
    Log("acker.test").info("often", left_out=7)
    assert json.loads(stream.getvalue().splitlines()[-1])["left_out"] == 12


@pytest.mark.parametrize("format", ["text", "json"])
@pytest.mark.parametrize("character", ["x", "ü", '"', "\n", "\U000e0001"])
def test_a_field_is_cut_where_it_gets_too_long(written: Written, format: str, character: str) -> None:
    stream, _ = written(format)
    Log("acker.test").info("event", field=character * 10_000)
    Log("acker.test").info("event", field="x" * logs.FIELD_BYTES)
    cut, whole = stream.getvalue().splitlines()
    assert "..." in cut
    assert len(cut.encode()) <= logs.FIELD_BYTES + 200
    assert "x" * logs.FIELD_BYTES in whole


def test_no_line_has_the_id_of_a_session(written: Written, shared: SharedShard, clock: Clock) -> None:
    stream, _ = written()
    session = 0xABCD_EF01_2345_6789
    shared.watch(Watch("returns", session, 10_000, confirmed=5))
    shared.watch(Watch("returns", session, 10_000, confirmed=5))
    shared.open_batch(OpenBatch(session, 1, 100, 900_000))
    shared.settle(Settle(session, 3, Settlement.DONE))
    clock.now = 60.0
    shared.tick()
    shared.watch(Watch("returns", session, 10_000))
    shared.watch(Watch("returns", session, 10_000, close=True))
    text = stream.getvalue()
    events = {json.loads(line)["event"] for line in text.splitlines()}
    assert events >= {"source_opened", "source_closed", "watch_refused", "batch_refused", "settlement_refused"}
    assert not re.search(f"{session}|{session:x}|{session.to_bytes(8, 'little').hex()}", text)
    assert text.count(session_digest(session)) == text.count('"source": "returns"')


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


@pytest.mark.long
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
    assert server.namespaces.default.shared.answers(0.0)


def test_calls_that_are_cut_as_their_requests_do_not_arrive_get_one_line(
    start_server: Callable[..., Server], lines: Lines
) -> None:
    server = start_server(receive_s=0.2)
    with HalfSender(server.address) as sender:
        for _ in range(2):
            sender.until_ended({sender.begin("Apply")})
    (line,) = lines("calls_overdue")
    assert (line["level"], line["calls"], line["receive_s"]) == ("WARNING", 1, 0.2)
