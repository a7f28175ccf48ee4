"""Source: the user's handle. Opens a run, yields its batches, and sums up."""

from __future__ import annotations

from collections.abc import Callable, Generator
from contextlib import AbstractContextManager
from types import TracebackType
from typing import TYPE_CHECKING, Any

from acker_client.source.engine.batch import Batch
from acker_client.source.engine.environment import Environment, spark_environment
from acker_client.source.engine.options import Options
from acker_client.source.engine.run import Run
from acker_client.source.errors import SourceError
from acker_client.source.records.input import Input
from acker_client.source.records.summary import Counts, Summary

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from acker_client.source.engine.prometheus import SourceCollector


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
        if not callable(process):
            raise TypeError(f"run(spark, {process!r}): give a function that takes a Batch, like run(spark, process)")
        with self._begin_run(spark) as run:
            while (batch := run.next_batch()) is not None:
                try:
                    process(batch)
                except Exception as error:  # noqa: BLE001  # the user's job may raise anything
                    run.settle_batch(batch, error)
                except BaseException:
                    run.abandon_batch(batch)
                    raise
                else:
                    run.settle_batch(batch)
        return self.summary()

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

    def collector(self) -> SourceCollector:
        """Return the metrics for Prometheus: ``prometheus_client.REGISTRY.register(source.collector())``. Needs the
        extra `metrics`."""
        from acker_client.source.engine.prometheus import SourceCollector

        return SourceCollector(self.summary, lambda: [] if self._run is None else self._run.partition_states())

    def environment(self) -> Environment:
        """Return the environment of this source's runs."""
        return self.options.environment or spark_environment()

    def _begin_run(self, spark: Any) -> AbstractContextManager[Run]:
        return _Running(self, spark)

    def _new_run(self, spark: Any) -> Run:
        if self._is_running:
            raise SourceError(f"source {self.options.name!r} is running already: end its loop first")
        input_, schema = self.input()
        return Run(self.options, input_, schema, spark, self.environment(), is_stopping=lambda: self._is_stopping)


class _Running:
    """The one run that a source has at a time."""

    def __init__(self, source: Source, spark: Any) -> None:
        self._source = source
        self._spark = spark

    def __enter__(self) -> Run:
        self._source._is_stopping = False
        run = self._source._new_run(self._spark)
        run.__enter__()
        self._source._run, self._source._is_running = run, True
        return run

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._source._is_running = False
        if self._source._run is not None:
            self._source._run.__exit__(kind, error, at)
