"""The oracle: which rows a program makes from each record, and whether an emission may be acked.

It is plain Python over lists, without Spark or the acker. Its inputs are the program's description, the runner's
journal of actions (batch, sink, success) and the sinks' real outputs.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from tests.pipelines.program import FANS, KEYS, MERGING, End, Program, Step

Row = tuple[int, str]
Tokens = Counter[str]

MATCHES = "abc"


def fan(k: int, t: str, salt: int) -> list[Row]:
    return [((2 * k + child + salt) % KEYS, mark(t, f".{child}")) for child in range((k + salt) % 4)]


def mark(t: str, text: str) -> str:
    return "|".join(way + text for way in t.split("|"))


def in_group(k: int, t: str, salt: int) -> list[Row]:
    """Return the rows that a group makes from one row; they do not depend on other rows of the group."""
    return [[(k, t)], [(k, t + ":0"), (k, t + ":1")], [], [(k, t + ":x")]][(k + salt) % 4]


def become(step: Step, rows: Sequence[Row]) -> list[Row]:
    """Return the rows of one record after a step with one input."""
    salt = step.salt
    return [made for k, t in rows for made in _OF_ROW.get(step.op, _same)(k, t, salt)]


def _same(k: int, t: str, salt: int) -> list[Row]:
    return [(k, t)]


def _elements(k: int, t: str, salt: int) -> list[Row]:
    return [(k, mark(t, f"/{element}")) for element in range((k + salt) % 3)]


def _matches(k: int, t: str, salt: int) -> list[Row]:
    return [(k, mark(t, f"+{match}")) for match in MATCHES[: (k + salt) % 3]]


_OF_ROW: dict[str, Callable[[int, str, int], list[Row]]] = {
    **dict.fromkeys(FANS, fan),
    "keeping": lambda k, t, salt: [((k + salt) % KEYS, t)],
    "where": lambda k, t, salt: [(k, t)] if k % 3 != salt % 3 else [],
    "explode": _elements,
    "outer explode": lambda k, t, salt: _elements(k, t, salt) or [(k, mark(t, "/-"))],
    "join": _matches,
    "left join": lambda k, t, salt: _matches(k, t, salt) or [(k, mark(t, "+-"))],
    **dict.fromkeys(MERGING, in_group),
}


def frames_of(program: Program, number: int) -> dict[str, list[Row]]:
    """Return the rows of record ``number`` in each frame."""
    own = [(number % KEYS, str(number))]
    frames = {name: own if first <= number < stop else [] for name, (first, stop) in program.sources.items()}
    for step in program.steps:
        rows = [row for frame in step.of for row in frames[frame]]
        for frame in step.gives:
            frames[frame] = become(step, rows)
    return frames


def expected(program: Program, number: int) -> dict[str, Tokens]:
    """Return, per frame of a sink, how often each token of record ``number`` has to be in the output."""
    frames = frames_of(program, number)
    return {end.frame: Counter(t for _, t in frames[end.frame]) for end in program.ends}


def filtered(tokens: Tokens, rows: Iterable[Row]) -> Tokens:
    """Return the ``tokens`` of those ``rows`` that a sink writes if it keeps only even keys."""
    kept = Counter(t for k, t in rows if k % 2 == 0)
    return Counter({t: count for t, count in tokens.items() if t in kept})


def written(how: str, rows: Sequence[Row]) -> Tokens:
    """Return the tokens that the delivery ``how`` of ``rows`` writes."""
    if how == "joined with nothing":
        return Counter()
    return Counter(way for k, t in rows if how != "filtered" or k % 2 == 0 for way in t.split("|"))


def may_die(program: Program) -> set[int]:
    """Return the records that may become dead letters.

    These are records on which user code always raises, and records that are merged with them before that.
    """
    # An operator that shuffles its children makes different ones in each run, so every record may run out of retries.
    found: set[int] = set(range(program.records)) if program.of_kind("shuffled") else set()
    for fault in program.of_kind("poison"):
        (step,) = (step for step in program.steps if step.name == fault.at)
        behind = merged_before(program, step)
        for number in fault.numbers:
            if any(frames_of(program, number)[frame] for frame in step.of):
                found.add(number)
                found |= company(program, number, behind)
    return found


def merged_before(program: Program, step: Step) -> list[Step]:
    """Return the groups and cogroups before or at ``step``. If one row raises, its whole group fails."""
    above, frames = [], set(step.of)
    for other in reversed(program.steps[: program.steps.index(step) + 1]):
        if other is step or frames & set(other.gives):
            frames |= set(other.of)
            above += [other] if other.op in MERGING else []
    return above


def company(program: Program, number: int, groups: Sequence[Step]) -> set[int]:
    """Return the records that share a row or a group of ``groups`` with record ``number``, perhaps through others."""
    if not groups:
        return set()
    keys = {
        record: {
            (group.name, k) for group in groups for frame in group.of for k, _ in frames_of(program, record)[frame]
        }
        for record in range(program.records)
    }
    found, reached = {number}, set(keys[number])
    while True:
        more = {record for record, here in keys.items() if here & reached} - found
        if not more:
            return found
        found |= more
        reached |= {key for record in more for key in keys[record]}


@dataclass
class Execution:
    """One action on the rows of a sink in one batch. ``what``: as in ``Act``; ``went_through``: None while it runs.

    ``read``: returns the tokens in its real output now; None where the output cannot be read (noop). ``run``: number of
    the sink's call; 0 where there is no sink.
    """

    batch: int
    end: End
    what: str
    how: str
    went_through: bool | None = None
    read: Callable[[], Tokens] | None = None
    run: int = 0


@dataclass
class Judge:
    """Decides whether an emission may be acked."""

    program: Program
    executions: list[Execution] = field(default_factory=list)
    # Per batch whose body raised, or whose loop was left before the batch was done: the reason.
    abandoned: dict[int, str] = field(default_factory=dict)

    def objection(self, batch: int, number: int) -> str:
        """Return why record ``number`` may not be acked in ``batch``; "" if it may."""
        frames = frames_of(self.program, number)
        for end in self.program.ends:
            rows = frames[end.frame]
            missing = self._missing(batch, end, rows) if rows else ""
            if missing:
                return f"sink of {end.frame}: {missing}"
        return self.abandoned.get(batch, "") if any(frames[end.frame] for end in self.program.ends) else ""

    def is_done(self, batch: int) -> bool:
        """Whether, for every sink in ``batch``, the last delivery succeeded and no action of that call failed."""
        return batch not in self.abandoned and all(self._last(batch, end)[0] is not None for end in self.program.ends)

    def _last(self, batch: int, end: End) -> tuple[Execution | None, str]:
        """Return the last delivery of a sink, or None and the reason. Looks and partial reads are no deliveries."""
        mine = [each for each in self.executions if each.batch == batch and each.end.frame == end.frame]
        delivering = [each for each in mine if each.what in ("deliver", "fail")]
        if not delivering:
            return None, f"no delivery of its rows ran, only {[f'{each.what} {each.how}' for each in mine]}"
        last = delivering[-1]
        # All targets differ, so no delivery makes up for another that failed. No action makes up for a failed look.
        failed = next((each for each in mine if each.run == last.run and each.went_through is False), None)
        if failed is not None:
            return None, f"an action of the same run ({failed.how}) failed"
        return (last, "") if last.went_through else (None, f"its last delivery ({last.how}) still runs")

    def _was_whole(self, batch: int, end: End, needed: Tokens) -> bool:
        """Whether a partial write contains all rows, for example because each task has only one batch.

        False if the sink also had a delivery, even a failed one.
        """
        mine = [each for each in self.executions if each.batch == batch and each.end.frame == end.frame]
        parts = [each.read() for each in mine if each.what == "part" and each.went_through and each.read is not None]
        return all(each.what in ("part", "look") for each in mine) and any(not needed - part for part in parts)

    def _missing(self, batch: int, end: End, rows: Sequence[Row]) -> str:
        last, why = self._last(batch, end)
        needed = Counter(t for _, t in rows)
        if last is None and self._was_whole(batch, end, needed):
            return ""
        if last is None or last.read is None:
            return why
        if last.how == "filtered":
            needed = filtered(needed, rows)
        if last.how == "joined with nothing":
            needed = Counter()
        lacking = needed - last.read()
        return f"{dict(lacking)} are missing in its output ({last.how})" if lacking else ""
