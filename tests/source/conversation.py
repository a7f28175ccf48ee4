"""Conversation: runs a source over a log in memory, with commands and effects as lines of text.

Commands, one a line (``#`` begins a comment). Indented lines below a command are its effects:

    append a 5                      partition a of the log grows by five records: a0 to a4
    compact a 3 4                   a3 and a4 are removed from the log
    revoke a                        partition a goes to another source, from the next plan on
    start [batch 4] [open 8] [retries 1] [interruptions 2] [together 2]
                                    a run begins; numbers are options of the source; "together": the batches that may be
                                    open together
    batch                           the run is asked for its next batch
    next                            of the open batches, the one after the current one becomes the current one
    work [but a1 *3]                tasks read the batch and ack its rows; a1 and those that end in 3 fail
    work until a2                   tasks die after a2: later records were read, but not acked
    settle [error]                  the batch ends, with this error of the job if one is named
    leave                           the program leaves the loop over the batches, which ends the run
    server lost | away 8s           the server restarts without its state, or cannot be reached for 8 s
    wait 5s                         time passes
    stop                            the run ends

Time is simulated, and the shard is real. The checkpoint and the dead letters, in memory, outlast a run.
"""

from __future__ import annotations

import random
import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

from acker_client import AckerError
from acker_client.source import Batch, Committed, DeadLetter, Emissions, Listener, Retry
from acker_client.source.engine.run import Run
from acker_client.source.records.in_flight import Failures
from acker_protocol.messages import Verdict
from tests.source.executors import NO_SPARK, Cluster, frame_of
from tests.source.logs import Log, LogSource, MemoryCheckpoint, MemoryLetters

# In a drawn schedule, records whose number ends in this digit always fail.
ALWAYS_BAD = "3"


class Writer(Listener):
    """Adds a line for each call of a listener."""

    def __init__(self, lines: list[str]) -> None:
        self.lines = lines

    def on_emit(self, batch: int, emitted: Emissions, is_replay: bool) -> None:
        self.lines.append(f"{'again' if is_replay else 'new'}: {names(emitted)}")

    def on_ack(self, acked: Emissions) -> None:
        self.lines.append(f"acked: {names(acked)}")

    def on_fail(self, failed: Emissions, why: Failures) -> None:
        each = [f"{name} {Verdict(why.verdicts[k]).name}: {why.reason(k)}" for k, name in enumerate(named(failed))]
        self.lines += sorted(each, key=by_number)

    def on_absent(self, absent: Emissions) -> None:
        self.lines.append(f"absent: {names(absent)}")

    def on_revoke(self, partition: str, dropped: Emissions) -> None:
        self.lines.append(f"revoked {partition}: {names(dropped)}".rstrip())

    def on_retry(self, retried: Emissions) -> None:
        self.lines.append(f"to be replayed: {names(retried)}")

    def on_dead_letter(self, dead: Emissions, why: Failures) -> None:
        self.lines.append(f"dead: {names(dead)}")


class NotedCheckpoint(MemoryCheckpoint):
    """Adds a line for each partition whose checkpoint has moved."""

    def __init__(self, lines: list[str]) -> None:
        super().__init__()
        self.lines = lines

    def save(self, committed: Mapping[str, Committed]) -> None:
        for partition, each in committed.items():
            before = self.saved.get(partition)
            if before is None or before.done != each.done:
                done = str(each.done).removeprefix("<Ranges: ").rstrip(">")
                self.lines.append(f"checkpoint {partition}: {done}")
        super().save(committed)


class NotedLetters(MemoryLetters):
    """Adds a line for each letter."""

    def __init__(self, lines: list[str]) -> None:
        super().__init__()
        self.lines = lines

    def write(self, letters: Iterable[DeadLetter]) -> None:
        first = len(self.letters)
        super().write(letters)
        for letter in self.letters[first:]:
            self.lines.append(f"letter of {letter.origin['partition']}{letter.origin['offset']}: {letter.reason}")


@dataclass
class Conversation:
    """One log, one server, and one run after the other. ``say`` runs a command and returns its effects as lines."""

    folder: Path
    log: Log = field(default_factory=Log)
    # Effects of the last command, in order.
    lines: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.checkpoint, self.letters = NotedCheckpoint(self.lines), NotedLetters(self.lines)
        self.cluster = Cluster(self.folder)
        self._writer = Writer(self.lines)
        self._run: Run | None = None
        # The open batches, the current one first; those on which tasks have worked; those whose tasks have failed.
        self._batches: list[Batch] = []
        self._worked: list[Batch] = []
        self._failed: list[Batch] = []
        self._together = 1
        self._exits = ExitStack()

    def say(self, line: str) -> list[str]:
        """Run one command. Return its effects; the first line is the time that passed, if any."""
        command, _, rest = line.partition(" ")
        since = self.cluster.time.clock()
        self.lines.clear()
        for answer in getattr(self, f"say_{command}")(rest):
            self.lines.append(answer)
        waited_s = self.cluster.time.clock() - since
        passed = [f"after {waited_s:g} s"] if waited_s and command != "wait" else []
        return [*passed, *self.lines]

    def say_append(self, rest: str) -> Iterator[str]:
        partition, count = rest.split()
        self.log.append(partition, int(count))
        yield from ()

    def say_compact(self, rest: str) -> Iterator[str]:
        partition, *positions = rest.split()
        for position in map(int, positions):
            self.log.records.get(partition, {}).pop(position, None)
        yield from ()

    def say_revoke(self, partition: str) -> Iterator[str]:
        if self._run is None or partition not in self.log.records:
            yield "nothing to revoke"
            return
        self.log.revoked.append(partition)

    def say_start(self, rest: str) -> Iterator[str]:
        if self._run is not None:
            yield "it runs"
            return
        words = rest.split()
        given = {name: int(number) for name, number in zip(words[::2], words[1::2], strict=True)}
        self._together = given.get("together", 1)
        source = LogSource(
            self.log,
            environment=self.cluster.environment(),
            listener=self._writer,
            checkpoint=self.checkpoint,
            dead_letters=self.letters,
            max_dead_share=1.0,
            batch_records=given.get("batch", 4),
            max_uncommitted=given.get("open", 1000),
            retry=Retry(given.get("retries", 1), given.get("interruptions", 10)),
        )
        self._run = self._exits.enter_context(source._begin_run(NO_SPARK))

    def say_batch(self, _: str) -> Iterator[str]:
        if self._run is None:
            yield "no run"
            return
        if len(self._batches) == self._together:
            yield f"batch {self._batches[0].number} is open"
            return
        batch = self._run.next_batch()
        self._batches += [batch] if batch is not None else []
        yield "no more" if batch is None else f"batch {batch.number}"

    def say_next(self, _: str) -> Iterator[str]:
        self._batches = self._batches[1:] + self._batches[:1]
        yield f"batch {self._batches[0].number}" if self._batches else "no batch"

    def say_work(self, rest: str) -> Iterator[str]:
        if not self._batches or self._batches[0] in self._worked:
            yield "no batch"
            return
        batch = self._batches[0]
        self._worked.append(batch)
        try:
            self._work(batch, rest)
        except AckerError as error:
            self._failed.append(batch)
            yield f"the tasks failed: {type(error).__name__}"

    def _work(self, batch: Batch, rest: str) -> None:
        how, *names = rest.split() or [""]
        rows = frame_of(batch).rows()
        failing = tuple(name.removeprefix("*") for name in names if name.startswith("*"))
        is_bad = {row.root: row.value in names or row.value.endswith(failing or ("-",)) for row in rows}
        bad = {row.root: f"ValueError: {row.value}" for row in rows if how == "but" and is_bad[row.root]}
        last = next((k for k, row in enumerate(rows) if how == "until" and row.value in names), len(rows))
        frame_of(batch).fail(bad)
        frame_of(batch).ack(row for row in rows[: last + 1] if row.root not in bad)

    def say_settle(self, error: str) -> Iterator[str]:
        if self._run is None or not self._batches:
            yield "no batch"
            return
        batch = self._batches.pop(0)
        error = error or ("tasks failed" if batch in self._failed else "")
        self._run.settle_batch(batch, RuntimeError(error) if error else None)

    def say_leave(self, _: str) -> Iterator[str]:
        if self._run is None or not self._batches:
            yield "no batch"
            return
        while self._batches:
            self._run.abandon_batch(self._batches.pop(0))
        yield from self.say_stop("")

    def say_server(self, rest: str) -> Iterator[str]:
        how, *seconds = rest.split()
        if how == "lost":
            self.cluster.server.start(with_state=False)
        else:
            self.cluster.stop_for(float(seconds[0].removesuffix("s")))
        yield from ()

    def say_wait(self, rest: str) -> Iterator[str]:
        self.cluster.sleep(float(rest.removesuffix("s")))
        yield from ()

    def say_stop(self, _: str) -> Iterator[str]:
        if self._run is None:
            yield "no run"
            return
        if self._batches:
            yield from self.say_leave("")
            return
        run, self._run = self._run, None
        self._exits.close()
        yield run.summary().brief


def named(emissions: Emissions) -> list[str]:
    """Return the names of the records, in the order of the emissions."""
    return [f"{row['partition']}{row['offset']}" for row in emissions.origins().to_pylist()]


def names(emissions: Emissions) -> str:
    """Return the names of the records, sorted by partition and number."""
    return " ".join(sorted(named(emissions), key=by_number))


def by_number(line: str) -> tuple[str, int]:
    """Return a sort key that puts ``a10 LOST`` after ``a9 LOST``."""
    name = line.split(maxsplit=1)[0]
    return name[0], int(name[1:])


def schedule(seed: int, turns: int = 25) -> str:
    """Return the commands of a random schedule. It ends with a run of enough quiet batches to finish all records.

    Records whose number ends in ALWAYS_BAD fail each time. All others succeed in the end."""
    dice = random.Random(seed)
    good = f"work but *{ALWAYS_BAD}"
    start = f"start batch {dice.choice((3, 5, 8))} open {dice.choice((8, 20))} retries {dice.choice((0, 1, 2))}"
    lines = [f"# a schedule drawn with seed {seed}; what ends in {ALWAYS_BAD} fails always", "append a 6", start]
    for _ in range(turns):
        lines += dice.choices(
            [
                ["batch", good, "settle"],
                ["batch", f"{good} {dice.choice('ab')}{dice.randrange(12)}", "settle"],
                ["batch", f"work until {dice.choice('ab')}{dice.choice('01245678')}", "settle executor lost"],
                ["batch", good, "settle division by zero"],
                ["batch", good, "server lost", "settle"],
                ["batch", "settle"],
                [f"server away {dice.choice((1, 3))}s", "batch", good, "settle"],
                [f"append {dice.choice('ab')} {dice.randrange(1, 5)}"],
                [f"compact {dice.choice('ab')} {dice.randrange(12)}"],
                [f"wait {dice.choice((1, 5))}s"],
                ["batch", good, "leave", start],
                ["stop", start],
            ],
            weights=(6, 3, 2, 2, 1, 1, 1, 4, 1, 1, 1, 1),
        )[0]
    return "\n".join([*lines, "stop", start, *["batch", good, "settle"] * 60, "stop"]) + "\n"


def overlapping_schedule(seed: int, turns: int = 120) -> str:
    """Return the commands of a random schedule, like ``schedule``. Up to three batches are open together."""
    dice = random.Random(seed)
    good, together = f"work but *{ALWAYS_BAD}", dice.choice((2, 3))
    sizes = f"batch {dice.choice((3, 5))} open {dice.choice((8, 20))}"
    start = f"start {sizes} retries {dice.choice((0, 1, 2))} together {together}"
    lines = [f"# an overlapping schedule drawn with seed {seed}", "append a 6", start]
    for _ in range(turns):
        lines += dice.choices(
            [
                "batch",
                "next",
                good,
                f"{good} {dice.choice('ab')}{dice.randrange(12)}",
                f"work until {dice.choice('ab')}{dice.choice('01245678')}\nsettle executor lost",
                "settle",
                f"settle {dice.choice(('executor lost', 'division by zero'))}",
                "server lost",
                f"server away {dice.choice((1, 3))}s",
                f"append {dice.choice('ab')} {dice.randrange(1, 5)}",
                f"compact {dice.choice('ab')} {dice.randrange(12)}",
                f"wait {dice.choice((1, 5))}s",
                f"leave\n{start}",
                f"stop\n{start}",
            ],
            weights=(30, 10, 18, 6, 4, 18, 5, 2, 1, 8, 2, 2, 1, 1),
        )
    return "\n".join([*lines, "stop", start, *["batch", "batch", good, "settle", good, "settle"] * 60, "stop"]) + "\n"


def records_of(line: str) -> list[str]:
    """Return the names of the records in a line of effects."""
    return re.findall(r"\b[ab]\d+\b", line)
