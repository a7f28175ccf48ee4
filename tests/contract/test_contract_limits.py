"""Chapter 7 of acker.proto: limits, and the status of a call beyond each limit."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from contract_client import Acker, Entry, Source, ack, fail, outcomes, root_of, status
from contract_stubs import TEXT, pb

DAY_MS = 24 * 3600 * 1000
ROOM = 100


def refused(reply: Any, field: str) -> bool:
    """Return whether ``reply`` is STATUS_INVALID with a text that begins with ``field``."""
    return status(reply) == "STATUS_INVALID" and reply.detail.startswith(f"{field}: ")


@pytest.fixture
def source(acker: Acker) -> Source:
    return acker.source()


def test_a_root_id_is_not_0(source: Source) -> None:
    assert refused(source.report(Entry(0, 1)), "root_ids")
    assert status(source.report(Entry(2**64 - 1, 1))) == "STATUS_APPLIED"


def test_first_is_not_0_and_the_last_number_is_below_2_64(source: Source) -> None:
    assert refused(source.open_batch(1, 1, first=0), "first")
    assert refused(source.open_batch(1, 2, first=2**64 - 1), "first")
    assert status(source.open_batch(1, 1, first=2**64 - 1)) == "STATUS_APPLIED"
    last = root_of(2**64 - 1, 0)
    assert status(source.init(ack(last), batch=1)) == "STATUS_APPLIED"


def test_a_batch_may_be_of_nothing_and_its_number_is_not_0(source: Source) -> None:
    assert refused(source.open_batch(0, 1), "number")
    assert status(source.open_batch(2**64 - 1, 0)) == "STATUS_APPLIED"
    assert source.settle(2**64 - 1, "SETTLEMENT_DONE").roots == 0


def test_any_session_will_do(acker: Acker) -> None:
    for session in (0, 2**64 - 1):
        source = Source(acker)
        source.session = session
        assert status(source.watch()) == "STATUS_APPLIED"
        assert status(source.watch(close=True)) == "STATUS_APPLIED"


@pytest.mark.parametrize(("name", "fits"), [("", False), ("x", True), ("ä" * 256, True), ("x" * 257, False)])
def test_a_source_has_a_name_of_1_to_256_characters(source: Source, name: str, fits: bool) -> None:
    reply = source.watch(source=name)
    assert status(reply) == "STATUS_APPLIED" if fits else refused(reply, "source")


def test_a_lease_is_not_0(source: Source) -> None:
    assert refused(source.watch(lease_ms=0), "lease_ms")


@pytest.mark.parametrize("limit", ["message_timeout_ms", "progress_timeout_ms"])
def test_limits_are_at_most_a_day(source: Source, limit: str) -> None:
    assert refused(source.watch(limits=pb.Limits(**{limit: DAY_MS + 1})), "limits")
    assert refused(source.open_batch(1, 1, limits=pb.Limits(**{limit: DAY_MS + 1})), "limits")
    assert status(source.open_batch(1, 1, limits=pb.Limits(**{limit: DAY_MS}))) == "STATUS_APPLIED"


def test_a_batch_that_never_fits_is_invalid(source: Source) -> None:
    assert refused(source.open_batch(1, 1 << 40), "up_to")


def test_a_source_has_1024_batches_at_once(source: Source) -> None:
    for number in range(1, 1025):
        assert status(source.open_batch(number, 0)) == "STATUS_APPLIED"
    refusal = source.open_batch(1025, 0)
    assert status(refusal) == "STATUS_OVERLOADED"
    assert refusal.retry_delay_ms
    source.settle(1, "SETTLEMENT_DONE")
    assert status(source.open_batch(1025, 0)) == "STATUS_APPLIED"


def test_a_reason_is_kept_up_to_4096_bytes(source: Source) -> None:
    roots = [source.root(number) for number in range(2)]
    source.init(*(ack(root, 5) for root in roots))
    source.report(fail(roots[0], "x" * 5000), fail(roots[1], "ä" * 5000))
    heard = source.hear(2)
    assert heard[roots[0]] == ("VERDICT_FAILED", "x" * 4096)
    assert heard[roots[1]] == ("VERDICT_FAILED", "ä" * 2048)


def test_a_reply_brings_at_most_250_000_outcomes_and_stays_below_4_mib(acker: Acker) -> None:
    source = acker.source()
    count = 260_000
    source.open_batch(1, count)
    source.settle(1, "SETTLEMENT_DONE")
    reply = source.watch(max_outcomes=2**32 - 1)
    assert len(reply.verdicts) == 250_000
    assert reply.ByteSize() < 4 << 20
    assert reply.cursor == 250_000


def test_a_reply_stays_below_4_mib_also_where_reasons_are_long_and_many(source: Source) -> None:
    roots = [source.root(number) for number in range(3000)]
    source.init(*(ack(root, 5) for root in roots))
    source.report(*(fail(root, f"{number} " + "ä" * 1500) for number, root in enumerate(roots)))
    left = set(roots)
    while left:
        reply = source.watch()
        assert reply.ByteSize() < 4 << 20
        heard = outcomes(reply)
        assert heard
        source.cursor, left = reply.cursor, left - heard.keys()


# -- a server with little room


@pytest.fixture(scope="module")
def small(server_process_of_module: Callable[..., Any]) -> Iterator[Acker]:
    process = server_process_of_module(
        f"--max-pending={ROOM}", "--max-lease-s=7", "--sequence-window=3", "--max-message-bytes=64KiB"
    )
    with Acker(process.address) as acker:
        yield acker


def test_a_server_that_was_told_other_limits_says_so(small: Acker) -> None:
    hello = small.call("Hello", protocol_version=2)
    assert (hello.max_message_bytes, hello.sequence_window) == (64 << 10, 3)
    assert small.source(lease_ms=8000).watch().lease_ms == 7000


def test_without_room_inits_and_batches_are_overloaded_until_outcomes_are_confirmed(small: Acker) -> None:
    source = small.source()
    roots = [source.root(number) for number in range(ROOM)]
    assert status(source.init(*(ack(root) for root in roots))) == "STATUS_APPLIED"
    refusals = [source.init(ack(source.root(ROOM))), source.open_batch(1, 1)]
    assert [status(reply) for reply in refusals] == ["STATUS_OVERLOADED"] * 2
    assert all(reply.retry_delay_ms for reply in refusals)
    assert len(source.hear(ROOM)) == ROOM
    source.watch()
    assert status(source.open_batch(1, ROOM)) == "STATUS_APPLIED"
    # Room for an open batch is reserved, so its inits are never refused. Inits of other roots can be refused.
    assert status(source.init(ack(source.root(ROOM)))) == "STATUS_OVERLOADED"
    assert status(source.init(*(ack(root, 5) for root in roots), batch=1)) == "STATUS_APPLIED"
    # Acks free room, and are never refused.
    assert status(source.report(*(ack(root, 5) for root in roots))) == "STATUS_APPLIED"
    source.watch(close=True)


def test_the_chapter_says_every_number_that_is_tested_here() -> None:
    chapter = re.sub(r"\n// *", " ", TEXT[TEXT.index("// 7. LIMITS") : TEXT.index('syntax = "proto3"')])
    for words in ("1 to 256 characters", "1024 of a source", "24 hours", "4096 bytes", "250 000", "below 4 MiB"):
        assert words in chapter
