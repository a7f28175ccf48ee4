"""JSON lines: one JSON object a line, parsed into columns by Arrow.

Decides which line is malformed: one that is no JSON object, or whose values do not fit the schema. It alone fails; its
neighbours come out exactly as they would without it. Fields that the schema does not name are ignored, missing ones
null.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.json

from acker_client.source.decoding.lines import Lines, not_utf8, too_long

OPENING = ord("{")
CLOSING = ord("}")


@dataclass(frozen=True, slots=True)
class JsonParser:
    """Columns of ``schema``, exactly."""

    schema: pa.Schema

    def parse(self, lines: Lines) -> tuple[pa.RecordBatch, dict[int, str]]:
        unreadable = too_long(lines) or not_utf8(lines)
        for index in np.flatnonzero(~_look_like_objects(lines)).tolist():
            unreadable.setdefault(index, f"{lines.where(index)}: not a JSON object")
        if not unreadable and len(lines):
            whole = self._parse(lines.raw[int(lines.starts[0]) :], len(lines))
            if isinstance(whole, pa.RecordBatch):
                return whole, {}
        return self._without(lines, unreadable)

    def _without(self, lines: Lines, unreadable: dict[int, str]) -> tuple[pa.RecordBatch, dict[int, str]]:
        """Parse all but the unreadable lines, and find those that only the parser can tell."""
        readable = [index for index in range(len(lines)) if index not in unreadable]
        rows = np.zeros(len(lines), np.int64)
        missing = np.ones(len(lines), bool)
        found, parsed = 0, [pa.RecordBatch.from_pylist([], self.schema)]
        for indices, outcome in self._halves(lines, readable):
            if isinstance(outcome, str):
                unreadable[indices[0]] = f"{lines.where(indices[0])}: malformed JSON ({outcome})"
                continue
            parsed.append(outcome)
            rows[indices] = np.arange(found, found + len(indices))
            missing[indices] = False
            found += len(indices)
        return pa.concat_batches(parsed).take(pa.array(rows, mask=missing)), unreadable

    def _halves(self, lines: Lines, indices: list[int]) -> Iterator[tuple[list[int], pa.RecordBatch | str]]:
        """Parse the lines at ``indices``; where that fails, each half of them, down to the culprits."""
        if not indices:
            return
        outcome = self._parse(b"\n".join(lines.line(index) for index in indices), len(indices))
        if isinstance(outcome, pa.RecordBatch) or len(indices) == 1:
            yield indices, outcome
            return
        middle = len(indices) // 2
        yield from self._halves(lines, indices[:middle])
        yield from self._halves(lines, indices[middle:])

    def _parse(self, content: bytes, count: int) -> pa.RecordBatch | str:
        """``count`` rows, or why there are not.

        Every line looks like an object, so none of them is the middle of another's, and a line makes at least one row:
        as many rows as lines means one a line.
        """
        reading = pyarrow.json.ReadOptions(use_threads=False, block_size=len(content) + 1)
        parsing = pyarrow.json.ParseOptions(explicit_schema=self.schema, unexpected_field_behavior="ignore")
        try:
            table = pyarrow.json.read_json(pa.BufferReader(content), reading, parsing)
        except pa.ArrowException as error:
            return str(error).partition("\n")[0]
        if table.num_rows != count:
            return f"{table.num_rows} objects on {count} lines"
        batches = table.select(self.schema.names).combine_chunks().to_batches()
        batch: pa.RecordBatch = batches[0]
        return batch


def _look_like_objects(lines: Lines) -> npt.NDArray[np.bool_]:
    """Whether each line begins with ``{`` and ends with ``}``, white space aside."""
    content = np.frombuffer(lines.raw, np.uint8)
    some = lines.ends > lines.starts
    looks = np.zeros(len(lines), bool)
    looks[some] = (content[lines.starts[some]] == OPENING) & (content[lines.ends[some] - 1] == CLOSING)
    for index in np.flatnonzero(some & ~looks).tolist():
        line = lines.line(index).strip()
        looks[index] = line[:1] == b"{" and line[-1:] == b"}"
    return looks
