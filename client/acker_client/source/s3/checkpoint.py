"""A checkpoint in S3: one object, with the content of a checkpoint file. It is written whole or not at all.

S3 has no locks, but a write may depend on what it replaces (``If-Match``). So a run notices each write of another run.
The run that began later stops, as with offsets in Kafka. Each run has a turn, one higher than the turn of the run whose
checkpoint it found. A run that finds the write of an earlier one stops. A run that finds the write of a
later one writes again. With at-most-once it stops instead.
"""

from __future__ import annotations

import logging
import os
import platform
import secrets
import tempfile
import time
from collections.abc import Callable, Mapping
from functools import partial
from typing import IO, Any, NamedTuple, TypeVar

from acker_client.source.checkpoints.content import Layout, content_of
from acker_client.source.errors import CheckpointError
from acker_client.source.records.input import Committed
from acker_client.source.records.stores import Committer
from acker_client.source.s3.connection import S3Object, Stale, unfenced
from acker_client.source.storage.urls import Url, url_of
from acker_client.source.waiting import OUTAGE_S, OutOfReach, outlast

log = logging.getLogger("acker_client.source")

T = TypeVar("T")

# A smaller checkpoint is in memory while it is written, a larger one in a temporary file.
MEMORY_BYTES = 8 << 20
# No object has this ETag.
NO_ETAG = '"acker"'


class RunTurn(NamedTuple):
    """A run of a source. The smaller of two turns belongs to the run that began earlier."""

    turn: int
    id: str


class S3Checkpoint:
    """The checkpoint of one source as an object in S3: a ``SignedCheckpointStore`` and an
    ``IdentifiedCheckpointStore``.

    ``checkpoint="s3://bucket/orders.ckpt"`` makes one. ``client``: a client of boto3 for S3, with credentials of its
    own. A second run of the same source stops when it first writes after the first run. Needs the extra `s3`.
    """

    # Tests replace these. ``_limit_s``: how long a store may be away before the run ends.
    _wall: Callable[[], float] = staticmethod(time.time)
    _sleep: Callable[[float], None] = staticmethod(time.sleep)
    _limit_s = OUTAGE_S

    def __init__(self, url: str | os.PathLike[str], *, client: Any = None) -> None:
        parsed = url_of(os.fspath(url))
        if parsed is None or parsed.scheme != "s3" or not parsed.authority or not parsed.path.strip("/"):
            raise ValueError(
                f"S3Checkpoint({os.fspath(url)!r}): give the URL of an object, like s3://bucket/orders.ckpt"
            )
        self._url: Url = parsed
        self._object = S3Object(parsed, client)
        self.open("", "")

    def __str__(self) -> str:
        return self._url.shown

    @property
    def url(self) -> str:
        """The URL without credentials and query."""
        return self._url.shown

    def open(self, source: str, kind: str) -> None:
        """Prepare for a run of ``source``. A run that goes on elsewhere is noticed at the first write."""
        self._layout = Layout(
            str(self), source, kind, "another object", "remove it to read the input from its beginning"
        )
        self._by: Committer | None = None
        self._identity = ""
        self._loaded: Mapping[str, Committed] = {}
        # The ETag of what this run has last seen; None: there was no object.
        self._etag: str | None = None
        self._run = RunTurn(1, secrets.token_hex(4))
        self._has_warned = False

    def load(self) -> dict[str, Committed]:
        """Return the last saved state, also if it was copied from a file. Raises :class:`CheckpointError`."""
        self._loaded, turn = self._read()
        self._run = RunTurn(turn + 1, self._run.id)
        return dict(self._loaded)

    def sign(self, by: Committer) -> None:
        """Write once more what was loaded, so that a driver that begins later finds this run.

        Raises :class:`CheckpointError` if another run has written since, or if the store checks no conditions.
        """
        self._by = by
        loaded, self._loaded = self._loaded, {}
        with self._content(loaded) as content:
            self._check_conditions(content)
            self._put(content, is_first=True)

    def save(self, committed: Mapping[str, Committed]) -> None:
        """Replace the object. Raises :class:`CheckpointError` if an earlier run has written it, or if it cannot be
        written; the old one then remains."""
        with self._content(committed) as content:
            self._put(content)

    def identity(self) -> str:
        """Return the identity of the last loaded state; "" if it has none."""
        return self._identity

    def draw_identity(self) -> str:
        """Return the identity. Writes the object again if it has none yet. Raises :class:`CheckpointError`."""
        if not self._identity:
            committed, saved = self._adopt_own()
            self._identity = _identity_of(saved)
            if not self._identity:
                self._identity = secrets.token_hex(8)
                try:
                    self.save(committed)
                except BaseException:
                    # Otherwise a commit would name an identity that no later start finds in the checkpoint.
                    self._identity = ""
                    raise
        return self._identity

    def close(self) -> None:
        """Nothing to release: the next run may begin at once."""

    # -- the object

    def _put(self, content: IO[bytes], *, is_first: bool = False) -> None:
        """Replace the object. Raises :class:`CheckpointError` if another run goes on instead.

        ``is_first``: this run has written nothing yet. That ends when a condition fails, because the write may have
        arrived although its answer was lost.
        """
        while True:
            try:
                self._etag = self._wait(partial(self._object.put, content, self._etag))
            except Stale:
                self._adopt_own(is_first=is_first)
                is_first = False
            else:
                return

    def _read(self) -> tuple[dict[str, Committed], int]:
        """Return the saved state, and the turn of the run that wrote it."""
        found = self._wait(self._object.get)
        if found is None:
            self._etag = None
            return {}, 0
        content, self._etag = found
        committed, saved = self._layout.parse(content)
        self._identity = _identity_of(saved)
        return committed, _run_of(saved).turn

    def _adopt_own(self, *, is_first: bool = False) -> tuple[dict[str, Committed], Mapping[str, Any]]:
        """Find out who has written the object, and take its ETag if this run may replace it. Return the state and the
        fields that the object has.

        Raises :class:`CheckpointError` if another run goes on instead. ``is_first``: this run has written nothing yet.
        """
        found = self._wait(self._object.get)
        if found is None:
            if self._etag is not None:
                log.warning("checkpoint %s was removed while its source runs: it is written anew", self)
            self._etag = None
            return {}, {}
        content, etag = found
        committed, saved = self._layout.parse(content)
        other = _run_of(saved)
        if etag != self._etag and other.id != self._run.id:
            retries = self._by is None or self._by.retries
            if is_first or other < self._run or not retries:
                raise self._second(saved, is_later=other > self._run)
            self._warn(saved)
        self._etag = etag
        return committed, saved

    def _check_conditions(self, content: IO[bytes]) -> None:
        """Raise :class:`CheckpointError` if the store writes although a condition fails. It then holds what was loaded,
        as before."""
        try:
            self._wait(partial(self._object.put, content, NO_ETAG))
        except Stale:
            return
        raise unfenced(self._url)

    def _content(self, committed: Mapping[str, Committed]) -> tempfile.SpooledTemporaryFile[bytes]:
        fields = self._layout.fields(self._identity, self._by, self._wall(), {"run": list(self._run)})
        file = tempfile.SpooledTemporaryFile(MEMORY_BYTES)  # noqa: SIM115 (the caller closes it)
        file.writelines(content_of(fields, committed))
        return file

    def _wait(self, call: Callable[[], T]) -> T:
        try:
            return outlast(call, f"checkpoint {self}", self._limit_s, sleep=self._sleep)
        except OutOfReach as error:
            raise CheckpointError(
                f"{error}, for {self._limit_s:.0f} s: check the network, and start again. Nothing is lost: the previous"
                " checkpoint still holds, and the next start reads the records again that were done since"
            ) from None

    # -- two runs

    def _second(self, other: Mapping[str, Any], *, is_later: bool) -> CheckpointError:
        began = "began after" if is_later else "began before"
        return CheckpointError(
            f"source {self._layout.source!r} runs twice: another driver, {_writer_of(other)}, {began} this one"
            f" ({platform.node()}:{os.getpid()}) and writes checkpoint {self} too. This driver stops, and the other one"
            " goes on. Stop one of the two for good; two jobs need a checkpoint each. Nothing is lost: what is not in"
            " the checkpoint is read again"
        )

    def _warn(self, other: Mapping[str, Any]) -> None:
        if not self._has_warned:
            self._has_warned = True
            log.warning(
                "source %r runs twice: another driver, %s, began after this one, and writes checkpoint %s too; it stops"
                " when it sees that this one goes on",
                self._layout.source,
                _writer_of(other),
                self,
            )


def _run_of(saved: Mapping[str, Any]) -> RunTurn:
    """Return the run that wrote a checkpoint; turn 0 for one that was copied from a file."""
    run = saved.get("run")
    is_run = isinstance(run, list) and len(run) == 2 and isinstance(run[0], int) and isinstance(run[1], str)
    return RunTurn(*run) if isinstance(run, list) and is_run else RunTurn(0, "")


def _identity_of(saved: Mapping[str, Any]) -> str:
    return str(saved.get("identity") or "")


def _writer_of(saved: Mapping[str, Any]) -> str:
    by = saved.get("by")
    return f"{by.get('host')}:{by.get('pid')}" if isinstance(by, dict) else "of an unknown process"
