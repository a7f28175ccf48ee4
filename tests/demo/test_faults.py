"""Faults: each happens once, and where it was planned."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from acker_command.demo import faults
from acker_command.demo.faults import strikes


def test_a_strike_is_claimed_by_one_of_many(tmp_path: Path) -> None:
    armed = faults.arm(tmp_path / "faults", seed=1, records=1000)
    with ThreadPoolExecutor(8) as threads:
        claims = list(threads.map(lambda _: armed.claim("WORKER_KILLED"), range(64)))
    assert sum(claims) == 1
    assert armed.happened("WORKER_KILLED")
    assert not armed.happened("TASK_RERUN")


def test_a_share_of_the_roots_raises_and_their_replays_do_not(tmp_path: Path) -> None:
    armed = faults.arm(tmp_path / "faults", seed=7, records=100_000)
    struck = [root for root in range(-200_000, 200_000) if armed.is_flaky(root)]
    assert len(struck) == pytest.approx(400_000 / faults.flaky_one_in(100_000), rel=0.2)
    again = [root for root in struck if armed.is_flaky(root + (1 << 40))]
    assert len(again) < len(struck) / 20


@pytest.mark.parametrize("records", [100, 10_000, 1_000_000, 100_000_000])
def test_hardly_any_record_raises_three_times_by_chance(records: int) -> None:
    assert records / faults.flaky_one_in(records) ** 3 == pytest.approx(1e-4, rel=0.02)


def test_another_seed_strikes_other_records(tmp_path: Path) -> None:
    one, other = (faults.arm(tmp_path / "faults", seed=seed, records=1000) for seed in (1, 2))
    lines = [f"a line that is long enough, number {number}" for number in range(5000)]
    assert [line for line in lines if one.is_poison(line)] != [line for line in lines if other.is_poison(line)]
    assert [root for root in range(5000) if one.is_flaky(root)] != [
        root for root in range(5000) if other.is_flaky(root)
    ]


def test_poison_sticks_to_the_content_whatever_stands_around_it(tmp_path: Path) -> None:
    armed = faults.arm(tmp_path / "faults", seed=0, records=0)
    lines = [f"a line that is long enough, number {number}" for number in range(1000)]
    poison = [line for line in lines if armed.is_poison(line)]
    assert poison
    assert all(armed.is_poison(f"  {line}\r") for line in poison)


def test_short_lines_are_never_poison(tmp_path: Path) -> None:
    armed = faults.Faults(str(tmp_path), poison_one_in=1)
    assert not armed.is_poison("    else:")
    assert armed.is_poison("x" * faults.POISON_MIN_CHARACTERS)


def test_without_faults_nothing_raises(tmp_path: Path) -> None:
    quiet = faults.Faults(str(tmp_path))
    assert not any(quiet.is_flaky(root) for root in range(10_000))
    assert not any(quiet.is_poison(f"a line that is long enough, number {number}") for number in range(10_000))


def test_each_full_batch_gets_one_strike_until_all_have_happened() -> None:
    plan = faults.schedule(batches=6)
    dealt = [faults.deal(plan, records, 1000) for records in (1000, 20, 1000, 1000, 30, 1000, 1000, 1000)]
    assert [strike for strike in dealt if strike is not None] == list(strikes(1))
    assert dealt[1] is None
    assert dealt[4] is None


def test_a_small_input_plans_no_more_strikes_than_it_has_batches_for() -> None:
    assert faults.schedule(batches=3) == list(strikes(1))[:2]
    assert faults.schedule(batches=0) == []
