"""Batches that are not held: their records stay open after the batch is settled, while partitions come and go."""

from __future__ import annotations

import random
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from acker_client.source import Batch, Emissions, Kafka, Ranges
from acker_client.source.engine.environment import Environment
from acker_client.source.kafka import slices as kafka_slices
from tests.client.test_client_members import Servers
from tests.source.executors import NO_SPARK, Cluster, Frame, Polling, Row, frame_of
from tests.source.groups import Group, Membership, SharedCheckpoint
from tests.source.kafka_broker import MockKafka
from tests.source.logs import Log, LogSource, MemoryCheckpoint, log_of
from tests.source.test_group_schedules import PARTITIONS, Sources, Watching
from tests.source.test_groups import Idle
from tests.source.test_port import Noted

TIMEOUT_S = 60.0


@pytest.fixture
def log() -> Log:
    return log_of(a=8, b=8)


@pytest.mark.parametrize("how", ["taken away", "given to another", "deleted"])
def test_an_ack_of_a_revoked_record_affects_no_other_record(cluster: Cluster, log: Log, how: str) -> None:
    group, noted = Group({"a": "x", "b": "x"}), Noted()
    options: dict[str, Any] = {"held": False, "message_timeout_s": TIMEOUT_S, "lease_s": 600.0, "listener": noted}
    if how != "deleted":
        options |= {"group": Membership(group, "x"), "checkpoint": SharedCheckpoint(group, "x")}
    with LogSource(log, environment=cluster.environment(), **options)._begin_run(NO_SPARK) as run:
        batch = run.next_batch()
        assert batch is not None
        rows = frame_of(batch).rows()
        run.settle_batch(batch)
        if how == "taken away":
            group.take_away("a")
        if how == "deleted":
            log.revoked.append("a")
            run._partitions.plan_records(1, run._tasks)
        group.give("a", "y")
        run._partitions.follow_group()
        run._partitions.commit()
        frame_of(batch).ack(row for row in rows if row.value.startswith("a"))
        run._outcomes.take_outcomes(0.0)
        run._partitions.commit()
        assert run._lookup.parts.done.get("b", Ranges()) == Ranges()
        assert (run.summary().acked, run.summary().open) == (0, 8)
        # The revoked records time out at the server, and are not retried here.
        cluster.time.sleep(TIMEOUT_S + 1)
        run._outcomes.take_outcomes(0.0)
        assert noted.retried == list(range(8, 16))
        assert not run._in_flight.tracker.pending


def test_the_checkpoint_moves_while_nothing_is_left_to_read_and_the_other_job_acks(cluster: Cluster, log: Log) -> None:
    log.is_ended = False
    checkpoint, options = MemoryCheckpoint(), {"held": False, "message_timeout_s": TIMEOUT_S, "lease_s": 600.0}
    environment = replace(cluster.environment(), sleep=idle)
    run = LogSource(log, environment=environment, checkpoint=checkpoint, **options)._new_run(NO_SPARK)
    run.__enter__()
    batch = run.next_batch()
    assert batch is not None
    rows = frame_of(batch).rows()
    run.settle_batch(batch)
    frame_of(batch).ack(rows)
    for _ in range(2):
        with suppress(Idle):
            run.next_batch()
    # The driver dies here.
    assert {name: each.done.to_runs() for name, each in checkpoint.saved.items()} == {"a": [8], "b": [8]}


def test_a_position_that_does_not_exist_is_done_and_not_tried_again(kafka: MockKafka, tmp_path: Path) -> None:
    cluster, noted, topic = Cluster(tmp_path), Noted(), kafka.new_topic(10)
    given: dict[str, Any] = {"bootstrap_servers": kafka.servers, "name": topic, "stop": "end", "lease_s": 600.0}
    given |= {"held": False, "message_timeout_s": TIMEOUT_S, "deadline_s": 10.0, "listener": noted}
    source = Kafka(topic, environment=cluster.environment(), **given)

    def process(batch: Batch) -> None:
        frame_of(batch).ack(frame_of(batch).rows())

    with pytest.MonkeyPatch.context() as patched:
        # Imitates two offsets of transaction markers, which have no record.
        patched.setattr(kafka_slices, "read_chosen", without(3, 4))
        summary = source.run(NO_SPARK, process)
    assert (summary.acked, summary.absent, summary.replayed, noted.absent) == (8, 2, 0, ["03", "04"])


def without(*gone: int) -> Any:
    """Return a ``read_chosen`` that finds no records at the offsets ``gone``."""
    read = kafka_slices.read_chosen

    def read_chosen(reader: Any, chosen: Any) -> Any:
        for at, fetched in read(reader, chosen):
            kept = np.flatnonzero(~np.isin(fetched.offsets, gone))
            if len(kept):
                yield at[kept], kafka_slices._select_rows(fetched, kept)

    return read_chosen


def idle(seconds: float) -> None:
    raise Idle


def test_a_server_that_loses_its_state_under_a_batch_costs_no_replay_where_another_has_it(log: Log) -> None:
    servers, noted = Servers(2), Noted()
    environment = Environment(
        connect=lambda spark: servers.client("source"),
        frame=lambda spark, plan: Frame(servers.client("executor"), plan),
        parallelism=lambda spark: 2,
        watch=Polling,
    )
    options: dict[str, Any] = {"held": False, "message_timeout_s": TIMEOUT_S, "listener": noted}
    with LogSource(log, environment=environment, **options)._begin_run(NO_SPARK) as run:
        batch = run.next_batch()
        assert batch is not None
        rows = frame_of(batch).rows()
        servers[1].start(with_state=False)
        for _ in range(100):
            if not batch.is_lost:
                run._outcomes.take_outcomes(0.1)
        assert batch.is_lost
        run.settle_batch(batch)
        assert noted.retried == []
        frame_of(batch).ack(rows)
        for _ in range(100):
            if run._in_flight.tracker.pending:
                run._outcomes.take_outcomes(0.1)
        assert (sorted(noted.acked), noted.failed) == (list(range(16)), [])
    servers.close()


class Handing(Watching):
    """Checks that only emissions whose ack was sent are ACKED."""

    def __init__(self, sources: NotHeld, member: str) -> None:
        super().__init__(sources.twin, member)
        self.sources = sources

    def on_ack(self, acked: Emissions) -> None:
        assert set(acked.roots.tolist()) <= self.sources.acked, "ACKED, and the ack was not sent"
        super().on_ack(acked)


class NotHeld(Sources):
    """Sources whose records another job acks: some time after their batch was settled, twice, or never."""

    def __init__(self, folder: Path, dice: random.Random) -> None:
        # The rows that were handed on, each with the frame of its batch.
        self.topic: list[tuple[Frame, Row]] = []
        self.acked: set[int] = set()
        super().__init__(folder, dice)

    def options_of(self, name: str) -> dict[str, Any]:
        not_held = {"held": False, "message_timeout_s": TIMEOUT_S, "lease_s": 3600.0, "deadline_s": 10.0}
        return super().options_of(name) | not_held | {"listener": Handing(self, name)}

    def ack(self, batch: Batch, rows: list[Row]) -> None:
        """Hand the rows on instead of acking them."""
        self.topic += [(frame_of(batch), row) for row in rows]

    def read_topic(self, _: str) -> None:
        """Let the other job ack some of the records, and some of these twice."""
        self.dice.shuffle(self.topic)
        cut = self.dice.randrange(len(self.topic) + 1)
        read, self.topic = self.topic[:cut], self.topic[cut:]
        for frame, row in read + self.dice.sample(read, len(read) // 4):
            self.acked.add(row.root)
            frame.ack([row])

    def forget(self, _: str) -> None:
        """Lose half of the messages, and let time pass."""
        self.topic = self.topic[: len(self.topic) // 2]
        self.cluster.time.sleep(self.dice.choice((5.0, TIMEOUT_S)))

    def turn(self) -> None:
        if self.dice.random() < 0.75:
            super().turn()
        else:
            self.dice.choices((self.read_topic, self.forget), weights=(8, 1))[0]("")

    def finish(self) -> None:
        self.leave_all_to_one()
        for _ in range(40):
            self.take("x")
            self.settle("x", "fine")
            for _ in range(20):
                self.read_topic("x")
            self.cluster.time.sleep(TIMEOUT_S)
        self.stop("x")


@pytest.mark.slow
@pytest.mark.sampled(4)
@pytest.mark.parametrize("seed", range(1, 21))
def test_at_random_no_record_is_done_before_the_other_job_has_acked_it_and_none_is_lost(
    seed: int, tmp_path: Path
) -> None:
    check(NotHeld(tmp_path, random.Random(seed)))


@pytest.mark.long
@pytest.mark.parametrize("seed", range(1_000, 1_300))
def test_at_random_at_length(seed: int, tmp_path: Path) -> None:
    check(NotHeld(tmp_path, random.Random(seed)))


def check(sources: NotHeld) -> None:
    for _ in range(80):
        sources.turn()
    sources.finish()
    log, twin = sources.log, sources.twin
    everything = {(partition, k) for partition in PARTITIONS for k in range(log.end_of(partition))}
    assert twin.ended == everything
    assert set().union(*(twin.written(partition) for partition in PARTITIONS)) == everything
