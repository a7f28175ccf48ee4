"""Votes of replicas: compared with a simple twin on random programs, then one case for each row of the table."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st

from acker_client.cluster.votes import BatchVotes, Merged
from acker_protocol.ids import BASE_MAX, SLOTS, mix64, slot
from acker_protocol.messages import Cause, Outcomes, Reason, Verdict
from acker_protocol.placement import Member, View, place

FIRST = BASE_MAX - 7
ACKED, FAILED, TIMED_OUT, LOST = Verdict

Word = tuple[Verdict, Reason]
Ended = tuple[int, Verdict, Reason]

ACK: Word = (ACKED, "")
BAD: Word = (FAILED, "ValueError: bad")
UNFINISHED: Word = (FAILED, Cause.UNFINISHED)
TIMEOUT: Word = (TIMED_OUT, Cause.MESSAGE_TIMEOUT)
ABANDONED: Word = (LOST, Cause.ABANDONED)
UNREAD: Word = (LOST, Cause.UNREAD)
WORDS = [ACK, BAD, UNFINISHED, TIMEOUT, ABANDONED, UNREAD]
WORDS += [(FAILED, ""), (FAILED, "unfinished"), (FAILED, "unread"), (TIMED_OUT, Cause.PROGRESS_TIMEOUT)]
WORDS += [(FAILED, Cause.UNREAD), (LOST, Cause.ROOT_CONFLICT), (LOST, "")]
# A replica makes these statements without a message, by settling or by leaving.
ABSENT, OUT = "absent", "out"


def root_of(number: int) -> int:
    return mix64((FIRST + number) % 2**64)


def reply(said: Iterable[tuple[int, Word]], *, alike: bool = True) -> Outcomes:
    """Return a server's reply. ``alike``: list each reason only once."""
    said = list(said)
    texts = [reason for _, (_, reason) in said if reason]
    reasons = tuple(dict.fromkeys(texts)) if alike else tuple(texts)
    numbers = iter(range(1, len(texts) + 1))
    reason_ids = [(reasons.index(reason) + 1 if alike else next(numbers)) if reason else 0 for _, (_, reason) in said]
    return Outcomes(
        np.array([root for root, _ in said], np.uint64),
        np.array([verdict for _, (verdict, _) in said], np.uint8),
        np.array(reason_ids if reasons else [], np.uint32),
        reasons,
    )


def ended(outcomes: Outcomes) -> list[Ended]:
    reasons = ["", *outcomes.reasons]
    reason_ids = outcomes.reason_ids.tolist() or [0] * len(outcomes)
    return [(each.root_id, each.verdict, reasons[at]) for each, at in zip(outcomes, reason_ids, strict=True)]


def placed(members: int, replicas: int, seed: int) -> npt.NDArray[np.uint16]:
    dice = np.random.default_rng(seed)
    return np.array([dice.permutation(members)[:replicas] for _ in range(SLOTS)], np.uint16)


# -- twins


def how_it_ends(words: list[tuple[int, str, Reason]], replicas: int, why: str) -> tuple[str, Reason] | None:
    """Return the outcome of one open root by the table, or None. ``words``: (member, what, reason) as they arrived."""

    def first(*wanted: str) -> tuple[str, Reason] | None:
        return next(((what, reason) for _, what, reason in words if what in wanted), None)

    if at_once := first("ACKED", "FAILED by the user"):
        return at_once
    if len(words) < replicas:
        return None
    if unfinished := first("unfinished"):
        return unfinished
    if timed_out := first("TIMED_OUT"):
        return timed_out
    if lost := first("LOST"):
        return lost
    if first(ABSENT):
        return ABSENT, ""
    if unread := first("unread"):
        return unread
    return OUT, why


def what_of(word: Word) -> str:
    verdict, reason = word
    if verdict is FAILED:
        return "unfinished" if reason is Cause.UNFINISHED else "FAILED by the user"
    if verdict is LOST and reason is Cause.UNREAD:
        return "unread"
    return verdict.name


VERDICTS = {"ACKED": ACKED, "FAILED by the user": FAILED, "unfinished": FAILED, "TIMED_OUT": TIMED_OUT}


@dataclass
class Root:
    members: set[int]
    words: list[tuple[int, str, Reason]] = field(default_factory=list)
    how: str = ""

    def say(self, member: int, what: str, reason: Reason, why: str = "") -> tuple[str, Reason] | None:
        """Apply the word of one member. Return the outcome if the word ends the root, else None."""
        if member not in self.members or any(member == speaker for speaker, _, _ in self.words):
            return None
        self.words.append((member, what, reason))
        how = None if self.how else how_it_ends(self.words, len(self.members), why)
        self.how = how[0] if how else self.how
        return how

    @property
    def differs(self) -> bool:
        said = [what for _, what, _ in self.words if what != OUT]
        return len({what if what in {"ACKED", "FAILED by the user"} else "no" for what in said}) > 1

    @property
    def is_saved(self) -> bool:
        return self.how == "ACKED" and any(what != "ACKED" for _, what, _ in self.words)


class BatchTwin:
    """A simple `BatchVotes`: keeps every word, and handles one root and one outcome at a time."""

    def __init__(self, up_to: int, replicas: npt.NDArray[np.uint16]) -> None:
        numbers = map(root_of, range(up_to))
        self.roots = {root: Root(set(replicas[slot(root)].tolist())) for root in numbers}
        self.silenced: set[int] = set()
        # Roots that a member reported without holding their slots. Its server counts these, too.
        self.elsewhere: defaultdict[int, set[int]] = defaultdict(set)

    def heard(self, member: int) -> int:
        own = sum(1 for root in self.roots.values() for speaker, _, _ in root.words if speaker == member)
        return own + len(self.elsewhere[member])

    def hear(self, member: int, said: list[tuple[int, Word]]) -> list[Ended]:
        """Return the ended roots."""
        found: list[Ended] = []
        if member in self.silenced:
            return found
        own = {root for root, _ in said if root in self.roots}
        self.elsewhere[member] |= {root for root in own if member not in self.roots[root].members}
        for root, word in said:
            if root in self.roots and self.roots[root].say(member, what_of(word), word[1]):
                found.append(self._ended(root))
        return found

    def silence(self, member: int, what: str, why: str) -> tuple[set[Ended], set[int]]:
        found: set[Ended] = set()
        absent: set[int] = set()
        if member not in self.silenced:
            self.silenced.add(member)
            for number, root in self.roots.items():
                how = root.say(member, what, why, why)
                if how and how[0] == ABSENT:
                    absent.add(number)
                elif how:
                    found.add((number, VERDICTS.get(how[0], LOST), how[1]))
        return found, absent

    def _ended(self, number: int) -> Ended:
        root = self.roots[number]
        how = how_it_ends(root.words, len(root.members), "")
        assert how is not None
        return number, VERDICTS.get(how[0], LOST), how[1]


Heard = tuple[str, int, list[tuple[int, Word]], bool]
Settled = tuple[str, int, int]
Left = tuple[str, int]
MEMBERS = 4

members = st.integers(0, MEMBERS)
hears = st.tuples(
    st.just("hear"),
    members,
    st.lists(st.tuples(st.integers(-2, 14), st.sampled_from(WORDS)), max_size=12),
    st.booleans(),
)
settles = st.tuples(st.just("settled"), members, st.sampled_from([0, 0, 0, 1, -1]))
leaves = st.tuples(st.just("leave"), members)
programs = st.lists(st.one_of(hears, hears, hears, settles, leaves), max_size=16)


def check(twin: BatchTwin, votes: BatchVotes) -> None:
    over = sum(bool(root.how) for root in twin.roots.values())
    assert votes.ended == over
    assert votes.is_over == (over == len(twin.roots))
    assert votes.differed == sum(root.differs for root in twin.roots.values())
    assert votes.saved == sum(root.is_saved for root in twin.roots.values())


@given(st.integers(0, 12), st.integers(1, 3), st.integers(0, 99), programs)
def test_a_batch_ends_each_root_as_the_table_says_for_any_order_of_events(
    up_to: int, replicas: int, seed: int, program: list[Heard | Settled | Left]
) -> None:
    table = placed(MEMBERS, replicas, seed)
    votes, twin = BatchVotes(FIRST, up_to, table), BatchTwin(up_to, table)
    for step in program:
        member = step[1]
        if len(step) == 4:
            said = [(root_of(number), word) for number, word in step[2]]
            merged = votes.hear(member, reply(said, alike=step[3]))
            found = twin.hear(member, said)
            numbers = [root for root, _, _ in found]
            # Roots that end as absent are listed apart. The others come in the order of the reply.
            gone = [root for root in numbers if twin.roots[root].how == ABSENT]
            assert ended(merged.outcomes) == [each for each in found if each[0] not in gone]
            assert merged.absent.tolist() == gone
            assert not merged.unheard
        else:
            silence(votes, twin, step)
        check(twin, votes)


def silence(votes: BatchVotes, twin: BatchTwin, step: Settled | Left) -> None:
    member, was_silenced = step[1], step[1] in twin.silenced
    if len(step) == 2:
        merged = votes.leave(member, f"member {member} is gone")
        found, absent = twin.silence(member, OUT, f"member {member} is gone")
        unheard = 0
    else:
        heard = twin.heard(member)
        unheard = 0 if was_silenced else step[2]
        merged = votes.settled(member, heard + step[2])
        why = f"its server counted {heard + step[2]} outcomes, and {heard} were heard"
        found, absent = twin.silence(member, "LOST" if step[2] else ABSENT, why if step[2] else "")
    assert set(ended(merged.outcomes)) == found
    assert set(merged.absent.tolist()) == absent
    assert (len(merged.outcomes), len(merged.absent)) == (len(found), len(absent))
    assert merged.unheard == unheard


@given(st.integers(1, 3), st.integers(0, 99), st.integers(0, 12), programs)
def test_a_batch_is_over_when_every_member_has_settled_or_left(
    replicas: int, seed: int, up_to: int, program: list[Heard | Settled | Left]
) -> None:
    votes = BatchVotes(FIRST, up_to, placed(MEMBERS, replicas, seed))
    given_once: list[int] = []

    def take(merged: Merged) -> None:
        given_once.extend([*merged.outcomes.root_ids.tolist(), *merged.absent.tolist()])

    for step in program:
        if len(step) == 4:
            take(votes.hear(step[1], reply((root_of(number), word) for number, word in step[2])))
        else:
            take(votes.leave(step[1], "gone") if len(step) == 2 else votes.settled(step[1], step[2]))
    for member in range(MEMBERS):
        take(votes.leave(member, "gone"))
    assert votes.is_over
    assert sorted(given_once) == sorted(map(root_of, range(up_to)))


kept_programs = st.lists(st.one_of(hears, hears, leaves), max_size=16)


@pytest.mark.long
@given(st.integers(0, 12), st.integers(0, 12), st.integers(1, 3), st.integers(0, 99), kept_programs, kept_programs)
def test_a_batch_with_numbers_never_drawn_ends_like_a_smaller_batch(
    drawn: int, more: int, replicas: int, seed: int, before: list[Heard | Left], after: list[Heard | Left]
) -> None:
    table = placed(MEMBERS, replicas, seed)
    votes, twin = BatchVotes(FIRST, drawn + more, table), BatchVotes(FIRST, drawn, table)

    step: Heard | Left

    def merged(of: BatchVotes, step: Heard | Left, most: int) -> list[Ended]:
        if len(step) == 2:
            return sorted(ended(of.leave(step[1], "gone").outcomes))
        said = reply((root_of(number), word) for number, word in step[2] if number < most)
        return ended(of.hear(step[1], said).outcomes)

    # Before the drawing ends, no member reports undrawn numbers. A member that leaves ends the drawing.
    for step in (step for step in before if len(step) == 4):
        assert merged(votes, step, drawn) == merged(twin, step, drawn)
    votes.keep_first(drawn)
    for step in after:
        assert merged(votes, step, 99) == merged(twin, step, 99)
        assert votes.is_over == twin.is_over
        assert (votes.differed, votes.saved) == (twin.differed, twin.saved)


# -- the table, a row at a time: two members, 0 and 1, hold every slot, and there is one root unless more are named

ROOT = root_of(0)
BOTH = np.tile(np.array([0, 1], np.uint16), (SLOTS, 1))
NONE: list[Ended] = []


def pair(up_to: int = 1) -> BatchVotes:
    return BatchVotes(FIRST, up_to, BOTH)


def says(votes: BatchVotes, member: int, word: Word) -> list[Ended]:
    return ended(votes.hear(member, reply([(ROOT, word)])).outcomes)


def test_one_ack_ends_a_root_at_once_and_a_late_failure_changes_nothing() -> None:
    votes = pair()
    assert says(votes, 0, ACK) == [(ROOT, ACKED, "")]
    assert votes.is_over
    assert says(votes, 1, UNFINISHED) == NONE
    assert (votes.ended, votes.differed, votes.saved) == (1, 1, 1)


def test_an_ack_saves_a_root_that_the_other_replica_missed() -> None:
    votes = pair()
    assert says(votes, 1, UNFINISHED) == NONE
    assert votes.saved == 0
    assert says(votes, 0, ACK) == [(ROOT, ACKED, "")]
    assert votes.saved == 1


def test_a_users_fail_ends_a_root_at_once() -> None:
    votes = pair()
    assert says(votes, 1, BAD) == [(ROOT, *BAD)]
    assert says(votes, 0, UNFINISHED) == NONE
    assert (votes.differed, votes.saved) == (1, 0)


@pytest.mark.parametrize(("first", "second"), [(ACK, BAD), (BAD, ACK)])
def test_the_first_of_an_ack_and_a_users_fail_counts(first: Word, second: Word) -> None:
    votes = pair()
    assert says(votes, 0, first) == [(ROOT, *first)]
    assert says(votes, 1, second) == NONE


def test_a_users_own_fail_for_the_reason_unfinished_ends_a_root_at_once() -> None:
    votes = pair()
    assert says(votes, 0, (FAILED, "unfinished")) == [(ROOT, FAILED, "unfinished")]
    assert says(votes, 1, UNFINISHED) == NONE
    assert votes.differed == 1


@pytest.mark.parametrize(
    ("stronger", "weaker"),
    [(UNFINISHED, TIMEOUT), (UNFINISHED, ABANDONED), (TIMEOUT, ABANDONED), (TIMEOUT, UNREAD), (ABANDONED, UNREAD)],
)
@pytest.mark.parametrize("is_first", [True, False])
def test_the_stronger_of_two_negative_outcomes_counts(stronger: Word, weaker: Word, is_first: bool) -> None:
    votes = pair()
    one, other = (stronger, weaker) if is_first else (weaker, stronger)
    assert says(votes, 0, one) == NONE
    assert says(votes, 1, other) == [(ROOT, *stronger)]
    assert votes.differed == 0


def test_the_first_of_equal_negative_outcomes_gives_the_reason() -> None:
    votes = pair()
    assert says(votes, 1, (LOST, Cause.ROOT_CONFLICT)) == NONE
    assert says(votes, 0, ABANDONED) == [(ROOT, LOST, Cause.ROOT_CONFLICT)]


@pytest.mark.parametrize("word", [UNFINISHED, TIMEOUT, ABANDONED])
def test_a_record_whose_init_one_replica_had_is_not_absent(word: Word) -> None:
    votes = pair()
    assert says(votes, 0, word) == NONE
    merged = votes.settled(1, 0)
    assert ended(merged.outcomes) == [(ROOT, *word)]
    assert not len(merged.absent)


def test_a_root_that_one_replica_covered_and_the_other_did_not_read_is_absent() -> None:
    votes = pair()
    assert votes.settled(1, 0).absent.tolist() == []
    merged = votes.hear(0, reply([(ROOT, UNREAD)]))
    assert (merged.absent.tolist(), len(merged.outcomes)) == ([ROOT], 0)
    assert votes.is_over


@pytest.mark.parametrize("leaves_first", [True, False])
def test_a_root_that_one_replica_covered_while_the_other_left_is_absent(leaves_first: bool) -> None:
    votes = pair()
    first = votes.leave(0, "gone") if leaves_first else votes.settled(1, 0)
    last = votes.settled(1, 0) if leaves_first else votes.leave(0, "gone")
    assert (first.absent.tolist(), last.absent.tolist()) == ([], [ROOT])


@pytest.mark.parametrize("leaves_first", [True, False])
def test_unread_is_the_reason_where_the_other_replica_left(leaves_first: bool) -> None:
    votes = pair()
    if leaves_first:
        votes.leave(1, "gone")
        assert says(votes, 0, UNREAD) == [(ROOT, *UNREAD)]
    else:
        says(votes, 0, UNREAD)
        assert ended(votes.leave(1, "gone").outcomes) == [(ROOT, *UNREAD)]


def test_a_root_of_which_all_replicas_left_is_lost_for_the_reason_of_the_last() -> None:
    votes = pair()
    assert ended(votes.leave(1, "member 1 is gone").outcomes) == NONE
    assert ended(votes.leave(0, "member 0 has lost its state").outcomes) == [
        (ROOT, LOST, "member 0 has lost its state")
    ]


def test_a_root_with_one_replica_is_lost_as_soon_as_it_leaves_and_no_other_is() -> None:
    table = placed(2, 1, 0)
    votes = BatchVotes(FIRST, 50, table)
    mine = {root for root in map(root_of, range(50)) if table[slot(root), 0] == 0}
    assert {root for root, _, _ in ended(votes.leave(0, "gone").outcomes)} == mine
    assert votes.ended == len(mine) < 50


def test_the_silence_of_a_member_that_settled_with_another_count_is_a_loss_and_not_absence() -> None:
    votes = pair(2)
    votes.hear(0, reply([(root_of(1), ACK)]))
    assert votes.settled(1, 0).unheard == 0
    merged = votes.settled(0, 2)
    assert merged.unheard == 1
    assert ended(merged.outcomes) == [(ROOT, LOST, "its server counted 2 outcomes, and 1 were heard")]
    assert not len(merged.absent)


def test_outcomes_of_roots_that_have_ended_belong_to_the_count_at_settled() -> None:
    votes = pair(2)
    votes.hear(0, reply([(ROOT, ACK)]))
    votes.hear(1, reply([(ROOT, ACK)]))
    assert votes.settled(0, 1).unheard == 0
    merged = votes.settled(1, 1)
    assert (merged.unheard, merged.absent.tolist()) == (0, [root_of(1)])


def test_an_outcome_that_is_repeated_is_counted_and_given_once() -> None:
    votes = pair(2)
    for _ in range(2):
        assert says(votes, 0, UNFINISHED) == NONE
    assert says(votes, 0, ACK) == NONE
    assert says(votes, 1, UNFINISHED) == [(ROOT, *UNFINISHED)]
    assert says(votes, 1, UNFINISHED) == NONE
    assert votes.settled(0, 1).unheard == 0


def test_a_root_that_stands_twice_in_one_reply_is_heard_once_and_first() -> None:
    votes = pair()
    merged = votes.hear(0, reply([(ROOT, (LOST, Cause.ROOT_CONFLICT)), (ROOT, ACK)]))
    assert ended(merged.outcomes) == NONE
    assert says(votes, 1, UNREAD) == [(ROOT, LOST, Cause.ROOT_CONFLICT)]


def test_a_root_that_ends_twice_in_one_reply_has_one_outcome() -> None:
    votes = BatchVotes(FIRST, 1, np.zeros((SLOTS, 1), np.uint16))
    assert ended(votes.hear(0, reply([(ROOT, BAD), (ROOT, ACK)])).outcomes) == [(ROOT, *BAD)]
    assert votes.ended == 1


def test_a_member_that_comes_back_after_it_left_is_not_listened_to() -> None:
    votes = pair()
    votes.leave(0, "gone")
    assert says(votes, 0, ACK) == NONE
    assert says(votes, 1, UNFINISHED) == [(ROOT, *UNFINISHED)]


def test_a_member_that_settled_before_it_left_loses_nothing() -> None:
    votes = pair()
    votes.settled(0, 0)
    assert not votes.leave(0, "gone").outcomes.root_ids.size
    assert votes.settled(1, 0).absent.tolist() == [ROOT]


def test_a_member_that_left_cannot_report_absent_records() -> None:
    votes = pair()
    votes.leave(0, "gone")
    merged = votes.settled(0, 5)
    assert (len(merged.outcomes), merged.unheard) == (0, 0)
    assert ended(votes.leave(1, "gone too").outcomes) == [(ROOT, LOST, "gone too")]


def test_roots_of_other_batches_and_of_slots_that_a_member_does_not_hold_are_ignored() -> None:
    table = placed(2, 1, 3)
    votes = BatchVotes(FIRST, 20, table)
    said = [(root_of(number), ACK) for number in range(-3, 23)]
    mine = [root for root in map(root_of, range(20)) if table[slot(root), 0] == 1]
    merged = votes.hear(1, reply(said))
    assert [root for root, _, _ in ended(merged.outcomes)] == mine
    assert not len(votes.hear(7, reply(said)).outcomes)


def test_a_reason_that_one_replica_gave_first_stays_with_its_root_among_others() -> None:
    votes = pair(3)
    roots = [root_of(number) for number in range(3)]
    votes.hear(0, reply([(roots[0], TIMEOUT), (roots[2], (TIMED_OUT, Cause.PROGRESS_TIMEOUT))]))
    merged = votes.hear(1, reply([(roots[1], BAD), (roots[0], ABANDONED), (roots[2], UNREAD)]))
    assert ended(merged.outcomes) == [
        (roots[1], *BAD),
        (roots[0], *TIMEOUT),
        (roots[2], TIMED_OUT, Cause.PROGRESS_TIMEOUT),
    ]


def test_replicas_of_a_real_placement_are_taken_as_they_are() -> None:
    placement = place(View(1, tuple(Member(index, 1, f"host{index}:7070") for index in range(5))), 77, 3, 2)
    votes = BatchVotes(FIRST, 1000, placement.replicas)
    for member in range(5):
        votes.hear(member, reply((root_of(number), ACK) for number in range(1000)))
    assert votes.is_over
    assert (votes.differed, votes.saved) == (0, 0)


def test_eight_replicas_end_a_root_after_the_last_negative_outcome() -> None:
    votes = BatchVotes(FIRST, 1, np.tile(np.arange(8, dtype=np.uint16), (SLOTS, 1)))
    for member in range(7):
        assert says(votes, member, UNREAD) == NONE
    assert says(votes, 7, TIMEOUT) == [(ROOT, *TIMEOUT)]


@pytest.mark.parametrize("shape", [(SLOTS, 0), (SLOTS, 9), (SLOTS - 1, 2), (SLOTS,)])
def test_votes_need_one_to_eight_replicas_for_each_slot(shape: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match="1 to 8 replicas"):
        BatchVotes(FIRST, 1, np.zeros(shape, np.uint16))
