"""Targets: where a randomly generated sink body writes to, and which records are really there."""

from __future__ import annotations

import csv
import json
import uuid
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.orc
import pyarrow.parquet
from pyspark import RDD
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.datasource import DataSource, DataSourceWriter, WriterCommitMessage

from tests.pipelines.bodies.steps import COLUMNS, view_of

DERBY = {"driver": "org.apache.derby.iapi.jdbc.AutoloadedDriver"}
TABLE = "number long, day int, text string"
# Number of the row that exists before the write, so that `if not exists` has something to skip.
BEFORE = -1


class Target:
    """One target of one sink body. ``path``: a folder that does not exist yet; ``name``: a table that does not exist
    yet."""

    def __init__(self, spark: SparkSession, warehouse: Path, folder: Path, name: str) -> None:
        self.spark = spark
        self.path = folder / name
        self.name = f"{name}_{uuid.uuid4().hex[:8]}"
        self._table = warehouse / self.name
        self._has_jdbc = False

    def prepare(self, what: str, *, is_there: bool) -> None:
        """Create what a write of this kind expects; if ``is_there``, also create data that is in its way."""
        parted = "number long, text string, part int) using parquet partitioned by (part"
        columns = {"insert into": TABLE, "insert in SQL": TABLE}
        columns |= {"partition in SQL": parted, "partition if not exists": parted}
        if what in columns:
            form = (
                columns[what] if "using" in columns[what] else f"{columns[what]}) using parquet tblproperties('a'='b'"
            )
            self.spark.sql(f"create table {self.name} ({form})")
        if what == "partition if not exists":
            self.spark.sql(f"insert into {self.name} partition (part = 7) values ({BEFORE}, 'before')")
        if is_there:
            before = self.spark.sql("select 'before' as text" + (", 0L as number" if what != "text" else "")).where(
                "false"
            )
            before.write.format(what).save(str(self.path))

    def write(self, what: str, mode: str, rows: DataFrame) -> None:
        """Write ``rows`` here, as a user would."""
        WRITE[what](self, rows, mode)

    def numbers(self) -> set[int]:
        """Return the numbers of the records that are in this target."""
        found = {number for place in (self.path, self._table) for number in _in_files(place)}
        if self._has_jdbc:
            rows = self.spark.read.jdbc(self._url, "written", properties=DERBY).select("number").collect()
            found |= {row.number for row in rows}
        return found

    @property
    def _url(self) -> str:
        return f"jdbc:derby:memory:{self.name};create=true"

    def jdbc(self, rows: DataFrame) -> None:
        self._has_jdbc = True
        rows.select("number", "day").write.mode("append").jdbc(self._url, "written", properties=DERBY)

    def drop(self) -> None:
        self.spark.sql(f"drop table if exists {self.name}")


def _in_files(place: Path) -> Iterator[int]:
    """Yield the records in the committed files of a folder."""
    for file in place.rglob("*") if place.is_dir() else ():
        names = file.relative_to(place).parts
        if file.is_file() and not any(name.startswith(("_", ".")) for name in names):
            yield from _in_file(file)


def _in_file(file: Path) -> Iterator[int]:
    if file.suffix == ".parquet":
        yield from pa.parquet.ParquetFile(file).read(["number"]).column("number").to_pylist()
    elif file.suffix == ".orc":
        yield from pa.orc.ORCFile(file).read(["number"]).column("number").to_pylist()
    elif file.suffix == ".json":
        yield from (json.loads(line)["number"] for line in file.read_text().splitlines())
    elif file.suffix == ".csv":
        yield from (int(row[0]) for row in csv.reader(file.read_text().splitlines()))
    else:
        yield from map(int, file.read_text().split())


class LinesSource(DataSource):
    """A Python data source that writes one file per task. Option ``stops``: each task reads only two rows."""

    @classmethod
    def name(cls) -> str:
        return "lines_of_body"

    def schema(self) -> str:
        return TABLE

    def writer(self, schema: Any, overwrite: bool) -> DataSourceWriter:
        return LinesWriter(self.options["folder"], self.options.get("stops") == "true")


class LinesWriter(DataSourceWriter):
    def __init__(self, folder: str, stops: bool) -> None:
        self._save = Save(folder, 2 if stops else None)

    def write(self, iterator: Iterator[Any]) -> WriterCommitMessage:
        self._save(iterator)
        return WriterCommitMessage()


class Save:
    """Function that writes the numbers of rows into a new file. ``most``: reads at most that many rows (None: all)."""

    def __init__(self, folder: str, most: int | None = None) -> None:
        self.folder, self.most = folder, most

    def __call__(self, rows: Iterator[Any]) -> None:
        write_lines(self.folder, (row["number"] for row in islice(rows, self.most)))


def write_lines(folder: str, numbers: Any) -> None:
    lines = "".join(f"{number}\n" for number in numbers)
    Path(folder).mkdir(parents=True, exist_ok=True)
    (Path(folder) / f"{uuid.uuid4().hex}.txt").write_text(lines)


class SaveRow:
    def __init__(self, folder: str) -> None:
        self.folder = folder

    def __call__(self, row: Any) -> None:
        write_lines(self.folder, [row["number"]])


def pandas_numbers(rows: DataFrame) -> list[int]:
    frame: Any = rows.toPandas()
    return list(frame["number"])


def text_of(row: Any) -> str:
    return str(row["number"])


def first_two(rows: Iterable[Any]) -> Iterator[Any]:
    yield from islice(rows, 2)


def _halves(rows: DataFrame) -> tuple[RDD[str], RDD[str]]:
    """Return the numbers of the even and of the odd records, as text."""
    even, odd = (rows.where(f"number % 2 = {rest}").rdd.map(text_of) for rest in (0, 1))
    return even, odd


def _union(target: Target, rows: DataFrame, _: str) -> None:
    even, odd = _halves(rows)
    even.union(odd).saveAsTextFile(str(target.path))


def _union_by_context(target: Target, rows: DataFrame, _: str) -> None:
    context = rows.sparkSession.sparkContext
    context.union([context.parallelize(["-2"], 1), *_halves(rows)]).saveAsTextFile(str(target.path))


def _union_with_pipe(target: Target, rows: DataFrame, _: str) -> None:
    even, odd = _halves(rows)
    even.union(odd.pipe("head -n 1")).saveAsTextFile(str(target.path))


def _union_with_piece(target: Target, rows: DataFrame, _: str) -> None:
    even, odd = _halves(rows)
    rows.sparkSession.sparkContext.union([even.mapPartitions(first_two), odd]).saveAsTextFile(str(target.path))


def _file(kind: str) -> Callable[[Target, DataFrame, str], None]:
    def write(target: Target, rows: DataFrame, mode: str) -> None:
        rows.select("number", "text").write.mode(mode).format(kind).save(str(target.path))

    return write


def _sql(text: str, columns: str = ", ".join(COLUMNS)) -> Callable[[Target, DataFrame, str], None]:
    def write(target: Target, rows: DataFrame, _: str) -> None:
        # A repeated statement must have the same text, so the view's name is fixed.
        query = f"select {columns} from {view_of(rows, target.name)}"
        rows.sparkSession.sql(text.format(table=target.name, path=target.path, query=query))

    return write


def _python_source(target: Target, rows: DataFrame, stops: str) -> None:
    rows.sparkSession.dataSource.register(LinesSource)
    options = {"folder": str(target.path), "stops": stops}
    rows.select(*COLUMNS).write.format("lines_of_body").options(**options).mode("append").save()


WRITE: dict[str, Callable[[Target, DataFrame, str], Any]] = {
    **{kind: _file(kind) for kind in ("parquet", "json", "csv", "orc")},
    "text": lambda target, rows, mode: (
        rows.selectExpr("cast(number as string) as value").write.mode(mode).text(str(target.path))
    ),
    "directory in SQL": _sql("insert overwrite directory '{path}' using parquet {query}"),
    "table": lambda target, rows, _: rows.select(*COLUMNS).write.mode("append").saveAsTable(target.name),
    "insert into": lambda target, rows, _: rows.select(*COLUMNS).write.insertInto(target.name),
    "insert in SQL": _sql("insert into {table} {query}"),
    "ctas": _sql("create table {table} using parquet as {query}"),
    "partition in SQL": _sql("insert overwrite {table} partition (part = 7) {query}", "number, text"),
    "partition if not exists": _sql(
        "insert overwrite {table} partition (part = 7) if not exists {query}", "number, text"
    ),
    "jdbc": lambda target, rows, _: target.jdbc(rows),
    "foreach partition": lambda target, rows, _: rows.foreachPartition(Save(str(target.path))),
    "foreach partition that stops": lambda target, rows, _: rows.foreachPartition(Save(str(target.path), 2)),
    "foreach": lambda target, rows, _: rows.foreach(SaveRow(str(target.path))),
    "collect": lambda target, rows, _: write_lines(str(target.path), [row.number for row in rows.collect()]),
    "iterator": lambda target, rows, _: write_lines(str(target.path), [row.number for row in rows.toLocalIterator()]),
    "pandas": lambda target, rows, _: write_lines(str(target.path), pandas_numbers(rows)),
    "rdd file": lambda target, rows, _: rows.rdd.map(text_of).saveAsTextFile(str(target.path)),
    "union of RDDs": _union,
    "union by the context": _union_by_context,
    "union with a pipe that stops": _union_with_pipe,
    "union with a piece": _union_with_piece,
    "pipe": lambda target, rows, _: rows.rdd.map(text_of).pipe("cat").saveAsTextFile(str(target.path)),
    "pipe that stops": lambda target, rows, _: rows.rdd.map(text_of).pipe("head -n 2").saveAsTextFile(str(target.path)),
    "python source": lambda target, rows, _: _python_source(target, rows, "false"),
    "python source that stops": lambda target, rows, _: _python_source(target, rows, "true"),
}
