"""Figures: rates and totals from two samples of a server's Stats."""

from __future__ import annotations

from acker_command.figures import MemberFigures, figures, total
from acker_protocol.messages import StatsReply
from acker_service.config import Config
from acker_service.core.quotas import DEFAULT
from acker_service.http.metrics import Metrics
from acker_service.namespaces import Namespaces
from acker_testing import SimulatedTime, new_shard


def look(at_s: float, reports: int, updates: int, incarnation: int = 1) -> tuple[float, StatsReply]:
    values = {
        "acker_pending_roots": 7.0,
        "acker_updates_total": float(updates),
        'acker_call_duration_seconds_count{method="Apply",code="OK"}': float(reports),
    }
    return at_s, StatsReply(incarnation, "0.1.0", values)


def test_rates_are_of_the_time_between_two_looks() -> None:
    found = figures(look(10.0, 3, 1000), look(12.0, 9, 5000))
    assert found == MemberFigures(pending=7, reports_per_s=3.0, updates_per_s=2000.0)


def test_there_is_no_rate_of_a_server_that_was_started_anew_between_them_or_seen_once() -> None:
    for first in (None, look(10.0, 99, 99, incarnation=2)):
        assert figures(first, look(12.0, 9, 5000)).updates_per_s is None


def test_a_total_adds_what_is_known() -> None:
    assert total([MemberFigures(1, 2, 3, 4, 5.0, None), MemberFigures(10, 20, 30, 40, 50.0, 60.0)]) == MemberFigures(
        11, 22, 33, 44, 55.0, 60.0
    )
    assert total([]) == MemberFigures()


def test_every_metric_that_is_read_is_one_that_a_server_has() -> None:
    time = SimulatedTime()
    metrics = Metrics(Namespaces({DEFAULT: new_shard()}, Config(), time.clock))
    metrics.observe("Apply", "OK", "APPLIED", 0.1)
    read: list[str] = []

    class Read(dict[str, float]):
        def get(self, name: str, default: float = 0.0) -> float:  # type: ignore[override]
            read.append(name)
            return super().get(name, default)

    values = Read(metrics.values())
    figures((0.0, StatsReply(1, "", values)), (1.0, StatsReply(1, "", values)))
    assert len(set(read)) == 6
    assert set(read) <= set(values)
