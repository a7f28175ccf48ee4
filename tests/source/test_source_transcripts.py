"""Runs of a source, compared with the transcripts in ``tests/source/transcripts``.

After an intended change, regenerate them (``python -m tests.source.test_source_transcripts``) and review the diff.
"""

from __future__ import annotations

import tempfile
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from tests.source.conversation import ALWAYS_BAD, Conversation, overlapping_schedule, records_of, schedule
from tests.transcript import retold

FOLDER = Path(__file__).parent / "transcripts"
PATHS = sorted(FOLDER.glob("*.txt"))
SEEDS = range(1, 4)


@pytest.mark.parametrize("path", PATHS, ids=lambda path: path.stem)
def test_a_run_goes_as_it_did_when_its_transcript_was_written(path: Path, tmp_path: Path) -> None:
    assert retold(path.read_text(), Conversation(tmp_path).say) == path.read_text()


def test_there_are_transcripts_and_the_drawn_ones_are_of_their_seeds() -> None:
    assert len(PATHS) > len(SEEDS)
    for seed in SEEDS:
        text = (FOLDER / f"schedule_{seed}.txt").read_text()
        assert [line for line in text.splitlines() if not line.startswith(" ")] == schedule(seed).splitlines()


@dataclass
class Ends:
    """The records of a transcript, grouped by what happened to them."""

    appended: set[str] = field(default_factory=set)
    compacted: set[str] = field(default_factory=set)
    emitted: Counter[str] = field(default_factory=Counter)
    ended: Counter[str] = field(default_factory=Counter)
    acked: set[str] = field(default_factory=set)
    absent: set[str] = field(default_factory=set)
    dead: set[str] = field(default_factory=set)
    letters: Counter[str] = field(default_factory=Counter)

    def read(self, command: str, answers: list[str]) -> None:
        word, *rest = command.split()
        if word == "append":
            first = sum(name[0] == rest[0] for name in self.appended)
            self.appended |= {f"{rest[0]}{first + n}" for n in range(int(rest[1]))}
        elif word == "compact":
            self.compacted |= {f"{rest[0]}{n}" for n in rest[1:]}
        failed, answered = set[str](), set[str]()
        for line in answers:
            kind, found = line.split(":")[0].split()[-1], records_of(line)
            if kind in ("new", "again"):
                self.emitted.update(found)
            elif kind.isupper() and found:
                self.ended.update(found[:1])
                failed.add(found[0])
            elif kind in ("acked", "absent"):
                self.ended.update(found)
            elif line.startswith("letter of"):
                self.letters.update(found[:1])
            if kind in ("replayed", "dead"):
                answered.update(found)
            if kind in ("acked", "absent", "dead"):
                getattr(self, kind).update(found)
        assert failed == answered or word in ("leave", "stop")


@pytest.mark.parametrize("draw", [schedule, overlapping_schedule])
@pytest.mark.parametrize("seed", range(1, 41))
def test_each_record_of_a_drawn_schedule_ends_once_for_each_time_it_was_emitted_and_in_the_right_way(
    seed: int, draw: Callable[[int], str], tmp_path: Path
) -> None:
    conversation, ends = Conversation(tmp_path), Ends()
    for command in draw(seed).splitlines()[1:]:
        ends.read(command, conversation.say(command))
    assert ends.ended == ends.emitted
    # Nothing is heard of a record that is compacted away while it waits for the next run. No drawn `schedule` has one.
    forgotten = set(ends.emitted) - (ends.acked | ends.dead | ends.absent)
    assert forgotten <= (ends.compacted if draw is overlapping_schedule else set())
    assert ends.appended - ends.compacted <= set(ends.emitted) == ends.acked | ends.dead | ends.absent | forgotten
    assert not ends.acked & ends.dead
    always_bad = {name for name in ends.emitted if name.endswith(ALWAYS_BAD)}
    assert always_bad <= ends.dead | ends.absent | forgotten
    assert ends.letters == Counter(ends.dead)


def write() -> None:
    """Regenerate all transcripts."""
    for seed in SEEDS:
        (FOLDER / f"schedule_{seed}.txt").write_text(schedule(seed))
    for path in FOLDER.glob("*.txt"):
        with tempfile.TemporaryDirectory() as folder:
            path.write_text(retold(path.read_text(), Conversation(Path(folder)).say))


if __name__ == "__main__":
    write()
