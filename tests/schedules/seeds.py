"""Seeds: runs schedules by seed, with one ZooKeeper per process."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

from tests.schedules.cluster import Zoo, load
from tests.schedules.conductor import Conductor, Result
from tests.schedules.schedule import Schedule

_ZOO: list[Zoo] = []


def run(seed: int, mutant: str = "", *, keeps: bool = False) -> Result:
    """Run the schedule of a seed in this process. The first call starts the ZooKeeper of the process."""
    if not _ZOO:
        load()
        _ZOO.append(Zoo(Path(tempfile.mkdtemp(prefix="zoo-"))))
    folder = Path(tempfile.mkdtemp(prefix=f"schedule-{seed}-"))
    result = Conductor(Schedule.of(seed), folder, _ZOO[0], mutant).run()
    if result.findings and keeps:
        result.transcript.append(f"see {folder}")
    else:
        shutil.rmtree(folder)
    return result
