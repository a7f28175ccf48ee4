"""Fixtures of the tests of sources."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.source.executors import Cluster
from tests.source.s3_server import ENVIRONMENT, S3Server, nothing


@pytest.fixture
def cluster(tmp_path: Path) -> Cluster:
    """A real shard in simulated time, and executors in memory."""
    return Cluster(tmp_path)


@pytest.fixture(scope="module")
def running_s3() -> Iterator[S3Server]:
    with S3Server() as server:
        yield server


@pytest.fixture
def s3_server(running_s3: S3Server, monkeypatch: pytest.MonkeyPatch) -> S3Server:
    """S3 over HTTP, with the environment that its clients need."""
    for name, value in ENVIRONMENT.items():
        monkeypatch.setenv(name, value)
    running_s3.before = nothing
    running_s3.calls.clear()
    return running_s3


@pytest.fixture
def bucket(s3_server: S3Server) -> str:
    return s3_server.new_bucket()
