"""Every way in which a sink may treat its rows, on real Spark: what counts as delivered, and what does not.

Each case gets forty records in four partitions, behind an operator. It says whether the batch is done, and if not, why.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pytest
from pyspark.errors import PySparkException
from pyspark.sql import Column, DataFrame, SparkSession, Window
from pyspark.sql import functions as F
from pyspark.sql.classic.dataframe import DataFrame as ClassicFrame
from pyspark.sql.datasource import DataSource, DataSourceWriter, WriterCommitMessage
from pyspark.sql.pandas.functions import pandas_udf
from pyspark.sql.udtf import SkipRestOfInputTableException

from acker_client import Verdict
from acker_client.spark import Refused, branch, explode, group, operator, sink, where
from acker_client.spark import functions as AF
from acker_client.spark.commit_evidence.batch import Once
from acker_client.spark.commit_evidence.following import remade
from acker_client.spark.driver.lineage import new_tag
from acker_client.spark.driver.stores import Stores

TEXTS = [f"a{number} b{number}" for number in range(40)]


@operator("word string", keep=["number"])
def split(row: Any) -> list[str]:
    return list(row.text.split())


@operator("kept string")
def drop(row: Any) -> list[str]:
    return []


class Full(Exception):
    """The disk is full."""


def full(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        if batch.num_rows:
            raise Full
        yield batch


def read(rows: Any) -> None:
    for _ in rows:
        pass


def nothing(rows: Any) -> None:
    """Reads nothing."""


def _counted_and_sent(rows: Any) -> None:
    rows.count()
    rows.foreachPartition(read)


def careless(rows: Any) -> None:
    with suppress(Full):
        read(rows)


def stubborn(rows: Any) -> None:
    careless(rows)
    read(rows)


def _quoted_view(rows: DataFrame) -> None:
    rows.createOrReplaceTempView("`my-rows`")
    suppressing(lambda: rows.sparkSession.sql("insert into no_such_table select word from `my-rows`"))
    noop(rows)


def raising(rows: Any) -> None:
    for _ in rows:
        raise Full


def one_batch(batches: Iterator[Any]) -> Iterator[Any]:
    yield next(batches)


def one_batch_202401151230(batches: Iterator[Any]) -> Iterator[Any]:
    """Has a name that ends like the name of a watched function."""
    yield next(batches)


def unread(batches: Iterator[Any]) -> Iterator[Any]:
    return iter(())


def no_rows(batches: Iterator[Any]) -> Iterator[Any]:
    yield from (batch.slice(0, 0) for batch in batches)


def same_group(rows: Any) -> Any:
    return rows


def every_batch(batches: Iterator[Any]) -> Iterator[Any]:
    yield from batches


def _create(rows: DataFrame) -> None:
    rows.createOrReplaceTempView("v")
    rows.sparkSession.sql("drop table if exists created")
    rows.sparkSession.sql("create table created using parquet as select * from v limit 10")


def _create_again(rows: DataFrame) -> None:
    rows.write.mode("overwrite").saveAsTable("saved")
    noop(rows)
    rows.createOrReplaceTempView("v")
    suppressing(lambda: rows.sparkSession.sql("create table saved using parquet as select * from v"))


def _table_is_there(write: Callable[[DataFrame, str], Any]) -> Callable[[DataFrame, str], None]:
    """Return a sink that writes its rows, and then calls ``write`` although the tables exist that it writes into."""

    def run(rows: DataFrame, place: str) -> None:
        rows.limit(0).write.mode("overwrite").saveAsTable("there")
        _jdbc(rows.limit(0), place)
        rows.write.parquet(f"{place}/main")
        rows.createOrReplaceTempView("v")
        write(rows, place)

    return run


def _create_if_not_there(query: str, given: Callable[[DataFrame], dict[str, Any]], rows: DataFrame, _: str) -> None:
    """Create a table from a query, with the arguments that ``given`` makes of the rows, unless the table is there."""
    rows.sparkSession.sql(f"create table if not exists there using parquet as {query}", **given(rows))


def _jdbc(rows: DataFrame, place: str, mode: str = "append") -> None:
    driver = {"driver": "org.apache.derby.iapi.jdbc.AutoloadedDriver"}
    rows.write.mode(mode).jdbc(f"jdbc:derby:memory:{Path(place).parent.name};create=true", "written", properties=driver)


def _limited_beside_counts(rows: DataFrame) -> DataFrame:
    return rows.limit(10).join(rows.groupBy("number").count(), "number")


def noop(rows: DataFrame) -> None:
    rows.write.format("noop").mode("append").save()


def no_room(rows: DataFrame) -> DataFrame:
    return rows.withColumn("word", F.expr("raise_error('no room')"))


def failing(rows: DataFrame) -> None:
    with suppress(Exception):
        noop(rows.mapInArrow(full, rows.schema))


class Barred:
    """Raises on rows until a file exists, which tasks in all processes see."""

    def __init__(self, place: str) -> None:
        self.path = Path(f"{place}.open")

    def __call__(self, parts: Iterator[Any]) -> Any:
        for part in parts:
            if len(part) and not self.path.exists():
                raise Full
            yield part


def _again(deliver: Callable[[], Any], place: str) -> None:
    """Run a delivery that fails the first time, then run it again."""
    suppressing(deliver)
    _in_the_way(f"{place}.open")
    deliver()


def _barred(rows: DataFrame, place: str) -> DataFrame:
    return rows.mapInArrow(Barred(place), rows.schema)


def _insert_again(rows: DataFrame) -> None:
    """Insert twice. The table is missing the first time."""
    spark, table, view = rows.sparkSession, f"late_{new_tag()}", f"v_{new_tag()}"
    rows.createOrReplaceTempView(view)
    insert = partial(spark.sql, f"insert into {table} select word, number from {view}")
    suppressing(insert)
    spark.sql(f"create table {table} (word string, number long) using parquet")
    insert()
    spark.sql(f"drop table {table}")


def _flaky_sql(rows: DataFrame, place: str) -> None:
    """Run the statement twice. The first time, a file blocks its folder."""
    rows.createOrReplaceTempView("v")
    _in_the_way(place)
    sql = f"insert overwrite directory '{place}/out' using parquet select * from v where number >= 0"
    suppressing(lambda: rows.sparkSession.sql(sql))
    _out_of_the_way(place)
    rows.sparkSession.sql(sql)


def _above_average(rows: DataFrame, place: str) -> None:
    rows.createOrReplaceTempView("v")
    above = "select * from v where number >= (select avg(number) from v)"
    rows.sparkSession.sql(f"insert overwrite directory '{place}' using parquet {above}")


def _by_day(rows: DataFrame, place: str) -> None:
    for day in range(3):
        rows.where(f"number % 3 = {day}").write.parquet(f"{place}/day={day}")


def _by_day_of_rows(rows: DataFrame, place: str) -> None:
    for day in [row.day for row in rows.selectExpr("number % 3 as day").distinct().collect()]:
        rows.where(F.col("number") % 3 == day).coalesce(1).write.partitionBy("number").parquet(f"{place}/day={day}")


def _by_day_and_day_0_fails(rows: DataFrame, place: str) -> None:
    """A loop over days with each write in a try/except; the write of day 0 fails."""
    for day in range(3):
        part = rows.where(f"number % 3 = {day}")
        suppressing(partial((no_room(part) if day == 0 else part).write.parquet, f"{place}/{day}"))


def _by_day_counted(rows: DataFrame, place: str) -> None:
    """A loop over days, each cached and counted before its write; day 0 cannot be counted."""

    def save(day: int) -> None:
        part = (no_room(rows) if day == 0 else rows).where(f"number % 3 = {day}").cache()
        part.count()
        part.write.parquet(f"{place}/{day}")

    for day in range(3):
        suppressing(partial(save, day))


def _by_day_checkpointed(rows: DataFrame, place: str) -> None:
    """As above, but each day is behind a lazy checkpoint, which Spark makes at the count."""

    def save(day: int) -> None:
        part = (no_room(rows) if day == 0 else rows).where(f"number % 3 = {day}").localCheckpoint(eager=False)
        part.count()
        part.write.parquet(f"{place}/{day}")

    for day in range(3):
        suppressing(partial(save, day))


def _failing_look(rows: DataFrame) -> None:
    suppressing(lambda: rows.mapInArrow(full, rows.schema).count())


def _count_and_save(rows: DataFrame, place: str) -> None:
    """Two writes, each after a count. The first count fails, so the first write never runs."""

    def save(name: str) -> None:
        _barred(rows, place).count()
        rows.write.parquet(f"{place}/{name}")

    for name in ("main", "archive"):
        suppressing(partial(save, name))
        _in_the_way(f"{place}.open")


def _united(rows: DataFrame) -> Any:
    even, odd = (rows.where(f"number % 2 = {rest}").rdd.map(str) for rest in (0, 1))
    return rows.sparkSession.sparkContext.union([even.union(odd), odd.filter(bool)])


def _grouped(rows: DataFrame) -> DataFrame:
    return rows.groupBy("number").count()


def _rdd_call_fails(call: Callable[[Any], Any]) -> Callable[[DataFrame, str], None]:
    """Return a sink in which a call of an RDD raises before the write."""

    def body(rows: DataFrame, _: str) -> None:
        suppressing(lambda: call(rows.rdd.map(raising_one)))
        noop(rows)

    return body


def _by_day_into_one(rows: DataFrame, place: str) -> None:
    """A loop over days in which all days go to one place, so only the plans differ. The first write fails."""
    _in_the_way(place)
    for day in range(3):
        suppressing(partial(rows.where(f"number % 3 = {day}").write.mode("append").parquet, place))
        _out_of_the_way(place)


def _by_day_of_a_list(rows: DataFrame, place: str) -> None:
    """As above, but the plans differ only in the rows of a local table."""
    _in_the_way(place)
    for day in range(3):
        days = rows.sparkSession.createDataFrame([(day,)], "day long")
        part = rows.join(days, F.expr("number % 3 = day"))
        suppressing(partial(part.write.mode("append").parquet, place))
        _out_of_the_way(place)


def _by_day_in_sql(rows: DataFrame, place: str) -> None:
    _in_the_way(place)
    rows.createOrReplaceTempView("v")
    for day in range(3):
        sql = f"insert overwrite directory '{place}/out' using parquet select * from v where number % 3 = {day}"
        suppressing(partial(rows.sparkSession.sql, sql))
        _out_of_the_way(place)


def _views_in_sql(rows: DataFrame, place: str) -> None:
    """The same statement each time, over a view that has other rows each time."""
    _in_the_way(place)
    for day in range(3):
        rows.where(f"number % 3 = {day}").createOrReplaceTempView("v")
        sql = f"insert overwrite directory '{place}/out' using parquet select * from v"
        suppressing(partial(rows.sparkSession.sql, sql))
        _out_of_the_way(place)


def _script(body: str) -> Callable[[DataFrame, str], None]:
    """Return a sink that runs a script over the views v and broken, whose rows cannot be computed, and the tables
    script_main and script_archive."""

    def run(rows: DataFrame, _: str) -> None:
        spark = rows.sparkSession
        rows.createOrReplaceTempView("v")
        no_room(rows).createOrReplaceTempView("broken")
        for table in ("script_main", "script_archive"):
            rows.limit(0).write.mode("overwrite").saveAsTable(table)
        spark.sql(f"/* two tables */ begin {body} end")

    return run


# Runs when another statement of a script fails.
_HANDLER = "declare exit handler for sqlexception begin insert into script_archive select * from v; end;"


def _places_in_options(rows: DataFrame, place: str) -> None:
    """The write to the first place fails, and the write to the second succeeds."""
    _in_the_way(f"{place}/main")
    for to in ("main", "archive"):
        writer = rows.write.format("parquet").mode("append")
        suppressing(writer.options(path=f"{place}/{to}").options(compression="none").save)


def _databases(rows: DataFrame, _: str) -> None:
    """Writes to a table name without a database. Only the second database has the table."""
    _in_databases(rows, lambda: rows.write.insertInto("placed"))


def _databases_in_sql(rows: DataFrame, _: str) -> None:
    rows.createOrReplaceTempView("v")
    _in_databases(rows, lambda: rows.sparkSession.sql("insert into placed select * from v"))


def _in_databases(rows: DataFrame, write: Callable[[], object]) -> None:
    spark = rows.sparkSession
    spark.sql("create database if not exists archive")
    rows.limit(0).write.mode("overwrite").saveAsTable("archive.placed")
    for database in ("default", "archive"):
        spark.sql(f"use {database}")
        suppressing(write)
    spark.sql("use default")


def _days_in_sql(rows: DataFrame, place: str) -> None:
    """The same statement each time, joined with a changing view that has none of the sink's rows."""
    _in_the_way(place)
    rows.createOrReplaceTempView("v")
    for day in range(3):
        rows.sparkSession.createDataFrame([(day,)], "day long").createOrReplaceTempView("days")
        sql = f"insert overwrite directory '{place}/out' using parquet select v.* from v join days on number % 3 = day"
        suppressing(partial(rows.sparkSession.sql, sql))
        _out_of_the_way(place)


def _variables_in_sql(rows: DataFrame, place: str) -> None:
    """The same statement each time, with a session variable that changes."""
    _in_the_way(place)
    rows.createOrReplaceTempView("v")
    rows.sparkSession.sql("declare or replace variable wanted int default 0")
    for day in range(3):
        rows.sparkSession.sql(f"set variable wanted = {day}")
        sql = f"insert overwrite directory '{place}/out' using parquet select * from v where number % 3 = wanted"
        suppressing(partial(rows.sparkSession.sql, sql))
        _out_of_the_way(place)


def _in_the_way(place: str) -> None:
    Path(place).parent.mkdir(parents=True, exist_ok=True)
    Path(place).touch()


def _out_of_the_way(place: str) -> None:
    if Path(place).is_file():
        Path(place).unlink()


def _static_partition(rows: DataFrame, _: str) -> None:
    spark = rows.sparkSession
    rows.createOrReplaceTempView("v")
    spark.sql("drop table if exists parted")
    spark.sql("create table parted (word string, day int) using parquet partitioned by (day)")
    spark.sql("insert into parted partition (day = 1) values ('there')")
    rows.count()
    spark.sql("insert overwrite parted partition (day = 1) if not exists select word from v")


def _rdd_union(rows: DataFrame) -> Any:
    return rows.sparkSession.sparkContext.parallelize(["word"]).union(rows.rdd.map(str))


def _context_union(rows: DataFrame, kind: Callable[[list[Any]], Any] = list) -> Any:
    context = rows.sparkSession.sparkContext
    return context.union(kind([context.parallelize(["word"]), rows.rdd.map(str)]))


def _one_a_partition(rdd: Any) -> Any:
    return rdd.mapPartitions(lambda rows: islice(rows, 1))


def _halves(rows: DataFrame, part: Callable[[Any], Any]) -> Any:
    """Return a union of two halves of the rows. ``part`` is applied to the second half, and may stop early."""
    texts = rows.rdd.map(str)
    first, second = texts.filter(lambda text: "'a" in text), texts.filter(lambda text: "'b" in text)
    return rows.sparkSession.sparkContext.union([first, part(second)])


def _frame_of_halves(rows: DataFrame, part: Callable[[DataFrame], Any]) -> DataFrame:
    """Return a frame from a union of the RDDs of two halves. ``part`` makes the second RDD, which may lack rows."""
    rows, spark = rows.select("number", "word"), rows.sparkSession
    first, second = rows.where("word like 'a%'").rdd, part(rows.where("word like 'b%'"))
    return spark.createDataFrame(spark.sparkContext.union([first, second]), rows.schema)


def _piped(rows: DataFrame) -> Any:
    return rows.rdd.map(lambda row: row.word).pipe("head -n 2").map(lambda word: (0, word))


def _part_of_a_view_of_an_rdd(rows: DataFrame) -> DataFrame:
    spark = rows.sparkSession
    spark.createDataFrame(rows.rdd.map(tuple), rows.schema).createOrReplaceTempView("v")
    return spark.createDataFrame(_one_a_partition(spark.table("v").rdd), rows.schema)


def _frame_of_joined(rows: DataFrame) -> DataFrame:
    spark = rows.sparkSession
    joined = rows.join(spark.createDataFrame([(number,) for number in range(40)], "number long"), "number")
    return spark.createDataFrame(joined.rdd.map(tuple), joined.schema)


def _ignored(rows: DataFrame, place: str) -> None:
    rows.sparkSession.range(1).write.parquet(place)
    rows.write.mode("ignore").parquet(place)


def _merge_into_none(rows: DataFrame) -> None:
    suppressing(lambda: rows.mergeInto("nosuchtable", F.expr("true")).whenNotMatched().insertAll().merge())


def _part_of_an_rdd_below_a_head(rows: DataFrame) -> DataFrame:
    spark = rows.sparkSession
    part = spark.createDataFrame(rows.rdd.map(lambda row: (row.word,)), "word string").limit(30)
    return part.union(spark.createDataFrame([("head",)], "word string"))


def _cached_rdd(rows: DataFrame) -> Any:
    rdd = rows.rdd.map(tuple).cache()
    rdd.count()
    return rdd


def _cached(rows: DataFrame) -> DataFrame:
    rows.cache()
    rows.count()
    return rows


class StoppingSource(DataSource):
    """A Python data source whose writer takes five rows."""

    @classmethod
    def name(cls) -> str:
        return "stopping"

    def schema(self) -> str:
        return "number long, word string"

    def writer(self, schema: Any, overwrite: bool) -> DataSourceWriter:
        return StoppingWriter()


class StoppingWriter(DataSourceWriter):
    def write(self, iterator: Iterator[Any]) -> WriterCommitMessage:
        list(islice(iterator, 5))
        return WriterCommitMessage()


def _python_source(rows: DataFrame) -> None:
    rows.sparkSession.dataSource.register(StoppingSource)
    rows.write.format("stopping").mode("append").save()


def _python_table(rows: DataFrame) -> None:
    spark = rows.sparkSession
    spark.dataSource.register(StoppingSource)
    spark.sql("drop table if exists stopping_table")
    spark.sql("create table stopping_table using stopping")
    rows.select("number", "word").write.insertInto("stopping_table")


class Skipping:
    """A UDTF that skips the rest of its table."""

    def eval(self, row: Any) -> Iterator[tuple[str]]:
        yield (row["word"],)
        raise SkipRestOfInputTableException


def _table_function(rows: DataFrame) -> DataFrame:
    rows.createOrReplaceTempView("v")
    skipping: Any = F.udtf(Skipping, returnType="word string")
    rows.sparkSession.udtf.register("skipping", skipping)
    return rows.sparkSession.sql("select * from skipping(table(v))")


def piece_of_a_batch(batches: Iterator[Any]) -> Any:
    return [next(batches).slice(0, 1)]


# PySpark resolves this alias when it reads type hints.
Parts = Iterator[pa.RecordBatch]


def pieces_of_groups(parts: Parts) -> Parts:
    yield next(parts)


def grouped(function: Any) -> Column:
    """Return ``function`` as a pandas aggregate over the column ``number``."""
    aggregate: Any = pandas_udf
    made: Column = aggregate(function, "long")("number")
    return made


def size_of_groups(numbers: pd.Series) -> int:
    return len(numbers)


def size_of_a_part(numbers: Iterator[pd.Series]) -> int:
    return len(next(numbers))


def thread(function: Callable[[], Any]) -> None:
    one = threading.Thread(target=function)
    one.start()
    one.join()


def _sql(rows: DataFrame, place: str) -> None:
    rows.createOrReplaceTempView("v")
    rows.sparkSession.sql(f"insert overwrite directory '{place}' using parquet select * from v")


def _partly_cached(rows: DataFrame) -> None:
    part = rows.mapInArrow(one_batch, rows.schema).cache()
    part.count()
    noop(part)
    part.unpersist()


def _twice(first: Any, second: Any) -> Any:
    return lambda rows, _: (first(rows), second(rows))


def _json_of(rows: DataFrame) -> None:
    """Collect the rows as JSON: from an RDD or a one-column frame, depending on the version of Spark."""
    made: Any = rows.toJSON()
    made.collect()


def _joined_to(rows: DataFrame) -> DataFrame:
    """Join the rows by calling `join` on the other frame."""
    other = rows.sparkSession.range(1000).withColumnRenamed("id", "number")
    return other.join(rows, "number")


def _table_of(rows: DataFrame) -> DataFrame:
    rows.createOrReplaceTempView("v")
    return rows.sparkSession.table("v")


def _other(rows: DataFrame) -> SparkSession:
    return rows.sparkSession.newSession()


def _selected(rows: DataFrame) -> DataFrame:
    rows.createOrReplaceTempView("v")
    return rows.sparkSession.sql("select * from v where number >= 0")


DONE: dict[str, Callable[[DataFrame, str], Any]] = {
    "parquet": lambda rows, place: rows.write.parquet(place),
    "partitioned": lambda rows, place: rows.write.partitionBy("number").parquet(place),
    "csv": lambda rows, place: rows.write.csv(place),
    "noop": lambda rows, _: noop(rows),
    "table": lambda rows, _: rows.write.mode("overwrite").saveAsTable("words"),
    "insert into": (
        lambda rows, _: (rows.limit(0).write.mode("overwrite").saveAsTable("into"), rows.write.insertInto("into"))
    ),
    "writeTo": (
        lambda rows, _: (rows.sparkSession.sql("drop table if exists v2"), rows.writeTo("v2").using("parquet").create())
    ),
    "SQL": _sql,
    "SQL with a subquery over the rows": _above_average,
    "collect": lambda rows, _: rows.collect(),
    "toPandas": lambda rows, _: rows.toPandas(),
    "toArrow": lambda rows, _: rows.toArrow(),
    "an iterator to its end": lambda rows, _: list(rows.toLocalIterator()),
    "an iterator of a selection": lambda rows, _: list(rows.select("word").toLocalIterator(prefetchPartitions=True)),
    "foreach": lambda rows, _: rows.foreach(lambda row: None),
    "foreachPartition": lambda rows, _: rows.foreachPartition(read),
    "foreachPartition of a selection": lambda rows, _: rows.select("word").where("word <> 'a1'").foreachPartition(read),
    "a loop over days": _by_day,
    "a loop over days that were looked up": _by_day_of_rows,
    "append": lambda rows, place: rows.write.mode("append").parquet(place),
    "overwrite": lambda rows, place: rows.write.mode("overwrite").json(place),
    "save in a format": lambda rows, place: rows.write.format("orc").option("path", place).save(),
    "text": lambda rows, place: rows.select("word").write.text(place),
    "in other partitions, sorted": lambda rows, place: (
        rows.repartition(2, "number").sortWithinPartitions("word").write.parquet(place)
    ),
    "in order": lambda rows, place: rows.orderBy("word").write.parquet(place),
    "windows and joins": lambda rows, place: (
        rows.withColumn("n", F.row_number().over(Window.partitionBy("number").orderBy("word")))
        .join(rows.groupBy("number").count(), "number")
        .join(rows.sparkSession.range(50).withColumnRenamed("id", "number"), "number", "left")
        .write.parquet(place)
    ),
    "several writes": lambda rows, place: (
        rows.write.parquet(f"{place}/main"),
        rows.groupBy("number").count().write.parquet(f"{place}/counts"),
    ),
    "a write that is repeated": lambda rows, place: (
        _again(lambda: _barred(rows, place).write.mode("append").parquet(place), place)
    ),
    "a write over JDBC that is repeated": lambda rows, place: (
        _again(lambda: _jdbc(_barred(rows, place), place), place)
    ),
    "a write in SQL that is repeated": _flaky_sql,
    "an insert into a table that is missing at first": lambda rows, _: _insert_again(rows),
    "a script": _script("insert into script_archive select * from v; insert into script_main select * from v;"),
    "a statement over a frame": lambda rows, place: rows.sparkSession.sql(
        f"insert overwrite directory '{place}' using parquet select * from {{rows}}", rows=rows
    ),
    "a query over a view, written": lambda rows, place: (
        rows.createOrReplaceTempView("v"),
        rows.sparkSession.sql("select * from v where number > 3").write.parquet(place),
    ),
    "a table that is dropped where there is none": lambda rows, place: (
        suppressing(lambda: rows.sparkSession.sql("drop table nosuchtable")),
        rows.write.parquet(place),
    ),
    "a collect that is repeated": lambda rows, place: _again(lambda: _barred(rows, place).collect(), place),
    "a collect of computed columns that is repeated": lambda rows, place: _again(
        lambda: (
            _barred(rows, place)
            .where("word <> 't#1001'")
            .select("word", (F.col("number") + 1).alias("more"))
            .collect()
        ),
        place,
    ),
    "a look at an RDD without rows": lambda rows, _: suppressing(rows.where("number < 0").rdd.first),
    "an iterator that is repeated": lambda rows, place: (
        _again(lambda: list(_barred(rows, place).toLocalIterator()), place)
    ),
    "foreachPartition that is repeated": lambda rows, place: (
        _again(lambda: rows.foreachPartition(Barred(place)), place)
    ),
    "an RDD that is saved again": lambda rows, place: (
        _in_the_way(place),
        suppressing(lambda: rows.rdd.map(str).saveAsTextFile(f"{place}/out")),
        _out_of_the_way(place),
        rows.rdd.map(str).saveAsTextFile(f"{place}/out"),
    ),
    "a union with an RDD that Spark knows to be empty": lambda rows, place: (
        rows.rdd.union(rows.where("number > 3 and number < 3").rdd).saveAsTextFile(place)
    ),
    "a union of RDDs that is saved again": lambda rows, place: (
        _in_the_way(place),
        suppressing(lambda: _united(rows).saveAsTextFile(f"{place}/out")),
        _out_of_the_way(place),
        _united(rows).saveAsTextFile(f"{place}/out"),
    ),
    "a function over groups, written": lambda rows, place: (
        rows.groupBy("number").applyInPandas(same_group, rows.schema).write.parquet(place)
    ),
    "foreachPartition of groups": lambda rows, _: rows.groupBy("number").count().foreachPartition(read),
    "RDD collect": lambda rows, _: rows.rdd.collect(),
    "RDD save behind a header": lambda rows, place: _rdd_union(rows).saveAsTextFile(place),
    "RDD save": lambda rows, place: rows.rdd.map(str).saveAsTextFile(place),
    "RDD iterator": lambda rows, _: list(rows.rdd.toLocalIterator()),
    "a frame from an RDD": lambda rows, _: noop(rows.sparkSession.createDataFrame(rows.rdd, rows.schema)),
    "a frame from an RDD of rows joined with a table of a list": lambda rows, _: noop(_frame_of_joined(rows)),
    "a sample by an RDD, then a frame from an RDD": lambda rows, _: (
        rows.limit(5).rdd.collect(),
        rows.limit(3).foreach(lambda row: None),
        noop(rows.sparkSession.createDataFrame(rows.rdd, rows.schema)),
    ),
    "the top of groups with a first name": lambda rows, _: noop(
        rows.groupBy("number").agg(F.first("word"), F.sum("number").alias("sum")).orderBy("sum").limit(3)
    ),
    "a frame from an RDD behind a function": lambda rows, _: noop(
        rows.sparkSession.createDataFrame(rows.mapInArrow(every_batch, rows.schema).rdd, rows.schema)
    ),
    "toDF": lambda rows, _: noop(rows.rdd.toDF()),
    "a checkpoint, written": lambda rows, _: noop(rows.localCheckpoint()),
    "a checkpoint behind a function, written": lambda rows, _: noop(
        rows.mapInArrow(every_batch, rows.schema).localCheckpoint()
    ),
    "a cache, written": lambda rows, _: (rows.cache(), rows.count(), noop(rows)),
    "a filter, written": lambda rows, _: noop(rows.where("number > 30")),
    "rows without duplicates of a number, written": lambda rows, _: noop(rows.dropDuplicates(["number"])),
    "some sums, written": lambda rows, _: noop(rows.groupBy("number").agg(F.sum("number"), F.first("word")).limit(3)),
    "an aggregate, written": lambda rows, _: noop(rows.groupBy("number").count()),
    "session windows, written": lambda rows, _: noop(
        rows.groupBy(F.session_window(F.timestamp_seconds("number"), "5 seconds")).count()
    ),
    "the top of an aggregate, written": lambda rows, _: noop(rows.groupBy("number").count().orderBy("count").limit(3)),
    "mapInArrow, written": lambda rows, _: noop(rows.select("word").mapInArrow(every_batch, "word string")),
    "mapInPandas, written": lambda rows, _: noop(rows.mapInPandas(every_batch, rows.schema)),
    "coalesced": lambda rows, _: noop(rows.coalesce(1)),
    "a thread of its own": lambda rows, _: thread(lambda: noop(rows)),
    "count, then write": lambda rows, _: (rows.count(), noop(rows)),
    "looks around a write": lambda rows, _: (rows.isEmpty(), rows.show(2), noop(rows), rows.take(2), rows.rdd.first()),
    "a failed write of no rows, then a write": lambda rows, _: (failing(rows.where("number < 0")), noop(rows)),
    "an aggregate over groups in Python, written": (
        lambda rows, place: rows.groupBy("number").agg(grouped(size_of_groups)).write.json(place)
    ),
    "a function over a view's frame": (
        lambda rows, place: _table_of(rows).mapInArrow(every_batch, rows.schema).write.parquet(place)
    ),
    "JDBC": _jdbc,
    "a table, then the same one again if it is not there": lambda rows, _: (
        rows.write.mode("overwrite").saveAsTable("kept"),
        rows.write.mode("ignore").saveAsTable("kept"),
    ),
    "statements that read none of the rows, after a write": _table_is_there(
        lambda rows, _: (
            rows.sparkSession.sql("insert into there (word, number) select 'v', 1"),
            rows.sparkSession.sql("insert into there (word, number) select 'v', :n", args={"n": 1}),
            rows.sparkSession.sql("insert into there select * from v where false"),
        )
    ),
    "a part behind a checkpoint, and a cached RDD, both beside a write": lambda rows, place: (
        rows.write.parquet(f"{place}/main"),
        rows.limit(10).localCheckpoint().write.parquet(f"{place}/part"),
        _cached_rdd(rows).toDF().write.parquet(f"{place}/more"),
    ),
    "a broadcast join with a table that is empty": lambda rows, _: noop(_joined_with_nothing_small(rows)),
    "a join with a table that is empty": lambda rows, _: noop(_joined_with_nothing(rows)),
    "a job description of the user's": (
        lambda rows, _: (rows.sparkSession.sparkContext.setJobDescription("mine"), rows.collect())
    ),
}  # fmt: skip


def suppressing(function: Callable[[], Any]) -> None:
    with suppress(Exception):
        function()


def _joined_with_nothing(rows: DataFrame) -> DataFrame:
    other = rows.sparkSession.range(1000).where("id < 0").repartition(3).withColumnRenamed("id", "number")
    return rows.repartition(3, "number").join(other.hint("shuffle_hash"), "number")


def _joined_with_nothing_small(rows: DataFrame) -> DataFrame:
    other = rows.sparkSession.range(1000).where("id < 0").repartition(3).withColumnRenamed("id", "number")
    return rows.join(F.broadcast(other), "number")


def _refused(made: Callable[[DataFrame], DataFrame]) -> Callable[[DataFrame, str], None]:
    """Return a sink with a write of the rows, then one of ``made(rows)`` that Spark refuses before it runs anything."""

    def body(rows: DataFrame, place: str) -> None:
        rows.write.parquet(place)
        suppressing(lambda: made(rows).write.insertInto("nosuchtable"))

    return body


NOT_DONE: dict[str, tuple[Callable[[DataFrame, str], Any], str]] = {
    "a loop over days of which one fails": (_by_day_and_day_0_fails, "failed"),
    "a loop over days into one place, of which one fails": (_by_day_into_one, "failed"),
    "a loop over days of a list, of which one fails": (_by_day_of_a_list, "failed"),
    "a loop over days in SQL, of which one fails": (_by_day_in_sql, "failed"),
    "the main table fails, the archive succeeds": (
        lambda rows, place: (
            suppressing(lambda: no_room(rows).write.parquet(f"{place}/main")),
            rows.write.parquet(f"{place}/archive"),
        ),
        "rows to parquet ",
    ),
    "the same write to another place": (
        lambda rows, place: (
            _in_the_way(place),
            suppressing(lambda: rows.write.parquet(f"{place}/main")),
            rows.write.parquet(f"{place}.archive"),
        ),
        "failed",
    ),
    "the same place with other rows": (
        lambda rows, place: (
            suppressing(lambda: _barred(rows, place).write.mode("append").parquet(place)),
            _in_the_way(f"{place}.open"),
            _barred(rows.where("number > 3"), place).write.mode("append").parquet(place),
        ),
        "failed",
    ),
    "the same place with the same columns under crossed names": (
        lambda rows, place: (
            suppressing(lambda: _barred(rows, place).toDF("a", "b").write.mode("append").parquet(place)),
            _in_the_way(f"{place}.open"),
            _barred(rows, place).toDF("b", "a").write.mode("append").parquet(place),
        ),
        "failed",
    ),
    "another function": (
        lambda rows, _: (suppressing(lambda: rows.foreachPartition(raising)), rows.foreachPartition(read)),
        "failed",
    ),
    "a cache that cannot be counted in a loop over days": (_by_day_counted, "swallowed the exception of a look"),
    "a look that fails after a write": (
        lambda rows, _: (noop(rows), suppressing(lambda: rows.mapInArrow(full, rows.schema).count())),
        "swallowed the exception of a look at its rows (count)",
    ),
    "a table function that leaves nothing for a distinct": (
        lambda rows, _: noop(_table_function(rows).distinct()),
        "EvalPythonUDTF",
    ),
    "a function that reads nothing, before a distinct": (
        lambda rows, _: noop(rows.mapInArrow(unread, rows.schema).distinct()),
        "a function (mapInArrow, mapInPandas) that stops early",
    ),
    "a look that fails and is repeated": (
        lambda rows, place: (_again(lambda: _barred(rows, place).count(), place), noop(rows)),
        "swallowed the exception of a look at its rows (count)",
    ),
    "a count before the main table fails, and not before the archive": (_count_and_save, "look at its rows (count)"),
    "a count, and an RDD of no rows by a limit": (
        lambda rows, place: (rows.count(), rows.limit(0).rdd.map(str).saveAsTextFile(place)),
        "does not show them",
    ),
    "a union of RDDs whose other half is saved next": (
        lambda rows, place: (
            _in_the_way(place),
            suppressing(lambda: _united(rows).saveAsTextFile(f"{place}/out")),
            _out_of_the_way(place),
            _united(rows.where("number > 3")).saveAsTextFile(f"{place}/out"),
        ),
        "failed",
    ),
    "lazy checkpoints of days, of which one cannot be counted": (_by_day_checkpointed, "look at its rows (count)"),
    "an aggregate's RDD that fails, then is saved elsewhere": (
        lambda rows, place: (
            suppressing(lambda: _grouped(_barred(rows, place)).rdd.map(str).saveAsTextFile(f"{place}/main")),
            _in_the_way(f"{place}.open"),
            _grouped(_barred(rows, place)).rdd.map(str).saveAsTextFile(f"{place}/archive"),
        ),
        "failed",
    ),
    "groups of an RDD that fail, then a write": (
        lambda rows, _: (suppressing(lambda: rows.rdd.map(raising_one).groupBy(str).collect()), noop(rows)),
        "failed",
    ),
    **{
        f"{name} of an RDD that fails, then a write": (_rdd_call_fails(call), f"look at its rows ({name})")
        for name, call in {
            "max": lambda rdd: rdd.max(),
            "stats": lambda rdd: rdd.stats(),
            "toDF": lambda rdd: rdd.toDF(),
            "sortBy": lambda rdd: rdd.sortBy(str),
            "zipWithIndex": lambda rdd: rdd.zipWithIndex(),
        }.items()
    },
    "an iterator over groups that fails, then a write": (
        lambda rows, _: (
            suppressing(lambda: list(no_room(rows).groupBy("word").count().toLocalIterator())), noop(rows)
        ),
        "swallowed the exception of a look at its rows (an iterator)",
    ),
    "a look at an RDD that fails, then a write": (
        lambda rows, _: (suppressing(lambda: rows.rdd.map(raising_one).first()), noop(rows)),
        "swallowed the exception of a look at its rows (first)",
    ),
    "a failed write, then a write": (_twice(failing, noop), "failed"),
    "a statement into no table, then an archive": (
        lambda rows, place: (
            rows.createOrReplaceTempView("v"),
            suppressing(lambda: SparkSession.active().sql("insert into nosuchtable select * from v")),
            rows.write.parquet(place),
        ),
        "SQL insert into nosuchtable",
    ),
    "a loop over views in SQL, of which one fails": (_views_in_sql, "failed"),
    "a crosstab of what a function that may stop has made, collected": (
        lambda rows, _: _table_function(rows).crosstab("word", "word").collect(),
        "aggregated them",
    ),
    "groups, collected": (lambda rows, _: rows.groupBy("number").count().collect(), "aggregated them"),
    "a distinct, collected": (lambda rows, _: rows.select("number").distinct().collect(), "aggregated them"),
    "crosstab, collected": (lambda rows, _: rows.crosstab("number", "word").collect(), "aggregated them"),
    "groups, iterated over": (lambda rows, _: list(rows.groupBy("number").count().toLocalIterator()), "it "),
    "groups of an RDD, collected": (lambda rows, _: rows.rdd.groupBy(len).collect(), "ran collect"),
    "groups of an RDD as a frame, collected": (
        lambda rows, _: rows.rdd.map(tuple).reduceByKey(max).toDF().collect(),
        "it ",
    ),
    "groups as an RDD, collected": (lambda rows, _: rows.groupBy("number").count().rdd.collect(), "ran collect"),
    "count, then ignored as it is there": (lambda rows, place: (rows.count(), _ignored(rows, place)), "ran no job"),
    "cache and count, then ignored": (lambda rows, place: _ignored(_cached(rows), place), "ran no job"),
    # Spark plans the part above an exchange after the part below has run, even if it then leaves the write out.
    "in other partitions, then ignored": (
        lambda rows, place: _ignored(rows.repartition(2), place),
        "left its write out",
    ),
    "in other partitions, into a static partition that is there": (
        lambda rows, place: _static_partition(rows.repartition(2), place),
        "left its write out",
    ),
    "a write, then one that is ignored": (
        lambda rows, place: (rows.write.parquet(f"{place}/main"), _ignored(rows, f"{place}/archive")),
        "ran no job",
    ),
    "a write, then a table that is there": (
        _table_is_there(lambda rows, _: rows.write.mode("ignore").saveAsTable("there")),
        "left its write out",
    ),
    "a write, then a table over JDBC that is there": (
        _table_is_there(lambda rows, place: _jdbc(rows, place, "ignore")),
        "left its write out",
    ),
    "a write of an RDD's frame, then a table that is there": (
        _table_is_there(lambda rows, _: rows.rdd.toDF().write.mode("ignore").saveAsTable("there")),
        "left its write out",
    ),
    **{
        f"a write, then {name} that is there": (
            _table_is_there(partial(_create_if_not_there, query, given)),
            "left its write out",
        )
        for name, query, given in [
            ("a table in SQL", "select * from v", lambda rows: {}),
            ("a table in SQL of an RDD's frame", "select * from {rows}", lambda rows: {"rows": rows.rdd.toDF()}),
            ("a table in SQL of a frame", "select * from {rows}", lambda rows: {"rows": rows}),
            ("a table in SQL with a parameter", "select * from v where number >= :n", lambda rows: {"args": {"n": 0}}),
        ]
    },
    "checkpoint, then ignored": (lambda rows, place: _ignored(rows.localCheckpoint(), place), "ran no job"),
    "a partition that is there": (_static_partition, "ran no job"),
    "a Python data source that stops": (lambda rows, _: _python_source(rows), "stopping"),
    "a table of a Python data source that stops": (lambda rows, _: _python_table(rows), "stopping"),
    "a UDTF that skips the rest": (lambda rows, place: _table_function(rows).write.parquet(place), "PythonUDTF"),
    "a pipe": (lambda rows, place: rows.rdd.map(str).pipe("head -n 2").saveAsTextFile(place), "piped them"),
    "a piece of an Arrow batch": (
        lambda rows, place: rows.mapInArrow(piece_of_a_batch, rows.schema).write.parquet(place),
        "need not have read them all",
    ),
    "a function over the parts of groups": (
        lambda rows, place: (
            rows.groupBy("number").applyInArrow(pieces_of_groups, rows.schema).write.parquet(place)
        ),
        "need not have read them all",
    ),
    "a function over a view's frame that reads one batch": (
        lambda rows, place: _table_of(rows).mapInArrow(one_batch, rows.schema).write.parquet(place),
        "need not have read them all",
    ),
    "an aggregate over the parts of groups, written": (
        lambda rows, place: rows.groupBy("number").agg(grouped(size_of_a_part)).write.json(place),
        "ArrowAggregatePython",
    ),
    "nothing": (lambda rows, _: None, "never read them"),
    "a view": (lambda rows, _: rows.createOrReplaceTempView("v"), "never read them"),
    "count": (lambda rows, _: rows.count(), "counted them"),
    "show": (lambda rows, _: rows.show(5), "read 6"),
    "take": (lambda rows, _: rows.take(5), "read 5"),
    "first": (lambda rows, _: rows.first(), "read 1"),
    "isEmpty": (lambda rows, _: rows.isEmpty(), "it "),
    "tail": (lambda rows, _: rows.tail(5), "read their tail"),
    "an aggregate, collected": (lambda rows, _: rows.groupBy().max("number").collect(), "aggregated them"),
    "describe": (lambda rows, _: rows.describe().collect(), "aggregated them"),
    "an iterator that is left": (lambda rows, _: next(rows.toLocalIterator()), "began to iterate over them"),
    "an iterator behind a limit": (lambda rows, _: list(rows.limit(5).toLocalIterator()), "it "),
    "limit, written": (lambda rows, _: noop(rows.limit(10)), "wrote 10"),
    "count, then limit, written": (lambda rows, _: (rows.count(), noop(rows.limit(10))), "counted them and wrote 10"),
    "the first of an order, written": (lambda rows, _: noop(rows.orderBy("number").limit(10)), "wrote 10"),
    "limit of a distinct, written": (lambda rows, _: noop(rows.distinct().limit(10)), "wrote 10"),
    "limit of rows without duplicates of a number, written": (
        lambda rows, _: noop(rows.dropDuplicates(["number"]).limit(10)),
        "wrote 10",
    ),
    "limit of an exceptAll, written": (
        lambda rows, _: noop(rows.exceptAll(rows.where("number < 3")).limit(10)),
        "wrote 10",
    ),
    "limit of an intersectAll, written": (
        lambda rows, _: noop(rows.intersectAll(rows.where("number > 3")).limit(10)),
        "wrote 10",
    ),
    "limit, cached and written": (lambda rows, _: noop(rows.limit(10).cache()), "wrote 10"),
    "limit, checkpointed and written": (lambda rows, _: noop(rows.limit(10).localCheckpoint()), "it "),
    "a checkpoint": (lambda rows, _: rows.localCheckpoint(), "checkpointed them"),
    "a lazy checkpoint": (lambda rows, _: rows.localCheckpoint(eager=False), "checkpointed them"),
    "RDD take": (lambda rows, _: rows.rdd.take(5), "read a part"),
    "RDD count": (lambda rows, _: rows.rdd.count(), "counted them"),
    "RDD iterator that is left": (lambda rows, _: next(rows.rdd.toLocalIterator()), "it "),
    "foreachPartition behind a limit": (lambda rows, _: rows.limit(5).foreachPartition(read), "it "),
    # PySpark runs the calls below that have a type: ignore, although its annotations refuse them.
    "foreachPartition that reads one row": (
        lambda rows, _: rows.foreachPartition(lambda part: next(part, None) and None),  # type: ignore[arg-type]
        "read a part",
    ),
    "foreachPartition that reads nothing": (
        lambda rows, _: rows.select("word").foreachPartition(nothing),
        "read a part",
    ),
    "mapInArrow of one batch": (
        lambda rows, _: noop(rows.mapInArrow(one_batch, rows.schema)),
        "need not have read them all",
    ),
    "mapInPandas of one batch, behind a select": (
        lambda rows, _: noop(rows.select("word").mapInPandas(one_batch, "word string")),
        "need not have read them all",
    ),
    "mapInArrow of one batch, cached": (lambda rows, _: _partly_cached(rows), "need not have read them all"),
    "count, then a part as a table": (
        lambda rows, _: (rows.count(), rows.limit(5).write.mode("overwrite").saveAsTable("part")),
        "wrote 5",
    ),
    "a part, created as a table": (
        lambda rows, _: (
            rows.sparkSession.sql("drop table if exists v3"),
            rows.limit(5).writeTo("v3").using("parquet").create(),
        ),
        "wrote 5",
    ),
    "an RDD in other partitions that are not read": (
        lambda rows, _: rows.rdd.repartition(4).foreachPartition(lambda part: next(part, None) and None),  # type: ignore[call-overload]
        "read a part",
    ),
    "an RDD, coalesced and not read": (lambda rows, _: rows.rdd.coalesce(2).foreachPartition(nothing), "read a part"),
    "an RDD, cached and not read": (
        lambda rows, _: rows.rdd.map(tuple).cache().foreachPartition(nothing),
        "read a part",
    ),
    "an RDD of groups that are not read": (
        lambda rows, _: rows.rdd.groupBy(len).foreachPartition(nothing),
        "read a part",
    ),
    "an iterator over other partitions that is left": (
        lambda rows, _: next(rows.rdd.repartition(4).toLocalIterator()),
        "it ",
    ),
    "an RDD of parts, collected": (lambda rows, _: rows.rdd.mapPartitions(one_batch).collect(), "read a part"),  # type: ignore[arg-type]
    "an RDD that raises at the first row, swallowed": (
        lambda rows, _: rows.rdd.map(raising_one).foreachPartition(careless),
        "read a part",
    ),
    "an RDD that raises at the first row, swallowed and read on": (
        lambda rows, _: rows.rdd.map(raising_one).foreachPartition(stubborn),
        "read a part",
    ),
    "a look at a union that other rows fill": (
        lambda rows, _: rows.sparkSession.range(50, numPartitions=2)
        .selectExpr("cast(id as string) as word")
        .unionByName(rows.select("word"))
        .take(3),
        "it ",
    ),
    "a failed statement over a view with a quoted name": (lambda rows, _: _quoted_view(rows), "failed"),
    "toDF of an RDD that is not read": (lambda rows, _: rows.rdd.toDF().foreachPartition(nothing), "read a part"),
    "a frame from an RDD behind a function that reads a part": (
        lambda rows, _: noop(
            rows.sparkSession.createDataFrame(rows.mapInArrow(one_batch, rows.schema).rdd, rows.schema)
        ),
        "it ",
    ),
    "a look at an RDD behind a function that drops all": (
        lambda rows, _: rows.mapInArrow(no_rows, rows.schema).rdd.isEmpty(),
        "it ",
    ),
    "a part behind a checkpoint": (
        lambda rows, _: (rows.count(), rows.limit(5).localCheckpoint().foreachPartition(read)),
        "counted them",
    ),
    "a checkpoint behind a function that reads a part, written": (
        lambda rows, _: noop(rows.mapInArrow(one_batch, rows.schema).localCheckpoint()),
        "need not have read them all",
    ),
    "an iterator over a part behind a checkpoint": (
        lambda rows, _: list(rows.limit(5).localCheckpoint().toLocalIterator()),
        "it ",
    ),
    "a part in mapInArrow behind a checkpoint": (
        lambda rows, _: rows.mapInArrow(one_batch, rows.schema).localCheckpoint().foreachPartition(read),
        "read a part",
    ),
    "a part beside an aggregate": (
        lambda rows, _: noop(rows.limit(5).crossJoin(rows.agg(F.count("*").alias("n")))),
        "it ",
    ),
    "a part beside an aggregate, saved as an RDD": (
        lambda rows, place: (
            rows.limit(5).crossJoin(rows.agg(F.count("*").alias("n"))).rdd.map(str).saveAsTextFile(place)
        ),
        "read a part",
    ),
    "a part below a head, both from an RDD": (lambda rows, _: noop(_part_of_an_rdd_below_a_head(rows)), "wrote 30"),
    "a limit in one leg of a union": (
        lambda rows, _: noop(rows.where("number < 20").union(rows.where("number >= 20").limit(5))),
        "wrote 5",
    ),
    "a limit behind a checkpoint in one leg of a union": (
        lambda rows, _: noop(rows.where("number < 20").union(rows.where("number >= 20").limit(5).localCheckpoint())),
        "wrote a part",
    ),
    "a look at a checkpoint behind an offset that leaves nothing": (
        lambda rows, _: rows.offset(1000).localCheckpoint().count(),
        "checkpointed them",
    ),
    "a look at a checkpoint behind a function that reads nothing": (
        lambda rows, _: rows.mapInArrow(unread, rows.schema).localCheckpoint().count(),
        "counted them",
    ),
    "mapInArrow of one batch, by a function whose name ends like a watched one": (
        lambda rows, _: noop(rows.mapInArrow(one_batch_202401151230, rows.schema)),
        "need not have read them all",
    ),
    "an RDD of parts, as a frame behind a checkpoint": (
        lambda rows, _: noop(
            rows.rdd.mapPartitions(one_batch).map(tuple).toDF(["number", "word"]).localCheckpoint()  # type: ignore[arg-type]
        ),
        "it ",
    ),
    "a collect of other rows after one that failed": (
        lambda rows, place: (
            suppressing(lambda: _barred(rows, place).where("word <> 't#1001'").collect()),
            _in_the_way(f"{place}.open"),
            _barred(rows, place).where("word <> 't#1002'").collect(),
        ),
        "failed",
    ),
    "limit, created as a table in SQL": (lambda rows, _: (rows.count(), _create(rows)), "wrote 10"),
    "limit, written over JDBC": (lambda rows, place: (rows.count(), _jdbc(rows.limit(10), place)), "wrote 10"),
    "limit beside counts behind the same exchange": (
        lambda rows, _: noop(_limited_beside_counts(rows.repartition(3, "number"))),
        "wrote 10",
    ),
    "a write, then a table in SQL that is there already": (lambda rows, _: _create_again(rows), "failed"),
    "a cached view of them into no table, then an archive": (
        lambda rows, place: (
            rows.createOrReplaceTempView("v"),
            rows.sparkSession.sql("cache table cached_words as select * from v"),
            suppressing(lambda: SparkSession.active().sql("insert into nosuchtable select * from cached_words")),
            rows.write.parquet(place),
            rows.sparkSession.catalog.uncacheTable("cached_words"),
            rows.sparkSession.catalog.dropTempView("cached_words"),
        ),
        "SQL insert into nosuchtable",
    ),
    "another session's statement over a global view into no table, then an archive": (
        lambda rows, place: (
            rows.createOrReplaceGlobalTempView("of_all"),
            suppressing(lambda: _other(rows).sql("insert into nosuchtable select * from global_temp.of_all")),
            rows.write.parquet(place),
        ),
        "SQL insert into nosuchtable",
    ),
    "another session's frame of an RDD into no table, then an archive": (
        lambda rows, place: (
            suppressing(lambda: _other(rows).createDataFrame(rows.rdd, rows.schema).write.insertInto("nosuchtable")),
            rows.write.parquet(place),
        ),
        "insertInto nosuchtable",
    ),
    "a merge into no table, then an archive": (
        lambda rows, place: (
            _merge_into_none(rows),
            rows.write.parquet(place),
        ),
        "failed",
    ),
    "a failed save of a union of RDDs, then an archive": (
        lambda rows, place: (
            suppressing(lambda: _rdd_union(rows).saveAsTextFile("nosuchscheme://there")),
            rows.write.parquet(place),
        ),
        "failed",
    ),
    "a failed save of the context's union, then an archive": (
        lambda rows, place: (
            suppressing(lambda: _context_union(rows).saveAsTextFile("nosuchscheme://there")),
            rows.write.parquet(place),
        ),
        "failed",
    ),
    "a failed save of a union in a tuple, then an archive": (
        lambda rows, place: (
            suppressing(lambda: _context_union(rows, tuple).saveAsTextFile("nosuchscheme://there")),
            rows.write.parquet(place),
        ),
        "failed",
    ),
    "a union of which one RDD stops early": (
        lambda rows, place: _halves(rows, _one_a_partition).saveAsTextFile(place),
        "read a part",
    ),
    "a union of which one RDD is piped": (
        lambda rows, place: _halves(rows, lambda rdd: rdd.pipe("head -n 1")).saveAsTextFile(place),
        "piped them",
    ),
    "a union by an RDD of theirs with one that stops early": (
        lambda rows, place: rows.rdd.union(rows.rdd.mapPartitions(one_batch)).saveAsTextFile(place),  # type: ignore[arg-type]
        "read a part",
    ),
    "a frame from a union of RDDs of which one is limited": (
        lambda rows, _: noop(_frame_of_halves(rows, lambda half: half.limit(10).rdd)),
        "read a part (",
    ),
    "a frame from a union of RDDs of which one is piped": (
        lambda rows, _: noop(_frame_of_halves(rows, _piped)),
        "piped them",
    ),
    "a frame from an RDD that is read in part, over a view of another frame from an RDD": (
        lambda rows, _: noop(_part_of_a_view_of_an_rdd(rows)),
        "Scan ExistingRDD",
    ),
    "a frame from an RDD that is piped": (lambda rows, _: noop(_piped(rows).toDF(["number", "word"])), "piped them"),
    "a view of a frame from a union of RDDs of which one is limited, written in SQL": (
        lambda rows, place: _sql(_frame_of_halves(rows, lambda half: half.limit(10).rdd), place),
        "read a part (",
    ),
    "a merge into a name that cannot be, then an archive": (
        lambda rows, place: (
            suppressing(lambda: rows.mergeInto("no..such", F.expr("true"))),
            rows.write.parquet(place),
        ),
        "failed",
    ),
    "a write to a name that cannot be, then an archive": (
        lambda rows, place: (suppressing(lambda: rows.writeTo("no..such").append()), rows.write.parquet(place)),
        "failed",
    ),
    "a view of them in the cache": (
        lambda rows, _: (
            rows.createOrReplaceTempView("v"),
            rows.sparkSession.sql("cache table cached_words as select * from v"),
            rows.sparkSession.catalog.uncacheTable("cached_words"),
            # A micro-batch has the views of the session that started its query.
            rows.sparkSession.catalog.dropTempView("cached_words"),
        ),
        "it ",
    ),
    "a failed write": (lambda rows, _: failing(rows), "failed"),
    "a failed write, then count": (lambda rows, _: (failing(rows), rows.count()), "failed"),
    "a count, then a failed write": (lambda rows, _: (rows.count(), failing(rows)), "failed"),
    "a write, then a failed write": (_twice(noop, failing), "failed"),
    "a failed foreachPartition": (lambda rows, _: suppressing(lambda: rows.foreachPartition(raising)), "failed"),
    "a failed foreachPartition behind a select": (
        lambda rows, _: suppressing(lambda: rows.select("word").foreachPartition(raising)),
        "failed",
    ),
    "a write, then a failed foreachPartition": (
        lambda rows, _: (noop(rows), suppressing(lambda: rows.foreachPartition(raising))),
        "failed",
    ),
    "a write, then a failed foreach in a thread": (
        lambda rows, _: (noop(rows), thread(lambda: suppressing(lambda: rows.foreach(raising_one)))),
        "failed",
    ),
    "a failed foreach": (lambda rows, _: suppressing(lambda: rows.foreach(raising_one)), "failed"),
    "a failed job behind a checkpoint": (lambda rows, _: failing(rows.localCheckpoint()), "failed"),
    "a write, then a failed checkpoint": (
        lambda rows, _: (
            noop(rows),
            suppressing(lambda: no_room(rows).localCheckpoint()),
        ),
        "failed",
    ),
    "a write, then a failed one behind a checkpoint": (
        lambda rows, _: (noop(rows), failing(rows.localCheckpoint())),
        "failed",
    ),
    "a failed look at a part behind a checkpoint, then a write": (
        lambda rows, _: (_failing_look(rows.limit(10).localCheckpoint()), noop(rows)),
        "swallowed the exception of a look",
    ),
    "a failed look at a frame from an RDD of a part, then a write": (
        lambda rows, _: (
            _failing_look(rows.sparkSession.createDataFrame(rows.limit(10).rdd, rows.schema)),
            noop(rows),
        ),
        "swallowed the exception of a look",
    ),
    "a failed write of a frame from an RDD": (
        lambda rows, _: (noop(rows), failing(rows.sparkSession.createDataFrame(rows.rdd, rows.schema))),
        "failed",
    ),
    "a write, then one that is refused": (
        lambda rows, place: (rows.write.parquet(place), suppressing(lambda: rows.write.parquet(place))),
        "failed",
    ),
    "a write, then one into no table": (
        lambda rows, _: (noop(rows), suppressing(lambda: rows.write.insertInto("nosuchtable"))),
        "failed",
    ),
    "a write, then a failed one of a frame that was joined with them": (_refused(_joined_to), "failed"),
    "a write, then a failed one of a view's frame": (_refused(_table_of), "failed"),
    "a write, then a failed one of a frame that SQL made": (_refused(_selected), "failed"),
    "a write, then a failed job over a view's frame": (
        lambda rows, _: (noop(rows), suppressing(lambda: _table_of(rows).rdd.foreach(raising_one))),
        "failed",
    ),
    "a write, then a refused statement that is given a view's frame": (
        lambda rows, _: (
            noop(rows),
            suppressing(lambda: rows.sparkSession.sql("insert into nosuchtable select * from {v}", v=_table_of(rows))),
        ),
        "failed",
    ),
    "a write, then a refused one of a frame from an RDD": (
        lambda rows, _: (
            noop(rows),
            suppressing(
                lambda: rows.sparkSession.createDataFrame(rows.rdd, rows.schema).write.insertInto("nosuchtable")
            ),
        ),
        "failed",
    ),
    "a write, then a refused statement over a table that was registered": (
        lambda rows, _: (
            noop(rows),
            rows.registerTempTable("v"),
            suppressing(lambda: rows.sparkSession.sql("insert into nosuchtable select * from v")),
        ),
        "failed",
    ),
    "an aggregate as JSON, collected": (
        lambda rows, _: _json_of(rows.groupBy("number").count()),
        "aggregated them",
    ),
    "limit as JSON, collected": (lambda rows, _: _json_of(rows.limit(10)), "read 10"),
    "a view's frame that is read in part": (
        lambda rows, _: _table_of(rows).rdd.mapPartitions(lambda rows: islice(rows, 1)).foreach(nothing),
        "read a part",
    ),
    "two places in options, of which the first fails": (_places_in_options, "failed"),
    "a table's name in two databases, of which the first fails": (_databases, "failed"),
    "a table's name in two databases in SQL, of which the first fails": (_databases_in_sql, "failed"),
    "a script that handles a failed write with another": (
        _script(f"{_HANDLER} insert into script_main select * from broken;"),
        "to InsertIntoHadoopFsRelationCommand",
    ),
    "a script that handles a refused write with another": (
        _script(f"{_HANDLER} insert into nosuchtable select * from v;"),
        "ran a script with a handler",
    ),
    "a script with a table that is there": (
        _script(
            "insert into script_archive select * from v;"
            " create table if not exists script_main using parquet as select * from v;"
        ),
        "which may have left a write out",
    ),
    "a loop over views of days in SQL, of which one fails": (_days_in_sql, "failed"),
    "a loop over a variable in SQL, of which one fails": (_variables_in_sql, "failed"),
}  # fmt: skip


def raising_one(row: Any) -> None:
    raise Full


# The cases to run on every version of Spark. They contain every name that may differ between versions.
MATRIX = {
    "parquet", "partitioned", "table", "insert into", "writeTo", "SQL", "JDBC", "collect", "toPandas", "toArrow",
    "an iterator to its end", "foreachPartition", "RDD collect", "toDF", "a cache, written", "an aggregate, written",
    "a broadcast join with a table that is empty", "mapInPandas, written",
    "count", "take", "isEmpty", "tail", "an aggregate, collected", "an iterator that is left", "limit, written",
    "the first of an order, written", "limit of a distinct, written", "mapInArrow of one batch",
    "foreachPartition that reads one row", "an RDD in other partitions that are not read", "a checkpoint",
    "limit, created as a table in SQL", "limit, written over JDBC", "a part beside an aggregate",
    "a view of them in the cache", "a failed write", "a failed job behind a checkpoint", "an iterator that is repeated",
    "a table function that leaves nothing for a distinct", "a function that reads nothing, before a distinct",
}  # fmt: skip


def cases(of: Iterable[str]) -> list[Any]:
    return [pytest.param(case, marks=[pytest.mark.matrix] * (case in MATRIX)) for case in of]


@pytest.fixture
def run(live: Any, tmp_path: Path, spark: SparkSession, conf: Any) -> Iterator[Callable[..., Any]]:
    conf("spark.sql.execution.arrow.maxRecordsPerBatch", "4")
    # Spark looks for Python data sources in the active session of its own thread. Earlier tests may have changed that
    # session, and createDataFrame() sets it.
    spark.createDataFrame([], "number long")

    def settle(function: Callable[[DataFrame, str], Any], texts: list[str] = TEXTS) -> tuple[set[Verdict], str]:
        batch = live(texts, slices=4)
        sink(function, name="save")(batch.df.transform(split), str(tmp_path / "out"))
        error = batch.error
        return set(batch.settle().values()), str(error or "")

    yield settle
    spark.sparkContext.setJobDescription(None)  # type: ignore[arg-type]


@pytest.mark.sampled(12)
@pytest.mark.parametrize("case", cases(DONE))
def test_a_sink_that_hands_all_its_rows_on_has_done_its_work(run: Any, case: str) -> None:
    assert run(DONE[case]) == ({Verdict.ACKED}, "")


@pytest.mark.sampled(24)
@pytest.mark.parametrize("case", cases(NOT_DONE))
def test_a_sink_that_does_not_hand_all_its_rows_on_is_named_and_its_batch_is_lost(run: Any, case: str) -> None:
    function, because = NOT_DONE[case]
    verdicts, error = run(function)
    assert verdicts == {Verdict.LOST}
    assert because in error
    assert "save()" in error


def test_a_statement_counts_also_in_a_session_whose_sql_other_code_has_replaced(
    run: Any, spark: SparkSession, monkeypatch: pytest.MonkeyPatch
) -> None:
    own, theirs = vars(SparkSession)["sql"], spark.sql
    texts: list[str] = []

    def replaced(text: str) -> DataFrame:
        texts.append(text)
        return theirs(text)

    monkeypatch.setitem(vars(spark), "sql", replaced)
    verdicts, error = run(lambda rows, _: _quoted_view(rows))
    assert verdicts == {Verdict.LOST}
    assert "failed" in error
    assert len(texts) == 1
    assert (vars(spark)["sql"], vars(SparkSession)["sql"]) == (replaced, own)


NOTHING = {
    "noop": lambda rows, _: noop(rows.where(F.col("number").isin([]))),
    "parquet": lambda rows, place: rows.where(F.lit(False)).write.partitionBy("number").parquet(place),
    "a table": lambda rows, _: rows.where("1 > 2").select("word").write.mode("overwrite").saveAsTable("none"),
    "an aggregate": lambda rows, place: rows.where(F.lit(False)).groupBy("number").count().write.json(place),
    "foreachPartition": lambda rows, _: rows.where(F.lit(False)).foreachPartition(read),
    "an iterator": lambda rows, _: list(rows.where(F.lit(False)).toLocalIterator()),
    "collect": lambda rows, _: rows.where(F.lit(False)).collect(),
    "toPandas": lambda rows, _: rows.where(F.lit(False)).toPandas(),
    "a look and a write": lambda rows, _: (rows.take(1), noop(rows.where(F.lit(False)))),
    "two calls": lambda rows, place: (
        rows.where(F.lit(False)).write.parquet(place),
        rows.where(F.lit(False)).write.mode("append").parquet(place),
    ),
}  # fmt: skip


@pytest.mark.sampled(3)
@pytest.mark.parametrize("case", NOTHING)
def test_a_sink_that_writes_behind_a_condition_that_is_false_for_every_row_has_done_its_work(
    run: Any, case: str
) -> None:
    assert run(NOTHING[case]) == ({Verdict.ACKED}, "")


@pytest.mark.parametrize(
    ("body", "because"),
    [
        (lambda rows, _: noop(rows.limit(0)), "never read them"),
        (lambda rows, _: noop(rows.where(F.lit(False)).limit(3)), "rows.write.format('noop')"),
        (lambda rows, place: _refused(lambda rows: rows.where(F.lit(False)))(rows, place), "save"),
        (
            lambda rows, place: (
                _in_the_way(place),
                suppressing(lambda: rows.where(F.lit(False)).write.parquet(f"{place}/out")),
            ),
            "failed",
        ),
        (lambda rows, _: rows.where(F.lit(False)).distinct().collect(), "never read them"),
        (lambda rows, _: rows.where(F.lit(False)).count(), "batch.done() does not cover rows that nothing has read"),
    ],
)
def test_a_sink_without_a_proof_that_there_is_nothing_to_write_is_not_done(run: Any, body: Any, because: str) -> None:
    verdicts, error = run(body)
    assert verdicts == {Verdict.LOST}
    assert because in error


@pytest.mark.long
def test_a_batch_that_is_vouched_for_is_read_if_there_was_nothing_to_write(live: Any) -> None:
    batch = live(TEXTS)
    sink(lambda rows: noop(rows.where(F.lit(False))), name="save")(batch.df.transform(split))
    batch.frame.evidence.vouch()
    assert set(batch.settle().values()) == {Verdict.ACKED}


@pytest.mark.long
def test_a_sink_without_rows_that_failed_once_has_done_its_work(run: Any) -> None:
    assert run(lambda rows, _: (failing(rows.where("true")), noop(rows)), [""] * 8) == ({Verdict.ACKED}, "")


@pytest.mark.parametrize(
    "look",
    [
        lambda rows: rows.isEmpty(),
        lambda rows: rows.count(),
        lambda rows: rows.take(1),
        lambda rows: rows.rdd.isEmpty(),
        lambda rows: rows.cache().isEmpty(),
    ],
    ids=["isEmpty", "count", "take", "RDD isEmpty", "cached"],
)
@pytest.mark.parametrize("texts", [[""] * 8, [*[""] * 7, "word"]], ids=["none", "one"])
@pytest.mark.sampled(3)
def test_a_sink_that_looks_and_finds_nothing_to_write_has_done_its_work(run: Any, look: Any, texts: list[str]) -> None:
    verdicts, error = run(lambda rows, _: look(rows), texts)
    assert (verdicts == {Verdict.ACKED}) == ("word" not in texts), error


def test_a_sink_that_looks_at_a_cache_of_which_an_earlier_look_has_filled_the_part_with_rows_is_not_done(
    run: Any,
) -> None:
    verdicts, error = run(lambda rows, _: (rows.cache().take(1), rows.count(), noop(rows.limit(1))), ["a b", *[""] * 7])
    assert verdicts == {Verdict.LOST}, error


@sink
def save_by(rows: DataFrame, how: Callable[[DataFrame], Any]) -> None:
    how(rows)


PARTITIONINGS: dict[str, tuple[Callable[[DataFrame], DataFrame], Callable[[DataFrame], DataFrame]]] = {
    "another number": (lambda rows: rows.repartition(3), lambda rows: rows.repartition(2)),
    "none at first": (lambda rows: rows, lambda rows: rows.coalesce(1)),
    "other columns, spread anew": (
        lambda rows: rows.repartition(3),
        lambda rows: rows.repartition(3).select("word", "_root", "_edge"),
    ),
    "another key": (lambda rows: rows.repartition(2, "number"), lambda rows: rows.repartition(2, "word")),
}


@pytest.mark.parametrize("case", PARTITIONINGS)
def test_a_sink_that_takes_the_same_rows_in_other_partitions_is_refused_and_replays_nothing(
    live: Any, case: str
) -> None:
    batch = live(TEXTS, slices=4)
    rows = batch.df.transform(split)
    first, second = (repartitioned(rows) for repartitioned in PARTITIONINGS[case])
    save_by(first, noop)
    with pytest.raises(Refused, match="Repartition inside of the sink, give both calls one repartitioned frame"):
        save_by(second, noop)
    save_by(first, lambda rows: noop(rows.repartition(2)))
    save_by(first.withColumn("more", F.lit(1)), lambda rows: noop(rows))
    assert set(batch.settle().values()) == {Verdict.ACKED}


@pytest.mark.long
def test_a_sink_that_has_raised_or_read_nothing_may_take_the_same_rows_in_other_partitions(live: Any) -> None:
    bodies: list[Callable[[DataFrame], Any]] = [raising_one, lambda rows: None]
    for how in bodies:
        batch = live(TEXTS)
        rows = batch.df.transform(split)
        with suppress(Exception):
            save_by(rows, how)
        save_by(rows.coalesce(1), noop)


@operator("items array<int>")
def none(row: Any) -> list[Any]:
    return []


def test_a_sink_of_an_rdd_without_partitions_has_done_its_work(live: Any) -> None:
    batch = live(TEXTS)
    # AQE replaces the plan below the sink by an empty relation. Its RDD has no partition, so no job and no task runs.
    rows = batch.df.transform(none).repartition(1).transform(explode("items"))
    sink(lambda rows: rows.foreachPartition(read), name="save")(rows)
    assert set(batch.settle().values()) == {Verdict.ACKED}


@operator("number long", on_error="raise")
def breaking(row: Any) -> Any:
    if row.number == 7:
        raise Full
    return (row.number,)


@pytest.mark.matrix
def test_rows_that_spark_need_not_read_and_that_cannot_be_read_break_their_batch_and_not_the_run(live: Any) -> None:
    batch = live(TEXTS)
    sink(lambda rows: noop(_joined_with_nothing_small(rows)), name="save")(batch.df.transform(breaking))
    assert "'save' raised" in str(batch.error)
    assert set(batch.settle().values()) == {Verdict.LOST}


@pytest.mark.matrix
def test_where_spark_has_forgotten_what_it_ran_a_batch_is_not_trusted(live: Any, spark: SparkSession) -> None:
    kept = spark._jsparkSession.sharedState().statusStore().executionsCount()
    batch = live(TEXTS, slices=4)
    record = batch.frame.evidence
    # As if more executions had begun since the batch started than Spark still keeps.
    record._executions._before -= kept + 5
    record._executions._settings = {"spark.sql.ui.retainedExecutions": "1"}
    sink(noop)(batch.df.transform(split))
    assert "forgotten" in str(batch.error)


def test_where_spark_forgets_an_execution_while_it_is_judged_its_batch_is_not_trusted(
    live: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    batch = live(TEXTS, slices=4)
    sink(noop)(batch.df.transform(split))
    executions = Stores.executions
    times = [2]

    def dropped(*given: Any, **most: Any) -> list[Any]:
        """As if the write still ran when the stores are read, and is dropped then."""
        times[0] -= 1
        gone = {"completionTime": None, "executionId": 10**9} if times[0] >= 0 else {}
        return [{**each, **gone} for each in executions(*given, **most)]

    monkeypatch.setattr(Stores, "executions", dropped)
    assert "forgotten" in str(batch.error)
    assert batch.frame.evidence.folders == frozenset()
    # If the stores can be read at the second time, they decide.
    times[0] = 1
    assert batch.error is None


def test_rows_are_found_in_a_plan_whose_text_spark_has_cut_off(run: Any, conf: Any) -> None:
    conf("spark.sql.maxPlanStringLength", "200")
    assert run(lambda rows, _: noop(rows)) == ({Verdict.ACKED}, "")


def test_a_failure_counts_even_if_spark_has_cut_its_rows_off_the_text_of_the_plan(run: Any, conf: Any) -> None:
    conf("spark.sql.maxPlanStringLength", "10000")

    def body(rows: DataFrame, _: str) -> None:
        # Spark describes the long expression before it describes the rows.
        other = rows.sparkSession.range(9).selectExpr("id as number", f"concat('{'long' * 4000}', id) as text")
        suppressing(lambda: other.join(no_room(rows), "number").collect())
        noop(rows)

    verdicts, error = run(body)
    assert verdicts == {Verdict.LOST}
    assert "failed" in error


@pytest.mark.long
def test_the_users_word_stands_for_what_cannot_be_proven(live: Any) -> None:
    batch = live(TEXTS)
    sink(lambda rows: _python_source(rows), name="save")(batch.df.transform(split))
    assert "say so after the sink: batch.done()" in str(batch.error)
    batch.frame.evidence.vouch()
    assert batch.error is None
    assert set(batch.settle().values()) == {Verdict.ACKED}


def test_the_users_word_does_not_cover_a_sink_that_raises_or_what_fails_after_it(live: Any) -> None:
    raising_batch, early = live(TEXTS), live(TEXTS)
    with suppress(Full):
        sink(raising_one, name="save")(raising_batch.df.transform(split))
    raising_batch.frame.evidence.vouch()
    early.frame.evidence.vouch()
    sink(failing, name="save")(early.df.transform(split))
    assert "sink 'save' raised" in str(raising_batch.error)
    assert "failed" in str(early.error)


@pytest.mark.long
def test_the_first_failure_that_a_sink_swallows_is_logged_once_for_each_target_with_its_traceback(
    live: Any, caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    @sink
    def save(rows: DataFrame) -> None:
        for place in ("main", "archive", "main"):
            suppressing(lambda place=place: no_room(rows).write.mode("append").parquet(f"{tmp_path}/{place}"))  # type: ignore[misc]

    once = Once()
    for _ in range(2):
        batch = live(TEXTS, once=once)
        save(batch.df.transform(split))
        assert batch.error is not None
    said = [record.getMessage() for record in caplog.records if "swallowed" in record.getMessage()]
    assert [text.partition(":")[0] for text in said] == [
        f"sink 'save' swallowed the failure of parquet {tmp_path}/{place}" for place in ("main", "archive")
    ]
    assert all("Traceback (most recent call last)" in text and "no room" in text for text in said)


@pytest.mark.long
def test_a_failure_that_left_a_sink_is_made_good_by_another_run_of_the_sink(
    live: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    batch, tries = live(TEXTS), iter(range(2))

    @sink
    def save(rows: DataFrame) -> None:
        attempt = next(tries)
        (no_room(rows) if attempt == 0 else rows).write.parquet(f"{tmp_path}/attempt-{attempt}")

    rows = batch.df.transform(split)
    with pytest.raises(PySparkException):
        save(rows)
    save(rows)
    assert set(batch.settle().values()) == {Verdict.ACKED}
    assert "swallowed" not in caplog.text


def test_a_call_of_a_sink_makes_good_no_failure_of_another_call_with_other_rows(live: Any) -> None:
    batch = live(TEXTS)

    @sink
    def save(rows: DataFrame) -> None:
        if "main" in rows.columns:
            raise Full
        noop(rows)

    rows = batch.df.transform(split)
    with suppress(Full):
        save(rows.withColumn("main", F.lit(1)))
    save(rows.withColumn("archive", F.lit(1)))
    assert "Full" in str(batch.error)
    assert set(batch.settle().values()) == {Verdict.LOST}


def test_a_batch_that_is_settled_while_a_sink_runs_is_abandoned(live: Any) -> None:
    batch = live(TEXTS)

    @sink
    def save(rows: DataFrame) -> None:
        noop(rows)
        assert "has not returned" in str(batch.error)
        assert set(batch.settle().values()) == {Verdict.LOST}

    save(batch.df.transform(split))


def test_a_plain_write_is_told_to_be_a_sink(live: Any) -> None:
    batch = live(TEXTS)
    noop(batch.df)
    assert str(batch.error) == "no sink took this batch's rows; use @sink or functions.ack()"
    assert set(batch.settle().values()) == {Verdict.LOST}


def test_a_copy_of_a_branch_that_no_sink_took_is_named(live: Any) -> None:
    batch = live(TEXTS)
    first, _second = branch(batch.df, 2)
    sink(noop)(first)
    assert "copy 2 of branch" in str(batch.error)
    assert set(batch.settle().values()) == {Verdict.LOST}


@group("number", "words long")
def counted(rows: pa.Table) -> Any:
    return pa.table({"words": pa.array([len(rows)], pa.int64())}), "all"


@pytest.mark.sampled(3)
@pytest.mark.parametrize(
    "meet",
    [
        lambda df: df,
        lambda df: df.transform(split),
        lambda df: df.transform(counted),
        lambda df: df.transform(where("number >= 0")).transform(split),
        lambda df: branch(df, 1)[0].transform(split),
    ],
    ids=["at once", "operator", "group", "where", "branch"],
)
@pytest.mark.parametrize("is_good", [True, False], ids=["good", "swallowed"])
def test_two_sources_that_meet_in_one_frame_are_settled_alike(live: Any, meet: Any, is_good: bool) -> None:
    one, other = live(TEXTS, slices=2), live(TEXTS[:8], slices=1)
    rows = meet(one.df.unionByName(other.df))
    with suppress(Full):
        sink(noop if is_good else raising_one, name="save")(rows)
    verdict = Verdict.ACKED if is_good else Verdict.LOST
    assert (one.error is None, other.error is None) == (is_good, is_good)
    assert (set(one.settle().values()), set(other.settle().values())) == ({verdict}, {verdict})


@pytest.mark.long
def test_what_is_noted_of_a_shared_sink_outlives_the_first_of_its_batches(live: Any, conf: Any) -> None:
    conf("spark.sql.execution.arrow.maxRecordsPerBatch", "4")
    one, other = live(TEXTS, slices=2), live(TEXTS, slices=2)
    sink(lambda rows: noop(rows.mapInArrow(one_batch, rows.schema)), name="save")(one.df.unionByName(other.df))
    assert set(one.settle().values()) == {Verdict.LOST}
    one.frame.evidence.release()
    assert "need not have read them all" in str(other.error)
    assert set(other.settle().values()) == {Verdict.LOST}


@pytest.mark.long
@pytest.mark.matrix
def test_an_ack_column_counts_when_an_action_that_hands_rows_on_succeeds(live: Any) -> None:
    batch = live(TEXTS, slices=4)
    noop(batch.df.transform(split).select("word", AF.ack()))
    assert set(batch.settle().values()) == {Verdict.ACKED}


@pytest.mark.sampled(3)
@pytest.mark.parametrize(
    ("body", "because"),
    [
        (lambda rows: rows.show(5), "read 6"),
        (lambda rows: rows.count(), "it "),
        (lambda rows: noop(rows.limit(5)), "wrote 5"),
        (lambda rows: suppressing(lambda: noop(rows.mapInArrow(full, rows.schema))), "failed"),
        (lambda rows: (noop(rows), suppressing(lambda: noop(rows.mapInArrow(full, rows.schema)))), "failed"),
        (lambda rows: (noop(rows), suppressing(lambda: rows.foreach(raising_one))), "failed"),
        (lambda rows: noop(rows.mapInArrow(one_batch, rows.schema)), "need not have read them all"),
        (
            lambda rows: (
                rows.limit(0).write.mode("overwrite").saveAsTable("acked_there"),
                noop(rows),
                rows.write.mode("ignore").saveAsTable("acked_there"),
            ),
            "left its write out",
        ),
        (
            lambda rows: (
                rows.createOrReplaceTempView("acked"),
                suppressing(lambda: rows.sparkSession.sql("insert into nosuchtable select word from acked")),
                noop(rows),
            ),
            "SQL insert into nosuchtable",
        ),
        (
            lambda rows: (
                suppressing(lambda: rows.sparkSession.sql("insert into nosuchtable select word from {df}", df=rows)),
                noop(rows),
            ),
            "SQL insert into nosuchtable",
        ),
        (
            lambda rows: (suppressing(lambda: _table_of(rows).write.insertInto("nosuchtable")), noop(rows)),
            "insertInto nosuchtable",
        ),
    ],
    ids=[
        "show",
        "count",
        "limit",
        "failed",
        "write, failed",
        "write, failed foreach",
        "one batch",
        "left out",
        "statement over a view",
        "statement over a frame",
        "view's frame",
    ],
)
def test_an_ack_column_does_not_count_without_one(live: Any, conf: Any, body: Any, because: str) -> None:
    conf("spark.sql.execution.arrow.maxRecordsPerBatch", "4")
    batch = live(TEXTS, slices=4)
    body(batch.df.transform(split).select("word", AF.ack()))
    assert because in str(batch.error)
    assert set(batch.settle().values()) == {Verdict.LOST}


def _text_file(rows: DataFrame, place: str) -> None:
    rows.rdd.map(lambda row: row.word).saveAsTextFile(place)


def _frame_of_rdd(rows: DataFrame, _: str) -> None:
    noop(rows.sparkSession.createDataFrame(rows.rdd.map(lambda row: (row.word,)), "word string"))


@pytest.mark.long
@pytest.mark.parametrize(
    "deliver",
    [
        lambda rows, _: rows.foreachPartition(read),
        lambda rows, _: rows.foreach(nothing),
        lambda rows, _: rows.select("word").foreachPartition(read),
        lambda rows, _: rows.rdd.foreachPartition(read),
        lambda rows, _: rows.rdd.collect(),
        lambda rows, _: list(rows.toLocalIterator()),
        lambda rows, _: noop(rows.mapInArrow(every_batch, rows.schema)),
        lambda rows, place: _again(lambda: rows.foreachPartition(Barred(place)), place),
        lambda rows, _: (rows.rdd.count(), rows.foreachPartition(read)),
        lambda rows, _: noop(rows.localCheckpoint()),
        _text_file,
        _frame_of_rdd,
        lambda rows, _: noop(_table_of(rows)),
        lambda rows, _: _table_of(rows).foreachPartition(read),
        lambda rows, place: (
            rows.createOrReplaceTempView("acked"),
            rows.sparkSession.sql(f"insert overwrite directory '{place}' using parquet select word from acked"),
        ),
    ],
)
def test_an_ack_column_counts_when_something_outside_of_sql_hands_all_rows_on(
    live: Any, tmp_path: Path, deliver: Any
) -> None:
    batch = live(TEXTS, slices=4)
    deliver(batch.df.transform(split).select("word", AF.ack()), str(tmp_path / "out"))
    assert batch.error is None
    assert set(batch.settle().values()) == {Verdict.ACKED}


@pytest.mark.sampled(4)
@pytest.mark.parametrize(
    ("body", "because"),
    [
        (lambda rows: rows.rdd.count(), "it counted them"),
        (lambda rows: rows.rdd.take(5), "it read a part"),
        (lambda rows: rows.foreachPartition(nothing), "it read a part"),
        (lambda rows: rows.limit(5).foreachPartition(read), "it read a part"),
        (lambda rows: next(rows.toLocalIterator()), "it began to iterate over them"),
        (lambda rows: suppressing(lambda: rows.foreachPartition(raising)), "failed"),
        (lambda rows: (rows.foreachPartition(read), suppressing(lambda: rows.rdd.foreach(raising_one))), "failed"),
        (lambda rows: noop(rows.mapInArrow(one_batch, rows.schema)), "need not have read them all"),
        (lambda rows: rows.localCheckpoint(), "it checkpointed them"),
        (lambda rows: (noop(rows), suppressing(lambda: no_room(rows).localCheckpoint())), "failed"),
        (lambda rows: (_merge_into_none(rows), noop(rows)), "failed"),
        (lambda rows: (noop(rows), suppressing(lambda: rows.toJSON().foreach(raising_one))), "failed"),
    ],
)
def test_an_ack_column_does_not_count_when_nothing_outside_of_sql_hands_all_rows_on(
    live: Any, conf: Any, body: Any, because: str
) -> None:
    conf("spark.sql.execution.arrow.maxRecordsPerBatch", "4")
    batch = live(TEXTS, slices=4)
    body(batch.df.transform(split).select("word", AF.ack()))
    assert because in str(batch.error)
    assert set(batch.settle().values()) == {Verdict.LOST}


def test_an_ack_column_over_rows_of_two_batches_counts_for_both(live: Any) -> None:
    one, other = live(TEXTS, slices=2), live(TEXTS, slices=2)
    one.df.unionByName(other.df).select("text", AF.ack()).foreachPartition(read)
    assert (one.error, other.error) == (None, None)
    assert set(one.settle().values()) == {Verdict.ACKED}
    assert set(other.settle().values()) == {Verdict.ACKED}


def test_an_ack_column_in_two_frames_counts_only_for_the_one_that_is_written(live: Any) -> None:
    acked, one, other = AF.ack(), live(TEXTS, slices=2), live(TEXTS, slices=2)
    looked, written = (batch.df.select("text", acked) for batch in (one, other))
    looked.count()
    noop(written)
    assert "it " in str(one.error)
    assert other.error is None


@pytest.mark.long
def test_an_ack_column_that_a_part_is_read_of_counts_for_neither_of_two_batches(live: Any) -> None:
    one, other = live(TEXTS, slices=2), live(TEXTS, slices=2)
    one.df.unionByName(other.df).select("text", AF.ack()).foreachPartition(nothing)
    assert set(one.settle().values()) == {Verdict.LOST}
    one.frame.evidence.release()
    assert "read a part" in str(other.error)
    assert set(other.settle().values()) == {Verdict.LOST}


def test_an_ack_column_counts_for_a_leg_of_a_union_that_was_found_empty(live: Any, conf: Any) -> None:
    conf("spark.sql.adaptive.enabled", "true")
    batch = live(TEXTS, slices=2)
    one, other = branch(batch.df, 2)
    none = other.transform(drop).repartition(3).withColumnRenamed("kept", "text")
    noop(
        one.select("text", "_root", "_edge").unionByName(none.select("text", "_root", "_edge")).select("text", AF.ack())
    )
    assert batch.error is None
    assert set(batch.settle().values()) == {Verdict.ACKED}


def test_an_ack_column_beside_a_leg_that_was_found_empty_does_not_count_for_that_leg(live: Any, conf: Any) -> None:
    conf("spark.sql.adaptive.enabled", "true")
    batch = live(TEXTS, slices=2)
    one, other = branch(batch.df, 2)
    none = other.transform(drop).repartition(3).select(F.col("kept").alias("text"))
    noop(one.select("text", AF.ack()).select("text").unionByName(none))
    assert "no sink took the rows of operator 'drop'" in str(batch.error)
    assert set(batch.settle().values()) == {Verdict.LOST}


def test_an_ack_column_whose_rows_the_write_had_no_need_of_counts_all_the_same(live: Any, conf: Any) -> None:
    conf("spark.sql.adaptive.enabled", "true")
    batch = live(TEXTS, slices=2)
    nothing_fits = batch.df.sparkSession.range(9).where("id > 10").withColumnRenamed("id", "number")
    noop(batch.df.select("number", AF.ack(name="a name")).join(nothing_fits, "number"))
    assert batch.error is None
    assert set(batch.settle().values()) == {Verdict.ACKED}


def test_a_failed_write_of_acked_rows_counts_only_for_the_batch_whose_rows_they_are(live: Any) -> None:
    acked, one, other = AF.ack(), live(TEXTS, slices=2), live(TEXTS, slices=2)
    written, refused = (batch.df.select("text", acked) for batch in (one, other))
    noop(written)
    noop(refused)
    suppressing(lambda: _table_of(refused).write.insertInto("nosuchtable"))
    assert one.error is None
    assert "insertInto nosuchtable" in str(other.error)


def test_acked_rows_are_followed_in_other_frames_until_their_batch_is_released(live: Any) -> None:
    own, batch = vars(SparkSession)["sql"], live(TEXTS, slices=2)
    batch.df.select("text", AF.ack()).createOrReplaceTempView("acked")
    assert vars(SparkSession)["sql"] is not own
    batch.frame.evidence.release()
    assert vars(SparkSession)["sql"] is own


@pytest.mark.long
@pytest.mark.parametrize("body", [lambda rdd: rdd.count(), lambda rdd: rdd.foreachPartition(read)])
def test_an_ack_column_in_a_job_that_nobody_follows_does_not_count(live: Any, body: Any) -> None:
    batch = live(TEXTS, slices=4)

    class Own(ClassicFrame):
        """A frame of a library that makes frames of its own."""

    body(remade(Own, batch.df.select("text", AF.ack())).rdd)
    assert "an RDD job" in str(batch.error)
    assert set(batch.settle().values()) == {Verdict.LOST}


def test_a_job_that_nobody_acks_in_is_not_held_against_its_records(live: Any) -> None:
    batch = live(TEXTS, slices=4)
    batch.df.foreachPartition(read)
    assert batch.error is None
    assert "use @sink" in batch.frame.evidence.unfinished_because


@pytest.mark.long
def test_a_failure_in_one_sink_that_it_made_good_is_not_held_against_another(live: Any, tmp_path: Path) -> None:
    batch = live(TEXTS, slices=4)
    one, other = branch(batch.df, 2)
    sink(noop, name="one")(one)

    @sink
    def retries(rows: DataFrame) -> None:
        _again(lambda: rows.foreachPartition(Barred(f"{tmp_path}/out")), f"{tmp_path}/out")

    retries(other)
    assert set(batch.settle().values()) == {Verdict.ACKED}


@pytest.mark.parametrize("takes_rdd", [False, True], ids=["no RDD", "an RDD of its rows"])
def test_a_failure_of_another_query_in_the_driver_is_not_held_against_a_sink(
    live: Any, spark: SparkSession, takes_rdd: bool
) -> None:
    batch, other = live(TEXTS), live(TEXTS)
    numbers = spark.createDataFrame(spark.sparkContext.parallelize([(number,) for number in range(40)]), "number long")
    sink(lambda rows: failing(rows.join(numbers, "number")), name="other")(other.df.transform(split))
    if not takes_rdd:
        failing(numbers)
    sink(lambda rows: (takes_rdd and rows.rdd.count(), noop(rows)), name="save")(batch.df.transform(split))
    assert (batch.error, other.error is None) == (None, False)
    assert set(batch.settle().values()) == {Verdict.ACKED}


def test_an_ack_column_inside_an_expression_is_refused(live: Any) -> None:
    batch = live(TEXTS)
    with pytest.raises(PySparkException, match="UNSUPPORTED_GENERATOR"):
        batch.df.select("text", F.when(F.col("number") > 3, AF.ack()).alias("acked"))


def test_an_ack_column_in_another_thread_finds_the_session(live: Any) -> None:
    batch = live(TEXTS)
    thread(lambda: noop(batch.df.select("text", AF.ack())))
    assert set(batch.settle().values()) == {Verdict.ACKED}
