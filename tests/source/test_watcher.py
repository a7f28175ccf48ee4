"""The watcher's thread when watches fail: what it logs, and when it ends."""

from __future__ import annotations

from typing import Any

import pytest

from acker_client import errors
from acker_client.cluster.watched import WatchResult
from acker_client.source.engine import watcher
from acker_client.source.engine.watcher import ERRORS_A_LINE, Watcher


class Refusing:
    """A client that refuses ``refusals`` watches, then answers one. It refuses one more, and then it is closed."""

    def __init__(self, refusals: int) -> None:
        self._answers: list[Any] = [errors.Rejected("no")] * refusals + [WatchResult(), errors.Rejected("no again")]

    def watch(self, wait_s: float) -> WatchResult:
        if not self._answers:
            raise errors.Closed("closed")
        answer = self._answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        assert isinstance(answer, WatchResult)
        return answer


def test_refusals_in_a_row_are_logged_seldom_and_each_first_one_at_once(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(watcher, "PAUSE_S", 0.0)
    watching = Watcher(Refusing(2 * ERRORS_A_LINE))  # type: ignore[arg-type]
    watching._thread.join(60.0)
    assert [record.getMessage() for record in caplog.records] == [
        "watching for outcomes: no; trying again",
        "watching for outcomes: no; trying again",
        "watching for outcomes: no again; trying again",
    ]
