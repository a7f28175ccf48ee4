"""Votes that were written from chapter 8 of acker.proto alone: one root, one word at a time, in plain Python.

Combines the words of a root's replicas into one outcome. Roots are numbers in the batch. Members may have any names.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

STRONGEST_FIRST = ("acked", "failed", "unfinished", "timed out", "lost", "absent", "unread", "out")
AT_ONCE = ("acked", "failed")
VERDICTS = {
    "acked": "ACKED",
    "failed": "FAILED",
    "unfinished": "FAILED",
    "timed out": "TIMED_OUT",
    "lost": "LOST",
    "unread": "LOST",
    "out": "LOST",
}


class Said(NamedTuple):
    """The word of one replica about one root, such as "acked" or "lost"."""

    word: str
    reason: str


class Ending(NamedTuple):
    """How a root ended. ``verdict`` "": the root is absent, and nothing is reported."""

    number: int
    verdict: str
    reason: str


def word_of(verdict: str, cause: str) -> str:
    """Return the word of an outcome. ``verdict``: ACKED, FAILED, TIMED_OUT or LOST. ``cause``: "" for none."""
    if verdict == "FAILED":
        return "unfinished" if cause == "UNFINISHED" else "failed"
    if verdict == "LOST":
        return "unread" if cause == "UNREAD" else "lost"
    return {"ACKED": "acked", "TIMED_OUT": "timed out"}[verdict]


class Ballot:
    """The votes of one batch. ``replicas``: the members that hold each number."""

    def __init__(self, replicas: Sequence[Sequence[object]]) -> None:
        self._replicas = replicas
        self._words: list[dict[object, Said]] = [{} for _ in replicas]
        self._ended: set[int] = set()
        self._silent: set[object] = set()
        # Outcomes of slots that the member does not hold in the final placement, by (member, number).
        self._elsewhere: set[tuple[object, int]] = set()

    def hear(self, member: object, outcomes: Iterable[tuple[int, str, str, str]]) -> list[Ending]:
        """Take a member's ``outcomes``, in order: (number, verdict, reason, cause). Returns the roots that end."""
        if member in self._silent:
            return []
        endings: list[Ending] = []
        for number, verdict, reason, cause in outcomes:
            if member in self._replicas[number]:
                endings += self._say(member, number, Said(word_of(verdict, cause), reason))
            else:
                self._elsewhere.add((member, number))
        return endings

    def settled(self, member: object, roots: int, why: str) -> list[Ending]:
        """Take the silence of a member whose outcomes up to the cursor of its SettleReply were all heard.

        ``roots``: the count in that reply. ``why``: the reason of the loss if another number was heard.
        """
        heard = sum(member in words for words in self._words)
        heard += sum(each == member for each, _ in self._elsewhere)
        return self._silence(member, Said("absent", "") if heard == roots else Said("lost", why))

    def out(self, member: object, why: str) -> list[Ending]:
        return self._silence(member, Said("out", why))

    def _silence(self, member: object, said: Said) -> list[Ending]:
        if member in self._silent:
            return []
        self._silent.add(member)
        own = [number for number, replicas in enumerate(self._replicas) if member in replicas]
        return [ending for number in own for ending in self._say(member, number, said)]

    def _say(self, member: object, number: int, said: Said) -> list[Ending]:
        words = self._words[number]
        if member in words:
            return []
        words[member] = said
        if number in self._ended or (said.word not in AT_ONCE and len(words) < len(self._replicas[number])):
            return []
        self._ended.add(number)
        strongest = min((each.word for each in words.values()), key=STRONGEST_FIRST.index)
        reasons = [each.reason for each in words.values() if each.word == strongest]
        return [Ending(number, VERDICTS.get(strongest, ""), reasons[-1] if strongest == "out" else reasons[0])]
