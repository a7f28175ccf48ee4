"""Evidence: decides from Spark's actions whether the rows of a sink were delivered. Pure.

Only the actions count: what ran over the rows, in which order, where it delivered the rows to, and how it ended. *Done*
needs an action that delivered all the rows and succeeded. Each failed delivery needs a later delivery to the same
target that succeeds. A look (count, show, a collected aggregate) that succeeds neither helps nor harms. Nothing makes
up for a failed look, not even its repetition: its exception may have kept the sink from a write that leaves no trace.
The user can vouch for what cannot be proven (``batch.done()``). A sink may filter rows away before it writes. A limit
is different: the rows beyond it were not read. The modules ``executions`` and ``following`` collect the actions from
Spark's stores and from the client's own calls. This module knows neither Spark nor rows.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass

from acker_client.errors import AckerError

# ``Action.ended_ms`` of an action that still runs.
NEVER_MS = float("inf")


@dataclass(frozen=True, slots=True)
class Target:
    """The destination of a delivery. ``place``: text for messages; ``same``: equal for two deliveries of the same rows
    to the same place (command, location or table, options, and the plan between the sink's frame and the write)."""

    place: str = ""
    same: Hashable = ()

    @classmethod
    def unlike(cls, place: str) -> Target:
        """Return a target that equals no other, because its identity is unknown."""
        return cls(place, object())


@dataclass(frozen=True, slots=True)
class Action:
    """Something that Spark ran over the rows of a sink.

    ``did``: the effect on the rows, as in "it counted them"; ``delivers``: whether it hands rows on (a write, foreach,
    collect), or only looks; ``is_whole``: whether it is known to read every row; ``is_doubtful``: it may have stopped
    before the end of its rows for another reason than a limit in the plan; ``began_ms``, ``ended_ms``: Unix time,
    ``NEVER_MS`` while it runs; ``failure``: why it failed, in one line, "" if it did not; ``traceback``: the full
    traceback of the failure, if it is known; ``reads_none``: it delivered no rows, because Spark knew without running
    anything that there are none, so no task has read the sink's rows for it.
    """

    did: str
    delivers: bool
    is_whole: bool
    began_ms: float
    ended_ms: float
    failure: str = ""
    target: Target = Target()
    traceback: str = ""
    is_doubtful: bool = False
    reads_none: bool = False

    @property
    def succeeded(self) -> bool:
        """Whether it has ended without a failure."""
        return not self.failure and self.ended_ms < NEVER_MS

    @property
    def is_delivery(self) -> bool:
        """Whether it has delivered all the rows."""
        return self.delivers and self.is_whole and self.succeeded

    def mends(self, failed: Action) -> bool:
        """Whether this action later delivered all rows to the target of ``failed``. Then the failure does not count."""
        is_same = failed.delivers and self.target == failed.target
        return is_same and self.is_delivery and self.began_ms >= failed.ended_ms


class Undelivered(AckerError):
    """A batch has no evidence that it was done, so it is abandoned. ``is_transient``: a write or a call of
    a sink failed, so a retry may help; otherwise the program has to be changed."""

    def __init__(self, reason: str, *, is_transient: bool = False) -> None:
        super().__init__(reason)
        self.is_transient = is_transient


def judge(
    subject: str,
    actions: Sequence[Action],
    *,
    forgotten: bool = False,
    vouched_ms: float = -NEVER_MS,
    rerun_ms: float = -NEVER_MS,
    has_sink: bool = True,
) -> Undelivered | None:
    """Return why the rows of ``subject`` (a sink, as "save()") are not done; None if they are.

    ``forgotten``: Spark's stores have dropped some actions. ``vouched_ms``: when the user called ``batch.done()``,
    which covers everything done by then. ``rerun_ms``: when the sink was called again after it had raised; a failure
    that ended before that call no longer counts. ``has_sink``: False if ``subject`` is a step that no sink took, which
    only changes the text. The cases, each a test (``tests/spark/test_evidence.py`` reads this
    table); actions are listed in the order in which they began, "+" means that the next one began before this one had
    ended, "to B" names another target, "word" is a call of ``batch.done()``:

    | actions                             | done | because                                          |
    |-------------------------------------|------|--------------------------------------------------|
    | write                               | yes  |                                                  |
    | look that finds no rows             | yes  |                                                  |
    | count, write                        | yes  |                                                  |
    | write, count                        | yes  |                                                  |
    | failed count, write, word           | yes  |                                                  |
    | failed count, rerun, write          | yes  |                                                  |
    | failed write, write                 | yes  |                                                  |
    | failed write, failed write, write   | yes  |                                                  |
    | failed write, write to B, write     | yes  |                                                  |
    | take, write                         | yes  |                                                  |
    | write of a part, write              | yes  |                                                  |
    | write, write of a part              | yes  |                                                  |
    | write, write                        | yes  |                                                  |
    | write, write to B                   | yes  |                                                  |
    |                                     | no   | it never read them                               |
    | count                               | no   | it counted them                                  |
    | take                                | no   | it read 10                                       |
    | count, take                         | no   | it counted them and read 10                      |
    | count, count, take                  | no   | it counted them and read 10                      |
    | write of a part                     | no   | it wrote 10                                      |
    | count, write of a part              | no   | it counted them and wrote 10                     |
    | failed write                        | no   | failed: Full                                     |
    | failed write, count                 | no   | failed: Full                                     |
    | count, failed write                 | no   | failed: Full                                     |
    | write, failed write                 | no   | failed: Full                                     |
    | write, failed write of a part       | no   | failed: Full                                     |
    | write, failed write, count          | no   | failed: Full                                     |
    | failed write, write of a part       | no   | failed: Full                                     |
    | failed write, write to B            | no   | failed: Full                                     |
    | failed write of a part, write       | no   | failed: Full                                     |
    | write to B, failed write            | no   | failed: Full                                     |
    | failed write to B, write, write     | no   | failed: Full                                     |
    | write + failed write                | no   | failed: Full                                     |
    | failed write + write                | no   | failed: Full                                     |
    | failed count, write                 | no   | swallowed the exception of a look                |
    | write, failed count                 | no   | swallowed the exception of a look                |
    | count, failed count, write          | no   | swallowed the exception of a look                |
    | failed count, take, write           | no   | swallowed the exception of a look                |
    | failed count, failed write, write   | no   | swallowed the exception of a look                |
    | failed count, count, write          | no   | swallowed the exception of a look                |
    | running write                       | no   | still runs                                       |
    | write, running write                | no   | still runs                                       |
    | running write + write               | no   | still runs                                       |
    | write, running count                | yes  |                                                  |
    | forgotten, write                    | no   | forgotten                                        |
    | word                                | yes  |                                                  |
    | write of a part, word               | yes  |                                                  |
    | failed write, write to B, word      | yes  |                                                  |
    | forgotten, write, word              | yes  |                                                  |
    | word, write                         | yes  |                                                  |
    | word, write of a part               | no   | it wrote 10                                      |
    | word, count                         | no   | it counted them                                  |
    | word, failed write                  | no   | failed: Full                                     |
    | failed write, rerun, write to B     | yes  |                                                  |
    | failed write, rerun                 | no   | it wrote them                                    |
    | rerun, failed write, write to B     | no   | failed: Full                                     |
    | running write, word                 | no   | still runs                                       |
    | failed write + word                 | no   | failed: Full                                     |
    | doubtful write                      | no   | it handed them on                                |
    | write, doubtful write               | no   | it handed them on                                |
    | doubtful write, write to B          | no   | it handed them on                                |
    | doubtful write, write               | yes  |                                                  |
    | write, doubtful write, word         | yes  |                                                  |
    """
    if forgotten and vouched_ms == -NEVER_MS:
        return unknown(subject)
    since_ms = max(vouched_ms, rerun_ms)
    late = [each for each in actions if each.ended_ms > since_ms]
    # A look may still run in a thread that the sink does not wait for, so it is no failure.
    failures = [each for each in late if each.failure or (each.delivers and not each.succeeded)]
    unmended = [failed for failed in failures if not any(action.mends(failed) for action in actions)]
    if unmended:
        last = max(unmended, key=lambda action: action.ended_ms)
        return Undelivered(_missing(subject, last), is_transient=any(failed.delivers for failed in unmended))
    if vouched_ms > -NEVER_MS and all(action.began_ms < vouched_ms for action in actions):
        return None
    doubtful = [each for each in late if each.delivers and each.is_doubtful]
    unproven = [doubt for doubt in doubtful if not any(action.mends(doubt) for action in actions)]
    if unproven:
        return Undelivered(
            f"there is no proof that all of {subject}'s rows were delivered: it {_deeds(unproven)}. If they were, say"
            " so after the sink: batch.done()"
        )
    if any(action.is_delivery for action in actions):
        return None
    remedy = "If they are delivered all the same, say so after the sink: batch.done()"
    if not has_sink:
        remedy = "Write them, or call batch.done()"
    elif not actions:
        remedy = (
            "batch.done() does not cover rows that nothing has read. If there is nothing to write, which Spark may know"
            " from the plan alone, read all of them in the sink: rows.write.format('noop').mode('append').save()"
        )
    return Undelivered(f"no write of {subject}'s rows succeeded: it {_deeds(actions)}. {remedy}")


def unknown(subject: str) -> Undelivered:
    """Return the error of a batch of whose work Spark has forgotten a part."""
    return Undelivered(
        f"Spark has forgotten some of what it ran for {subject}, so it is unknown whether its write succeeded:"
        " raise spark.sql.ui.retainedExecutions, spark.ui.retainedJobs and spark.ui.retainedStages above what one batch"
        " runs"
    )


def _missing(subject: str, failed: Action) -> str:
    """Return why the batch is not done after ``failed``, and what to do."""
    how = f"failed: {failed.failure}" if failed.failure else "still runs"
    if not failed.delivers:
        return (
            f"{subject} swallowed the exception of a look at its rows ({failed.target.place or failed.did}), which"
            f" {how}. A write may have been skipped for it. Let the exception leave the sink; if the rows are delivered"
            " all the same, say so after the sink: batch.done()"
        )
    place = f" to {failed.target.place}" if failed.target.place else ""
    return (
        f"no write of {subject}'s rows{place} succeeded after the one that {how}. Let the exception of a write leave"
        " the sink, or repeat the same write until it succeeds; if the rows are delivered all the same, say so"
        " after the sink: batch.done()"
    )


def _deeds(actions: Sequence[Action]) -> str:
    did = list(dict.fromkeys(action.did for action in actions))
    if not did:
        return "never read them"
    return " and ".join(filter(None, [", ".join(did[:-1]), did[-1]]))
