"""Mutants: named patches, each of which breaks one promise of the plain path. Programs have to find them.

The patches use internals of the product. They are applied in the driver and in each worker, by an environment variable.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

VARIABLE = "PLAIN_MUTANT"


def report_in_spite_of_an_error() -> None:
    """A collector reports what it has, also if its block raises or is closed early."""
    from acker_client.spark.operators.collector import Collector

    end = Collector.__exit__
    Collector.__exit__ = lambda self, *_: end(self, None, None, None)  # type: ignore[method-assign]


def count_each_attempt() -> None:
    """Each attempt at a task has an identity of its own."""
    from acker_client.spark.anchoring.tally import Tally
    from acker_protocol.messages import Identity

    report = Tally.report

    def fresh(self: Tally, salt: int = 0) -> Any:
        return replace(report(self, salt), identity=Identity(secrets.randbits(64), secrets.randbits(64)))

    Tally.report = fresh  # type: ignore[method-assign]


def pass_over_culprits() -> None:
    """A row for which a function raises is acked like the others."""
    from acker_client.spark.operators.culprits import Culprits

    Culprits.fail_row = lambda *_: None  # type: ignore[method-assign]


def ack_before() -> None:
    """An ack() column does not wait for the columns that it names."""
    from acker_client.spark import functions

    functions._several = lambda columns: ()
    functions.NOT_AFTER = ""


def ack_parents_alone() -> None:
    """An ack of a row leaves its children out of the report."""
    from acker_client.spark.anchoring.anchors import Anchors
    from acker_client.spark.anchoring.tally import Tally

    consume = Tally.consume

    def bare(self: Tally, anchors: Anchors, produced: Any) -> None:
        is_read = self._name == "read"
        consume(self, anchors, produced if is_read else np.zeros_like(produced))

    Tally.consume = bare  # type: ignore[method-assign]


def find_no_source() -> None:
    """A process does not ask the servers who emitted a root."""
    from acker_client.reports.other_sources import OtherSources

    OtherSources.find = lambda self, roots: True  # type: ignore[method-assign]


def forget_the_last_outcome() -> None:
    """The last outcome of each answer of the servers is lost."""
    from acker_client.open_source import OpenSource

    queue = OpenSource._queue_outcomes

    def shorter(self: OpenSource, watched: Any) -> None:
        outcomes = watched.outcomes
        if len(outcomes):
            kept = replace(outcomes, root_ids=outcomes.root_ids[:-1], verdicts=outcomes.verdicts[:-1])
            watched = replace(watched, outcomes=kept)
        queue(self, watched)

    OpenSource._queue_outcomes = shorter  # type: ignore[method-assign]


MUTANTS: dict[str, Callable[[], None]] = {
    each.__name__: each
    for each in (
        report_in_spite_of_an_error,
        count_each_attempt,
        pass_over_culprits,
        ack_before,
        ack_parents_alone,
        find_no_source,
        forget_the_last_outcome,
    )
}


def apply() -> None:
    """Apply the mutant that the environment names, if any."""
    name = os.environ.get(VARIABLE, "")
    if name:
        MUTANTS[name]()
