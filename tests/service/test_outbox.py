"""The outbox: keeps outcomes in order, each once, until they are confirmed."""

from __future__ import annotations

import random
import tracemalloc

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from acker_protocol import wire
from acker_protocol.messages import Cause, Outcomes, Reason, Status, Verdict, WatchReply
from acker_service.core import outbox
from acker_service.core.outbox import DROPPED_REASON, REASONS_MAX, Outbox
from acker_service.core.reasons import ENTRY_BYTES, REASON_BYTES, held_bytes, truncated
from acker_service.core.room import HeldBytes, Room
from acker_service.shared_shard import OUTCOMES_MAX

Row = tuple[int, int, str]


def new_outbox(freed: int = 0, held: Room | None = None) -> Outbox:
    return Outbox(held or Room(1 << 40, 1 << 40), freed)


def rows(outcomes: Outcomes) -> list[Row]:
    return [
        (root, verdict, outcomes.reason(n))
        for n, (root, verdict) in enumerate(zip(outcomes.root_ids.tolist(), outcomes.verdicts.tolist(), strict=True))
    ]


def fill(box: Outbox, chance: random.Random, count: int, start: int) -> list[Row]:
    """Append ``count`` outcomes, with one verdict and reason or with several, and return them."""
    roots, texts = np.arange(start, start + count, dtype=np.uint64), ["bad", "worse", "unread"]
    if chance.random() < 0.5:
        verdict, code = chance.choice(list(Verdict)), chance.randrange(4)
        box.append(roots, int(verdict), code, texts)
        return [(int(root), verdict, texts[code - 1] if code else "") for root in roots]
    verdicts = np.array([chance.randrange(1, 5) for _ in roots], np.uint8)
    codes = np.array([chance.randrange(4) for _ in roots], np.uint64)
    box.append(roots, verdicts, codes, texts)
    return [
        (int(root), int(verdict), texts[int(code) - 1] if code else "")
        for root, verdict, code in zip(roots, verdicts, codes, strict=True)
    ]


@pytest.mark.parametrize("seed", range(15))
def test_outcomes_arrive_in_order_and_stay_until_they_are_confirmed(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(outbox, "CHUNK_MAX", 64)
    monkeypatch.setattr(outbox, "CHUNK_MIN", 8)
    chance, box, twin, freed = random.Random(seed), new_outbox(), list[Row](), 0
    for _ in range(120):
        twin += fill(box, chance, chance.randrange(40), len(twin) + 1)
        assert box.cursor == len(twin)
        most = chance.choice([0, 1, 30, 1000])
        assert rows(box.read(most)) == twin[freed : freed + most]
        confirmed = chance.randrange(len(twin) + 1)
        box.confirm(confirmed)
        freed = max(freed, confirmed)
        assert len(box) == len(twin) - freed
        if chance.random() < 0.1:
            again = new_outbox(box.freed)
            for columns in box.dump():
                again.load(columns)
            box = again


@pytest.mark.parametrize("letter", ["x", "é", "語", "😀"])
def test_reasons_are_cut_and_bounded_in_bytes_and_the_outcome_is_still_reported(letter: str) -> None:
    box, count = new_outbox(), REASONS_MAX + 100
    texts = [truncated(f"{n} " + letter * 2 * REASON_BYTES) for n in range(count)]
    for n in range(count):
        box.append(np.array([n + 1], np.uint64), int(Verdict.FAILED), n + 1, texts)
    outcomes = box.read(count)
    assert len(outcomes) == count
    sizes = [len(str(reason).encode()) for reason in outcomes.reasons]
    assert max(sizes) <= REASON_BYTES
    assert sum(sizes) <= outbox.REASONS_BYTES + len(DROPPED_REASON)
    assert outcomes.reason(0).startswith("0 " + letter * 1000)
    assert outcomes.reason(count - 1) == DROPPED_REASON


def test_a_cause_is_kept_where_there_is_no_room_for_another_text() -> None:
    box = new_outbox()
    reasons: list[Reason] = [*map(str, range(REASONS_MAX)), "one more", Cause.UNFINISHED]
    for n, reason in enumerate(reasons):
        box.append(np.array([n + 1], np.uint64), int(Verdict.FAILED), 1, [reason])
    assert box.read(REASONS_MAX + 2).reasons[REASONS_MAX:] == (DROPPED_REASON, Cause.UNFINISHED)


@pytest.mark.sampled(9)
@pytest.mark.parametrize("letter", ["x", "語", "😀"])
@pytest.mark.parametrize("length", [5, 150, 5000])
def test_every_answer_fits_into_the_default_limit_of_grpc_clients(letter: str, length: int) -> None:
    box, count, reported = new_outbox(), 300_000, 0
    texts = [truncated(f"{n} ".ljust(length, letter)) for n in range(5_000)]
    codes = np.arange(count, dtype=np.uint64) % 5_000 + 1
    box.append(np.arange(1, count + 1, dtype=np.uint64), int(Verdict.FAILED), codes, texts)
    while reported < count:
        reply = WatchReply(1, Status.APPLIED, outcomes=box.read(OUTCOMES_MAX))
        assert len(reply.outcomes) > 0
        assert wire.encode(reply).ByteSize() <= 4 << 20
        assert reply.outcomes.root_ids[0] == reported + 1
        reported += len(reply.outcomes)
        box.confirm(reported)


def fail(box: Outbox, text: Reason, roots: int = 1) -> None:
    box.append(np.arange(1, roots + 1, dtype=np.uint64), int(Verdict.FAILED), 1, [text])


def test_the_memory_of_reasons_is_bounded_for_all_sources_together() -> None:
    held = Room(1 << 40, 1 << 40, reasons=HeldBytes(100_000))
    boxes = [new_outbox(held=held) for _ in range(50)]
    for n, box in enumerate(boxes):
        for m in range(10):
            fail(box, f"{n} {m} ".ljust(2000, "x"))
    assert held.reasons.bytes > 90_000
    kept = [outcome.reason for box in boxes for outcome in box.read(10)]
    assert 40 < sum(reason != DROPPED_REASON for reason in kept) <= 50
    assert kept[-1] == DROPPED_REASON
    # A table has at most one DROPPED_REASON and each cause once, so these are always kept.
    assert held.reasons.bytes < 100_000 + 50 * 200
    fail(boxes[-1], Cause.UNREAD)
    assert boxes[-1].read(11).reason(10) == "unread"


def test_a_dropped_text_becomes_room_for_another_once_confirmed_or_closed() -> None:
    held = Room(1 << 40, 1 << 40, reasons=HeldBytes(3000))
    first, second = new_outbox(held=held), new_outbox(held=held)
    fail(first, "x" * 2000)
    fail(second, "y" * 2000)
    assert second.read(1).reason(0) == DROPPED_REASON
    first.confirm(1)
    second.release()
    assert (held.reasons.bytes, held.outcomes.bytes) == (0, 0)
    fail(first, "z" * 2000)
    assert first.read(1).reason(0) == "z" * 2000


@given(st.integers(0, 1 << 32))
def test_the_counted_memory_is_that_of_the_outcomes_that_are_kept(seed: int) -> None:
    chance = random.Random(seed)
    most_bytes = chance.choice([5_000, 1 << 20])
    held = Room(1 << 40, 1 << 40, reasons=HeldBytes(most_bytes))
    boxes = [new_outbox(held=held) for _ in range(3)]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(outbox, "CHUNK_MAX", 64)
        patch.setattr(outbox, "CHUNK_MIN", 8)
        for _ in range(60):
            box = chance.choice(boxes)
            texts: list[Reason] = ["", "bad", Cause.UNREAD, "語" * chance.randrange(1, 300)]
            fail(box, chance.choice(texts), chance.randrange(1, 30))
            if chance.random() < 0.5:
                box.confirm(chance.randrange(box.freed, box.cursor + 1))
            if chance.random() < 0.1:
                again = new_outbox(box.freed, held)
                parts = list(box.dump())
                box.release()
                for columns in parts:
                    again.load(columns)
                boxes[boxes.index(box)] = again
    reasons = [reason for box in boxes for chunk in box._chunks for reason in chunk.reasons]
    own = [reason for reason in reasons if isinstance(reason, str) and reason != DROPPED_REASON]
    shared = len(reasons) - len(own)
    assert held.reasons.bytes == sum(map(held_bytes, own)) + ENTRY_BYTES * shared
    assert held.reasons.bytes <= most_bytes + ENTRY_BYTES * shared
    for box in boxes:
        box.confirm(box.cursor)
    assert (held.reasons.bytes, held.outcomes.bytes) == (0, 0)


@pytest.mark.sampled(12)
@pytest.mark.slow
@pytest.mark.parametrize("character", ["x", "é", "語", "😀"])
@pytest.mark.parametrize("length", [10, 300, 1300])
def test_as_much_memory_is_counted_as_python_takes(character: str, length: int) -> None:
    held, boxes = Room(1 << 40, 1 << 40, reasons=HeldBytes()), [new_outbox()]
    fail(boxes[0], "warm up")
    wire.encode(WatchReply(1, Status.APPLIED, outcomes=boxes[0].read(100)))
    before_bytes = held.reasons.bytes + held.outcomes.bytes
    tracemalloc.start()
    started_bytes, _ = tracemalloc.get_traced_memory()
    for n in range(40):
        boxes.append(new_outbox(held=held))
        for m in range(100):
            fail(boxes[-1], f"{n} {m} ".ljust(length, character))
        # Python keeps the UTF-8 of a text that was sent.
        wire.encode(WatchReply(1, Status.APPLIED, outcomes=boxes[-1].read(100)))
    taken_bytes = tracemalloc.get_traced_memory()[0] - started_bytes
    tracemalloc.stop()
    counted_bytes = held.reasons.bytes + held.outcomes.bytes - before_bytes
    assert 0.95 <= counted_bytes / taken_bytes <= 1.4, (counted_bytes, taken_bytes)


def test_an_outbox_without_reasons_has_an_empty_column() -> None:
    box = new_outbox()
    box.append(np.arange(1, 1000, dtype=np.uint64), int(Verdict.ACKED), 0, ())
    assert len(box.read(1000).reason_ids) == 0
