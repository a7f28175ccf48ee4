"""Plan: the guard that stands before every operator and sink.

Decides, from the analysed plan, whether the rows that reach a consumer are exactly those that tracked stages made: it
walks down to the stages, known by the names of their functions, and traces each tracking column to its own position in
their output. What keeps rows one to one may stand between; everything else is refused with what to use instead.
Reads plans only: it runs no job, changes no frame and knows nothing of the server.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from pyspark.sql import DataFrame

from acker_client.errors import AckerError
from acker_client.spark import lineage
from acker_client.spark.lineage import Consumer, Node

THIN = ("_root", "_edge")
PACKED = ("_anchors",)

# py4j gives Java objects no type that a checker could use.
Plan = Any
Positions = Mapping[str, int]


class Refused(AckerError):
    """The frame cannot be tracked as it stands. The message names the node and what to use instead."""


class MovingBoundaries(UserWarning):
    """A frame whose task boundaries may move was evaluated a second time: safe, but it may cost a replay."""


@dataclass(frozen=True, slots=True)
class Upstream:
    """What a consumer stands on: the tracked stages whose rows reach it, one for each leg of a union.

    ``columns``: THIN or PACKED. ``moving_boundaries``: a second evaluation may cut these rows into other tasks.
    ``repeated``: the same sink had these rows before.
    """

    nodes: tuple[Node, ...]
    columns: tuple[str, ...]
    moving_boundaries: bool
    repeated: bool = False

    @property
    def node(self) -> Node:
        """The stage before; of a union, that of its first leg."""
        return self.nodes[0]

    @property
    def record(self) -> object:
        """The record of the batch of :attr:`node`."""
        return self.node.record


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why a node is refused: what it is written as, what it does to rows, what to use instead."""

    written: str
    harm: str
    fix: str


_DROPS = "drops rows without acking them, so their trees would end unfinished"
_MULTIPLIES = "may drop a row or hand on several copies of one edge"
_MERGES = "makes one row of several and loses their anchors"

REFUSALS: dict[str, Refusal] = {
    "Filter": Refusal(
        "filter, where, na.drop, sampleBy, IN (subquery)",
        _DROPS,
        "use df.transform(acker_client.spark.where(condition)), which acks what it drops",
    ),
    "Join": Refusal(
        "join, crossJoin, semi and anti join",
        _MULTIPLIES,
        "use acker_client.spark.join(...), or cogroup(...) where both sides are tracked",
    ),
    "LateralJoin": Refusal("lateral subquery", _MULTIPLIES, "use acker_client.spark.join(...) or explode(...)"),
    "AsOfJoin": Refusal("as-of join", _MULTIPLIES, "use acker_client.spark.join(...) or cogroup(...)"),
    "NearestByJoin": Refusal("nearest-by join", _MULTIPLIES, "use acker_client.spark.join(...) or cogroup(...)"),
    "Generate": Refusal(
        "explode, inline, posexplode, stack, lateral view",
        "makes copies of one edge, or none",
        "use df.transform(acker_client.spark.explode(...)), which gives every child an edge of its own",
    ),
    "GlobalLimit": Refusal("limit", _DROPS, "use an operator that yields nothing for what it drops, or limit the source"),
    "LocalLimit": Refusal("limit", _DROPS, "use an operator that yields nothing for what it drops, or limit the source"),
    "Tail": Refusal("tail", _DROPS, "use an operator that yields nothing for what it drops, or limit the source"),
    "Offset": Refusal("offset", _DROPS, "use an operator that yields nothing for what it drops, or limit the source"),
    "Sample": Refusal(
        "sample, randomSplit, TABLESAMPLE",
        _DROPS,
        "use df.transform(acker_client.spark.where(condition)) on a hash of a column, or branch(...) and a where a part",
    ),
    "Deduplicate": Refusal(
        "distinct, dropDuplicates", _DROPS, "use acker_client.spark.group(...) and name the parents of each output"
    ),
    "DeduplicateWithinWatermark": Refusal(
        "dropDuplicatesWithinWatermark", _DROPS, "use acker_client.spark.group(...) and name the parents of each output"
    ),
    "Distinct": Refusal(
        "SELECT DISTINCT", _DROPS, "use acker_client.spark.group(...) and name the parents of each output"
    ),
    "Aggregate": Refusal(
        "groupBy().agg, count, GROUP BY, pivot",
        _MERGES,
        "use acker_client.spark.group(...), whose function names the parents of each output",
    ),
    "Intersect": Refusal("intersect", _DROPS, "use acker_client.spark.cogroup(...)"),
    "Except": Refusal("subtract, exceptAll, EXCEPT", _DROPS, "use acker_client.spark.cogroup(...)"),
    "Expand": Refusal(
        "unpivot, cube, rollup, grouping sets",
        "makes copies of one edge",
        "use an operator that yields the rows, or acker_client.spark.explode(...)",
    ),
    "Unpivot": Refusal(
        "unpivot", "makes copies of one edge", "use an operator that yields the rows, or acker_client.spark.explode(...)"
    ),
    "MapInPandas": Refusal("mapInPandas", "runs code that tracks nothing", "use @pandas_operator, or @operator for rows"),
    "MapInArrow": Refusal(
        "mapInArrow of your own", "runs code that tracks nothing", "use @arrow_operator, or @operator for rows"
    ),
    "FlatMapGroupsInPandas": Refusal("applyInPandas", _MERGES, "use acker_client.spark.group(...)"),
    "FlatMapGroupsInArrow": Refusal("applyInArrow of your own", _MERGES, "use acker_client.spark.group(...)"),
    "FlatMapCoGroupsInPandas": Refusal("cogroup().applyInPandas", _MERGES, "use acker_client.spark.cogroup(...)"),
    "FlatMapCoGroupsInArrow": Refusal("cogroup().applyInArrow", _MERGES, "use acker_client.spark.cogroup(...)"),
    "ScriptTransformation": Refusal("TRANSFORM ... USING", "runs code that tracks nothing", "use @operator"),
    "LogicalRDD": Refusal(
        "df.rdd.toDF, createDataFrame, checkpoint, localCheckpoint",
        "hides where its rows come from",
        "use .cache() instead of a checkpoint, an operator instead of df.rdd, and source.batches(spark) for new rows",
    ),
    "LocalRelation": Refusal(
        "createDataFrame, VALUES",
        "makes rows that no source has emitted",
        "start from source.batches(spark), and hand tables in as the broadcast side of acker_client.spark.join(...)",
    ),
}

# One row in, the same row out, whatever else is computed beside it.
_ONE_TO_ONE = frozenset({
    "SubqueryAlias", "Repartition", "RepartitionByExpression", "RebalancePartitions", "Sort", "ResolvedHint", "View",
    "CollectMetrics", "Window", "WindowGroupLimit", "AttachDistributedSequence", "EventTimeWatermark", "PipeOperator",
    "RowIndex", "UnresolvedHint",
})  # fmt: skip

_STAGES = frozenset({"MapInArrow", "MapInPandas", "FlatMapGroupsInArrow", "FlatMapCoGroupsInArrow"})


def guard(df: DataFrame, consumer: str, *, kind: str = "operator") -> Upstream:
    """Check that ``consumer`` (the name of an operator or sink) may take the rows of ``df``, and mark them as its own.

    ``kind`` is how errors call it; only a ``"sink"`` may take the same rows again. Marks nothing when it raises.
    Raises :class:`Refused` with the node and the fix.
    """
    taker = Consumer(kind, consumer, repeatable=kind == "sink")
    upstream = inspect(df, str(taker))
    try:
        repeated = lineage.consume(upstream.nodes, taker)
    except lineage.Consumed as error:
        raise Refused(_second_consumer(error.node, taker)) from None
    if repeated and upstream.moving_boundaries:
        warnings.warn(MovingBoundaries(_moved(taker)), stacklevel=3)
    return Upstream(upstream.nodes, upstream.columns, upstream.moving_boundaries, repeated)


def inspect(df: DataFrame, consumer: str) -> Upstream:
    """As :func:`guard`, without marking: what stands below ``df``. ``consumer`` is named in errors as it is given."""
    walk = _Walk(df, consumer)
    walk.run()
    _refuse_doubles(walk.nodes, consumer)
    moving = walk.moving or any(node.moving_boundaries for node in walk.nodes)
    return Upstream(tuple(walk.nodes), walk.columns, moving)


class _Walk:
    """One walk from the top of a frame down to every tracked stage below it."""

    def __init__(self, df: DataFrame, consumer: str) -> None:
        if not hasattr(df, "_jdf"):
            raise Refused(
                f"{consumer} needs a classic Spark session: this frame is of Spark Connect, whose plans the guard cannot"
                " read yet. Build the session with .master(...), not .remote(...)."
            )
        self._df = df
        self._consumer = consumer
        self._session = df.sparkSession
        self._attributes = self._session._jvm.org.apache.spark.sql.catalyst.expressions
        self._definitions: dict[int, Plan] = {}
        self.nodes: list[Node] = []
        self.moving = False
        self.columns = _columns_of(df, consumer)

    def run(self) -> None:
        names = self._df.columns
        positions = {column: names.index(column) for column in self.columns}
        self._down(self._df._jdf.queryExecution().analyzed(), positions, cached=False)

    def _down(self, plan: Plan, positions: Positions, *, cached: bool) -> None:
        """Go from ``plan``, whose output holds the tracking columns at ``positions``, to the stages below."""
        name = plan.getClass().getSimpleName()
        if name in _STAGES:
            self._arrive(name, plan, positions)
        elif name == "Project":
            self._down(plan.child(), self._through_project(plan, positions), cached=cached)
        elif name == "Union":
            for child in _each(plan.children()):
                self._down(child, positions, cached=cached)
        elif name == "WithCTE":
            self._definitions.update((definition.id(), definition.child()) for definition in _each(plan.cteDefs()))
            self._down(plan.plan(), positions, cached=cached)
        elif name == "CTERelationRef":
            self._down(self._definition(plan), positions, cached=cached)
        elif name == "Join" and _is_ours(plan):
            self._down(plan.left(), self._through(name, plan, plan.left(), positions), cached=cached)
        elif name in _ONE_TO_ONE:
            self._note_boundaries(name, plan, cached)
            self._down(plan.child(), self._through(name, plan, plan.child(), positions), cached=cached)
        else:
            raise Refused(self._sentence(name, plan))

    def _arrive(self, name: str, plan: Plan, positions: Positions) -> None:
        function = plan.functionExpr().name()
        node = lineage.node_of(function)
        if node is None and lineage.is_ours(function):
            raise Refused(
                f"{self._consumer} cannot take this frame: the batch it belongs to is settled and forgotten. Take the frame"
                " from the batch at hand, and apply operators inside the loop over source.batches(spark)."
            )
        if node is None:
            raise Refused(self._sentence(name, plan))
        for column, position in positions.items():
            if plan.output().apply(position).name() != column:
                raise Refused(self._altered(column))
        self.nodes.append(node)

    def _through_project(self, plan: Plan, positions: Positions) -> dict[str, int]:
        below = self._attributes.__getattr__("package$AttributeSeq")(plan.child().output())
        return {
            column: self._position(below, _source_of(plan.projectList().apply(position)), column)
            for column, position in positions.items()
        }

    def _through(self, name: str, plan: Plan, child: Plan, positions: Positions) -> dict[str, int]:
        below = self._attributes.__getattr__("package$AttributeSeq")(child.output())
        return {
            column: self._position(below, plan.output().apply(position), column)
            for column, position in positions.items()
        }

    def _position(self, below: Any, attribute: Any | None, column: str) -> int:
        position = -1 if attribute is None else below.indexOf(attribute.exprId())
        if position < 0:
            raise Refused(self._altered(column))
        return int(position)

    def _definition(self, reference: Plan) -> Plan:
        definition = self._definitions.get(reference.cteId())
        if definition is None or reference.recursive():
            raise Refused(self._sentence("CTERelationRef", reference))
        return definition

    def _note_boundaries(self, name: str, plan: Plan, cached: bool) -> None:
        if not self.moving and _may_move(name, plan) and not self._is_cached(plan):
            self.moving = True

    def _is_cached(self, moving: Plan) -> bool:
        """Whether a cached frame stands between the consumer and ``moving``, or is it: then it is evaluated once."""
        session = self._session._jsparkSession
        cache = session.sharedState().cacheManager()
        above = self._df._jdf.queryExecution().analyzed()
        return any(cache.lookupCachedData(session, plan).isDefined() for plan in _between(above, moving))

    def _altered(self, column: str) -> str:
        return (
            f"{self._consumer} cannot take this frame: its column {column} is not the one that the stage before made, so its"
            " rows could not be tied to their trees. Select it unchanged (df.select(..., "
            f"{', '.join(repr(name) for name in self.columns)})); for na.fill and na.replace name your own columns with"
            " subset=[...]."
        )

    def _sentence(self, name: str, plan: Plan) -> str:
        refusal = REFUSALS.get(name)
        if refusal is None and not plan.children().size():
            return (
                f"{self._consumer} cannot take this frame: its rows come from {plan.nodeName()}, which no source tracks."
                " Start from batch.df of source.batches(spark)."
            )
        if refusal is None:
            return (
                f"{self._consumer} cannot take this frame: {plan.nodeName()} stands between it and the stage before, and is"
                " not known to keep rows one to one. Do that step in an @operator, or before the rows reach the source."
            )
        return (
            f"{self._consumer} cannot take this frame: {plan.nodeName()} ({refusal.written}) stands between it and the stage"
            f" before, and {refusal.harm}. Instead, {refusal.fix}."
        )


def _columns_of(df: DataFrame, consumer: str) -> tuple[str, ...]:
    names = df.columns
    for columns in (THIN, PACKED):
        present = [names.count(column) for column in columns]
        if all(count == 1 for count in present):
            return columns
        if any(count > 1 for count in present):
            raise Refused(
                f"{consumer} cannot take this frame: it has {' and '.join(columns)} more than once. Keep those of one side"
                " only, and use acker_client.spark.join(...) or cogroup(...) where rows of two tracked frames meet."
            )
    raise Refused(
        f"{consumer} cannot take this frame: it has lost its tracking columns (_root and _edge, or _anchors). Keep them:"
        " df.select(..., '_root', '_edge'), df.withColumnsRenamed(...) instead of toDF(...), an operator's keep=; and start"
        " from batch.df of source.batches(spark)."
    )


def _source_of(expression: Any) -> Any | None:
    """The attribute that a projected expression hands on unchanged, or None when it computes something."""
    kind = expression.getClass().getSimpleName()
    while kind in ("Alias", "Cast"):
        child = expression.child()
        if kind == "Cast" and not expression.dataType().equals(child.dataType()):
            return None
        expression, kind = child, child.getClass().getSimpleName()
    return expression if kind == "AttributeReference" else None


def _may_move(name: str, plan: Plan) -> bool:
    """Whether a second evaluation may cut the rows above this node into other tasks.

    Range partitioning samples anew for each job; without a number of partitions AQE decides anew how many there are.
    """
    if name == "Sort":
        return bool(getattr(plan, "global")())
    if name == "RebalancePartitions":
        return True
    if name != "RepartitionByExpression":
        return False
    kinds = (expression.getClass().getSimpleName() for expression in _each(plan.partitionExpressions()))
    return not plan.optNumPartitions().isDefined() or "SortOrder" in kinds


def _between(above: Plan, below: Plan) -> Iterator[Plan]:
    """``below`` and every plan on the ways from ``above`` down to it."""
    if above.fastEquals(below):
        yield above
        return
    for child in _each(above.children()):
        way = tuple(_between(child, below))
        if way:
            yield above
            yield from way
            return


def _is_ours(join: Plan) -> bool:
    """Whether this is the left outer join that the stock ``join`` plans, with at most one right row a key."""
    right = join.right()
    if join.joinType().toString() != "LeftOuter" or right.getClass().getSimpleName() != "SubqueryAlias":
        return False
    return lineage.is_admitted_join(right.alias())


def _refuse_doubles(nodes: list[Node], consumer: str) -> None:
    seen: set[str] = set()
    for node in nodes:
        if node.tag in seen:
            raise Refused(
                f"{consumer} cannot take this frame: the rows of {node} reach it twice (union(df, df), a CTE used twice), so"
                " each edge would be consumed twice. Use acker_client.spark.branch(df, 2), which gives every copy an edge of"
                " its own, and union those."
            )
        seen.add(node.tag)


def _second_consumer(node: Node, taker: Consumer) -> str:
    if node.consumer is not None and node.consumer.name == taker.name and node.consumer.kind == taker.kind:
        return (
            f"{taker} is applied twice to the rows of {node}: keep the frame it returned and go on from that. If you need"
            " the rows twice, make copies first: first, second = acker_client.spark.branch(df, 2)."
        )
    return (
        f"{taker} cannot take the rows of {node}: they go to {node.consumer} already, and each edge is consumed once. Make"
        " a copy for each consumer first: first, second = acker_client.spark.branch(df, 2)."
    )


def _moved(taker: Consumer) -> str:
    return (
        f"{taker} takes a frame a second time whose task boundaries may move between evaluations (orderBy,"
        " repartitionByRange, or repartition without a number): where they do, its records are replayed. Put .cache()"
        " behind that step, or give repartition a number."
    )


def _each(sequence: Any) -> Iterator[Any]:
    for index in range(sequence.size()):
        yield sequence.apply(index)
