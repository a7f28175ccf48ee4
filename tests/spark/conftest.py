"""One local Spark session for every Spark test, and a batch that a test can open, run and settle in a few lines."""

from __future__ import annotations

import atexit
import contextlib
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from acker_client.spark.driver import session
from acker_client.spark.driver.session import local_session
from tests.spark.local_conf import local_conf

HERE = Path(__file__).parent
ROOT = HERE.parent.parent

# Not named after the process id: a killed process with the same id may have left its tables behind.
LOCAL_DIR = Path(tempfile.mkdtemp(prefix="acker-spark-"))
atexit.register(shutil.rmtree, LOCAL_DIR, ignore_errors=True)
# The output of Spark's JVM and its Python daemon, with the tracebacks of workers that Spark has ended.
LOG = ROOT / ".build" / f"spark-{os.environ.get('PYTEST_XDIST_WORKER', 'tests')}.log"


def pytest_collection_finish(session: pytest.Session) -> None:
    """Start Spark before any test opens a gRPC channel, because a fork beside gRPC's threads may hang."""
    start_spark_before(session, HERE)


def start_spark_before(session: pytest.Session, folder: Path) -> None:
    """Start Spark if this run has a test in ``folder`` that needs it."""
    needed = any(folder in item.path.parents and item.get_closest_marker("jvm") for item in session.items)
    if needed and not session.config.option.collectonly:
        _session()


def _session() -> SparkSession:
    # Unpickling in a worker imports `tests.spark.faults`, and test modules under the bare names that pytest uses.
    os.environ["PYTHONPATH"] = os.pathsep.join([str(ROOT), str(HERE), *filter(None, [os.environ.get("PYTHONPATH")])])
    LOCAL_DIR.mkdir(parents=True, exist_ok=True)
    # Each failed attempt of a task costs a Python worker, and two attempts show as much as Spark's default of four.
    with _stderr_to(LOG):
        spark = local_session("acker-tests", attempts=2, conf=local_conf(LOCAL_DIR))
    spark.sparkContext.setLogLevel("OFF")
    return spark


@contextlib.contextmanager
def _stderr_to(path: Path) -> Iterator[None]:
    """Redirect the standard error of processes that start inside this block to ``path``."""
    path.parent.mkdir(exist_ok=True)
    ours = os.dup(2)
    try:
        with path.open("wb") as file:
            os.dup2(file.fileno(), 2)
        yield
    finally:
        os.dup2(ours, 2)
        os.close(ours)


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    started = _session()
    yield started
    started.stop()


@pytest.fixture(autouse=True)
def _active_session() -> Iterator[None]:
    """Restore the active session after each test. Python has one active session for all threads, and a micro-batch
    leaves another."""
    before = SparkSession._activeSession
    yield
    if before is not None and SparkSession._instantiatedSession is not None:
        SparkSession._activeSession = before


@pytest.fixture(autouse=True)
def _no_batch() -> Iterator[None]:
    """Take back the settings of batches that a test has not settled: the next batch of this thread may be untracked."""
    yield
    session._handed_down.__dict__.clear()
    if SparkSession._instantiatedSession is not None:
        for key in (session.PINS, session.TASK_TRACKING):
            SparkSession._instantiatedSession.sparkContext.setLocalProperty(key, None)  # type: ignore[arg-type]  # None removes it


@pytest.fixture
def local_dir() -> Path:
    """The folder in which Spark keeps its shuffle files."""
    return LOCAL_DIR


@pytest.fixture
def conf(spark: SparkSession) -> Iterator[Callable[[str, str], None]]:
    """Set an option of the session until the test ends: ``conf("spark.sql.adaptive.enabled", "false")``."""
    before: dict[str, str | None] = {}

    def set_option(key: str, value: str) -> None:
        before.setdefault(key, spark.conf.get(key, None))
        spark.conf.set(key, value)

    yield set_option
    for key, value in before.items():
        if value is None:
            spark.conf.unset(key)
        else:
            spark.conf.set(key, value)


@pytest.fixture
def connected(spark: SparkSession, server: Any, conf: Callable[[str, str], None]) -> SparkSession:
    """The session, with the test's server as its acker."""
    conf("spark.acker.servers", server.address)
    return spark


@pytest.fixture(scope="module")
def pipeline(spark: SparkSession) -> Iterator[Any]:
    """Runs sources over texts, and shows what becomes of each record."""
    from acker_testing.pipeline import Pipeline

    with Pipeline(spark) as pipeline:
        yield pipeline


@pytest.fixture
def live(spark: SparkSession, server: Any, conf: Callable[[str, str], None]) -> Iterator[Callable[..., Any]]:
    """Open a batch at the test's server: ``live(texts, slices=2)``; see ``live_batch.LiveBatch``."""
    from tests.spark.live_batch import LiveBatch

    trials: list[LiveBatch] = []
    conf("spark.acker.servers", server.address)

    def start(texts: Sequence[str], **options: Any) -> LiveBatch:
        trials.append(LiveBatch(spark, server.address, texts, **options))
        return trials[-1]

    yield start
    for one in trials:
        one.close()
