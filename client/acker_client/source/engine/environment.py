"""Environment: the outside world of a run (Spark, the server, clocks, randomness). Tests replace it.

The default imports Spark only when a run begins: importing ``acker_client.source`` needs neither Spark nor grpc.
"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any, Protocol

import pyarrow as pa

from acker_client.client import AckerClient
from acker_client.cluster.scope import BatchScope
from acker_client.pins import Pin, Pins
from acker_client.source.engine.timer import Timer, start_timer
from acker_client.source.engine.watcher import Watcher, Watching
from acker_client.source.errors import SourceError
from acker_protocol.ids import BASE_MAX


@dataclass(frozen=True, slots=True)
class FramePlan:
    """How a batch is read: its records are numbered 0 to k - 1 over ``slices``. ``name``: the source's name; ``pin``:
    the servers that hold the roots, None if tracking is off; ``description``: the batch as Spark's UI shows it."""

    name: str
    scope: BatchScope
    pin: Pin | None
    schema: Any
    slices: Sequence[Any]
    held: bool = True
    description: str = ""
    # Which records are tracked: the option ``track``.
    track: Any = None

    @property
    def pins(self) -> Pins:
        """The pin, as settings take it; empty if tracking is off."""
        return () if self.pin is None else (self.pin,)


class Evidence(Protocol):
    """The evidence about a batch in Spark's driver."""

    @property
    def unfinished_because(self) -> str:
        """The reason why records of the batch may be unfinished through no fault of their own, found by :meth:`judge`;
        "" if there is none."""
        ...

    @property
    def without(self) -> frozenset[int]:
        """Ids of the servers that tasks have left out of their reports."""
        ...

    @property
    def is_shared(self) -> bool:
        """Whether a sink took rows of this and another batch together. Records of the other batch may be ACKED."""
        ...

    @property
    def folders(self) -> frozenset[str]:
        """The folders into which Spark wrote files of the batch's rows, as far as :meth:`judge` has seen."""
        ...

    @property
    def waited_s(self) -> float:
        """How long writes of the batch have waited because others wrote into the same place. Any thread may ask."""
        ...

    @property
    def has_run(self) -> bool:
        """Whether any job has read the batch's rows, so that the driver may have seen some."""
        ...

    def cancel_jobs(self) -> None:
        """Cancel the jobs that the work on the batch runs now. Any thread may call it."""
        ...

    def judge(self) -> BaseException | None:
        """Return an exception if the batch is not *done*, because a sink raised or because evidence that its rows were
        delivered is missing. Return None if it is *done*."""
        ...

    def vouch(self) -> None:
        """Accept the user's statement that everything so far has delivered the rows."""
        ...

    def release(self) -> None:
        """Free what the batch keeps in Spark's memory."""
        ...


class BatchFrame(Protocol):
    """A batch as a tracked DataFrame."""

    @property
    def df(self) -> Any: ...
    @property
    def evidence(self) -> Evidence: ...


class Blame(Enum):
    """The cause of a failed batch. WORK: its records, Spark or the output, so a retry may help. CODE: the
    program, so no retry helps. MISTAKE: the program, unless a job has read the batch's rows, because a row may
    have caused the error. EVIDENCE: the program, if the failure happens twice in succession."""

    WORK = "work"
    CODE = "code"
    MISTAKE = "mistake"
    EVIDENCE = "evidence"


# Starts a thread that calls the function, and returns the thread. The text is the thread's name.
StartThread = Callable[[Callable[[], None], str], threading.Thread]


def _start_thread(call: Callable[[], None], name: str) -> threading.Thread:
    thread = threading.Thread(target=call, name=name, daemon=True)
    thread.start()
    return thread


def _always_work(error: BaseException) -> Blame:
    return Blame.WORK


@dataclass(frozen=True, slots=True)
class Environment:
    """The outside world of a run. ``connect(spark)`` makes the client (None: tracking is off), and ``frame(spark,
    plan)`` a batch's DataFrame. ``parallelism(spark)`` returns the number of tasks that run at once, ``blame(error)``
    the cause of a failure. ``watch(client)`` begins to watch for outcomes. ``timer`` calls a function again and again,
    after times of the function's choice. ``start_thread`` starts the thread of a batch if several are
    worked on at once. ``check()`` is called before outcomes are taken, and raises when the run has
    to end. ``clock``: monotonic seconds; ``wall``: Unix seconds; ``draw``: uniform in [0, 1); ``draw_base``: base of a
    session."""

    connect: Callable[[Any], AckerClient | None]
    frame: Callable[[Any, FramePlan], BatchFrame]
    parallelism: Callable[[Any], int]
    blame: Callable[[BaseException], Blame] = _always_work
    watch: Callable[[AckerClient], Watching] = Watcher
    timer: Timer = start_timer
    start_thread: StartThread = _start_thread
    check: Callable[[], None] = lambda: None
    clock: Callable[[], float] = time.monotonic
    wall: Callable[[], float] = time.time
    sleep: Callable[[float], None] = time.sleep
    draw: Callable[[], float] = random.random
    draw_base: Callable[[], int] = lambda: random.SystemRandom().randrange(1, BASE_MAX - (1 << 48))


def spark_environment() -> Environment:
    """Return the environment of a real run."""
    return Environment(
        connect=_connect, frame=_frames(), parallelism=_parallelism, blame=_blame, start_thread=_start_spark_thread
    )


def arrow_schema(schema: Any) -> Any:
    """Convert a Spark schema (DDL text or ``StructType``) to a ``pyarrow.Schema``."""
    from acker_client.spark.worker.schema import arrow_schema_of

    return arrow_schema_of(schema)


def spark_schema(schema: pa.Schema) -> Any:
    """Convert an Arrow schema to a Spark ``StructType``. Raises ``SourceError`` for types that Spark lacks."""
    from acker_client.spark.worker.schema import spark_schema_of

    try:
        return spark_schema_of(schema)
    except ValueError as error:
        raise SourceError(str(error)) from None


def _connect(spark: Any) -> AckerClient | None:
    from acker_client.spark.driver.session import settings_of

    if not hasattr(spark, "conf"):
        raise SourceError(f"batches({spark!r}): give the SparkSession to run the batches in")
    settings = settings_of(spark)
    return AckerClient(settings) if settings.tracking else None


def _frames() -> Callable[[Any, FramePlan], BatchFrame]:
    """Return the function that makes the frames of one run. It remembers which rows Spark should evaluate only once,
    and the schema, which is the same for all batches of a run."""
    once: Any = None
    schema: Any = None
    lock = threading.Lock()

    def frame(spark: Any, plan: FramePlan) -> BatchFrame:
        from acker_client.spark.commit_evidence.batch import Once
        from acker_client.spark.driver.session import settings_of_batch
        from acker_client.spark.operators.read import frame_of
        from acker_client.spark.worker.rows import struct_type

        nonlocal once, schema
        with lock:
            if once is None:
                once, schema = Once(), struct_type(plan.schema)
        return frame_of(
            spark,
            name=plan.name,
            scope=plan.scope,
            schema=schema,
            slices=plan.slices,
            settings=settings_of_batch(spark, plan.pins),
            once=once,
            held=plan.held,
            description=plan.description,
            track=plan.track,
        )

    return frame


def _start_spark_thread(call: Callable[[], None], name: str) -> threading.Thread:
    from acker_client.spark.driver.session import start_thread

    return start_thread(call, name)


def _blame(error: BaseException) -> Blame:
    from acker_client.spark.commit_evidence.blame import is_mistake, is_of_the_program, is_without_evidence

    if is_of_the_program(error):
        return Blame.CODE
    if is_mistake(error):
        return Blame.MISTAKE
    return Blame.EVIDENCE if is_without_evidence(error) else Blame.WORK


def _parallelism(spark: Any) -> int:
    return max(1, int(spark.sparkContext.defaultParallelism))
