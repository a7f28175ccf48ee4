"""Fixtures of the tests of sources."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.source.executors import Cluster


@pytest.fixture
def cluster(tmp_path: Path) -> Cluster:
    """A real shard in simulated time, and executors in memory."""
    return Cluster(tmp_path)
