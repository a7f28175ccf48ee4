"""Job: one run of the demo, from an empty folder to a result.

It stops everything that it starts, however the run ends.
"""

from __future__ import annotations

import logging
import os
import signal
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from types import FrameType
from typing import Any

from acker_client.errors import AckerError
from acker_client.source import Batch, Retry
from acker_client.spark.driver.session import SessionError, local_session
from acker_command.demo import Abort, DemoError, corpus, faults
from acker_command.demo.expected import derive
from acker_command.demo.faults import Faults, Strike
from acker_command.demo.inputs import input_of
from acker_command.demo.pipeline import DemoPipeline, table_of_categories
from acker_command.demo.result import conclude
from acker_command.demo.server import DemoServers
from acker_command.demo.verify import Verifier
from acker_command.demo.view import DemoView

CORES = 2
ATTEMPTS = 4
# In a JVM that lives for a minute, good compilation costs more than it gains, and a parallel collector takes both cores
# from the workers. With these options the JVM needs half the CPU.
JAVA_OPTIONS = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
BATCH_RECORDS_MAX = 150_000
RETRY = Retry(max_retries=2, max_interruptions=10, initial_s=1.0, cap_s=1.0)
# Poison and unreadable lines are few. Above this share the job is wrong, not the lines.
MAX_DEAD_SHARE = 0.2


@dataclass(frozen=True, slots=True)
class JobOptions:
    """The options of the command. ``patterns`` empty: the standard library. ``records`` None: all, or as many as the
    source takes. ``batch_records`` None: by the size of the input."""

    source: str = "files"
    patterns: tuple[str, ...] = ()
    no_faults: bool = False
    records: int | None = None
    batch_records: int | None = None
    servers: int = 1
    replicas: int | None = None
    seed: int = 0
    keep: Path | None = None

    def size_of(self, records: int) -> int:
        """Return the size of a batch: by default so small that there is a batch for each strike and for a few
        replays."""
        batches = len(faults.strikes(self.servers)) + 1
        return self.batch_records or min(BATCH_RECORDS_MAX, max(1, -(-records * 101 // (100 * batches))))


class DemoJob:
    """One run of the demo. ``exits`` ends its parts. Raises ``DemoError`` if it cannot run."""

    def __init__(self, options: JobOptions, exits: ExitStack) -> None:
        self._options, self._exits, self._folder = options, exits, _folder(options.keep, exits)
        kind = input_of(options.source)
        paths, records_max = corpus.find_files(options.patterns), options.records or kind.records_max
        self._text = text = corpus.measure(paths, records_max, self._folder / "input")
        self._size = options.size_of(text.records)
        self._input = kind(text, self._folder, self._size)
        self._faults, self._strikes = Faults(str(self._folder / "faults")), list[Strike]()
        if not options.no_faults:
            self._faults = faults.arm(self._folder / "faults", seed=options.seed, records=text.records)
            self._strikes = faults.schedule(-(-text.records // self._size), options.servers)
        expected = exits.enter_context(ThreadPoolExecutor(1)).submit(derive, text, self._faults.is_poison)
        self.verifier = Verifier(text, expected, self._folder / "counts", self._input.records)
        self._view = exits.enter_context(DemoView(self.verifier.counts))
        self._servers = DemoServers(self._folder / "server", options.servers, self._view.say)
        self._is_interrupted = False

    def run(self) -> dict[str, Any]:
        view, files, servers = self._view, len(self._text.paths), self._options.servers
        what = "a server" if servers == 1 else f"ZooKeeper, {servers} servers"
        in_files = "1 file" if files == 1 else f"{files:,} files"
        view.say(f"{self._text.records:,} lines in {in_files}; starting {what} and Spark")
        self._exits.callback(self._servers.stop)
        self._servers.start()
        self._input.begin(self._exits)
        spark, folder = self._spark(), self._folder
        categories = table_of_categories(spark)
        pipeline = DemoPipeline(categories, self._faults, folder / "counts", folder / "staging", self._input.columns)
        view.say(f"batches of {self._size:,} lines from {self._input.place}")
        view.began_s = time.monotonic()
        try:
            self._run_source(spark, pipeline)
        except (AckerError, Abort) as error:
            raise DemoError(f"the job ended before its input: {error}\n(logs: --keep DIR)") from error
        seconds = time.monotonic() - view.began_s
        view.say("checking the counts of all acked lines")
        return self._conclude(seconds)

    def _run_source(self, spark: Any, pipeline: DemoPipeline) -> None:
        def process(batch: Batch) -> None:
            if self._is_interrupted:
                raise KeyboardInterrupt
            # A batch of replays gets no strike. Its records may still raise.
            strike = faults.deal(self._strikes, batch.records - batch.replays, self._size)
            self.verifier.begin_batch(strike)
            with faults.sabotage(self._faults, strike, self._servers.hits, self._view.strike):
                pipeline.run(batch, strike)

        self._input.run(
            spark,
            process,
            name="demo",
            dead_letters=self._folder / "dead.jsonl",
            retry=RETRY,
            max_dead_share=MAX_DEAD_SHARE,
            batch_records=self._size,
            listener=self.verifier,
        )

    def _spark(self) -> Any:
        """Start a local Spark that logs to a file."""
        settings = {
            "spark.acker.servers": self._servers.address,
            "spark.driver.extraJavaOptions": JAVA_OPTIONS,
            "spark.log.level": "ERROR",
            "spark.local.dir": str(self._folder / "spark"),
            "spark.sql.warehouse.dir": str(self._folder / "spark" / "warehouse"),
        }
        if self._options.replicas is not None:
            settings["spark.acker.replicas"] = str(self._options.replicas)
        try:
            with _output_to(self._folder / "spark.log"):
                spark = local_session("acker demo", cores=CORES, attempts=ATTEMPTS, conf=settings)
        except SessionError as error:
            raise DemoError(str(error)) from None
        self._exits.callback(spark.stop)
        self._remember_interrupts()
        return spark

    def _remember_interrupts(self) -> None:
        """Remember Ctrl-C until the next batch. Python drops an exception that is raised in a finalizer, and PySpark
        has many."""
        interrupt: Any = signal.getsignal(signal.SIGINT)

        def remember(number: int, frame: FrameType | None) -> None:
            self._is_interrupted = True
            interrupt(number, frame)

        signal.signal(signal.SIGINT, remember)

    def _conclude(self, seconds: float) -> dict[str, Any]:
        counts, replayed_by = self.verifier.counts, self.verifier.replayed_by
        strikes = [strike for strike in replayed_by if strike is not None]
        names = ("records", "acked", "failed", "timed_out", "interrupted", "replayed", "dead_lettered", "batches")
        return conclude(
            {
                **{name: counts[name] for name in names},
                **self.verifier.conclude(),
                "checkpoint_at_end": self._input.is_at_end(),
                "records_per_s": round((counts["acked"] + counts["dead_lettered"]) / seconds, 1),
                "seconds": round(seconds, 2),
                "replicas": self._options.replicas or min(2, self._options.servers),
                "replayed_by_fault": {strike.name.lower(): replayed_by[strike] for strike in strikes},
                "faults": {strike.name.lower(): self._faults.happened(strike.name) for strike in strikes},
            }
        )


def _folder(keep: Path | None, exits: ExitStack) -> Path:
    """Return the folder for everything that this run writes."""
    if keep is None:
        keep = Path(exits.enter_context(TemporaryDirectory(prefix="acker-demo-", ignore_cleanup_errors=True)))
    folder = keep.absolute()
    folder.mkdir(parents=True, exist_ok=True)
    if any(folder.iterdir()):
        raise DemoError(f"--keep {keep}: is not empty; name a new folder")
    for name in ("counts", "staging", "spark", "faults"):
        (folder / name).mkdir()
    # Logs to a file, because the faults of the demo cause half of the client's warnings.
    logging.basicConfig(filename=folder / "demo.log", format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    return folder


@contextmanager
def _output_to(path: Path) -> Iterator[None]:
    """Redirect descriptors 1 and 2 to ``path``, also for processes that are started meanwhile."""
    sys.stdout.flush()
    sys.stderr.flush()
    kept = {number: os.dup(number) for number in (1, 2)}
    with open(path, "ab") as file:
        for number in kept:
            os.dup2(file.fileno(), number)
    try:
        yield
    finally:
        for number, copy in kept.items():
            os.dup2(copy, number)
            os.close(copy)
