"""The server in memory that users' tests have: what a stop and a start keep."""

from __future__ import annotations

import pytest

from acker_client import AckerClient, Verdict, errors
from acker_testing import LocalServer, SimulatedTime
from acker_testing.local import new_shard


def client_of(server: LocalServer, time: SimulatedTime) -> AckerClient:
    return AckerClient(connect=server.connect, clock=time.clock, sleep=time.sleep)


def test_no_time_passes_for_the_roots_and_leases_of_a_stopped_server() -> None:
    time = SimulatedTime()
    server = LocalServer(clock=time.clock, sleep=time.sleep)
    client = client_of(server, time)
    client.open_source("orders", lease_s=60.0, message_timeout_s=30.0)
    done, late = client.emit(), client.emit()
    client.flush()
    for _ in range(2):
        time.sleep(5.0)
        server.stop()
        server.stop()
        time.sleep(100.0)
        server.start()
        server.start()
    client.ack(done.root_id, done.edge)
    client.flush()
    assert [outcome.verdict for outcome in client.watch().outcomes] == [Verdict.ACKED]
    time.sleep(21.0)
    assert [(outcome.root_id, outcome.verdict) for outcome in client.watch().outcomes] == [
        (late.root_id, Verdict.TIMED_OUT)
    ]


@pytest.mark.parametrize("with_state", [True, False])
def test_a_started_server_has_the_limits_of_its_shard(with_state: bool) -> None:
    time = SimulatedTime()
    server = LocalServer(new_shard(max_pending=10), clock=time.clock, sleep=time.sleep)
    for _ in range(3):
        server.stop()
        server.start(with_state=with_state)
    client = client_of(server, time)
    client.open_source("orders")
    client.open_batch(1, 1 << 40, 8)
    with pytest.raises(errors.Overloaded, match="max_pending is 10"):
        client.open_batch(2, 1 << 41, 8)
