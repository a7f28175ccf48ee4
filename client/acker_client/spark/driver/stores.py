"""Stores: Spark's records of executions and jobs, and its settings, each read with few calls into the JVM.

Decides how Spark's records reach Python: the JVM writes them as JSON, because a call for each field of each record
would cost more than all the rest of a small batch. Jackson and its module for Scala come with Spark, which uses them
for its REST API. Times are in ms.
"""

from __future__ import annotations

import gzip
import json
import threading
import weakref
from collections.abc import Callable, Mapping
from typing import Any

from py4j.protocol import Py4JJavaError
from pyspark import SparkContext
from pyspark.sql import SparkSession

# How many of the newest executions the first call reads, and how many jobs. Few batches run more. An execution has its
# whole plan, as text of 10 KB or more.
EXECUTIONS_FIRST, JOBS_FIRST = 2, 8

# A record of Spark, as JSON.
Record = Mapping[str, Any]


class Forgotten(Exception):
    """Spark has dropped a record from its stores, because newer ones came."""


class _Context:
    """The objects of one SparkContext in the JVM, none of which is ever replaced there. Getting them takes some fifteen
    calls, and a new mapper would learn each class again."""

    def __init__(self, spark: SparkSession) -> None:
        # py4j gives Java objects no type that a checker could use.
        jvm: Any = spark._jvm
        self.jvm = jvm
        self.scala: Any = spark._jsparkSession.sparkContext()
        self.core: Any = self.scala.statusStore()
        # The same store for all sessions of a context.
        self.sql: Any = spark._jsparkSession.sharedState().statusStore()
        self.settings: Any = self.scala.conf()
        self.bus: Any = self.scala.listenerBus()
        jackson: Any = jvm.com.fasterxml.jackson
        self.mapper: Any = jackson.databind.ObjectMapper()
        module = getattr(jackson.module.scala, "DefaultScalaModule$")
        self.mapper.registerModule(getattr(module, "MODULE$"))
        self.bytes: Any = jvm.java.io.ByteArrayOutputStream
        self.gzip: Any = jvm.java.util.zip.GZIPOutputStream


_lock = threading.Lock()
_contexts: weakref.WeakKeyDictionary[SparkContext, _Context] = weakref.WeakKeyDictionary()


def _context_of(spark: SparkSession) -> _Context:
    with _lock:
        found = _contexts.get(spark.sparkContext)
        if found is None:
            found = _contexts[spark.sparkContext] = _Context(spark)
        return found


class Stores:
    """Spark's stores, and the settings of a session. Free to make. Thread-safe."""

    def __init__(self, spark: SparkSession) -> None:
        self._context = _context_of(spark)
        self._session: Any = spark._jsparkSession

    def read(self, java: Any) -> Any:
        """Return an object of the JVM, with everything in it."""
        # py4j sends an answer of over 8,192 bytes in two writes. The second one waits 40 ms for the acknowledgement of
        # the first. Compressed, hardly any record is so long.
        packed = self._context.bytes()
        self._context.mapper.writeValue(self._context.gzip(packed), java)
        return json.loads(gzip.decompress(packed.toByteArray()))

    def read_short(self, java: Any) -> Any:
        """Return an object of the JVM whose JSON is short, in one call."""
        return json.loads(self._context.mapper.writeValueAsString(java))

    def wait_until_recorded(self, wait_ms: int) -> None:
        """Wait until Spark has recorded everything that has happened so far."""
        self._context.bus.waitUntilEmpty(wait_ms)

    def conf(self) -> Mapping[str, str]:
        """Return all settings of the session."""
        found: Mapping[str, str] = self.read(self._session.conf().getAll())
        return found

    @property
    def context_settings(self) -> Any:
        """The settings of the SparkContext; ``get(key, default)`` asks the JVM."""
        return self._context.settings

    def local_properties(self) -> Any:
        """Return the properties that Spark gives to the jobs of this thread, as an object of the JVM. Changes of it
        count for these jobs, in whatever thread they are made."""
        return self._context.scala.getLocalProperties()

    def executions(self, after: int = -1, *, most: int | None = None) -> list[Record]:
        """Return the executions whose id is over ``after``, or the newest ``most`` of them, oldest first."""
        count = EXECUTIONS_FIRST if most is None else most
        while True:
            kept = self.executions_kept()
            count = min(count, kept)
            found: list[Record] = self.read(self._context.sql.executionsList(kept - count, count)) if count else []
            # Nothing is found if Spark has dropped executions since it counted them.
            if count == kept or (found and (most is not None or int(found[0]["executionId"]) <= after)):
                return [each for each in found if int(each["executionId"]) > after]
            count *= 4 if found else 1

    def executions_kept(self) -> int:
        return int(self._context.sql.executionsCount())

    def execution(self, number: int) -> Record:
        """Return an execution. Raises :class:`Forgotten`."""
        return self._kept(lambda: self._context.sql.execution(number).get())

    def plan_graph(self, number: int) -> Record:
        """Return the plan of an execution. Raises :class:`Forgotten`."""
        return self._kept(lambda: self._context.sql.planGraph(number))

    def metrics(self, number: int) -> Mapping[str, str]:
        """Return the values of an execution's metrics, by accumulator id as text. Raises :class:`Forgotten`."""
        return self._kept(lambda: self._context.sql.executionMetrics(number))

    def jobs(self, after: int = -1, *, most: int | None = None) -> list[Record]:
        """Return the jobs whose id is over ``after``, or the newest ``most`` of them, newest first."""
        listed, count = self._context.core.jobsList(None), JOBS_FIRST if most is None else most
        while True:
            found: list[Record] = (self.read_short if count == 1 else self.read)(listed.take(count))
            if len(found) < count or most is not None or int(found[-1]["jobId"]) <= after:
                return [each for each in found if int(each["jobId"]) > after]
            count *= 4

    def jobs_kept(self) -> int:
        return int(self._context.core.jobsList(None).size())

    def job(self, number: int) -> Record:
        """Return a job. Raises :class:`Forgotten`."""
        return self._kept(lambda: self._context.core.job(number))

    def stage_dot(self, stage: int) -> str:
        """Return the operators of a stage as text. Raises py4j's error for a stage that Spark has dropped."""
        graph = self._context.core.operationGraphForStage(stage)
        return str(self._context.jvm.org.apache.spark.ui.scope.RDDOperationGraph.makeDotFile(graph))

    def _kept(self, find: Callable[[], Any]) -> Record:
        """Return what ``find`` finds in a store. Raises :class:`Forgotten`."""
        try:
            java = find()
        except Py4JJavaError as error:
            if error.java_exception.getClass().getSimpleName() == "NoSuchElementException":
                raise Forgotten from error
            raise
        found: Record = self.read(java)
        return found

    def is_python_source(self, name: str) -> bool:
        """Whether a Python data source has this name."""
        return bool(self._session.sessionState().dataSourceManager().dataSourceExists(name))
