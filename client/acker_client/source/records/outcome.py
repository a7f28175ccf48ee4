"""Outcome: how one try of a record ended, as people read it (``RecordOutcome``) and in columns (``Endings``). Pure."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
import numpy.typing as npt

from acker_client.source.records.in_flight import Failures
from acker_client.source.records.reasons import split_reason
from acker_client.source.records.tracker import RecordNumbers
from acker_protocol.messages import Verdict

Tries = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class RecordOutcome:
    """How one try of a record ended.

    ``source``: the source's name. ``origin``: the names and values that locate the record, as in
    ``Emissions.origins``. ``key``: the record's own key (Kafka, Kinesis) as it survives JSON; None for a record without
    one, or that cannot be read any more. ``reason``: why the record was not acked, without a traceback; "" if it was.
    ``attempts``: the number of this try, from 1. Tries in batches that failed as a whole do not count. ``is_final``: no
    other try follows. The record is ACKED or in the dead letters, or the source's ``guarantee`` allows no retry.
    """

    source: str
    origin: Mapping[str, Any]
    key: Any
    verdict: Verdict
    reason: str
    attempts: int
    is_final: bool

    @property
    def where(self) -> str:
        """The origin as a person would write it, for example ``path:line``."""
        return ":".join(str(each) for each in self.origin.values())

    def to_json(self) -> str:
        """Return one line of JSON, with the verdict by its name."""
        fields = {
            "source": self.source,
            "origin": dict(self.origin),
            "key": self.key,
            "verdict": self.verdict.name,
            "final": self.is_final,
            "reason": self.reason,
            "attempts": self.attempts,
        }
        return json.dumps(fields, ensure_ascii=False)


@dataclass(frozen=True, slots=True)
class Endings:
    """Tries that ended together: ``records: int64[n]`` (ascending) and ``tries: int64[n]``, the number of each try.
    ``failures``: how they ended; None if all are ACKED."""

    records: RecordNumbers
    tries: Tries
    is_final: bool
    failures: Failures | None = None

    @classmethod
    def acked(cls, records: RecordNumbers, tries: Tries) -> Self:
        """Return the endings of ACKED ``records``, in any order."""
        order = np.argsort(records)
        return cls(records[order], tries[order], is_final=True)

    @classmethod
    def failed(cls, failures: Failures, tries: Tries, *, is_final: bool) -> Self:
        return cls(failures.records, tries, is_final, failures)

    def __len__(self) -> int:
        return len(self.records)

    def verdict(self, index: int) -> Verdict:
        return Verdict.ACKED if self.failures is None else Verdict(int(self.failures.verdicts[index]))

    def reason(self, index: int) -> str:
        """Return why the ``index``-th record was not acked, without a traceback; "" if it was."""
        return "" if self.failures is None else split_reason(self.failures.reason(index))[0]
