"""Options of a source, checked once, with errors that name the option and the fix."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Required, TypedDict

import numpy as np
import pyarrow as pa

from acker_client.cluster.registration import check_seconds
from acker_client.source.checkpoints.checkpoint_file import CheckpointFile, behind_link
from acker_client.source.dead_letters.letter_objects import DeadLetterObjects
from acker_client.source.dead_letters.letters_file import DeadLetterCall, DeadLetterFile
from acker_client.source.dead_letters.letters_log import DeadLetterLog
from acker_client.source.engine.environment import Environment
from acker_client.source.records.assignment import Assignment
from acker_client.source.records.batch_size import LARGEST
from acker_client.source.records.dead_letter import DeadLetter
from acker_client.source.records.guarantee import Guarantee
from acker_client.source.records.listener import Listener
from acker_client.source.records.retry import Retry, RetryPolicy
from acker_client.source.records.stores import CheckpointStore, DeadLetterStore, OutcomeStore, SharedCheckpointStore
from acker_client.source.s3.checkpoint import S3Checkpoint
from acker_client.source.storage.urls import instead_of_url, local_path, url_of

if TYPE_CHECKING:
    from pyspark.sql import Column

# The value of the option `dead_letters` that writes to the log.
LOG = "log"
# More open records than any run has.
UNLIMITED = 1 << 62


class CommonOptions(TypedDict, total=False):
    """The options that all sources have. Each source also has the options of its input.

    ``name``: the source's name in logs, metrics, checkpoint and dead letters. ``checkpoint``: a file, the URL of an
    object in S3, or a ``CheckpointStore``, that holds which records are done; without one every start reads everything.
    ``dead_letters``: a file of JSON lines for records without retries left (see ``retry``), the URL of a folder in an
    object store, "log", a ``Table``, another ``DeadLetterStore``, or a function that takes a list of ``DeadLetter`` and
    returns once they are durable. Without it, such a record ends the run. ``retry``: a ``Retry``, or a ``RetryPolicy``
    of your own.
    ``max_dead_share``: above this share of dead letters (and more than ten) the run stops, because something is wrong
    with the job rather than with the records; 1 never stops it.

    ``guarantee``: "at_least_once"; "at_most_once": records are saved as done before they are emitted; "no_guarantee":
    records are done when their batch has ended, whatever their outcome. The last two never retry.
    ``commit_interval_s``: shortest time between two writes of the checkpoint (0: write with each batch), except when a
    partition is revoked and at the end; longer after a write of more than a second. ``group``: the source's membership
    of a group that shares the partitions among its sources; ``checkpoint`` must then be a ``SharedCheckpointStore``.

    ``message_timeout_s``: the work on a batch may take that long. Then its Spark jobs are cancelled. If the work is not
    done all the same, its records end as TIMED_OUT and are replayed in smaller pieces (default: no limit).

    ``held``: False for records whose trees outlive their batch, such as those that ``hand_on`` gives to another job.
    Each record is ACKED as soon as everything derived from it is done, even long after its batch was settled. A record
    that is not ACKED within ``message_timeout_s`` after it was read is replayed, and no job is cancelled.
    ``held=False`` requires this timeout.

    ``tracking``: False runs the same program without a server, as the setting ``spark.acker.tracking`` does for all
    sources. Then no record is tracked. All records of a batch are ACKED when the batch is done, and a batch with a
    record that fails is replayed in smaller pieces. ``track``: which records are tracked (default: all). It is a
    condition on the columns of the input (SQL, or a Column), or a function that takes a ``pyarrow.RecordBatch`` in the
    read task and returns a boolean for each row. The rows of the other records are processed too. But these records
    have no outcome, are never replayed once a task has read them, and count as done when their batch ends, however it
    ends.

    ``batch_records``: maximum size of a batch. By default the source chooses it: 100,000 for the first batch, and
    then as many records as are worked on in 20 s, from 10,000 to 500,000 (a ``Frame``: 500,000). ``concurrency``:
    number of batches that are worked on at once. Above 1, ``process`` is called in several threads, so that the
    planning and settling of one batch hides behind the work on another; writes into one place still come one after
    the other. ``max_uncommitted``: maximum number of records that are read and not yet done (default: ten batches).
    ``max_uncommitted_per_partition``: a partition with that many such records is paused while others are read;
    ``max_uncommitted`` then has no default. The limits do not hold back replays. ``partitions``: number of tasks
    that read a batch (default: as many as Spark runs at once). ``listener`` gets callbacks about records.
    ``outcomes``: a store (``KafkaTopic``, an ``OutcomeStore``) that gets how each try of a record ended. A record
    counts as done once the store has its outcome, so after a crash an outcome may be there twice. ``progress``:
    True shows a progress bar, False neither a bar nor a line a minute in the log; None shows the bar in a terminal
    and in a notebook (needs the extra ``progress``). ``deadline_s``: the last resort, after which a batch without a
    server's answer is LOST and replayed. ``lease_s``: time after a driver's death until the server drops its
    pending records. ``environment``: replaces Spark, server and clock in tests.
    """

    name: Required[str]
    checkpoint: str | os.PathLike[str] | CheckpointStore | None
    dead_letters: str | os.PathLike[str] | DeadLetterStore | Callable[[list[DeadLetter]], object] | None
    retry: RetryPolicy
    max_dead_share: float
    guarantee: Literal["at_least_once", "at_most_once", "no_guarantee"] | Guarantee
    commit_interval_s: float
    group: Assignment | None
    held: bool
    message_timeout_s: float | None
    tracking: bool
    track: str | Column | Callable[[pa.RecordBatch], Any] | None
    batch_records: int | None
    concurrency: int
    max_uncommitted: int | None
    max_uncommitted_per_partition: int | None
    partitions: int | None
    listener: Listener | None
    outcomes: OutcomeStore | None
    progress: bool | None
    deadline_s: float
    lease_s: float
    environment: Environment | None


@dataclass(frozen=True, slots=True)
class Options:
    """``CommonOptions`` with their defaults, checked. A path is one of a local file."""

    name: str
    checkpoint: Path | CheckpointStore | None = None
    dead_letters: Path | DeadLetterStore | None = None
    retry: RetryPolicy = Retry()  # noqa: RUF009 (frozen)
    max_dead_share: float = 0.01
    guarantee: Guarantee = Guarantee.AT_LEAST_ONCE
    commit_interval_s: float = 0.0
    group: Assignment | None = None
    held: bool = True
    message_timeout_s: float | None = None
    tracking: bool = True
    track: str | Column | Callable[[pa.RecordBatch], Any] | None = None
    batch_records: int | None = None
    concurrency: int = 1
    max_uncommitted: int | None = None
    max_uncommitted_per_partition: int | None = None
    partitions: int | None = None
    listener: Listener = field(default_factory=Listener)
    outcomes: OutcomeStore | None = None
    progress: bool | None = None
    deadline_s: float = 300.0
    lease_s: float = 30.0
    environment: Environment | None = None

    @classmethod
    def of(cls, given: CommonOptions) -> Options:
        """Check ``given``. Raises ``TypeError`` for an unknown option, ``ValueError`` for a bad value."""
        options: dict[str, Any] = dict(given)
        unknown = sorted(set(options) - set(CommonOptions.__annotations__))
        if unknown:
            known = ", ".join(CommonOptions.__annotations__)
            raise TypeError(f"{unknown[0]}: there is no such option of a source; there are {known}")
        if options.get("dead_letters") == LOG:
            options["dead_letters"] = DeadLetterLog()
        for store in ("checkpoint", "dead_letters"):
            if isinstance(options.get(store), str | os.PathLike):
                options[store] = _store_at(store, os.fspath(options[store]))
        if callable(letters := options.get("dead_letters")) and not isinstance(letters, DeadLetterStore):
            options["dead_letters"] = DeadLetterCall(letters)
        if options.get("listener") is None:
            options.pop("listener", None)
        if "guarantee" in options:
            options["guarantee"] = _guarantee(options["guarantee"])
        return cls(**options)

    def __post_init__(self) -> None:
        if not isinstance(self.name, str) or not self.name.strip():
            raise ValueError("name: give the source a name, like name='orders'; checkpoints, logs and metrics carry it")
        self._check_ports()
        if not 0 <= self.max_dead_share <= 1:
            raise ValueError(f"max_dead_share={self.max_dead_share}: give a share from 0 to 1 (1: never stop)")
        counts = ("batch_records", "max_uncommitted", "max_uncommitted_per_partition", "partitions")
        for option in ("concurrency", *(each for each in counts if getattr(self, each) is not None)):
            object.__setattr__(self, option, _count(option, getattr(self, option)))
        if self.batch_records is not None and self.open_max < self.batch_records:
            raise ValueError(
                f"max_uncommitted={self.max_uncommitted} is less than batch_records={self.batch_records}: no batch"
                " would fit"
            )
        if not 0 < self.deadline_s < float("inf"):
            raise ValueError(f"deadline_s={self.deadline_s}: give seconds, above 0")
        check_seconds("lease_s", self.lease_s)
        if not 0 <= self.commit_interval_s < float("inf"):
            raise ValueError(f"commit_interval_s={self.commit_interval_s}: give seconds; 0 commits with each batch")
        self._check_tracking()
        self._check_held()
        self._check_paths()
        self._check_guarantee()
        self._check_group()

    @property
    def open_max(self) -> int:
        """Maximum number of records that are read and not yet done. The default of ten batches lets reading continue
        while some records wait for their replay. Unlimited if each partition has its own limit."""
        if self.max_uncommitted is not None:
            return self.max_uncommitted
        records = LARGEST if self.batch_records is None else self.batch_records
        return 10 * records if self.max_uncommitted_per_partition is None else UNLIMITED

    @property
    def batch_retry(self) -> Retry:
        """The delays of batches that failed as a whole. A ``RetryPolicy`` decides about single records."""
        return self.retry if isinstance(self.retry, Retry) else Retry()

    @property
    def clock(self) -> Callable[[], float]:
        """Monotonic seconds."""
        return time.monotonic if self.environment is None else self.environment.clock

    @property
    def own_files(self) -> tuple[Path | str, ...]:
        """The files, and the URLs of objects, that this source writes. They are therefore not part of its input."""
        checkpoint = _files_of(self.checkpoint) if isinstance(self.checkpoint, Path) else (self.checkpoint,)
        written = [*checkpoint, self.dead_letters]
        stored = [str(each) for each in written if isinstance(each, S3Checkpoint | DeadLetterObjects)]
        return (*(each for each in written if isinstance(each, Path)), *stored)

    def _check_ports(self) -> None:
        if not isinstance(self.retry, RetryPolicy) or isinstance(self.retry, type):
            raise ValueError(
                f"retry={self.retry!r}: give a Retry, like Retry(max_retries=3), or an object with decide(attempts,"
                " verdict, reason, origin)"
            )
        if not isinstance(self.listener, Listener):
            raise ValueError(
                f"listener={self.listener!r}: give a Listener (a subclass that overrides what it wants to see)"
            )
        if not isinstance(self.outcomes, OutcomeStore | None) or isinstance(self.outcomes, type):
            raise ValueError(f"outcomes={self.outcomes!r}: give a KafkaTopic, or another OutcomeStore")
        if self.progress not in (True, False, None):
            raise ValueError(f"progress={self.progress!r}: give True, False, or None (a bar in a terminal or notebook)")

    def _check_tracking(self) -> None:
        if not isinstance(self.tracking, bool):
            raise ValueError(f"tracking={self.tracking!r}: give True or False")
        is_column = any(kind.__module__.startswith("pyspark.sql") for kind in type(self.track).__mro__)
        is_text = isinstance(self.track, str) and bool(self.track.strip())
        if not (self.track is None or is_text or is_column or callable(self.track)):
            raise ValueError(
                f"track={self.track!r}: give a condition, like track='qty > 100', a Column, or a function that takes a"
                " pyarrow.RecordBatch and returns a boolean for each of its rows"
            )

        if self.track is not None and not self.held:
            raise ValueError(
                "track with held=False: untracked records would be LOST and replayed; leave one of the two out"
            )

    def _check_held(self) -> None:
        if not self.held and self.message_timeout_s is None:
            raise ValueError(
                "held=False: give message_timeout_s, after which a record that was handed on and not acked is replayed"
            )
        if self.message_timeout_s is not None:
            check_seconds("message_timeout_s", self.message_timeout_s)

    def _check_guarantee(self) -> None:
        if not self.guarantee.retries and self.dead_letters is not None:
            raise ValueError(
                f"dead_letters with guarantee={self.guarantee.value!r}: no record is retried then, so none goes to the"
                " dead letters; leave dead_letters out, or take guarantee='at_least_once'"
            )

    def _check_group(self) -> None:
        if self.group is None:
            return
        if not isinstance(self.group, Assignment):
            raise ValueError(f"group={self.group!r}: give the membership of a group (an Assignment)")
        if self.concurrency > 1:
            raise ValueError(
                f"concurrency={self.concurrency} with a group: partitions change hands between batches, when none is"
                " open; leave one of the two out"
            )
        if not isinstance(self.checkpoint, SharedCheckpointStore):
            given = str(self.checkpoint) if isinstance(self.checkpoint, Path) else self.checkpoint
            raise ValueError(
                f"checkpoint={given!r} with a group: partitions go from one source to another, so their checkpoint has"
                " to be where all can reach it; give a SharedCheckpointStore"
            )

    def _check_paths(self) -> None:
        for option, store in (("checkpoint", CheckpointStore), ("dead_letters", DeadLetterStore)):
            path = getattr(self, option)
            if path is None or (isinstance(path, store) and not isinstance(path, type)):
                continue
            if not isinstance(path, Path):
                either = "the path of a file, 'log', a function" if option == "dead_letters" else "the path of a file"
                raise ValueError(f"{option}={path!r}: give {either}, or a {store.__name__}")
            if advice := instead_of_url(str(path)):
                raise ValueError(f"{option}={str(path)!r} is a URL that nothing is written to: {advice}")
            if path.is_dir():
                raise ValueError(f"{option}={str(path)!r} is a directory: give a file in it")
            folder = path.absolute().parent
            # The file of dead letters makes the last directory of its path, so that this one is private.
            if not (folder.is_dir() or (option == "dead_letters" and folder.parent.is_dir())):
                raise ValueError(f"{option}={str(path)!r}: its directory does not exist; create it first")
        taken = _files_of(self.checkpoint) if isinstance(self.checkpoint, Path) else ()
        if isinstance(self.dead_letters, Path) and os.path.realpath(self.dead_letters) in map(os.path.realpath, taken):
            raise ValueError(f"dead_letters and checkpoint are the same file ({self.dead_letters}): give two")


def check_order(ordered_by: object, key: str, options: Options) -> None:
    """Check the option ``ordered_by`` of a source whose records have a ``key``. Raises ``ValueError``."""
    if ordered_by not in (None, key):
        raise ValueError(f"ordered_by={ordered_by!r}: give {key!r}, or None")
    if ordered_by is not None and not options.guarantee.retries:
        raise ValueError(
            f"ordered_by={ordered_by!r} with guarantee={options.guarantee.value!r}: nothing is tried again then, so"
            " nothing waits for an earlier record; leave ordered_by out"
        )
    if ordered_by is not None and options.track is not None:
        raise ValueError(
            f"ordered_by={ordered_by!r} with track: an untracked record has no outcome that later ones of its key could"
            " wait for; leave one of the two out"
        )


def checkpoint_store(options: Options) -> CheckpointStore | None:
    """Return the store of the option ``checkpoint``."""
    return CheckpointFile(options.checkpoint) if isinstance(options.checkpoint, Path) else options.checkpoint


def dead_letter_store(options: Options) -> DeadLetterStore | None:
    """Return the store of the option ``dead_letters``."""
    return DeadLetterFile(options.dead_letters) if isinstance(options.dead_letters, Path) else options.dead_letters


def _store_at(option: str, path: str) -> Path | CheckpointStore | DeadLetterStore:
    """Return the store that an option's path or URL names; a path for a local file."""
    url = url_of(path)
    if url is None:
        return Path(local_path(path))
    if option == "dead_letters":
        return DeadLetterObjects(path)
    if url.scheme == "s3":
        return S3Checkpoint(path)
    raise ValueError(
        f"checkpoint={url.shown!r}: a checkpoint needs writes that depend on what they replace, so that two drivers"
        " notice each other, and the acker has them for s3:// alone: give a file on a volume, s3://bucket/key, a"
        " checkpoint in ZooKeeper or Kafka, or a CheckpointStore of your own"
    )


def _guarantee(given: object) -> Guarantee:
    try:
        return Guarantee(str(given))
    except ValueError:
        names = ", ".join(repr(each.value) for each in Guarantee)
        raise ValueError(f"guarantee={given!r}: give one of {names}") from None


def _files_of(checkpoint: Path) -> tuple[Path, ...]:
    """Return a checkpoint and the file that its link leads to, each with the files beside it."""
    paths = dict.fromkeys((checkpoint, behind_link(checkpoint)))
    return tuple(path.with_name(path.name + ending) for path in paths for ending in ("", ".lock", ".new"))


def _count(option: str, value: object) -> int:
    """Return a count as Python's own integer, because JSON takes no other."""
    if not isinstance(value, int | np.integer) or isinstance(value, bool) or value < 1:
        raise ValueError(f"{option}={value!r}: give a whole number, at least 1")
    return int(value)
