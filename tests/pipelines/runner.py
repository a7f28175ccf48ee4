"""The runner: executes a program with Spark and the acker, and keeps a journal of every action.

It checks each ACK against the oracle when the ACK is reported, and counts the answers to each emission. An error is a
*finding*: (kind, text). Kinds:

- "false ACK": an ACK that the oracle does not allow
- "dead": a dead letter whose record did not fail every time
- "no answer": a record that is neither acked nor dead at the end, or has more than one answer
- "raised": an exception that no fault explains
- "refused": an abandoned batch whose sinks all did what they should
- "differs": with tracking off or untracked records, an output that is not what plain code makes

"Needless" replays, in batches in which nothing went wrong, are counted separately and are no findings.
"""

from __future__ import annotations

import contextlib
import csv
import io
import json
import os
import signal
import threading
import traceback
import uuid
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
from pyarrow import orc
from pyspark.sql import DataFrame, Observation, SparkSession, Window
from pyspark.sql import functions as F

from acker_client.source import Batch, Emissions, Failures, Files, Listener, Retry
from acker_client.spark import (
    MovingBoundaries,
    arrow_operator,
    branch,
    cogroup,
    explode,
    group,
    join,
    operator,
    pandas_operator,
    sink,
    where,
)
from acker_client.spark import functions as AF
from tests.pipelines import oracle, work
from tests.pipelines.oracle import Execution, Judge, Tokens
from tests.pipelines.program import FANS, KEYS, Act, End, Program, Step, is_tracked

SCHEMA = "k bigint, t string"
Pairs = Sequence[tuple[int, int]]
TRACKING = ("_root", "_edge", "_anchors")
MATCHES = "array('a', 'b', 'c')"
# More than any program needs. A program that reaches a limit would never end. With tracking off, each record that fails
# is searched for in batches of its own.
BATCHES_MAX, UNTRACKED_BATCHES_MAX = 120, 600
RUNS_MAX = 12


class Endless(BaseException):
    """The program exceeded a limit, so it probably never ends."""


class BodyRaised(Exception):
    """The body raised on purpose, after its sinks."""


@dataclass
class Result:
    program: Program
    findings: list[tuple[str, str]] = field(default_factory=list)
    emissions: int = 0
    batches: int = 0
    quiet_emissions: int = 0
    needless: Counter[str] = field(default_factory=Counter)
    fired: bool = False

    @property
    def kinds(self) -> set[str]:
        return {kind for kind, _ in self.findings}


class Server:
    """Server interface that programs need. ``stop`` stops the server and starts it again on its port.

    ``kill``: the server gets no clean shutdown.
    """

    address: str

    def stop(self, *, kill: bool) -> None:
        raise NotImplementedError


def run(
    program: Program, spark: SparkSession, server: Server, folder: Path, *, dies: bool = False, runs_before: int = 0
) -> Result:
    """Run a program until every record is answered. ``dies``: this process is the driver that gets killed."""
    return _Runner(program, spark, server, folder, dies, runs_before).run()


class _Ear(Listener):
    """Listener of one source, whose records are numbered from ``first``."""

    def __init__(self, runner: _Runner, first: int) -> None:
        self.runner = runner
        self.first = first

    def on_emit(self, batch: int, emitted: Emissions, is_replay: bool) -> None:
        self.runner.hear_emitted(batch, self._pairs(emitted))

    def on_ack(self, acked: Emissions) -> None:
        self.runner.hear_acked(self._pairs(acked))

    def on_fail(self, failed: Emissions, why: Failures) -> None:
        self.runner.hear_failed(self._pairs(failed), why)

    def on_absent(self, absent: Emissions) -> None:
        self.runner.hear_absent(self._pairs(absent))

    def on_dead_letter(self, dead: Emissions, why: Failures) -> None:
        self.runner.hear_dead(self._pairs(dead), why)

    def _pairs(self, seen: Emissions) -> list[tuple[int, int]]:
        """Return (root, record number) for each emission."""
        lines = seen.origins().column("line").to_pylist()
        return list(zip(seen.roots.tolist(), (self.first + line - 1 for line in lines), strict=True))


class _Runner:
    def __init__(
        self, program: Program, spark: SparkSession, server: Server, folder: Path, dies: bool, runs_before: int
    ) -> None:
        self.program, self.spark, self.server, self.folder, self.dies = program, spark, server, folder, dies
        self.result = Result(program)
        self.judge = Judge(program)
        self.notes = folder / "notes"
        self.out = folder / "out"
        self.runs = runs_before
        # Number of the newest batch, from 1 over all runs. ``emitted``: root to (batch, record number).
        self.newest = 0
        self._ordinals: dict[tuple[int, int], int] = {}
        self._ordinals_before = 0
        self.emitted: dict[int, tuple[int, int]] = {}
        self.answered: dict[int, str] = {}
        self.acked: set[int] = set()
        self.dead: set[int] = set()
        self.absent: set[int] = set()
        self.fallen: list[tuple[int, int, str]] = []
        self.troubled: dict[int, str] = {}
        self.views: list[str] = []
        self.tables: dict[str, str] = {}
        self.sinks: dict[str, Any] = {}
        self.sink_runs = 0
        # The batch on which this thread works, and the acts of the sink that is called in it.
        self.local = threading.local()
        self._lock = threading.Lock()
        self.restarting: list[threading.Thread] = []
        self.tag = uuid.uuid4().hex[:8]

    @property
    def ordinal(self) -> int:
        """Number of the batch on which this thread works; of the newest one if it works on none."""
        return int(getattr(self.local, "ordinal", self.newest))

    # -- one program

    def run(self) -> Result:
        for path in (self.notes, self.out):
            path.mkdir(parents=True, exist_ok=True)
        for name, (first, stop) in self.program.sources.items():
            lines = self.folder / f"{name}.txt"
            if not lines.exists():
                lines.write_text("".join(f"{number}\n" for number in range(first, stop)))
        self._recall()
        with self._settings(), warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
            warnings.simplefilter("ignore")
            warnings.simplefilter("ignore", MovingBoundaries)
            try:
                self._run_until_answered()
                self._compare_outputs()
            except Endless as error:
                if not self.result.findings:
                    self._find("no answer", f"{error}")
            finally:
                self._clean()
        self._sum_up()
        return self.result

    def _run_until_answered(self) -> None:
        before = self.runs
        while True:
            self.runs += 1
            reached = self.newest
            if self.runs - before > RUNS_MAX:
                raise Endless(f"{RUNS_MAX} runs did not come to the end")
            try:
                if self._one_run():
                    return
            except (BodyRaised, KeyboardInterrupt):
                continue
            except Exception as error:  # noqa: BLE001  # what is raised is a finding
                if self.program.form == "run" or self.ordinal == reached or not self.troubled.get(self.ordinal):
                    self._find("raised", _gist(error))
                    if sum(kind == "raised" for kind, _ in self.result.findings) > 2:
                        return

    def _one_run(self) -> bool:
        """Run the program once. Return False if it left the loop early."""
        sources = {name: self._source(name) for name in self.program.sources}
        if self.program.form == "run":
            sources["f0"].run(self.spark, self._process_beside_others)
            return True
        loops = {name: source.batches(self.spark) for name, source in sources.items()}
        with contextlib.ExitStack() as stack:
            # Python closes a for loop's generator on leaving the loop. ``loops`` keeps its generators, so close them.
            for loop in loops.values():
                stack.callback(loop.close)
            while batches := {name: batch for name, loop in loops.items() if (batch := next(loop, None)) is not None}:
                if not self._turn(batches):
                    return False
        return True

    def _process_beside_others(self, batch: Batch) -> None:
        """Process a batch of ``run``, in whatever thread that is."""
        self.local.ordinal = self._ordinals[self.runs, batch.number]
        try:
            self._process({"f0": batch})
        finally:
            del self.local.ordinal

    def _source(self, name: str) -> Files:
        program = self.program
        return Files(
            self.folder / f"{name}.txt",
            name=f"pipeline-{program.seed}-{name}",
            checkpoint=self.folder / f"{name}.checkpoint",
            dead_letters=self.folder / f"{name}.dead.jsonl",
            retry=Retry(max_retries=program.max_retries, max_interruptions=10, initial_s=0.0, cap_s=0.0),
            max_dead_share=1.0,
            batch_records=program.batch_records,
            concurrency=program.concurrency,
            partitions=program.partitions,
            listener=_Ear(self, program.sources[name][0]),
            deadline_s=60.0,
            track={"": None, "condition": work.TRACKED, "function": work.tracked}[program.track],
        )

    def _turn(self, batches: dict[str, Any]) -> bool:
        """Process one batch of each source. Return False if the loop is to be left."""
        with contextlib.ExitStack() as stack:
            for batch in batches.values():
                if self.program.form == "with":
                    stack.enter_context(batch)
            self._process(batches)
        if not (self._is_first and self.program.of_kind("break")):
            return True
        for batch in batches.values():
            # Call done() only if the batch really is done. Other tests cover a false done().
            if self.program.form == "done" and self.judge.is_done(self.ordinal):
                batch.done()
            # The end of a with block marks the batch as done.
            if not batch.is_done:
                self._abandon("the loop was left")
        return False

    @property
    def _is_first(self) -> bool:
        """Whether the current batch is one of the program's faulty batches."""
        return self.ordinal <= self.program.faulty_batches

    # -- one batch

    def _process(self, batches: dict[str, Batch]) -> None:
        program = self.program
        self._note_trouble()
        self._die_at("before")
        self._disturb_server("before")
        frames = self._frames({name: batch.df for name, batch in batches.items()})
        for frame, when, how in program.looks:
            if when == "before" and frame in frames:
                self._outer_look(frames[frame], how)
        ends = [end for end in program.ends if end.frame in frames]
        if program.threads:
            ordinal = self.ordinal

            def call(end: End) -> None:
                self.local.ordinal = ordinal
                self._call(end, frames[end.frame])

            with ThreadPoolExecutor(len(ends)) as threads:
                list(threads.map(call, ends))
        else:
            for end in ends:
                self._call(end, frames[end.frame])
        for frame, when, how in program.looks:
            if when == "after" and frame in frames:
                self._outer_look(frames[frame], how)
        for thread in self.restarting:
            thread.join()
        self.restarting.clear()
        self._disturb_server("after")
        self._die_at("after")
        if self._is_first and program.of_kind("body raises", "interrupt"):
            self._abandon("the body raised")
            raise KeyboardInterrupt if program.of_kind("interrupt") else BodyRaised("on purpose")

    def _note_trouble(self) -> None:
        """Note the faults that explain replays of this batch, apart from rows that raised."""
        kinds = ("server killed",) if self._is_first else ()
        for fault in self.program.of_kind(*kinds, "shuffled"):
            self.troubled[self.ordinal] = fault.kind

    def _abandon(self, why: str) -> None:
        self.judge.abandoned[self.ordinal] = why
        self.troubled[self.ordinal] = why
        self._write({"abandoned": why, "batch": self.ordinal})

    def _disturb_server(self, point: str) -> None:
        for fault in self.program.of_kind("server killed", "server restarts"):
            if self._is_first and fault.point == point:
                kill = fault.kind == "server killed"
                if point == "during":
                    self.restarting.append(threading.Thread(target=self.server.stop, kwargs={"kill": kill}))
                    self.restarting[-1].start()
                else:
                    self.server.stop(kill=kill)

    def _die_at(self, point: str) -> None:
        if (
            self.dies
            and self._is_first
            and any(fault.point == point for fault in self.program.of_kind("driver killed"))
        ):
            os.kill(os.getpid(), signal.SIGKILL)

    def _call(self, end: End, frame: DataFrame) -> None:
        """Hand a frame to its sink."""
        acts = end.first if self._is_first else end.then
        if self._is_first and end.via == "nothing":
            self._abandon(f"no sink took {end.frame}")
            return
        self._disturb_server("during")
        try:
            self._call_once(end, frame, acts)
        except Exception as error:
            self.troubled.setdefault(self.ordinal, _gist(error))
            if not self._is_first or end.swallow not in ("body", "again"):
                self._abandon(f"the body raised {_gist(error)}")
                raise
            if end.swallow == "again":
                try:
                    self._call_once(end, frame, end.then)
                except Exception as error:
                    self._abandon(f"the body raised {_gist(error)}")
                    raise
        finally:
            self._die_at("in the sink")

    def _call_once(self, end: End, frame: DataFrame, acts: Sequence[Act]) -> None:
        self.local.end, self.local.acts, self.local.run = end, acts, 0
        if end.via == "ack":
            anchors = () if "_root" in frame.columns else ("_anchors",)
            self._perform(frame.select("k", "t", AF.ack(*anchors, name=f"ack-{end.frame}").alias("acked")))
            return
        self.local.run = self.sink_runs = self.sink_runs + 1
        name = "shared" if self.program.shares_sink else f"sink-{end.frame}"
        taker = self.sinks.setdefault(name, sink(self._perform, name=name))
        taker(frame)

    def _perform(self, rows: DataFrame) -> None:
        end = self.local.end
        swallows = self._is_first and end.swallow == "sink"
        for act in self.local.acts:
            execution = Execution(self.ordinal, end, act.what, act.how, run=self.local.run)
            with self._lock:
                self.judge.executions.append(execution)
                name = f"{self.ordinal}.{len(self.judge.executions)}"
            try:
                execution.read = self._act(end, act, rows, name)
                execution.went_through = True
            except Exception as error:
                execution.went_through = False
                if act.what != "fail" and not act.is_caught:
                    self._explain(error)
                if not (swallows or act.is_caught):
                    raise
            finally:
                self._write_execution(execution, name)

    def _explain(self, error: Exception) -> None:
        """Record an unexpected failure of an action: as a finding, unless a fault explains it."""
        self.troubled.setdefault(self.ordinal, _gist(error))
        # With tracking off, a row that raises fails its task.
        raising = () if self.program.tracking else ("poison", "flaky once")
        # An interrupted run cancels the jobs of all its batches.
        cancelling = ("interrupt",) if self.program.concurrency > 1 else ()
        faults = self.program.of_kind("server killed", "server restarts", "lose shuffle file", *raising, *cancelling)
        if not faults:
            self._find("raised", f"batch {self.ordinal}: {_gist(error)}")
            if sum(kind == "raised" for kind, _ in self.result.findings) > 2:
                raise Endless("it raised again and again") from error

    def _outer_look(self, frame: DataFrame, how: str) -> None:
        {"count": frame.count, "take": lambda: frame.take(3), "isEmpty": frame.isEmpty, "show": frame.show}[how]()

    # -- steps

    def _frames(self, given: dict[str, DataFrame]) -> dict[str, DataFrame]:
        """Return the frames by name, without those that depend only on a source that has ended."""
        frames = {name: self._parsed(name, df) for name, df in given.items()}
        for step in self.program.steps:
            legs = [frames[frame] for frame in step.of if frame in frames]
            if not legs:
                continue
            if step.op == "branch":
                frames.update(zip(step.gives, branch(legs[0], 2, name=f"branch-{step.name}"), strict=True))
            elif step.op == "union":
                frames[step.name] = legs[0].unionByName(legs[1]) if len(legs) > 1 else legs[0]
            elif step.op == "cogroup":
                frames[step.name] = self._cogrouped(step, legs)
            else:
                frames[step.name] = self._stepped(step, legs[0])
        return frames

    def _parsed(self, name: str, df: DataFrame) -> DataFrame:
        if self.program.parse == "select":
            return df.select(F.expr(f"cast(value as bigint) % {KEYS}").alias("k"), F.col("value").alias("t"), *_own(df))
        return df.transform(_user_code(self.program.parse, work.Parse(), f"parse-{name}"))

    def _stepped(self, step: Step, df: DataFrame) -> DataFrame:
        op, salt, name = step.op, step.salt, f"{step.op.replace(' ', '-')}-{step.name}"
        if op in FANS:
            return df.transform(_user_code(op, work.Fan(salt, self._harm(step)), name))
        if op == "keeping":
            kept = operator("j bigint", work.Keeping(salt, self._harm(step)).rows, keep=["t"], name=name)
            return df.transform(kept).withColumnRenamed("j", "k").select("k", "t", *_own(df))
        if op == "group":
            return df.transform(group("k", SCHEMA, name=name)(work.Grouped(salt, self._harm(step)).table))
        if op == "where":
            # Spark computes the remainder; the list is looked up in the chain of the step before.
            keys = ", ".join(str(k) for k in range(KEYS + 3) if k % 3 != salt % 3)
            return df.transform(where(f"k IN ({keys})" if salt // 3 % 2 else f"k % 3 <> {salt % 3}", name=name))
        if op in ("explode", "outer explode"):
            listed = df.withColumn("e", F.expr(f"slice(array(0, 1, 2), 1, cast((k + {salt}) % 3 as int))"))
            return _marked(listed.transform(explode("e", "i", outer=op[0] == "o", name=name)), "/", "i")
        if op in ("join", "left join"):
            table = self.spark.range(KEYS).selectExpr(
                "id as k", f"explode(slice({MATCHES}, 1, cast((id + {salt}) % 3 as int))) as m"
            )
            return _marked(df.transform(join(table, "k", "left" if op[0] == "l" else "inner", name=name)), "+", "m")
        return self._noded(step, df)

    def _cogrouped(self, step: Step, legs: Sequence[DataFrame]) -> DataFrame:
        # If one of two sources has ended, a plain table replaces its rows.
        other = legs[1] if len(legs) > 1 else self.spark.range(KEYS, KEYS + 3).selectExpr("id as k", "'plain' as t")
        tables = work.Grouped(step.salt, self._harm(step)).tables
        return cogroup("k", SCHEMA, name=f"cogroup-{step.name}")(tables)(legs[0], other)

    def _noded(self, step: Step, df: DataFrame) -> DataFrame:
        salt = step.salt
        if step.op == "view":
            view = f"v_{self.tag}_{step.name}_{self.ordinal}"
            df.createOrReplaceTempView(view)
            self.views.append(view)
            return self.spark.table(view)
        nodes: dict[str, Callable[[], DataFrame]] = {
            "select": lambda: df.select("*"),
            "withColumn": lambda: df.withColumn("z", F.expr("k * 2")).withColumn("k", F.expr("z - k")).drop("z"),
            "repartition": lambda: df.repartition(1 + salt % 3),
            "coalesce": lambda: df.coalesce(1 + salt % 3),
            "cache": df.cache,
            "window": lambda: df.withColumn(
                "w", F.row_number().over(Window.partitionBy("k").orderBy("t")).cast("bigint")
            ).selectExpr("k + w - w as k", "t", *_own(df)),
            "alias": lambda: df.alias("x"),
            "hint": lambda: df.hint("repartition", 1 + salt % 3),
            "orderBy": lambda: df.orderBy("t"),
            "repartition by k": lambda: df.repartition("k"),
            "repartitionByRange": lambda: df.repartitionByRange(1 + salt % 3, "t"),
        }
        return nodes[step.op]()

    def _harm(self, step: Step) -> work.Harm:
        mine = {fault.kind: fault for fault in self.program.faults if fault.at == step.name}
        return work.Harm(
            notes=str(self.notes),
            local_dir=str(self.spark.sparkContext.getConf().get("spark.local.dir", "/nonexistent")),
            name=step.name,
            poison=frozenset(mine["poison"].numbers if "poison" in mine else ()),
            flaky_once=frozenset(mine["flaky once"].numbers if "flaky once" in mine else ()),
            flaky_sight=2 if "flaky once" in mine and mine["flaky once"].point else 1,
            flaky_share=0.03 if "flaky" in mine else 0.0,
            kills="kill worker" in mine,
            loses="lose shuffle file" in mine,
            shuffles="shuffled" in mine,
        )

    # -- acts of a sink; each returns a function that reads the tokens in the output, or None if it cannot be read

    def _act(self, end: End, act: Act, rows: DataFrame, name: str) -> Callable[[], Tokens] | None:
        path = str(self.out / name)
        if act.what == "look":
            _look(rows, act.how)
            return None
        if act.what == "part":
            self._part(rows, act.how, path)
            return (lambda: _stored(Path(path), "parquet")) if act.how == "map cut" else None
        if act.what == "fail":
            return self._fail(rows, act.how, path)
        return self._deliver(end, self._late(end, rows), act.how, path)

    def _late(self, end: End, rows: DataFrame) -> DataFrame:
        for fault in self.program.of_kind("kill after work", "fail after work"):
            if fault.at == end.frame and end.via == "sink":
                harm = work.LateHarm(str(self.notes), kills=fault.kind[0] == "k", once=True)
                return rows.mapInArrow(harm.hand_on, rows.schema)
        return rows

    def _deliver(self, end: End, rows: DataFrame, how: str, path: str) -> Callable[[], Tokens] | None:
        if how in ("saveAsTable", "insertInto", "insert by SQL"):
            return self._insert(end, rows, how, path)
        if how in ("collect", "toPandas", "toArrow", "iterator", "prefetching iterator", "rdd collect"):
            return _fixed(_brought(rows, how))
        if how.endswith("foreachPartition") or how == "foreach":
            _each(rows, how, work.WriteRows(_folder(path)))
            return lambda: _lines(path)
        if how == "rdd text file":
            rows.rdd.map(lambda row: row.t).saveAsTextFile(path)
            return lambda: _lines(path)
        if how == "noop":
            rows.write.format("noop").mode("overwrite").save()
            return None
        if how == "from a thread":
            with ThreadPoolExecutor(1) as thread:
                return thread.submit(self._written, rows, how, path).result()
        return self._written(rows, how, path)

    def _written(self, rows: DataFrame, how: str, path: str) -> Callable[[], Tokens]:
        """Write files into the folder ``path``."""
        if how == "frame of rdd":
            rows = self.spark.createDataFrame(rows.rdd.map(lambda row: (row.k, row.t)), SCHEMA)
        elif how == "checkpointed":
            rows = rows.localCheckpoint()
        elif how == "persisted":
            rows = rows.persist()
            rows.count()
        elif how == "mapped":
            rows = rows.mapInArrow(work.same, rows.schema)
        elif how == "observed":
            rows = rows.observe(Observation(), F.count(F.lit(1)).alias("rows"))
        elif how == "joined with nothing":
            rows = rows.join(self.spark.range(9).where("id > 10").selectExpr("id as k"), "k")
        elif how == "filtered":
            rows = rows.where("k % 2 = 0")
        elif how == "aggregated":
            rows = rows.groupBy("k").agg(F.concat_ws("|", F.collect_list("t")).alias("t"))
        elif how.startswith("sorted"):
            rows = rows.orderBy("t")
        elif how.startswith("repartitioned"):
            rows = rows.repartition(2, "k")
        writer = rows.write.mode("append")
        if how == "json text":
            rows.select(F.to_json(F.struct("k", "t")).alias("value")).write.mode("append").text(path)
            kind = "json"
        elif how == "partitioned":
            writer.partitionBy("k").parquet(path)
            kind = "parquet"
        else:
            kind = next((kind for kind in ("json", "csv", "orc") if kind in how), "parquet")
            writer.format(kind).save(path)
        if how == "persisted":
            rows.unpersist()
        return lambda: _stored(Path(path), kind)

    def _insert(self, end: End, rows: DataFrame, how: str, path: str) -> Callable[[], Tokens]:
        table = self.tables.setdefault(f"{end.frame}", f"t_{self.tag}_{end.frame}")
        name = Path(path).name
        given = rows.select("k", "t", *(["acked"] if "acked" in rows.columns else []), F.lit(name).alias("x"))
        if how == "saveAsTable":
            table = self.tables.setdefault(f"{end.frame} whole", f"{table}_whole")
            given.write.mode("append").saveAsTable(table)
        else:
            self.spark.sql(f"create table if not exists {table} (k bigint, t string, x string) using parquet")
            if how == "insertInto":
                given.write.insertInto(table)
            else:
                given.createOrReplaceTempView(f"view_{table}")
                self.views.append(f"view_{table}")
                self.spark.sql(f"insert into {table} select * from view_{table}")
        folder = Path(str(self.spark.conf.get("spark.sql.warehouse.dir")).removeprefix("file:"), table)
        return lambda: _stored(folder, "parquet", only=name)

    def _fail(self, rows: DataFrame, how: str, path: str) -> Callable[[], Tokens]:
        """Run a delivery that fails. Some succeed nevertheless if there are no rows."""
        raising = rows.withColumn("t", F.expr("if(hash(t) % 2 = 0, t, concat(t, raise_error('no room')))"))
        if how == "row raises":
            raising.write.parquet(path)
        elif how == "noop":
            raising.write.format("noop").mode("overwrite").save()
        elif how == "commit":
            Path(path, "_SUCCESS").mkdir(parents=True)
            rows.write.mode("append").parquet(path)
        elif how == "table commit":
            late = work.LateHarm(str(self.notes), kills=False, once=False)
            rows.mapInArrow(late.hand_on, rows.schema).write.mode("append").saveAsTable(f"t_{self.tag}_bad")
        elif how == "late task":
            late = work.LateHarm(str(self.notes), kills=False, once=False)
            rows.mapInArrow(late.hand_on, rows.schema).write.parquet(path)
        elif how in ("collect", "toPandas", "iterator", "rdd collect"):
            _brought(raising, how)
        elif how.endswith("foreachPartition") or how == "foreach":
            _each(rows, how, work.WriteRows(_folder(path), raises=True))
        elif how == "frame of rdd":
            self.spark.createDataFrame(raising.rdd.map(lambda row: (row.k, row.t)), SCHEMA).write.parquet(path)
        elif how == "checkpointed":
            raising.localCheckpoint().write.parquet(path)
        else:
            raise AssertionError(how)
        return lambda: _stored(Path(path), "parquet") if Path(path).exists() else Counter()

    def _part(self, rows: DataFrame, how: str, path: str) -> None:
        """Deliver some of the rows only."""
        parts: dict[str, Callable[[], object]] = {
            "take": lambda: rows.take(5),
            "limit parquet": lambda: rows.limit(5).write.parquet(path),
            "offset parquet": lambda: rows.offset(5).write.parquet(path),
            "limit collect": lambda: rows.limit(5).collect(),
            "sample of limit": lambda: rows.limit(9).where("k > 1").write.parquet(path),
            "tail": lambda: rows.tail(5),
            "iterator cut": lambda: next(rows.toLocalIterator(), None),
            "prefetching iterator cut": lambda: next(rows.toLocalIterator(prefetchPartitions=True), None),
            "rdd take": lambda: rows.rdd.take(5),
            "map cut": lambda: rows.mapInArrow(work.first_batch_only, rows.schema).write.parquet(path),
            "first of partition": lambda: rows.foreachPartition(work.WriteRows(_folder(path)).first),
            "rdd first of partition": lambda: rows.rdd.foreachPartition(work.WriteRows(_folder(path)).first),
            "one partition": lambda: rows.rdd.context.runJob(rows.rdd, work.first_batch_only, [0]),
        }
        parts[how]()

    # -- events of the listener

    def hear_emitted(self, batch: int, pairs: Pairs) -> None:
        self.newest = self._ordinals.setdefault((self.runs, batch), len(self._ordinals) + 1 + self._ordinals_before)
        most = BATCHES_MAX if self.program.tracking else UNTRACKED_BATCHES_MAX
        if self.newest > most:
            raise Endless(f"{most} batches did not come to the end; open: {self._open()}")
        self.result.batches = max(self.result.batches, self.newest)
        for root, number in pairs:
            self.emitted[root] = (self.newest, number)
            self.result.emissions += 1

    def hear_acked(self, pairs: Pairs) -> None:
        for root, number in pairs:
            batch, emitted = self.emitted.get(root, (0, -1))
            if emitted != number:
                self._find("no answer", f"record {number} was acked under a root of record {emitted}")
            if root in self.answered:
                self._find(
                    "no answer", f"record {number} of batch {batch} was acked after it was {self.answered[root]}"
                )
            if not is_tracked(self.program, number):
                self._find("no answer", f"record {number} was acked, and is not tracked")
            self.answered[root] = "acked"
            self.acked.add(number)
            objection = self.judge.objection(batch, number)
            if objection:
                self._find("false ACK", f"record {number} in batch {batch}: {objection}")
        self._write({"acked": sorted(self.acked)})
        self._die_at("at the ack")

    def hear_failed(self, pairs: Pairs, why: Failures) -> None:
        for index, (root, number) in enumerate(pairs):
            batch, _ = self.emitted.get(root, (0, -1))
            if root in self.answered:
                self._find("no answer", f"record {number} of batch {batch} failed after it was {self.answered[root]}")
            self.answered[root] = "failed"
            self.fallen.append((batch, number, why.reason(index).partition("\n")[0][:160]))

    def hear_absent(self, pairs: Pairs) -> None:
        """Note that records have ended without an outcome: untracked ones, once each."""
        for root, number in pairs:
            if is_tracked(self.program, number) or number in self.absent or root in self.answered:
                self._find("no answer", f"record {number} has ended without an outcome")
            self.answered[root] = "absent"
            self.absent.add(number)

    def hear_dead(self, pairs: Pairs, why: Failures) -> None:
        allowed = oracle.may_die(self.program)
        for index, (_, number) in enumerate(pairs):
            self.dead.add(number)
            if number not in allowed:
                self._find("dead", f"record {number}: {why.reason(index).partition(chr(10))[0][:200]}")
        self._write({"dead": sorted(self.dead)})

    # -- result

    def _open(self) -> list[int]:
        return sorted(set(range(self.program.records)) - self.acked - self.dead - self.absent)

    def _sum_up(self) -> None:
        result = self.result
        if self._open() and not result.findings:
            self._find("no answer", f"neither acked nor dead: {self._open()}")
        raised, quiet = self._raised(), self._quiet()
        result.quiet_emissions = sum(batch in quiet for batch, _ in self.emitted.values())
        for batch, number, reason in self.fallen:
            if batch in quiet and number not in raised:
                result.needless[reason] += 1
                if reason.startswith("the batch failed"):
                    self._find("refused", f"record {number} in batch {batch}: {reason}")
        result.fired = bool(self.troubled) or any(self.notes.iterdir())

    def _raised(self) -> set[int]:
        """Return the records at whose rows user code has raised."""
        return {int(path.name.partition(".")[2]) for path in self.notes.glob("raised.*")}

    def _quiet(self) -> set[int]:
        """Return the batches in which nothing went wrong, apart from rows that raised."""
        return {
            batch for batch in range(1, self.newest + 1) if batch not in self.troubled and self.judge.is_done(batch)
        }

    def _compare_outputs(self) -> None:
        """Check that each delivery of a quiet batch has the rows that plain code makes of the records, each once."""
        if self.program.tracking and (not self.program.track or self._raised()):
            return
        quiet = self._quiet()
        for each in self.judge.executions:
            if each.batch not in quiet or each.what != "deliver" or each.read is None:
                continue
            rows = [
                row
                for batch, number in self.emitted.values()
                if batch == each.batch
                for row in oracle.frames_of(self.program, number)[each.end.frame]
            ]
            expected, found = oracle.written(each.how, rows), each.read()
            if found != expected:
                self._find("differs", f"{each.how}: lacks {expected - found}, has {found - expected} more")

    def _find(self, kind: str, text: str) -> None:
        self.result.findings.append((kind, text))
        self._write({"finding": [kind, text]})

    # -- journal that survives a killed driver

    def _write(self, note: dict[str, Any]) -> None:
        if self.program.of_kind("driver killed"):
            with open(self.folder / "journal.jsonl", "a") as journal:
                journal.write(json.dumps({"batches": self.newest, "runs": self.runs, **note}) + "\n")

    def _write_execution(self, execution: Execution, name: str) -> None:
        self._write({"execution": name, "went_through": execution.went_through})

    def _recall(self) -> None:
        """Load the state of a killed driver from the journal."""
        journal = self.folder / "journal.jsonl"
        if self.dies or not journal.exists():
            return
        for line in journal.open():
            note = json.loads(line)
            self.runs = max(self.runs, note["runs"])
            self._ordinals_before = max(self._ordinals_before, note["batches"])
            self.acked.update(note.get("acked", ()))
            self.dead.update(note.get("dead", ()))
            if "finding" in note:
                self.result.findings.append(tuple(note["finding"]))

    # -- set-up and clean-up

    @contextlib.contextmanager
    def _settings(self) -> Iterator[None]:
        acker = ("servers", self.server.address) if self.program.tracking else ("tracking", "false")
        conf = {"spark.sql.shuffle.partitions": "2", f"spark.acker.{acker[0]}": acker[1]} | dict(self.program.conf)
        before = {key: self.spark.conf.get(key, None) for key in conf}
        for key, value in conf.items():
            self.spark.conf.set(key, value)
        try:
            yield
        finally:
            for key, old in before.items():
                if old is None:
                    self.spark.conf.unset(key)
                else:
                    self.spark.conf.set(key, old)

    def _clean(self) -> None:
        for thread in self.restarting:
            thread.join()
        self.spark.catalog.clearCache()
        for view in self.views:
            self.spark.catalog.dropTempView(view)
        for table in (*self.tables.values(), f"t_{self.tag}_bad"):
            self.spark.sql(f"drop table if exists {table}")


def _own(df: DataFrame) -> list[str]:
    return [column for column in TRACKING if column in df.columns]


def _user_code(kind: str, code: Any, name: str) -> Any:
    if kind == "operator":
        return operator(SCHEMA, code.rows, name=name)
    if kind == "pandas_operator":
        return pandas_operator(SCHEMA, name=name)(code.frame)
    return arrow_operator(SCHEMA, name=name)(code.batch)


def _marked(df: DataFrame, sign: str, column: str) -> DataFrame:
    text = f"concat('{sign}', coalesce(cast({column} as string), '-'))"
    return df.select("k", F.expr(f"concat(replace(t, '|', concat({text}, '|')), {text})").alias("t"), *_own(df))


def _look(rows: DataFrame, how: str) -> None:
    looks: dict[str, Callable[[], object]] = {
        "count": rows.count,
        "show": lambda: rows.show(5),
        "take": lambda: rows.take(3),
        "isEmpty": rows.isEmpty,
        "first": rows.first,
        "head": lambda: rows.head(2),
        "limit collect": lambda: rows.limit(3).collect(),
        "max": lambda: rows.agg(F.max("k")).collect(),
        "describe": lambda: rows.describe("k").collect(),
        "summary": lambda: rows.select("k").summary("count", "max").show(),
        "tail": lambda: rows.tail(2),
        "rdd count": lambda: rows.rdd.count(),
        "rdd take": lambda: rows.rdd.take(3),
        "rdd isEmpty": lambda: rows.rdd.isEmpty(),
        "iterator cut": lambda: next(rows.toLocalIterator(), None),
        "explain": rows.explain,
        "failing count": lambda: rows.where("if(k >= 0, raise_error('no') is null, true)").count(),
        "failing show": lambda: rows.selectExpr("raise_error(t)").show(),
        "failing max": lambda: rows.selectExpr("max(if(k >= 0, raise_error(t), 1))").collect(),
    }
    looks[how]()


def _brought(rows: DataFrame, how: str) -> list[str]:
    """Bring the rows to the driver and return their ``t``."""
    if how == "collect":
        return [row.t for row in rows.collect()]
    if how == "toPandas":
        frame: Any = rows.toPandas()
        return list(frame.t)
    if how == "toArrow":
        return list(rows.toArrow().column("t").to_pylist())
    if how == "rdd collect":
        return [row.t for row in rows.rdd.collect()]
    return [row.t for row in rows.toLocalIterator(prefetchPartitions=how.startswith("prefetching"))]


def _each(rows: DataFrame, how: str, write: work.WriteRows) -> None:
    if how == "foreach":
        rows.foreach(write.row)
    elif how == "rdd foreachPartition":
        rows.rdd.foreachPartition(write.partition)
    elif how == "select foreachPartition":
        rows.select("t", "k", *(["acked"] if "acked" in rows.columns else [])).foreachPartition(write.partition)
    else:
        rows.foreachPartition(write.partition)


def _folder(path: str) -> str:
    os.makedirs(path, exist_ok=True)
    return path


def _tokens(ways: Iterator[str] | Sequence[str]) -> Tokens:
    return Counter(way for t in ways for way in t.split("|") if way)


def _fixed(ways: Sequence[str]) -> Callable[[], Tokens]:
    return lambda: _tokens(ways)


def _lines(path: str) -> Tokens:
    return _tokens([line for file in _visible(Path(path)) for line in file.read_text().splitlines()])


def _visible(folder: Path) -> list[Path]:
    """Return the files that a reader of the folder sees, without hidden or unfinished ones."""
    return [
        file
        for file in folder.rglob("*")
        if file.is_file()
        and not any(part[0] in "._" for part in file.relative_to(folder).parts)
        and file.suffix not in (".part", ".crc")
    ]


def _stored(folder: Path, kind: str, only: str | None = None) -> Tokens:
    """Return the tokens in files that Spark has written. ``only``: name of the one insert to read, for a table."""
    found: list[str] = []
    for file in _visible(folder):
        if kind == "json":
            found += [json.loads(line)["t"] for line in file.read_text().splitlines()]
        elif kind == "csv":
            with file.open(newline="") as lines:
                found += [line[1] for line in csv.reader(lines)]
        elif kind == "orc":
            found += orc.read_table(file).column("t").to_pylist()
        else:
            table = pq.ParquetFile(file).read()
            pairs = zip(table.column("t").to_pylist(), table.column("x").to_pylist() if only else [], strict=False)
            found += [t for t, x in pairs if x == only] if only else table.column("t").to_pylist()
    return _tokens(found)


def _gist(error: BaseException) -> str:
    text = str(error).strip()
    lines = text.splitlines() or [""]
    last = next((line for line in reversed(lines) if "Error" in line or "Exception" in line), lines[0])
    where = traceback.extract_tb(error.__traceback__)[-1]
    at = f"{Path(where.filename).name}:{where.lineno}"
    return f"{type(error).__name__}: {lines[0][:200]} ... {last.strip()[:200]} ({at})"
