"""Retry policy: asks a ``RetryPolicy`` of the user about each failed record.

Decides that a policy that raises, or answers anything but seconds and None, ends the run.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from acker_client.error_text import shorten
from acker_client.source.decoding.values import json_rows
from acker_client.source.engine.options import Options
from acker_client.source.errors import SourceError
from acker_client.source.records.in_flight import DecideFailures, Failures
from acker_client.source.records.parts import Lookup
from acker_client.source.records.reasons import split_reason
from acker_client.source.records.retry import Counts, Delays, Retry, RetryPolicy
from acker_protocol.messages import Verdict


class AskPolicy:
    """Asks ``policy`` for the delay of each failed record: a ``DecideFailures``."""

    def __init__(self, policy: RetryPolicy, lookup: Lookup) -> None:
        self._policy = policy
        self._lookup = lookup

    def __call__(self, failures: Failures, attempts: Counts) -> Delays:
        origins = json_rows(self._lookup.origins(failures.records))
        delays = (
            self._ask(int(attempts[k]), Verdict(int(failures.verdicts[k])), failures.reason(k), origin)
            for k, origin in enumerate(origins)
        )
        return np.fromiter(delays, np.float64, len(failures))

    def _ask(self, attempts: int, verdict: Verdict, reason: str, origin: Mapping[str, Any]) -> float:
        """Return the delay in seconds; NaN to give the record up. Raises ``SourceError``."""
        try:
            answer = self._policy.decide(attempts, verdict, split_reason(reason)[0], origin)
        except Exception as error:
            raise _wrong(f"raised {shorten(error)}", attempts, verdict, origin) from error
        if answer is None:
            return math.nan
        if isinstance(answer, bool) or not isinstance(answer, int | float | np.number) or not 0 <= answer < math.inf:
            raise _wrong(f"returned {answer!r}", attempts, verdict, origin)
        return float(answer)


def policy_of(options: Options, lookup: Lookup) -> DecideFailures | None:
    """Return how to ask the option ``retry``; None for a plain ``Retry``, and for a source without retries."""
    if not options.guarantee.retries or getattr(options.retry.decide, "__func__", None) is Retry.decide:
        return None
    return AskPolicy(options.retry, lookup)


def _wrong(what: str, attempts: int, verdict: Verdict, origin: Mapping[str, Any]) -> SourceError:
    where = ":".join(map(str, origin.values()))
    return SourceError(
        f"retry: decide({attempts}, {verdict.name}, ...) of record {where} {what}: return seconds, 0 or more, or None"
        " to give the record up. Nothing is lost: records that are not done are read again at the next start"
    )
