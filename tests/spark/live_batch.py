"""A live batch: a test opens one batch of one source at a real server, runs and settles it, and reads its outcomes.

A record is (number, text), and the text consists of words. Spark's workers import this module, too (``conftest`` puts
it on their path).
"""

from __future__ import annotations

import contextlib
import itertools
import secrets
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession

from acker_client import AckerClient, Settings, Settlement, Verdict
from acker_client.cluster.scope import BatchScope
from acker_client.errors import AckerError
from acker_client.spark.operators.read import Records, frame_of
from acker_protocol import ids

SCHEMA = "number long, text string"
ACKED, FAILED, TIMED_OUT, LOST = Verdict.ACKED, Verdict.FAILED, Verdict.TIMED_OUT, Verdict.LOST
ANSWER_S = 30.0


@dataclass(frozen=True)
class Lines:
    """One slice of a batch: the texts of the numbers from ``start`` up to ``stop``."""

    start: int
    stop: int
    texts: tuple[str, ...]

    def read(self) -> Iterator[Records]:
        numbers = np.arange(self.start, self.stop, dtype=np.uint64)
        columns = pa.RecordBatch.from_pydict({"number": numbers.astype(np.int64), "text": list(self.texts)})
        yield Records(numbers=numbers, columns=columns, unreadable={})


class LiveBatch:
    """One batch. ``df`` is its frame. ``settle()`` ends it and returns the verdict of each record number."""

    names = itertools.count()

    def __init__(
        self,
        spark: SparkSession,
        servers: str | Settings,
        texts: Sequence[str],
        *,
        slices: int = 2,
        held: bool = True,
        once: Any = None,
    ) -> None:
        self.settings = servers if isinstance(servers, Settings) else Settings(servers=(servers,), budget_s=20.0)
        self.spark = spark
        self.texts = tuple(texts)
        self.client = AckerClient(self.settings)
        self.session = self.client.open_source(f"live-{next(LiveBatch.names)}", lease_s=600.0)
        self.base = secrets.randbelow(ids.BASE_MAX)
        self.client.open_batch(1, self.base, len(texts), held=held)
        bounds = np.linspace(0, len(texts), slices + 1).astype(int)
        parts = [Lines(int(a), int(b), self.texts[a:b]) for a, b in itertools.pairwise(bounds)]
        scope = BatchScope(self.session, 1, self.base)
        self.frame = frame_of(
            spark,
            name="lines",
            scope=scope,
            schema=SCHEMA,
            slices=parts,
            settings=self.settings,
            once=once,
            # As in every run of a source: Spark shows it in place of the call.
            description="lines: batch 1, attempt 1",
        )
        self.verdicts: dict[int, Verdict] = {}
        self.reasons: dict[int, str] = {}

    @property
    def df(self) -> DataFrame:
        return self.frame.df

    @property
    def error(self) -> BaseException | None:
        """The reason why ``settle`` must abandon the batch; None if the batch may be settled as done."""
        return self.frame.evidence.judge()

    def settle(self, settlement: Settlement | None = None) -> dict[int, Verdict]:
        """Settle as a source does (done, or abandon where a sink failed), and return the verdict of every number."""
        chosen = settlement or (Settlement.ABANDON if self.error else Settlement.DONE)
        self.client.settle(1, chosen)
        return self.collect()

    def lost(self) -> dict[int, Verdict]:
        """Settle at a server that has lost its state: the call is refused, and everything pending is LOST."""
        with contextlib.suppress(AckerError):
            self.client.settle(1, Settlement.DONE)
        return self.collect()

    def collect(self) -> dict[int, Verdict]:
        """Watch until every number has its outcome."""
        deadline = time.monotonic() + ANSWER_S
        while len(self.verdicts) < len(self.texts) and time.monotonic() < deadline:
            watched = self.client.watch(1.0)
            self._take(watched.outcomes)
        assert len(self.verdicts) == len(self.texts), f"{len(self.texts) - len(self.verdicts)} numbers have no outcome"
        return self.verdicts

    def _take(self, outcomes: Any) -> None:
        numbers = ids.numbers_of(self.base, outcomes.root_ids)
        for index, number in enumerate(numbers.tolist()):
            assert number < len(self.texts), (
                f"an outcome for root {outcomes.root_ids[index]}, which is not of this batch"
            )
            assert number not in self.verdicts, f"a second outcome for {number}"
            self.verdicts[number] = Verdict(int(outcomes.verdicts[index]))
            self.reasons[number] = outcomes.reason(index)

    def close(self) -> None:
        """Release what the batch has in Spark, as a source does. The next batch of this thread may be untracked."""
        try:
            self.frame.evidence.release()
        finally:
            self.client.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()


def words_of(texts: Sequence[str]) -> set[tuple[int, str]]:
    """Return the expected (number, word) rows. The words of one text must differ."""
    return {(number, word) for number, text in enumerate(texts) for word in text.split()}


def texts(count: int, words: int = 3) -> list[str]:
    """Return ``count`` texts of ``words`` different words each."""
    return [" ".join(f"w{number}.{word}" for word in range(words)) for number in range(count)]
