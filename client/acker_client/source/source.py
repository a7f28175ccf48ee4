"""Source: what a user holds. Opens a run, hands out its batches, and sums up."""

from __future__ import annotations

import os
from collections.abc import Callable, Generator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from acker_client.source.core.input import Input
from acker_client.source.core.listener import Listener
from acker_client.source.core.retry import Retry
from acker_client.source.core.summary import Counts, Summary
from acker_client.source.errors import SourceError
from acker_client.source.inputs.files import FileInput, Paths
from acker_client.source.inputs.json_lines import JsonParser
from acker_client.source.inputs.lines import Parser, TextParser
from acker_client.source.run.batch import Batch
from acker_client.source.run.options import Options
from acker_client.source.run.rim import Rim, arrow_schema, spark_rim
from acker_client.source.run.run import Run

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

TEXT_SCHEMA = "value string, path string, line bigint"
FORMATS = ("text", "json")


class Source:
    """An input whose every record ends in exactly one of two ways: acked, or in the dead letters."""

    def __init__(self, options: Options, *, rim: Rim | None = None) -> None:
        self.options = options
        self._rim = rim
        self._run: Run | None = None
        self._is_running = False

    def input(self) -> tuple[Input, Any]:
        """A fresh input and the Spark schema of its rows; called when a run begins, as a translation may need Spark."""
        raise NotImplementedError

    def batches(self, spark: SparkSession) -> Generator[Batch, None, None]:
        """Hand out batches, replays among them, until every record has its answer.

        A batch is settled when the loop comes back for the next one: *done* where there is evidence that its rows were
        delivered, else it is *abandoned* and replayed. Leaving the loop in any other way abandons the batch, unless
        ``batch.done()`` was called, and ends the run: nothing is lost, the next start goes on from the checkpoint. To
        try a failing batch again, in smaller and smaller pieces until the record that breaks it is alone, use ``run``.

        Raises ``SourceError`` (``TooManyDeadLetters``, ``CheckpointError`` ...) with what to do, and what failed where
        the program is at fault (``Refused``, ``OperatorError``, Spark's ``AnalysisException``).
        """
        with self._begin(spark) as run:
            while (batch := run.next_batch()) is not None:
                try:
                    yield batch
                except GeneratorExit:
                    # The loop was left, by `break` or by an exception: a generator cannot tell which.
                    run.leave(batch)
                    raise
                run.settle(batch)

    def run(self, spark: SparkSession, process: Callable[[Batch], object]) -> Summary:
        """Call ``process(batch)`` for every batch until every record has its answer, and return the summary.

        When ``process`` raises, the batch is abandoned and replayed: once as it is, then in smaller pieces, so that a
        row which breaks a whole Spark job ends alone in the dead letters and takes no neighbour along. Where the
        program is at fault (``Refused``, ``OperatorError``, Spark's ``AnalysisException``, or no evidence of a write
        twice in a row), the run ends at once with that error: nothing is lost, and no record pays for it.
        """
        with self._begin(spark) as run:
            while (batch := run.next_batch()) is not None:
                try:
                    process(batch)
                except Exception as error:
                    run.settle(batch, error)
                except BaseException:
                    run.leave(batch)
                    raise
                else:
                    run.settle(batch)
        return self.summary()

    def __repr__(self) -> str:
        state = "running" if self._is_running else "not started" if self._run is None else "ended"
        return f"<{type(self).__name__} {self.options.name!r}, {state}: {self.summary().brief}>"

    def summary(self) -> Summary:
        """What the current or latest run has done so far."""
        if self._run is None:
            return Summary.of(self.options.name, Counts(), elapsed_s=0.0, checkpoint="not started")
        return self._run.summary()

    def _begin(self, spark: Any) -> _Running:
        return _Running(self, spark)

    def _new_run(self, spark: Any) -> Run:
        if self._is_running:
            raise SourceError(f"source {self.options.name!r} is running already: end its loop first")
        rim = self._rim or spark_rim()
        source, schema = self.input()
        return Run(self.options, source, schema, spark, rim)


class _Running:
    """The one run that a source has at a time."""

    def __init__(self, source: Source, spark: Any) -> None:
        self._source = source
        self._spark = spark

    def __enter__(self) -> Run:
        run = self._source._new_run(self._spark)
        run.__enter__()
        self._source._run, self._source._is_running = run, True
        return run

    def __exit__(self, *error: object) -> None:
        self._source._is_running = False
        if self._source._run is not None:
            self._source._run.__exit__(*error)


class Files(Source):
    """Lines of files as a source.

    ``paths``: a path, a pattern (``**`` too), or several; read in the order given, each pattern sorted. ``name``: of
    the source. ``format``: "text" gives a row ``value string, path string, line bigint`` per line, whatever is in it;
    "json" parses each line as an object into the columns of ``schema`` (DDL text or ``StructType``), and a line that
    does not fit is a record that fails. A line that is not valid UTF-8 fails, too, with its position.

    ``checkpoint``: file that says up to where all records are done; without one every start reads everything.
    ``dead_letters``: JSON lines of what has spent its retries (see ``retry``); without one, such a record ends the
    run. ``max_dead_share``: above this share of dead letters (and more than ten) the run stops, as something is wrong
    with the job rather than with the records; 1 never stops it.

    ``batch_records``: at most so many in a batch; ``max_uncommitted``: so many may be read and not done;
    ``partitions``: tasks that read a batch (default: what Spark runs at once). ``listener`` sees what happens to
    records. ``deadline_s``: the last resort, after which a batch that no server answers for is LOST and replayed;
    ``lease_s``: so long after a driver's death the server drops what it had pending.
    """

    def __init__(
        self,
        paths: Paths,
        *,
        name: str,
        format: str = "text",
        schema: Any = None,
        checkpoint: str | os.PathLike[str] | None = None,
        dead_letters: str | os.PathLike[str] | None = None,
        retry: Retry = Retry(),  # noqa: B008 (frozen)
        max_dead_share: float = 0.01,
        batch_records: int = 500_000,
        max_uncommitted: int | None = None,
        partitions: int | None = None,
        listener: Listener | None = None,
        deadline_s: float = 300.0,
        lease_s: float = 30.0,
        rim: Rim | None = None,
    ) -> None:
        options = Options(
            name=name,
            checkpoint=None if checkpoint is None else Path(checkpoint),
            dead_letters=None if dead_letters is None else Path(dead_letters),
            retry=retry,
            max_dead_share=max_dead_share,
            batch_records=batch_records,
            max_uncommitted=_uncommitted(max_uncommitted, batch_records),
            partitions=partitions,
            deadline_s=deadline_s,
            lease_s=lease_s,
            listener=Listener() if listener is None else listener,
        )
        super().__init__(options, rim=rim)
        if format not in FORMATS:
            raise ValueError(f"format={format!r}: give 'text' or 'json'")
        if (schema is None) == (format == "json"):
            needed = "json needs one, like schema='sku string, qty int'" if schema is None else "text has its own"
            raise ValueError(f"schema={schema!r} with format={format!r}: {needed}")
        self.paths = paths
        self.format = format
        self.schema = schema

    def input(self) -> tuple[Input, Any]:
        parser: Parser = TextParser() if self.format == "text" else JsonParser(arrow_schema(self.schema))
        schema = TEXT_SCHEMA if self.format == "text" else self.schema
        return FileInput(self.paths, parser, own_files=self.options.own_files), schema


def _uncommitted(given: int | None, batch_records: int) -> int:
    """Ten batches, unless said otherwise: enough to go on reading while some records wait for their replay."""
    return 10 * batch_records if given is None and isinstance(batch_records, int) else given or 0
