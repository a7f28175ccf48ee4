"""Plan: the guard that checks the plan below every operator and sink.

Decides from the analysed plan whether the rows that reach a consumer are exactly the rows that tracked steps made. It
walks down to these steps, recognizes them by the names of their functions, and traces each tracking column to its own
position in their output. Nodes that keep rows one to one are allowed in between. Everything else is refused, and the
error says what to use instead. Reads plans only: it runs no job, changes no frame and knows nothing about the server.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from pyspark.sql import DataFrame

from acker_client.spark import compat
from acker_client.spark.anchoring.anchors import MIXED, PACKED, THIN, TRACKING
from acker_client.spark.commit_evidence import acked
from acker_client.spark.commit_evidence.executions import Executions
from acker_client.spark.commit_evidence.following import analyzed
from acker_client.spark.driver import lineage
from acker_client.spark.driver.catalyst import each
from acker_client.spark.driver.lineage import ACK, Consumer, Node
from acker_client.spark.plan_check import refusals
from acker_client.spark.plan_check.refusals import REFUSALS, MovingBoundaries, Refused

__all__ = ["MovingBoundaries", "Refused", "Upstream", "guard", "inspect", "is_plain", "mark_consumed", "meeting"]

# py4j gives Java objects no type that a checker could use.
Plan = Any
Positions = Mapping[str, int]


@dataclass(frozen=True, slots=True)
class Upstream:
    """The tracked steps whose rows reach a consumer, one for each leg of a union.

    ``columns``: THIN, PACKED or MIXED. ``moving_boundaries``: a second evaluation may split these rows into tasks
    differently. ``moves``: the boundaries move because of a node between these steps and the consumer. ``repeated``:
    the same sink has taken these rows before. ``partitioning``: the nodes between these steps and the consumer that
    split the rows into tasks anew, each as text; equal for equal nodes.
    """

    nodes: tuple[Node, ...]
    columns: tuple[str, ...]
    moving_boundaries: bool
    moves: bool = False
    repeated: bool = False
    partitioning: tuple[str, ...] = ()

    @property
    def node(self) -> Node:
        """The step before; for a union, the step of its first leg."""
        return self.nodes[0]

    @property
    def batch(self) -> object:
        return self.node.batch

    @property
    def batches(self) -> tuple[object, ...]:
        """All batches whose rows reach the consumer, without duplicates."""
        return tuple({id(batch): batch for node in self.nodes for batch in node.batches}.values())


# Nodes that put out each input row exactly once; they may compute more columns.
_ONE_TO_ONE = frozenset({
    "SubqueryAlias", "Repartition", "RepartitionByExpression", "RebalancePartitions", "Sort", "ResolvedHint", "View",
    "CollectMetrics", "Window", "AttachDistributedSequence", "EventTimeWatermark", "PipeOperator",
})  # fmt: skip

_STEPS = frozenset({"MapInArrow", "FlatMapGroupsInArrow", "FlatMapCoGroupsInArrow"})


def guard(df: DataFrame, consumer: str, *, kind: str = "operator") -> Upstream:
    """Check that ``consumer`` (the name of an operator or sink) may take the rows of ``df``, and mark them as taken.

    ``kind``: the consumer's kind in errors; only a ``"sink"`` may take the same rows again. Raises :class:`Refused`
    with the node and the fix, and then marks nothing.
    """
    return mark_consumed(df, inspect(df, f"{kind} {consumer!r}"), consumer, kind=kind)


def mark_consumed(df: DataFrame, upstream: Upstream, consumer: str, *, kind: str = "operator") -> Upstream:
    """Mark the rows of ``df`` as taken. ``upstream``: what :func:`inspect` found. The second half of :func:`guard`."""
    taker = Consumer(kind, consumer, repeatable=kind == "sink")
    try:
        repeated = lineage.consume(upstream.nodes, taker)
    except lineage.Consumed as error:
        raise refusals.second_consumer(taker, error.node) from None
    if upstream.moving_boundaries and taker.repeatable and (repeated or _have_run(df, upstream.nodes)):
        warnings.warn(refusals.moving_boundaries(taker), stacklevel=3)
    for node in upstream.nodes:
        node.is_moved |= upstream.moves
    return replace(upstream, repeated=repeated)


def mark_acked(upstream: Upstream, calls: str) -> None:
    """Mark the rows of ``upstream`` as taken by a column with these ``calls`` of ``ack()`` functions. The same calls
    may take them again, because they make the same report."""
    taker = Consumer("column", calls, repeatable=True)
    try:
        lineage.consume(upstream.nodes, taker)
    except lineage.Consumed as error:
        raise refusals.second_consumer(taker, error.node) from None


def inspect(df: DataFrame, consumer: str) -> Upstream:
    """Check the plan of ``df`` and return the steps below it. Does the first half of :func:`guard`, and marks nothing.

    ``consumer``: kind and name, as errors show them.
    """
    walk = _Walk(df, consumer)
    walk.run()
    _refuse_doubles(walk.nodes, consumer)
    moving = walk.moving or any(node.moving_boundaries for node in walk.nodes)
    partitioning = tuple(walk.partitioning)
    upstream = Upstream(tuple(walk.nodes), walk.columns, moving, walk.moving, partitioning=partitioning)
    # A step's own frame has no ack() column above the step.
    if acked.step_of(df) is None and _is_acked_at_once(upstream) and ACK in analyzed(df):
        acked.refuse_acked_edges(df, consumer)
    return upstream


def meeting(upstreams: Sequence[Upstream], consumer: str) -> Upstream:
    """Return the steps below a consumer of several frames at once, from the ``upstreams`` of each single frame.

    Raises :class:`Refused` if the rows of a step reach the consumer through more than one frame.
    """
    nodes = [node for upstream in upstreams for node in upstream.nodes]
    _refuse_doubles(nodes, consumer)
    moving = any(upstream.moving_boundaries for upstream in upstreams)
    return Upstream(tuple(nodes), PACKED, moving, any(upstream.moves for upstream in upstreams))


def splits_alike(df: DataFrame, other: DataFrame, partitioning: tuple[str, ...], others: tuple[str, ...]) -> bool:
    """Whether both frames split the rows of the same steps into the same tasks. ``partitioning`` and ``others``: what
    :func:`inspect` found in them."""
    return partitioning == others and (not partitioning or _round_robins(df) == _round_robins(other))


def refuse_other_partitioning(df: DataFrame, consumer: str, steps: Sequence[Node]) -> None:
    """Raise :class:`Refused` if the ``steps`` of ``consumer`` have run already, over the rows of ``df`` in other
    tasks."""
    if _have_run(df, steps):
        raise refusals.other_partitioning(consumer)


def _round_robins(df: DataFrame) -> list[int]:
    """Return a hash of each plan whose rows Spark spreads over all tasks. Rows with other columns go to other tasks,
    and Spark drops columns that nothing needs."""
    nodes = _subtree(df._jdf.queryExecution().optimizedPlan())
    return [int(plan.semanticHash()) for plan in nodes if plan.getClass().getSimpleName() == "Repartition"]


def is_plain(df: DataFrame) -> bool:
    """Whether a frame is a plain table: nothing below it is tracked, and it is not a streaming frame."""
    return not df.isStreaming and not any(map(_is_tracked, _subtree(df._jdf.queryExecution().analyzed())))


def refuse_other_frames(df: object, consumer: str) -> None:
    """Raise TypeError for anything but a DataFrame, and :class:`Refused` for a Spark Connect frame, whose plan is not
    in this process."""
    if not isinstance(df, DataFrame):
        raise TypeError(f"{consumer} takes a tracked DataFrame, got {type(df).__name__}; start from batch.df")
    if compat.is_connect(df):
        raise refusals.connect_frame(consumer)


def _is_acked_at_once(upstream: Upstream) -> bool:
    """Whether an ack of these rows counts as soon as its task has ended, because their batch is not held."""
    return not all(getattr(batch, "held", True) for batch in upstream.batches)


def _have_run(df: DataFrame, nodes: Sequence[Node]) -> bool:
    return Executions(df.sparkSession).have_run([node.function for node in nodes])


class _Walk:
    """One walk from the top of a frame down to every tracked step below it."""

    def __init__(self, df: DataFrame, consumer: str) -> None:
        refuse_other_frames(df, consumer)
        self._df = df
        self._consumer = consumer
        self._session = df.sparkSession
        self._definitions: dict[int, Plan] = {}
        self.nodes: list[Node] = []
        self.moving = False
        self.partitioning: list[str] = []
        self.columns = _columns_of(df, consumer)

    def run(self) -> None:
        names = self._df.columns
        if not self.columns:
            raise self._why_lost(self._df._jdf.queryExecution().analyzed())
        if respelled := refusals.respelled(self._consumer, names):
            raise respelled
        twice = next((name for name in names if names.count(name) > 1), None)
        if twice is not None:
            raise refusals.doubled_name(self._consumer, twice)
        # A step's own frame needs no walk: its plan is the step itself, on top.
        if (step := acked.step_of(self._df)) is not None:
            self._remembered(step.function)
            self.nodes.append(step)
        else:
            top = self._df._jdf.queryExecution().analyzed()
            self._walk_down(top, {column: names.index(column) for column in self.columns})

    @cached_property
    def _attribute_seq(self) -> Any:
        jvm: Any = self._session._jvm
        return getattr(jvm.org.apache.spark.sql.catalyst.expressions, "package$AttributeSeq")

    def _walk_down(self, plan: Plan, positions: Positions) -> None:
        """Walk down to the steps below ``plan``, whose output holds the tracking columns at ``positions``."""
        name = plan.getClass().getSimpleName()
        if name in _STEPS:
            self._reach_step(name, plan, positions)
        elif name == "Project":
            self._walk_down(plan.child(), self._through_project(plan, positions))
        elif name == "Union":
            for child in each(plan.children()):
                self._walk_down(child, positions)
        elif name == "WithCTE":
            self._definitions.update((definition.id(), definition.child()) for definition in each(plan.cteDefs()))
            self._walk_down(plan.plan(), positions)
        elif name == "CTERelationRef":
            self._walk_down(self._definition(plan), positions)
        elif name == "Join" and _is_stock_join(plan):
            self._walk_down(plan.left(), self._through(plan, plan.left(), positions))
        elif name in _ONE_TO_ONE:
            self._note_boundaries(name, plan)
            self._walk_down(plan.child(), self._through(plan, plan.child(), positions))
        else:
            raise self._refusal(name, plan)

    def _reach_step(self, name: str, plan: Plan, positions: Positions) -> None:
        function = plan.functionExpr().name()
        node = self._remembered(function)
        if node is None:
            raise self._refusal(name, plan)
        for column, position in positions.items():
            if plan.output().apply(position).name() != column:
                raise refusals.altered_column(self._consumer, column, self.columns)
        # In a mixed frame, this leg's step makes the columns of one form, and the columns of the other form are null.
        if tuple(positions) not in (THIN, PACKED):
            lacking = next(column for column in self.columns if column not in positions)
            raise refusals.altered_column(self._consumer, lacking, self.columns)
        self.nodes.append(node)

    def _remembered(self, function: str) -> Node | None:
        """Return the step with this function; None if it is not a tracked step. Raises :class:`Refused` for a step that
        is forgotten with its batch."""
        node = lineage.node_of(function)
        if node is None and lineage.is_ours(function):
            raise refusals.settled_batch(self._consumer)
        return node

    def _through_project(self, plan: Plan, positions: Positions) -> dict[str, int]:
        below = self._attribute_seq(plan.child().output())
        projected = {column: plan.projectList().apply(position) for column, position in positions.items()}
        return {
            column: self._position(below, _source_of(expression), column)
            for column, expression in projected.items()
            if not _is_null(expression)
        }

    def _through(self, plan: Plan, child: Plan, positions: Positions) -> dict[str, int]:
        below = self._attribute_seq(child.output())
        return {
            column: self._position(below, plan.output().apply(position), column)
            for column, position in positions.items()
        }

    def _position(self, below: Any, attribute: Any | None, column: str) -> int:
        position = -1 if attribute is None else below.indexOf(attribute.exprId())
        if position < 0:
            raise refusals.altered_column(self._consumer, column, self.columns)
        return int(position)

    def _definition(self, reference: Plan) -> Plan:
        definition = self._definitions.get(reference.cteId())
        if definition is None or reference.recursive():
            raise self._refusal("CTERelationRef", reference)
        return definition

    def _note_boundaries(self, name: str, plan: Plan) -> None:
        if name == "Repartition":
            self.partitioning.append(f"{plan.numPartitions()} {plan.shuffle()}")
        elif name == "RepartitionByExpression":
            self.partitioning.append(f"{plan.optNumPartitions()} {plan.partitionExpressions()}")
        if not self.moving and _may_move(name, plan) and not self._is_cached(plan):
            self.moving = True

    def _is_cached(self, moving: Plan) -> bool:
        """Whether ``moving``, or a frame between it and the consumer, is cached. If so, ``moving`` is evaluated only
        once."""
        session = self._session._jsparkSession
        cache = session.sharedState().cacheManager()
        above = self._df._jdf.queryExecution().analyzed()
        return any(cache.lookupCachedData(session, plan).isDefined() for plan in _between(above, moving))

    def _why_lost(self, top: Plan) -> Refused:
        """Return why a frame has no tracking columns: nothing tracks it, a node merged them, or a select lost them."""
        if self._df.isStreaming:
            return refusals.streaming_frame(self._consumer)
        if not any(map(_is_tracked, _subtree(top))):
            leaf = next(plan for plan in _subtree(top) if not plan.children().size())
            return refusals.untracked_leaf(self._consumer, leaf.nodeName())
        if respelled := refusals.respelled(self._consumer, self._df.columns):
            return respelled
        for plan in _subtree(top):
            name = plan.getClass().getSimpleName()
            if _is_tracked(plan) or (name == "Join" and _is_stock_join(plan)):
                break
            if name in REFUSALS:
                return refusals.known_node(self._consumer, plan.nodeName(), REFUSALS[name])
        return refusals.lost_columns(self._consumer)

    def _refusal(self, name: str, plan: Plan) -> Refused:
        if name in REFUSALS:
            return refusals.known_node(self._consumer, plan.nodeName(), REFUSALS[name])
        if not plan.children().size():
            return refusals.untracked_leaf(self._consumer, plan.nodeName())
        return refusals.unknown_node(self._consumer, plan.nodeName())


def _columns_of(df: DataFrame, consumer: str) -> tuple[str, ...]:
    """Return the tracking columns of ``df``; () unless it has all columns of one form."""
    names = df.columns
    for columns in (THIN, PACKED):
        if any(names.count(column) > 1 for column in columns):
            raise refusals.doubled_columns(consumer, columns)
    present = tuple(column for column in TRACKING if column in names)
    return present if present in (THIN, PACKED, MIXED) else ()


def _source_of(expression: Any) -> Any | None:
    """Return the attribute that a projected expression passes on unchanged; None if it computes something."""
    kind = expression.getClass().getSimpleName()
    while kind in ("Alias", "Cast"):
        child = expression.child()
        if kind == "Cast" and not expression.dataType().equals(child.dataType()):
            return None
        expression, kind = child, child.getClass().getSimpleName()
    return expression if kind == "AttributeReference" else None


def _is_null(expression: Any) -> bool:
    """Whether a projected expression is null. ``allowMissingColumns`` puts a null in for a column that a leg lacks."""
    while expression.getClass().getSimpleName() in ("Alias", "Cast"):
        expression = expression.child()
    return expression.getClass().getSimpleName() == "Literal" and expression.value() is None


def _may_move(name: str, plan: Plan) -> bool:
    """Whether a second evaluation may split the rows above this node into tasks differently.

    Range partitioning samples again for each job. AQE chooses the number of partitions again unless it is given.
    """
    if name == "Sort":
        return bool(getattr(plan, "global")())
    if name == "RebalancePartitions":
        return True
    if name != "RepartitionByExpression":
        return False
    kinds = (expression.getClass().getSimpleName() for expression in each(plan.partitionExpressions()))
    return not plan.optNumPartitions().isDefined() or "SortOrder" in kinds


def _between(above: Plan, below: Plan) -> Iterator[Plan]:
    """Yield the plans on the path from ``above`` down to ``below``, both included; nothing if there is no path."""
    if above.fastEquals(below):
        yield above
        return
    for child in each(above.children()):
        path = tuple(_between(child, below))
        if path:
            yield above
            yield from path
            return


def _is_stock_join(join: Plan) -> bool:
    """Whether the acker's own ``join`` planned this left outer join, with at most one right row for each key."""
    right = join.right()
    if join.joinType().toString() != "LeftOuter" or right.getClass().getSimpleName() != "SubqueryAlias":
        return False
    return lineage.is_admitted_join(right.alias())


def _refuse_doubles(nodes: list[Node], consumer: str) -> None:
    seen: set[str] = set()
    for node in nodes:
        if node.tag in seen:
            raise refusals.rows_twice(consumer, node)
        seen.add(node.tag)


def _is_tracked(plan: Plan) -> bool:
    """Whether a node is a tracked step of any batch, including forgotten batches."""
    return plan.getClass().getSimpleName() in _STEPS and lineage.is_ours(plan.functionExpr().name())


def _subtree(plan: Plan) -> Iterator[Plan]:
    """Yield ``plan`` and every plan below it, level by level."""
    level = [plan]
    while level:
        yield from level
        level = [child for parent in level for child in each(parent.children())]
