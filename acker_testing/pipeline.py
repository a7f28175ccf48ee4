"""Pipeline: runs a user's whole job in a test, with real Spark, a real server, and records from a list.

Decides what a test sees: which records were acked, which became dead letters and why, and every outcome on the way. No
part of the job is replaced. Needs the extras `service` and `spark`.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from acker_client.source import Batch, Emissions, Failures, Files, Listener, Retry, Summary
from acker_client.source.records.reasons import split_reason
from acker_client.spark.driver.session import (
    ACCESS_FILE,
    SERVERS,
    TLS,
    TLS_FILES,
    TOKEN,
    TOKEN_FILE,
    check_session,
    local_session,
)
from acker_protocol.messages import Verdict
from acker_testing.child import Child, python_path

Record = str | Mapping[str, Any]

# Settings of a session that are meant for other servers.
ACCESS = (ACCESS_FILE, TOKEN, TOKEN_FILE, TLS, *TLS_FILES.values())

# One replay, without a delay.
QUICK = Retry(max_retries=1, initial_s=0.0)


@dataclass(frozen=True, slots=True)
class Dead:
    """A record that has used up its retries. ``reason``: why it failed last, without the traceback."""

    record: Any
    reason: str


@dataclass(frozen=True, slots=True)
class Outcome:
    """How one emission of a record ended. A replayed record has several outcomes."""

    record: Any
    verdict: Verdict
    reason: str


@dataclass(frozen=True, slots=True)
class Result:
    """The results of a run. Each record appears as it was given. ``acked`` and ``dead`` are in the order of the
    records, ``outcomes`` in the order of their arrival."""

    acked: list[Any]
    dead: list[Dead]
    outcomes: list[Outcome]
    summary: Summary


class Pipeline:
    """Runs pipelines in tests: a context manager with a Spark session and its own server.

    ``spark``: the session to use. None: the active session of this process, else a new local one, which is stopped at
    the end. ``conf``: settings of a new session. While the pipeline is open, this process has no ``ACKER_`` variables,
    because they are meant for other servers. Starting Spark takes seconds, so share one Pipeline in a fixture for
    all tests. Spark's workers use the import path of this process, so they can import functions of a test module.

    >>> @pytest.fixture(scope="session")
    ... def pipeline():
    ...     with Pipeline() as pipeline:
    ...         yield pipeline
    """

    def __init__(self, spark: Any = None, *, conf: Mapping[str, str] | None = None) -> None:
        self._given = spark
        self._conf = conf
        self._spark: Any = None
        self._exits = ExitStack()

    @property
    def spark(self) -> Any:
        """The Spark session in use."""
        return self._open_session()

    def run(
        self,
        records: Sequence[Record],
        process: Callable[[Batch], object],
        *,
        schema: Any = None,
        **options: Any,
    ) -> Result:
        """Run ``process`` over ``records`` as ``Files(...).run(spark, process)`` does, and return their results.

        Strings are lines of text: ``batch.df`` has ``value string, path string, line bigint``. With ``schema`` (DDL
        text or ``StructType``), records are dictionaries or lines of JSON, and ``batch.df`` has the schema's columns.
        ``options``: options of ``Files``. By default a record is replayed once without delay, and the run allows any
        number of dead letters.
        """
        if "listener" in options:
            raise ValueError("listener: Pipeline sets its own; read Result.outcomes, or use Files")
        spark, given = self._open_session(), list(records)
        with tempfile.TemporaryDirectory(prefix="acker-pipeline-") as folder:
            seen = _Seen(given, f"{folder}/")
            path = Path(folder, "records.jsonl")
            path.write_text("".join(f"{line}\n" for line in _lines(given, schema)), encoding="utf-8")
            defaults = {"name": "pipeline", "retry": QUICK, "max_dead_share": 1.0, "listener": seen}
            defaults |= {"dead_letters": Path(folder, "dead.jsonl")}
            defaults |= {"format": "text" if schema is None else "json", "schema": schema}
            return seen.result(Files(path, **{**defaults, **options}).run(spark, process))

    def __enter__(self) -> Self:
        if self._given is not None:
            check_session(self._given)
        with ExitStack() as undo:
            # Must come before the session: Spark's processes inherit the environment.
            hidden = _hide_variables(undo)
            folder = Path(undo.enter_context(tempfile.TemporaryDirectory(prefix="acker-server-")))
            server = Child(folder)
            undo.callback(server.end)
            spark = self._session(undo)
            _set(undo, spark, server.await_ready(), hidden)
            self._spark = spark
            self._exits = undo.pop_all()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._spark = None
        self._exits.close()

    def _open_session(self) -> Any:
        if self._spark is None:
            raise RuntimeError("this Pipeline is not open: with Pipeline() as pipeline: pipeline.run(...)")
        return self._spark

    def _session(self, undo: ExitStack) -> Any:
        if self._given is not None:
            return self._given
        pyspark = sys.modules.get("pyspark")
        if pyspark is not None and pyspark.SparkContext._active_spark_context is not None:
            return pyspark.sql.SparkSession.builder.getOrCreate()
        spark = local_session("acker-pipeline", conf=self._conf)
        undo.callback(spark.stop)
        return spark


class _Seen(Listener):
    """Collects how each emission ended. Records are numbered in the order given."""

    def __init__(self, records: Sequence[Record], folder: str) -> None:
        self._records = records
        self._folder = folder
        self._acked: list[int] = []
        self._dead: dict[int, str] = {}
        self._outcomes: list[Outcome] = []

    def on_ack(self, acked: Emissions) -> None:
        self._acked += acked.records.tolist()
        self._outcomes += [Outcome(self._records[index], Verdict.ACKED, "") for index in acked.records.tolist()]

    def on_fail(self, failed: Emissions, why: Failures) -> None:
        for k, index in enumerate(failed.records.tolist()):
            self._outcomes.append(Outcome(self._records[index], Verdict(int(why.verdicts[k])), self._reason(why, k)))

    def on_dead_letter(self, dead: Emissions, why: Failures) -> None:
        self._dead |= {index: self._reason(why, k) for k, index in enumerate(dead.records.tolist())}

    def result(self, summary: Summary) -> Result:
        acked = [self._records[index] for index in sorted(self._acked)]
        dead = [Dead(self._records[index], self._dead[index]) for index in sorted(self._dead)]
        return Result(acked, dead, self._outcomes, summary)

    def _reason(self, why: Failures, k: int) -> str:
        """Return the reason without its traceback, and without the folder, whose name differs in each run."""
        return split_reason(why.reason(k))[0].replace(self._folder, "")


def _lines(records: Sequence[Record], schema: Any) -> list[str]:
    lines = [record if isinstance(record, str) else _json(index, record) for index, record in enumerate(records)]
    for index, line in enumerate(lines):
        if schema is None and not isinstance(records[index], str):
            raise ValueError(f"records[{index}] is not a string: give schema='sku string, qty int' with dictionaries")
        if "\n" in line:
            raise ValueError(f"records[{index}] contains a line feed: a record is one line")
    return lines


def _json(index: int, record: Mapping[str, Any]) -> str:
    try:
        return json.dumps(dict(record), ensure_ascii=False)
    except (TypeError, ValueError) as error:
        raise ValueError(
            f"records[{index}] cannot be written as JSON ({error}): give a string, or a dictionary"
        ) from None


def _hide_variables(undo: ExitStack) -> list[str]:
    """Remove the ``ACKER_`` variables from the environment, and return their names. ``undo`` restores them."""
    hidden = {name: text for name, text in os.environ.items() if name.startswith("ACKER_")}
    for name in hidden:
        del os.environ[name]
    undo.callback(os.environ.update, hidden)
    return list(hidden)


def _set(undo: ExitStack, spark: Any, address: str, hidden: Sequence[str]) -> None:
    """Set the server's address in the session, without access to other servers, and the workers' import path. Workers
    of a session that was there before do not see the variables ``hidden``. ``undo`` restores the previous values."""
    access = {**dict.fromkeys(ACCESS), SERVERS: address}
    undo.callback(_configure, spark, {key: spark.conf.get(key, None) for key in access})
    _configure(spark, access)
    environment = spark.sparkContext.environment
    undo.callback(environment.update, dict(environment))
    undo.callback(environment.clear)  # runs first
    path = os.pathsep.join(filter(None, [python_path(), environment.get("PYTHONPATH")]))
    environment.update(dict.fromkeys(hidden, ""), PYTHONPATH=path)


def _configure(spark: Any, values: Mapping[str, str | None]) -> None:
    for key, value in values.items():
        if value is None:
            spark.conf.unset(key)
        else:
            spark.conf.set(key, value)
