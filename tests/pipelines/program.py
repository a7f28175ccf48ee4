"""Programs: random pipelines, generated from a seed, with a readable form for failure messages.

A record is a line that holds its own number. A row is ``(k, t)``. ``k`` is below KEYS and decides the number of
children, whether the row is kept, and its group. ``t`` consists of tokens, joined by ``|``, one for each path on which
a record came into this row. A token starts with the number of its record, and each step that makes rows appends a mark
to it.

Rows are merged only with rows of the same ``k``. The rows made from a record therefore do not depend on other records,
and the oracle can compute them for each record alone. A program depends on its seed only.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

KEYS = 7

# User functions that make child rows, and so append a mark.
FANS = ("operator", "pandas_operator", "arrow_operator")
# Steps after which a row may come from several records, so that its anchors are packed.
MERGING = ("group", "cogroup")
USER_CODE = (*FANS, "keeping", *MERGING)
MAKERS = (*FANS, "keeping", "where", "explode", "outer explode", "join", "left join", *MERGING)
# One row in, the same row out.
STILL_NODES = ("select", "withColumn", "repartition", "coalesce", "cache", "window", "alias", "view", "hint")
# Likewise, but a second evaluation may distribute the rows over the tasks differently.
MOVING_NODES = ("orderBy", "repartition by k", "repartitionByRange")
NODES = (*STILL_NODES, *MOVING_NODES)

# Actions that deliver all rows of a sink.
FILES = ("parquet", "json", "csv", "orc", "partitioned", "sorted parquet", "repartitioned json", "aggregated")
TABLES = ("saveAsTable", "insertInto", "insert by SQL")
TO_DRIVER = ("collect", "toPandas", "toArrow", "iterator", "prefetching iterator")
BY_ROWS = ("foreach", "foreachPartition", "select foreachPartition")
BY_RDD = ("rdd foreachPartition", "rdd collect", "rdd text file", "frame of rdd")
ODD = (
    "checkpointed", "persisted", "mapped", "noop", "filtered", "json text", "observed", "from a thread",
    "joined with nothing",
)  # fmt: skip
DELIVERS = (*FILES, *TABLES, *TO_DRIVER, *BY_ROWS, *BY_RDD, *ODD)
# Deliveries that work with an ack() column.
DELIVERS_ACKS = ("parquet", "json", "csv", "noop", "collect", "toPandas", "toArrow", "foreachPartition", "saveAsTable")
LOOKS_ACKS = ("show", "count", "take", "first")

LOOKS = (
    "count", "show", "take", "isEmpty", "first", "head", "limit collect", "max", "describe", "tail",
    "rdd count", "rdd take", "rdd isEmpty", "iterator cut", "summary", "explain",
    "failing count", "failing show", "failing max",
)  # fmt: skip

# Deliveries that fail.
FAILS = (
    "row raises", "commit", "late task", "foreach", "foreachPartition", "select foreachPartition",
    "rdd foreachPartition", "rdd collect", "collect", "toPandas", "frame of rdd", "checkpointed", "iterator",
    "table commit", "noop",
)  # fmt: skip
FAILS_ACKS = ("row raises", "commit", "collect", "foreachPartition")

# Deliveries of some rows only.
PARTS = (
    "take", "limit parquet", "limit collect", "tail", "iterator cut", "rdd take", "map cut", "first of partition",
    "rdd first of partition", "one partition", "sample of limit", "prefetching iterator cut", "offset parquet",
)  # fmt: skip
PARTS_ACKS = ("limit parquet", "limit collect", "take")


@dataclass(frozen=True)
class Step:
    """One step: turns frames ``of`` into frames ``gives``. ``salt`` varies its result."""

    op: str
    of: tuple[str, ...]
    gives: tuple[str, ...]
    salt: int = 0

    @property
    def name(self) -> str:
        return self.gives[0]

    def __str__(self) -> str:
        salt = f", {self.salt}" if self.op in MAKERS or self.op in ("repartition", "coalesce") else ""
        return f"{', '.join(self.gives)} = {self.op}({', '.join(self.of)}{salt})"


@dataclass(frozen=True)
class Act:
    """One action on the rows of a sink. ``what``: "look", "deliver", "fail" (a delivery that fails), "part"."""

    what: str
    how: str = ""

    @property
    def is_caught(self) -> bool:
        """Whether the act is a look that fails, and whose exception is caught."""
        return self.how.startswith("failing ")

    @property
    def without_failure(self) -> Act:
        """The same act, but without its failure."""
        return Act(self.what, self.how.removeprefix("failing "))

    def __str__(self) -> str:
        return f"{self.what} {self.how}".strip()


@dataclass(frozen=True)
class End:
    """A sink of ``frame``. ``first``: its acts in the program's faulty batches; ``then``: its acts in all others.

    ``via``: "sink"; "ack" for a select with ``functions.ack()``; "nothing" for a frame without a sink in the faulty
    batches. ``swallow``: where an act's exception is caught: "nobody", the "sink" (which goes on with its next act),
    the "body", or "again" for a body that then calls the sink once more, with success.
    """

    frame: str
    via: str
    first: tuple[Act, ...]
    then: tuple[Act, ...]
    swallow: str = "nobody"

    def __str__(self) -> str:
        first, then = ("; ".join(map(str, acts)) or "nothing" for acts in (self.first, self.then))
        told = f"first batch: {first} [{self.swallow} swallows], then: {then}" if first != then else then
        return f"{self.via} of {self.frame}: {told}"


@dataclass(frozen=True)
class Fault:
    """An injected fault. ``at``: a step or the sink of a frame; ``numbers``: affected records; ``point``: when."""

    kind: str
    at: str = ""
    numbers: tuple[int, ...] = ()
    point: str = ""

    def __str__(self) -> str:
        parts = [self.kind, f"in {self.at}" if self.at else "", f"({self.point})" if self.point else ""]
        numbers = f"records {', '.join(map(str, self.numbers))}" if self.numbers else ""
        return " ".join(filter(None, [*parts, numbers]))


@dataclass(frozen=True)
class Program:
    """A program. ``threads``: the sinks run concurrently; ``shares_sink``: one function serves as all sinks.

    Frames are named f0, f1, ... f0 holds the source's rows, parsed as ``parse`` says. If there is a second source, it
    has the latter half of the records and its frame is g0.
    """

    seed: int
    records: int
    batch_records: int
    partitions: int
    form: str
    parse: str
    steps: tuple[Step, ...]
    ends: tuple[End, ...]
    faults: tuple[Fault, ...] = ()
    # Looks at frames in the body, outside any sink: (frame, "before" or "after" the sinks, how).
    looks: tuple[tuple[str, str, str], ...] = ()
    conf: tuple[tuple[str, str], ...] = ()
    faulty_batches: int = 1
    max_retries: int = 4
    second: bool = False
    threads: bool = False
    shares_sink: bool = False
    tracking: bool = True
    # How many batches are worked on at once.
    concurrency: int = 1
    # How the source chooses which records are tracked: "" for all of them, "condition" or "function".
    track: str = ""

    @property
    def sources(self) -> dict[str, tuple[int, int]]:
        """Per frame of a source: the number of its first record, and one more than the number of its last."""
        if not self.second:
            return {"f0": (0, self.records)}
        return {"f0": (0, self.records // 2), "g0": (self.records // 2, self.records)}

    def of_kind(self, *kinds: str) -> list[Fault]:
        return [fault for fault in self.faults if fault.kind in kinds]

    def __str__(self) -> str:
        head = (
            f"seed {self.seed}: {self.records} records, batches of {self.batch_records} in {self.partitions} tasks,"
            f" {self.form}, faults in the first {self.faulty_batches}"
        )
        head += f", {self.concurrency} at once" if self.concurrency > 1 else ""
        head += "" if self.tracking else ", tracking off"
        head += f", some untracked by a {self.track}" if self.track else ""
        lines = [head, *(f"  {key} = {value}" for key, value in self.conf)]
        lines += [f"  {name} = parse by {self.parse}" for name in self.sources]
        lines += ["  sinks in threads"] if self.threads else []
        lines += ["  one function for all sinks"] if self.shares_sink else []
        lines += [f"  {step}" for step in self.steps]
        lines += [f"  look {when} the sinks: {how}({frame})" for frame, when, how in self.looks]
        lines += [f"  {end}" for end in self.ends]
        return "\n".join([*lines, *(f"  fault: {fault}" for fault in self.faults)])


FORMS = ("run", "loop", "with", "done")


# Faults that only tracking detects, or that are about servers or about programs of a seed alone.
NEEDS_TRACKING = ("shuffled", "flaky", "server restarts", "server killed", "driver killed")


def generate(seed: int) -> Program:
    return _Generator(seed).program()


def is_tracked(program: Program, number: int) -> bool:
    return not program.track or number % 3 != 0


def with_untracked(program: Program) -> Program:
    """Return the same program with some untracked records."""
    faults = tuple(fault for fault in program.faults if fault.kind != "driver killed")
    return replace(program, faults=faults, track=("condition", "function")[program.seed % 2])


def without_tracking(program: Program) -> Program:
    """Return the same program with tracking off, without the faults that need tracking.

    One that raises in user code is run by ``Source.run``, because its batches fail as a whole.
    """
    faults = tuple(fault for fault in program.faults if fault.kind not in NEEDS_TRACKING)
    raises = any(fault.kind in ("poison", "flaky once") for fault in faults)
    form = "run" if raises and not program.second else program.form
    faults = () if raises and program.second else faults
    return replace(program, faults=faults, form=form, tracking=False)


def _collecting(act: Act) -> Act:
    return replace(act, how="collect") if act.how == "foreachPartition" else act


@dataclass
class _Generator:
    seed: int
    steps: list[Step] = field(default_factory=list)
    frames: int = 1

    def __post_init__(self) -> None:
        self.dice = random.Random(self.seed)
        # Separate dice, so that seeds give the same programs as before cogroups were added.
        self.meetings = random.Random(f"{self.seed} meetings")
        self.company = random.Random(f"{self.seed} company")
        # Per frame that no step has consumed yet: whether its anchors are packed.
        self.open: dict[str, bool] = {"f0": False}

    def program(self) -> Program:
        dice = self.dice
        records = dice.randrange(60, 201)
        batches = dice.choice((1, 1, 2, 2, 2, 3))
        second = dice.random() < 0.1
        if second:
            self.open["g0"] = False
        for _ in range(dice.randrange(1, 9)):
            self._step()
        if second and dice.random() < 0.6:
            self._union()
        while len(self.open) > dice.choice((1, 2, 2, 3)):
            if not self._union():
                break
        faults = [fault for fault in self._faults(records) if not (second and fault.kind == "driver killed")]
        kinds = {fault.kind for fault in faults}
        ends = [self._end(frame) for frame in self.open]
        if "act" in kinds:
            at = dice.randrange(len(ends))
            ends[at] = self._bad_end(ends[at])
        ends = [self._without_rows_of_views(end) for end in ends]
        form = dice.choice(("loop", "with", "done") if second else ("run", "run", "loop", "loop", "with", "done"))
        conf = [("spark.sql.adaptive.enabled", dice.choice(("true", "true", "false")))]
        if dice.random() < 0.2:
            conf.append(("spark.sql.execution.arrow.maxRecordsPerBatch", dice.choice(("5", "20"))))
        if dice.random() < 0.1:
            conf.append(("spark.sql.execution.arrow.useLargeVarTypes", "true"))
        concurrency = self.company.choice((1, 2, 3)) if form == "run" else 1
        batches = batches if concurrency == 1 else concurrency + 1
        return Program(
            seed=self.seed,
            records=records,
            batch_records=-(-records // batches // (1 + second)),
            partitions=dice.choice((1, 2, 2, 2, 4)),
            form=form,
            parse=dice.choice(("select", "operator", "operator", "pandas_operator", "arrow_operator")),
            steps=tuple(self.steps),
            ends=tuple(ends),
            faults=tuple(fault for fault in faults if fault.kind != "act"),
            looks=tuple(self._outer_looks()),
            conf=tuple(conf),
            max_retries=dice.choice((3, 4, 6)),
            second=second,
            threads=len(ends) > 1 and dice.random() < 0.15,
            shares_sink=len(ends) > 1 and dice.random() < 0.2,
            concurrency=concurrency,
        )

    # -- steps

    def _step(self) -> None:
        dice = self.dice
        kind = dice.random()
        if kind < 0.12 and len(self.open) < 3:
            self._branch()
        elif kind < 0.2 and len(self.open) > 1:
            self._union()
        elif kind < 0.6:
            self._unary(
                dice.choice((*FANS, *FANS, "keeping", "where", "explode", "outer explode", "join", "left join"))
            )
        elif kind < 0.7:
            self._unary("group")
        else:
            self._unary(dice.choice(NODES))

    def _unary(self, op: str) -> None:
        frame = self.dice.choice(list(self.open))
        is_packed = self.open.pop(frame) or op == "group"
        self._add(op, (frame,), 1, is_packed)

    def _branch(self) -> None:
        frame = self.dice.choice(list(self.open))
        self._add("branch", (frame,), 2, self.open.pop(frame))

    def _union(self) -> bool:
        """Unite or cogroup two open frames of the same form. Return False if there are no two."""
        for is_packed in (False, True):
            alike = [frame for frame, packed in self.open.items() if packed == is_packed]
            if len(alike) > 1:
                pair = tuple(self.dice.sample(alike, 2))
                for frame in pair:
                    del self.open[frame]
                op = self.meetings.choice(("union", "union", "cogroup"))
                self._add(op, pair, 1, is_packed or op == "cogroup")
                return True
        return False

    def _add(self, op: str, of: tuple[str, ...], count: int, is_packed: bool) -> None:
        gives = tuple(f"f{self.frames + index}" for index in range(count))
        self.frames += count
        self.steps.append(Step(op, of, gives, self.dice.randrange(1, 7)))
        self.open.update(dict.fromkeys(gives, is_packed))

    # -- sinks

    def _end(self, frame: str) -> End:
        via = self.dice.choices(("sink", "ack"), (6, 1))[0]
        acts = self._good_acts(via)
        return End(frame, via, acts, tuple(act.without_failure for act in acts))

    def _good_acts(self, via: str) -> tuple[Act, ...]:
        dice = self.dice
        delivers, looks = (DELIVERS, LOOKS) if via == "sink" else (DELIVERS_ACKS, LOOKS_ACKS)
        acts = [Act("deliver", dice.choice(delivers))]
        if dice.random() < 0.2:
            acts.insert(0, Act("look", dice.choice(looks)))
        if dice.random() < 0.15:
            acts.append(Act("look", dice.choice(looks)))
        if via == "sink" and dice.random() < 0.07:
            acts.append(Act("deliver", dice.choice(delivers)))
        return tuple(acts)

    def _bad_end(self, end: End) -> End:
        """Return the sink with acts that fail, or do not deliver everything, in the faulty batches."""
        dice, via = self.dice, end.via
        fails, parts, looks = (FAILS, PARTS, LOOKS) if via == "sink" else (FAILS_ACKS, PARTS_ACKS, LOOKS_ACKS)
        kind = dice.choices(("fail", "part", "look", "nothing", "no sink"), (6, 4, 2, 1, 1))[0]
        if kind == "no sink":
            return End(end.frame, "nothing", (), end.then)
        bad = {
            "fail": [Act("fail", dice.choice(fails))],
            "part": [Act("part", dice.choice(parts))],
            "look": [Act("look", dice.choice(looks))],
            "nothing": [],
        }[kind]
        swallow = dice.choices(("nobody", "sink", "body", "again"), (1, 5, 3, 2))[0]
        around = list(self._good_acts(via))
        drawn = dice.random()
        acts = bad
        if drawn < 0.2:
            acts = around + bad  # a good delivery first: it makes up for a later look, but not for a later failure
        elif drawn < 0.35:
            acts = bad + around  # a good delivery follows
        elif drawn < 0.7:
            acts = [*bad, Act("look", dice.choice(looks))]
        return End(end.frame, via, tuple(acts), end.then, swallow)

    def _without_rows_of_views(self, end: End) -> End:
        """Collect an ``ack()`` column of a view instead of reading it by rows: a view is not followed into RDDs."""
        if end.via != "ack" or not self._is_of_view(end.frame):
            return end
        return replace(end, first=tuple(map(_collecting, end.first)), then=tuple(map(_collecting, end.then)))

    def _is_of_view(self, frame: str) -> bool:
        """Whether Spark makes a frame of a view, with no step in between."""
        step = next((step for step in self.steps if frame in step.gives), None)
        if step is None or step.op not in (*NODES, "union"):
            return False
        return step.op == "view" or any(map(self._is_of_view, step.of))

    def _outer_looks(self) -> Sequence[tuple[str, str, str]]:
        if self.dice.random() > 0.1:
            return []
        when = self.dice.choice(("before", "after"))
        return [(self.dice.choice(list(self.open)), when, self.dice.choice(("count", "take", "isEmpty", "show")))]

    # -- faults

    def _faults(self, records: int) -> list[Fault]:
        """Return none, one or two faults. The kind "act" stands for a sink that misbehaves."""
        dice = self.dice
        kinds = {
            "act": 10, "body raises": 2, "break": 1, "interrupt": 1, "kill worker": 3, "kill after work": 2,
            "fail after work": 2, "lose shuffle file": 5, "poison": 3, "flaky once": 3, "flaky": 2, "shuffled": 1,
            "server restarts": 1, "server killed": 1, "driver killed": 0.5,
        }  # fmt: skip
        faults: list[Fault] = []
        for _ in range(dice.choices((0, 1, 2), (2, 5, 3))[0]):
            kind = dice.choices(list(kinds), list(kinds.values()))[0]
            if kind not in {fault.kind for fault in faults}:
                faults += self._fault(kind, records)
        return faults

    def _fault(self, kind: str, records: int) -> list[Fault]:
        dice = self.dice
        code = [step.name for step in self.steps if step.op in USER_CODE]
        if kind == "lose shuffle file":
            return self._losing_steps()
        if kind in ("poison", "flaky once", "flaky", "kill worker", "shuffled"):
            if kind == "shuffled":
                code = [step.name for step in self.steps if step.op in FANS]
            if not code:
                return []
            numbers: tuple[int, ...] = ()
            if kind in ("poison", "flaky once"):
                numbers = tuple(sorted(dice.sample(range(records), dice.randrange(1, 4))))
            # With odd seeds, the transient error comes with the second evaluation of the row.
            point = "at the second sight" if kind == "flaky once" and self.seed % 2 else ""
            return [Fault(kind, dice.choice(code), numbers, point)]
        if kind in ("kill after work", "fail after work"):
            return [Fault(kind, dice.choice(list(self.open)))]
        if kind in ("server restarts", "server killed"):
            return [Fault(kind, point=dice.choice(("before", "during", "after")))]
        if kind == "driver killed":
            return [Fault(kind, point=dice.choice(("before", "in the sink", "after", "at the ack")))]
        return [Fault(kind)]

    def _losing_steps(self) -> list[Fault]:
        """Return a fault at a step of user code after a shuffle, or nothing if there is none."""
        shuffled: set[str] = set()
        found: list[str] = []
        for step in self.steps:
            is_behind = any(frame in shuffled for frame in step.of)
            if (is_behind and step.op in USER_CODE) or step.op in MERGING:
                found.append(step.name)
            if is_behind or step.op in ("repartition", *MERGING, "repartition by k", "orderBy", "window"):
                shuffled.update(step.gives)
        return [Fault("lose shuffle file", self.dice.choice(found))] if found else []
