"""One request to several members: which of them the client waits for."""

from __future__ import annotations

from collections.abc import Collection
from concurrent.futures import Future
from typing import Any

from acker_client.backoff import Deadline, Patience
from acker_client.cluster.replicas import ask_members
from acker_client.errors import Unavailable
from acker_protocol.placement import Member

MEMBER = Member(1, 7, "one:7070")


class SlowView:
    """A cluster with a slow member, which answers while the client fetches the view from another member."""

    is_alone = False

    def __init__(self) -> None:
        self.now = 0.0
        self.calls: list[Future[Any]] = []
        self.slow: set[Member] = set()
        self.side_by_side: Any = self

    def clock(self) -> float:
        return self.now

    def patience(self, budget_s: float | None) -> Patience:
        return Patience(Deadline(60.0, self.clock), lambda _: None, lambda: 0.5)

    def start(self, call: object) -> Future[Any]:
        self.calls.append(Future())
        return self.calls[-1]

    def wait(self, calls: Collection[Future[Any]], timeout_s: float) -> None:
        self.now += 20.0

    def refresh(self) -> None:
        self.calls[0].set_result(None)

    def gone(self, member: Member, *, is_silence_enough: bool = True) -> str:
        return ""

    def replica_wait_s(self, member: Member) -> float:
        return 10.0

    def is_away(self, member: Member) -> bool:
        return False

    def note_slow(self, member: Member, *, is_slow: bool) -> None:
        if is_slow:
            self.slow.add(member)


class Whole:
    """A request that needs no further member once the first call has its answer."""

    def __init__(self, cluster: SlowView) -> None:
        self.unanswered_members = [MEMBER]
        self.dropped: list[Member] = []
        self._cluster = cluster

    def can_do_without(self, member: Member) -> bool:
        return self._cluster.calls[0].done()

    def drop_member(self, member: Member, why: str) -> None:
        self.dropped.append(member)


def test_a_member_that_answers_while_the_view_is_asked_for_stays_in() -> None:
    cluster: Any = SlowView()
    party = Whole(cluster)
    ask_members(cluster, party, lambda member, patience: None)
    assert not party.dropped
    assert not cluster.slow


def test_a_member_that_did_not_answer_within_a_budget_shorter_than_its_wait_is_waited_for_briefly_next_time() -> None:
    class Impatient(SlowView):
        def wait(self, calls: Collection[Future[Any]], timeout_s: float) -> None:
            self.now += 0.5
            self.calls[0].set_exception(Unavailable("no answer within 0.5 s"))

    cluster: Any = Impatient()
    party = Whole(cluster)
    ask_members(cluster, party, lambda member, patience: None)
    assert party.dropped == [MEMBER]
    assert cluster.slow == {MEMBER}
