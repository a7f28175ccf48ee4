"""Source: the user's handle. Opens a run, yields its batches, and sums up."""

from __future__ import annotations

import threading
from collections.abc import Callable, Generator, Iterator
from contextlib import AbstractContextManager, contextmanager
from types import TracebackType
from typing import TYPE_CHECKING, Any

from acker_client.source.engine.batch import Batch
from acker_client.source.engine.batch_threads import BatchThreads
from acker_client.source.engine.environment import Environment, spark_environment
from acker_client.source.engine.options import Options
from acker_client.source.engine.run import Run
from acker_client.source.errors import SourceError
from acker_client.source.records.input import Input
from acker_client.source.records.outcome import RecordOutcome
from acker_client.source.records.progress import Progress
from acker_client.source.records.summary import Counts, Summary

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from acker_client.source.engine.prometheus import SourceCollector


# Guards the beginning of runs. Not a part of a source, which stays picklable.
_BEGINNING = threading.Lock()


class Source:
    """An input whose every record ends in exactly one of two ways: acked, or in the dead letters."""

    def __init__(self, options: Options) -> None:
        self.options = options
        self._run: Run | None = None
        self._is_running = False
        self._is_stopping = False

    def input(self) -> tuple[Input[Any], Any]:
        """Return a fresh input and the Spark schema of its rows. Called when a run begins, and not earlier, because
        converting a schema may need Spark."""
        raise NotImplementedError

    def batches(self, spark: SparkSession) -> Generator[Batch, None, None]:
        """Yield batches, replays among them, until every record has its answer.

        A batch is settled when the loop asks for the next one: *done* if there is evidence that its rows were
        delivered, otherwise it is *abandoned* and replayed. Leaving the loop in any other way abandons the batch,
        unless ``batch.done()`` was called, and ends the run. Nothing is lost: the next start continues from the
        checkpoint. Use ``run`` to replay a failing batch in smaller and smaller pieces, until the record that breaks it
        is alone.

        Raises ``SourceError`` (``TooManyDeadLetters``, ``CheckpointError`` ...) with what to do. Raises the failure
        itself if the program is at fault (``Refused``, ``OperatorError``, Spark's ``AnalysisException``).
        """
        if self.options.concurrency > 1:
            raise ValueError(
                f"concurrency={self.options.concurrency} with batches(): a loop works on one batch at a time; use"
                " run(spark, process), or leave concurrency out"
            )
        return self._batches(spark)

    def _batches(self, spark: Any) -> Generator[Batch, None, None]:
        with self._begin_run(spark) as run:
            while (batch := run.next_batch()) is not None:
                try:
                    yield batch
                except GeneratorExit:
                    # The loop was left, by `break` or by an exception: a generator cannot tell which.
                    run.abandon_batch(batch)
                    raise
                run.settle_batch(batch)

    def run(self, spark: SparkSession, process: Callable[[Batch], object]) -> Summary:
        """Call ``process(batch)`` for every batch until every record has its answer, and return the summary.

        If ``process`` raises, the batch is abandoned and replayed: once as it is, then in smaller pieces. So a row that
        breaks a whole Spark job ends alone in the dead letters, without its neighbours. If the program is at fault
        (``Refused``, ``OperatorError``, Spark's ``AnalysisException``, or two batches in a row without evidence of a
        write), the run ends at once with that error. Nothing is lost, and no record uses up a retry.
        """
        _check_process("run", process)
        with self._begin_run(spark) as run, self._batch_threads(run, process) as advance:
            while not run.is_over:
                advance()
        return self.summary()

    def outcomes(self, spark: SparkSession, process: Callable[[Batch], object]) -> Generator[RecordOutcome, None, None]:
        """Run the source like ``run``, and yield how each try of a record ended: exactly one final outcome for each
        record that gets its answer, and one for each try before that.

        The run goes on when the loop asks for the next outcome: the next batch begins when all outcomes of the last one
        are taken, so no more than those wait in memory. A record counts as done when the loop has asked for the outcome
        after its final one. So if the loop is left, or the driver dies, the next start reads the other records again,
        and an outcome may come twice. Raises what ``run`` raises.
        """
        _check_process("outcomes", process)
        return self._outcomes(spark, process)

    def _outcomes(self, spark: Any, process: Callable[[Batch], object]) -> Generator[RecordOutcome, None, None]:
        with self._begin_run(spark, streams=True) as run, self._batch_threads(run, process) as advance:
            while not run.is_over:
                advance()
                yield from run.take_outcomes()

    @contextmanager
    def _batch_threads(self, run: Run, process: Callable[[Batch], object]) -> Iterator[Callable[[], None]]:
        """Yield a function that opens and settles a batch, or some."""
        if self.options.concurrency == 1:
            yield lambda: _work(run, process)
            return
        with BatchThreads(run, process, self.options.concurrency) as threads:
            yield threads.advance

    def stop(self) -> None:
        """End the current run, after the current batch and without waiting for replays. May be called from any thread
        or signal handler. Nothing is lost: records that are not done are read again at the next start."""
        self._is_stopping = True

    def __repr__(self) -> str:
        state = "running" if self._is_running else "not started" if self._run is None else "ended"
        return f"<{type(self).__name__} {self.options.name!r}, {state}: {self.summary().brief}>"

    def summary(self) -> Summary:
        """Return the progress of the current or latest run."""
        if self._run is None:
            return Summary.of(self.options.name, Counts(), elapsed_s=0.0, checkpoint="not started")
        return self._run.summary()

    def progress(self) -> Progress:
        """Return what the current or latest run has done, and does now. It never changes. Any thread may ask, often."""
        if self._run is None:
            return Progress.of(Summary.of(self.options.name, Counts(), elapsed_s=0.0, checkpoint=""))
        return self._run.progress()

    def collector(self) -> SourceCollector:
        """Return the metrics for Prometheus: ``prometheus_client.REGISTRY.register(source.collector())``. Needs the
        extra `metrics`."""
        from acker_client.source.engine.prometheus import SourceCollector

        return SourceCollector(self.summary, lambda: [] if self._run is None else self._run.partition_states())

    def environment(self) -> Environment:
        """Return the environment of this source's runs."""
        return self.options.environment or spark_environment()

    def _begin_run(self, spark: Any, *, streams: bool = False) -> AbstractContextManager[Run]:
        """Begin a run. ``streams``: its outcomes are taken, see ``Run``."""
        return _Running(self, spark, streams)

    def _claim(self) -> None:
        """Note that a run begins. From here on a ``stop()`` counts. Raises ``SourceError`` if one is under way."""
        with _BEGINNING:
            if self._is_running:
                raise SourceError(f"source {self.options.name!r} is running already: end its loop first")
            self._is_running, self._is_stopping = True, False

    def _open_run(self, spark: Any, streams: bool) -> AbstractContextManager[Run]:
        """Return a run that is not open yet. An input may need more around it."""
        return self._new_run(spark, streams)

    def _new_run(self, spark: Any, streams: bool = False) -> Run:
        input_, schema = self.input()
        return Run(
            self.options,
            input_,
            schema,
            spark,
            self.environment(),
            is_stopping=lambda: self._is_stopping,
            streams=streams,
        )


class _Running:
    """The one run that a source has at a time."""

    def __init__(self, source: Source, spark: Any, streams: bool) -> None:
        self._source = source
        self._spark = spark
        self._streams = streams

    def __enter__(self) -> Run:
        self._source._claim()
        try:
            self._opened = self._source._open_run(self._spark, self._streams)
            run = self._source._run = self._opened.__enter__()
        except BaseException:
            self._source._is_running = False
            raise
        return run

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        try:
            self._opened.__exit__(kind, error, at)
        finally:
            self._source._is_running = False


def _check_process(method: str, process: object) -> None:
    if not callable(process):
        raise TypeError(
            f"{method}(spark, {process!r}): give a function that takes a Batch, like {method}(spark, process)"
        )


def _work(run: Run, process: Callable[[Batch], object]) -> None:
    """Call ``process`` with the next batch, if there is one, and settle the batch."""
    batch = run.next_batch()
    if batch is None:
        return
    try:
        process(batch)
    except Exception as error:  # noqa: BLE001  # the user's job may raise anything
        run.settle_batch(batch, error)
    except BaseException:
        run.abandon_batch(batch)
        raise
    else:
        run.settle_batch(batch)
