"""The source ``Frame`` reads the rows of a DataFrame as records. ``tracked`` runs a ``Frame`` for each micro-batch."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Unpack

from acker_client.clean_up import CleanUp
from acker_client.source.engine.batch import Batch
from acker_client.source.engine.environment import Environment
from acker_client.source.engine.given import options_of
from acker_client.source.engine.options import CommonOptions
from acker_client.source.engine.run import Run
from acker_client.source.engine.source import Source
from acker_client.source.frame.environment import PersistedFrame, StreamingQuery, changed, frame_environment
from acker_client.source.frame.input import FrameInput
from acker_client.source.records.batch_size import LARGEST
from acker_client.source.records.input import Input
from acker_client.source.records.summary import Summary

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


class Frame(Source):
    """A source whose records are the rows of a DataFrame.

    The source persists ``df`` while it runs, with ``storage_level`` (by default Spark's own), unless you have persisted
    it yourself. It numbers the rows by partition and row. If Spark has to recompute some of the frame and gets
    different rows (from random numbers, a clock, a changed table), the run ends with ``InputChanged``, and none of
    these rows is acked. ``key``: the columns that name a row in dead letters and logs; by default its partition and
    row. A ``checkpoint`` is useful only if the next start reads the same frame in the same order. ``options``: see
    ``CommonOptions``; ``partitions`` has no effect, because the frame has its own partitions.
    """

    def __init__(
        self,
        df: DataFrame,
        *,
        key: str | Sequence[str] = (),
        storage_level: Any = None,
        **options: Unpack[CommonOptions],
    ) -> None:
        given = options_of(Frame, options)
        if "batch_records" not in options:
            # The user has chosen the size of a micro-batch.
            given = replace(given, batch_records=min(LARGEST, given.open_max))
        super().__init__(given)
        _key_names(key)
        self.df = df
        self.key = _checked_key(df, key, self.options.name)
        self.storage_level = storage_level
        self._query: StreamingQuery | None = None
        self._once: Any = None
        self._persisted: PersistedFrame | None = None

    def input(self) -> tuple[Input[Any], Any]:
        assert self._persisted is not None
        return FrameInput(self._persisted, self.key), self._persisted.schema

    def environment(self) -> Environment:
        if self.options.environment is not None or self._persisted is None:
            return super().environment()
        return frame_environment(self._persisted, self._query)

    @contextmanager
    def _open_run(self, spark: Any, streams: bool) -> Iterator[Run]:
        from acker_client.spark.driver.persisted import Persisted

        persisted = Persisted(self.df, self.storage_level)
        try:
            with CleanUp() as undo:
                undo.add(persisted.unpersist)
                persisted.persist()
                self._persisted = PersistedFrame(persisted, self._once)
                # In foreachBatch the active session is not the session of the micro-batch.
                with super()._open_run(self.df.sparkSession, streams) as run:
                    yield run
        except Exception as error:
            if (found := changed(error)) is not None:
                raise found from error
            raise
        finally:
            self._persisted = None


class Tracked:
    """The result of ``tracked``. ``foreachBatch`` calls it with each micro-batch."""

    def __init__(self, process: Callable[[Batch], object], key: str | Sequence[str], storage_level: Any, options: Any):
        self._process = process
        self._key = key
        self._storage_level = storage_level
        self._options = options
        self._latest: Frame | None = None
        # What a micro-batch remembers for the later ones.
        self._once: Any = None

    def __call__(self, df: DataFrame, batch_id: int) -> None:
        """Process a micro-batch. Returns when every row is acked or in the dead letters; raises otherwise."""
        from acker_client.spark.commit_evidence.batch import Once

        source = Frame(df, key=self._key, storage_level=self._storage_level, **self._options)
        query = source._query = StreamingQuery(df)
        source._once = self._once = self._once or Once()
        self._latest = source
        with CleanUp() as undo:
            undo.add(query.end_micro_batch)
            try:
                source.run(df.sparkSession, self._process)
            except Exception as error:
                query.check_error(error)
                raise

    def summary(self) -> Summary | None:
        """Return the summary of the latest micro-batch; None before the first."""
        return None if self._latest is None else self._latest.summary()


def tracked(
    process: Callable[[Batch], object],
    *,
    key: str | Sequence[str] = (),
    storage_level: Any = None,
    **options: Unpack[CommonOptions],
) -> Tracked:
    """Return a function for ``foreachBatch`` that tracks the rows of each micro-batch.

    Spark's checkpoint moves on if, and only if, every row of a micro-batch is acked or in the dead letters. Otherwise
    the function raises the error (``QueryStopped`` if the query was stopped), which ends the query. The next start of
    the query gets the same micro-batch again.

    ``process(batch)`` is called for each batch of rows, including replays, as in ``Source.run``. The ``options`` apply
    to each micro-batch separately. ``batch.number`` begins at 1 in each micro-batch, so name output by ``batch.id``.
    There is no ``checkpoint`` option, because Spark has its own. The other arguments are as for ``Frame``.
    """
    if options.get("checkpoint") is not None:
        raise ValueError(
            "checkpoint: a streaming query has its own, .option('checkpointLocation', ...): leave this out"
        )
    options_of(tracked, options)
    _key_names(key)
    if not callable(process):
        raise TypeError(f"tracked({process!r}): give the function that is called for each batch, process(batch)")
    return Tracked(process, key, storage_level, options)


def _key_names(key: str | Sequence[str]) -> tuple[str, ...]:
    names = (key,) if isinstance(key, str) else tuple(key) if isinstance(key, Sequence) else (key,)
    if not all(isinstance(each, str) for each in names):
        raise TypeError(f"key={key!r}: give the name of a column, or several, like key=['id']")
    return names


def _checked_key(df: Any, key: str | Sequence[str], name: str) -> tuple[str, ...]:
    """Return the columns of the key. Raises ``TypeError`` or ``ValueError`` if the frame cannot be tracked."""
    from acker_client.spark.driver.persisted import refuse
    from acker_client.spark.operators.read_frame import refuse_columns

    if problem := refuse(df):
        raise TypeError(f"source {name!r}: {problem}")
    if problem := refuse_columns(df.columns):
        raise ValueError(f"source {name!r}: {problem}")
    names = _key_names(key)
    if missing := [each for each in names if each not in df.columns]:
        raise ValueError(
            f"source {name!r}: key={missing[0]!r} is no column of the frame; it has {', '.join(df.columns)}"
        )
    return names
