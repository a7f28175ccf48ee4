"""Runner: runs one program on real Spark and real servers, and shows the oracle what happens."""

from __future__ import annotations

import tempfile
import threading
import time
import traceback
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from pyspark import InheritableThread
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from acker_client import AckerClient, OpenSource, Settings
from acker_client.spark import acker_udf, operator
from acker_client.spark import functions as AF
from tests.plain.oracle import Oracle
from tests.plain.program import OVER_PARTITIONS, Program, token_of
from tests.plain.work import Work

# The message timeout: short where the program leaves rows undone, and else longer than any job takes.
SHORT_S, LONG_S = 6.0, 300.0
# How long after the end of its job an outcome may come, beside the timeout. A lost server is noticed in GONE_S.
LATE_S, GONE_S = 30.0, 10.0
SCHEMA = "t string, _root long, _edge long"
SERVERS = "spark.acker.servers"


@dataclass
class Result:
    program: Program
    findings: list[str] = field(default_factory=list)
    outcomes: Counter[str] = field(default_factory=Counter)
    seconds: float = 0.0
    transcript: list[str] = field(default_factory=list)


class Sink(ThreadingHTTPServer):
    """The HTTP sink. It refuses every tenth request."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.received = set[str]()
        self.requests = 0
        self.lock = threading.Lock()
        threading.Thread(target=self.serve_forever, daemon=True).start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}/"


class _Handler(BaseHTTPRequestHandler):
    server: Sink

    def do_POST(self) -> None:
        token = self.rfile.read(int(self.headers["Content-Length"])).decode()
        with self.server.lock:
            self.server.requests += 1
            is_refused = self.server.requests % 10 == 0
            if not is_refused:
                self.server.received.add(token)
        if is_refused:
            self.send_error(503)
            return
        self.send_response(204)
        self.end_headers()

    def log_message(self, format: str, *args: Any) -> None:
        pass


class Run:
    """One run of a program. ``kill_server``: kills one of the servers and starts it again without its state."""

    def __init__(
        self,
        program: Program,
        spark: SparkSession,
        servers: Sequence[str],
        kill_server: Callable[[], None],
        folder: str,
    ) -> None:
        self._program = program
        self._spark = spark
        self._servers = tuple(servers)
        self._kill_server = kill_server
        self._folder = Path(folder)
        self._oracle = Oracle()
        self._sink = Sink() if program.http else None
        self._began = time.monotonic()
        self._lines: list[str] = []
        self._has_failed = self._is_over = False

    def result(self) -> Result:
        try:
            self._run()
        except Exception:  # noqa: BLE001
            self._oracle.findings.append(f"raised: {traceback.format_exc()}")
        finally:
            self._spark.conf.unset(SERVERS)
            self._spark.sparkContext.setLocalProperty(SERVERS, None)  # type: ignore[arg-type]
            if self._sink is not None:
                self._sink.shutdown()
                self._sink.server_close()
        seconds = time.monotonic() - self._began
        return Result(self._program, self._oracle.findings, self._oracle.outcomes, seconds, self._lines)

    def _run(self) -> None:
        settings = Settings(self._servers, gone_after_s=GONE_S, call_timeout_s=5.0)
        timeout_s = SHORT_S if self._program.may_be_late else LONG_S
        with (
            AckerClient(settings) as client,
            client.open_source("plain", lease_s=600, message_timeout_s=timeout_s) as source,
        ):
            reader = threading.Thread(target=self._read, args=(source,))
            reader.start()
            try:
                numbers = list(range(self._program.records))
                for emitted_in in range(self._program.rounds):
                    if numbers:
                        numbers = self._round(source, emitted_in, numbers, timeout_s)
                self._oracle.finish()
            finally:
                self._is_over = True
                source.close()
                reader.join()

    def _read(self, source: OpenSource) -> None:
        for outcome in source.outcomes():
            # What is open at the end is missing already, and closing the source answers it.
            if not self._is_over:
                self._hear(outcome)

    def _round(self, source: OpenSource, emitted_in: int, numbers: list[int], timeout_s: float) -> list[int]:
        """Emit records, run the job over them, and read the outcomes. Return the records that are not ACKED."""
        program = self._program
        for number in numbers:
            self._oracle.emit((number, emitted_in), program.leaves(token_of(number, emitted_in)))
        tokens = [(number, emitted_in, token_of(number, emitted_in)) for number in numbers]
        rows, given = self._emitted(source, tokens)
        job = InheritableThread(target=self._job, args=(rows, given))
        job.start()
        strike = threading.Thread(target=self._strike)
        strike.start()
        job.join()
        strike.join()
        late_s = LATE_S + (timeout_s if self._may_be_late and timeout_s == SHORT_S else 0.0)
        deadline = time.monotonic() + late_s
        emissions = self._oracle.emissions
        while time.monotonic() < deadline and not all(emissions[number, emitted_in].verdict for number in numbers):
            time.sleep(0.02)
        left = [number for number in numbers if emissions[number, emitted_in].verdict != "ACKED"]
        self._say(f"round {emitted_in}: {len(numbers) - len(left)} of {len(numbers)} acked, {source.pending} open")
        return left

    @property
    def _may_be_late(self) -> bool:
        return self._program.may_be_late or self._has_failed

    def _hear(self, outcome: Any) -> None:
        raised = {_note(path) for path in self._folder.glob("raised.*")}
        self._oracle.hear(
            outcome.message_id,
            outcome.verdict.name,
            outcome.reason.partition("\n")[0],
            received=self._received(),
            raised=raised,
            may_be_late=self._may_be_late,
        )

    def _received(self) -> set[str]:
        if self._sink is not None:
            with self._sink.lock:
                return set(self._sink.received)
        return {line for path in self._folder.glob("sink.*") for line in path.read_text().split()}

    # -- the program

    def _emitted(self, source: OpenSource, tokens: list[tuple[int, int, str]]) -> tuple[Any, Settings | None]:
        """Emit the records. Return them as a frame or an RDD of rows, and what a collector has to be given."""
        program, spark = self._program, self._spark
        if program.emits == "frame":
            df = spark.createDataFrame(tokens, "n int, r int, t string").repartition(program.partitions)
            return source.frame(df, message_id=["n", "r"]), None
        # Nothing tells tasks where the servers are, if there is no frame.
        spark.conf.set(SERVERS, ",".join(self._servers))
        ids = [(number, emitted_in) for number, emitted_in, _ in tokens]
        if program.emits == "columns":
            roots, edges = (column.tolist() for column in source.emit_columns(len(ids), ids))
        else:
            anchors = [source.emit(each) for each in ids]
            roots, edges = [anchor.root_id for anchor in anchors], [anchor.edge for anchor in anchors]
        rows = [(t, root, edge) for (_, _, t), root, edge in zip(tokens, roots, edges, strict=True)]
        frame = spark.createDataFrame(rows, SCHEMA).repartition(program.partitions)
        return frame, source.settings

    def _job(self, rows: DataFrame, settings: Settings | None) -> None:
        program = self._program
        work = Work(
            str(self._folder),
            "" if self._sink is None else self._sink.url,
            settings,
            program.poison,
            program.flaky,
            kills_fan=program.fault == "kill in fan",
            kills_end=program.fault == "kill at end",
            raises_in=program.fault == "raise in block",
            raises=program.fault == "raise after report",
            at=program.at if program.fan or program.end in OVER_PARTITIONS else 0,
        )
        try:
            if program.fault in ("part first", "part only"):
                rows.select("t").limit(2).collect()
            if program.fault != "part only":
                fanned = self._fanned(rows, work)
                for _ in range(2 if program.fault == "twice" else 1):
                    self._end(fanned, work)
        except Exception as error:  # noqa: BLE001
            self._has_failed = True
            self._say(f"the job failed: {str(error).splitlines()[0][:200]}")
            if not program.job_fails:
                self._oracle.findings.append(f"job: it failed: {_cause(error)}")

    def _fanned(self, rows: DataFrame, work: Work) -> Any:
        """Return the rows after the program's fan, as a frame or an RDD."""
        program, fan = self._program, self._program.fan
        made: Any = rows
        if fan == "collector":
            made = rows.rdd.mapPartitions(work.split)
        elif fan == "operator":
            made = rows.transform(operator("t string", work.fan_rows, name="fan"))
        elif fan == "udf":
            each = acker_udf("children array<string>", name="fan", emits=True)(work.fan_struct)
            parsed = rows.select(each("t").alias("each")).select("each.*")
            made = _exploded(parsed.select("children", "_root", AF.emit("children", after="children").alias("edges")))
        elif fan == "emit column":
            children = F.udf(work.fan_list, "array<string>")
            listed = rows.withColumn("children", children("t"))
            made = _exploded(listed.select("children", "_root", AF.emit("children", after="children").alias("edges")))
        return made.repartition(program.reparts) if program.reparts else made

    def _end(self, rows: Any, work: Work) -> None:
        end = self._program.end
        if end in OVER_PARTITIONS:
            rows.foreachPartition(work.collect if end == "collector" else work.process)
            return
        df: DataFrame = rows if isinstance(rows, DataFrame) else self._spark.createDataFrame(rows, SCHEMA)
        if end == "ack after":
            done = F.udf(work.row, "string")("t")
            if self._program.names_no_column:
                df.select(AF.ack(after=done)).collect()
            else:
                df.withColumn("done", done).select("done", AF.ack(after="done")).collect()
        elif end == "fail column":
            df.select(AF.fail(F.udf(work.reason, "string")("t"), after="t")).collect()
        else:
            functions: dict[str, Callable[..., Any]] = {
                "row udf": work.row,
                "pandas udf": work.series,
                "pandas iterator": work.all_series,
                "arrow iterator": work.all_arrays,
            }
            df.select(acker_udf("string", name="end")(functions[end])("t").alias("done")).collect()

    # -- faults

    def _strike(self) -> None:
        """Kill a server when the sink has received something, or after some time."""
        if self._program.fault != "kill server" or (self._folder / "struck").exists():
            return
        (self._folder / "struck").touch()
        deadline = time.monotonic() + 5.0
        while not self._received() and time.monotonic() < deadline:
            time.sleep(0.05)
        self._say("a server is killed")
        self._kill_server()

    def _say(self, line: str) -> None:
        self._lines.append(f"{time.monotonic() - self._began:7.2f}  {line}")


def _exploded(listed: DataFrame) -> DataFrame:
    each = F.explode(F.arrays_zip("children", "edges")).alias("each")
    return listed.select("_root", each).select(
        F.col("each.children").alias("t"), "_root", F.col("each.edges").alias("_edge")
    )


def _note(path: Path) -> tuple[int, int]:
    _, number, emitted_in = path.name.split(".")
    return int(number), int(emitted_in)


def _cause(error: Exception) -> str:
    lines = [line.strip() for line in str(error).splitlines() if "Error" in line]
    return " | ".join(dict.fromkeys(lines))[:600]


def run(program: Program, spark: SparkSession, servers: Sequence[str], kill_server: Callable[[], None]) -> Result:
    with tempfile.TemporaryDirectory(prefix=f"plain-{program.seed}-", ignore_cleanup_errors=True) as folder:
        return Run(program, spark, servers, kill_server, folder).result()
