"""An open source: message ids, outcomes as a stream, callbacks, and columns of ids."""

from __future__ import annotations

import asyncio
import json
import pickle
import threading
from collections import Counter
from collections.abc import Iterator
from typing import Any

import numpy as np
import pandas as pd
import pytest

from acker_client import UNANCHORED, AckerClient, Anchor, MessageOutcome, OpenSource, Settings, Verdict, errors
from acker_client import open_source as module
from acker_client.cluster import stream as stream_module
from acker_testing import LocalServer, LocalTransport, SimulatedTime, new_shard

LONG = range(-(1 << 63), 1 << 63)


@pytest.fixture
def time() -> SimulatedTime:
    return SimulatedTime(1000.0)


@pytest.fixture
def server(time: SimulatedTime) -> LocalServer:
    return LocalServer(clock=time.clock, sleep=time.sleep)


@pytest.fixture
def client(server: LocalServer, time: SimulatedTime) -> Iterator[AckerClient]:
    client = AckerClient(connect=server.connect, clock=time.clock, sleep=time.sleep)
    yield client
    client.close()


def read(source: OpenSource) -> list[MessageOutcome]:
    """Read the outcomes of everything that is pending."""
    found = []
    while source.pending:
        found.append(next(source.outcomes()))
    return found


def verdicts(source: OpenSource) -> dict[Any, Verdict]:
    outcomes = read(source)
    assert len({outcome.message_id for outcome in outcomes}) == len(outcomes)
    return {outcome.message_id: outcome.verdict for outcome in outcomes}


def test_each_message_has_one_outcome_under_its_own_id(client: AckerClient) -> None:
    source = client.open_source("orders")
    for message_id in (("a", 1), "b", 3, "never"):
        root, edge = source.emit(message_id)
        if message_id == 3:
            client.fail(root, "no such sku", edge=edge)
        elif message_id != "never":
            client.ack(root, edge)
    outcomes = read(source)
    assert set(outcomes[:3]) == {
        (("a", 1), Verdict.ACKED, ""),
        ("b", Verdict.ACKED, ""),
        (3, Verdict.FAILED, "no such sku"),
    }
    assert outcomes[3:] == [("never", Verdict.TIMED_OUT, "message_timeout")]


def test_a_reason_that_utf_8_cannot_hold_keeps_back_no_outcome(client: AckerClient) -> None:
    source = client.open_source("orders")
    client.fail(source.emit("bad").root_id, "unknown sku \ud83d")
    client.ack(*source.emit("good"))
    assert set(read(source)) == {("bad", Verdict.FAILED, "unknown sku \\ud83d"), ("good", Verdict.ACKED, "")}


def test_a_message_id_may_be_emitted_again_as_a_replay(client: AckerClient) -> None:
    source = client.open_source("orders")
    first, second = source.emit("a"), source.emit("a")
    client.fail(first.root_id)
    client.ack(*second)
    assert sorted(outcome.verdict for outcome in read(source)) == [Verdict.ACKED, Verdict.FAILED]


def test_ids_fit_into_sparks_long_and_are_taken_signed_and_unsigned(client: AckerClient) -> None:
    source = client.open_source("orders")
    anchors = {number: source.emit(number) for number in range(64)}
    assert all(anchor.root_id in LONG and anchor.edge in LONG for anchor in anchors.values())
    assert any(anchor.root_id < 0 for anchor in anchors.values())
    assert all(client.has_emitted(anchor.root_id) for anchor in anchors.values())
    for number, (root, edge) in anchors.items():
        client.ack(*((root, edge) if number % 2 else (root % (1 << 64), edge % (1 << 64))))
    assert verdicts(source) == dict.fromkeys(range(64), Verdict.ACKED)


def test_an_emission_without_a_message_id_is_not_tracked(client: AckerClient, server: LocalServer) -> None:
    source = client.open_source("orders")
    anchor = source.emit()
    assert anchor == UNANCHORED
    client.ack(*anchor)
    client.fail(anchor.root_id, edge=anchor.edge)
    client.fail(0)
    client.reset_timeout(anchor.root_id)
    client.flush()
    assert source.pending == server.shard.stats.pending == server.shard.stats.orphans == 0
    with pytest.raises(ValueError, match="0 is no root id"):
        client.ack(0, 5)
    for no_root in (None, ""):
        with pytest.raises((TypeError, ValueError)):
            client.reset_timeout(no_root)  # type: ignore[arg-type]
    for call in (client.ack_columns, lambda roots, vals: client.fail_columns(roots, "bad", vals)):
        with pytest.raises(ValueError, match="0 is no root id"):
            call([0], [0])


@pytest.mark.parametrize("count", [0, 1, 1024, 3000])
def test_columns_of_ids_are_sparks_long_and_name_their_messages(client: AckerClient, count: int) -> None:
    source = client.open_source("orders")
    roots, edges = source.emit_columns(count, message_ids=[f"m{number}" for number in range(count)])
    more, more_edges = source.emit_columns(count)
    assert {column.dtype for column in (roots, edges, more)} == {np.dtype(np.int64)}
    assert source.pending == 2 * count
    client.ack_columns(roots, edges)
    client.ack_columns(more, more_edges)
    expected = {*(f"m{number}" for number in range(count)), *more.tolist()}
    assert verdicts(source) == dict.fromkeys(expected, Verdict.ACKED)


def test_columns_may_lie_in_several_batches(client: AckerClient, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stream_module, "WANTED_MAX", 700)
    source = client.open_source("orders")
    names = list(range(5000))
    roots, edges = source.emit_columns(5000, names)
    client.fail_columns(roots[names[1::2]], "odd", edges[names[1::2]])
    client.ack_columns(roots[names[::2]], edges[names[::2]])
    expected = {name: Verdict.FAILED if name % 2 else Verdict.ACKED for name in names}
    assert verdicts(source) == expected


def test_a_list_of_message_ids_may_be_used_again_before_the_outcomes_come(client: AckerClient) -> None:
    source = client.open_source("orders")
    names = ["a1", "a2", "a3"]
    client.ack_columns(*source.emit_columns(3, names))
    names[:] = ["b1", "b2", "b3"]
    client.fail_columns(source.emit_columns(3, names)[0], "bad")
    names.clear()
    expected = dict.fromkeys(["a1", "a2", "a3"], Verdict.ACKED) | dict.fromkeys(["b1", "b2", "b3"], Verdict.FAILED)
    assert verdicts(source) == expected


def test_message_ids_in_an_array_are_copied_as_an_array_and_a_range_is_kept(client: AckerClient) -> None:
    source, given = client.open_source("orders"), np.arange(3)
    kinds: list[tuple[Any, type]] = [(given, np.ndarray), (range(3, 6), range), (["a", "b"], tuple)]
    for message_ids, kind in kinds:
        client.ack_columns(*source.emit_columns(len(message_ids), message_ids))
        assert isinstance(source._ids._blocks[-1].ids, kind)
    given[:] = 7
    assert verdicts(source) == dict.fromkeys([*range(6), "a", "b"], Verdict.ACKED)


def test_message_ids_are_taken_in_their_order_whatever_they_are_indexed_by(client: AckerClient) -> None:
    source = client.open_source("orders")
    client.ack_columns(*source.emit_columns(3, pd.Series(["a", "b", "c"], index=[7, 8, 9])))
    assert verdicts(source) == dict.fromkeys("abc", Verdict.ACKED)


@pytest.mark.parametrize(("count", "given"), [(-1, None), ("3", None), (True, None), (3, ["a"])])
def test_bad_columns_are_refused(client: AckerClient, count: Any, given: Any) -> None:
    with pytest.raises(ValueError, match="give"):
        client.open_source("orders").emit_columns(count, given)


def test_columns_for_which_there_is_no_room_start_no_tree(time: SimulatedTime) -> None:
    server = LocalServer(new_shard(max_pending=100), clock=time.clock, sleep=time.sleep)
    settings = Settings(("full:1",), budget_s=5.0)
    client = AckerClient(settings, connect=server.connect, clock=time.clock, sleep=time.sleep)
    source = client.open_source("orders")
    with pytest.raises(errors.Overloaded):
        source.emit_columns(101)
    assert source.pending == 0
    for _ in range(3):
        # Whoever reads the outcomes frees the room of the numbers that were given up.
        assert not client.watch(0.1).settled
    roots, edges = source.emit_columns(60)
    client.ack_columns(roots, edges)
    assert len(verdicts(source)) == 60


def test_an_emission_that_waits_for_room_renews_the_lease(time: SimulatedTime) -> None:
    server = LocalServer(new_shard(max_pending=100), clock=time.clock, sleep=time.sleep)
    settings = Settings(("full:1",), budget_s=60.0)
    client = AckerClient(settings, connect=server.connect, clock=time.clock, sleep=time.sleep)
    source, anchors = client.open_source("orders", lease_s=20.0, message_timeout_s=None), list[Anchor]()
    with pytest.raises(errors.Overloaded):
        anchors.extend(source.emit(number) for number in range(101))
    for anchor in anchors:
        client.ack(*anchor)
    assert verdicts(source) == dict.fromkeys(range(100), Verdict.ACKED)


def test_a_smaller_batch_is_taken_where_one_for_all_columns_finds_no_room(time: SimulatedTime) -> None:
    server = LocalServer(new_shard(max_pending=2000), clock=time.clock, sleep=time.sleep)
    client = AckerClient(connect=server.connect, clock=time.clock, sleep=time.sleep)
    source = client.open_source("orders")
    source.emit("first")
    roots, edges = source.emit_columns(1900)
    client.ack_columns(roots, edges)
    assert Counter(verdicts(source).values()) == {Verdict.ACKED: 1900, Verdict.TIMED_OUT: 1}


def test_the_callbacks_are_called_by_the_thread_that_reads(client: AckerClient) -> None:
    called: list[Any] = []
    source = client.open_source(
        "orders",
        on_ack=lambda *given: called.append((threading.get_ident(), *given)),
        on_fail=lambda *given: called.append((threading.get_ident(), *given)),
    )
    client.ack(*source.emit("good"))
    client.fail(source.emit("bad").root_id, "too old")
    client.fail(source.emit("worse").root_id)
    source.emit("late")
    read(source)
    here = threading.get_ident()
    assert sorted(map(str, called)) == sorted(
        map(
            str,
            [(here, "good"), (here, "bad", "too old"), (here, "worse", "FAILED"), (here, "late", "message_timeout")],
        )
    )


def test_a_callback_that_raises_loses_no_other_outcome(client: AckerClient) -> None:
    def refuse(message_id: Any) -> None:
        if message_id == 2:
            raise RuntimeError("not now")

    source = client.open_source("orders", on_ack=refuse)
    for number in range(5):
        client.ack(*source.emit(number))
    found = []
    with pytest.raises(RuntimeError, match="not now"):
        found += [outcome.message_id for outcome in source.outcomes()]
    found += [outcome.message_id for outcome in read(source)]
    assert {2}.isdisjoint(found)
    assert source.pending == 0


def test_a_closed_source_ends_its_outcomes_with_lost_for_the_rest(client: AckerClient) -> None:
    with client.open_source("orders") as source:
        client.ack(*source.emit("done"))
        source.emit_columns(2, ["x", "y"])
        outcomes = source.outcomes()
        assert next(outcomes).message_id == "done"
        source.emit("z")
    assert sorted(outcomes) == [(name, Verdict.LOST, "the source was closed") for name in "xyz"]
    assert list(source.outcomes()) == []
    assert source.pending == 0
    for call in (lambda: source.emit("a"), lambda: source.emit_columns(3), source.flush):
        with pytest.raises(errors.Closed, match=r"open it again with open_source\('orders'\)"):
            call()
    assert "closed" in repr(source)


@pytest.mark.parametrize("columns", [False, True])
def test_an_emission_that_waits_while_its_source_is_closed_raises(
    server: LocalServer, time: SimulatedTime, columns: bool
) -> None:
    def sleep(seconds: float) -> None:
        time.sleep(seconds)
        if not server.is_up:
            source.close()
            server.start()

    client = AckerClient(connect=server.connect, clock=time.clock, sleep=sleep)
    source = client.open_source("orders", message_timeout_s=None)
    if columns:
        source.emit_columns(1000, ["x"] * 1000)
    server.stop()
    with pytest.raises(errors.Closed, match=r"open it again with open_source\('orders'\)"):
        source.emit_columns(100, ["y"] * 100) if columns else source.emit("y")
    outcomes = list(source.outcomes())
    assert {outcome.verdict for outcome in outcomes} <= {Verdict.LOST}
    assert sum(outcome.message_id == "x" for outcome in outcomes) == (1000 if columns else 0)
    assert source.pending == 0
    following = client.open_source("returns", message_timeout_s=None)
    client.ack(*following.emit("z"))
    assert verdicts(following) == {"z": Verdict.ACKED}
    for _ in range(8):
        time.sleep(5)
        client.watch()
    assert server.shard.stats.open_batches == 0


def test_a_flush_does_not_wait_for_a_source_that_is_closed_meanwhile(server: LocalServer, time: SimulatedTime) -> None:
    class Closing(LocalTransport):
        def apply(self, message: Any, timeout_s: float) -> Any:
            source.close()
            return super().apply(message, timeout_s)

    settings = Settings(("local:1",), budget_s=60.0)
    client = AckerClient(settings, connect=lambda address: Closing(server, address), clock=time.clock, sleep=time.sleep)
    source = client.open_source("orders")
    source.emit("x")
    client.flush()
    assert time.clock() < 1010.0
    assert [outcome.verdict for outcome in source.outcomes()] == [Verdict.LOST]


@pytest.mark.parametrize("ends", ["close_source", "close"])
def test_a_source_that_ends_with_its_client_ends_its_outcomes(client: AckerClient, ends: str) -> None:
    source = client.open_source("orders")
    source.emit("x")
    client.flush()
    getattr(client, ends)()
    assert [outcome.verdict for outcome in source.outcomes()] == [Verdict.LOST]


def test_the_next_source_of_the_client_is_not_taken_for_the_first(client: AckerClient) -> None:
    first = client.open_source("orders")
    first.emit("x")
    client.close_source()
    second = client.open_source("orders")
    client.ack(*second.emit("y"))
    assert [outcome.message_id for outcome in first.outcomes()] == ["x"]
    assert verdicts(second) == {"y": Verdict.ACKED}


def test_the_next_source_of_the_client_is_not_taken_for_the_first_where_it_has_its_session(client: AckerClient) -> None:
    first = client.open_source("orders", session=5)
    first.emit("x")
    client.close_source()
    second = client.open_source("orders", session=5)
    assert [(outcome.message_id, outcome.verdict) for outcome in first.outcomes()] == [("x", Verdict.LOST)]
    first.close()
    client.ack(*second.emit("y"))
    assert verdicts(second) == {"y": Verdict.ACKED}


def test_the_outcomes_are_read_with_async_for_too(client: AckerClient) -> None:
    source = client.open_source("orders")
    for number in range(3):
        client.ack(*source.emit(number))

    async def collect() -> list[Any]:
        found = []
        async for outcome in source.outcomes():
            found.append(outcome.message_id)
            if not source.pending:
                source.close()
        return found

    assert sorted(asyncio.run(collect())) == [0, 1, 2]


def test_a_server_that_never_answers_again_ends_the_source_with_an_answer_for_every_message(
    client: AckerClient, server: LocalServer, time: SimulatedTime
) -> None:
    source = client.open_source("orders")
    source.emit_columns(3, ["a", "b", "c"])
    server.stop()
    outcomes, found = source.outcomes(), []
    with pytest.raises(errors.Unavailable, match="open it again when the servers are there"):
        found += [(yield_.message_id, yield_.verdict) for yield_ in iter(lambda: next(outcomes), None)]
    assert time.clock() - 1000.0 < module.SILENT_S + 10
    assert list(outcomes) == []


class NoticedLock:
    """A lock that sets ``noticed`` when a thread has to wait for it."""

    def __init__(self, noticed: threading.Event) -> None:
        self._lock, self._noticed = threading.Lock(), noticed

    def __enter__(self) -> None:
        if not self._lock.acquire(blocking=False):
            self._noticed.set()
            self._lock.acquire()

    def __exit__(self, *_: object) -> None:
        self._lock.release()


def test_a_source_that_gives_up_raises_in_no_thread_before_its_outcomes_are_there(
    client: AckerClient, server: LocalServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    source, noticed = client.open_source("orders"), threading.Event()
    source.emit("a")
    take_all, heard, early = source._ids.take_all, list[object](), list[object]()

    def take() -> None:
        try:
            heard.append(source._take())
        except errors.Unavailable as error:
            heard.append(error)
        noticed.set()

    other = threading.Thread(target=take)

    def taken() -> Any:
        monkeypatch.setattr(source._ids, "take_all", take_all)
        other.start()
        noticed.wait()
        early.extend(heard)
        return take_all()

    monkeypatch.setattr(source._ids, "take_all", taken)
    monkeypatch.setattr(source, "_lock", NoticedLock(noticed))
    server.stop()
    try:
        heard.extend(source.outcomes())
    except errors.Unavailable as error:
        heard.append(error)
    other.join()
    assert early == []
    # One thread may come after the other has had both.
    assert {type(each) for each in heard if each is not None} == {MessageOutcome, errors.Unavailable}


def test_a_server_that_comes_back_without_its_state_ends_messages_as_lost(
    client: AckerClient, server: LocalServer
) -> None:
    source = client.open_source("orders")
    source.emit_columns(3, ["a", "b", "c"])
    server.start(with_state=False)
    assert verdicts(source) == dict.fromkeys("abc", Verdict.LOST)
    client.ack(*source.emit("d"))
    assert verdicts(source) == {"d": Verdict.ACKED}


def test_rows_drawn_before_their_server_lost_its_state_get_their_outcomes(
    server: LocalServer, time: SimulatedTime
) -> None:
    found, ended = list[MessageOutcome](), list[str]()

    def sleep(seconds: float) -> None:
        time.sleep(seconds)
        if not server.is_up:
            # Another thread reads while the rows wait for their second batch, and hears what the server has lost.
            server.start(with_state=False)
            found.append(next(source.outcomes()))

    client = AckerClient(connect=server.connect, clock=time.clock, sleep=sleep)
    source = client.open_source("orders", message_timeout_s=None)
    source.emit_columns(10, range(10))
    server.stop()
    roots, edges = source._emit_block(3000, range(10, 3010), lambda: ended.append("all rows"))
    client.ack_columns(roots, edges)
    assert not ended
    for _ in range(10):
        source._fetch()
    assert ended == ["all rows"]
    source.close()
    found += source.outcomes()
    assert "the source was closed" not in {outcome.reason for outcome in found}
    expected = {number: Verdict.LOST if number < 1024 else Verdict.ACKED for number in range(3010)}
    assert sorted((outcome.message_id, outcome.verdict) for outcome in found) == sorted(expected.items())


def test_a_lease_that_ran_out_is_named_with_what_to_do(client: AckerClient, time: SimulatedTime) -> None:
    source = client.open_source("orders", lease_s=20, message_timeout_s=None)
    source.emit_columns(1, ["a"])
    time.sleep(45)
    [outcome] = read(source)
    assert outcome.verdict == Verdict.LOST
    assert outcome.reason.startswith("the source was not watched for 45 s, and its lease is 20 s: read outcomes()")


def test_an_open_source_is_its_session_as_a_number_also_when_it_is_pickled(client: AckerClient) -> None:
    source = client.open_source("orders", session=77)
    assert (source, hash(source), {77: "here"}[source]) == (77, hash(77), "here")
    copied = pickle.loads(pickle.dumps(source))
    assert (copied, type(copied)) == (77, int)
    assert repr(source) == "<source 'orders', 0 pending>"
    assert (f"{source} {source:x}", str(source), json.dumps([source])) == ("77 4d", "77", "[77]")


@pytest.mark.slow
def test_threads_that_emit_ack_and_read_at_once_get_one_outcome_for_each_message() -> None:
    server = LocalServer()
    with AckerClient(connect=server.connect) as client:
        source = client.open_source("orders")
        found, anchors, count = list[Any](), list[Anchor](), 1500

        def emit(name: int) -> None:
            for number in range(count):
                anchors.append(source.emit((name, number)))

        def ack() -> None:
            acked = 0
            while acked < 2 * count:
                for anchor in anchors[acked : acked + 50]:
                    client.ack(*anchor)
                    acked += 1
                client.flush()

        def collect() -> None:
            for outcome in source.outcomes():
                found.append(outcome)
                if len(found) == 2 * count:
                    source.close()

        threads = [threading.Thread(target=emit, args=(name,)) for name in range(2)]
        threads += [threading.Thread(target=ack), *(threading.Thread(target=collect) for _ in range(2))]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert {outcome.verdict for outcome in found} == {Verdict.ACKED}
    assert sorted(outcome.message_id for outcome in found) == [(a, b) for a in range(2) for b in range(count)]


def test_a_client_that_was_pickled_takes_acks_only_where_something_sends_them(server: Any) -> None:
    copied: AckerClient = pickle.loads(pickle.dumps(AckerClient("localhost:7070")))
    for call in (copied.emit, lambda: copied.ack(1, 2), lambda: copied.fail(1), lambda: copied.ack_columns([1], [2])):
        with pytest.raises(errors.AckerError, match="`with client:`"):
            call()
    with copied:
        copied.ack(1, 2)
        copied._state().accumulator.take_drafts()
