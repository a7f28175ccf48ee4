"""Environment: everything outside that a run touches (Spark, the server, clocks, chance), to be replaced in tests.

The default reaches for Spark only when a run begins: importing ``acker_client.source`` needs neither Spark nor grpc.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from typing import Any, Protocol

import pyarrow as pa

from acker_client.client import AckerClient
from acker_client.cluster.scope import BatchScope
from acker_client.pins import Pin
from acker_client.source.engine.watcher import Watcher, Watching
from acker_client.source.errors import SourceError
from acker_protocol.ids import BASE_MAX


@dataclass(frozen=True, slots=True)
class FramePlan:
    """A batch as it is to be read: its numbers 0 to k - 1 over ``slices``. ``name``: of the source; ``pin``: where its
    roots live."""

    name: str
    scope: BatchScope
    pin: Pin
    schema: Any
    slices: Sequence[Any]
    held: bool = True


class Evidence(Protocol):
    """What the driver side of Spark noted of a batch."""

    @property
    def unfinished_because(self) -> str:
        """Why records of the batch may be unfinished through no fault of their own, as far as :meth:`judge` has seen;
        nothing ("") where there is no such reason."""
        ...

    @property
    def without(self) -> frozenset[int]:
        """The servers, by their ids, that tasks have reported without."""
        ...

    @property
    def is_shared(self) -> bool:
        """Whether a sink took its rows together with another batch's, the records of which may be ACKED."""
        ...

    @property
    def has_run(self) -> bool:
        """Whether something ran over the batch's rows, so that the driver may have seen some."""
        ...

    def judge(self) -> BaseException | None:
        """Why the batch is not to be settled as *done*: an exception that went through a sink, or no evidence that its
        rows were delivered; None when it is."""
        ...

    def vouch(self) -> None:
        """Take the user's word for it that what was done so far has delivered the rows."""
        ...

    def release(self) -> None:
        """Give back what the batch kept in Spark's memory."""
        ...


class BatchFrame(Protocol):
    """A batch as a tracked DataFrame."""

    @property
    def df(self) -> Any: ...
    @property
    def evidence(self) -> Evidence: ...


class Blame(Enum):
    """What is at fault when a batch fails. WORK: its records, Spark or what it writes to, so another try may help;
    CODE: the program, so none does; MISTAKE: the program, unless something ran over the batch's rows, one of which may
    have caused it; EVIDENCE: the program, if it happens twice in a row."""

    WORK = "work"
    CODE = "code"
    MISTAKE = "mistake"
    EVIDENCE = "evidence"


def _always_work(error: BaseException) -> Blame:
    return Blame.WORK


@dataclass(frozen=True, slots=True)
class Environment:
    """``connect(spark)`` makes the client, ``frame(spark, plan)`` a batch's DataFrame, ``parallelism(spark)`` says
    how many tasks run at once, ``blame(error)`` what is at fault; ``watch`` begins to watch for outcomes, and
    ``check()``, asked at each look for them, raises when the run is not to go on. ``clock`` is monotonic seconds,
    ``wall`` Unix seconds, ``draw`` uniform in [0, 1), ``draw_base`` a session's base."""

    connect: Callable[[Any], AckerClient]
    frame: Callable[[Any, FramePlan], BatchFrame]
    parallelism: Callable[[Any], int]
    blame: Callable[[BaseException], Blame] = _always_work
    watch: Callable[[AckerClient], Watching] = Watcher
    check: Callable[[], None] = lambda: None
    clock: Callable[[], float] = time.monotonic
    wall: Callable[[], float] = time.time
    sleep: Callable[[float], None] = time.sleep
    draw: Callable[[], float] = random.random
    draw_base: Callable[[], int] = lambda: random.SystemRandom().randrange(1, BASE_MAX - (1 << 48))


def spark_environment() -> Environment:
    """The environment of a real run."""
    return Environment(connect=_connect, frame=_frames(), parallelism=_parallelism, blame=_blame)


def arrow_schema(schema: Any) -> Any:
    """A Spark schema (DDL text or ``StructType``) as a ``pyarrow.Schema``."""
    from acker_client.spark.worker.schema import arrow_schema_of

    return arrow_schema_of(schema)


def spark_schema(schema: pa.Schema) -> Any:
    """An Arrow schema as a Spark schema, a ``StructType``. Raises ``SourceError`` for a type that Spark has not."""
    from acker_client.spark.worker.schema import spark_schema_of

    try:
        return spark_schema_of(schema)
    except ValueError as error:
        raise SourceError(str(error)) from None


def _connect(spark: Any) -> AckerClient:
    from acker_client.spark.driver.session import settings_of

    if not hasattr(spark, "conf"):
        raise SourceError(f"batches({spark!r}): give the SparkSession to run the batches in")
    return AckerClient(settings_of(spark))


def _frames() -> Callable[[Any, FramePlan], BatchFrame]:
    """Makes the frames of one run, which remember from batch to batch whose rows are to be evaluated once."""
    once: Any = None

    def frame(spark: Any, plan: FramePlan) -> BatchFrame:
        from acker_client.spark.commit_evidence.batch import Once
        from acker_client.spark.driver.session import settings_of
        from acker_client.spark.operators.read import frame_of

        nonlocal once
        once = once or Once()
        settings = replace(settings_of(spark), pins=(plan.pin,))
        return frame_of(
            spark,
            name=plan.name,
            scope=plan.scope,
            schema=plan.schema,
            slices=plan.slices,
            settings=settings,
            once=once,
            held=plan.held,
        )

    return frame


def _blame(error: BaseException) -> Blame:
    from acker_client.spark.commit_evidence.blame import is_mistake, is_of_the_program, is_without_evidence

    if is_of_the_program(error):
        return Blame.CODE
    if is_mistake(error):
        return Blame.MISTAKE
    return Blame.EVIDENCE if is_without_evidence(error) else Blame.WORK


def _parallelism(spark: Any) -> int:
    return max(1, int(spark.sparkContext.defaultParallelism))
