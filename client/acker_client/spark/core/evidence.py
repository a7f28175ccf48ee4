"""Evidence: whether what Spark did for the rows of a sink counts as done. Pure.

Decides by actions alone: what ran over the rows, how it ended, in which order. *Done* needs an action that delivers all
the rows and succeeded, and no delivering one that failed after it. A look (count, show, isEmpty) neither helps nor
harms. What a sink filters away before it writes is its own decision; a limit is not: what stands behind it was not
read. Where an action comes from (Spark's stores, or the client's own calls) is for its collector to know
(``executions``, ``following``); this module knows neither Spark nor rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from acker_client.errors import AckerError

# Of an action that still runs.
NEVER_MS = float("inf")


@dataclass(frozen=True, slots=True)
class Action:
    """Something that Spark ran over the rows of a sink.

    ``did``: what it did with them, as in "it counted them"; ``delivers``: whether it hands rows to somebody (a write,
    foreach, collect), or only looks; ``is_whole``: whether it takes in every row; ``began_ms``, ``ended_ms``: Unix
    time, ``NEVER_MS`` while it runs; ``failure``: why it failed, in one line, "" if it did not.
    """

    did: str
    delivers: bool
    is_whole: bool
    began_ms: float
    ended_ms: float
    failure: str = ""

    @property
    def succeeded(self) -> bool:
        """Whether it has ended, and well."""
        return not self.failure and self.ended_ms < NEVER_MS


class Undelivered(AckerError):
    """A batch has no evidence that it was done, so it is abandoned. ``is_transient``: a write failed and the exception
    was swallowed, so another try may help; otherwise the code is to be mended."""

    def __init__(self, reason: str, *, is_transient: bool = False) -> None:
        super().__init__(reason)
        self.is_transient = is_transient


def judge(who: str, actions: Sequence[Action], *, forgotten: bool = False) -> Undelivered | None:
    """Why the rows of ``who`` (a sink, as "save()") are not done; None when they are.

    ``forgotten``: the collector knows that it does not know every action. The cases, each a test
    (``tests/spark/test_evidence.py`` reads this table); actions are listed in the order in which they began, "+" means
    that the next one began before this one had ended:

    | actions                             | done | because                                          |
    |-------------------------------------|------|--------------------------------------------------|
    | write                               | yes  |                                                  |
    | look that finds no rows             | yes  |                                                  |
    | count, write                        | yes  |                                                  |
    | write, count                        | yes  |                                                  |
    | failed count, write                 | yes  |                                                  |
    | write, failed count                 | yes  |                                                  |
    | failed write, write                 | yes  |                                                  |
    | take, write                         | yes  |                                                  |
    | write of a part, write              | yes  |                                                  |
    | write, write of a part              | yes  |                                                  |
    | failed write of a part, write       | yes  |                                                  |
    | write, write                        | yes  |                                                  |
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
    | write + failed write                | no   | failed: Full                                     |
    | failed write + write                | no   | failed: Full                                     |
    | running write                       | no   | still runs                                       |
    | write, running write                | no   | still runs                                       |
    | running write + write               | no   | still runs                                       |
    | write, running count                | yes  |                                                  |
    | forgotten, write                    | no   | forgotten                                        |
    """
    if forgotten:
        return Undelivered(
            f"Spark has forgotten some of what it ran for {who}, so nobody can tell whether its write succeeded: raise"
            " spark.sql.ui.retainedExecutions and spark.ui.retainedJobs above what one batch runs"
        )
    failures = [action for action in actions if action.delivers and not action.succeeded]
    failed_until_ms = max((action.ended_ms for action in failures), default=-NEVER_MS)
    if any(_is_delivery(action) and action.began_ms >= failed_until_ms for action in actions):
        return None
    if failures:
        last = max(failures, key=lambda action: action.ended_ms)
        how = f"failed: {last.failure}" if last.failure else "still runs"
        return Undelivered(
            f"no write of {who}'s rows succeeded after the one that {how}. Let the exception of a write leave the sink,"
            " or write again until a write goes through",
            is_transient=True,
        )
    return Undelivered(f"no write of {who}'s rows succeeded: it {_listed(actions)}")


def _is_delivery(action: Action) -> bool:
    return action.delivers and action.is_whole and action.succeeded


def _listed(actions: Sequence[Action]) -> str:
    did = list(dict.fromkeys(action.did for action in actions))
    if not did:
        return "never read them"
    return " and ".join(filter(None, [", ".join(did[:-1]), did[-1]]))
