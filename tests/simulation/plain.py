"""Plain programs: sources that emit and watch, and workers that join them, ack, fail and derive.

They use the public calls of ``AckerClient``, as users' programs do, and tell the oracle (``trees``) what they do.
Records go from program to program through a queue that loses nothing. The program that takes a record processes it.
"""

from __future__ import annotations

import queue
import random
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol, TypeVar

import numpy as np

from acker_client import AckerClient
from acker_client.errors import RETRYABLE, AckerError, UnknownSource
from acker_protocol.messages import Verdict
from tests.simulation.case import Case, Programs
from tests.simulation.oracle import Violation
from tests.simulation.scheduler import Scheduler
from tests.simulation.threads import GreenQueue
from tests.simulation.transcript import Transcript
from tests.simulation.trees import Tree, Trees, Update

T = TypeVar("T")

# Most emissions of one record.
TRIES_MAX = 3
DEPTH_MAX = 3
# Pause of a program before it retries.
AGAIN_S = 1.0
# Longest wait for outcomes after the last emission, the last fault and the timeout.
NEVER_S = 200.0
# After this time a worker skips the records of a source that it cannot join, as the source may be closed.
GIVEN_UP_S = 100.0


class World(Protocol):
    """The environment that programs need."""

    case: Case
    scheduler: Scheduler
    transcript: Transcript
    trees: Trees
    is_over: bool

    def new_client(self, owner: str) -> AckerClient: ...
    def opened_at(self, session: int, batch: int) -> float: ...
    def check_flush_error(self, program: str, error: AckerError, updates: list[Update], began_at: float) -> None: ...
    def check_start_error(self, program: str, error: AckerError, began_at: float) -> None: ...
    def check_join_error(self, program: str, session: int, error: AckerError, began_at: float) -> None: ...


@dataclass(frozen=True)
class Message:
    """A record on its way to a worker."""

    session: int
    root: int
    edge: int
    depth: int
    has_failed: bool = False


class Program:
    """Base of sources and workers: a client, and how to handle its errors."""

    def __init__(self, world: World, name: str, mail: GreenQueue) -> None:
        self.world, self.name, self.mail = world, name, mail
        assert world.case.programs is not None
        self.plan: Programs = world.case.programs
        self.dice = random.Random(f"{world.case.seed} program {name}")
        self.client = world.new_client(name)
        # Records to send on after the next flush.
        self._held_back: list[Message] = []
        self._since_flush = 0

    @property
    def now(self) -> float:
        return self.world.scheduler.now

    def say(self, line: str) -> None:
        self.world.transcript.say(f"{self.name}: {line}")

    def send_on(self, message: Message, *, late: bool | None = None) -> None:
        """Send a record on, at once or after the next flush."""
        is_late = not self.plan.hands_on_early if late is None else late
        if is_late:
            self._held_back.append(message)
        else:
            self._post(message)

    def buffered(self, call: Callable[[], T]) -> T | None:
        """Repeat a buffered call until it succeeds. None if the run is over."""
        self._since_flush += 1
        while not self.world.is_over:
            updates, began_at = self.world.trees.unflushed(self.name), self.now
            try:
                return call()
            except AckerError as error:
                # The buffer was full, and the flush failed.
                self._flush_failed(error, updates, began_at)
                self.world.scheduler.sleep(AGAIN_S)
        return None

    def flush(self) -> bool:
        """Flush. Return whether everything in the buffer was delivered."""
        trees = self.world.trees
        updates, held, began_at = trees.unflushed(self.name), len(self._held_back), self.now
        try:
            self.client.flush()
        except AckerError as error:
            self._flush_failed(error, updates, began_at)
            return False
        trees.flushed(self.name, updates, self.now)
        self._since_flush = 0
        ready, self._held_back = self._held_back[:held], self._held_back[held:]
        for message in ready:
            self._post(message)
        return True

    def is_due(self) -> bool:
        every = self.plan.flush_every
        return bool(self._since_flush) and (self._since_flush >= every or self.dice.random() < self.plan.flush_share)

    def _flush_failed(self, error: AckerError, updates: list[Update], began_at: float) -> None:
        self.say(f"its flush fails: {error}")
        self.world.check_flush_error(self.name, error, updates, began_at)
        if not isinstance(error, RETRYABLE):
            self.world.trees.refused(self.name, updates)

    def _post(self, message: Message) -> None:
        delay_s = 0.001 + 0.02 * self.dice.random()
        self.world.scheduler.after(delay_s, lambda: self.mail.put(message))


class PlainSource(Program):
    """A program that emits records, and replays those that were not ACKED."""

    def __init__(self, world: World, number: int, mail: GreenQueue) -> None:
        super().__init__(world, f"source {number}", mail)
        self.session = 0
        self.is_done = False
        self._todo = [(record, 1) for record in range(1, self.plan.roots + 1)]
        self._tries: dict[int, int] = {}
        self._last_emission_at = 0.0
        self.watched_at = self.heard_at = 0.0
        # (from, until) between two watches.
        self._unwatched: list[tuple[float, float]] = []
        self.is_watching = False

    def run(self) -> None:
        """Run from opening to closing the source."""
        self._open()
        if self.plan.watches_beside:
            self.world.scheduler.spawn(self.name, "its watch", self._watch_to_the_end)
            self._emit_to_the_end()
        else:
            self._emit_and_watch()
        while not self.is_done:
            self.world.scheduler.sleep(AGAIN_S)
        self.client.close_source()
        self.client.close()
        self.say("is done")

    def _open(self) -> None:
        while True:
            began_at = self.now
            try:
                self.session = self.client.open_source(
                    self.name, lease_s=self.world.case.lease_s, message_timeout_s=self.plan.timeout_s
                )
            except AckerError as error:
                self.world.check_start_error(self.name, error, began_at)
                self.world.scheduler.sleep(AGAIN_S)
            else:
                self.say("is open")
                self.watched_at = self.now
                return

    def _emit_and_watch(self) -> None:
        """Emit, flush and watch in one loop, as the documents show it."""
        while not self.is_done:
            if self._todo and self.dice.random() < 0.8:
                self._emit()
            if self.is_due() or (self._since_flush and not self._todo):
                self.flush()
            self._watch(self.dice.choice((0.0, 0.1, self.plan.pace_s)) if self._todo else 2.0)

    def _emit_to_the_end(self) -> None:
        """Emit in one thread while another one watches."""
        while not self.is_done:
            if self._todo:
                self._emit()
            if self.is_due() or (self._since_flush and not self._todo):
                self.flush()
            self.world.scheduler.sleep(self.dice.random() * self.plan.pace_s)

    def _watch_to_the_end(self) -> None:
        while not self.is_done:
            self._watch(self.dice.choice((0.5, 2.0, 5.0)))

    def _emit(self) -> None:
        world = self.world
        record, tried = self._todo.pop(0)
        anchor = self.buffered(self.client.emit)
        assert anchor is not None
        root, edge = anchor
        source: Any = self.client._state().source()
        pin = next((pin for pin in source.pins if pin.has(_column(root)).any()), None)
        if pin is None:
            raise Violation("no pin", f"{self.name} does not know where a root lives that it has just emitted")
        placement = pin.placement
        replicas = placement.replicas_of(_column(root))[0]
        servers = tuple(placement.members[index].id for index in replicas.tolist())
        self._last_emission_at = self.now
        self._tries[root] = tried
        since = min(self.now, world.opened_at(self.session, pin.batch)) - 1e-6
        world.transcript.name_root(root, f"{self.name.replace('source ', 's')}r{record}t{tried}")
        tree = Tree(self.name, record, root, self.now, since, self.plan.timeout_s, servers)
        world.trees.emitted(tree, edge, self.name)
        self.say(f"emits record {record}, on servers {servers}")
        self.send_on(Message(self.session, root, edge, 1))
        if self.plan.regret_share and self.dice.random() < self.plan.regret_share:
            self.say(f"fails {world.transcript.root(root)} itself")
            world.trees.failed_record(self.name, root)
            self.buffered(lambda: self.client.fail(root, "not meant"))

    def flush(self) -> bool:
        # Counts as watching: a flush that waits for one server renews the leases at the others.
        self.is_watching = True
        has_flushed = super().flush()
        self.is_watching = False
        self.watched_at = self.now
        return has_flushed

    def _watch(self, wait_s: float) -> None:
        trees = self.world.trees
        self._unwatched.append((self.heard_at, self.now))
        self.is_watching = True
        result: Any = self.client.watch(wait_s)
        self.is_watching = False
        self.watched_at = self.heard_at = self.now
        for outcome in result.outcomes:
            self._hear(trees.ended(outcome.root_id, outcome.verdict, outcome.reason, self.now, self._unwatched_s))
        pending = trees.pending_of(self.name)
        self.is_done = not pending and not self._todo and not self._since_flush
        last_s = max(self._last_emission_at, self.world.case.troubled_until)
        if pending and self.now > last_s + self.plan.timeout_s + NEVER_S:
            raise Violation("no outcome", f"{', '.join(map(str, pending))}: emitted, and never answered")

    def _unwatched_s(self, since: float) -> float:
        """Return how many seconds since ``since`` this source did not watch. A flush counts as unwatched time, since it
        brings no outcomes."""
        return sum(max(0.0, end - max(start, since)) for start, end in self._unwatched)

    def _hear(self, tree: Tree) -> None:
        assert tree.outcome is not None
        self.say(f"record {tree.record} is {tree.outcome.name}")
        tried = self._tries.pop(tree.root)
        if tree.outcome != Verdict.ACKED and tried < TRIES_MAX:
            self._todo.append((tree.record, tried + 1))


class Worker(Program):
    """A program that takes records, joins their sources, and acks or fails the records.

    ``life``: 1 for the worker's first process, 2 for the process that replaces it after a kill, and so on.
    """

    def __init__(self, world: World, number: int, mail: GreenQueue, life: int = 1) -> None:
        super().__init__(world, f"worker {number}", mail)
        self.number, self.life = number, life
        self.dice = random.Random(f"{world.case.seed} worker {number} life {life}")
        self._joined = set[int]()

    def run(self) -> None:
        while not self.world.is_over:
            try:
                message: Message = self.mail.get(timeout=AGAIN_S)
            except queue.Empty:
                if self._since_flush:
                    self.flush()
                continue
            self._work(message)
            if self.is_due():
                self.flush()
        self.client.close()

    def _work(self, message: Message) -> None:
        dice, plan = self.dice, self.plan
        if message.session not in self._joined and not self._join(message.session):
            return
        self.world.scheduler.sleep(plan.work_s * dice.random() * (20.0 if dice.random() < plan.slow_share else 1.0))
        if dice.random() < plan.reset_share:
            self.world.trees.touched(self.name, message.root)
            self.buffered(partial(self.client.reset_timeout, message.root))
        if dice.random() < plan.fail_share and not message.has_failed:
            self._fail(message)
            return
        self._ack(message)

    def _ack(self, message: Message) -> None:
        count = 0 if message.depth >= DEPTH_MAX else self.dice.choice((0, 1, 1, 2, 3))
        children = [self.client.new_edge() for _ in range(count)]
        self.world.trees.acked_record(self.name, message.root, message.edge, children)
        self.buffered(lambda: self.client.ack(message.root, message.edge, emitted=children))
        for edge in children:
            self.send_on(Message(message.session, message.root, edge, message.depth + 1, message.has_failed))

    def _fail(self, message: Message) -> None:
        """Fail a record with its edge, or without. Without it, another program may still ack the record."""
        has_edge = self.dice.random() < 0.3
        self.say(f"fails {self.world.transcript.root(message.root)}{' and its edge' if has_edge else ''}")
        self.world.trees.failed_record(self.name, message.root)
        edge = message.edge if has_edge else 0
        self.buffered(lambda: self.client.fail(message.root, "bad record", edge=edge))
        if not has_edge:
            # Sent after the flush, so that the failure is known before another program takes the record.
            passed_on = Message(message.session, message.root, message.edge, message.depth, has_failed=True)
            self.send_on(passed_on, late=True)

    def _join(self, session: int) -> bool:
        first_at = self.now
        while not self.world.is_over:
            began_at = self.now
            try:
                self.client.join(session)
            except UnknownSource as error:
                self.say(f"cannot join: {error}")
                self.world.check_join_error(self.name, session, error, began_at)
                if self.now - first_at > GIVEN_UP_S:
                    return False
            except AckerError as error:
                self.say(f"cannot join: {error}")
            else:
                self._joined.add(session)
                return True
            self.world.scheduler.sleep(AGAIN_S)
        return False


class Plain:
    """All programs of one run."""

    def __init__(self, world: World) -> None:
        assert world.case.programs is not None
        self._world, plan = world, world.case.programs
        self._mail = GreenQueue(world.scheduler)
        self.sources = [PlainSource(world, number, self._mail) for number in range(1, plan.sources + 1)]
        self.workers = {number: Worker(world, number, self._mail) for number in range(1, plan.workers + 1)}

    def start(self) -> None:
        for worker in self.workers.values():
            self._world.scheduler.spawn(worker.name, "", worker.run)
        for source in self.sources:
            self._world.scheduler.spawn(source.name, "", partial(self._run, source))

    def source_of(self, session: int) -> PlainSource | None:
        return next((source for source in self.sources if source.session == session), None)

    def lose(self, number: int, down_s: float) -> None:
        """Kill a worker, losing its buffer, and start another one in its place."""
        world, dead = self._world, self.workers[number]
        world.transcript.say(f"{dead.name} dies")
        world.trees.died(dead.name)
        world.scheduler.kill(dead.name)

        def back() -> None:
            if not world.is_over:
                world.transcript.say(f"{dead.name} is back")
                self.workers[number] = Worker(world, number, self._mail, dead.life + 1)
                world.scheduler.spawn(dead.name, "", self.workers[number].run)

        world.scheduler.after(down_s, back)

    def _run(self, source: PlainSource) -> None:
        source.run()
        if all(each.is_done for each in self.sources):
            self._world.is_over = True


def _column(root: int) -> Any:
    return np.array([root], np.uint64)
