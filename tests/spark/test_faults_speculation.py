"""A task and its speculative copy both run to the end and report. The server counts the report once."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

HERE = Path(__file__).parent
ROOT = HERE.parent.parent
PROGRAM_S = 240.0


@pytest.mark.long
def test_a_speculative_copy_reports_what_its_original_has_reported(server: Any, tmp_path: Path) -> None:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])}
    command = [sys.executable, str(HERE / "speculation.py"), server.address, str(tmp_path)]
    run = subprocess.run(command, capture_output=True, text=True, timeout=PROGRAM_S, env=environment, check=False)
    assert run.returncode == 0, run.stderr[-4000:]

    answer = json.loads(run.stdout.splitlines()[-1])
    assert answer == {"verdicts": ["ACKED"], "records": 20, "is_exact": True, "copied": True}
    assert server.shard.stats.sections_duplicate > 0
    assert server.shard.stats.sections_conflict == 0
