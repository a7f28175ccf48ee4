"""The client's votes compared with an implementation written from acker.proto alone, on random replies."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable

import contract_votes
import numpy as np
import numpy.typing as npt
import pytest
from contract_votes import Ballot, Ending

from acker_client.cluster.votes import BatchVotes, Merged
from acker_protocol.ids import SLOTS, mix64, slot
from acker_protocol.messages import Cause, Outcomes, Reason, Verdict

FIRST = 1 << 40
MEMBERS = 5
SEQUENCES = 500
SAID: list[tuple[Verdict, Reason]] = [
    *[(Verdict.ACKED, ""), (Verdict.FAILED, "ValueError"), (Verdict.FAILED, ""), (Verdict.FAILED, "unfinished")],
    *[(Verdict.FAILED, Cause.UNFINISHED), (Verdict.TIMED_OUT, Cause.MESSAGE_TIMEOUT)],
    *[(Verdict.LOST, Cause.ABANDONED), (Verdict.LOST, Cause.UNREAD)],
]
Said = tuple[int, Verdict, Reason]


def root_of(number: int) -> int:
    return mix64(FIRST + number)


def reply(said: Iterable[Said]) -> Outcomes:
    numbers, verdicts, reasons = zip(*said, strict=True)
    named = [*dict.fromkeys(reason for reason in reasons if reason)]
    return Outcomes(
        np.array([root_of(number) for number in numbers], np.uint64),
        np.array(verdicts, np.uint8),
        np.array([named.index(reason) + 1 if reason else 0 for reason in reasons], np.uint32),
        tuple(named),
    )


def endings(merged: Merged) -> list[Ending]:
    found = [Ending(each.root_id, each.verdict.name, each.reason) for each in merged.outcomes]
    return found + [Ending(root, "", "") for root in merged.absent.tolist()]


def by_roots(found: Iterable[Ending]) -> list[Ending]:
    """Name roots by their ids, and move absent ones to the end."""
    named = [each._replace(number=root_of(each.number)) for each in found]
    return [each for each in named if each.verdict] + [each for each in named if not each.verdict]


class Sequence:
    """One batch, whose members' random replies go to both implementations."""

    def __init__(self, draw: random.Random) -> None:
        self.draw = draw
        self.up_to, replicas = draw.randrange(1, 8), draw.randrange(1, 5)
        rows = [draw.sample(range(MEMBERS), replicas) for _ in range(8)]
        self.table: npt.NDArray[np.uint16] = np.array([rows[at % len(rows)] for at in range(SLOTS)], np.uint16)
        self.ours = BatchVotes(FIRST, self.up_to, self.table)
        self.strangers = Ballot([self.table[slot(root_of(number))].tolist() for number in range(self.up_to)])
        self.numbers_said: dict[int, set[int]] = {member: set() for member in range(MEMBERS)}

    def differs(self) -> bool:
        """Return whether the two implementations disagree."""
        for _ in range(self.draw.randrange(4, 24)):
            step = self.draw.choices([self.hear, self.settled, self.leave], [6, 2, 1])[0]
            ours, strangers = step(self.draw.randrange(MEMBERS))
            if ours != strangers:
                return True
        return False

    def hear(self, member: int) -> tuple[list[Ending], list[Ending]]:
        # Mostly of one kind, as when a server settles roots that it missed.
        likely = self.draw.choice(SAID)
        said: list[Said] = [
            (self.draw.randrange(self.up_to), *(likely if self.draw.random() < 0.7 else self.draw.choice(SAID)))
            for _ in range(self.draw.randrange(1, 2 * self.up_to + 1))
        ]
        self.numbers_said[member] |= {number for number, _, _ in said}
        ours = endings(self.ours.hear(member, reply(said)))
        named = [
            (number, verdict.name, str(reason), reason.name if isinstance(reason, Cause) else "")
            for number, verdict, reason in said
        ]
        return ours, by_roots(self.strangers.hear(member, named))

    def settled(self, member: int) -> tuple[list[Ending], list[Ending]]:
        heard = len(self.numbers_said[member])
        roots = heard + self.draw.choice([0, 0, 0, 1])
        why = f"its server counted {roots} outcomes, and {heard} were heard"
        return sorted(endings(self.ours.settled(member, roots))), sorted(
            by_roots(self.strangers.settled(member, roots, why))
        )

    def leave(self, member: int) -> tuple[list[Ending], list[Ending]]:
        why = f"server {member} is gone"
        return sorted(endings(self.ours.leave(member, why))), sorted(by_roots(self.strangers.out(member, why)))


def have_differed(seed: int) -> bool:
    """Return whether the two implementations disagree on one of many random sequences."""
    draw = random.Random(seed)
    return any(Sequence(draw).differs() for _ in range(SEQUENCES))


@pytest.mark.long
def test_votes_written_from_the_contract_alone_agree_with_the_client() -> None:
    seed = random.randrange(1 << 32)
    print(f"seed {seed}")
    assert not have_differed(seed)


def weaker(word: str) -> Callable[[pytest.MonkeyPatch], None]:
    """Return a patch that makes the other implementation rank ``word`` below the next."""

    def misread(patch: pytest.MonkeyPatch) -> None:
        order = list(contract_votes.STRONGEST_FIRST)
        at = order.index(word)
        order[at : at + 2] = reversed(order[at : at + 2])
        patch.setattr(contract_votes, "STRONGEST_FIRST", order)

    return misread


MISREAD: dict[str, Callable[[pytest.MonkeyPatch], None]] = {
    **{f"{word} is weak": weaker(word) for word in ("unfinished", "timed out", "lost", "absent", "unread")},
    "a fail waits for the others": lambda patch: patch.setattr(contract_votes, "AT_ONCE", ("acked",)),
    "unfinished is a fail": lambda patch: patch.setattr(
        contract_votes, "word_of", lambda verdict, cause: {"FAILED": "failed", "LOST": "lost"}.get(verdict, "acked")
    ),
}


@pytest.mark.parametrize("rule", MISREAD)
def test_an_implementation_that_breaks_a_rule_is_detected(rule: str, monkeypatch: pytest.MonkeyPatch) -> None:
    MISREAD[rule](monkeypatch)
    assert have_differed(7)
