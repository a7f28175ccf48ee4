"""Targets: the target of each figure, and whether the figure meets it. Measures nothing."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

Figures = Mapping[str, Any]

LEDGER_AND_STORM = (100_000, 1_000_000, 10_000_000)


@dataclass(frozen=True, slots=True)
class Target:
    """A bound for one figure. ``find`` returns this figure from all figures. Raises LookupError if it is missing."""

    part: str
    what: str
    find: Callable[[Figures], float]
    bound: float
    unit: str
    at_most: bool = False


@dataclass(frozen=True, slots=True)
class Row:
    """One line of the table. ``figure`` None: not measured in this run."""

    part: str
    what: str
    figure: float | None
    target: Target

    @property
    def met(self) -> bool | None:
        if self.figure is None:
            return None
        return self.figure <= self.target.bound if self.target.at_most else self.figure >= self.target.bound


def rows(figures: Figures) -> Iterator[Row]:
    """Yield every target of the parts that were run, with the measured figure."""
    for target in (target for target in TARGETS if target.part in figures):
        try:
            figure: float | None = target.find(figures)
        except (LookupError, TypeError):
            figure = None
        yield Row(target.part, target.what, figure, target)


def table(figures: Figures) -> list[list[str]]:
    """Return the rows as text: part, what, figure, target, met."""
    return [
        [row.part, row.what, shown(row.figure, row.target.unit), _bound(row.target), _met(row)] for row in rows(figures)
    ]


def shown(figure: float | None, unit: str) -> str:
    """Return a figure with its unit, rounded to its significant digits."""
    if figure is None:
        return "not measured"
    if unit in ("updates/s", "outcomes/s", "trees/s"):
        return f"{figure / 1e6:.2f} M {unit}"
    return f"{figure:.3g} {unit}" if figure < 100 else f"{figure:,.0f} {unit}"


def _bound(target: Target) -> str:
    return f"{'<=' if target.at_most else '>='} {shown(target.bound, target.unit)}"


def _met(row: Row) -> str:
    return {True: "met", False: "NOT MET", None: "-"}[row.met]


def at(*path: str) -> Callable[[Figures], float]:
    """Return a function that finds the figure at a path of keys."""

    def find(figures: Figures) -> float:
        found: Any = figures
        for key in path:
            found = found[key]
        return float(found)

    return find


def ledger_at(pending: int, key: str = "updates_per_s") -> Callable[[Figures], float]:
    """Return a function that finds the ledger's best figure of all report sizes, at about this many pending roots."""

    def find(figures: Figures) -> float:
        runs = [float(run[key]) for run in figures["ledger"] if abs(run["pending"] - pending) <= pending // 10]
        if not runs:
            raise LookupError(pending)
        return max(runs)

    return find


def storm_at(pending: int) -> Callable[[Figures], float]:
    """Return a function that finds the rate of Storm's acker alone, at this many pending trees."""
    return lambda figures: {run["pending"]: float(run["updates_per_s"]) for run in figures["storm"]["acker"]}[pending]


def storm_trees(figures: Figures) -> float:
    """Return the trees per second of Storm's acked topology spout -> bolt -> bolt."""
    shapes = {(run["bolts"], run["acked"]): float(run["trees_per_s"]) for run in figures["storm"]["topologies"]}
    return shapes[2, True]


def over(ours: Callable[[Figures], float], theirs: Callable[[Figures], float]) -> Callable[[Figures], float]:
    """Return a function that divides the acker's figure (``ours``) by the other one (``theirs``)."""
    return lambda figures: ours(figures) / theirs(figures)


def best_of(part: str, key: str) -> Callable[[Figures], float]:
    """Return a function that finds the best figure called ``key`` in a part's table of runs."""
    return lambda figures: max(float(run[key]) for run in figures[part]["acker"].values())


def updates_in_reports_of(size: int) -> Callable[[Figures], float]:
    """Return a function that finds the service's updates a second in reports of ``size`` k entries."""
    return at("service", "acker", f"reports_of_{size}k", "updates_per_s")


def worst_placing(*path: str) -> Callable[[Figures], float]:
    """Return a function that finds the largest figure of all replica counts, in views without missing ids."""
    return lambda figures: max(at(*path)(run) for run in figures["placement"]["without_gaps"])


TARGETS: tuple[Target, ...] = (
    Target("ledger", "100 k pending", ledger_at(100_000), 30e6, "updates/s"),
    *(
        Target("ledger", f"{n:,} pending, over Storm's acker", over(ledger_at(n), storm_at(n)), 10, "x")
        for n in LEDGER_AND_STORM
    ),
    Target(
        "ledger",
        "bytes a pending root, 10 M",
        ledger_at(10_000_000, "bytes_per_pending_root"),
        32,
        "bytes",
        at_most=True,
    ),
    *(
        Target("service", f"updates in reports of {size} k, 4 a root", updates_in_reports_of(size), bound, "updates/s")
        for size, bound in ((60, 12e6), (4, 6e6))
    ),
    Target("service", "outcomes at the source's callback", best_of("service", "outcomes_per_s"), 2e6, "outcomes/s"),
    Target("service", "over Redis 7 with a Lua function", at("service", "redis", "times"), 35, "x"),
    Target("service", "over one record a call", at("service", "per_record_grpc", "times"), 1000, "x"),
    Target(
        "service",
        "p99, open loop at 4 M updates/s",
        at("service", "open_loop", "latency_p99_s"),
        0.01,
        "s",
        at_most=True,
    ),
    Target("client", "updates folded, slotted and serialised", at("client", "updates_per_s"), 15e6, "updates/s"),
    Target("tracker", "outcomes into the window of 10 M", at("tracker", "outcomes_per_s"), 20e6, "outcomes/s"),
    Target(
        "tracker",
        "outcomes of 10 M into a checkpoint",
        at("tracker", "outcomes_to_checkpoint_per_s"),
        20e6,
        "outcomes/s",
    ),
    Target("tracker", "10 M in flight, at the peak", at("tracker", "peak_mb"), 400, "MB", at_most=True),
    *(
        Target("placement", what, find, bound, unit, at_most=True)
        for what, find, bound, unit in (
            ("most slots of a member over 1.05 x the mean, rounded up", worst_placing("most_over_bound"), 1, "x"),
            ("moved over the least, each join", worst_placing("joins", "moved_over_least_at_worst"), 1.25, "x"),
            ("moved over the least, each leave", worst_placing("leaves", "moved_over_least_at_worst"), 1.25, "x"),
            ("200 members, spread 8", at("placement", "place_ms", "spread 8"), 1, "ms"),
            ("200 members, no bound", at("placement", "place_ms", "spread without a bound"), 1, "ms"),
        )
    ),
    *(
        Target("spark", f"words job, {kind}, {shape} over {rival}", at("spark", "words", kind, key), bound, "x")
        for kind in ("arrow", "rows")
        for shape, rival, key, bound in (
            ("fused", "untracked", "fused_over_untracked", 1.2),
            ("with hops", "untracked", "hops_over_untracked", 0.8),
            ("fused", "untracked and fused by hand", "fused_over_hand_fused", 0.9),
        )
    ),
    Target(
        "spark",
        "trivial job over Storm's acked spout, bolt, bolt, in trees/s",
        over(at("spark", "trivial", "trees_per_s"), storm_trees),
        3,
        "x",
    ),
    Target("spark", "trivial job, fused over untracked", at("spark", "trivial", "fused_over_untracked"), 0.6, "x"),
    *(
        Target(
            path[0],
            f"{query} behind tracked, {kind}, over untracked",
            at(*path, kind, "tracked_over_untracked"),
            0.9,
            "x",
        )
        for path, query in (
            (("frame",), "a query"),
            (("kafka", "stream"), "a query over Spark's own connector"),
        )
        for kind in ("arrow", "rows")
    ),
    *(
        Target(
            "first",
            f"first program, {cores} core{'s' * (cores > 1)}, {what}",
            at("first", f"cores_{cores}", key),
            bound,
            "x",
        )
        for cores in (1, 2)
        for what, key, bound in (
            ("over mapInPandas", "tracked_500k_over_pandas", 1.0),
            ("over the RDD job", "tracked_500k_over_rdd", 2.5),
            ("batches of 125 k over 500 k", "tracked_125k_over_500k", 0.9),
            ("two batches of 125 k at once, over 500 k", "tracked_125k_at_once_over_500k", 0.9),
        )
    ),
    Target(
        "first",
        "a million lines read and acked, 2 cores",
        at("first", "cores_2", "tracked_read_s"),
        0.7,
        "s",
        at_most=True,
    ),
    Target("kafka", "words job over untracked, same reader", at("kafka", "tracked_over_untracked"), 0.8, "x"),
    Target("kafka", "likewise, untracked and fused by hand", at("kafka", "tracked_over_hand_fused"), 0.8, "x"),
    Target(
        "kafka",
        "other records beside poison ones, over without",
        at("kafka", "others_beside_poison_over_without"),
        0.9,
        "x",
    ),
    *(
        Target("attacks", what, at("attacks", key), bound, unit, at_most=True)
        for what, key, bound, unit in (
            ("p99 of an honest client over quiet, the worst attack", "worst_p99_over_quiet", 2, "x"),
            ("probes that failed", "failed_probes", 0, "probes"),
            ("servers that crashed", "crashes", 0, "servers"),
        )
    ),
)
