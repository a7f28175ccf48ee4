"""A driver that a test kills: ``python -m tests.source.kafka_driver SERVERS TOPIC FOLDER CHECKPOINT BATCH_RECORDS``.

Runs a source over a topic to its end, with server and executors in memory. Writes the place of each record to a file
in FOLDER as soon as the record is emitted, and to another file as soon as it is ACKED or a dead letter. A line there
holds a partition and an offset. Records are done in any order, and many fail at first. Prints a line at each step, so
that the test can kill the driver there.
"""

from __future__ import annotations

import os
import random
import sys
from pathlib import Path
from typing import Any

from acker_client.source import Batch, Emissions, Failures, Kafka, Listener, Retry
from tests.source.executors import NO_SPARK, Cluster, frame_of


class Journal(Listener):
    """Writes the records of each callback to files."""

    def __init__(self, folder: Path) -> None:
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND
        self._files = {name: os.open(folder / name, flags) for name in ("emitted", "ended")}

    def on_emit(self, batch: int, emitted: Emissions, is_replay: bool) -> None:
        # The test is about records that are emitted again after a crash, not about replays within a run.
        if not is_replay:
            self._note("emitted", emitted)

    def on_ack(self, acked: Emissions) -> None:
        self._note("ended", acked)

    def on_dead_letter(self, dead: Emissions, why: Failures) -> None:
        self._note("ended", dead)

    def _note(self, name: str, some: Emissions) -> None:
        rows = some.origins()
        places = zip(rows.column("partition").to_pylist(), rows.column("offset").to_pylist(), strict=True)
        os.write(self._files[name], "".join(f"{partition} {offset}\n" for partition, offset in places).encode())
        print(name, flush=True)


def main(servers: str, topic: str, folder: Path, checkpoint: str, batch_records: int) -> None:
    chance = random.Random()

    def process(batch: Batch) -> None:
        rows = frame_of(batch).rows()
        chance.shuffle(rows)
        failing = rows[: len(rows) // 5]
        frame_of(batch).fail({row.root: "not yet" for row in failing})
        print("failed", flush=True)
        for some in (rows[len(rows) // 5 : len(rows) // 2], rows[len(rows) // 2 :]):
            frame_of(batch).ack(some)
            print("reported", flush=True)

    options: dict[str, Any] = {"retry": Retry(max_retries=1000, initial_s=0.0, cap_s=0.0), "stop": "end"}
    options |= {"batch_records": batch_records, "listener": Journal(folder), "bootstrap_servers": servers}
    options |= {"checkpoint": checkpoint if checkpoint == "kafka" else folder / "checkpoint", "group_id": folder.name}
    environment = Cluster(folder).environment()
    Kafka(topic, name="orders", environment=environment, **options).run(NO_SPARK, process)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], Path(sys.argv[3]), sys.argv[4], int(sys.argv[5]))
