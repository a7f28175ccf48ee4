"""Memory: bounded even if clients control the amount, and freed after a peak."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from acker_protocol import reports
from acker_protocol.messages import Apply, Identity, Status, Watch
from acker_service.core.dedupe import CONTENT_BYTES, SEQUENCE_BYTES, SESSION_BYTES
from acker_service.core.shard import Shard
from acker_service.process import heap
from acker_service.process.heap import FREED_MIN_BYTES, Heap
from tests.service.caller import acks, roots_of

PEAK = """
import json, sys
from tests.service.caller import acks, inits, roots_of
from acker_protocol.messages import Watch
from acker_service.process import heap
from acker_service.core.shard import Shard

def resident():
    return int(open("/proc/self/statm").read().split()[1]) * 4096

shard, now, step, cursor = Shard(incarnation=1, generation=2), 0.0, 20_000, 0
shard.watch(Watch("test", 7, 600_000_000), now)
sizes = [resident()]
for number in range(50):
    shard.apply(inits(roots_of(range(number * step, (number + 1) * step)), number), now)
    shard.tick(now := now + 0.05)
sizes.append(resident())
for number in range(50):
    shard.apply(acks(roots_of(range(number * step, (number + 1) * step)), 1000 + number), now)
    shard.tick(now := now + 0.05)
    cursor = shard.watch(Watch("test", 7, 600_000_000, confirmed=cursor), now).cursor
for _ in range(400):
    shard.tick(now := now + 0.05)
    cursor = shard.watch(Watch("test", 7, 600_000_000, confirmed=cursor), now).cursor
assert shard.stats.pending == 0
sizes.append(resident())
assert heap.trim()
sizes.append(resident())
json.dump(sizes, sys.stdout)
"""


@pytest.mark.long
def test_after_a_peak_of_a_million_roots_trimming_gives_the_memory_back() -> None:
    ran = subprocess.run(
        [sys.executable, "-c", PEAK],
        capture_output=True,
        check=True,
        timeout=120,
        env={"PYTHONPATH": ":".join(filter(None, sys.path))},
    )
    start, full, empty, trimmed = json.loads(ran.stdout)
    assert trimmed - start < (full - start) / 2, (start, full, empty, trimmed)


def test_the_heap_is_trimmed_once_after_enough_was_freed(monkeypatch: pytest.MonkeyPatch) -> None:
    trimmed: list[int] = []
    monkeypatch.setattr(heap, "trim", lambda: trimmed.append(1))
    watched, peak = Heap(), 8 * FREED_MIN_BYTES
    for held in (0, peak, peak - 1, peak - peak // 4 + 1):
        watched.note(held)
    assert not trimmed
    for held in (peak // 2, peak // 2, peak // 2 - FREED_MIN_BYTES // 2):
        watched.note(held)
    assert len(trimmed) == 1
    watched.note(0)
    assert len(trimmed) == 2


def test_identities_are_bounded_in_bytes_and_say_how_many_they_take() -> None:
    most_bytes = 100 * (SESSION_BYTES + SEQUENCE_BYTES)
    shard = Shard(incarnation=1, generation=2, max_identity_bytes=most_bytes)
    for sequence in range(300):
        assert shard.apply(acks(roots_of([sequence]), sequence, sender=sequence), 0.0).status == Status.APPLIED
    assert shard.stats.memory["identities"] == most_bytes
    assert shard.stats.identities_dropped == 0
    shard.tick(0.1)
    assert shard.stats.identities_dropped == 200


@pytest.mark.long
@pytest.mark.parametrize(("each_s", "dropped"), [(2, 0), (5, 18_000 - 1000)])
def test_an_hour_of_reports_keeps_the_memory_flat_and_drops_only_what_does_not_fit(each_s: int, dropped: int) -> None:
    memory_s = 400.0
    bytes_max = 1000 * CONTENT_BYTES
    shard = Shard(
        incarnation=1, generation=2, memory_s=memory_s, orphan_timeout_s=memory_s, max_identity_bytes=bytes_max
    )
    shard.watch(Watch("source", 7, 3_600_000), 0.0)
    most = sequence = 0
    for second in range(3600):
        for _ in range(each_s):
            sequence += 1
            entries = reports.fold(roots_of([sequence]), roots_of([sequence]))
            shard.apply(Apply(Identity(sequence, sequence), reports.digest(entries), entries), float(second))
        shard.tick(second + 0.9)
        most = max(most, shard.stats.identities)
    assert most == min(1000, memory_s * each_s)
    assert shard.stats.identities_dropped == dropped
