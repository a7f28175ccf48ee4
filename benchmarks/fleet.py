"""Fleet: a cost model of one job on many executors, in virtual time.

This is a model. No fleet of this size was ever run. It has three sources:

- Rules of the code itself: ``place`` places the batches, ``shares_of`` and ``pack`` cut the reports of sampled tasks,
  and ``Cluster`` decides which server is asked for the view while one is silent.
- Constants that ``costs`` measures on this machine: the server's processor time for a report, a connection and a view.
- An assumed job (``Job``). Each executor has four Python workers, and each worker runs one task of each stage.

``switches`` are rules that do not exist yet. The first part to fail is the one with the highest share of its limit.

    python -m benchmarks.fleet [--quick]
"""

from __future__ import annotations

import argparse
import json
import logging
import random
import statistics
import sys
from collections import Counter
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np

from acker_client import Settings
from acker_client.cluster.membership import Cluster
from acker_client.cluster.replicas import LOOK_S, REFRESH_S
from acker_client.errors import Unavailable
from acker_client.pins import Pin, shares_of
from acker_client.rpc.side_by_side import InTurn
from acker_client.rpc.transport import IDLE_S
from acker_protocol import ids, reports
from acker_protocol.ids import SLOTS, Column
from acker_protocol.messages import PROTOCOL_VERSION, Hello, HelloReply, Identity, InitScope, ListedMember, ViewReply
from acker_protocol.placement import SPREAD, Member, Placement, place
from benchmarks import machine
from benchmarks.costs import BASE, SESSION, Costs, measure_costs, view_of

SERVERS, EXECUTORS = (1, 10, 100), (100, 1_000, 10_000)
# A server's default for --max-connections, and for --zookeeper-session-s.
CONNECTIONS_MAX, LOST_AFTER_S = 10_000, 10.0
IDLE_CHOICES_S = (1.0, 5.0, 10.0, 60.0, 600.0)


@dataclass(frozen=True, slots=True)
class Job:
    """One job. A batch every ``period_s``, with one report from each task of each stage. The first stage reads."""

    workers_an_executor: int = 4
    roots_a_task: int = 1_000
    stages: int = 3
    period_s: float = 10.0
    replicas: int = 2


@dataclass(frozen=True, slots=True)
class Rules:
    """``idle_s``: when unused connections are closed. Switches, which do not exist: ``nearby``: numbers near each other
    share a slot. ``forwards``: one process of each executor has the connections of its workers, and sends their reports
    in one message, which is the best case."""

    idle_s: float = IDLE_S
    spread: int = SPREAD
    nearby: bool = False
    forwards: bool = False


# -- reports and connections


@dataclass(frozen=True, slots=True)
class Met:
    """The members that a task sends to: their ids, messages, and the entries in them."""

    ids: list[int]
    messages: list[int]
    entries: list[int]


def met(pin: Pin, numbers: Column, *, reads: bool) -> Met:
    """Return what one task sends, by the rules of the client."""
    roots = ids.root_ids(pin.first, numbers)
    covered = ((int(numbers[0]), int(numbers[-1]) + 1),) if reads else ()
    scope = InitScope(pin.session, pin.batch, np.array(covered, np.uint64)) if reads else None
    entries = reports.fold(roots, ids.edge0_column(roots))
    shares = shares_of((pin,), entries, scope)
    packed = [len(reports.pack(Identity(1, 2), share.entries, scope)) for share in shares]
    return Met([share.member.id for share in shares], packed, [len(share.entries) for share in shares])


def met_nearby(placement: Placement, numbers: Column, up_to: int) -> Met:
    """Return what one task would send if the slot of a number were its place in the batch. The slots are dealt out to
    the members in order, so that neighbours share members."""
    slots = numbers.astype(np.int64) * SLOTS // up_to
    members = len(placement.members)
    replicas = (slots[:, None] * members // SLOTS + np.arange(placement.replicas.shape[1])) % members
    indices, entries = np.unique(replicas, return_counts=True)
    return Met([placement.members[each].id for each in indices], [1] * len(indices), entries.tolist())


def run_batches(servers: int, executors: int, job: Job, rules: Rules, sample: int, seed: int = 1) -> dict[str, float]:
    """Run batches in virtual time. Each sampled worker stands for an equal part of all workers."""
    draw, view = np.random.default_rng(seed), view_of(servers)
    workers = executors * job.workers_an_executor
    up_to, each = workers * job.roots_a_task, workers / sample
    batches = 1 + int(max(12, 1.2 * rules.idle_s / job.period_s))
    used_at = np.full((sample, servers), -np.inf)
    held, peak, opened = np.zeros(servers), 0.0, np.zeros(servers)
    most: dict[str, float] = dict.fromkeys(("messages", "entries", "members"), 0.0)
    for number in range(batches):
        placement = place(view, SESSION, number, min(job.replicas, servers), rules.spread)
        pin = Pin(SESSION, number, BASE + number * up_to, up_to, placement)
        for stage in range(job.stages):
            now = (number + stage / job.stages) * job.period_s
            sent = np.zeros((2, servers))
            # Tasks go to any worker, and only the first stage has neighbours.
            tasks = draw.permutation((np.arange(sample) + draw.random(sample)) * each).astype(int)
            for worker, first in enumerate((tasks * job.roots_a_task).tolist()):
                numbers = np.arange(first, first + job.roots_a_task, dtype=np.uint64)
                if stage:
                    numbers = np.sort(draw.integers(0, up_to, job.roots_a_task, dtype=np.uint64))
                here = met_nearby(placement, numbers, up_to) if rules.nearby else met(pin, numbers, reads=not stage)
                is_open = now - used_at[worker, here.ids] < rules.idle_s
                opened[here.ids] += ~is_open
                used_at[worker, here.ids] = now
                sent[:, here.ids] += [here.messages, here.entries]
                if not stage:
                    most["members"] = max(most["members"], len(here.ids))
            for name, amounts in zip(("messages", "entries"), sent, strict=True):
                key = name if stage else f"{name}_reading"
                most[key] = max(most.get(key, 0.0), float(amounts.max()) * each)
            counted = (now - used_at < rules.idle_s).sum(axis=0)
            peak = max(peak, float(counted.max()))
            held += counted
    shared = job.workers_an_executor if rules.forwards else 1
    messages = {name: amount / shared for name, amount in most.items() if name.startswith("messages")}
    return (
        most
        | messages
        | {
            "connections_peak": peak * each / shared,
            "connections_mean": float(held.mean()) / (batches * job.stages) * each / shared,
            "opened_a_batch_mean": float(opened.mean()) / batches * each / shared,
        }
    )


# -- views


class Silent:
    """The servers of one batch, as their clients see them in virtual time. One of them is silent, and a new view
    without it comes after ``LOST_AFTER_S``. ``asked``: the times of calls for the view, by address."""

    def __init__(self, servers: int, number: int) -> None:
        self.view, self.now = view_of(servers), 0.0
        self.placement = place(self.view, SESSION, number, min(2, servers), SPREAD)
        self.lost = self.placement.members[-1]
        self.asked: list[tuple[float, str]] = []

    def connect(self, address: str) -> Any:
        return SilentOrNot(self, address)

    def sleep(self, seconds: float) -> None:
        self.now += seconds


@dataclass(frozen=True, slots=True)
class SilentOrNot:
    """The transport to one of them."""

    servers: Silent
    address: str

    def hello(self, hello: Hello, timeout_s: float) -> HelloReply:
        self._answer()
        member = next(each for each in self.servers.view.members if each.address == self.address)
        return HelloReply(PROTOCOL_VERSION, "1", 1, 1 << 20, 64, member.id, member.generation, epoch=1)

    def view(self, timeout_s: float) -> ViewReply:
        self._answer()
        self.servers.asked.append((self.servers.now, self.address))
        is_new = self.servers.now >= LOST_AFTER_S
        members = [each for each in self.servers.view.members if not is_new or each != self.servers.lost]
        return ViewReply(1, 2 if is_new else 1, tuple(map(ListedMember, members)))

    def _answer(self) -> None:
        if self.address == self.servers.lost.address:
            raise Unavailable("silent")


def ask_for_views(servers: int, clients: int) -> dict[str, float]:
    """Let each of ``clients`` processes wait for the silent server in a report, as ``ask_members`` does."""
    if servers == 1:
        return {"views_a_client": 0.0, "busiest_share": 0.0, "calls_a_s": 0.0, "noticed_s": 0.0, "noticed_s_max": 0.0}
    dice, cells, noticed = random.Random(3), Counter[tuple[int, str]](), []
    asked = 0
    for _ in range(clients):
        world = Silent(servers, 1)
        cluster = Cluster(
            Settings((world.view.members[0].address,)),
            world.connect,
            lambda world=world: world.now,  # type: ignore[misc]
            world.sleep,
            dice.random,
            InTurn(),
        )
        # Tasks reach the end of their input at different times, and retry the silent server all the time.
        world.now = dice.random()
        cluster.hear_of(world.placement)
        for member in world.placement.members:
            greet_once(cluster, member)
        world.now += REFRESH_S
        while not cluster.gone(world.lost):
            greet_once(cluster, world.lost)
            cluster.refresh()
            world.now += LOOK_S
        noticed.append(world.now - LOST_AFTER_S)
        asked += len(world.asked)
        cells.update((int(at), address) for at, address in world.asked)
    (second, _), calls = cells.most_common(1)[0]
    in_that_second = sum(count for (at, _), count in cells.items() if at == second)
    return {
        "views_a_client": asked / clients,
        "busiest_share": calls / in_that_second,
        "calls_a_s": calls / clients,
        "noticed_s": statistics.mean(noticed),
        "noticed_s_max": max(noticed),
    }


def greet_once(cluster: Cluster, member: Member) -> None:
    try:
        cluster.caller_of(member).greet(cluster.patience(1.0).deadline)
    except Unavailable:
        return


# -- the table


def cell(size: tuple[int, int], job: Job, rules: Rules, costs: Costs, sample: int, clients: int) -> dict[str, Any]:
    """Return the figures of one size, and the share of its limit that each part takes."""
    servers, executors = size
    ran = run_batches(servers, executors, job, rules, sample)
    views = ask_for_views(servers, clients)
    stage_s = {
        name: costs.report_s * ran[f"messages{key}"] + costs.entry_s * ran[f"entries{key}"]
        for name, key in (("reading", "_reading"), ("after_a_hop", ""))
    }
    processes = executors * (1 if rules.forwards else job.workers_an_executor)
    view_calls = views["calls_a_s"] * processes
    stage_limit_s = job.period_s / job.stages
    shares = {
        "connections": ran["connections_peak"] / CONNECTIONS_MAX,
        "reports": max(stage_s.values()) / stage_limit_s,
        "views": view_calls * costs.view_s,
    }
    first = max(shares, key=lambda part: shares[part])
    return {
        "servers": servers,
        "executors": executors,
        "members_a_reading_task": ran["members"],
        "connections_peak": ran["connections_peak"],
        "connections_mean": ran["connections_mean"],
        "opened_a_batch_mean": ran["opened_a_batch_mean"],
        "calls_a_s": max(ran["messages"], ran["messages_reading"]) / stage_limit_s,
        "processor_s_a_stage": stage_s,
        "view_calls_a_s": view_calls,
        "lost_server_noticed_s": [views["noticed_s"], views["noticed_s_max"]],
        "shares_of_limits": shares,
        "first_to_fail": first if shares[first] > 1 else "",
        "nearest_to_its_limit": first,
    }


def measure(quick: bool) -> dict[str, Any]:
    job, costs, rules = Job(), measure_costs(quick), Rules()
    # The warnings of the clients that wait for the silent server.
    logging.getLogger("acker_client").setLevel(logging.ERROR)
    sample, clients = (2, 20) if quick else (4, 200)
    sizes = [(servers, executors) for servers in SERVERS for executors in EXECUTORS]
    fused, nearby = replace(job, stages=1), replace(rules, nearby=True)
    switches = {
        "as the code is": (job, rules),
        "numbers nearby": (job, nearby),
        "a forwarder an executor": (job, replace(rules, forwards=True)),
        "no hop": (fused, rules),
        "no hop, numbers nearby": (fused, nearby),
        "no hop, numbers nearby, spread 32": (fused, replace(nearby, spread=32)),
    }
    most = sizes[-1]
    closing = []
    for idle_s in IDLE_CHOICES_S:
        ran = run_batches(*most, job, replace(rules, idle_s=idle_s), sample)
        opening = {
            name: cost * ran["opened_a_batch_mean"] / job.period_s
            for name, cost in (("plain", costs.connection_s), ("tls", costs.tls_connection_s))
        }
        closing.append({"idle_s": idle_s, "connections_mean": ran["connections_mean"], "processor_share": opening})
    return {
        "job": asdict(job),
        "costs": asdict(costs),
        "rules": asdict(rules),
        "sizes": [cell(size, job, rules, costs, sample, clients) for size in sizes],
        "switches": {
            name: cell(most, *each, costs, 16 * sample if each[1].nearby else sample, clients)
            for name, each in switches.items()
        },
        "closing": closing,
    }


HEAD = ("servers", "executors", "connections", "calls/s", "s a stage, reading, hop", "view calls/s", "first to fail")


def row(figures: dict[str, Any], name: str = "") -> list[str]:
    stage_s, first = figures["processor_s_a_stage"], figures["nearest_to_its_limit"]
    share = f"{figures['shares_of_limits'][first]:.0%} of its limit"
    failing = f"{first}, {share}" if figures["first_to_fail"] else f"none ({first}: {share})"
    sizes = [name] if name else [f"{figures['servers']}", f"{figures['executors']:,}"]
    return [
        *sizes,
        f"{figures['connections_peak']:,.0f}",
        f"{figures['calls_a_s']:,.0f}",
        f"{stage_s['reading']:.2f}, {stage_s['after_a_hop']:.2f}",
        f"{figures['view_calls_a_s']:,.0f}",
        failing,
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="smaller samples; do not quote its figures")
    figures = measure(parser.parse_args().quick)
    print(json.dumps({"machine": machine.describe(), "fleet": figures}, indent=1))
    tables = (
        [list(HEAD), *map(row, figures["sizes"])],
        [["rules", *HEAD[2:]], *(row(each, name) for name, each in figures["switches"].items())],
    )
    for rows in tables:
        print("\n".join(f"| {' | '.join(cells)} |" for cells in rows), file=sys.stderr)


if __name__ == "__main__":
    main()
