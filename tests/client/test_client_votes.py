"""Votes of replicas: one outcome a root, whatever each of them says and whoever goes, beside a dumb twin."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from acker_client.core.votes import Merged, Votes
from acker_protocol import ids
from acker_protocol.messages import Outcomes, Verdict

MEMBERS = 4
FIRST = 1 << 40
NOES = {(Verdict.LOST, "unread"): 1, (Verdict.TIMED_OUT, "message_timeout"): 2, (Verdict.FAILED, "unfinished"): 3}
YESES = [(Verdict.ACKED, ""), (Verdict.FAILED, "ValueError: bad")]

Said = tuple[Verdict, str]


def outcomes(said: dict[int, Said]) -> Outcomes:
    """A server's outcomes, each reason once."""
    reasons = tuple(dict.fromkeys(reason for _, reason in said.values() if reason))
    return Outcomes(
        np.array(list(said), np.uint64),
        np.array([verdict for verdict, _ in said.values()], np.uint8),
        np.array([reasons.index(reason) + 1 if reason else 0 for _, reason in said.values()], np.uint32),
        reasons,
    )


def given_by(merged: Merged) -> dict[int, Said]:
    found = {outcome.root_id: (outcome.verdict, outcome.reason) for outcome in merged.outcomes}
    assert len(found) == len(merged.outcomes)
    return found


def slot_of(root: int) -> int:
    return ids.mix64(root) >> 54


def placed(replicas: int) -> np.ndarray:
    """Members n, n + 1 ... for slot n."""
    return (np.arange(ids.SLOTS)[:, None] + np.arange(replicas)).astype(np.uint16) % MEMBERS


@dataclass
class Twin:
    """Keeps every vote for ever."""

    replicas: np.ndarray
    votes: dict[int, dict[int, Said]] = field(default_factory=dict)
    out: set[int] = field(default_factory=set)
    ended: set[int] = field(default_factory=set)

    def members_of(self, root: int) -> list[int]:
        return [int(member) for member in self.replicas[slot_of(root)]]

    def hear(self, member: int, said: dict[int, Said]) -> dict[int, Said]:
        found: dict[int, Said] = {}
        for root, word in said.items():
            if member in self.members_of(root) and member not in self.out:
                self.votes.setdefault(root, {}).setdefault(member, word)
        for root in self.votes:
            found |= self._ending(root)
        return found

    def leave(self, member: int) -> dict[int, Said]:
        self.out.add(member)
        found: dict[int, Said] = {}
        for root in self.votes:
            found |= self._ending(root)
        return found

    def lost(self) -> set[int]:
        return {slot for slot in range(ids.SLOTS) if set(self.replicas[slot].tolist()) <= self.out}

    def _ending(self, root: int) -> dict[int, Said]:
        votes = self.votes[root]
        yes = [word for word in votes.values() if word not in NOES]
        if root in self.ended or not (yes or all(m in votes or m in self.out for m in self.members_of(root))):
            return {}
        self.ended.add(root)
        return {root: yes[0] if yes else max(votes.values(), key=NOES.__getitem__)}


STEPS = st.lists(
    st.one_of(
        st.tuples(
            st.integers(0, MEMBERS - 1),
            st.dictionaries(st.integers(0, 11), st.sampled_from([*NOES, *YESES]), min_size=1, max_size=6),
        ),
        st.tuples(st.integers(0, MEMBERS - 1), st.none()),
    ),
    max_size=30,
)


@given(st.integers(1, 3), STEPS)
def test_each_root_has_the_outcome_that_the_table_says_at_the_moment_it_says(replicas: int, steps: list) -> None:
    votes, twin, heard = Votes(placed(replicas)), Twin(placed(replicas)), set[tuple[int, int]]()
    lost: set[int] = set()
    for member, said in steps:
        if said is None:
            merged, expected = votes.leave(member), twin.leave(member)
        else:
            fresh = {ids.root_id(FIRST, n): word for n, word in said.items() if (member, n) not in heard}
            heard |= {(member, n) for n in said}
            merged, expected = votes.hear(member, outcomes(fresh)), twin.hear(member, fresh)
        assert given_by(merged) == expected
        assert not set(np.flatnonzero(merged.lost).tolist()) & lost
        lost |= set(np.flatnonzero(merged.lost).tolist())
        assert lost == twin.lost()
    for member in range(MEMBERS):
        votes.leave(member)
    assert votes.waiting == 0


@pytest.mark.parametrize("word", YESES)
def test_what_one_replica_can_only_know_when_it_is_true_ends_a_root_at_once(word: Said) -> None:
    votes, root = Votes(placed(2)), ids.root_id(FIRST, 0)
    one, other = placed(2)[slot_of(root)].tolist()
    assert given_by(votes.hear(one, outcomes({root: word}))) == {root: word}
    assert given_by(votes.hear(other, outcomes({root: (Verdict.LOST, "unread")}))) == {}
    assert votes.waiting == 0


def test_with_one_replica_every_word_is_the_outcome_and_nothing_is_remembered() -> None:
    votes, roots = Votes(placed(1)), [ids.root_id(FIRST, n) for n in range(100)]
    words = [*NOES, *YESES]
    said = {root: words[n % len(words)] for n, root in enumerate(roots)}
    found: dict[int, Said] = {}
    for member in range(MEMBERS):
        mine = {root: word for root, word in said.items() if placed(1)[slot_of(root)] == member}
        found |= given_by(votes.hear(member, outcomes(mine)))
    assert (found, votes.waiting) == (said, 0)


def test_a_member_that_is_out_is_not_listened_to_any_more() -> None:
    votes, root = Votes(placed(2)), ids.root_id(FIRST, 0)
    one, other = placed(2)[slot_of(root)].tolist()
    assert given_by(votes.leave(one)) == {}
    assert given_by(votes.hear(one, outcomes({root: (Verdict.ACKED, "")}))) == {}
    assert given_by(votes.hear(other, outcomes({root: (Verdict.FAILED, "unfinished")}))) == {
        root: (Verdict.FAILED, "unfinished")
    }


def test_a_million_votes_leave_nothing_behind() -> None:
    votes, roots = Votes(placed(2)), ids.root_ids(FIRST, np.arange(1 << 20, dtype=np.uint64))
    merged = 0
    for member in range(MEMBERS):
        here = roots[np.any(placed(2)[ids.mix64_column(roots) >> np.uint64(54)] == member, axis=1)]
        merged += len(votes.hear(member, Outcomes(here, np.full(len(here), Verdict.ACKED, np.uint8))).outcomes)
    assert (merged, votes.waiting) == (len(roots), 0)
