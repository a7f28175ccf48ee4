"""Files of lines on a real Spark with a real server: gz, and files that are rotated while they are read."""

from __future__ import annotations

import gzip
from collections import Counter
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, Row, SparkSession

from acker_client.source import Batch, Files, PutBack, Retry
from acker_client.source.put_back.letter_lines import Moved
from acker_client.source.put_back.store import put_back
from acker_client.spark import operator, sink

LINES, POISON = 3000, "line 1234"


@operator("value string, path string, line bigint")
def checked(row: Row) -> Any:
    if row.value == POISON:
        raise ValueError("poison")
    yield row.value, row.path, row.line


def test_lines_of_a_gz_are_tracked_one_by_one_and_one_that_died_is_tried_again_from_its_letter(
    connected: SparkSession, tmp_path: Path
) -> None:
    lines = [f"line {k}" for k in range(LINES)]
    halves = ["".join(f"{line}\n" for line in part).encode() for part in (lines[:1000], lines[1000:])]
    (tmp_path / "a.gz").write_bytes(b"".join(map(gzip.compress, halves)))
    seen: list[tuple[str, str, int]] = []

    @sink
    def save(rows: DataFrame) -> None:
        seen.extend((row.value, row.path, row.line) for row in rows.collect())

    options: dict[str, Any] = {"dead_letters": tmp_path / "dead.jsonl", "retry": Retry(0), "max_dead_share": 1.0}
    source = Files(f"{tmp_path}/*.gz", name="packed", checkpoint=tmp_path / "c", batch_records=700, **options)
    summary = source.run(connected, lambda batch: save(batch.df.transform(checked)))
    assert (summary.acked, summary.dead_lettered, summary.open, summary.lost) == (LINES - 1, 1, 0, 0)
    expected = Counter((line, f"{tmp_path}/a.gz", k + 1) for k, line in enumerate(lines) if line != POISON)
    assert Counter(seen) == expected
    assert put_back(tmp_path / "dead.jsonl", tmp_path / "again.jsonl", lambda letter: True) == Moved(1, 0)
    seen.clear()
    again = PutBack(tmp_path / "again.jsonl", name="again", checkpoint=tmp_path / "again.ckpt", **options)
    assert again.run(connected, lambda batch: save(batch.df)).acked == 1
    assert seen == [(POISON, f"{tmp_path}/a.gz", 1235)]


def test_a_file_that_is_rotated_while_tasks_read_it_is_read_once_and_the_next_one_too(
    connected: SparkSession, tmp_path: Path
) -> None:
    log, seen = tmp_path / "app.log", list[str]()
    log.write_text("".join(f"old {k}\n" for k in range(500)))
    source = Files(f"{tmp_path}/app.log", name="logs", checkpoint=tmp_path / "c", follow_s=0.01)

    @sink
    def save(rows: DataFrame) -> None:
        seen.extend(row.value for row in rows.collect())

    def process(batch: Batch) -> None:
        if batch.number == 1:  # the batch is planned, and no task has read it yet
            with log.open("a") as writer:
                log.rename(tmp_path / "app.log.1")
                log.write_text("new 0\nnew 1\n")
                writer.write("old, and late\n")
        save(batch.df)
        if source.summary().records == 503:
            source.stop()

    summary = source.run(connected, process)
    assert (summary.acked, summary.open, summary.replayed) == (503, 0, 0)
    assert Counter(seen) == Counter([f"old {k}" for k in range(500)] + ["old, and late", "new 0", "new 1"])
    assert (
        Files(f"{tmp_path}/app.log", name="logs", checkpoint=tmp_path / "c").run(connected, save_nothing).records == 0
    )


def save_nothing(batch: Batch) -> None:
    raise AssertionError("nothing is left to be read")
