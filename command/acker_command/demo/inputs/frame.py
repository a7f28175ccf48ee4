"""Frame: writes the demo's lines to Parquet files, and reads them by a streaming query with ``tracked`` as
foreachBatch."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from itertools import islice
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.errors import StreamingQueryException

from acker_client.source import Batch, tracked
from acker_command.demo import DemoError
from acker_command.demo.corpus import Corpus
from acker_command.demo.inputs import DemoInput

# A batch has two files, so that both cores get rows. A micro-batch has four, so that it has more than one batch.
FILES_PER_BATCH = 2
FILES_PER_MICRO_BATCH = 4
SCHEMA = pa.schema([("path", pa.string()), ("line", pa.int64()), ("value", pa.binary())])


class FrameLines(DemoInput):
    columns = ("value", "path", "line")

    def __init__(self, text: Corpus, folder: Path, batch_records: int) -> None:
        super().__init__(text, folder, batch_records)
        self._file_records = -(-batch_records // FILES_PER_BATCH)
        self._micro_batches = -(-text.records // (self._file_records * FILES_PER_MICRO_BATCH))
        self._failure: BaseException | None = None
        self.place = f"{self._micro_batches} micro-batches of a streaming query"

    def begin(self, exits: ExitStack) -> None:
        lines = self.text.lines()
        (self.folder / "lines").mkdir()
        for first in range(0, self.text.records, self._file_records):
            columns = list(zip(*islice(lines, self._file_records), strict=True))
            pq.write_table(pa.table(columns, schema=SCHEMA), self.folder / "lines" / f"{first:012}.parquet")

    def run(self, spark: Any, process: Callable[[Batch], None], **options: Any) -> None:
        rows = spark.readStream.schema("path string, line bigint, value binary")
        rows = rows.option("maxFilesPerTrigger", FILES_PER_MICRO_BATCH).parquet(str(self.folder / "lines"))
        writer = rows.writeStream.option("checkpointLocation", str(self.folder / "checkpoint"))
        each = self._keep_failure(tracked(process, key=("path", "line"), **options))
        query = writer.foreachBatch(each).trigger(availableNow=True).start()
        try:
            query.awaitTermination()
        except StreamingQueryException as error:
            raise self._failure or error from error
        finally:
            query.stop()

    def is_at_end(self) -> bool:
        """Return whether Spark has committed the last micro-batch."""
        # Spark numbers micro-batches from 0 and keeps only the newest commit files, so the highest number counts.
        commits = (self.folder / "checkpoint" / "commits").glob("*")
        return max((int(path.name) for path in commits if path.name.isdecimal()), default=-1) + 1 == self._micro_batches

    def _keep_failure(self, function: Callable[[Any, int], None]) -> Callable[[Any, int], None]:
        """Wrap ``function`` to keep the error that it raises, because the query's exception contains only the text of
        that error."""

        def micro_batch(df: Any, number: int) -> None:
            try:
                function(df, number)
            except BaseException as error:
                self._failure = error
                # Py4J passes on only subclasses of Exception. After any other BaseException Spark would wait forever.
                raise DemoError(str(error)) from error

        return micro_batch
