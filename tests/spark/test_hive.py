"""Inserts into Hive tables, in a Spark session with Hive."""

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
def test_an_insert_if_not_exists_that_skips_a_hive_partition_is_not_done(server: Any, tmp_path: Path) -> None:
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([str(ROOT), str(HERE), os.environ.get("PYTHONPATH", "")]),
    }
    command = [sys.executable, str(HERE / "hive_rows.py"), server.address, str(tmp_path)]
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=PROGRAM_S, env=environment, cwd=tmp_path, check=False
    )
    assert done.returncode == 0, done.stderr[-4000:]
    first, second = json.loads(done.stdout.splitlines()[-1])
    assert first == {"verdicts": ["ACKED"], "words": ["first"]}
    assert second == {"verdicts": ["LOST"], "words": ["first"]}
