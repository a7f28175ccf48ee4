"""SavedState: what becomes of a server's state between two runs.

Decides whether a shard is restored or new, and what is logged about state that is lost. Does not decide when the state
is consumed or written (``server`` does), or how it lies on disk (``state_file`` does).
"""

from __future__ import annotations

import contextlib
import secrets
import time
from typing import Any

from acker_protocol.version import VERSION
from acker_service.config import Config
from acker_service.core.shard import Shard
from acker_service.locked_shard import SharedShard
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

    def open_shard(self, now: float) -> Shard:
        """Return a shard with the state that was kept, or an empty one. Does not consume the state."""
        options = self._options
        incarnation = secrets.randbits(64) or 1
        bounds = options.bounds
        limits: dict[str, Any] = {
            "max_memory": options.memory_bytes,
            "max_pending": bounds.max_pending,
            "max_pending_per_source": options.max_pending_per_source,
            "sequence_window": options.sequence_window,
            "orphan_timeout_s": options.orphan_timeout_s,
            "memory_s": options.memory_s,
            "max_identity_bytes": bounds.max_identity_bytes,
            "max_reasons_bytes": bounds.max_reasons_bytes,
            "max_pins_bytes": bounds.max_pins_bytes,
            "max_lease_s": options.max_lease_s,
        }
        state = None if self._dir is None else self._dir.read()
        self._is_restored = state is not None
        if self._dir is None or state is None:
            return Shard(incarnation=incarnation, generation=secrets.randbits(64) or 1, version=VERSION, **limits)
        try:
            shard = Shard.restore(state, incarnation=incarnation, now=now, **limits)
        except ValueError as error:
            raise self._dir.refusal(f"is not a state of this version ({error})") from None
        return shard

    def consume(self, shared: SharedShard) -> None:
        """Note that a server serves from now on, and delete the state that it was restored from."""
        if self._dir is None:
            return
        if self._dir.was_lost:
            reason = "the last server with this --state-dir ended without writing it: sources replay what was pending"
            log.warning("state_lost", reason=reason)
        self._dir.mark_serving()
        if self._is_restored:
            self._dir.consume()
            stats = shared.stats
            log.info("state_restored", pending=stats.pending, sources=stats.sources)

    def write(self, shared: SharedShard) -> None:
        """Write the state. Without a directory, log what is lost."""
        stats = shared.stats
        if self._dir is None:
            if stats.pending or stats.unconfirmed:
                reason = "no --state-dir: sources replay what was pending"
                had = {"pending": stats.pending, "unconfirmed": stats.unconfirmed, "sources": stats.sources}
                log.warning("state_lost", reason=reason, **had)
            return
        started = time.monotonic()
        # The dump holds the shard's lock, so it is closed even if writing fails.
        with contextlib.closing(shared.dump()) as parts:
            size = self._dir.write(parts)
        duration_s = round(time.monotonic() - started, 3)
        log.info("state_written", bytes=size, duration_s=duration_s, pending=stats.pending)

    def close(self) -> None:
        """Let another server use the directory."""
        if self._dir is not None:
            self._dir.close()
