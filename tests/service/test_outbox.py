"""The outbox: keeps outcomes in order, each once, until they are confirmed."""

from __future__ import annotations

import random

import numpy as np
import pytest

from acker_protocol import wire
from acker_protocol.messages import Cause, Outcomes, Reason, Status, Verdict, WatchReply
from acker_service.core import outbox
from acker_service.core.outbox import DROPPED_REASON, REASONS_MAX, Outbox
from acker_service.core.reasons import REASON_BYTES
from acker_service.locked_shard import OUTCOMES_MAX

Row = tuple[int, int, str]


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
    chance, box, twin, freed = random.Random(seed), Outbox(), list[Row](), 0
    for _ in range(120):
        twin += fill(box, chance, chance.randrange(40), len(twin) + 1)
        assert box.cursor == len(twin)
        most = chance.choice([0, 1, 30, 1000])
        assert rows(box.read(most)) == twin[freed : freed + most]
        confirmed = chance.randrange(len(twin) + 1)
        assert box.confirm(confirmed) == max(0, confirmed - freed)
        freed = max(freed, confirmed)
        assert len(box) == len(twin) - freed
        if chance.random() < 0.1:
            stretches, parts = box.piece_headers(), list(box.dump())
            box = Outbox(box.freed)
            for (count, reasons), columns in zip(stretches, parts, strict=True):
                box.load(count, reasons, columns)


@pytest.mark.parametrize("letter", ["x", "é", "語", "😀"])
def test_reasons_are_cut_and_bounded_in_bytes_and_the_outcome_is_still_reported(letter: str) -> None:
    box, count = Outbox(), REASONS_MAX + 100
    texts = [f"{n} " + letter * 2 * REASON_BYTES for n in range(count)]
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
    box = Outbox()
    reasons: list[Reason] = [*map(str, range(REASONS_MAX)), "one more", Cause.UNFINISHED]
    for n, reason in enumerate(reasons):
        box.append(np.array([n + 1], np.uint64), int(Verdict.FAILED), 1, [reason])
    assert box.read(REASONS_MAX + 2).reasons[REASONS_MAX:] == (DROPPED_REASON, Cause.UNFINISHED)


@pytest.mark.parametrize("letter", ["x", "語", "😀"])
@pytest.mark.parametrize("length", [5, 150, 5000])
def test_every_answer_fits_into_the_default_limit_of_grpc_clients(letter: str, length: int) -> None:
    box, count, reported = Outbox(), 300_000, 0
    texts = [f"{n} ".ljust(length, letter) for n in range(5_000)]
    codes = np.arange(count, dtype=np.uint64) % 5_000 + 1
    box.append(np.arange(1, count + 1, dtype=np.uint64), int(Verdict.FAILED), codes, texts)
    while reported < count:
        reply = WatchReply(1, Status.APPLIED, outcomes=box.read(OUTCOMES_MAX))
        assert len(reply.outcomes) > 0
        assert wire.encode(reply).ByteSize() <= 4 << 20
        assert reply.outcomes.root_ids[0] == reported + 1
        reported += box.confirm(reported + len(reply.outcomes))


def test_an_outbox_without_reasons_has_an_empty_column() -> None:
    box = Outbox()
    box.append(np.arange(1, 1000, dtype=np.uint64), int(Verdict.ACKED), 0, ())
    assert len(box.read(1000).reason_ids) == 0
