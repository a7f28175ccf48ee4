"""A sink that writes rows to a topic, and hands their trees on to the job that reads the topic.

The messages written for a row are its children. Their edges travel in message headers, and enter the tree together with
the row's own ack. The edges are derived from what is written, so that a repeated task writes the same edges. A task
reports only after every replica of the topic has its messages, and does not report if one message was refused.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

import numpy as np
import pyarrow as pa
from pyspark.sql import DataFrame

from acker_client.cluster.handed_on import Header, headers_of
from acker_client.pins import Pins
from acker_client.spark.anchoring.anchors import Anchors, Rows
from acker_client.spark.anchoring.derive import derive
from acker_client.spark.anchoring.tally import Tally
from acker_client.spark.driver.columns import user_schema
from acker_client.spark.operators.sink import Sink
from acker_client.spark.plan_check import plan
from acker_client.spark.worker.chain import Step, TakeRows

Message = tuple[bytes | None, bytes | None, list[Header]]


class Messages(Protocol):
    """The destination of messages. Picklable; opened in the task. Its ``str()`` names the destination."""

    def write(self, messages: Iterable[Message]) -> None:
        """Write the messages in order. Returns when all are durable; raises if a message is not."""
        ...


class HandOn(Sink[[], None]):
    """A sink that writes each row to a topic, as a message that carries anchors in its headers."""

    def __init__(self, messages: Messages, key: str | None, value: str) -> None:
        # The name must identify the messages, because a frame has one sink per name. If two sinks had the same name,
        # the tree would be done as soon as the first sink's messages are.
        what = value if key is None else f"{value} by {key}"
        super().__init__(_run, f"hand_on {messages}, {what}", owner=self)
        self._messages = messages
        self._key = key
        self._value = value

    def __call__(self, df: DataFrame, /) -> None:
        """Write the rows of ``df``, and hand their trees on."""
        types = {each.name: each.dataType for each in user_schema(df).fields}
        for column in filter(None, (self._key, self._value)):
            if column not in types:
                raise plan.Refused(f"{self.name}: there is no column {column!r}; there are {', '.join(types)}")
            if types[column].typeName() not in ("string", "binary"):
                raise plan.Refused(
                    f"{self.name}: the column {column!r} is {types[column].simpleString()}: a message holds string or"
                    " binary; make it that, as with to_json in an operator"
                )
        super().__call__(df)

    def _check_batches(self, batches: Sequence[Any]) -> None:
        for batch in batches:
            if batch.hand_on_problem:
                raise plan.Refused(f"{self.name}: {batch.hand_on_problem}")

    def _step(self, pins: Pins) -> Step:
        return HandOnStep(self.name, self._messages, self._key, self._value, pins)


@dataclass(frozen=True, slots=True)
class HandOnStep:
    """Writes every row as a message with child anchors, and acks the row."""

    name: str
    messages: Messages
    key: str | None
    value: str
    pins: Pins

    def start(self, tally: Tally) -> TakeRows:
        return partial(self._take_rows, tally)

    def _take_rows(self, tally: Tally, rows: Rows) -> Iterator[Rows]:
        names = [name for name in (self.key, self.value) if name is not None]
        children = derive(tally, rows, [rows.data.column(name) for name in names], names)
        values = _bytes_of(rows.data.column(self.value))
        keys = [None] * len(rows) if self.key is None else _bytes_of(rows.data.column(self.key))
        self.messages.write(zip(keys, values, self._headers(children.anchors, len(rows)), strict=True))
        yield rows

    def _headers(self, anchors: Anchors, rows: int) -> list[list[Header]]:
        counts = np.ones(rows, np.int64) if anchors.offsets is None else np.diff(anchors.offsets)
        owners = np.repeat(np.arange(rows, dtype=np.uint64), counts)
        anchored = anchors.roots != 0
        return headers_of(self.pins, anchors.roots[anchored], anchors.edges[anchored], owners[anchored], rows)


def _bytes_of(column: Any) -> list[bytes | None]:
    binary: list[bytes | None] = column.cast(pa.binary()).to_pylist()
    return binary


def _run(rows: DataFrame) -> None:
    # Reading the rows is enough: HandOnStep writes the messages meanwhile.
    rows.write.format("noop").mode("overwrite").save()
