"""A retry policy of the user: what it is asked, what its answers do, and answers that are none."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest

from acker_client import Verdict
from acker_client.source import Batch, Retry, SourceError
from tests.source.executors import NO_SPARK, Cluster, Log, breaking, failing, frame_of
from tests.source.logs import LogSource, MemoryCheckpoint, MemoryLetters, log_of
from tests.source.test_outcomes import Hearing, done_in

Asked = tuple[int, str, str, dict[str, Any]]


@dataclass
class Policy:
    """Answers by the record's number of attempts: its k-th answer, and then None."""

    answers: list[Any] = field(default_factory=list)
    asked: list[Asked] = field(default_factory=list)

    def decide(self, attempts: int, verdict: Verdict, reason: str, origin: Mapping[str, Any]) -> Any:
        self.asked.append((attempts, verdict.name, reason, dict(origin)))
        answer = self.answers[attempts - 1] if attempts <= len(self.answers) else None
        if isinstance(answer, Exception):
            raise answer
        return answer


def source(cluster: Cluster, **options: Any) -> LogSource:
    log = log_of(a=4)
    defaults = {"environment": cluster.environment(), "dead_letters": MemoryLetters(), "max_dead_share": 1.0}
    return LogSource(log, **{**defaults, **options})


def test_a_policy_is_asked_about_each_failed_try_and_decides_when_the_next_one_is(cluster: Cluster) -> None:
    policy, letters, emitted = Policy([10.0, np.int64(5)]), MemoryLetters(), list[tuple[float, list[int]]]()

    class Clocked(Log):
        def on_emit(self, batch: int, each: Any, is_replay: bool) -> None:
            emitted.append((cluster.time.clock(), each.records.tolist()))

    process = failing(lambda row: row.value == "a2", "items: KeyError: 'qty'\nTraceback (most recent call last):\n x")
    summary = source(cluster, retry=policy, dead_letters=letters, listener=Clocked()).run(NO_SPARK, process)
    reason, origin = "items: KeyError: 'qty'", {"partition": "a", "offset": 2}
    assert policy.asked == [(attempt, "FAILED", reason, origin) for attempt in (1, 2, 3)]
    assert (summary.acked, summary.dead_lettered, [each.failed for each in letters.letters]) == (3, 1, [3])
    assert [records for _, records in emitted] == [[0, 1, 2, 3], [2], [2]]
    (first, second, third) = (at_s for at_s, _ in emitted)
    assert 10 <= second - first < 12
    assert 5 <= third - second < 7


def test_a_policy_may_give_a_record_up_for_its_reason(cluster: Cluster) -> None:
    class OnlyTransient:
        def decide(self, attempts: int, verdict: Verdict, reason: str, origin: Mapping[str, Any]) -> float | None:
            again = Retry(max_retries=5, initial_s=0, cap_s=0).decide(attempts, verdict, reason, origin)
            return None if "KeyError" in reason else again

    def process(batch: Batch) -> None:
        rows = frame_of(batch).rows()
        reasons = {"a1": "items: KeyError: 'sku'", "a2": "post: ConnectionError"}
        frame_of(batch).fail({row.root: reasons[row.value] for row in rows if row.value in reasons})
        frame_of(batch).ack(row for row in rows if row.value not in reasons)

    letters = MemoryLetters()
    source(cluster, retry=OnlyTransient(), dead_letters=letters).run(NO_SPARK, process)
    assert [(each.value, each.failed) for each in letters.letters] == [(b"a1", 1), (b"a2", 6)]


def test_an_interrupted_try_is_counted_apart_and_comes_as_lost(cluster: Cluster) -> None:
    policy = Policy([0.0, 0.0])

    def process(batch: Batch) -> None:
        rows = frame_of(batch).rows()
        if batch.number == 1:
            frame_of(batch).evidence.unfinished_because = "its rows were evaluated twice"
            frame_of(batch).ack(rows[1:])
        elif batch.number == 2:
            frame_of(batch).fail({row.root: "bad" for row in rows})
        else:
            frame_of(batch).ack(rows)

    assert source(cluster, retry=policy).run(NO_SPARK, process).acked == 4
    assert [(attempts, verdict) for attempts, verdict, _, _ in policy.asked] == [(1, "LOST"), (1, "FAILED")]


def test_a_batch_that_fails_as_a_whole_waits_as_with_retry_until_one_record_is_alone(cluster: Cluster) -> None:
    policy, letters = Policy(), MemoryLetters()
    summary = source(cluster, retry=policy, dead_letters=letters).run(NO_SPARK, breaking(lambda row: row.value == "a3"))
    reason = "the batch failed: ArithmeticError: division by zero in a where"
    assert policy.asked == [(1, "FAILED", reason, {"partition": "a", "offset": 3})]
    assert (summary.acked, [each.value for each in letters.letters]) == (3, [b"a3"])


@pytest.mark.parametrize(
    ("answer", "says"),
    [
        (-1.0, r"returned -1\.0"),
        (float("nan"), "returned nan"),
        (float("inf"), "returned inf"),
        ("soon", "returned 'soon'"),
        (True, "returned True"),
        (LookupError("no such topic"), "raised LookupError: no such topic"),
    ],
)
def test_an_answer_that_is_none_ends_the_run_and_loses_nothing(cluster: Cluster, answer: Any, says: str) -> None:
    """The acks that come together with the failure do not count as done either: nobody has heard of them."""

    def process(batch: Batch) -> None:
        frame_of(batch).ack(row for row in frame_of(batch).rows() if row.value != "a1")

    checkpoint, letters, hearing = MemoryCheckpoint(), MemoryLetters(), Hearing()
    options: dict[str, Any] = {"checkpoint": checkpoint, "dead_letters": letters, "listener": hearing}
    with pytest.raises(SourceError, match=rf"retry: decide\(1, FAILED, \.\.\.\) of record a:1 {says}: return seconds"):
        source(cluster, retry=Policy([answer]), **options).run(NO_SPARK, process)
    assert (done_in(checkpoint), letters.letters, hearing.ended) == (set(), [], [])
    source(cluster, retry=Policy([0.0]), **options).run(NO_SPARK, process)
    assert (done_in(checkpoint), [each.value for each in letters.letters]) == ({"a0", "a1", "a2", "a3"}, [b"a1"])
    assert sorted(hearing.ended) == ["a0", "a1", "a2", "a3"]


def test_a_retry_of_the_users_own_kind_is_asked_too(cluster: Cluster) -> None:
    class Never(Retry):
        def decide(self, attempts: int, verdict: Verdict, reason: str, origin: Mapping[str, Any]) -> float | None:
            return None

    letters = MemoryLetters()
    source(cluster, retry=Never(), dead_letters=letters).run(NO_SPARK, failing(lambda row: row.value == "a1"))
    assert [each.failed for each in letters.letters] == [1]


@pytest.mark.parametrize("given", [3, Retry, object()])
def test_what_cannot_decide_is_refused(cluster: Cluster, given: Any) -> None:
    with pytest.raises(
        ValueError, match=r"retry=.*: give a Retry, like Retry\(max_retries=3\), or an object with decide"
    ):
        source(cluster, retry=given)
