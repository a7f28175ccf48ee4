"""Writes the server's metrics into deploy/README.md: ``python tests/packaging/metrics_table.py``. A test holds the two
together."""

from __future__ import annotations

import re
import time
from pathlib import Path

from acker_service.core.shard import Shard
from acker_service.http.metrics import Metrics
from acker_service.locked_shard import SharedShard

README = Path(__file__).parents[2] / "deploy/README.md"
PLACE = re.compile(r"(<!-- metrics: .*? -->\n).*?(<!-- end of metrics -->)", re.DOTALL)
# Those that have no series yet, as nothing has been measured.
LABELS = {
    "acker_call_duration_seconds": "method, code",
    "acker_call_queue_seconds": "pool",
    "acker_queued_calls": "pool",
    "acker_source_pending_roots": "source",
    "acker_source_watch_age_seconds": "source",
}


def table() -> str:
    """One row a metric: name as Prometheus stores it, type, labels, help."""
    shard = Shard(incarnation=1, generation=2)
    shared = SharedShard(shard, clock=time.monotonic, max_watches=1, linger_s=0.0)
    rows = []
    for metric in Metrics(shared).collect():
        name = {"counter": f"{metric.name}_total", "info": f"{metric.name}_info"}.get(metric.type, metric.name)
        labels = LABELS.get(metric.name) or ", ".join(metric.samples[0].labels)
        rows.append(f"| `{name}` | {metric.type} | {labels} | {metric.documentation} |")
    rows = [row for row in rows if not row.startswith("| `process_")]
    rows.append(
        "| `process_*` | | | What Prometheus' clients say of every process: memory, processor time, descriptors. |"
    )
    return "\n".join(["| metric | type | labels | |", "|---|---|---|---|", *rows]) + "\n"


def written(text: str) -> str:
    """The README with the table in its place."""
    return PLACE.sub(lambda place: place[1] + table() + place[2], text)


if __name__ == "__main__":
    README.write_text(written(README.read_text()))
