"""Outputs: after restarts, replays and failed writes, the output has every acked record once, and no batch overwrites
another's."""

from __future__ import annotations

import threading
from collections import Counter
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from pyspark.errors import PythonException
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql.functions import col, udf

from acker_client.source import Batch, Files, Retry
from acker_client.spark import delta_options, operator, sink, write_parquet
from acker_client.spark.commit_evidence import turns
from acker_client.spark.outputs import _Files
from tests.service.caller import eventually
from tests.spark.faults import await_file

QUICK = Retry(max_retries=2, initial_s=0.0, cap_s=0.0)


def lines(folder: Path, **options: Any) -> Files:
    given: dict[str, Any] = {"name": "the lines", "checkpoint": folder / "c", "retry": QUICK, "batch_records": 30}
    return Files(f"{folder}/in.txt", dead_letters=folder / "dead.jsonl", **{**given, **options})


def written(spark: SparkSession, folder: Path) -> Counter[str]:
    return Counter(row.value for row in spark.read.parquet(str(folder / "out")).collect())


@pytest.fixture
def folder(connected: SparkSession, tmp_path: Path) -> Path:
    (tmp_path / "in.txt").write_text("".join(f"{k}\n" for k in range(90)))
    return tmp_path


EACH_ONCE = Counter(str(k) for k in range(90))


@pytest.mark.long
def test_over_a_restart_and_a_replay_every_record_is_there_once(connected: SparkSession, folder: Path) -> None:
    failed = folder / "failed"

    @operator("value string, day int")
    def once(row: Row) -> Any:
        if row.value == "7" and not failed.exists():
            failed.touch()
            raise ValueError("not yet")
        yield row.value, int(row.value) % 3

    @sink
    def save(rows: DataFrame, batch: Batch) -> None:
        write_parquet(rows, folder / "out", batch, partition_by=["day"])

    ids: list[str] = []
    for batch in lines(folder).batches(connected):
        ids.append(batch.id)
        if batch.number == 2:
            break
        save(batch.df.transform(once), batch)
    for batch in lines(folder).batches(connected):
        ids.append(batch.id)
        save(batch.df.transform(once), batch)
    assert written(connected, folder) == EACH_ONCE
    assert len(set(ids)) == len(ids) > 4
    assert all(each.startswith("the_lines-") for each in ids)


def test_the_output_of_an_abandoned_batch_is_gone_before_its_records_are_replayed(
    connected: SparkSession, folder: Path
) -> None:
    seen: list[int] = []

    @sink
    def save(rows: DataFrame, batch: Batch) -> None:
        write_parquet(rows, folder / "out", batch)

    def process(batch: Batch) -> None:
        seen.append(len(list((folder / "out").glob("batch=*"))))
        save(batch.df, batch)
        if batch.number == 2:
            raise OSError("the second table is away")

    assert lines(folder).run(connected, process).acked == 90
    assert seen == [0, 1, 1, 2]
    assert written(connected, folder) == EACH_ONCE


@pytest.mark.long
def test_a_failed_write_may_be_repeated_in_the_same_batch(connected: SparkSession, folder: Path) -> None:
    tries, fails = list[str](), folder / "fails"
    fails.touch()

    def flaky(value: str) -> str:
        if value == "40" and fails.exists():
            raise OSError("no space")
        return value

    @sink
    def save(rows: DataFrame, batch: Batch) -> None:
        tried = rows.withColumn("value", udf(flaky)("value"))
        for _ in range(2):
            tries.append(batch.id)
            try:
                write_parquet(tried, folder / "out", batch)
            except PythonException:
                fails.unlink()
            else:
                return

    assert lines(folder).run(connected, lambda batch: save(batch.df, batch)).batches == 3
    assert Counter(tries).most_common(1)[0][1] == 2
    assert written(connected, folder) == EACH_ONCE


@pytest.mark.long
def test_a_second_write_of_the_same_columns_under_other_names_does_not_overwrite_the_first(
    connected: SparkSession, folder: Path
) -> None:
    @sink
    def save(rows: DataFrame, batch: Batch) -> None:
        for name in ("first", "second"):
            write_parquet(rows.select(col("value").alias(name)), folder / "out", batch)

    with pytest.raises(ValueError, match=r"has written .* before"):
        lines(folder).run(connected, lambda batch: save(batch.df, batch))


@pytest.mark.long
def test_a_second_write_of_a_batch_needs_a_part_name_and_does_not_overwrite_the_first(
    connected: SparkSession, folder: Path
) -> None:
    @sink
    def save(rows: DataFrame, batch: Batch, parts: list[str]) -> None:
        for index, part in enumerate(parts):
            write_parquet(rows.where(f"value % {len(parts)} = {index}"), folder / "out", batch, part=part)

    with pytest.raises(ValueError, match=r"has written .* before: name each of its writes, as part='items'"):
        lines(folder).run(connected, lambda batch: save(batch.df, batch, ["", ""]))
    assert not list((folder / "out").glob("batch=*"))
    assert lines(folder).run(connected, lambda batch: save(batch.df, batch, ["even", "odd"])).acked == 90
    assert written(connected, folder) == EACH_ONCE
    nobody: Any = SimpleNamespace(id="x-1")
    with pytest.raises(ValueError, match=r"part='\.\./x': give letters"):
        write_parquet(connected.range(1), folder / "out", nobody, part="../x")


def test_a_second_write_of_a_batch_needs_a_part_name_also_while_the_first_still_runs(
    connected: SparkSession, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    started, go, wait = folder / "started", folder / "go", turns.TurnWait
    # The first write ends only when the second one waits for it.
    monkeypatch.setattr(turns, "TurnWait", lambda *given: go.touch() or wait(*given))

    def waiting(value: str) -> str:
        started.touch()
        await_file(go)
        return value

    @sink
    def save(rows: DataFrame, batch: Batch) -> None:
        slow = rows.select(udf(waiting)("value").alias("value"))
        first = threading.Thread(target=write_parquet, args=(slow, folder / "out", batch))
        first.start()
        eventually(started.exists)
        try:
            write_parquet(rows, folder / "out", batch)
        finally:
            go.touch()
            first.join()

    with pytest.raises(ValueError, match=r"has written .* before"):
        lines(folder).run(connected, lambda batch: save(batch.df, batch))
    assert not list((folder / "out").glob("batch=*"))


@pytest.mark.long
def test_a_draft_that_could_not_be_renamed_is_no_delivery(
    connected: SparkSession, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    renames = iter([False])
    rename = _Files.rename
    monkeypatch.setattr(_Files, "rename", lambda self, to: next(renames, True) and rename(self, to))

    @sink
    def save(rows: DataFrame, batch: Batch) -> None:
        with suppress(OSError):
            write_parquet(rows, folder / "out", batch)

    summary = lines(folder).run(connected, lambda batch: save(batch.df, batch))
    assert (summary.acked, summary.replayed) == (90, 30)
    assert written(connected, folder) == EACH_ONCE


@pytest.mark.long
def test_a_sink_that_failed_after_its_write_may_be_called_again_in_the_same_batch(
    connected: SparkSession, folder: Path
) -> None:
    failures = iter([OSError("the index is away")])

    @sink
    def save(rows: DataFrame, batch: Batch) -> None:
        write_parquet(rows, folder / "out", batch)
        for failure in failures:
            raise failure

    def process(batch: Batch) -> None:
        try:
            save(batch.df, batch)
        except OSError:
            save(batch.df, batch)

    summary = lines(folder).run(connected, process)
    assert (summary.acked, summary.replayed, summary.batches) == (90, 0, 3)
    assert written(connected, folder) == EACH_ONCE


def test_delta_versions_rise_within_a_run_and_each_run_and_named_write_has_its_own_app_id() -> None:
    def batch(session: int, number: int, lane: int = 0) -> Any:
        return SimpleNamespace(id=f"orders-{session:016x}-{number}", lane=lane)

    runs = [[delta_options(batch(session, number)) for number in range(1, 12)] for session in (1, 2)]
    assert [len({options["txnAppId"] for options in run}) for run in runs] == [1, 1]
    assert runs[0][0]["txnAppId"] != runs[1][0]["txnAppId"]
    for run in runs:
        assert [int(options["txnVersion"]) for options in run] == list(range(1, 12))
    assert delta_options(batch(1, 3), "items") == {"txnAppId": "orders-0000000000000001-items", "txnVersion": "3"}
    at_once = [delta_options(batch(1, 3, lane), write)["txnAppId"] for lane in range(3) for write in ("", "1", "items")]
    assert len(set(at_once)) == 9
