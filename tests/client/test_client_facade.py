"""The client's public calls against a real in-memory shard: results and errors."""

from __future__ import annotations

import contextlib
import logging
import pickle
import threading
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from acker_client import AckerClient, Settings, Settlement, Verdict, errors
from acker_client.client import shared_client
from acker_protocol import ids
from acker_protocol.messages import ApplyReply, Entries, HelloReply, Identity, InitScope, Status
from acker_protocol.reports import fold
from acker_testing import LocalServer, LocalTransport, SimulatedTime, new_shard

FIRST = 1 << 40
ROOT = ids.root_id(FIRST, 0)
OTHER = ids.root_id(FIRST, 1)


@pytest.fixture
def time() -> SimulatedTime:
    return SimulatedTime()


@pytest.fixture
def server(time: SimulatedTime) -> LocalServer:
    return LocalServer(clock=time.clock, sleep=time.sleep)


@pytest.fixture
def make(time: SimulatedTime, server: LocalServer) -> Callable[..., AckerClient]:
    """Return a function that makes a client of the local server. Keywords are those of Settings."""

    def client(connect: Any = None, **options: Any) -> AckerClient:
        settings = Settings(("local:1",), **options)
        return AckerClient(settings, connect=connect or server.connect, clock=time.clock, sleep=time.sleep)

    return client


@pytest.fixture
def client(make: Callable[..., AckerClient]) -> AckerClient:
    """A client with an open source, and a batch that is not held."""
    return opened(make())


def opened(client: AckerClient, **timeouts: float | None) -> AckerClient:
    """Open a source and batch 1, which is not held, on ``client``; return it."""
    client.open_source("orders", lease_s=600)
    client.open_batch(1, FIRST, 1 << 20, held=False, **{"message_timeout_s": 30.0, **timeouts})
    return client


def outcomes(client: AckerClient, wait_s: float = 0.0) -> dict[int, tuple[Verdict, str]]:
    reported = client.watch(wait_s).outcomes
    pairs = zip(reported.root_ids.tolist(), reported.verdicts.tolist(), strict=True)
    return {root: (Verdict(verdict), reported.reason(i)) for i, (root, verdict) in enumerate(pairs)}


class Answering:
    """A transport whose ``apply`` first gives ``replies``, and then calls the wrapped transport."""

    def __init__(self, inner: LocalTransport, *replies: ApplyReply | Exception) -> None:
        self._inner = inner
        self.replies = list(replies)
        self.hello_reply: HelloReply | None = None
        self.applied = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def hello(self, hello: Any, timeout_s: float) -> HelloReply:
        return self.hello_reply or self._inner.hello(hello, timeout_s)

    def apply(self, message: Any, timeout_s: float) -> ApplyReply:
        self.applied += 1
        if not self.replies:
            return self._inner.apply(message, timeout_s)
        reply = self.replies.pop(0)
        if isinstance(reply, Exception):
            raise reply
        return reply


def test_a_tree_that_was_processed_is_acked(client: AckerClient) -> None:
    client.init(ROOT, [5, 6], batch=1)
    client.ack(ROOT, 5, emitted=[7, 8])
    client.flush()
    assert outcomes(client) == {}
    for edge in (6, 7, 8):
        client.ack(ROOT, edge)
    client.flush()
    assert outcomes(client) == {ROOT: (Verdict.ACKED, "")}
    assert client.totals.applied == 3


def test_a_failed_tree_says_why(client: AckerClient) -> None:
    client.init(ROOT, 5, batch=1)
    client.fail(ROOT, "no such sku", edge=5)
    client.fail(ROOT, "another reason")
    client.flush()
    assert outcomes(client) == {ROOT: (Verdict.FAILED, "no such sku")}


def test_a_reset_timeout_starts_anew(client: AckerClient, time: SimulatedTime) -> None:
    client.init(ROOT, 5, batch=1)
    client.init(OTHER, 5, batch=1)
    client.flush()
    reported: dict[int, tuple[Verdict, str]] = {}
    for _ in range(2):
        time.sleep(20.0)
        client.reset_timeout(ROOT)
        client.flush()
        reported |= outcomes(client)
    time.sleep(5.0)
    assert reported | outcomes(client) == {OTHER: (Verdict.TIMED_OUT, "message_timeout")}


def test_columns_do_what_rows_do(client: AckerClient) -> None:
    roots = ids.root_ids(1 << 40, np.arange(1000, dtype=np.uint64))
    edges = ids.edge0_column(roots)
    client.init_columns(roots.view(np.int64), edges, batch=1)
    client.ack_columns(roots[:900], edges[:900])
    client.fail_columns(roots[900:], "bad", edges[900:])
    client.flush()
    reported = outcomes(client)
    assert {reported[int(root)] for root in roots[:900]} == {(Verdict.ACKED, "")}
    assert {reported[int(root)] for root in roots[900:]} == {(Verdict.FAILED, "bad")}


def test_outcomes_are_handed_over_once_and_confirmed(client: AckerClient, server: LocalServer) -> None:
    client.init(ROOT, 0, batch=1)
    client.flush()
    assert outcomes(client) == {ROOT: (Verdict.ACKED, "")}
    assert server.shard.stats.unconfirmed == 1
    assert outcomes(client) == {}
    assert server.shard.stats.unconfirmed == 0


def test_a_watch_waits_for_timeouts(client: AckerClient, time: SimulatedTime) -> None:
    client.init(ROOT, 5, batch=1)
    client.flush()
    assert outcomes(client, 60.0) == {ROOT: (Verdict.TIMED_OUT, "message_timeout")}
    assert time.clock() == pytest.approx(30.0, abs=1.0)


def test_a_full_buffer_is_flushed_before_the_next_call(make: Callable[..., AckerClient], server: LocalServer) -> None:
    client = opened(make(buffer_entries=10))
    for number in range(11):
        client.init(ids.root_id(FIRST, number), 5, batch=1)
    assert server.shard.stats.inits == 10


def test_a_call_that_finds_no_room_and_no_server_has_not_counted(
    make: Callable[..., AckerClient], server: LocalServer
) -> None:
    client = opened(make(buffer_entries=2, budget_s=1.0))
    client.init(ROOT, 5, batch=1)
    client.init(OTHER, 5, batch=1)
    server.stop()
    counted: list[int] = []
    for edge in range(5, 30):
        with contextlib.suppress(errors.Unavailable):
            client.ack(ids.root_id(9, edge), edge)
            counted.append(edge)
    assert 0 < len(counted) < 25
    server.start()
    client.flush()
    assert server.shard.stats.orphans == len(counted)


def test_after_a_spent_budget_the_next_flush_goes_on_with_the_same_report(
    client: AckerClient, server: LocalServer
) -> None:
    client.init(ROOT, 5, batch=1)
    server.stop()
    with pytest.raises(errors.Unavailable, match=r"local:1.*acker serve"):
        client.flush()
    server.start()
    client.ack(ROOT, 5)
    client.flush()
    assert outcomes(client) == {ROOT: (Verdict.ACKED, "")}
    assert client.totals.applied == 2


def test_going_on_unreported_is_counted_and_logged_once(
    make: Callable[..., AckerClient], server: LocalServer, caplog: pytest.LogCaptureFixture
) -> None:
    client = make(on_unreachable="continue", budget_s=1.0)
    client.hello()
    server.stop()
    for edge in range(3):
        client.ack(ROOT, edge)
        client.flush()
    result = client.report(Identity(1, 2), fold(np.array([ROOT], np.uint64), np.array([5], np.uint64)))
    assert (result.unreported, result.without) == (1, frozenset({0}))
    assert client.totals.unreported == 4
    assert len([record for record in caplog.records if record.levelno == logging.ERROR]) == 1


def test_reports_before_any_server_has_answered_are_dropped_and_counted(
    make: Callable[..., AckerClient], server: LocalServer
) -> None:
    client = make(on_unreachable="continue", budget_s=1.0)
    server.stop()
    client.ack(ROOT, 5)
    client.fail(OTHER, "no price", edge=7)
    client.flush()
    assert client.totals.unreported == 2
    server.start()
    client.flush()
    assert server.shard.stats.sections_applied == 0


def test_a_client_that_has_closed_its_source_goes_on_unreported_too(
    make: Callable[..., AckerClient], server: LocalServer
) -> None:
    client = make(on_unreachable="continue", budget_s=1.0)
    client.open_source("orders").close()
    server.stop()
    client.ack(ROOT, 5)
    client.flush()
    assert client.totals.unreported == 1


@pytest.mark.parametrize("has_greeted", [True, False])
def test_a_fail_without_an_edge_is_not_dropped_as_others_may_ack_all_edges_of_its_root(
    make: Callable[..., AckerClient], server: LocalServer, has_greeted: bool
) -> None:
    source = opened(make())
    source.init(ROOT, 5, batch=1)
    source.flush()
    worker, other = make(on_unreachable="continue", budget_s=1.0), make()
    if has_greeted:
        worker.hello()
    server.stop()
    worker.fail(ROOT, "cannot be written")
    with pytest.raises(errors.Unavailable):
        worker.flush()
    server.start()
    worker.flush()
    other.ack(ROOT, 5)
    other.flush()
    assert outcomes(source) == {ROOT: (Verdict.FAILED, "cannot be written")}


def test_the_delay_of_an_overloaded_server_is_waited_out(
    make: Callable[..., AckerClient], server: LocalServer, time: SimulatedTime
) -> None:
    full = ApplyReply(1, Status.OVERLOADED, retry_delay_ms=5000, detail="no room")
    client = opened(make(connect=lambda address: Answering(server.connect(address), full)))
    client.init(ROOT, 5, batch=1)
    client.flush()
    assert time.clock() >= 5.0
    assert server.shard.stats.pending == 1


def test_a_server_that_stays_full_is_overloaded(time: SimulatedTime) -> None:
    server = LocalServer(new_shard(max_pending=10), clock=time.clock, sleep=time.sleep)
    client = AckerClient(
        Settings(("local:1",), budget_s=3.0), connect=server.connect, clock=time.clock, sleep=time.sleep
    )
    client.open_source("orders")
    client.open_batch(1, 1 << 40, 8)
    with pytest.raises(errors.Overloaded, match="--max-pending"):
        client.open_batch(2, 1 << 41, 8)
    client.settle(1, Settlement.ABANDON)
    client.watch()
    client.watch()
    client.open_batch(2, 1 << 41, 8)


@pytest.mark.parametrize("lease_s", [2.0, 600.0])
def test_opening_a_source_waits_for_room_within_its_budget(time: SimulatedTime, lease_s: float) -> None:
    server = LocalServer(new_shard(max_sources=1), clock=time.clock, sleep=time.sleep)
    first, second = (
        AckerClient(Settings(("local:1",), budget_s=10.0), connect=server.connect, clock=time.clock, sleep=time.sleep)
        for _ in range(2)
    )
    first.open_source("orders", lease_s=lease_s)
    with contextlib.nullcontext() if lease_s < 10 else pytest.raises(errors.Overloaded, match="sources"):
        second.open_source("returns")
    assert time.clock() <= 10.0


def test_a_number_that_is_open_is_refused_with_other_parameters_and_stays_open(client: AckerClient) -> None:
    pin = client.open_batch(2, 1 << 40, 1)
    root = ids.root_id(1 << 40, 0)
    with pytest.raises(ValueError, match=r"batch 2 is not over.* a number of its own"):
        client.open_batch(2, 1 << 41, 1)
    assert client.open_batch(2, 1 << 40, 1) == pin
    client.init(root, 5, batch=2)
    client.ack(root, 5)
    client.flush()
    client.settle(2, Settlement.DONE)
    watched = client.watch()
    assert (watched.settled, watched.outcomes.verdicts.tolist()) == ((2,), [Verdict.ACKED])


@pytest.mark.parametrize("place", [0, 1])
def test_a_batch_of_nothing_hides_no_outcome_of_another_batch(client: AckerClient, place: int) -> None:
    client.open_batch(2, 1 << 41, 3, held=False)
    client.open_batch(3, (1 << 41) + place, 0)
    roots = [ids.root_id(1 << 41, index) for index in range(3)]
    for root in roots:
        client.init(root, 5, batch=2)
        client.ack(root, 5)
    client.flush()
    assert outcomes(client) == dict.fromkeys(roots, (Verdict.ACKED, ""))


def test_an_unanswered_status_keeps_the_report_and_names_itself(
    make: Callable[..., AckerClient], server: LocalServer
) -> None:
    full = ApplyReply(1, Status.OVERLOADED)
    client = make(connect=lambda address: Answering(server.connect(address), *[full] * 1000), budget_s=1.0)
    client.ack(ROOT, 5)
    with pytest.raises(errors.Overloaded, match="OVERLOADED"):
        client.flush()


@pytest.mark.parametrize(
    ("status", "error"),
    [
        (Status.INVALID, errors.Rejected),
        (Status.UNKNOWN_BATCH, errors.UnknownBatch),
        (Status.STALE, errors.Rejected),
    ],
)
def test_a_permanent_refusal_is_raised_at_once_and_not_retried(
    make: Callable[..., AckerClient], server: LocalServer, time: SimulatedTime, status: Status, error: type[Exception]
) -> None:
    transports: list[Answering] = []

    def connect(address: str) -> Answering:
        transports.append(Answering(server.connect(address), ApplyReply(1, status, detail="because")))
        return transports[-1]

    client = make(connect=connect)
    client.ack(ROOT, 5)
    with pytest.raises(error):
        client.flush()
    client.flush()
    assert transports[0].applied == 1
    assert time.clock() == 0.0


def test_a_conflict_is_counted_and_logged_and_no_error(client: AckerClient, caplog: pytest.LogCaptureFixture) -> None:
    roots = np.array([ROOT], np.uint64)
    identity = Identity(3, 4)
    assert client.report(identity, fold(roots, roots)).applied == 1
    assert client.report(identity, fold(roots, roots)).duplicate == 1
    assert client.report(identity, fold(roots, roots + np.uint64(1))).conflict == 1
    assert "other records" in caplog.text


def test_a_root_id_that_another_source_has_is_lost_for_both_and_logged(
    client: AckerClient, make: Callable[..., AckerClient], caplog: pytest.LogCaptureFixture
) -> None:
    other = opened(make())
    for each in (client, other):
        each.init(ROOT, ids.edge0(ROOT), batch=1)
        each.flush()
    assert (client.totals.inits_conflicting, other.totals.inits_conflicting) == (0, 1)
    assert "pending in another batch, of this source or another: 1." in caplog.text
    # The second source acks its record. The first source's record has the same root id and was not processed.
    other.ack(ROOT, ids.edge0(ROOT))
    other.flush()
    assert outcomes(client) == outcomes(other) == {ROOT: (Verdict.LOST, "root_conflict")}


def test_a_report_of_inits_names_the_numbers_it_covered(client: AckerClient) -> None:
    first = 1 << 50
    client.open_batch(2, first, 10)
    roots = ids.root_ids(first, np.arange(4, dtype=np.uint64))
    session = client._state().source().session
    scope = InitScope(session, 2, np.array([[0, 6]], np.uint64))
    assert client.report(Identity(5, 6), fold(roots, roots), scope).applied == 4
    client.report(Identity(7, 8), fold(roots[:3], roots[:3]))
    client.settle(2, Settlement.DONE)
    reported = outcomes(client)
    assert [reported[int(root)] for root in roots] == [(Verdict.ACKED, "")] * 3 + [(Verdict.FAILED, "unfinished")]
    assert sorted(reported[ids.root_id(first, number)] for number in range(6, 10)) == [(Verdict.LOST, "unread")] * 4
    assert len(reported) == 8


def test_settling_a_batch_that_is_not_open_is_an_unknown_batch(client: AckerClient) -> None:
    with pytest.raises(errors.UnknownBatch, match="batch 9 is not open on this client"):
        client.settle(9, Settlement.DONE)


def test_an_init_of_a_batch_that_is_not_open_is_refused_at_once_and_so_is_a_root_that_is_none_of_its(
    client: AckerClient,
) -> None:
    says = r"batch 7 is not open on this client: open_batch\(7, ...\) it first"
    with pytest.raises(errors.UnknownBatch, match=says):
        client.init(ROOT, 5, batch=7)
    with pytest.raises(errors.UnknownBatch, match=says):
        client.init_columns([ROOT], [5], batch=7)
    with pytest.raises(ValueError, match=r"root=7: it is none of the 1048576 roots of batch 1.*emit\(\) chooses one"):
        client.init(7, 5, batch=1)
    with pytest.raises(ValueError, match=r"root=7: it is none of the 1048576 roots"):
        client.init(np.int64(7), 5, batch=1)  # type: ignore[arg-type]
    client.ack(OTHER, 5)
    client.flush()
    assert client.totals.applied == 1


def test_inits_of_a_batch_that_was_settled_meanwhile_are_refused_and_the_acks_still_sent(client: AckerClient) -> None:
    client.init(ROOT, 5, batch=1)
    client.ack(OTHER, 5)
    client.settle(1, Settlement.DONE)
    with pytest.raises(errors.UnknownBatch, match="inits of batch 1"):
        client.flush()
    client.flush()
    assert client.totals.applied == 1


def test_roots_that_a_server_forgot_are_lost_and_later_ones_are_not(
    make: Callable[..., AckerClient], server: LocalServer
) -> None:
    client = make()
    client.open_source("orders")
    forgotten = [client.emit().root_id for _ in range(3)]
    client.flush()
    unsent = client.emit().root_id
    server.start(with_state=False)
    client.flush()
    kept, edge = client.emit()
    client.ack(kept, edge)
    client.flush()
    reported = dict[int, tuple[Verdict, str]]()
    while len(reported) < 5:
        reported |= outcomes(client, 1.0)
    assert reported.pop(kept) == (Verdict.ACKED, "")
    assert sorted(reported) == sorted([*forgotten, unsent])
    assert {verdict for verdict, _ in reported.values()} == {Verdict.LOST}
    assert not outcomes(client, 5.0)


def test_a_client_either_emits_or_opens_batches(client: AckerClient, make: Callable[..., AckerClient]) -> None:
    with pytest.raises(ValueError, match=r"'orders' has batches of open_batch\(\), whose numbers emit\(\) needs too"):
        client.emit()
    other = make()
    other.open_source("returns")
    other.emit()
    with pytest.raises(ValueError, match=r"'returns' has emitted, and emit\(\) numbers its batches by itself"):
        other.open_batch(1, FIRST, 1)


def test_a_silent_server_is_no_error_of_a_watch_and_its_silence_is_measured(
    client: AckerClient, server: LocalServer, time: SimulatedTime
) -> None:
    server.stop()
    watched = client.watch(10.0)
    assert not watched.answered
    assert 0 < client.silent_for_s <= 10.0
    time.sleep(100.0)
    assert client.silent_for_s >= 100.0
    server.start()
    client.watch()
    assert client.silent_for_s == 0.0


def test_closing_a_source_removes_it_from_the_server(client: AckerClient, server: LocalServer) -> None:
    client.init(ROOT, 5, batch=1)
    client.flush()
    client.close_source()
    assert server.shard.stats.sources == 0
    with pytest.raises(errors.UnknownSource, match="open_source"):
        client.watch()


def test_unsent_reports_of_a_closed_source_do_not_reach_the_next_one(
    make: Callable[..., AckerClient], server: LocalServer
) -> None:
    client = make(budget_s=1.0)
    client.open_source("orders")
    client.emit()
    server.stop()
    with pytest.raises(errors.Unavailable):
        client.flush()
    old, edge = client.emit()
    client.ack(old, edge)
    server.start()
    client.close_source()
    client.open_source("orders")
    root, edge = client.emit()
    client.ack(root, edge)
    client.flush()
    assert outcomes(client) == {root: (Verdict.ACKED, "")}
    batch = client._state().source().emissions._stream.current
    assert batch is not None
    batch.stop_drawing()
    while client._state().source().pins:
        assert outcomes(client) == {}


@pytest.mark.parametrize(
    "call",
    [
        lambda client: client.init(ROOT, 5, batch=1),
        lambda client: client.init_columns([ROOT], [5], batch=1),
        lambda client: client.watch(),
        lambda client: client.open_batch(1, 1, 1),
        lambda client: client.settle(1, Settlement.DONE),
    ],
)
def test_calls_that_need_a_source_raise_an_error_that_names_it(
    make: Callable[..., AckerClient], call: Callable[[AckerClient], object]
) -> None:
    with pytest.raises(errors.UnknownSource, match="open_source"):
        call(make())


def test_one_client_has_one_source(client: AckerClient) -> None:
    with pytest.raises(ValueError, match=r"'orders' is open on this client.*make another AckerClient"):
        client.open_source("more orders")


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"name": 5}, "name=5: give the source a name"),
        ({"name": " "}, "name=' ': give"),
        ({"name": "x" * 257}, "name='x+': give up to 256 characters"),
        ({"name": "orders \udcff"}, "name=.*no lone surrogate"),
        ({"session": 0}, "session=0: give a whole number from 1"),
        ({"session": -1}, "session=-1: give"),
        ({"session": "x"}, "session='x': give"),
        ({"lease_s": "5"}, "lease_s='5': give seconds"),
        ({"message_timeout_s": -5}, "message_timeout_s=-5: give seconds, above 0 and up to .*; None for no timeout"),
        ({"message_timeout_s": 86_401}, "message_timeout_s=86401: give seconds, above 0 and up to 86,400; None"),
        ({"message_timeout_s": "30 s"}, "message_timeout_s='30 s': give seconds"),
        ({"progress_timeout_s": 0}, "progress_timeout_s=0: give seconds"),
        ({"progress_timeout_s": True}, "progress_timeout_s=True: give seconds"),
    ],
)
def test_a_source_that_cannot_be_opened_is_refused_by_the_name_of_the_option(
    make: Callable[..., AckerClient], options: dict[str, Any], says: str
) -> None:
    with pytest.raises(ValueError, match=says):
        make().open_source(**{"name": "orders", **options})


@pytest.mark.parametrize(
    ("call", "says"),
    [
        (lambda client: client.open_batch(0, 1, 1), "number=0: give a whole number from 1"),
        (lambda client: client.open_batch("a", 1, 1), "number='a'"),
        (lambda client: client.open_batch(1.5, 1, 1), "number=1.5"),
        (lambda client: client.open_batch(1, 0, 1), "first=0"),
        (lambda client: client.open_batch(1, 1 << 64, 1), "first=18446744073709551616"),
        (lambda client: client.open_batch(1, 1, -1), "up_to=-1"),
        (lambda client: client.open_batch(1, 1, 1, message_timeout_s=0), "message_timeout_s=0: give seconds"),
        (lambda client: client.settle("a", Settlement.DONE), "number='a'"),
        (lambda client: client.settle(1, "done"), "'done' is not a valid Settlement"),
        (lambda client: client.watch(max_outcomes=-1), "max_outcomes=-1"),
        (lambda client: client.join("x"), "session='x'"),
        (lambda client: client.join(0), "session=0: give a whole number from 1"),
        (lambda client: client.join(1 << 64), "session=18446744073709551616"),
        (lambda client: client.has_emitted(0), "0 is no root id"),
    ],
)
def test_a_number_that_cannot_be_is_refused_by_name(
    client: AckerClient, call: Callable[[AckerClient], object], says: str
) -> None:
    with pytest.raises(ValueError, match=says):
        call(client)


def test_a_report_of_int64_columns_is_refused_with_how_to_view_them(client: AckerClient) -> None:
    signed = np.array([1, -2], np.int64)
    with pytest.raises(TypeError, match=r"entries\.root_ids is int64: give entries\.root_ids\.view\(np\.uint64\)"):
        client.report(Identity(1, 2), Entries(signed, signed))  # type: ignore[arg-type]


def test_the_repr_of_a_client_says_where_its_server_is_and_how_it_stands_with_it(
    server: LocalServer, time: SimulatedTime
) -> None:
    settings = Settings(("far:7070",), token="sesame", budget_s=1.0)
    client = AckerClient(settings, connect=server.connect, clock=time.clock, sleep=time.sleep)
    assert repr(client) == "<AckerClient far:7070 not connected yet>"
    client.hello()
    assert repr(client) == "<AckerClient far:7070 connected>"
    client.open_source("orders", lease_s=120.0)
    assert repr(client) == "<AckerClient far:7070 connected, source 'orders'>"
    server.stop()
    client.watch()
    time.sleep(17.0)
    assert repr(client) == "<AckerClient far:7070 silent for 17 s, source 'orders'>"
    client.close()
    assert repr(client) == "<AckerClient far:7070 closed, source 'orders'>"


def test_the_repr_of_outcomes_counts_them(make: Callable[..., AckerClient]) -> None:
    client = make()
    client.open_source("orders")
    assert repr(client.watch().outcomes) == "<Outcomes: none>"
    done, failed = [client.emit() for _ in range(3)], client.emit()
    for root, edge in done:
        client.ack(root, edge)
    client.fail(failed.root_id, "no such sku")
    client.flush()
    found = client.watch().outcomes
    assert repr(found) == "<Outcomes: 3 ACKED, 1 FAILED>"
    assert f"RootOutcome(root_id={failed.root_id}, verdict=<Verdict.FAILED: 2>, reason='no such sku')" in map(
        repr, found
    )


def test_the_timeouts_of_a_source_apply_to_its_emissions(make: Callable[..., AckerClient]) -> None:
    client = make()
    client.open_source("orders", message_timeout_s=1)
    root, _ = client.emit()
    client.flush()
    assert outcomes(client, 5.0) == {root: (Verdict.TIMED_OUT, "message_timeout")}


def test_a_source_without_a_message_timeout_may_have_one_of_progress(
    make: Callable[..., AckerClient], time: SimulatedTime
) -> None:
    client = make()
    client.open_source("orders", message_timeout_s=None, progress_timeout_s=10, lease_s=600)
    root, _ = client.emit()
    for _ in range(9):
        time.sleep(8)
        client.reset_timeout(root)
        client.flush()
    assert outcomes(client) == {}
    assert outcomes(client, 30.0) == {root: (Verdict.TIMED_OUT, "progress_timeout")}


def test_a_batch_that_is_not_held_has_timeouts_of_its_own(make: Callable[..., AckerClient]) -> None:
    client = make()
    client.open_source("orders", message_timeout_s=None)
    client.open_batch(1, 1 << 40, 4, held=False, message_timeout_s=0.5)
    root = ids.root_id(1 << 40, 0)
    client.init(root, 5, batch=1)
    client.flush()
    assert outcomes(client, 5.0) == {root: (Verdict.TIMED_OUT, "message_timeout")}


def test_each_record_that_is_emitted_is_a_root_of_its_own_and_is_acked_by_its_edge(
    make: Callable[..., AckerClient],
) -> None:
    one, other = make(), make()
    one.open_source("orders")
    other.open_source("returns")
    anchors = [client.emit() for client in (one, other) for _ in range(100)]
    assert len({anchor.root_id for anchor in anchors}) == 200
    for root, edge in anchors[:50]:
        word = one.new_edge()
        one.ack(root, edge, emitted=[word])
        one.ack(root, word)
    one.flush()
    assert outcomes(one) == {anchor.root_id: (Verdict.ACKED, "") for anchor in anchors[:50]}


def test_nothing_is_emitted_without_a_source(make: Callable[..., AckerClient]) -> None:
    with pytest.raises(errors.UnknownSource, match=r"call open_source\(name\) first"):
        make().emit()


def test_a_clean_exit_flushes_and_closes(make: Callable[..., AckerClient], server: LocalServer) -> None:
    with make() as client:
        client.ack(ROOT, 5)
    assert server.shard.stats.updates == 1
    with pytest.raises(errors.Closed):
        client.ack(ROOT, 5)


def test_an_exit_by_an_exception_reports_nothing(
    make: Callable[..., AckerClient], server: LocalServer, caplog: pytest.LogCaptureFixture
) -> None:
    client = make()
    client.ack(ROOT, 5)
    client.__exit__(RuntimeError, RuntimeError(), None)
    assert server.shard.stats.updates == 0
    assert "not flushed" in caplog.text


def test_another_protocol_version_is_refused_by_a_sentence_with_both(
    make: Callable[..., AckerClient], server: LocalServer
) -> None:
    def connect(address: str) -> Answering:
        transport = Answering(server.connect(address))
        hello = server.connect(address).hello(None, 1.0)  # type: ignore[arg-type]
        transport.hello_reply = replace(hello, protocol_version=9, server_version="7.7")
        return transport

    with pytest.raises(errors.Rejected, match=r"7\.7.* speaks protocol version 9.* speaks 2"):
        make(connect=connect).hello()


def test_two_servers_of_one_id_are_refused_with_advice(time: SimulatedTime) -> None:
    servers = {f"{name}:1": LocalServer(clock=time.clock, sleep=time.sleep) for name in "ab"}
    client = AckerClient(
        list(servers), connect=lambda address: servers[address].connect(address), clock=time.clock, sleep=time.sleep
    )
    with pytest.raises(errors.Rejected, match="a:1 and b:1 both have the id 0: start each with an --id of its own"):
        client.hello()


def test_threads_may_share_a_client(make: Callable[..., AckerClient]) -> None:
    client = make()
    client.open_source("orders")

    def work() -> None:
        for step in range(500):
            root, edge = client.emit()
            client.ack(root, edge)
            if step % 70 == 0:
                client.flush()

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    client.flush()
    reported = outcomes(client)
    assert len(reported) == 2000
    assert set(reported.values()) == {(Verdict.ACKED, "")}


def test_only_the_settings_of_a_client_are_pickled() -> None:
    settings = Settings(("far-away:7070",), token="t", budget_s=3.0)
    travelled = pickle.loads(pickle.dumps(AckerClient(settings)))
    assert travelled.settings == settings


def test_a_client_with_a_connect_of_its_own_is_not_pickled(client: AckerClient) -> None:
    with pytest.raises(TypeError, match="connect"):
        pickle.dumps(client)


def test_a_process_has_one_client_for_the_same_settings() -> None:
    settings = Settings(("far-away:7070",))
    first = shared_client(settings)
    assert shared_client(pickle.loads(pickle.dumps(settings))) is first
    first.close()
    assert shared_client(settings) is not first


@pytest.mark.parametrize("lease_s", [0.0, -1.0, float("nan"), float("inf"), 1e9])
def test_a_lease_too_long_for_the_wire_is_refused_by_name(make: Callable[..., AckerClient], lease_s: float) -> None:
    with pytest.raises(ValueError, match=r"lease_s=.*give seconds"):
        make().open_source("orders", lease_s=lease_s)


def test_without_an_address_the_environment_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("ACKER_SERVERS", raising=False)
    with pytest.raises(ValueError, match="ACKER_SERVERS"):
        AckerClient()
    monkeypatch.setenv("ACKER_SERVERS", "somewhere")
    assert AckerClient().settings.servers == ("somewhere:7070",)


def test_a_local_transport_of_its_own_is_enough_for_a_unit_test() -> None:
    transport = LocalTransport()
    client = AckerClient(connect=lambda address: transport)
    client.open_source("orders")
    root, edge = client.emit()
    client.ack(root, edge)
    client.flush()
    assert outcomes(client) == {root: (Verdict.ACKED, "")}
    assert client.stats().values["acked"] == 1
