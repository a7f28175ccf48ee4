"""Bounds: all of them follow from the memory of the server, which takes no new work beyond it and always takes acks."""

from __future__ import annotations

import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from acker_protocol import reports
from acker_protocol.messages import (
    FAIL,
    Apply,
    ApplyReply,
    Identity,
    OpenBatch,
    OpenBatchReply,
    Settle,
    Settlement,
    Status,
    Watch,
    WatchReply,
)
from acker_service.config import Config, ConfigError
from acker_service.core.memory import DEFAULT_BYTES, DoesNotFit, bounds_of
from acker_service.core.shard import Shard
from acker_service.process.container import default_memory
from tests.service.caller import acks, inits, roots_of

GIB = 1 << 30
optional = st.none() | st.integers(1, 1 << 34)


@given(st.integers(384 << 20, 1 << 40), optional, optional)
def test_bounds_never_add_up_to_more_than_the_memory_and_given_ones_stay(
    max_memory: int, max_pending: int | None, max_identity_bytes: int | None
) -> None:
    try:
        bounds = bounds_of(max_memory, max_pending, max_identity_bytes)
    except DoesNotFit as error:
        needed_bytes = error.needed_bytes
    else:
        needed_bytes = 0
    if needed_bytes:
        assert needed_bytes > max_memory
        max_memory = needed_bytes
        bounds = bounds_of(max_memory, max_pending, max_identity_bytes)
    assert bounds.needed_bytes <= max_memory
    assert bounds.max_pending == max_pending or max_pending is None
    assert bounds.max_identity_bytes == max_identity_bytes or max_identity_bytes is None
    assert min(bounds.max_reasons_bytes, bounds.max_pins_bytes, bounds.max_unread_bytes) > 1 << 20


def test_without_any_limit_a_server_takes_twenty_million_roots() -> None:
    assert Config().memory_bytes == DEFAULT_BYTES
    assert 20_000_000 <= Config().bounds.max_pending < 21_000_000


def test_all_bounds_grow_with_the_memory() -> None:
    small, large = Config(max_memory=GIB), Config(max_memory=4 * GIB)
    assert all(large_one > 4 * small_one for large_one, small_one in zip(_values(large), _values(small), strict=True))


def _values(options: Config) -> list[int]:
    bounds = options.bounds
    return [
        bounds.max_pending,
        bounds.max_identity_bytes,
        bounds.max_reasons_bytes,
        bounds.max_pins_bytes,
        options.max_unread_bytes,
    ]


@pytest.mark.parametrize(
    "given",
    [{"max_pending": 20_000_000}, {"max_identity_bytes": GIB}, {"max_pending": 8_000_000, "max_identity_bytes": GIB}],
)
def test_options_that_do_not_fit_are_refused_with_what_would_fit(given: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=r"--max-memory is 1024MiB; ask for less, or give --max-memory") as caught:
        Config(max_memory=GIB, **given)
    for name in given:
        assert "--" + name.replace("_", "-") in str(caught.value)
    needed = int(str(caught.value).split(" needs ")[-1].split("needs ")[-1].split("MiB")[0])
    assert Config(max_memory=needed << 20, **given).bounds.needed_bytes <= needed << 20


# -- the default


@pytest.mark.parametrize(
    ("lines", "files", "expected"),
    [
        ("0::/", {"sys/fs/cgroup/memory.max": "4294967296"}, 3 * GIB),
        (
            "0::/pod/acker",
            {"sys/fs/cgroup/pod/acker/memory.max": "max", "sys/fs/cgroup/pod/memory.max": "8589934592"},
            6 * GIB,
        ),
        ("5:cpu,memory:/pod", {"sys/fs/cgroup/memory/pod/memory.limit_in_bytes": "4294967296"}, 3 * GIB),
        ("5:memory:/docker/not-seen", {"sys/fs/cgroup/memory/memory.limit_in_bytes": "4294967296"}, 3 * GIB),
        ("5:memory:/", {"sys/fs/cgroup/memory/memory.limit_in_bytes": "9223372036854771712"}, 32 * GIB),
        ("0::/", {"sys/fs/cgroup/memory.max": "max"}, 32 * GIB),
        ("0::/", {}, 32 * GIB),
        (None, {}, 32 * GIB),
    ],
)
def test_the_memory_is_three_quarters_of_the_containers_or_half_of_the_machines(
    tmp_path: Path, lines: str | None, files: dict[str, str], expected: int
) -> None:
    for name, content in (({"proc/self/cgroup": lines} if lines else {}) | files).items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(content + "\n")
    assert default_memory(tmp_path, 64 * GIB) == expected


# -- the server


def full_shard(spare_bytes: int) -> Shard:
    """Return a shard with some work, whose memory is used up except for ``spare_bytes``."""
    shard = Shard(incarnation=1, generation=2, max_memory=1 << 40)
    shard.watch(Watch("source", 7, 60_000, pins=b"here"), 0.0)
    shard.open_batch(OpenBatch(7, 1, 1_000_001, 50), 0.0)
    shard.apply(inits(roots_of(range(100)), 1), 0.0)
    shard._state.max_memory = sum(shard.stats.memory.values()) + spare_bytes
    return shard


def test_a_server_over_its_memory_takes_no_new_work_and_every_ack() -> None:
    shard = full_shard(spare_bytes=-1)
    root = roots_of([200])
    refused: list[WatchReply | OpenBatchReply | ApplyReply] = [
        shard.watch(Watch("other", 8, 60_000), 0.0),
        shard.open_batch(OpenBatch(7, 2, 2_000_001, 50), 0.0),
        shard.apply(inits(root, 2), 0.0),
    ]
    assert [reply.status for reply in refused] == [Status.OVERLOADED] * 3
    assert all("--max-memory" in reply.detail for reply in refused)
    done = roots_of(range(100))
    assert shard.apply(acks(done, 3), 0.0).status == Status.APPLIED
    numbered = roots_of(range(50), 1_000_001)
    assert shard.apply(inits(numbered, 4, batch=1), 0.0).status == Status.APPLIED
    assert shard.settle([Settle(7, 1, Settlement.ABANDON)], 0.0)[0].status == Status.APPLIED
    reply = shard.watch(Watch("source", 7, 60_000), 0.0)
    assert (reply.status, len(reply.outcomes)) == (Status.APPLIED, 150)


def test_a_server_within_its_memory_takes_new_work() -> None:
    assert full_shard(spare_bytes=0).watch(Watch("other", 8, 60_000), 0.0).status == Status.APPLIED


def test_all_memory_is_free_when_the_sources_have_closed() -> None:
    shard = Shard(incarnation=1, generation=2)
    empty = shard.stats.memory
    for session in (1, 2):
        shard.watch(Watch("source", session, 60_000, pins=b"here"), 0.0)
        first = 1_000_001 * session
        for number in (1, 2):
            shard.open_batch(OpenBatch(session, number, first + 1000 * number, 50), 0.0)
        root = roots_of([0], first + 1000)
        shard.apply(inits(root, 1, session=session, batch=1), 0.0)
        fail = reports.fold_updates(root, root, np.full(1, FAIL, np.uint8), {int(root[0]): "bad"})
        shard.apply(Apply(Identity(3, session), 1, fail), 0.0)
        shard.settle([Settle(session, 1, Settlement.DONE)], 0.0)
    held = shard.stats.memory
    assert {kind for kind in held if held[kind] > empty[kind]} == set(held) - {"ledger", "process"}
    for session in (1, 2):
        shard.watch(Watch("source", session, 60_000, close=True), 0.0)
    shard.tick(100_000.0)
    assert shard.stats.memory == empty


@pytest.mark.long
def test_as_much_memory_is_counted_as_sources_batches_and_answers_take() -> None:
    shard = Shard(incarnation=1, generation=2)
    # Compile the kernels first.
    shard.watch(Watch("warm up", 1, 60_000), 0.0)
    shard.open_batch(OpenBatch(1, 1, 1, 640, slots=bytes([1]) * 128), 0.0)
    shard.settle([Settle(1, 1, Settlement.ABANDON)], 0.0)
    tracemalloc.start()

    def ratio(before: tuple[int, int]) -> float:
        return (sum(shard.stats.memory.values()) - before[0]) / (tracemalloc.get_traced_memory()[0] - before[1])

    def now() -> tuple[int, int]:
        return sum(shard.stats.memory.values()), tracemalloc.get_traced_memory()[0]

    sessions = [(1 << 63) + n for n in range(500)]
    before = now()
    for session in sessions:
        shard.watch(Watch(f"source {session}", session, 60_000), 0.0)
    of_sources, before = ratio(before), now()
    for session in sessions:
        shard.open_batch(OpenBatch(session, 1, (1 << 62) + session % 500, 640, slots=bytes([1]) * 128), 0.0)
    of_batches = ratio(before)
    shard.settle([Settle(session, 1, Settlement.ABANDON) for session in sessions], 0.0)
    before = now()
    for number in range(1 << 40, (1 << 40) + 50):
        for session in sessions:
            shard.open_batch(OpenBatch(session, number, 1 << 62, 0), 0.0)
        shard.settle([Settle(session, number, Settlement.ABANDON) for session in sessions], 0.0)
    of_answers = ratio(before)
    tracemalloc.stop()
    assert min(of_sources, of_batches, of_answers) > 0.95, (of_sources, of_batches, of_answers)
    assert max(of_sources, of_batches, of_answers) < 1.8, (of_sources, of_batches, of_answers)
