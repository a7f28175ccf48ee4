"""World: runs one simulated case, and returns its result."""

from __future__ import annotations

import gc
import logging
import random
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np

import acker_client.rpc.connection
from acker_client import AckerClient, Settings
from acker_client.cluster.source_session import SourceSession
from acker_client.errors import AckerError, UnknownSource
from acker_client.pins import Pin
from acker_client.source import Batch, Retry
from acker_client.source.engine.environment import Environment, FramePlan
from acker_protocol.messages import HelloReply, OpenBatch, Watch, WatchReply
from acker_protocol.reports import BYTES_AN_ENTRY
from tests.simulation import pipeline
from tests.simulation.case import DIFFERING, Case, Joins
from tests.simulation.driver import BatchFrame, MemoryCheckpoint, MemoryLetters, MemorySource, Witness
from tests.simulation.misfortunes import Misfortunes
from tests.simulation.network import Link, Network
from tests.simulation.oracle import BatchFacts, Oracle, Violation
from tests.simulation.plain import Plain
from tests.simulation.registry import Place, ZooKeeper
from tests.simulation.scheduler import Endless, GreenSideBySide, Scheduler, Stuck
from tests.simulation.servers import Server, State, name_of
from tests.simulation.spark import Attempt, Executor, Job, JobFailed, Spark
from tests.simulation.threads import replaced
from tests.simulation.transcript import Transcript
from tests.simulation.trees import Tree, Trees, Update
from tests.simulation.troubles import Troubles

NO_SPARK: Any = None
# Excuses for known gaps, which should not be needed. Each gap costs the replay of a batch after a server has lost its
# state. ``strict`` runs accept none of them.
LATE_S = 90.0
STALE_ANSWER = "known gap: an answer of an older life came late"
LATE_NEWS = "known gap: a batch was opened before the driver heard what the server had lost"
OLD_GREETING = "known gap: a batch was opened at a server that had lost its state since it was greeted"
GIVEN_UP = "known gap: what befell a placement that was given up while a batch was opened"
# Long enough for servers to forget everything.
FORGOTTEN_S = 2000.0


@dataclass
class Result:
    """The result of a run. ``kind``: a short name of the broken promise, "" if none. ``why`` explains it."""

    case: Case
    kind: str = ""
    why: str = ""
    lines: list[str] = field(default_factory=list)
    seconds: float = 0.0
    calls: int = 0
    acked: int = 0
    replays: dict[str, int] = field(default_factory=dict)


def simulate(case: Case, *, keeps_lines: bool = False, strict: bool = False) -> Result:
    """Run a case. The same case gives the same lines. ``strict``: known gaps excuse nothing."""
    world = World(case, keeps_lines=keeps_lines, strict=strict)
    result = Result(case)
    with _quiet(world.transcript), _small_messages(case), replaced(world.scheduler, world.secrets):
        try:
            world.run()
        except Violation as violation:
            result.kind, result.why = violation.kind, str(violation)
        except (Stuck, Endless) as error:
            result.kind, result.why = type(error).__name__.lower(), str(error)
        except Exception as error:  # any error is a finding
            result.kind, result.why = f"raised {type(error).__name__}", repr(error)
            if keeps_lines:
                logging.getLogger("tests.simulation").exception("the simulation raised")
    if result.kind:
        world.transcript.say(result.why)
    result.lines, result.seconds, result.calls = world.transcript.lines, world.scheduler.now, world.network.calls
    result.replays = dict(world.oracle.replays + world.trees.replays)
    result.acked = world.trees.acked
    return result


def collect_seldom() -> None:
    """Collect garbage seldom. Most objects live for the whole run, so frequent collections waste a sixth of it."""
    gc.set_threshold(100_000, 20, 20)


class World:
    """All parts of one run."""

    def __init__(self, case: Case, *, keeps_lines: bool, strict: bool) -> None:
        self.case = case
        self._is_strict = strict
        self.scheduler = Scheduler(case.seed)
        self.transcript = Transcript(self.scheduler.clock, is_kept=keeps_lines)
        self.secrets = random.Random(f"{case.seed} secrets")
        self.dice = random.Random(f"{case.seed} world")
        dice = random.Random(f"{case.seed} pipeline")
        differs = any(case.tasks.get(name) for name in DIFFERING)
        self.pipeline = pipeline.drawn(dice, case.steps, case.tasks_wide, digests=differs)
        self.values = _values(case)
        self.oracle = Oracle(
            {k + 10 * at: _matter(value) for k, values in enumerate(self.values) for at, value in enumerate(values)}
        )
        self.oracle.excuse = self._excuse
        self.oracle.is_out = lambda batch, server: self.troubles.is_out(server, batch.opened_at - 1e-6, source="driver")
        self.trees = Trees()
        self.trees.excuse, self.trees.is_out = self._excuse_tree, self._is_out_for
        self.trees.unreached_s = lambda tree: self.troubles.unreached_s(tree.source, tree.servers, tree.emitted_at)
        self.troubles = Troubles(self.scheduler, case)
        self.zookeeper = self._zookeeper()
        self.servers = {number: self._server(number) for number in range(1, case.servers + 1)}
        self.settings = Settings(
            tuple(server.address for server in self.servers.values()),
            budget_s=case.budget_s,
            call_timeout_s=case.call_timeout_s,
            replicas=case.replicas,
            spread=max(case.spread, case.replicas or 1),
            replica_wait_s=case.replica_wait_s,
            gone_after_s=case.gone_after_s,
            buffer_entries=65_536 if case.programs is None else case.programs.buffer_entries,
        )
        self.network = Network(
            self.scheduler,
            random.Random(f"{case.seed} network"),
            self.transcript,
            {server.address: server for server in self.servers.values()},
            case.calls,
            quiet_s=case.call_timeout_s if case.is_rough else case.budget_s,
            through_wire=case.through_wire,
        )
        self.network.on_request = self._requested
        self.network.on_reply = self._replied
        self.network.on_fault = self._went_wrong
        self.spark: Spark
        self.plain: Plain | None = None
        self.is_over = False
        self._pins: dict[int, Pin] = {}
        # By server, the generations that the driver has heard of, oldest first.
        self._generations: dict[int, list[int]] = {}
        # By client name and server id, when the server has answered Hello calls of the client.
        self._greetings: dict[tuple[str, int], list[float]] = {}
        self._session = 0
        self._runs = 0
        self._clients = 0
        self._sources: list[SourceSession] = []
        # When each batch of a plain source was first requested, by session and number.
        self._asked_at: dict[tuple[int, int], float] = {}

    # -- from beginning to end

    def run(self) -> None:
        """Run the case. Raises :class:`Violation`, or any error of the simulation itself."""
        later = {fault.server for fault in self.case.faults if isinstance(fault, Joins)}
        for server in self.servers.values():
            server.on_watched = self._watched
            server.on_expired = self._expired
            server.on_left_behind = self.lost
            server.on_up, server.on_down = self.troubles.is_up, self.troubles.is_down
            if server.id not in later:
                server.start(with_state=False)
        misfortunes = Misfortunes(self)
        for fault in self.case.faults:
            self.scheduler.at(fault.at, partial(misfortunes.happen, fault))
        if self.case.programs is None:
            self._start_spark()
        else:
            self.plain = Plain(self)
            self.plain.start()
        self.scheduler.run(lambda: self.is_over)
        self.scheduler.run(lambda: self.scheduler.is_idle)
        if self.plain is None:
            self.oracle.check_end()
        self._check_memory()

    def _start_spark(self) -> None:
        self.transcript.say(f"pipeline: {self.pipeline}")
        executors = [self._executor(f"executor {number}") for number in range(1, self.case.executors + 1)]
        self.spark = Spark(self, executors)
        self.scheduler.spawn("driver", "", self._drive)

    def _drive(self) -> None:
        source = MemorySource(
            self.values,
            environment=self._environment(),
            listener=Witness(self.oracle, self.transcript, self._key),
            checkpoint=MemoryCheckpoint(),
            dead_letters=MemoryLetters(),
            max_dead_share=1.0,
            # Nobody looks at the progress, and waiting to show it would move the time.
            progress=False,
            batch_records=self.case.batch_records,
            lease_s=self.case.lease_s,
            retry=Retry(self.case.max_retries, 10_000, initial_s=0.5, cap_s=4.0),
        )
        while True:
            self._runs += 1
            began_at = self.scheduler.now
            try:
                summary = source.run(NO_SPARK, self._process)
            except AckerError as error:
                self.check_start_error("driver", error, began_at)
                self.transcript.say(f"driver: the run ended with {error}; it is started again")
                self.scheduler.sleep(1.0)
            else:
                break
        self.transcript.say(f"driver: it is over: {summary.brief}")
        self.is_over = True

    def _environment(self) -> Environment:
        dice = random.Random(f"{self.case.seed} driver")
        return Environment(
            connect=lambda spark: self._driver_client(),
            frame=self._frame,
            parallelism=lambda spark: self.case.tasks_wide,
            clock=self.scheduler.clock,
            wall=lambda: 1_700_000_000.0 + self.scheduler.now,
            sleep=self.scheduler.sleep,
            draw=dice.random,
            draw_base=lambda: 1 + dice.randrange(1 << 60),
        )

    def _frame(self, spark: Any, plan: FramePlan) -> BatchFrame:
        (pin,) = plan.pins
        self._pins[self._key(plan.scope.number)] = pin
        source = self._driver._state().source()
        if source not in self._sources:
            self._sources.append(source)
        if self.transcript.is_kept:
            members = ", ".join(str(member.id) for member in pin.placement.members)
            replicas = pin.placement.replicas.shape[1]
            self.transcript.say(f"driver: batch {plan.scope.number} lives on servers {members}, {replicas} a slot")
        return BatchFrame(plan)

    def _process(self, batch: Batch) -> None:
        """Run the job of each sink, one after another. Repeats a job if the case has drawn that."""
        frame: Any = batch.df
        key = self._key(batch.number)
        dice = random.Random(f"{self.case.seed} batch {key}")
        rates, conflicts = self.case.tasks_in(batch.number), 0
        try:
            for sink, stages in enumerate(self.pipeline.jobs):
                runs = 2 if dice.random() < rates.get("job is run again", 0.0) else 1
                for run in range(runs):
                    is_other = (run or sink) and dice.random() < rates.get("job is cut otherwise", 0.0)
                    job = Job(self.spark, key, frame.plan, stages, sink, int(bool(is_other)))
                    try:
                        job.run()
                    finally:
                        conflicts += job.conflicts
                        frame.without |= job.without
                job.commit()
        except JobFailed as error:
            self.oracle.abandoned(key, str(error))
            frame.error = error
            if dice.random() < 0.5:
                raise
        if conflicts:
            frame.unfinished_because = "another attempt gave other rows"

    def _key(self, number: int) -> int:
        """Return the oracle's number for a batch of this run. The source's own numbers start with 1 in each run."""
        return self._runs * 100_000 + number

    # -- processes

    def _driver_client(self) -> AckerClient:
        self._driver = self.new_client("driver")
        return self._driver

    def new_client(self, owner: str) -> AckerClient:
        self._clients += 1
        dice = random.Random(f"{self.case.seed} client {owner} {self._clients}")
        for server in self.servers.values():
            self.network.link(owner, server.address)
        return AckerClient(
            self.settings,
            connect=self.network.connect(owner),
            clock=self.scheduler.clock,
            sleep=self.scheduler.sleep,
            random=dice.random,
            side_by_side=GreenSideBySide(self.scheduler),
        )

    def _executor(self, name: str) -> Executor:
        return Executor(name, lambda: self.new_client(name))

    def _server(self, number: int) -> Server:
        dice = random.Random(f"{self.case.seed} server {number}")
        place = None if self.zookeeper is None else Place(self.zookeeper, name_of(number))
        server = Server(self.scheduler, dice, self.transcript, number, place, max_pending=100_000)
        if self.case.message_entries:
            server.max_message_bytes = 2 * BYTES_AN_ENTRY * self.case.message_entries
        return server

    def _zookeeper(self) -> ZooKeeper | None:
        if self.case.cluster != "zookeeper":
            return None
        dice = random.Random(f"{self.case.seed} zookeeper")
        zookeeper = ZooKeeper(self.scheduler, dice, self.transcript, self.case.session_s)
        zookeeper.on_silence = lambda owner, for_s: self.troubles.unheard(int(owner.split()[-1]), for_s)
        zookeeper.on_gone, zookeeper.on_listed = self.troubles.left_view, self.troubles.is_in_view
        zookeeper.on_away = self.troubles.is_away
        return zookeeper

    # -- what is justified

    def lost(self, server: Server, why: str) -> None:
        """Record that a server has lost the state of the driver's source."""
        self.troubles.lost(server.id, f"{server.name} {why}")

    def _excuse(self, batch: BatchFacts, root: int, reason: str) -> str:
        """Return why a root need not be ACKED: all its replicas were in trouble. "" if one was not."""
        replicas = self._replicas_of(batch, root)
        since = batch.opened_at - 1e-6
        is_only = len(replicas) == 1
        excuses = [
            self.troubles.excuse(server, since, is_only=is_only) or self._late_news(server, since)
            for server in replicas
        ]
        if all(excuses):
            return excuses[0]
        return GIVEN_UP if reason == "its server is gone" and not self._is_strict else ""

    def _late_news(self, server: int, since: float) -> str:
        """Return the excuse for a loss of state that the driver may not have heard of before it opened the batch."""
        is_excuse = not self._is_strict and self.troubles.has_lost(server, since - LATE_S)
        return LATE_NEWS if is_excuse else ""

    def _replicas_of(self, batch: BatchFacts, root: int) -> list[int]:
        placement = self._pins[batch.number].placement
        row = placement.replicas_of(np.array([root], np.uint64))[0]
        return [placement.members[index].id for index in row.tolist()]

    def _members_of(self, batch: int) -> list[int]:
        return [member.id for member in self._pins[batch].placement.members] if batch in self._pins else []

    def _requested(self, link: Link, request: Any) -> None:
        if self.plain is not None:
            if isinstance(request, OpenBatch):
                self._asked_at.setdefault((request.session, request.number), self.scheduler.now)
        elif isinstance(request, OpenBatch):
            self.oracle.opening(self._key(request.number), self.scheduler.now, len(self.pipeline.jobs))
        elif isinstance(request, Watch):
            self._session = 0 if request.close else request.session

    def _replied(self, link: Link, reply: Any) -> None:
        if isinstance(reply, HelloReply):
            self._greetings.setdefault((link.client, link.server.id), []).append(self.scheduler.now)
        if not isinstance(reply, WatchReply) or link.client != "driver":
            return
        server = link.server.id
        known = self._generations.setdefault(server, [])
        if known and reply.generation == known[-1]:
            return
        if reply.generation in known:
            self._gap(server, STALE_ANSWER)
        known.append(reply.generation)

    def _went_wrong(self, link: Link, fault: str) -> None:
        """Record a call that was lost, by chance or in a cut. It costs a timeout, or the time of the next Hello."""
        self.troubles.out_of_reach(self.case.call_timeout_s, link.client, link.server.id, is_one_call=True)

    def _gap(self, server: int, what: str) -> None:
        """Record a known gap, which should not matter but is an excuse for now."""
        if not self._is_strict:
            self.troubles.gap(server, what)

    def _expired(self, server: Server, session: int) -> None:
        """Check that an expired lease is justified. A source without batches at a server does not watch it."""
        if self.plain is not None:
            self._expired_plain(server, self.plain.source_of(session))
            return
        if session != self._session:
            # That run is over: its watch arrived after the source was closed, or its driver gave up.
            return
        lease_s = self.case.lease_s
        since = self.scheduler.now - lease_s - 1.0
        open_here = [
            batch
            for batch in self.oracle.batches.values()
            if batch.opened_at < since and not batch.is_over and server.id in self._members_of(batch.number)
        ]
        # The driver may have left out a server that was out of reach, and does not watch it any more.
        is_watched = any(not self.troubles.excuse(server.id, batch.opened_at, is_only=False) for batch in open_here)
        if is_watched and not self.case.is_rough:
            unreached_s = self.troubles.unreached_s("driver", [server.id], since)
            if unreached_s < lease_s / 10:
                raise Violation("needless expiry", f"the lease of {lease_s:g} s ran out at {server.name}")
        self.lost(server, "dropped the source, whose lease ran out")

    def _watched(self, server: Server, reply: WatchReply) -> None:
        """Check the answer of a server to a watch. It has to be true if the server is the only replica. If there are
        others, this one may have been left out. It may then know an attempt that was not written, and the client must
        ignore it."""
        for outcome in reply.outcomes:
            if self.plain is not None:
                self.trees.said(server.id, outcome.root_id, outcome.verdict)
                continue
            batch = self.oracle.batch_of(outcome.root_id)
            self.oracle.said(server.id, outcome.root_id, outcome.verdict)
            if batch in self._pins and self._pins[batch].placement.replicas.shape[1] == 1:
                self.oracle.answered(outcome.root_id, outcome.verdict, server.name)

    def check_start_error(self, program: str, error: Exception, began_at: float) -> None:
        """Check that a source rightly could not be opened."""
        each_s = [
            self.troubles.unreached_s(program, [server], began_at) + self.troubles.absent_s(server, began_at)
            for server in self.servers
        ]
        enough_s = self.case.budget_s / 3
        if self.case.is_rough or min(each_s) >= enough_s:
            return
        raise Violation(
            "needless start error", f"{program} cannot open its source, though servers could be reached: {error}"
        )

    # -- what is justified: plain programs

    def opened_at(self, session: int, batch: int) -> float:
        return self._asked_at.get((session, batch), self.scheduler.now)

    def _excuse_tree(self, tree: Tree) -> str:
        is_only = len(tree.servers) == 1
        excuses = [
            self.troubles.excuse(server, tree.since, is_only=is_only, source=tree.source)
            or self._old_greeting(server, tree)
            for server in tree.servers
        ]
        return excuses[0] if all(excuses) else ""

    def _old_greeting(self, server: int, tree: Tree) -> str:
        """Return the excuse for a loss of state between the last Hello and the opening of a batch. A source does not
        notice it if it is paused while its connection breaks and is made again."""
        greetings = [at for at in self._greetings.get((tree.source, server), ()) if at <= tree.since]
        is_excuse = not self._is_strict and greetings and self.troubles.has_lost(server, greetings[-1])
        return OLD_GREETING if is_excuse else ""

    def _is_out_for(self, tree: Tree, server: int) -> bool:
        return self.troubles.is_out(server, tree.since, source=tree.source)

    def _expired_plain(self, server: Server, source: Any) -> None:
        """Record an expired lease. It excuses losses at that server if the source did not watch, or could not."""
        if source is None:
            return
        lease_s, now = self.case.lease_s, self.scheduler.now
        is_watched = source.is_watching or now - source.watched_at < lease_s / 3
        unreached_s = self.troubles.unreached_s(source.name, [server.id], now - lease_s - 1.0)
        if not is_watched or unreached_s >= lease_s / 10 or self.case.is_rough:
            self.lost(server, f"dropped {source.name}, whose lease ran out")

    def check_flush_error(self, program: str, error: AckerError, updates: list[Update], began_at: float) -> None:
        """Check that a flush rightly failed."""
        # The client may ask any server where a batch lives.
        unreached_s = self.troubles.unreached_s(program, self.servers, began_at)
        enough_s = min(self.case.budget_s / 3, (self.scheduler.now - began_at) / 3)
        healthy = self.trees.healthy(updates)
        if isinstance(error, UnknownSource):
            # One root caused the error. Its source is closed, or could not tell each server where its last batch lives.
            healthy = [
                tree
                for tree in healthy
                if re.search(rf"\b{tree.root}\b", str(error))
                and not self.troubles.unreached_s(tree.source, self.servers, tree.since)
            ]
        if healthy and unreached_s < enough_s and not self.case.is_rough:
            raise Violation("needless flush error", f"{program} could reach the servers of {healthy[0]}: {error}")

    def check_join_error(self, program: str, session: int, error: AckerError, began_at: float) -> None:
        """Check that a join rightly failed."""
        source = self.plain.source_of(session) if self.plain is not None else None
        if source is None or source.is_done:
            return
        unreached_s = self.troubles.unreached_s(program, self.servers, began_at - self.case.gone_after_s)
        is_lost = any(self.troubles.has_lost(server, 0.0) for server in self.servers)
        if not unreached_s and not is_lost and not self.case.calls:
            raise Violation("needless join error", f"{program} cannot join an open source: {error}")

    def check_leave(self, attempt: Attempt, servers: frozenset[int]) -> None:
        batch = self.oracle.batches[attempt.job.batch]
        batch.left_out |= servers
        if attempt.job.is_over or batch.is_over:
            return
        is_only = self._pins[batch.number].placement.replicas.shape[1] == 1
        for server in sorted(servers):
            since = batch.opened_at - 1e-6
            if self.troubles.excuse(server, since, is_only=is_only) or self._late_news(server, since):
                continue
            raise Violation("needless leave", f"{attempt} reported without server {server}, which was there")

    def check_task_error(self, attempt: Attempt, error: Exception, began_at: float) -> None:
        batch = self.oracle.batches[attempt.job.batch]
        if attempt.job.is_over or batch.is_over or attempt.executor.client.is_closed or self.case.is_rough:
            return
        members = self._members_of(batch.number)
        is_only = len(members) == 1
        # A task goes on without a server that came back without its state, unless that is the only replica.
        excuse = self.troubles.excuse if is_only else self.troubles.hindrance
        if any(excuse(server, batch.opened_at, is_only=is_only) for server in members):
            return
        unreached_s = self.troubles.unreached_s(attempt.executor.name, members, began_at)
        if unreached_s < self.case.budget_s / 3:
            raise Violation("needless task error", f"{attempt} failed, though it could reach its servers: {error}")

    # -- in the end

    def _check_memory(self) -> None:
        """Check that finished work leaves nothing in memory. Servers get time to forget it, clients do not."""
        for server in self.servers.values():
            if server.state is State.DOWN:
                continue
            server.age(FORGOTTEN_S)
            stats = server.shard.stats
            left = {
                name: getattr(stats, name)
                for name in ("pending", "reserved", "unconfirmed", "orphans", "sources", "open_batches", "identities")
            }
            if any(left.values()):
                raise Violation("memory", f"{server.name} still has {left}")
        for source in self._sources:
            if source.pins:
                raise Violation("memory", f"the driver still has batches {[pin.batch for pin in source.pins]}")


def _values(case: Case) -> list[list[int | None]]:
    dice = random.Random(f"{case.seed} values")
    partitions: list[list[int | None]] = [[] for _ in range(case.partitions)]
    fails, breaks, missing = case.poison
    for record in range(case.records):
        draw = dice.random()
        kind = (
            pipeline.FAILS
            if draw < fails / 2
            else pipeline.UNREADABLE
            if draw < fails
            else pipeline.BREAKS
            if draw < fails + breaks
            else pipeline.NOTHING
        )
        value = None if dice.random() < missing else dice.randrange(1_000_003) * pipeline.CLASSES + kind
        partitions[record % case.partitions].append(value)
    return partitions


def _matter(value: int | None) -> str:
    if value is None:
        return "missing"
    return "unreadable" if value % pipeline.CLASSES == pipeline.UNREADABLE else ""


class _Lines(logging.Handler):
    """Writes log lines into the transcript."""

    def __init__(self, transcript: Transcript) -> None:
        super().__init__()
        self._transcript = transcript

    def emit(self, record: logging.LogRecord) -> None:
        fields = getattr(record, "acker_fields", {})
        said = " ".join(
            [record.getMessage().partition("\n")[0], *(f"{name}={value}" for name, value in fields.items())]
        )
        self._transcript.say(f"   log of {record.name}: {said}")


@contextmanager
def _quiet(transcript: Transcript) -> Iterator[None]:
    """Send log lines of the code under simulation to the transcript only."""
    loggers = [logging.getLogger(name) for name in ("acker_client", "acker")]
    before = [(logger.propagate, logger.level) for logger in loggers]
    handler = _Lines(transcript)
    for logger in loggers:
        logger.propagate = False
        logger.setLevel(logging.INFO if transcript.is_kept else logging.CRITICAL)
        logger.addHandler(handler)
    try:
        yield
    finally:
        for logger, (propagate, level) in zip(loggers, before, strict=True):
            logger.removeHandler(handler)
            logger.propagate = propagate
            logger.setLevel(level)


@contextmanager
def _small_messages(case: Case) -> Iterator[None]:
    """Allow the small messages of a case. A real server accepts no limit below some kilobytes."""
    connection: Any = acker_client.rpc.connection
    before = connection._ENVELOPE_BYTES
    if case.message_entries:
        connection._ENVELOPE_BYTES = BYTES_AN_ENTRY * case.message_entries
    try:
        yield
    finally:
        connection._ENVELOPE_BYTES = before


def of_seed(seed: int, *, strict: bool = False) -> Result:
    """Run the case of a seed. Defined here because new processes import this module, not ``__main__``."""
    return simulate(Case.of(seed), strict=strict)
