"""The client writes exactly the bytes of the test vectors, on which implementations in other languages rely."""

from __future__ import annotations

from typing import Any

import pytest

from acker_client import AckerClient
from acker_protocol import reports, wire
from acker_protocol.messages import Apply, ApplyReply, Limits, OpenBatch, Status, Watch
from acker_testing import LocalServer, LocalTransport
from tests.vectors import apply_of, protocol, report


class Recorder(LocalTransport):
    """A transport that records what is sent."""

    def __init__(self, server: LocalServer, address: str) -> None:
        super().__init__(server, address)
        self.sent: list[str] = []

    def apply(self, message: Apply, timeout_s: float) -> ApplyReply:
        self.sent.append(wire.encode(message).SerializeToString(deterministic=True).hex())
        return super().apply(message, timeout_s)


@pytest.fixture
def recorder() -> Recorder:
    """A transport to a shard that has opened the batch of the test vector "inits"."""
    inits = report("inits")["inits"]
    recorder = Recorder(LocalServer(), "in-memory")
    recorder.watch(Watch("vectors", inits["session"], 60_000, Limits()), 1.0)
    opened = recorder.open_batch(OpenBatch(inits["session"], inits["batch"], inits["first"], 40), 1.0)
    assert opened.status == Status.APPLIED
    return recorder


@pytest.mark.parametrize("vector", protocol()["reports"], ids=lambda vector: vector["name"])
def test_a_whole_report_travels_as_the_bytes_of_the_vectors(recorder: Recorder, vector: dict[str, Any]) -> None:
    message = apply_of(vector)
    client = AckerClient(connect=lambda address: recorder)
    client.report(message.identity, message.entries, message.inits)
    assert recorder.sent == [vector["message"]]


@pytest.mark.parametrize("order", [slice(None), slice(None, None, -1)], ids=["in order", "backwards"])
def test_single_updates_fold_to_the_report_of_the_vectors(recorder: Recorder, order: slice) -> None:
    message = apply_of(report("acks"))
    entries = reports.fold(message.entries.root_ids[order], message.entries.ack_vals[order])
    client = AckerClient(connect=lambda address: recorder)
    client.report(message.identity, entries)
    assert recorder.sent == [report("acks")["message"]]
