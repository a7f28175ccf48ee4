"""Job: one run of the demo, from an empty folder to a result.

Decides the order: server, Spark, what must come out, batch after batch with its strike, and the conclusion. Everything
that was started is stopped again, however the run ends.
"""

from __future__ import annotations

import logging
import shutil
import tempfile
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from acker_client.errors import AckerError
from acker_client.source import Batch, Retry
from acker_client.spark.driver.session import SessionError, local_session
from acker_command.demo import corpus, faults, silence
from acker_command.demo.counts import RunCounts
from acker_command.demo.errors import Abort, DemoError
from acker_command.demo.expected import derive
from acker_command.demo.faults import Faults, FaultSchedule
from acker_command.demo.inputs import input_of
from acker_command.demo.inputs.demo_input import DemoInput, SourceOptions
from acker_command.demo.listener import CountingListener
from acker_command.demo.pipeline import DemoPipeline, table_of_categories
from acker_command.demo.progress import Progress
from acker_command.demo.result import DemoResult
from acker_command.demo.sabotage import sabotage
from acker_command.demo.server import DemoServers, ServerCluster, ServerProcess
from acker_command.demo.verify import Verifier

CORES = 2
ATTEMPTS = 4
# A JVM that lives for a minute spends more on compiling well than it gets back, and on two cores a parallel collector
# only takes them from the workers: with these it needs half the CPU.
JAVA_OPTIONS = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
BATCH_RECORDS_MAX = 150_000
RETRY = Retry(max_retries=2, max_interruptions=10, initial_s=1.0, cap_s=1.0)
# Poison and unreadable lines are few; above this share something is wrong with the job, not with the lines.
MAX_DEAD_SHARE = 0.2


@dataclass(frozen=True, slots=True)
class JobOptions:
    """What the command line asked for. ``patterns`` empty: the standard library. ``batch_records`` None: by the
    input; ``records_max`` None: by the source."""

    source: str = "files"
    patterns: tuple[str, ...] = ()
    records_max: int | None = None
    batch_records: int | None = None
    has_faults: bool = True
    seed: int = 0
    keep: Path | None = None
    servers: int = 1
    replicas: int | None = None

    def size_of(self, records: int) -> int:
        """Records of a batch: by default as many as leave a batch for each strike, with room for a few replays."""
        return self.batch_records or min(
            BATCH_RECORDS_MAX, max(1, -(-records * 101 // (100 * (len(faults.strikes(self.servers)) + 1))))
        )


@dataclass(slots=True)
class Setup:
    """What a run works with."""

    input: DemoInput
    armed: Faults
    schedule: FaultSchedule
    servers: DemoServers
    pipeline: DemoPipeline
    listener: CountingListener
    view: Progress

    def process(self, batch: Batch) -> None:
        """One batch, and what goes wrong in it; a batch of replays runs undisturbed, but for the records that raise."""
        strike = self.schedule.deal(batch.records - batch.replays)
        self.listener.strike = strike
        with sabotage(self.servers, self.armed, strike, self.view.strike):
            self.pipeline.run(batch, strike)


def run(options: JobOptions) -> DemoResult:
    """Run the demo. Raises :class:`DemoError` when it cannot run; whether it showed what it should is in the result."""
    with ExitStack() as exits:
        folder = _folder(options.keep, exits)
        kind = input_of(options.source)
        records_max = options.records_max or kind.records_max
        text = corpus.measure(corpus.find(options.patterns), records_max, folder / "input")
        counts = RunCounts(records=text.records)
        _log_to(folder / "demo.log", exits)
        view = exits.enter_context(Progress(counts))
        several = "a server" if options.servers == 1 else f"ZooKeeper, {options.servers} servers"
        in_files = "1 file" if len(text.paths) == 1 else f"{len(text.paths):,} files"
        view.say(f"{text.records:,} lines in {in_files}; starting {several} and Spark")
        size = options.size_of(text.records)
        setup = _set_up(options, kind(text, folder, size), folder, counts, view, exits)
        view.say(f"batches of {size:,} lines from {setup.input.place}")
        counts.start()
        try:
            setup.input.run(setup.pipeline.spark, setup.process, _options(folder, size, setup.listener))
        except (AckerError, Abort) as error:
            raise DemoError(f"the job ended before its input: {error}\n(logs: --keep DIR)") from error
        counts.stop()
        view.say("checking the counts of all acked lines")
        return _conclude(options, setup)


def _set_up(
    options: JobOptions, input_: DemoInput, folder: Path, counts: RunCounts, view: Progress, exits: ExitStack
) -> Setup:
    text = input_.text
    armed, schedule = _faults(options, folder / "faults", text.records, input_.batch_records)
    server = _servers(options, folder / "server", view)
    exits.callback(server.stop)
    with ThreadPoolExecutor(1) as beside:
        expected = beside.submit(derive, text.paths, armed.is_poison)
        server.start()
        input_.begin(exits)
        spark = _spark(server.address, options.replicas, folder, exits)
        verifier = Verifier(expected.result(), folder / "counts", text.root)
    pipeline = DemoPipeline(
        spark, table_of_categories(spark), armed, verifier.committed, folder / "staging", input_.columns
    )
    listener = CountingListener(counts, verifier, input_.records)
    return Setup(input_, armed, schedule, server, pipeline, listener, view)


def _servers(options: JobOptions, folder: Path, view: Progress) -> DemoServers:
    return ServerProcess(folder) if options.servers == 1 else ServerCluster(folder, options.servers, view.say)


def _faults(options: JobOptions, folder: Path, records: int, size: int) -> tuple[Faults, FaultSchedule]:
    if not options.has_faults:
        return faults.disarm(folder), faults.schedule(0, 0)
    return faults.arm(folder, seed=options.seed, records=records), faults.schedule(
        -(-records // size), size // 2, options.servers
    )


def _options(folder: Path, size: int, listener: CountingListener) -> SourceOptions:
    return SourceOptions(
        name="demo",
        dead_letters=folder / "dead.jsonl",
        retry=RETRY,
        max_dead_share=MAX_DEAD_SHARE,
        batch_records=size,
        listener=listener,
    )


def _spark(address: str, replicas: int | None, folder: Path, exits: ExitStack) -> Any:
    """A local Spark whose chatter goes to a file."""
    settings = {
        "spark.acker.servers": address,
        "spark.driver.extraJavaOptions": JAVA_OPTIONS,
        "spark.log.level": "ERROR",
        "spark.local.dir": str(folder / "spark"),
        "spark.sql.warehouse.dir": str(folder / "spark" / "warehouse"),
    }
    if replicas is not None:
        settings["spark.acker.replicas"] = str(replicas)
    try:
        with silence.to_file(folder / "spark.log"):
            spark = local_session("acker demo", cores=CORES, attempts=ATTEMPTS, conf=settings)
    except SessionError as error:
        raise DemoError(str(error)) from None
    exits.callback(spark.stop)
    return spark


def _conclude(options: JobOptions, setup: Setup) -> DemoResult:
    dealt = tuple(setup.schedule.dealt)
    return DemoResult(
        counts=setup.listener.counts,
        conclusion=setup.listener.verifier.conclude(),
        checkpoint_at_end=setup.input.is_at_end(),
        planned=dealt,
        struck=tuple(strike for strike in dealt if setup.armed.happened(strike.name)),
        interrupted_by=dict(setup.listener.interrupted_by),
        replicas=options.replicas if options.replicas is not None else min(2, options.servers),
    )


def _folder(keep: Path | None, exits: ExitStack) -> Path:
    """Where everything of this run is written."""
    if keep is None:
        folder = Path(tempfile.mkdtemp(prefix="acker-demo-"))
        exits.callback(shutil.rmtree, folder, ignore_errors=True)
    else:
        folder = keep.absolute()
        folder.mkdir(parents=True, exist_ok=True)
        if any(folder.iterdir()):
            raise DemoError(f"--keep {keep}: is not empty; name a new folder")
    for name in ("counts", "staging", "spark"):
        (folder / name).mkdir()
    return folder


def _log_to(path: Path, exits: ExitStack) -> None:
    """What the library warns of goes to a file: half of it is what the faults are for."""
    handler = logging.FileHandler(path)
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
    root = logging.getLogger()
    root.addHandler(handler)
    exits.callback(handler.close)
    exits.callback(root.removeHandler, handler)
