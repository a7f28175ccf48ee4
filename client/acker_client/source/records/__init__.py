"""Records: what a run knows about each record (planned, in flight, acked, waiting for a retry), and the
interfaces of inputs and stores. Pure.

Entry points: ``tracker.Tracker``, ``in_flight``, ``retry.Retry``, ``ranges.Ranges``, ``input.Input``, ``stores``.
"""

from acker_client.source.records.assignment import Assignment, Handover
from acker_client.source.records.dead_letter import DeadLetter
from acker_client.source.records.guarantee import Guarantee
from acker_client.source.records.in_flight import Failures
from acker_client.source.records.input import Chosen, Committed, Input, Original, Plan, SharedInput
from acker_client.source.records.listener import Emissions, Listener
from acker_client.source.records.outcome import RecordOutcome
from acker_client.source.records.progress import Progress
from acker_client.source.records.ranges import Ranges
from acker_client.source.records.retry import Retry, RetryPolicy
from acker_client.source.records.stores import CheckpointStore, DeadLetterStore, OutcomeStore, SharedCheckpointStore
from acker_client.source.records.summary import Summary

__all__ = [
    "Assignment",
    "Handover",
    "DeadLetter",
    "Guarantee",
    "Failures",
    "Chosen",
    "Committed",
    "Input",
    "Original",
    "Plan",
    "SharedInput",
    "Emissions",
    "Listener",
    "RecordOutcome",
    "Progress",
    "Ranges",
    "Retry",
    "RetryPolicy",
    "CheckpointStore",
    "DeadLetterStore",
    "OutcomeStore",
    "SharedCheckpointStore",
    "Summary",
]
