"""Oracle: decides which outcomes of a plain program are allowed. Pure. It shares no code with the product.

It knows what was emitted, what each emission becomes, and what the program's sink has received when an outcome arrives.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection
from collections.abc import Set as AbstractSet
from dataclasses import dataclass

# A message id of a program: the number of the record, and the round in which it was emitted.
MessageId = tuple[int, int]


@dataclass
class Emission:
    """``leaves``: what the sink has to receive before the emission may be ACKED."""

    leaves: Collection[str]
    verdict: str = ""


class Oracle:
    """Judges the outcomes of one run."""

    def __init__(self) -> None:
        self.emissions: dict[MessageId, Emission] = {}
        self.findings: list[str] = []
        self.outcomes: Counter[str] = Counter()

    def emit(self, message_id: MessageId, leaves: Collection[str]) -> None:
        """Note an emission, before it is made."""
        self.emissions[message_id] = Emission(leaves)

    def hear(
        self,
        message_id: MessageId,
        verdict: str,
        reason: str,
        *,
        received: AbstractSet[str],
        raised: AbstractSet[MessageId],
        may_be_late: bool,
    ) -> None:
        """Check an outcome. ``received``: what the sink had received when it arrived. ``raised``: the emissions for
        which the program's own code has raised. ``may_be_late``: whether the program may leave emissions undone."""
        self.outcomes[verdict] += 1
        emission = self.emissions.get(message_id)
        if emission is None:
            self._find("stranger", message_id, f"{verdict} ({reason}), and it was not emitted")
            return
        if emission.verdict:
            self._find("twice", message_id, f"{emission.verdict}, then {verdict} ({reason})")
            return
        emission.verdict = verdict
        missing = sorted(set(emission.leaves) - received)
        if verdict == "ACKED":
            if missing:
                self._find("false ACK", message_id, f"the sink has not received {missing[:3]}")
        elif verdict == "FAILED":
            if message_id not in raised:
                self._find("needless", message_id, f"FAILED ({reason}), and nothing has raised for it")
        elif not may_be_late:
            done = f"lacks {missing[:3]}" if missing else "has received all of it"
            self._find("needless", message_id, f"{verdict} ({reason}), and the sink {done}")

    def finish(self) -> None:
        """Add a finding for each emission without an outcome. Call it when there was time for every outcome."""
        for message_id, emission in self.emissions.items():
            if not emission.verdict:
                self._find("missing", message_id, "no outcome")

    def _find(self, kind: str, message_id: MessageId, what: str) -> None:
        self.findings.append(f"{kind}: {message_id}: {what}")
