"""The thin client of the acker: emit, ack, fail and wait for outcomes. Needs grpcio, protobuf and numpy, nothing else.

Importing this imports neither grpc nor Spark; grpc is loaded when the first channel is made, inside the process that
uses it.
"""

from __future__ import annotations

from acker_client import errors
from acker_client.anchor import UNANCHORED, Anchor
from acker_client.client import AckerClient
from acker_client.cluster.watched import WatchResult
from acker_client.errors import (
    AckerError,
    Closed,
    Overloaded,
    Rejected,
    Unavailable,
    UnknownBatch,
    UnknownSource,
)
from acker_client.open_source import MessageOutcome, OpenSource
from acker_client.rpc.delivery import ReportResult
from acker_client.settings import Settings, Tls
from acker_protocol.messages import (
    Cause,
    Entries,
    Identity,
    InitScope,
    Outcomes,
    RootOutcome,
    Settlement,
    Verdict,
)

__all__ = [
    "AckerClient",
    "AckerError",
    "Anchor",
    "UNANCHORED",
    "OpenSource",
    "MessageOutcome",
    "Cause",
    "Closed",
    "Entries",
    "Identity",
    "InitScope",
    "Outcomes",
    "Overloaded",
    "Rejected",
    "ReportResult",
    "RootOutcome",
    "Settings",
    "Tls",
    "Settlement",
    "Unavailable",
    "UnknownBatch",
    "UnknownSource",
    "Verdict",
    "WatchResult",
    "errors",
]
