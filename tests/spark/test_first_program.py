"""The first program of the documents, and sources with real files, a real Spark and a real server."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import DataFrame, Row, SparkSession

from acker_client.source import Batch, Emissions, Files, Listener, Retry
from acker_client.spark import operator, sink, where
from tests.packaging import programs

QUICK = Retry(max_retries=1, initial_s=0.01, cap_s=0.01)


@pytest.fixture
def save(tmp_path: Path) -> Any:
    """A sink that appends to ``out``."""

    @sink
    def save(rows: DataFrame) -> None:
        rows.write.mode("append").parquet(f"{tmp_path}/out")

    return save


def saved(spark: SparkSession, folder: Path) -> Counter[tuple[Any, ...]]:
    return Counter(tuple(row) for row in spark.read.parquet(f"{folder}/out").collect())


@pytest.mark.matrix
def test_the_first_program_of_the_readme_runs_as_it_stands(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    (tmp_path / "orders").mkdir()
    orders = [[{"sku": f"s{k % 3}", "qty": k} for _ in range(k % 4)] for k in range(40)]
    for name, part in (("a", orders[:25]), ("b", orders[25:])):
        lines = [json.dumps({"items": items}) for items in part]
        (tmp_path / "orders" / f"{name}.jsonl").write_text("\n".join([*lines, ""]))
    with (tmp_path / "orders" / "a.jsonl").open("a") as file:
        file.write("\nnot json\n")
    monkeypatch.chdir(tmp_path)
    # The JVM runs in another directory, and retries must not wait.
    program = programs.programs()["readme_1"].replace('"out/"', f'"{tmp_path}/out/"')
    program = program.replace("Retry(max_retries=3)", "Retry(max_retries=3, initial_s=0.01, cap_s=0.01)")
    exec(compile(program, "first_program.py", "exec"), {"__name__": "__main__"})
    expected = Counter(
        (item["sku"], item["qty"], f"orders/{'a' if k < 25 else 'b'}.jsonl")
        for k, items in enumerate(orders)
        for item in items
    )
    assert saved(spark, tmp_path) == expected
    (letter,) = [json.loads(line) for line in (tmp_path / "dead.jsonl").open()]
    assert (letter["path"], letter["line"], letter["value"]) == ("orders/a.jsonl", 27, "not json")
    assert letter["reason"].startswith("items: JSONDecodeError: ")
    shown = capsys.readouterr().out
    assert re.search(r"records +42  ", shown)
    assert re.search(r"acked +41  ", shown)
    assert "end of the input (2 files)" in shown
    assert all(file["mark"]["complete"] for file in json.loads((tmp_path / "orders.ckpt").read_text())["partitions"])


@operator("number int", keep=["value"])
def numbers(row: Row) -> Any:
    yield (int(row.value),)


@pytest.mark.long
def test_a_row_that_spark_itself_cannot_evaluate_ends_alone_in_the_dead_letters(
    connected: SparkSession, tmp_path: Path, save: Any
) -> None:
    (tmp_path / "in.txt").write_text("1\n0\n3\n")
    source = Files(tmp_path / "in.txt", name="numbers", dead_letters=tmp_path / "dead.jsonl", retry=QUICK, partitions=1)

    def process(batch: Batch) -> None:
        save(batch.df.transform(where("100 / cast(value as int) <> 0.5")).select("value", "_root", "_edge"))

    summary = source.run(connected, process)
    (letter,) = [json.loads(line) for line in (tmp_path / "dead.jsonl").open()]
    assert letter["value"] == "0"
    assert "DIVIDE_BY_ZERO" in letter["reason"]
    assert (summary.acked, summary.dead_lettered, summary.open) == (2, 1, 0)
    assert saved(connected, tmp_path) == Counter([("1",), ("3",)])


@pytest.mark.long
@pytest.mark.matrix
def test_json_lines_become_columns_and_malformed_ones_dead_letters(
    connected: SparkSession, tmp_path: Path, save: Any
) -> None:
    lines = [
        b'{"sku": "a", "qty": 1, "at": "2026-01-02T03:04:05Z"}',
        b'{"sku": "b", "qty": "x"}',
        b"{",
        b'{"qty": 3}',
        b"\xff",
    ]
    (tmp_path / "in.jsonl").write_bytes(b"\n".join(lines))
    source = Files(
        tmp_path / "in.jsonl",
        name="orders",
        format="json",
        schema="sku string, qty int, at timestamp",
        dead_letters=tmp_path / "dead.jsonl",
        retry=QUICK,
    )
    for batch in source.batches(connected):
        save(batch.df)
    rows = connected.read.parquet(f"{tmp_path}/out").selectExpr("sku", "qty", "unix_timestamp(at)").collect()
    assert {tuple(row) for row in rows} == {("a", 1, 1767323045), (None, 3, None)}
    dead = [json.loads(line) for line in (tmp_path / "dead.jsonl").open()]
    assert sorted(letter["line"] for letter in dead) == [2, 3, 5]


@pytest.mark.long
@pytest.mark.matrix
def test_a_server_that_comes_back_without_its_state_costs_a_replay_and_the_loop_goes_on(
    spark: SparkSession,
    start_server: Callable[..., Any],
    conf: Callable[[str, str], None],
    tmp_path: Path,
    save: Any,
) -> None:
    (tmp_path / "in.txt").write_text("".join(f"{k}\n" for k in range(200)))
    first = start_server()
    conf("spark.acker.servers", first.address)
    port = int(first.address.rpartition(":")[2])
    acked: list[int] = []

    class Acked(Listener):
        def on_ack(self, acked_now: Emissions) -> None:
            acked.extend(acked_now.origins().column("line").to_pylist())

    source = Files(tmp_path / "in.txt", name="lines", batch_records=100, listener=Acked(), retry=QUICK)
    for batch in source.batches(spark):
        if batch.number == 2:
            first.stop(grace_s=0.0)
            start_server(port=port)
        save(batch.df.transform(numbers))
    summary = source.summary()
    assert sorted(acked) == list(range(1, 201))
    assert (summary.acked, summary.open, summary.failed) == (200, 0, 0)
    assert summary.lost == summary.replayed >= 100
    assert saved(spark, tmp_path).keys() == {(k, str(k)) for k in range(200)}


@pytest.mark.long
def test_a_job_that_fails_outright_is_replayed_by_run_and_leaves_a_loop(
    connected: SparkSession, tmp_path: Path
) -> None:
    (tmp_path / "in.txt").write_text("one\ntwo\n")
    options: dict[str, Any] = {"name": "lines", "checkpoint": tmp_path / "c", "retry": QUICK}

    @sink
    def fail_once(rows: DataFrame) -> None:
        rows.count()
        if not (tmp_path / "failed").exists():
            (tmp_path / "failed").touch()
            raise OSError("disk full for a moment")
        rows.write.mode("append").parquet(f"{tmp_path}/out")

    def loop() -> None:
        for batch in Files(tmp_path / "in.txt", **options).batches(connected):
            fail_once(batch.df)

    with pytest.raises(OSError, match="disk full"):
        loop()
    (tmp_path / "failed").unlink()
    summary = Files(tmp_path / "in.txt", **options).run(connected, lambda batch: fail_once(batch.df))
    assert (summary.acked, summary.lost, summary.replayed) == (2, 2, 2)
    assert saved(connected, tmp_path).total() == 2
