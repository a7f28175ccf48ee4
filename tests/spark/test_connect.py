"""Spark Connect: each public function raises an error with the sentence that it does not work there yet."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from acker_client.spark import compat

HERE = Path(__file__).parent


@pytest.mark.long
def test_everything_public_says_in_the_same_sentence_that_it_does_not_work_under_spark_connect() -> None:
    program = [sys.executable, str(HERE / "connect_calls.py")]
    done = subprocess.run(program, capture_output=True, text=True, check=False, timeout=240)
    assert done.returncode == 0, done.stderr
    said: dict[str, str] = json.loads(done.stdout)
    assert len(said) >= 25
    assert {call: error for call, error in said.items() if compat.CONNECT not in error} == {}
