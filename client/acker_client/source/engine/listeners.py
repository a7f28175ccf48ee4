"""Listeners: everything that hears how records end: the options ``listener`` and ``outcomes``, and ``Source.outcomes``.

Decides that a record counts as done only once all of them have heard of its end. If one raises, or if the loop over the
outcomes is left, the records whose end it has not heard are open again, so that the next start reads them. Makes
objects of records only for outcomes that somebody asked for.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np

from acker_client.source.decoding.values import json_rows
from acker_client.source.engine.options import Options
from acker_client.source.records.in_flight import Failures, InFlight
from acker_client.source.records.listener import Emissions, Listener
from acker_client.source.records.outcome import Endings, RecordOutcome
from acker_client.source.records.parts import Lookup
from acker_client.source.records.tracker import RecordNumbers
from acker_client.source.records.window import blocks
from acker_protocol.ids import Column


class Listeners:
    """The listeners of one run. ``streams``: whether ``take_outcomes`` is called, as ``Source.outcomes`` does."""

    def __init__(self, options: Options, lookup: Lookup, in_flight: InFlight, *, streams: bool) -> None:
        self._name = options.name
        self._listener = options.listener
        self._store = options.outcomes
        self._lookup = lookup
        self._in_flight = in_flight
        self._streams = streams
        # Without retries there are no dead letters.
        self._counts_dead = options.guarantee.retries
        # The outcomes that were not taken yet, and how many of the first are taken.
        self._untaken: deque[Endings] = deque()
        self._taken = 0
        self._keeps_outcomes = streams or self._store is not None
        # Most outcomes are acks, so they are copied only for those who want them.
        overrides = getattr(self._listener.on_ack, "__func__", None) is not Listener.on_ack
        self.hears_acks = overrides or self._keeps_outcomes

    # -- from opening to closing

    def open_store(self) -> None:
        """Check that outcomes can be written, before there are any. Raises ``SourceError``."""
        if self._store is not None:
            self._store.open()

    def close_store(self) -> None:
        if self._store is not None:
            self._store.close()

    # -- ends of tries

    @contextmanager
    def reported(self, records: RecordNumbers) -> Iterator[None]:
        """The end of finished ``records`` is reported in this block. If that raises, the records are open again."""
        try:
            yield
        except BaseException:
            self._in_flight.reopen(records)
            raise

    def report_acked(self, acked: RecordNumbers, roots: Column) -> None:
        """Report acked records, in any order. Call it only if ``hears_acks``."""
        self._listener.on_ack(Emissions(acked, roots, self._lookup))
        if self._keeps_outcomes:
            self._add(Endings.acked(acked, self._in_flight.attempts(acked) + 1))

    def report_failed(self, failures: Failures) -> None:
        """Report tries that failed."""
        self._listener.on_fail(self._emissions_of(failures), failures)

    def report_retried(self, retried: Failures, *, is_counted: bool = True) -> None:
        """Report records that will be emitted again. ``is_counted``: their tries count as attempts."""
        self._listener.on_retry(self._emissions_of(retried))
        if self._keeps_outcomes:
            tries = self._in_flight.attempts(retried.records) + (not is_counted)
            self._add(Endings.failed(retried, tries, is_final=False))

    def report_dead(self, dead: Failures) -> None:
        """Report records that are in the dead letters."""
        self._listener.on_dead_letter(self._emissions_of(dead), dead)
        if self._keeps_outcomes:
            self._add(Endings.failed(dead, self._in_flight.attempts(dead.records), is_final=True))

    def report_dropped(self, dropped: Failures) -> None:
        """Report records that a source without retries gives up after their only try."""
        if self._keeps_outcomes:
            self._add(Endings.failed(dropped, np.ones(len(dropped), np.int64), is_final=True))

    def report_absent(self, absent: RecordNumbers, roots: Column) -> None:
        self._listener.on_absent(Emissions(absent, roots, self._lookup))

    # -- outcomes as a stream

    @property
    def has_untaken(self) -> bool:
        """Whether ``take_outcomes`` would yield anything. As long as it would, no record may be retired."""
        return bool(self._untaken)

    def take_outcomes(self) -> Iterator[RecordOutcome]:
        """Yield the outcomes that were not taken yet. One is taken when the caller asks for the next."""
        while self._untaken:
            for outcome in self._outcomes(self._untaken[0]):
                yield outcome
                self._taken += 1
            self._untaken.popleft()
            self._taken = 0

    def drop_untaken(self) -> None:
        """Count records as open again whose outcomes will not be taken any more."""
        for endings in self._untaken:
            if endings.is_final:
                untaken = endings.records[self._taken :]
                self._in_flight.reopen(untaken)
                if self._counts_dead and endings.failures is not None:
                    self._lookup.parts.uncount_dead(untaken)
            self._taken = 0
        self._untaken.clear()

    def _add(self, endings: Endings) -> None:
        if self._store is not None:
            self._store.write(self._outcomes(endings))
        if self._streams:
            self._untaken.append(endings)

    def _outcomes(self, endings: Endings) -> Iterator[RecordOutcome]:
        origins = self._lookup.origins(endings.records)
        for at in blocks(len(endings)):
            rows = zip(json_rows(origins[at]), self._lookup.keys(endings.records[at]), strict=True)
            for k, (origin, key) in enumerate(rows, at.start):
                verdict, reason, tries = endings.verdict(k), endings.reason(k), int(endings.tries[k])
                yield RecordOutcome(self._name, origin, key, verdict, reason, tries, endings.is_final)

    def _emissions_of(self, failures: Failures) -> Emissions:
        return Emissions(failures.records, failures.roots, self._lookup)
