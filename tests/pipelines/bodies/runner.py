"""Runner: run one random body in the sink of one batch, and compare the verdicts with the records really written.

The oracle is short: a record that is ACKED is in every place where the body has to write it. A record is replayed only
if something was raised, or if something in the body cannot be proven.
"""

from __future__ import annotations

import contextlib
import threading
from dataclasses import dataclass, field
from pathlib import Path

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from acker_client import Verdict
from acker_client.spark import sink
from tests.pipelines.bodies.body import DAYS, Act, Body
from tests.pipelines.bodies.steps import BETWEEN, LOOK, Barred
from tests.pipelines.bodies.targets import Target
from tests.spark.live_batch import LiveBatch

CHECKPOINTS = "checkpoints"


@dataclass
class Result:
    """Result of one body. ``findings``: (kind, text). ``acked``: number of ACKED records out of ``records``."""

    findings: list[tuple[str, str]] = field(default_factory=list)
    records: int = 0
    acked: int = 0
    error: str = ""

    def __str__(self) -> str:
        lines = [f"{self.acked} of {self.records} ACKED {f'({self.error})' if self.error else ''}"]
        return "\n    ".join([*lines, *(f"{kind}: {what}" for kind, what in self.findings)])


class _Work:
    """A running body. ``failed``: indexes of acts that ended with an exception and were not repeated with success."""

    def __init__(self, body: Body, spark: SparkSession, warehouse: Path, folder: Path) -> None:
        self.body = body
        self.folder = folder
        self.targets = [Target(spark, warehouse, folder, f"t{index}") for index in range(len(body.acts))]
        self.others = [Target(spark, warehouse, folder, f"o{index}") for index in range(len(body.acts))]
        self.failed: set[int] = set()
        for act, target, other in zip(body.acts, self.targets, self.others, strict=True):
            if act.writes:
                target.prepare(act.what, is_there=act.mishap == "there already")
                other.prepare(act.what, is_there=False)

    def do(self, rows: DataFrame) -> None:
        rows = rows.withColumn("day", (F.col("number") % DAYS).cast("int")).select("number", "day", "text")
        threads: list[threading.Thread] = []
        for index, act in enumerate(self.body.acts):
            if not act.in_thread:
                self._act(index, act, rows)
                continue
            thread = threading.Thread(target=self._quietly, args=(index, act, rows))
            thread.start()
            threads.append(thread)
        for thread in threads:
            thread.join()

    def _quietly(self, index: int, act: Act, rows: DataFrame) -> None:
        with contextlib.suppress(Exception):
            self._act(index, act, rows)

    def _act(self, index: int, act: Act, rows: DataFrame) -> None:
        if not act.writes:
            LOOK[act.what](self._between(act, rows))
            return
        self.failed.add(index)
        try:
            self._write(index, act, rows)
        except Exception:
            if act.then == "raise":
                raise
            if act.then == "elsewhere":
                # A user may write elsewhere instead. That does not make up for the failed write.
                with contextlib.suppress(Exception):
                    self.others[index].write(act.what, act.mode, self._between(act, rows))
        else:
            self.failed.discard(index)

    def _write(self, index: int, act: Act, rows: DataFrame) -> None:
        flag, target = self.folder / f"open{index}", self.targets[index]
        if act.mishap == "in the way":
            target.path.touch()
        if act.mishap == "no table":
            target.drop()
        if act.mishap == "barred":
            rows = rows.withColumn("number", F.udf(Barred(str(flag)), "long")("number"))
        rows = self._between(act, rows) if act.then != "retry" else rows
        for left in range(act.times if act.then == "retry" else 0, -1, -1):
            try:
                # Plan anew for each try, as a user's function does when it is called again.
                target.write(act.what, act.mode, self._between(act, rows) if act.then == "retry" else rows)
            except Exception:
                if not left:
                    raise
                if left == 1:
                    flag.touch()
                    if act.mishap == "in the way":
                        target.path.unlink(missing_ok=True)
                    if act.mishap == "no table":
                        target.prepare(act.what, is_there=False)
            else:
                return

    def _between(self, act: Act, rows: DataFrame) -> DataFrame:
        if act.day is not None:
            rows = rows.where(f"day = {act.day}")
        for step in act.between:
            rows = BETWEEN[step](rows)
        return rows

    def missing(self) -> list[set[int]]:
        """Return for each act the records that it has to write and that are missing in its target."""
        numbers = range(self.body.records)
        return [
            {number for number in numbers if self.body.owes(act, number)} - target.numbers() if act.writes else set()
            for act, target in zip(self.body.acts, self.targets, strict=True)
        ]

    def close(self) -> None:
        for target in (*self.targets, *self.others):
            target.drop()


def run(body: Body, spark: SparkSession, server: str, folder: Path) -> Result:
    """Run a body on a new batch, settle the batch, and return the result with its findings."""
    spark.conf.set("spark.sql.execution.arrow.maxRecordsPerBatch", str(body.arrow_rows))
    warehouse = Path(str(spark.conf.get("spark.sql.warehouse.dir")).removeprefix("file:"))
    spark.sparkContext.setCheckpointDir(str(folder / CHECKPOINTS))
    work = _Work(body, spark, warehouse, folder)
    texts = [f"text {number}" for number in range(body.records)]
    result = Result(records=body.records)
    raised = ""

    @sink
    def save(rows: DataFrame) -> None:
        work.do(rows)

    with LiveBatch(spark, server, texts, slices=body.slices) as live:
        try:
            save(live.df)
        except Exception as error:  # noqa: BLE001  # whatever the body raises: the batch is not done then
            raised = type(error).__name__
        says_done = body.says_done and not any(work.missing())
        if says_done:
            live.frame.evidence.vouch()
        result.error = str(live.error or "")
        verdicts = live.settle()
        missing = work.missing()
        live.frame.evidence.release()
    work.close()
    spark.catalog.clearCache()
    acked = {number for number, verdict in verdicts.items() if verdict == Verdict.ACKED}
    result.acked = len(acked)
    _compare(body, work, acked, missing, result, raised=raised, says_done=says_done)
    return result


def _compare(
    body: Body, work: _Work, acked: set[int], missing: list[set[int]], result: Result, *, raised: str, says_done: bool
) -> None:
    for act, lacks in zip(body.acts, missing, strict=True):
        if acked & lacks:
            its = sorted(acked & lacks)
            result.findings.append(("false ACK", f"{len(its)} records ({its[:5]}) are not there by {act.what}"))
    writing = [act for act in body.acts if act.delivers]
    found_none = any("none" in act.between for act in body.acts if not act.delivers)
    if acked and not writing and not found_none and not says_done:
        result.findings.append(("false ACK", f"{len(acked)} records were looked at, and written nowhere"))
    # No later action makes up for a failed look.
    has_failed_look = any(act.mishap and not act.delivers for act in body.acts)
    is_plain = writing and not work.failed and not has_failed_look and all(act.is_provable for act in writing)
    replayed = set(range(body.records)) - acked
    # ``batch.done()`` does not cover rows that no act has read.
    is_vouched = says_done and any(act.reads_all for act in body.acts)
    if replayed and not raised and not any(missing) and (is_vouched or is_plain):
        result.findings.append(("needless", f"{len(replayed)} records are all there, and replayed"))
