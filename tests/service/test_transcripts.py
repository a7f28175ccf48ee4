"""Calls and answers of a shard as readable conversations: ``tests/service/transcripts``.

After an intended change, write them again (``python -m tests.service.test_transcripts``) and review the diff.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.service.conversation import Conversation, schedule
from tests.transcript import retold

FOLDER = Path(__file__).parent / "transcripts"
SEEDS = range(1, 5)


@pytest.mark.parametrize("path", sorted(FOLDER.glob("*.txt")), ids=lambda path: path.stem)
def test_a_shard_answers_as_it_did_when_its_transcript_was_written(path: Path) -> None:
    assert retold(path.read_text(), Conversation().say) == path.read_text()


@pytest.mark.parametrize("seed", SEEDS)
def test_a_drawn_schedule_is_the_same_each_time_and_none_of_its_roots_is_answered_twice(seed: int) -> None:
    text = (FOLDER / f"schedule_{seed}.txt").read_text()
    assert [line for line in text.splitlines() if not line.startswith(" ")] == schedule(seed).splitlines()
    verdicts = [line.split()[0] for line in text.splitlines() if line.startswith("    ") and line.split()[0].islower()]
    roots = [letter for letter in verdicts if len(letter) == 1]
    assert len(roots) == len(set(roots)) > 0


def write() -> None:
    """Write all transcripts again."""
    for seed in SEEDS:
        (FOLDER / f"schedule_{seed}.txt").write_text(schedule(seed))
    for path in FOLDER.glob("*.txt"):
        path.write_text(retold(path.read_text(), Conversation().say))


if __name__ == "__main__":
    write()
