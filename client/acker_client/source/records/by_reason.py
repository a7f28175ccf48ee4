"""By reason: lists records without retries left by reason and origin, in a few lines of an error message.

Decides how many reasons it names, and how many records for each. Looks records up, never reads them.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pyarrow as pa

from acker_client.error_text import shorten
from acker_client.source.records.in_flight import Failures
from acker_client.source.records.tracker import RecordNumbers

# The number of reasons that are named (the most frequent ones), and of records for each (the first ones).
REASONS_MAX = 5
RECORDS_MAX = 3


def by_reason(spent: Failures, origins: Callable[[RecordNumbers], pa.RecordBatch]) -> str:
    """Return a line for each reason, the most frequent first: number of records, reason, origins of the first ones."""
    groups = sorted(_groups(spent).items(), key=lambda group: (-len(group[1]), group[1][0]))
    lines = [_line(reason, spent.records[indices], origins) for reason, indices in groups[:REASONS_MAX]]
    left = groups[REASONS_MAX:]
    if left:
        lines.append(f"  {sum(len(indices) for _, indices in left):,} for {len(left):,} other reasons")
    return "\n".join(lines)


def _groups(spent: Failures) -> dict[str, RecordNumbers]:
    """Group the records by the first line of their reason. Return the ascending indices of each group."""
    kinds = spent.reason_ids.astype(np.int64) << 8 | spent.verdicts
    _, firsts, kind_of = np.unique(kinds, return_index=True, return_inverse=True)
    reasons = [shorten(spent.reason(int(index))) for index in firsts]
    numbers = {reason: number for number, reason in enumerate(dict.fromkeys(reasons))}
    group_of = np.array([numbers[reason] for reason in reasons], np.int64)[kind_of]
    order = np.argsort(group_of, kind="stable")
    bounds = np.searchsorted(group_of[order], np.arange(1, len(numbers)))
    return dict(zip(numbers, np.split(order, bounds), strict=True))


def _line(reason: str, records: RecordNumbers, origins: Callable[[RecordNumbers], pa.RecordBatch]) -> str:
    places = [":".join(map(str, row.values())) for row in origins(records[:RECORDS_MAX]).to_pylist()]
    more = ", ..." if len(records) > RECORDS_MAX else ""
    return f"  {len(records):,} for {reason!r}: {', '.join(places)}{more}"
