"""What becomes of records, as conversations that can be read: ``tests/source/transcripts``.

After a change that is meant to be seen, write them anew (``python -m tests.source.test_source_transcripts``) and read
the difference.
"""

from __future__ import annotations

import tempfile
from collections import Counter
from pathlib import Path

import pytest

from tests.source.conversation import ALWAYS_BAD, records_of, retold, schedule

FOLDER = Path(__file__).parent / "transcripts"
SEEDS = range(1, 4)


@pytest.mark.parametrize("path", sorted(FOLDER.glob("*.txt")), ids=lambda path: path.stem)
def test_a_run_goes_as_it_did_when_its_transcript_was_written(path: Path, tmp_path: Path) -> None:
    assert retold(path.read_text(), tmp_path) == path.read_text()


@pytest.mark.parametrize("seed", range(1, 41))
def test_each_record_of_a_drawn_schedule_ends_once_for_each_time_it_was_emitted_and_in_the_right_way(
    seed: int, tmp_path: Path
) -> None:
    emitted, ended = Counter[str](), Counter[str]()
    acked, dead, gone = set[str](), set[str](), set[str]()
    command, failed, answered = "", set[str](), set[str]()
    for line in retold(schedule(seed), tmp_path).splitlines():
        if not line.startswith(" "):
            assert failed == answered or command in ("leave", "stop")
            command, failed, answered = line, set(), set()
        kind, found = line.split(":")[0].split()[-1] if line.startswith("    ") else "", records_of(line)
        if kind in ("new", "again"):
            emitted.update(found)
        elif kind in ("acked", "absent", "FAILED", "LOST", "TIMED_OUT"):
            ended.update(found[:1] if kind.isupper() else found)
        failed.update(found[:1] if kind.isupper() else ())
        answered.update(found if kind in ("replayed", "dead") else ())
        acked.update(found if kind == "acked" else ())
        gone.update(found if kind == "absent" else ())
        dead.update(found if kind == "dead" else ())
    assert ended == emitted
    assert {name for name in acked if name.endswith(ALWAYS_BAD)} == set()
    assert {name for name in emitted if name.endswith(ALWAYS_BAD)} <= dead | gone
    assert set(emitted) == acked | dead | gone


def write() -> None:
    """Write all transcripts anew."""
    for seed in SEEDS:
        (FOLDER / f"schedule_{seed}.txt").write_text(schedule(seed))
    for path in FOLDER.glob("*.txt"):
        with tempfile.TemporaryDirectory() as folder:
            path.write_text(retold(path.read_text(), Path(folder)))


if __name__ == "__main__":
    write()
