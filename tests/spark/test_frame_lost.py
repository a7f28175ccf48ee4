"""Blocks of a persisted frame that are lost with their executors, on a cluster of two workers."""

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


def run(server: Any, folder: Path, kind: str) -> dict[str, Any]:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])}
    command = [sys.executable, str(HERE / "lost_rows.py"), server.address, str(folder), kind]
    done = subprocess.run(command, capture_output=True, text=True, timeout=PROGRAM_S, env=environment, check=False)
    assert done.returncode == 0, done.stderr[-4000:]
    answer: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    assert answer.pop("killed") == 2
    return answer


@pytest.mark.long
def test_random_rows_whose_executors_are_killed_come_back_as_others_and_none_of_them_is_acked(
    server: Any, tmp_path: Path
) -> None:
    answer = run(server, tmp_path, "drawn")
    assert answer["acked"] == 0
    assert answer["error"].startswith("InputChanged: the frame gives other rows when it is computed anew")


@pytest.mark.long
def test_rows_that_are_the_same_each_time_survive_the_death_of_their_executors(server: Any, tmp_path: Path) -> None:
    assert run(server, tmp_path, "same") == {"acked": 20_000, "error": ""}
