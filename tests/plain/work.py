"""The program's own code, which runs in Spark's workers, and the faults that are injected into it."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any
from urllib.request import urlopen

import pandas as pd
import pyarrow as pa

from acker_client import Settings
from acker_client.spark import Collector, process_client
from tests.pipelines.work import first_time
from tests.plain import mutants
from tests.plain.program import children_of, message_of

mutants.apply()

LOG = "log"


@dataclass(frozen=True)
class Work:
    """``folder``: notes for the driver, and the file sink. ``url``: the HTTP sink, or "". ``kills_fan`` and
    ``kills_end``: whether the worker is killed once, before row ``at`` of a task. ``raises_in``: whether a block raises
    once, before row ``at``. ``raises``: whether a partition raises once, after it has reported. ``settings``: None
    where a frame has told the tasks where the servers are."""

    folder: str
    url: str
    settings: Settings | None
    poison: frozenset[int] = frozenset()
    flaky: frozenset[int] = frozenset()
    kills_fan: bool = False
    kills_end: bool = False
    raises_in: bool = False
    raises: bool = False
    at: int = 0

    # -- what is done with one row

    def fan(self, t: str) -> list[str]:
        return children_of(t)

    def do(self, t: str) -> str:
        """Do the work of one row: write it to the sink."""
        if t == LOG:
            return t
        number, _ = message = message_of(t)
        if number in self.poison or (number in self.flaky and first_time(self.folder, f"flaky.{t}")):
            self._raise(message, ValueError(f"no {t}"))
        if self.url:
            try:
                urlopen(self.url, t.encode(), timeout=30).close()
            except OSError as error:
                self._raise(message, error)
        else:
            with open(f"{self.folder}/sink.{os.getpid()}", "a") as file:
                file.write(t + "\n")
        return t

    def _raise(self, message: tuple[int, int], error: Exception) -> None:
        first_time(self.folder, f"raised.{message[0]}.{message[1]}")
        raise error

    def meet(self, row: int, *, kills: bool) -> None:
        """Kill this worker where the program says so."""
        if kills and row == self.at and first_time(self.folder, "killed"):
            os.kill(os.getpid(), signal.SIGKILL)

    def meet_in_block(self, row: int, *, kills: bool) -> None:
        self.meet(row, kills=kills)
        if self.raises_in and row == self.at and first_time(self.folder, "block"):
            raise OSError("the block ends here")

    # -- fans

    def split(self, rows: Iterable[Any]) -> Iterator[Any]:
        with Collector("split", self.settings) as out:
            for index, row in enumerate(rows):
                self.meet_in_block(index, kills=self.kills_fan)
                for child in self.fan(row.t):
                    yield out.emit({"t": child}, anchors=[row])
                if index % 3 == 0:
                    yield out.emit({"t": LOG}, anchors=[])
                out.ack(row)
        self._raise_late()

    def fan_rows(self, row: Any) -> list[str]:
        self.meet(0, kills=self.kills_fan)
        return self.fan(row.t)

    def fan_struct(self, t: str) -> tuple[list[str]]:
        self.meet(0, kills=self.kills_fan)
        return (self.fan(t),)

    def fan_list(self, t: str) -> list[str]:
        return self.fan(t)

    # -- ends

    def collect(self, rows: Iterable[Any]) -> None:
        with Collector("end", self.settings) as out:
            for index, row in enumerate(rows):
                self.meet_in_block(index, kills=self.kills_end)
                try:
                    self.do(row.t)
                except Exception as error:  # noqa: BLE001
                    out.fail(row, str(error))
                else:
                    out.ack(row)
        self._raise_late()

    def process(self, rows: Iterable[Any]) -> None:
        with process_client(self.settings):
            for index, row in enumerate(rows):
                self.meet_in_block(index, kills=self.kills_end)
                self._handle((row._root, row._edge), row.t)
        self._raise_late()

    def _handle(self, anchor: Any, t: str) -> None:
        with process_client() as client:
            try:
                self.do(t)
            except Exception as error:  # noqa: BLE001
                client.fail(anchor, str(error))
            else:
                client.ack(anchor)

    def _raise_late(self) -> None:
        if self.raises and first_time(self.folder, "late"):
            raise OSError("the disk is full")

    def row(self, t: str) -> str:
        self.meet(0, kills=self.kills_end)
        return self.do(t)

    def reason(self, t: str) -> str | None:
        try:
            self.row(t)
        except Exception as error:  # noqa: BLE001
            return str(error)
        return None

    def series(self, t: pd.Series) -> pd.Series:
        return pd.Series([self.row(each) for each in t], dtype="object")

    def all_series(self, batches: Iterator[pd.Series]) -> Iterator[pd.Series]:
        for index, batch in enumerate(batches):
            self.meet(index, kills=self.kills_end)
            yield self.series(batch)

    def all_arrays(self, batches: Iterator[pa.Array]) -> Iterator[pa.Array]:
        for batch in batches:
            yield pa.array([self.row(each) for each in batch.to_pylist()], pa.string())
