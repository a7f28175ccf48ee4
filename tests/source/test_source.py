"""The source's loop against a real shard, in simulated time, with executors in memory."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pytest

from acker_client import AckerClient
from acker_client.cluster.watched import WatchResult
from acker_client.pins import Pin
from acker_client.source import (
    Batch,
    Broken,
    Committed,
    Emissions,
    Files,
    Listener,
    Retry,
    SourceError,
    TooManyDeadLetters,
)
from acker_client.source.engine.environment import Blame
from acker_client.source.engine.outcomes import LOOK_S
from acker_client.source.files.input import FileInput
from acker_client.source.records.in_flight import excusing
from acker_client.source.records.retry import PIECES
from acker_protocol.messages import Cause, Outcomes, Verdict
from tests.source.disks import full
from tests.source.executors import NO_SPARK, Cluster, Log, Polling, Row, breaking, failing, frame_of, save_all
from tests.source.logs import LogSource, MemoryCheckpoint, MemoryLetters, log_of

TRACEBACK = "\nTraceback (most recent call last):\n  somewhere"
QUICK = Retry(max_retries=3, initial_s=1, cap_s=8)
KINDS = ("ValueError", "KeyError")


def letters(cluster: Cluster) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (cluster.folder / "dead.jsonl").open()]


def test_every_record_is_acked_once_and_the_summary_says_so(cluster: Cluster) -> None:
    cluster.write("a.txt", *(f"line {k}" for k in range(25)))
    log = Log()
    source = cluster.source(batch_records=10, listener=log)
    for batch in source.batches(NO_SPARK):
        save_all(batch)
    summary = source.summary()
    assert (summary.records, summary.acked, summary.open, summary.batches) == (25, 25, 0, 3)
    assert (summary.failed, summary.lost, summary.replayed, summary.dead_lettered) == (0, 0, 0, 0)
    assert sorted(log.acked) == list(range(25))
    assert [records for _, records in log.emitted] == [list(range(10)), list(range(10, 20)), list(range(20, 25))]
    assert summary.checkpoint == "end of the input (1 file)"
    assert "acked                    25" in str(summary)


def test_a_process_that_is_not_callable_is_refused_before_any_batch(cluster: Cluster) -> None:
    cluster.write("a.txt", "line")
    source = cluster.source()
    with pytest.raises(TypeError, match=r"run\(spark, 3\): give a function that takes a Batch"):
        source.run(NO_SPARK, 3)  # type: ignore[arg-type]
    assert source.summary().failed == 0


def test_a_record_that_fails_is_replayed_alone_and_then_acked(cluster: Cluster) -> None:
    cluster.write("a.txt", *(str(k) for k in range(10)))
    log = Log()
    source = cluster.source(retry=QUICK, listener=log)
    once = set[str]()

    def process(batch: Batch) -> None:
        failing(lambda row: row.value in ("3", "7") and row.value not in once)(batch)
        once.update(("3", "7"))

    source.run(NO_SPARK, process)
    assert [records for _, records in log.emitted] == [list(range(10)), [3, 7]]
    assert log.failed == [(3, "ValueError: bad"), (7, "ValueError: bad")]
    assert sorted(log.acked) == list(range(10))
    assert (log.retried, log.dead) == ([3, 7], [])
    assert source.summary().replayed == 2


def test_replays_wait_for_their_backoff_and_new_records_do_not_wait_for_them(cluster: Cluster) -> None:
    cluster.write("a.txt", *(str(k) for k in range(30)))
    emitted_at: list[float] = []

    class Clocked(Log):
        def on_emit(self, batch: int, emitted: Any, is_replay: bool) -> None:
            super().on_emit(batch, emitted, is_replay)
            emitted_at.append(cluster.time.clock())

    log = Clocked()
    retry = Retry(max_retries=2, initial_s=100, cap_s=1000)
    cluster.source(retry=retry, listener=log, batch_records=10).run(NO_SPARK, failing(lambda row: row.value == "5"))
    sizes = [len(records) for _, records in log.emitted]
    assert sizes == [10, 10, 10, 1, 1]
    assert emitted_at[3] - emitted_at[0] >= 50  # 0.5 x 100 s
    assert emitted_at[4] - emitted_at[3] >= 100  # 0.5 x 200 s


def test_due_replays_and_new_records_share_a_batch_with_separate_callbacks(cluster: Cluster) -> None:
    cluster.write("a.txt", *(str(k) for k in range(18)))
    told: list[tuple[int, list[int], bool]] = []

    class Told(Log):
        def on_emit(self, batch: int, emitted: Any, is_replay: bool) -> None:
            told.append((batch, emitted.records.tolist(), is_replay))

    source = cluster.source(retry=Retry(max_retries=1, initial_s=0.0), listener=Told(), batch_records=10)
    replays = []
    for batch in source.batches(NO_SPARK):
        replays.append((batch.records, batch.replays))
        failing((lambda row: row.value in "37") if batch.number == 1 else (lambda row: False))(batch)
    assert told == [(1, list(range(10)), False), (2, [3, 7], True), (2, list(range(10, 18)), False)]
    assert replays == [(10, 0), (10, 2)]
    assert (source.summary().records, source.summary().acked, source.summary().replayed) == (18, 18, 2)


def test_a_batch_that_broke_is_replayed_without_new_records(cluster: Cluster) -> None:
    cluster.write("a.txt", *(str(k) for k in range(18)))
    log = Log()
    source = cluster.source(retry=Retry(initial_s=0.0), listener=log, batch_records=10)
    source.run(NO_SPARK, breaking(lambda row: row.value == "3" and len(log.emitted) == 1))
    assert [len(records) for _, records in log.emitted] == [10, 10, 8]


def test_a_record_that_spent_its_retries_is_in_the_dead_letters_with_everything_about_it(cluster: Cluster) -> None:
    cluster.write("a.txt", "good", "bad", "good")
    log = Log()
    source = cluster.source(retry=QUICK, listener=log)
    source.run(NO_SPARK, failing(lambda row: row.value == "bad", "ValueError: bad" + TRACEBACK))
    (letter,) = letters(cluster)
    assert letter["reason"] == "ValueError: bad" + TRACEBACK
    assert letter["attempts"] == {"failed": 4, "interrupted": 0}
    assert (letter["path"], letter["line"], letter["byte"]) == (f"{cluster.folder}/a.txt", 2, 5)
    assert (letter["value"], letter["source"]) == ("bad", "lines")
    assert letter["first"] < letter["last"]
    summary = source.summary()
    assert (summary.acked, summary.dead_lettered, summary.failed, summary.open) == (2, 1, 4, 0)
    assert log.dead == [1]


def test_only_the_first_letter_of_an_operator_has_the_traceback(
    cluster: Cluster, caplog: pytest.LogCaptureFixture
) -> None:
    cluster.write("a.txt", "bad", "bad")
    reason = "items: ValueError: bad\nin two lines" + TRACEBACK
    cluster.source(retry=Retry(max_retries=0)).run(NO_SPARK, failing(lambda row: True, reason))
    assert [letter["reason"].count("Traceback") for letter in letters(cluster)] == [1, 0]
    assert caplog.text.count("somewhere") == 1


def test_each_reason_is_logged_with_its_traceback_once_however_often_its_record_is_tried(
    cluster: Cluster, caplog: pytest.LogCaptureFixture
) -> None:
    cluster.write("a.txt", *(str(k) for k in range(4)))

    def process(batch: Batch) -> None:
        raised = {row.root: f"items: {KINDS[int(row.value) % 2]}: {row.value}" for row in frame_of(batch).rows()}
        frame_of(batch).fail({root: reason + TRACEBACK for root, reason in raised.items()})

    cluster.source(retry=QUICK).run(NO_SPARK, process)
    assert caplog.text.count("Traceback") == 2
    assert [caplog.text.count(f"first failure of items: {kind}") for kind in KINDS] == [1, 1]


def test_a_line_that_is_not_utf8_ends_in_the_dead_letters_with_its_position(cluster: Cluster) -> None:
    (cluster.folder / "a.txt").write_bytes(b"fine\nnot \xff fine\n")
    source = cluster.source(retry=QUICK)
    source.run(NO_SPARK, save_all)
    (letter,) = letters(cluster)
    assert letter["reason"].startswith(f"{cluster.folder}/a.txt:2 (byte 5): not valid UTF-8 at byte 9")
    assert letter["value_base64"] == "bm90IP8gZmluZQ=="
    assert source.summary().acked == 1


def test_too_many_dead_letters_stop_the_run_and_lose_nothing(cluster: Cluster) -> None:
    cluster.write("a.txt", *(str(k) for k in range(1000)))
    options: dict[str, Any] = {
        "retry": Retry(max_retries=0),
        "max_dead_share": 0.01,
        "batch_records": 100,
        "checkpoint": cluster.folder / "lines.ckpt",
    }
    with pytest.raises(TooManyDeadLetters, match=r"max_dead_share=0\.01") as stopped:
        cluster.source(**options).run(NO_SPARK, failing(lambda row: True, "TypeError: first day"))
    assert "\n  100 for 'TypeError: first day': " in str(stopped.value)
    assert f"{cluster.folder}/a.txt:1, {cluster.folder}/a.txt:2, {cluster.folder}/a.txt:3, ..." in str(stopped.value)
    assert f"are not in {cluster.folder / 'dead.jsonl'}" in str(stopped.value)
    assert "earlier" not in str(stopped.value)
    assert letters(cluster) == []
    source = cluster.source(**options)
    source.run(NO_SPARK, save_all)
    assert source.summary().acked == 1000


def test_the_share_of_dead_letters_counts_all_answered_records(cluster: Cluster) -> None:
    cluster.write("a.txt", *(str(k) for k in range(390)))
    options: dict[str, Any] = {"retry": Retry(max_retries=0), "checkpoint": cluster.folder / "c"}
    tenth_is_bad = failing(lambda row: int(row.value) % 10 == 0)
    with pytest.raises(TooManyDeadLetters, match=r"39 of 390 records .* max_dead_share=0\.05"):
        cluster.source(max_dead_share=0.05, **options).run(NO_SPARK, tenth_is_bad)
    assert letters(cluster) == []
    # The good records are committed, so only the bad ones are read again. They are still a tenth of all records.
    again = cluster.source(max_dead_share=0.25, **options)
    again.run(NO_SPARK, tenth_is_bad)
    assert (again.summary().records, again.summary().dead_lettered) == (39, 39)
    cluster.write("b.txt", *(str(k) for k in range(20)))
    with pytest.raises(TooManyDeadLetters, match=r"59 of 410 records have spent all retries"):
        cluster.source(max_dead_share=0.1, **options).run(NO_SPARK, failing(lambda row: True))


def test_a_few_dead_letters_in_a_small_input_do_not_stop_the_run(cluster: Cluster) -> None:
    cluster.write("a.txt", *(str(k) for k in range(20)))
    source = cluster.source(retry=Retry(max_retries=0), max_dead_share=0.01)
    source.run(NO_SPARK, failing(lambda row: int(row.value) < 10))
    assert source.summary().dead_lettered == 10


def test_too_many_dead_letters_are_listed_by_reason_and_origin(cluster: Cluster) -> None:
    cluster.write("a.txt", *(str(k) for k in range(20)))
    cluster.write("b.txt", *(str(k) for k in range(20)))

    def process(batch: Batch) -> None:
        rows = frame_of(batch).rows()
        early = {
            row.root: "TypeError: early" + TRACEBACK for row in rows if row.path.endswith("a.txt") and row.line <= 5
        }
        reasons = {row.root: f"ValueError: {row.line % 2}" for row in rows if row.path.endswith("b.txt")}
        frame_of(batch).fail(early | reasons)
        frame_of(batch).ack(row for row in rows if row.root not in early | reasons)

    source = cluster.source(retry=Retry(max_retries=0), max_dead_share=0.3, batch_records=20)
    with pytest.raises(TooManyDeadLetters) as stopped:
        source.run(NO_SPARK, process)
    a, b = f"{cluster.folder}/a.txt", f"{cluster.folder}/b.txt"
    assert str(stopped.value) == (
        "25 of 40 records have spent all retries, more than max_dead_share=0.3 allows: fix what fails and start again,"
        " or raise max_dead_share\n"
        f"  10 for 'ValueError: 1': {b}:1, {b}:3, {b}:5, ...\n"
        f"  10 for 'ValueError: 0': {b}:2, {b}:4, {b}:6, ...\n"
        "nothing is lost: these records are not done, and are read again at the next start. These records are"
        f" not in {cluster.folder / 'dead.jsonl'}, but 5 earlier ones of this run are"
    )
    assert [(letter["path"], letter["line"]) for letter in letters(cluster)] == [(a, k) for k in range(1, 6)]


def test_the_most_frequent_of_many_reasons_are_named(cluster: Cluster) -> None:
    cluster.write("a.txt", *(str(k) for k in range(30)))

    def process(batch: Batch) -> None:
        rows = frame_of(batch).rows()
        frame_of(batch).fail({row.root: "often" if row.line % 2 else f"reason {row.line}" for row in rows})

    with pytest.raises(TooManyDeadLetters) as stopped:
        cluster.source(retry=Retry(max_retries=0), max_dead_share=0.0).run(NO_SPARK, process)
    told = str(stopped.value).splitlines()[1:-1]
    assert told[0].startswith("  15 for 'often': ")
    assert len(told) == 6
    assert told[-1] == "  11 for 11 other reasons"


def test_a_full_disk_ends_the_run_by_a_sentence_with_the_file_and_the_next_start_reads_again(cluster: Cluster) -> None:
    cluster.write("a.txt", *(str(k) for k in range(20)))
    options: dict[str, Any] = {"checkpoint": cluster.folder / "c", "batch_records": 10, "retry": Retry(max_retries=0)}
    dead = full(cluster.folder / "dead.jsonl")
    with pytest.raises(SourceError, match=rf"dead letters cannot be written to {dead} \(No space left"):
        cluster.source(**options).run(NO_SPARK, failing(lambda row: row.value == "13"))
    dead.unlink()
    draft = full(cluster.folder / "c.new")
    with pytest.raises(SourceError, match=rf"checkpoint {cluster.folder / 'c'} cannot be written \(No space left"):
        cluster.source(**options).run(NO_SPARK, save_all)
    draft.unlink()
    summary = cluster.source(**options).run(NO_SPARK, failing(lambda row: row.value == "13"))
    assert (summary.acked, summary.dead_lettered) == (0, 1)
    assert [letter["value"] for letter in letters(cluster)] == ["13"]


def test_without_a_place_for_dead_letters_the_run_ends_with_the_option_to_give(cluster: Cluster) -> None:
    cluster.write("a.txt", "bad")
    with pytest.raises(SourceError, match=r"1 record has .*dead_letters='dead\.jsonl'") as stopped:
        cluster.source(dead_letters=None, retry=Retry(max_retries=0)).run(NO_SPARK, failing(lambda row: True))
    assert f"  1 for 'ValueError: bad': {cluster.folder}/a.txt:1\nnothing is lost" in str(stopped.value)


def test_a_row_that_breaks_the_whole_job_ends_alone_in_the_dead_letters(cluster: Cluster) -> None:
    cluster.write("a.txt", *(str(k) for k in range(300)))
    log = Log()
    source = cluster.source(retry=Retry(max_retries=2, initial_s=1, cap_s=4), listener=log)
    source.run(NO_SPARK, breaking(lambda row: row.value == "137"))
    (letter,) = letters(cluster)
    assert (letter["value"], letter["attempts"]) == ("137", {"failed": 3, "interrupted": 0})
    assert letter["reason"] == "the batch failed: ArithmeticError: division by zero in a where"
    assert sorted(log.acked) == [k for k in range(300) if k != 137]
    sizes = sorted((len(records) for _, records in log.emitted if 137 in records), reverse=True)
    assert sizes == [300, 300, 19, 2, 1, 1, 1]


def test_a_job_that_fails_once_is_replayed_as_it_was(cluster: Cluster) -> None:
    cluster.write("a.txt", *(str(k) for k in range(100)))
    log = Log()
    source = cluster.source(retry=QUICK, listener=log)
    tried: list[int] = []

    def process(batch: Batch) -> None:
        tried.append(batch.number)
        frame_of(batch).rows()
        if len(tried) == 1:
            raise OSError("disk full for a moment")
        save_all(batch)

    source.run(NO_SPARK, process)
    assert [len(records) for _, records in log.emitted] == [100, 100]
    assert source.summary().acked == 100
    assert {reason for _, reason in log.failed} != {""}


def test_a_sink_whose_exception_was_swallowed_abandons_the_batch(cluster: Cluster) -> None:
    cluster.write("a.txt", "one", "two")
    source = cluster.source(retry=QUICK)
    for batch in source.batches(NO_SPARK):
        save_all(batch)
        if not batch.replays:
            frame_of(batch).evidence.error = OSError("the write failed at its commit")
    summary = source.summary()
    assert (summary.lost, summary.replayed, summary.acked) == (2, 2, 2)


def test_replays_of_a_partition_that_the_plan_revokes_are_not_emitted(cluster: Cluster) -> None:
    log, checkpoint = log_of(a=5, b=20), MemoryCheckpoint()
    fail = failing(lambda row: row.value in ("a2", "a3"))

    def process(batch: Batch) -> None:
        fail(batch)
        if batch.number == 1:
            log.revoked = ["a"]

    retry = Retry(1, initial_s=0.0)
    asked = LogSource(log, environment=cluster.environment(), batch_records=10, retry=retry, checkpoint=checkpoint)
    summary = asked.run(NO_SPARK, process)
    assert (summary.acked, summary.revoked, summary.replayed, summary.open) == (23, 2, 0, 0)
    assert checkpoint.saved["a"].done.prefix == 2


def test_an_exception_that_is_false_as_a_condition_acks_no_record(cluster: Cluster) -> None:
    class Problems(Exception):
        def __len__(self) -> int:
            return 0

    def process(batch: Batch) -> None:
        save_all(batch)
        raise Problems

    given: dict[str, Any] = {"max_dead_share": 1.0, "retry": Retry(1), "dead_letters": MemoryLetters()}
    summary = LogSource(log_of(a=3), environment=cluster.environment(), **given).run(NO_SPARK, process)
    assert (summary.acked, summary.dead_lettered) == (0, 3)


@pytest.mark.long
def test_a_write_that_never_works_stops_the_run_instead_of_making_dead_letters_of_good_records(
    cluster: Cluster,
) -> None:
    cluster.write("a.txt", *(str(k) for k in range(5000)))
    source = cluster.source(retry=QUICK, checkpoint=cluster.folder / "c")
    with pytest.raises(Broken, match="64 batches in a row failed as a whole, the last with 'ArithmeticError"):
        source.run(NO_SPARK, breaking(lambda row: True))
    assert letters(cluster) == []
    again = cluster.source(checkpoint=cluster.folder / "c")
    assert again.run(NO_SPARK, save_all).acked == 5000


def test_a_source_pauses_after_many_batches_that_failed_as_a_whole_and_a_stop_ends_the_pause(cluster: Cluster) -> None:
    cluster.write("a.txt", *(str(k) for k in range(500)))
    waits, environment = list[float](), cluster.environment()

    def sleep(seconds: float) -> None:
        cluster.sleep(seconds)
        if source.progress().batch > PIECES:
            waits.append(seconds)
            source.stop()

    source = cluster.source(retry=Retry(initial_s=60, cap_s=60), environment=replace(environment, sleep=sleep))
    source.run(NO_SPARK, breaking(lambda row: True))
    assert len(waits) == 1
    assert waits[0] <= LOOK_S


def test_a_source_whose_replay_cannot_be_read_waits_between_its_questions(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster.write("a.txt", "one")
    waits, asked, environment = list[float](), list[float](), cluster.environment()

    def is_reachable(_: object) -> bool:
        asked.append(cluster.time.clock())
        return len(asked) > 4

    def sleep(seconds: float) -> None:
        waits.append(seconds)
        cluster.sleep(seconds)

    monkeypatch.setattr(FileInput, "is_reachable", is_reachable)
    source = cluster.source(retry=QUICK, environment=replace(environment, sleep=sleep))
    source.run(NO_SPARK, failing(lambda row: len(asked) < 4))
    assert source.summary().acked == 1
    assert min(waits) > 0
    assert min(np.diff(asked)) > 0


def test_while_replays_cannot_be_read_new_records_go_on(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    cluster.write("a.txt", *"abcd")
    seen, asked = list[str](), list[bool]()

    def is_reachable(_: object) -> bool:
        asked.append(len(seen) >= 4)
        return asked[-1] or len(asked) > 100

    monkeypatch.setattr(FileInput, "is_reachable", is_reachable)
    source = cluster.source(retry=Retry(initial_s=0, cap_s=0), batch_records=1)

    def process(batch: Batch) -> None:
        (row,) = frame_of(batch).rows()
        seen.append(row.value)
        if seen == ["a"]:
            raise ArithmeticError("the first try fails")
        frame_of(batch).ack([row])

    assert source.run(NO_SPARK, process).acked == 4
    assert seen == ["a", "b", "c", "d", "a"]


def test_replays_of_a_partition_that_cannot_be_read_do_not_hold_back_those_of_the_others(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster.write("a.txt", "a")
    cluster.write("b.txt", "b")
    tries = list[str]()

    def away(_: object) -> list[str]:
        return [] if tries.count("b") >= 3 else [str(cluster.folder / "a.txt")]

    monkeypatch.setattr(FileInput, "away", away, raising=False)
    source = cluster.source(retry=Retry(initial_s=0, cap_s=0), batch_records=2)

    def is_bad(row: Row) -> bool:
        tries.append(row.value)
        return tries.count(row.value) < 3

    def process(batch: Batch) -> None:
        rows = frame_of(batch).rows()
        bad = {row.root for row in rows if is_bad(row)}
        frame_of(batch).fail(dict.fromkeys(bad, "ValueError: bad"))
        frame_of(batch).ack(row for row in rows if row.root not in bad)

    assert source.run(NO_SPARK, process).acked == 2
    assert tries == ["a", "b", "b", "b", "a", "a"]


def test_rows_that_were_not_read_are_replayed_and_not_counted_as_failures(cluster: Cluster) -> None:
    cluster.write("a.txt", *(str(k) for k in range(40)))
    log = Log()
    source = cluster.source(retry=QUICK, listener=log, partitions=4, batch_records=40)

    def process(batch: Batch) -> None:
        frame_of(batch).ack(frame_of(batch).rows(slice(0, 4 if batch.replays else 1)))

    summary = source.run(NO_SPARK, process)
    assert (summary.acked, summary.lost, summary.failed) == (40, 30, 0)
    assert {reason for _, reason in log.failed} == {"unread"}


def test_rows_dropped_behind_the_librarys_back_fail_as_unfinished(cluster: Cluster) -> None:
    cluster.write("a.txt", "keep", "drop")
    source = cluster.source(retry=Retry(max_retries=0))

    def process(batch: Batch) -> None:
        frame_of(batch).ack(row for row in frame_of(batch).rows() if row.value == "keep")

    source.run(NO_SPARK, process)
    assert [(letter["value"], letter["reason"]) for letter in letters(cluster)] == [("drop", "unfinished")]


def test_a_batch_has_as_many_records_as_batch_records_allows(cluster: Cluster) -> None:
    cluster.write("a.txt", *(str(k) for k in range(100)))
    sizes: list[tuple[int, int]] = []

    def process(batch: Batch) -> None:
        sizes.append((batch.records, len(frame_of(batch).rows())))
        save_all(batch)

    cluster.source(batch_records=30).run(NO_SPARK, process)
    assert sizes == [(30, 30), (30, 30), (30, 30), (10, 10)]


def test_a_restart_goes_on_where_everything_before_was_done(cluster: Cluster) -> None:
    cluster.write("a.txt", *(str(k) for k in range(100)))
    seen: list[str] = []

    def process(batch: Batch) -> None:
        rows = frame_of(batch).rows()
        seen.extend(row.value for row in rows)
        frame_of(batch).ack(rows)

    source = cluster.source(checkpoint=cluster.folder / "c", batch_records=30)
    for batch in source.batches(NO_SPARK):
        process(batch)
        if batch.number == 2:
            batch.done()
            break
    assert seen == [str(k) for k in range(60)]
    assert source.summary().acked == 60
    cluster.write("b.txt", "new")
    source = cluster.source(checkpoint=cluster.folder / "c")
    source.run(NO_SPARK, process)
    assert seen == [*(str(k) for k in range(100)), "new"]
    assert cluster.source(checkpoint=cluster.folder / "c").run(NO_SPARK, process).records == 0


def test_an_exception_in_the_loop_leaves_it_and_loses_nothing(cluster: Cluster) -> None:
    cluster.write("a.txt", *(str(k) for k in range(10)))
    source = cluster.source(checkpoint=cluster.folder / "c", batch_records=5)

    def loop() -> None:
        for batch in source.batches(NO_SPARK):
            frame_of(batch).rows()
            if batch.number == 2:
                raise KeyError("user code")
            save_all(batch)

    with pytest.raises(KeyError):
        loop()
    summary = source.summary()
    assert (summary.records, summary.acked, summary.lost, summary.open) == (10, 5, 5, 5)
    again = cluster.source(checkpoint=cluster.folder / "c")
    assert again.run(NO_SPARK, save_all).acked == 5


class UserError(Exception):
    """Raised by the body of a loop."""


def _break(batch: Batch) -> None:
    """Do nothing: the loop ends with ``break`` anyway."""


def _raise(batch: Batch) -> None:
    raise UserError


def _raise_in_with(batch: Batch) -> None:
    with batch:
        raise UserError


def _swallow_around_with(batch: Batch) -> None:
    with suppress(UserError):
        _raise_in_with(batch)


def _done(batch: Batch) -> None:
    batch.done()


def _done_and_raise(batch: Batch) -> None:
    batch.done()
    raise UserError


def _with(batch: Batch) -> None:
    with batch:
        assert not batch.is_done


@pytest.mark.parametrize(
    ("leaving", "acked"),
    [
        (_break, 0),
        (_raise, 0),
        (_raise_in_with, 0),
        (_swallow_around_with, 0),
        (_done, 10),
        (_done_and_raise, 10),
        (_with, 10),
    ],
)
def test_leaving_the_loop_abandons_the_batch_unless_done_was_called(
    cluster: Cluster, leaving: Callable[[Batch], None], acked: int
) -> None:
    cluster.write("a.txt", *(str(k) for k in range(10)))
    source = cluster.source(checkpoint=cluster.folder / "c")

    def loop() -> None:
        for batch in source.batches(NO_SPARK):
            save_all(batch)
            leaving(batch)
            break

    with suppress(UserError):
        loop()
    assert (source.summary().acked, source.summary().lost) == (acked, 10 - acked)
    assert cluster.source(checkpoint=cluster.folder / "c").run(NO_SPARK, save_all).acked == 10 - acked


@pytest.mark.parametrize(("leaving", "vouched"), [(_done, True), (_with, False)])
def test_batch_done_replaces_evidence_and_the_end_of_a_block_does_not(
    cluster: Cluster, leaving: Callable[[Batch], None], vouched: bool
) -> None:
    cluster.write("a.txt", "one")
    for batch in cluster.source().batches(NO_SPARK):
        save_all(batch)
        leaving(batch)
        evidence: Any = batch.evidence
        assert (batch.is_done, evidence.vouched) == (True, vouched)


def test_an_error_that_left_a_with_block_abandons_the_batch_though_the_loop_goes_on(cluster: Cluster) -> None:
    cluster.write("a.txt", *(str(k) for k in range(10)))
    source = cluster.source()
    for batch in source.batches(NO_SPARK):
        save_all(batch)
        if batch.number == 1:
            _swallow_around_with(batch)
    assert (source.summary().acked, source.summary().lost) == (10, 10)


def test_an_error_of_the_program_ends_the_run_at_once_and_costs_no_record_anything(cluster: Cluster) -> None:
    cluster.write("a.txt", *(str(k) for k in range(8)))
    environment = replace(
        cluster.environment(), blame=lambda error: Blame.CODE if isinstance(error, UserError) else Blame.WORK
    )
    source = Files(
        f"{cluster.folder}/a.txt", name="lines", dead_letters=cluster.folder / "dead.jsonl", environment=environment
    )
    with pytest.raises(UserError):
        source.run(NO_SPARK, _raise)
    assert (source.summary().batches, source.summary().dead_lettered, source.summary().open) == (1, 0, 8)


def test_no_two_batches_have_one_id_in_whatever_run_and_with_or_without_a_checkpoint(cluster: Cluster) -> None:
    cluster.write("a.txt", *(str(k) for k in range(30)))
    ids: list[str] = []

    def process(batch: Batch) -> None:
        assert batch.id.rpartition("-")[2] == str(batch.number)
        ids.append(batch.id)
        save_all(batch)

    for _ in range(3):
        cluster.source(name="the lines/ä", batch_records=10).run(NO_SPARK, process)
    assert len(set(ids)) == len(ids) == 9
    assert all(re.fullmatch(r"the_lines__-[0-9a-f]{16}-[1-3]", each) for each in ids)


def test_output_of_an_abandoned_batch_is_removed_unless_it_may_be_acked(cluster: Cluster) -> None:
    cluster.write("a.txt", *(str(k) for k in range(40)))
    taken_back: list[int] = []

    def process(batch: Batch) -> None:
        batch.on_abandon(partial(taken_back.append, batch.number))
        batch.on_abandon(partial(_raise, batch))
        save_all(batch)
        if batch.number == 2:
            raise UserError

    cluster.source(batch_records=10, retry=QUICK).run(NO_SPARK, process)
    assert taken_back == [2]
    source = cluster.source(batch_records=10)
    for batch in source.batches(NO_SPARK):
        batch.on_abandon(partial(taken_back.append, -batch.number))
        save_all(batch)
        if batch.number == 3:
            batch.done()
            break
    assert taken_back == [2]
    for batch in cluster.source(batch_records=10).batches(NO_SPARK):
        batch.on_abandon(partial(taken_back.append, 100))
        break
    assert taken_back == [2, 100]
    for batch in cluster.source(batch_records=10).batches(NO_SPARK):
        batch.on_abandon(partial(taken_back.append, 200))
        # A sink also wrote rows of another batch. That batch may be ACKED, so the output must stay.
        frame_of(batch).evidence.is_shared = True
        break
    assert taken_back == [2, 100]
    unheld = next(cluster.source(held=False, message_timeout_s=30).batches(NO_SPARK))
    with pytest.raises(SourceError, match="on_abandon: the source has held=False"):
        unheld.on_abandon(list)


@pytest.mark.parametrize("is_left", [False, True], ids=["settled", "left"])
def test_a_step_that_comes_after_the_batch_was_judged_done_is_never_run(cluster: Cluster, is_left: bool) -> None:
    """The listener stands in for a user thread that outlives the loop body and then calls ``on_abandon``."""
    cluster.write("a.txt", "only")
    taken_back: list[str] = []

    class LateThread(Listener):
        def on_ack(self, acked: Emissions) -> None:
            batch.on_abandon(partial(taken_back.append, "late"))

    for batch in cluster.source(listener=LateThread()).batches(NO_SPARK):
        save_all(batch)
        if is_left:
            batch.done()
            break
    assert taken_back == []


def test_output_is_removed_even_if_spark_cannot_release_the_frame(cluster: Cluster) -> None:
    cluster.write("a.txt", "only")
    taken_back: list[int] = []

    def process(batch: Batch) -> None:
        for number in (1, 2):
            batch.on_abandon(partial(taken_back.append, number))
        frame_of(batch).evidence.release = partial(_raise, batch)  # type: ignore[method-assign]
        raise OSError("no space")

    with pytest.raises(UserError):
        cluster.source().run(NO_SPARK, process)
    assert taken_back == [1, 2]


def test_missing_evidence_is_retried_once(cluster: Cluster) -> None:
    cluster.write("a.txt", *(str(k) for k in range(8)))
    environment = replace(cluster.environment(), blame=lambda error: Blame.EVIDENCE)

    def process(failures: int) -> Callable[[Batch], None]:
        def body(batch: Batch) -> None:
            save_all(batch)
            frame_of(batch).evidence.error = UserError() if batch.number <= failures else None

        return body

    assert Files(f"{cluster.folder}/a.txt", name="lines", environment=environment).run(NO_SPARK, process(1)).acked == 8
    with pytest.raises(UserError):
        Files(f"{cluster.folder}/a.txt", name="lines", environment=environment).run(NO_SPARK, process(2))


@pytest.mark.parametrize("own", ["ValueError: bad", "unfinished"])
def test_records_unfinished_after_a_second_evaluation_count_as_interrupted(cluster: Cluster, own: str) -> None:
    cluster.write("a.txt", *(str(k) for k in range(8)))
    log = Log()
    source = cluster.source(listener=log, retry=Retry(max_retries=0, initial_s=0, cap_s=0))

    def process(batch: Batch) -> None:
        rows = frame_of(batch).rows()
        frame_of(batch).fail({rows[0].root: own} if batch.number == 1 else {})
        frame_of(batch).evidence.unfinished_because = (
            "its rows were evaluated more than once" if batch.number == 1 else ""
        )
        frame_of(batch).ack(rows[4:] if batch.number == 1 else rows)

    summary = source.run(NO_SPARK, process)
    assert (summary.acked, summary.dead_lettered, summary.lost, summary.failed) == (7, 1, 3, 1)
    assert {reason for _, reason in log.failed} == {own, "unfinished: its rows were evaluated more than once"}


def test_every_unfinished_record_is_excused_also_where_several_replicas_named_the_cause() -> None:
    verdicts, reason_ids = np.full(3, Verdict.FAILED, np.uint8), np.array([1, 2, 3], np.uint32)
    reasons = (Cause.UNFINISHED, "unfinished", Cause.UNFINISHED)
    excused = excusing(Outcomes(np.arange(1, 4, dtype=np.uint64), verdicts, reason_ids, reasons), "it ran twice")
    assert excused.verdicts.tolist() == [Verdict.LOST, Verdict.FAILED, Verdict.LOST]
    assert excused.reasons == ("unfinished: it ran twice", "unfinished", "unfinished: it ran twice")


def test_source_and_batch_have_a_readable_repr(cluster: Cluster) -> None:
    cluster.write("a.txt", *(str(k) for k in range(8)))
    source = cluster.source()
    assert repr(source) == "<Files 'lines', not started: 0 records, 0 acked, 0 dead letters, 0 open>"
    for batch in source.batches(NO_SPARK):
        assert repr(batch) == "<Batch 1: 8 records, 0 of them replays, open>"
        assert repr(source) == "<Files 'lines', running: 8 records, 0 acked, 0 dead letters, 8 open>"
        save_all(batch)
    assert repr(source) == "<Files 'lines', ended: 8 records, 8 acked, 0 dead letters, 0 open>"


def test_done_records_behind_an_open_one_are_in_the_checkpoint_and_not_read_again(cluster: Cluster) -> None:
    cluster.write("a.txt", *(str(k) for k in range(30)))
    source = cluster.source(checkpoint=cluster.folder / "c", batch_records=10, retry=Retry(initial_s=1000, cap_s=1000))
    for batch in source.batches(NO_SPARK):
        failing(lambda row: row.value == "12")(batch)
        if batch.number == 3:
            batch.done()
            break
    seen: list[str] = []

    def process(batch: Batch) -> None:
        rows = frame_of(batch).rows()
        seen.extend(row.value for row in rows)
        frame_of(batch).ack(rows)

    cluster.source(checkpoint=cluster.folder / "c").run(NO_SPARK, process)
    assert seen == ["12"]


@pytest.mark.parametrize("with_state", [True, False])
def test_a_server_that_restarts_in_the_middle_of_a_batch_costs_replays_only_without_its_state(
    cluster: Cluster, with_state: bool
) -> None:
    cluster.write("a.txt", *(str(k) for k in range(20)))
    log = Log()
    source = cluster.source(retry=QUICK, listener=log)

    def process(batch: Batch) -> None:
        rows = frame_of(batch).rows()
        if not batch.replays:
            cluster.server.stop()
            cluster.server.start(with_state=with_state)
        frame_of(batch).ack(rows)

    for batch in source.batches(NO_SPARK):
        process(batch)
    summary = source.summary()
    assert (summary.acked, summary.lost, summary.replayed) == (20, *((0, 0) if with_state else (20, 20)))
    assert sorted(log.acked) == list(range(20))


def losing(cluster: Cluster) -> type[AckerClient]:
    """Return a client class whose server loses its state just before the second batch is opened."""
    asked: list[int] = []

    class Losing(AckerClient):
        def open_batch(self, number: int, *args: Any, **options: Any) -> Pin:
            asked.append(number)
            if asked == [1, 2]:
                cluster.server.start(with_state=False)
            return super().open_batch(number, *args, **options)

    return Losing


def test_a_batch_that_was_opened_after_the_server_lost_its_state_is_not_lost_by_the_late_news(cluster: Cluster) -> None:
    cluster.write("a.txt", *(str(k) for k in range(20)))
    environment = replace(cluster.environment(), connect=lambda spark: cluster.client(losing(cluster)))
    source = Files(f"{cluster.folder}/a.txt", name="lines", batch_records=10, environment=environment)
    assert source.run(NO_SPARK, save_all).replayed == 0
    assert (source.summary().acked, source.summary().lost) == (20, 0)


def test_news_of_a_loss_that_come_after_the_next_batch_was_settled_cost_no_replay(cluster: Cluster) -> None:
    class Slow(Polling):
        """Delivers a result one poll later if it names interrupted batches."""

        held: WatchResult | None = None

        def next_result(self, timeout_s: float) -> WatchResult | None:
            if self.held is not None:
                brought, self.held = self.held, None
                return brought
            heard = super().next_result(timeout_s)
            if heard is None or not heard.interrupted:
                return heard
            self.held = heard
            return None

    cluster.write("a.txt", *(str(k) for k in range(20)))
    environment = replace(cluster.environment(), connect=lambda spark: cluster.client(losing(cluster)), watch=Slow)
    source = Files(f"{cluster.folder}/a.txt", name="lines", batch_records=10, environment=environment)
    assert source.run(NO_SPARK, save_all).replayed == 0
    assert (source.summary().acked, source.summary().lost) == (20, 0)


def test_a_source_that_cannot_open_closes_everything(cluster: Cluster) -> None:
    stopped: list[bool] = []
    clients: list[AckerClient] = []

    class Stopping(Polling):
        def stop(self) -> None:
            stopped.append(True)

    def connect(spark: Any) -> AckerClient:
        clients.append(cluster.client())
        return clients[-1]

    def parallelism(spark: Any) -> int:
        raise RuntimeError("no executors")

    cluster.write("a.txt", "one")
    checkpoint = cluster.folder / "c"
    environment = replace(cluster.environment(), connect=connect, watch=Stopping, parallelism=parallelism)
    with pytest.raises(RuntimeError, match="no executors"):
        Files(f"{cluster.folder}/a.txt", name="lines", checkpoint=checkpoint, environment=environment).run(
            NO_SPARK, save_all
        )
    assert (stopped, clients[0].is_closed, cluster.server.shard.stats.sources) == ([True], True, 0)
    assert cluster.source(checkpoint=checkpoint).run(NO_SPARK, save_all).acked == 1


def test_a_job_that_fails_for_a_lost_server_costs_its_records_no_retry(cluster: Cluster) -> None:
    cluster.write("a.txt", "one", "two")
    log = Log()
    source = cluster.source(retry=Retry(max_retries=0), listener=log)

    def process(batch: Batch) -> None:
        if not batch.replays:
            cluster.server.start(with_state=False)
            raise RuntimeError("UNKNOWN_BATCH in a task")
        save_all(batch)

    summary = source.run(NO_SPARK, process)
    assert (summary.acked, summary.lost, summary.dead_lettered) == (2, 2, 0)


def test_a_server_that_does_not_come_back_in_time_costs_a_replay_by_the_sources_own_deadline(cluster: Cluster) -> None:
    cluster.write("a.txt", "one", "two")

    def process(batch: Batch) -> None:
        if batch.replays:
            save_all(batch)
            return
        frame_of(batch).rows()
        cluster.server.stop()

    class Waking(Log):
        def on_fail(self, failed: Any, why: Any) -> None:
            super().on_fail(failed, why)
            cluster.server.start()

    log = Waking()
    source = cluster.source(retry=QUICK, deadline_s=60.0, lease_s=1000.0, listener=log)
    summary = source.run(NO_SPARK, process)
    assert (summary.acked, summary.lost) == (2, 2)
    assert {reason for _, reason in log.failed} == {"the servers did not settle the batch"}


def test_no_server_at_all_ends_the_run_with_a_clear_error(cluster: Cluster) -> None:
    cluster.write("a.txt", *(str(k) for k in range(20)))

    class Stopping(Listener):
        def on_ack(self, acked: Any) -> None:
            cluster.server.stop()

    source = cluster.source(batch_records=10, deadline_s=30.0, checkpoint=cluster.folder / "c", listener=Stopping())
    with pytest.raises(SourceError, match="no batch could be opened for 30 s"):
        source.run(NO_SPARK, save_all)
    cluster.server.start()
    assert cluster.source(checkpoint=cluster.folder / "c").run(NO_SPARK, save_all).acked == 10


def test_a_batch_larger_than_the_server_ends_with_the_option_to_lower(cluster: Cluster) -> None:
    from acker_testing import new_shard

    cluster.server.shard = new_shard(max_pending=5)
    cluster.write("a.txt", *(str(k) for k in range(20)))
    with pytest.raises(SourceError, match="lower batch_records"):
        cluster.source(deadline_s=20.0).run(NO_SPARK, save_all)
    assert cluster.source(batch_records=5).run(NO_SPARK, save_all).acked == 20


def test_reading_waits_when_too_much_is_not_done(cluster: Cluster) -> None:
    cluster.write("a.txt", *(str(k) for k in range(100)))
    log = Log()
    retry = Retry(max_retries=1, initial_s=100, cap_s=100)
    source = cluster.source(batch_records=10, max_uncommitted=20, listener=log, retry=retry)

    def process(batch: Batch) -> None:
        failing(lambda row: not batch.replays)(batch)

    source.run(NO_SPARK, process)
    first_replay = next(k for k, (_, records) in enumerate(log.emitted) if k and records[0] == 0)
    assert first_replay == 2
    assert sorted(log.acked) == list(range(100))


def test_waiting_for_the_server_is_logged_at_the_start_and_before_a_batch(
    cluster: Cluster, caplog: pytest.LogCaptureFixture
) -> None:
    cluster.write("a.txt", *(str(k) for k in range(20)))
    cluster.budget_s = 60.0
    cluster.stop_for(20.0)
    batches = cluster.source(batch_records=10, lease_s=1000.0).batches(NO_SPARK)
    save_all(next(batches))
    assert [line[:21] for line in _warnings(caplog)] == ["waiting for the acker", "the acker at in-memor"]
    caplog.clear()
    cluster.time.sleep(60.0)
    batch = next(batches)
    save_all(batch)
    cluster.stop_for(20.0)
    assert next(batches, None) is None
    assert [line[:21] for line in _warnings(caplog)] == ["waiting for the acker", "the acker at in-memor"]


def _warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.levelname == "WARNING"]


def test_a_source_runs_once_at_a_time_and_may_run_again(cluster: Cluster) -> None:
    cluster.write("a.txt", "one")
    source = cluster.source()
    batches = source.batches(NO_SPARK)
    save_all(next(batches))
    with pytest.raises(SourceError, match="is running already"):
        next(source.batches(NO_SPARK))
    batches.close()
    assert source.run(NO_SPARK, save_all).acked == 1


class Asking(LogSource):
    """Calls ``ask`` while a run opens."""

    ask: Callable[[], object]

    def input(self) -> Any:
        self.ask()
        return super().input()


def test_a_stop_that_comes_while_a_run_opens_ends_it_before_its_first_batch(cluster: Cluster) -> None:
    asked = Asking(log_of(a=20), environment=cluster.environment())
    asked.ask = asked.stop
    assert asked.run(NO_SPARK, save_all).batches == 0
    asked.ask = lambda: None
    assert asked.run(NO_SPARK, save_all).acked == 20


def test_a_source_that_opens_a_run_refuses_another_one(cluster: Cluster) -> None:
    asked = Asking(log_of(a=20), environment=cluster.environment())

    def begin_another() -> None:
        with pytest.raises(SourceError, match="is running already"):
            next(asked.batches(NO_SPARK))

    asked.ask = begin_another
    assert asked.run(NO_SPARK, save_all).acked == 20


def test_a_source_whose_run_cannot_open_may_run_again(cluster: Cluster) -> None:
    asked = Asking(log_of(a=20), environment=cluster.environment())
    asked.ask = lambda: 1 / 0
    with pytest.raises(ZeroDivisionError):
        asked.run(NO_SPARK, save_all)
    asked.ask = lambda: None
    assert asked.run(NO_SPARK, save_all).acked == 20


def test_a_run_that_is_refused_does_not_undo_a_stop(cluster: Cluster) -> None:
    asked = LogSource(log_of(a=20), environment=cluster.environment(), batch_records=5)

    def process(batch: Batch) -> None:
        save_all(batch)
        asked.stop()
        with pytest.raises(SourceError, match="is running already"):
            asked.run(NO_SPARK, process)

    assert asked.run(NO_SPARK, process).batches == 1


@pytest.mark.parametrize("interrupted", [KeyboardInterrupt(), OSError("once")])
def test_a_checkpoint_whose_write_was_interrupted_is_written_at_the_end(
    cluster: Cluster, interrupted: BaseException
) -> None:
    class Store(MemoryCheckpoint):
        def save(self, committed: Mapping[str, Committed]) -> None:
            if "a" in self.saved and failures:
                raise failures.pop()
            super().save(committed)

    checkpoint, failures = Store(), [interrupted]
    asked = LogSource(log_of(a=20), environment=cluster.environment(), batch_records=5, checkpoint=checkpoint)
    with pytest.raises(type(interrupted)):
        asked.run(NO_SPARK, save_all)
    assert checkpoint.saved["a"].done.prefix == 10


def test_a_source_that_cannot_start_releases_its_checkpoint(cluster: Cluster) -> None:
    source = cluster.source(checkpoint=cluster.folder / "c")
    for _ in range(2):
        with pytest.raises(SourceError, match="nothing matches"):
            next(source.batches(NO_SPARK))
    cluster.write("a.txt", "one")
    cluster.server.stop()
    with pytest.raises(Exception, match="stopped"):
        next(source.batches(NO_SPARK))
    cluster.server.start()
    assert source.run(NO_SPARK, save_all).acked == 1


def test_the_files_that_a_source_writes_are_no_input_of_it(cluster: Cluster) -> None:
    cluster.write("a.txt", "one")
    for option in ("dead_letters", "checkpoint"):
        options: dict[str, Any] = {option: cluster.folder / "own.txt"}
        source = cluster.source(**options)
        (cluster.folder / "own.txt").touch()
        with pytest.raises(SourceError, match="is written by this source" if option == "dead_letters" else "own.txt"):
            next(source.batches(NO_SPARK))


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"name": " "}, "name: give the source a name"),
        ({"format": "csv"}, "format='csv'"),
        ({"format": "json"}, "json needs one"),
        ({"schema": "a int"}, "text has its own"),
        ({"retry": 3}, "retry=3: give a Retry"),
        ({"listener": print}, "give a Listener"),
        ({"max_dead_share": 1.5}, "max_dead_share=1.5"),
        ({"batch_records": 0}, "batch_records=0"),
        ({"batch_records": "many"}, "batch_records='many'"),
        ({"max_uncommitted": 10, "batch_records": 20}, "no batch would fit"),
        ({"partitions": 0}, "partitions=0"),
        ({"deadline_s": 0}, "deadline_s=0"),
        ({"lease_s": float("nan")}, "lease_s=nan"),
        ({"checkpoint": "missing/c"}, "its directory does not exist"),
        ({"dead_letters": "missing/deeper/dead"}, "its directory does not exist"),
        ({"checkpoint": "."}, "is a directory"),
        ({"checkpoint": MemoryCheckpoint}, "checkpoint=<class .*: give the path of a file, or a CheckpointStore"),
        ({"dead_letters": MemoryLetters}, "dead_letters=<class .*: give .* or a DeadLetterStore"),
        ({"checkpoint": "dbfs:/mnt/c"}, "is a URL that nothing is written to: write '/dbfs/mnt/c', where"),
        ({"dead_letters": "ftp://host/dead"}, "is a URL that nothing is written to: known are s3://, gs://, abfs://"),
        ({"checkpoint": "gs://bucket/c"}, "gs://bucket/c': a checkpoint needs writes that depend on what they replace"),
        ({"checkpoint": "hdfs://host:8020/c"}, "the acker has them for s3:// alone: give a file on a volume"),
        ({"checkpoint": "s3://bucket"}, "S3Checkpoint.*: give the URL of an object, like s3://bucket/orders.ckpt"),
        ({"checkpoint": "c", "dead_letters": "./c"}, "are the same file"),
        ({"checkpoint": "c", "dead_letters": "c.lock"}, "are the same file"),
    ],
)
def test_an_option_that_makes_no_sense_is_refused_by_name_before_anything_starts(
    options: dict[str, Any], says: str
) -> None:
    with pytest.raises(ValueError, match=says):
        Files("*.txt", **{"name": "lines", **options})


def test_counts_of_numpy_become_counts_of_python_which_json_takes() -> None:
    counts = {"batch_records": np.int64(10), "concurrency": np.int32(2), "max_uncommitted": np.uint8(20)}
    options = Files("*.txt", name="lines", **counts).options  # type: ignore[arg-type]
    assert [type(getattr(options, name)) for name in counts] == [int, int, int]


def test_done_records_are_in_the_checkpoint_before_the_next_batch(cluster: Cluster) -> None:
    cluster.write("a.txt", *(str(k) for k in range(30)))
    lines: list[int] = []
    for batch in cluster.source(checkpoint=cluster.folder / "c", batch_records=10).batches(NO_SPARK):
        if batch.number > 1:
            partitions = json.loads((cluster.folder / "c").read_text())["partitions"]
            lines += [file["done"][0] for file in partitions]
        save_all(batch)
    assert lines == [10, 20]
