"""SavedState: what becomes of a server's state between two runs.

Decides whether shards are restored or new, in which order the shards of all namespaces are stored, and what is logged
about state that is lost. Does not decide when the state is consumed or written (``server`` does), or how it lies on
disk (``state_file`` does).
"""

from __future__ import annotations

import contextlib
import secrets
import time
from collections.abc import Generator, Iterator

from acker_service.config import Config
from acker_service.core.parts import StatePart, check_columns, json_column, read_json
from acker_service.core.quotas import DEFAULT
from acker_service.core.shard import Shard
from acker_service.namespaces import Namespaces, limits_of, new_shard
from acker_service.process.logs import Log
from acker_service.state.state_file import StateDir

log = Log("acker.server")


class SavedState:
    """The state of one server, kept in ``--state-dir`` if there is one. Methods raise ``StateError``."""

    def __init__(self, options: Config) -> None:
        self._options = options
        self._is_restored = False
        self._dir: StateDir | None = None
        if options.state_dir is not None:
            self._dir = StateDir(options.state_dir)
            if options.discard_state:
                self._dir.discard()

    @property
    def is_kept(self) -> bool:
        """Whether the state outlives the server."""
        return self._dir is not None

    def open_shards(self, now: float) -> dict[str, Shard]:
        """Return shards with the state that was kept, by namespace, or an empty one for the default namespace. Does not
        consume the state."""
        incarnation = secrets.randbits(64) or 1
        state = None if self._dir is None else self._dir.read()
        self._is_restored = state is not None
        if self._dir is None or state is None:
            return {DEFAULT: new_shard(self._options, incarnation)}
        try:
            return restored(state, self._options, incarnation, now)
        except ValueError as error:
            raise self._dir.refusal(f"is not a state of this version ({error})") from None

    def consume(self, namespaces: Namespaces) -> None:
        """Note that a server serves from now on, and delete the state that it was restored from."""
        if self._dir is None:
            return
        if self._dir.was_lost:
            reason = "the last server with this --state-dir ended without writing it: sources replay what was pending"
            log.warning("state_lost", reason=reason)
        self._dir.mark_serving()
        if self._is_restored:
            self._dir.consume()
            stats = namespaces.stats
            log.info("state_restored", pending=stats.pending, sources=stats.sources)

    def write(self, namespaces: Namespaces) -> None:
        """Write the state. Without a directory, log what is lost."""
        stats = namespaces.stats
        if self._dir is None:
            if stats.pending or stats.unconfirmed:
                reason = "no --state-dir: sources replay what was pending"
                had = {"pending": stats.pending, "unconfirmed": stats.unconfirmed, "sources": stats.sources}
                log.warning("state_lost", reason=reason, **had)
            return
        started = time.monotonic()
        # The dump holds a shard's lock, so it is closed even if writing fails.
        with contextlib.closing(_dump(namespaces)) as parts:
            size = self._dir.write(parts)
        duration_s = round(time.monotonic() - started, 3)
        log.info("state_written", bytes=size, duration_s=duration_s, pending=stats.pending)

    def close(self) -> None:
        """Let another server use the directory."""
        if self._dir is not None:
            self._dir.close()


def _dump(namespaces: Namespaces) -> Generator[StatePart, None, None]:
    for each in namespaces.every:
        if each.name != DEFAULT:
            yield "namespace", {"json": json_column({"name": each.name})}
        yield from each.shared.dump()


def restored(state: Iterator[StatePart], options: Config, incarnation: int, now: float) -> dict[str, Shard]:
    """Return the shards of a state, by namespace. Raises ValueError, with the reason, if the state is incomplete."""
    shards: dict[str, Shard] = {}
    following = [DEFAULT]

    def parts_of_one() -> Iterator[StatePart]:
        for name, columns in state:
            if name == "namespace":
                check_columns(name, columns)
                following.append(str(read_json(columns["json"])["name"]))
                return
            yield name, columns

    while following:
        name = following.pop()
        if name in shards:
            raise ValueError("it holds a namespace twice")
        limits = limits_of(options, name)
        shards[name] = Shard.restore(parts_of_one(), incarnation=incarnation, now=now, **limits)
    return shards
