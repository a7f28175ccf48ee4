"""The tests of ``no_memory.py``, in a process that has no other threads: these would find no memory either."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest


@pytest.mark.long
def test_a_lack_of_memory_at_any_point_of_a_call_does_no_harm() -> None:
    path = Path(__file__).with_name("no_memory.py")
    command = [sys.executable, "-m", "pytest", "-n", "0", "-p", "no:cacheprovider", str(path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout
    assert " passed" in done.stdout
