"""Dead lettering: writes dead letters for records without retries left.

Decides that a record counts as done only when its letter is stored durably. While the input or the store is away,
letters wait and other records go on. Too many letters stop the run before they are written. Shows a traceback once for
each kind of reason (an operator and the type of its exception): in the log, and in the first letter.
"""

from __future__ import annotations

import logging
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from acker_client.source.engine.environment import Environment
from acker_client.source.engine.options import Options, dead_letter_store
from acker_client.source.errors import SourceError, TooManyDeadLetters
from acker_client.source.records.by_reason import by_reason
from acker_client.source.records.dead_letter import DeadLetter
from acker_client.source.records.in_flight import Failures, InFlight
from acker_client.source.records.input import Original
from acker_client.source.records.parts import Lookup
from acker_client.source.records.progress import counted
from acker_client.source.records.reasons import split_reason
from acker_client.source.records.stores import DeadLetterStore, SparkDeadLetterStore
from acker_client.source.records.tracker import RecordNumbers
from acker_client.source.waiting import OUTAGE_S, WAITS, Outage, OutOfReach
from acker_protocol.messages import Reason

log = logging.getLogger("acker_client.source")

# Up to this number of dead letters, their share is not checked.
DEAD_MIN = 10
NONE_SPENT = Failures.joined([])
UNREADABLE = "dead letters cannot be written, because their records cannot be read"
NOTHING_LOST = "nothing is lost: these records are not done, and are read again at the next start"


class DeadLettering:
    """The dead letters of one run. Times in letters are Unix seconds; waits go by the environment's clock."""

    def __init__(self, options: Options, environment: Environment, lookup: Lookup, in_flight: InFlight) -> None:
        self._options = options
        self._environment = environment
        self._lookup = lookup
        self._in_flight = in_flight
        self._letters = dead_letter_store(options)
        self._shown: set[str] = set()
        # (first record, time of the first emission) of each range of records, both ascending.
        self._first_emitted: list[tuple[int, float]] = []
        # Records that have spent their retries, and have no letter yet.
        self._queued: list[Failures] = []
        # Letters that their store has not taken yet, because it is away, and their records.
        self._unwritten: tuple[Failures, list[DeadLetter]] = NONE_SPENT, []
        # Queued records that cannot be read, and since when.
        self._unreadable_since_s: dict[int, float] = {}
        # How often the letters had to wait, since when the input or the store is away, and when to ask it again.
        self._waits: int
        self._away_since_s: float | None
        self._due_s: float
        self._outage: Outage
        self._forget_outage()

    @property
    def has_queued(self) -> bool:
        return bool(self._queued or len(self._unwritten[0]))

    def open_letters(self, spark: Any) -> None:
        """Check that letters can be written, before there is any. ``spark``: the session of the run. Raises
        ``SourceError``."""
        if isinstance(self._letters, SparkDeadLetterStore):
            self._letters.set_session(spark)
        if self._letters is not None:
            self._letters.open()

    def close(self) -> None:
        if self._letters is not None:
            self._letters.close()

    def note_first_emission(self, record: int, now_s: float) -> None:
        """Note that records from ``record`` on are emitted for the first time now."""
        self._first_emitted.append((record, now_s))

    def forget_times(self, done_below: int) -> None:
        """Drop the emission times of records below ``done_below``, because these are done."""
        del self._first_emitted[: max(0, self._index_of(done_below))]

    def log_tracebacks(self, reasons: Sequence[Reason]) -> None:
        """Log the first traceback of each operator and kind of exception."""
        for reason in reasons:
            text, traceback = split_reason(str(reason))
            if traceback and self._is_first(_kind_of(text)):
                log.warning("first failure of %s\n%s", text, traceback)

    def queue(self, spent: Failures) -> None:
        """Queue records that have spent their retries, to be written with the next letters."""
        self._queued.append(spent)

    def drop_records(self, records: RecordNumbers) -> None:
        """Drop queued records that belong to another source now."""
        self._queued = [left for spent in self._queued if len(left := spent.without(records))]
        spent, letters = self._unwritten
        is_left = ~np.isin(spent.records, records)
        self._unwritten = spent.only(is_left), [letters[k] for k in np.flatnonzero(is_left)]
        for record in np.intersect1d(list(self._unreadable_since_s), records).tolist():
            del self._unreadable_since_s[record]
        if not self.has_queued:
            # Otherwise the next outage would count from the beginning of this one.
            self._forget_outage()

    def write_queued(self) -> Failures:
        """Write letters for queued records, durably. Returns the records that have one now, and are done.

        Returns none while the input, or the store of the letters, is away. Raises ``SourceError`` if the source has no
        dead letters, or if either is away for ``OUTAGE_S``, and ``TooManyDeadLetters`` if too many records are dead.
        Never raises after letters were written, because their records would get a second one.
        """
        if self._environment.clock() < self._due_s:
            return NONE_SPENT
        try:
            if not len(self._unwritten[0]):
                self._make_letters()
            written, letters = self._unwritten
            if len(written):
                self._store.write(letters)
            self._unwritten = NONE_SPENT, []
        except OutOfReach as error:
            self._note_away(error)
            return NONE_SPENT
        self._away_since_s = None
        if self._unreadable_since_s:
            self._postpone(UNREADABLE)
        else:
            self._outage.note("")
            self._forget_outage()
        return written

    @property
    def _store(self) -> DeadLetterStore:
        if self._letters is not None:
            return self._letters
        spent = Failures.joined(self._queued)
        raise SourceError(
            f"{counted(len(spent), 'record has', 'records have')} spent all retries, and there is nowhere to put"
            f" them: give the source dead_letters='dead.jsonl', or fix what fails\n{self._reasons_of(spent)}\n"
            f"{NOTHING_LOST}"
        )

    def _make_letters(self) -> None:
        """Make letters of the queued records that can be read. A letter without its record could not be put back, so
        the others wait."""
        spent = Failures.joined(self._queued)
        self._check_share(spent, self._store)
        if len(self._lookup.away_records()):
            # Asks the input again, so it must come first.
            self._lookup.is_reachable()
        away = self._lookup.away_records()
        now, later = spent.without(away), spent.of(away)
        self._note_unreadable(later)
        try:
            originals = self._lookup.originals(now.records)
        except OutOfReach as error:
            raise OutOfReach(f"{UNREADABLE}: {error}") from None
        letters = list(self._letters_of(now, originals, self._environment.wall()))
        self._unwritten, self._queued = (now, letters), [later] if len(later) else []

    def _note_unreadable(self, later: Failures) -> None:
        """Note the records that wait because they cannot be read. Raises ``SourceError`` if that lasts."""
        now_s = self._environment.clock()
        self._unreadable_since_s = {
            record: self._unreadable_since_s.get(record, now_s) for record in later.records.tolist()
        }
        if now_s - min(self._unreadable_since_s.values(), default=now_s) >= OUTAGE_S:
            raise SourceError(f"{UNREADABLE}. {NOTHING_LOST}")

    def _note_away(self, error: OutOfReach) -> None:
        """Postpone all letters. Raises ``SourceError`` if the input or the store was away for ``OUTAGE_S``."""
        now_s = self._environment.clock()
        self._away_since_s = now_s if self._away_since_s is None else self._away_since_s
        if now_s - self._away_since_s >= OUTAGE_S:
            raise SourceError(f"{error}. {NOTHING_LOST}")
        self._postpone(str(error))

    def _postpone(self, why: str) -> None:
        """Postpone the next attempt, longer each time."""
        self._due_s = self._environment.clock() + WAITS.wait_s(self._waits, self._environment.draw)
        self._waits += 1
        self._outage.note(why)

    def _forget_outage(self) -> None:
        self._waits, self._away_since_s, self._due_s = 0, None, float("-inf")
        self._outage = Outage("the input or the store of dead letters", self._environment.clock)

    def _check_share(self, spent: Failures, letters: DeadLetterStore) -> None:
        """Raise ``TooManyDeadLetters`` if dead letters are too large a share of the records of this and earlier runs.

        Each of these records is answered, finished (it counts as answered when it is retired), or open.
        """
        share_max, counts, tracker = self._options.max_dead_share, self._in_flight.counts, self._in_flight.tracker
        answered = self._lookup.parts.all_answered
        read = answered.records + tracker.finished_records + tracker.open_records
        dead = answered.dead + len(spent)
        if share_max == 1 or dead <= DEAD_MIN or dead <= share_max * read:
            return
        raise TooManyDeadLetters(
            f"{dead} of {read} records have spent all retries, more than max_dead_share={share_max:g}"
            f" allows: fix what fails and start again, or raise max_dead_share\n{self._reasons_of(spent)}\n"
            f"{NOTHING_LOST}. These records are not in {letters}{_earlier(counts.dead_lettered)}"
        )

    def _reasons_of(self, spent: Failures) -> str:
        return by_reason(spent, self._lookup.origins)

    def _letters_of(self, spent: Failures, originals: Sequence[Original], now_s: float) -> Iterator[DeadLetter]:
        schedule = self._in_flight.schedule
        failed, interrupted = schedule.failed(spent.records), schedule.interrupted(spent.records)
        for k, original in enumerate(originals):
            yield DeadLetter(
                source=self._options.name,
                reason=self._reason(spent.reason(k)),
                failed=int(failed[k]),
                interrupted=int(interrupted[k]),
                first_s=self._first_emitted[max(0, self._index_of(int(spent.records[k])))][1],
                last_s=now_s,
                origin=original.origin,
                value=original.value,
                value_bytes=original.value_bytes,
                schema=original.schema,
                columns=original.columns,
            )

    def _reason(self, reason: str) -> str:
        """Return the reason. Only the first letter of each kind of failure keeps the traceback."""
        text, traceback = split_reason(reason)
        return reason if traceback and self._is_first("letter of " + _kind_of(text)) else text

    def _is_first(self, what: str) -> bool:
        is_first = what not in self._shown
        self._shown.add(what)
        return is_first

    def _index_of(self, record: int) -> int:
        return bisect_right(self._first_emitted, (record, float("inf"))) - 1


def _earlier(count: int) -> str:
    return f", but {count} earlier ones of this run are" if count else ""


def _kind_of(text: str) -> str:
    """Return the operator and the type of its exception, without the message about one record."""
    return ":".join(text.split(":", 2)[:2])
