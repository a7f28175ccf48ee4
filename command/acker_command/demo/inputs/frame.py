"""Frame: the lines as rows of a streaming query over Parquet files, whose foreachBatch is ``tracked``."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.errors import StreamingQueryException

from acker_client.source import Batch, tracked
from acker_command.demo.corpus import Corpus
from acker_command.demo.errors import Abort, DemoError
from acker_command.demo.expected import Ints
from acker_command.demo.inputs.demo_input import DemoInput, SourceOptions

# So that each core has rows in a batch, and a micro-batch more than one batch.
FILES_PER_BATCH = 2
FILES_PER_MICRO_BATCH = 4
SCHEMA = pa.schema([("value", pa.binary()), ("path", pa.string()), ("line", pa.int64())])
SPARK_SCHEMA = "value binary, path string, line bigint"


class FrameLines(DemoInput):
    """A row is named by its columns ``path`` (below the input's root) and ``line``."""

    columns = ("value", "path", "line")

    def __init__(self, text: Corpus, folder: Path, batch_records: int) -> None:
        super().__init__(text, folder, batch_records)
        self._first_of = {path.removeprefix(text.root): first for path, first in text.first_of().items()}
        self._file_records = -(-batch_records // FILES_PER_BATCH)
        self._failure: BaseException | None = None

    @property
    def place(self) -> str:
        return f"{self._micro_batches} micro-batches of a streaming query"

    def begin(self, exits: ExitStack) -> None:
        self._files.mkdir()
        lines, number = self.text.lines(), 0
        while some := list(islice(lines, self._file_records)):
            paths, numbers, contents = zip(*some, strict=True)
            pq.write_table(pa.table([contents, paths, numbers], schema=SCHEMA), self._files / f"{number:06}.parquet")
            number += 1

    def run(self, spark: Any, process: Callable[[Batch], None], options: SourceOptions) -> None:
        rows = spark.readStream.schema(SPARK_SCHEMA).option("maxFilesPerTrigger", FILES_PER_MICRO_BATCH)
        writer = rows.parquet(str(self._files)).writeStream.foreachBatch(
            self._noting(tracked(process, key=("path", "line"), **options))
        )
        query = writer.option("checkpointLocation", str(self._progress)).trigger(availableNow=True).start()
        try:
            query.awaitTermination()
        except StreamingQueryException as error:
            raise self._failure or error from error
        finally:
            query.stop()

    def records(self, origins: pa.RecordBatch) -> Ints:
        paths: Any = origins.column("path").dictionary_encode()
        firsts = np.array([self._first_of[path] for path in paths.dictionary.to_pylist()], np.int64)
        records: Ints = firsts[paths.indices.to_numpy()] + origins.column("line").to_numpy() - 1
        return records

    def is_at_end(self) -> bool:
        """Whether Spark's own checkpoint has the last micro-batch as committed: they are numbered from 0, and of many
        Spark keeps the latest only."""
        committed = [int(path.name) for path in (self._progress / "commits").glob("*") if path.name.isdecimal()]
        return max(committed, default=-1) + 1 == self._micro_batches

    @property
    def _files(self) -> Path:
        return self.folder / "lines"

    @property
    def _progress(self) -> Path:
        return self.folder / "checkpoint"

    @property
    def _micro_batches(self) -> int:
        return -(-self.text.records // (self._file_records * FILES_PER_MICRO_BATCH))

    def _noting(self, function: Callable[[Any, int], None]) -> Callable[[Any, int], None]:
        """``function``; what it raises is kept, as the query's own error has no more of it than a text."""

        def micro_batch(df: Any, number: int) -> None:
            try:
                function(df, number)
            except Exception as error:
                self._failure = error
                raise
            except Abort as error:
                self._failure = error
                # Py4J hands on nothing that is no Exception: Spark would wait for ever.
                raise DemoError(str(error)) from None

        return micro_batch
