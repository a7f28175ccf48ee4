"""Testing: tools for users' tests. A real shard in memory without a server process or socket, and whole pipelines.

    from acker_client import AckerClient, Verdict
    from acker_testing import LocalServer, SimulatedTime

    time = SimulatedTime()
    server = LocalServer(clock=time.clock, sleep=time.sleep)
    client = AckerClient(connect=server.connect, clock=time.clock, sleep=time.sleep)
    client.open_source("orders")
    root, edge = client.emit()
    client.ack(root, edge)
    client.flush()
    assert [outcome.verdict for outcome in client.watch().outcomes] == [Verdict.ACKED]

A :class:`Pipeline` runs an unchanged job on a Spark session, with its own server:

    with Pipeline() as pipeline:
        result = pipeline.run(["a line", "another"], process)
    assert result.acked == ["a line", "another"]

``LocalServer`` needs the extra `service`, ``Pipeline`` the extras `service` and `spark`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from acker_client.extras import missing
from acker_testing.local import LocalServer, LocalTransport, SimulatedTime, new_shard
from acker_testing.zookeeper import ZooKeeperProcess

if TYPE_CHECKING:
    from acker_testing.pipeline import Dead, Outcome, Pipeline, Result

__all__ = [
    "LocalServer",
    "LocalTransport",
    "SimulatedTime",
    "new_shard",
    "ZooKeeperProcess",
    "Pipeline",
    "Result",
    "Dead",
    "Outcome",
]


def __getattr__(name: str) -> Any:
    """Import the names that need Spark only when they are used, so that the other names work without Spark."""
    if name not in ("Pipeline", "Result", "Dead", "Outcome"):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        from acker_testing import pipeline
    except ImportError as error:
        raise missing(f"acker_testing.{name}", "service,spark", error) from error
    return getattr(pipeline, name)
