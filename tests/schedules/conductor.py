"""Conductor: runs one schedule. It commands the client processes, injects the faults, and informs the oracle.

A moment is a count of completed steps. If nothing moves for a while, the moment advances nevertheless, so that a fault
that blocks every process is followed by its repair.
"""

from __future__ import annotations

import time
from collections import defaultdict, deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

from tests.faults.proxy import Proxy
from tests.schedules.cluster import FORKS, Cluster, Forked, Zoo, end_with_parent, log_to
from tests.schedules.oracle import Oracle
from tests.schedules.schedule import HEALS, Fate, Fault, Node, Schedule
from tests.schedules.worker import work

# Options of each client. It leaves out a server after replica_wait_s without an answer, if another replica answers.
OPTIONS = {"budget_s": 5.0, "call_timeout_s": 2.0, "replica_wait_s": 4.0}
CHUNK = 16
# Emit more records only while fewer than this many are being processed.
UNDER_WAY = 60
STALL_S = 1.0
# Each stall advances the moment by this fraction of all steps.
STALL_PARTS = 20
# How long to wait for the last outcomes after the latest timeout, and then for duplicate outcomes.
LATE_S = 60.0
LINGER_S = 1.0
READY_S = 60.0
# A run that takes longer is stuck.
STUCK_S = 400.0


def begin_worker(pipe: Connection, log: Path, *given: Any) -> None:
    """Run a client. Entry point of a client's process."""
    log_to(log)
    end_with_parent()
    work(pipe, *given)


@dataclass
class Client:
    """A client's process, and its pending tasks."""

    pipe: Connection
    process: Forked
    todo: deque[Task] = field(default_factory=deque)
    task: Task | None = None
    joins: list[int] = field(default_factory=list)


@dataclass
class Record:
    """A record that a process has to handle."""

    root: int
    edge: int
    node: Node
    fails: bool


@dataclass
class Task:
    """One command: trees to emit, records to handle, or sources to join.

    ``roots``: root records that are emitted, but not yet handed on to the processes that handle them.
    """

    trees: tuple[Node, ...] = ()
    records: list[Record] = field(default_factory=list)
    joins: list[int] = field(default_factory=list)
    begun_s: float = 0.0
    roots: list[Record] = field(default_factory=list)


@dataclass
class Result:
    schedule: Schedule
    findings: list[str]
    transcript: list[str]
    seconds: float
    outcomes: dict[str, int]
    excused: int
    troubles: int


class Conductor:
    """Runs one schedule. ``mutant``: name of a patch in ``mutants`` that breaks the clients; "" for none."""

    def __init__(self, schedule: Schedule, folder: Path, zoo: Zoo, mutant: str = "") -> None:
        self._schedule = schedule
        self._zoo = zoo
        self._began = time.monotonic()
        self._oracle = Oracle(schedule.replicas)
        self._cluster = Cluster(folder, f"{zoo.address}/{folder.name}", schedule.ids)
        self._lines: list[str] = []
        self._steps = self._stalls = self._under_way = self._troubles = 0
        self._moved = self._struck_s = self._began
        self._faults = deque(schedule.faults)
        self._striking: Future[None] | None = None
        self._struck: Fault | None = None
        self._held: list[Record] = []
        self._listening: set[int] = set()
        self._strikes = ThreadPoolExecutor(1)
        self._waves = [deque(each.waves) for each in schedule.emitters]
        self._may_time_out_s = 0.0
        self._paths = {
            (fault.worker, fault.server): Proxy(self._cluster.addresses[fault.server])
            for fault in schedule.faults
            if fault.worker >= 0
        }
        self._clients: list[Client] = []
        self._mutant = mutant
        self._folder = folder

    def run(self) -> Result:
        """Run the schedule and return the result with the oracle's findings."""
        try:
            self._start()
            self._work()
            self._await_outcomes()
            self._oracle.finish()
        except Exception as error:  # noqa: BLE001 - whatever it is, the run failed, and its transcript is wanted
            self._say(f"stopped: {error!r}")
            self._oracle.findings.append(f"stopped: {error!r}")
        finally:
            self._close()
        return Result(
            self._schedule,
            self._oracle.findings,
            self._lines,
            time.monotonic() - self._began,
            dict(self._oracle.outcomes),
            self._oracle.excused,
            self._troubles,
        )

    # -- processes

    def _start(self) -> None:
        self._cluster.start(*range(self._schedule.servers))
        for id in range(self._schedule.servers):
            self._cluster.await_view(id, lambda active: active >= set(range(self._schedule.servers)))
        servers = [self._cluster.addresses[id] for id in range(self._schedule.servers)]
        options = OPTIONS | {"replicas": self._schedule.replicas}
        for number in range(self._schedule.workers):
            paths = {
                self._cluster.addresses[server]: path.address
                for (worker, server), path in self._paths.items()
                if worker == number
            }
            here, there = FORKS.Pipe()
            log = self._folder / f"client-{number}.log"
            given = (there, log, servers, options, paths, self._mutant)
            self._clients.append(Client(here, Forked(begin_worker, *given)))
            there.close()
        sessions = {}
        for number, emitter in enumerate(self._schedule.emitters):
            sessions[number] = self._ask(
                number,
                ("open", (f"source-{number}", emitter.lease_s, emitter.timeout_s), {}),
            )
            if not emitter.watches_from:
                self._listen(number)
        for number, client in enumerate(self._clients):
            joins = [session for of, session in sessions.items() if of != number]
            if self._schedule.never_joins:
                continue
            if self._schedule.joins_late and number not in sessions:
                client.joins = joins
            else:
                self._ask(number, ("join", (joins,), {}))
        self._moved = time.monotonic()
        self._say("started")

    def _ask(self, number: int, command: tuple[Any, ...]) -> Any:
        pipe = self._clients[number].pipe
        pipe.send(command)
        deadline = time.monotonic() + READY_S
        while time.monotonic() < deadline:
            if not pipe.poll(max(0.0, deadline - time.monotonic())):
                break
            kind, *given = pipe.recv()
            if kind == "answer":
                how, what = given
                if how != "done":
                    raise RuntimeError(f"process {number}: {what}")
                return what
            self._hear(number, kind, given)
        raise RuntimeError(f"process {number} did not {command[0]}")

    def _close(self) -> None:
        self._strikes.shutdown(wait=False, cancel_futures=True)
        for client in self._clients:
            client.process.kill()
            client.process.wait()
        self._cluster.close()
        for path in self._paths.values():
            path.close()

    def _listen(self, number: int) -> None:
        self._ask(number, ("listen", (), {"aside": self._schedule.emitters[number].watches_aside}))
        self._listening.add(number)
        self._say(f"process {number} watches")

    # -- the loop

    def _work(self) -> None:
        deadline = time.monotonic() + STUCK_S
        while not self._is_done:
            if time.monotonic() > deadline:
                raise RuntimeError(f"nothing ends: {[client.task for client in self._clients]}")
            self._strike_next()
            self._emit_next()
            self._listen_next()
            for number, client in enumerate(self._clients):
                if client.task is None and client.todo:
                    if client.joins:
                        client.todo.appendleft(Task(joins=client.joins))
                        client.joins = []
                    self._tell(number, client.todo.popleft())
            self._receive(0.05)
            if time.monotonic() - self._moved > STALL_S and self._striking is None:
                self._stalls += 1
                self._moved = time.monotonic()
        self._say("all is done and mended")

    @property
    def _is_done(self) -> bool:
        return (
            not self._faults
            and self._striking is None
            and not self._held
            and len(self._listening) == len(self._schedule.emitters)
            and not any(self._waves)
            and not any(client.task or client.todo for client in self._clients)
        )

    @property
    def _moment(self) -> int:
        return self._steps + self._stalls * (1 + self._schedule.steps // STALL_PARTS)

    def _await_outcomes(self) -> None:
        deadline = max(time.monotonic(), self._may_time_out_s) + LATE_S
        while self._oracle.pending and time.monotonic() < deadline:
            self._receive(0.1)
        linger = time.monotonic() + LINGER_S
        while time.monotonic() < linger:
            self._receive(0.1)

    def _receive(self, wait_s: float) -> None:
        ready = wait([client.pipe for client in self._clients], wait_s)
        for number, client in enumerate(self._clients):
            try:
                while client.pipe in ready and client.pipe.poll():
                    kind, *given = client.pipe.recv()
                    self._hear(number, kind, given)
            except EOFError:
                raise RuntimeError(f"process {number} ended by itself: see its log") from None

    # -- commands to clients, and their messages

    def _listen_next(self) -> None:
        """Let emitters begin to watch if their moment has come, or if no fault and no wave is left."""
        for number, emitter in enumerate(self._schedule.emitters):
            is_due = self._moment >= emitter.watches_from or not (self._faults or any(self._waves))
            if is_due and number not in self._listening and self._clients[number].task is None:
                self._listen(number)

    def _emit_next(self) -> None:
        for number, waves in enumerate(self._waves):
            client = self._clients[number]
            is_emitting = any(task.trees for task in (*client.todo, *([client.task] if client.task else [])))
            # Records under way may be blocked. The next wave then still comes at its moment.
            if waves and not is_emitting and self._under_way < UNDER_WAY and self._is_due(waves[0].at):
                client.todo.append(Task(trees=waves.popleft().trees))

    def _is_due(self, at: int) -> bool:
        """Whether the moment of a wave has come. Earlier faults go first."""
        if self._striking is not None or (self._faults and self._faults[0].at < at):
            return False
        return self._moment >= at or not any(client.task or client.todo for client in self._clients)

    def _tell(self, number: int, task: Task) -> None:
        client = self._clients[number]
        client.task, task.begun_s = task, time.monotonic()
        if task.trees:
            self._say(f"process {number} emits {len(task.trees)}")
            client.pipe.send(("emit", (len(task.trees),), {}))
            return
        if task.joins:
            self._say(f"process {number} joins")
            client.pipe.send(("join", (task.joins,), {}))
            return
        acks = [each for each in task.records if not each.fails]
        fails = [each for each in task.records if each.fails]
        for each in acks:
            self._oracle.begin_ack(each.root, each.edge, len(each.node.children))
        for each in fails:
            self._oracle.begin_fail(each.root)
        self._say(f"process {number} acks {len(acks)}, fails {len(fails)}")
        acked = [(each.root, each.edge, len(each.node.children)) for each in acks]
        given = (acked, [(each.root, each.edge) for each in fails])
        client.pipe.send(("handle", given, {"early": self._schedule.hands_on_early}))

    def _hear(self, number: int, kind: str, given: list[Any]) -> None:
        client = self._clients[number]
        if kind == "outcomes":
            for root, verdict, reason in given[0]:
                self._oracle.hear(root, verdict, reason, number)
                if verdict not in ("ACKED", "FAILED"):
                    self._say(f"process {number} hears {root:#x} {verdict} ({reason})")
        elif kind == "raised":
            self._say(f"process {number} raised: {given[0]}")
            self._oracle.findings.append(f"raised: process {number}: {given[0]}")
        elif kind == "emitted":
            self._take_anchors(number, given[0])
        elif kind == "handled":
            self._take_children(number, given[0])
        elif kind == "answer":
            how, troubles = given
            if how == "raised":
                raise RuntimeError(f"process {number}: {troubles}")
            self._end_task(client, number, how, troubles)

    def _take_anchors(self, number: int, anchors: list[tuple[int, int]]) -> None:
        task = self._clients[number].task
        assert task is not None
        timeout_s = self._schedule.emitters[number].timeout_s
        for (root, edge), tree in zip(anchors, task.trees, strict=False):
            self._oracle.emit(root, edge, number, task.begun_s, timeout_s)
            task.roots.append(Record(root, edge, tree, fails=False))
        if self._schedule.hands_on_early:
            self._hand_on(task)
        # Upper bound: the init was sent before now.
        self._may_time_out_s = time.monotonic() + timeout_s

    def _hand_on(self, task: Task) -> None:
        roots, task.roots = task.roots, []
        self._put(roots)

    def _take_children(self, number: int, edges: list[list[int]]) -> None:
        task = self._clients[number].task
        assert task is not None
        acks = [each for each in task.records if not each.fails]
        for each, children in zip(acks, edges, strict=True):
            self._oracle.derive(each.root, children)
            self._put(
                [
                    Record(each.root, edge, node, fails=False)
                    for edge, node in zip(children, each.node.children, strict=True)
                ]
            )

    def _end_task(self, client: Client, number: int, how: str, troubles: list[str]) -> None:
        task, client.task = client.task, None
        assert task is not None
        self._troubles += len(troubles)
        took_s = time.monotonic() - task.begun_s
        said = "".join(f"\n        {trouble}" for trouble in troubles[:4])
        if how != "done" or troubles or took_s > 1:
            self._say(f"process {number} is {how} after {took_s:.1f} s, {len(troubles)} troubles{said}")
        self._oracle.end_call(number, how, took_s, troubles)
        self._hand_on(task)
        self._steps += len(task.trees) + len(task.records)
        self._moved = time.monotonic()
        for each in task.records:
            self._under_way -= 1
            if how == "done" and each.fails:
                self._oracle.end_fail(each.root)
            elif how == "done":
                self._oracle.end_ack(each.root, each.edge, time.monotonic())
            if each.fails and each.node.fate is Fate.FAIL_THEN_ACK:
                # Another process acks it nevertheless, after the next fault.
                self._held.append(Record(each.root, each.edge, each.node, fails=False))
                self._under_way += 1
        if not self._faults and self._striking is None:
            self._release()

    def _put(self, records: list[Record]) -> None:
        """Give records to the processes that handle them."""
        chosen = defaultdict(list)
        for each in records:
            if each.node.fate is Fate.NEVER:
                continue
            each.fails = each.node.fate is not Fate.ACK
            chosen[each.node.worker].append(each)
        self._add(chosen)
        self._under_way += sum(map(len, chosen.values()))

    def _add(self, chosen: dict[int, list[Record]]) -> None:
        for worker, records in chosen.items():
            todo = self._clients[worker].todo
            for each in records:
                if not todo or todo[-1].trees or todo[-1].joins or len(todo[-1].records) >= CHUNK:
                    todo.append(Task())
                todo[-1].records.append(each)

    def _release(self) -> None:
        """Release the held records, whose trees have failed: other processes now ack them."""
        chosen = defaultdict(list)
        for each in self._held:
            chosen[each.node.again].append(each)
        self._held = []
        self._add(chosen)

    # -- faults

    def _strike_next(self) -> None:
        if self._striking is not None:
            if not self._striking.done():
                return
            self._striking.result()
            self._striking = None
            if self._struck is not None and self._struck.kind in HEALS:
                self._oracle.heal(self._struck.server, time.monotonic(), self._struck.worker)
            self._moved = self._struck_s = time.monotonic()
            self._release()
        if not self._faults:
            self._release()
        elif self._is_due_fault(self._faults[0]):
            fault = self._struck = self._faults.popleft()
            if self._schedule.hits(fault):
                self._oracle.hit(fault.server, fault.worker)
            self._striking = self._strikes.submit(self._strike, fault)

    def _is_due_fault(self, fault: Fault) -> bool:
        if time.monotonic() < self._struck_s + fault.after_s:
            return False
        is_idle = not any(client.task or client.todo for client in self._clients)
        return self._moment >= fault.at or (is_idle and not any(w and w[0].at <= fault.at for w in self._waves))

    def _strike(self, fault: Fault) -> None:
        began = time.monotonic()
        self._say(str(fault))
        self._deed(fault)()
        self._say(f"{fault} took {time.monotonic() - began:.1f} s")

    def _deed(self, fault: Fault) -> Callable[[], object]:
        cluster, zoo = self._cluster, self._zoo
        path = self._paths.get((fault.worker, fault.server))
        ways = {"to_server": fault.way != "to client", "to_client": fault.way != "to server"}
        deeds: dict[str, Callable[[], object]] = {
            "kill": lambda: cluster.kill(fault.server),
            "stop": lambda: cluster.stop(fault.server),
            "start": lambda: cluster.start(fault.server),
            "join": lambda: cluster.start(fault.server),
            "restart": lambda: cluster.restart(fault.server),
            "pause": lambda: cluster.pause(fault.server),
            "resume": lambda: cluster.resume(fault.server),
            "drain": lambda: cluster.drain(fault.server),
            "zk stop": zoo.kill,
            "zk start": zoo.start,
            "zk restart": zoo.restart,
            "zk empty": zoo.empty,
        }
        if path is not None:
            deeds |= {"cut": lambda: path.cut(**ways), "mend": path.mend, "break": path.disconnect}
        return deeds[fault.kind]

    def _say(self, line: str) -> None:
        self._lines.append(f"{time.monotonic() - self._began:7.2f} {self._steps:5d}  {line}")
