"""Fusing: adds a step to a plan, in the chain of the steps right before it if possible, else in a new chain.

Decides which frames let the next step join their chain (the library's own, unchanged and not cached), and what the
guard has to know about the planned chain. The guard (``plan``) decides whether a step is allowed there at all.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from pyspark.sql import DataFrame
from pyspark.sql.types import StructType

from acker_client.spark.anchoring.anchors import TRACKING
from acker_client.spark.commit_evidence import acked
from acker_client.spark.driver import catalyst, lineage
from acker_client.spark.driver.columns import into_python, tracking_fields
from acker_client.spark.plan_check import plan, refusals
from acker_client.spark.worker.chain import Arriving, Chain, Step, task_function
from acker_client.spark.worker.notes import note_store_of
from acker_client.spark.worker.picking import PickingStep, Picks


@dataclass(frozen=True, slots=True)
class AppliedChain:
    """A chain and the frame that it was applied to. The resulting frame carries this, so that the next step can join
    the chain.

    Holds its batches, so that the guard knows the frame as long as the frame lives. ``function``: the name of the
    chain's function in the plan. ``names``: the columns of its output. ``picks``: the columns that the user has picked
    from them, and their new names; None for all.
    """

    base: DataFrame
    chain: Chain
    batches: tuple[Any, ...]
    function: str = ""
    names: tuple[str, ...] = ()
    picks: Picks | None = None

    def then(self, step: Step, *, is_tracked: bool = True) -> Chain:
        """Return the chain with one more step."""
        joining = step if self.picks is None else PickingStep(step, self.picks)
        return self.chain.then(joining, is_tracked=is_tracked)


def chain_of(df: DataFrame, upstream: plan.Upstream) -> AppliedChain:
    """Return the chain of the steps right before ``df`` if the next step may join it, else a new one.

    ``upstream``: what the guard has found in ``df``.
    """
    return applied_to(df) or arriving(df, upstream)


def arriving(df: DataFrame, upstream: plan.Upstream) -> AppliedChain:
    """Return a new chain that begins with the rows of ``df``."""
    batches: tuple[Any, ...] = upstream.batches
    if any(batch.settings.tracking != is_tracked(upstream) for batch in batches):
        raise refusals.tracked_and_not(upstream.nodes)
    base, names = into_python(df)
    # Rows of several batches may meet here, and each batch has its own servers.
    pins = tuple({(pin.session, pin.batch): pin for batch in batches for pin in batch.settings.pins}.values())
    return AppliedChain(base, Chain(replace(batches[0].settings, pins=pins), Arriving(names)), batches)


def is_tracked(upstream: plan.Upstream) -> bool:
    """Whether the batch of these steps is tracked."""
    batch: Any = upstream.batch
    tracking: bool = batch.settings.tracking
    return tracking


def extend(applied: AppliedChain, upstream: plan.Upstream, step: Step, kind: str, schema: StructType) -> DataFrame:
    """Return the frame of ``applied`` with one more step.

    ``upstream``: its columns and task boundaries. ``schema``: that of the output, without tracking columns.
    """
    chain = applied.then(step)
    columns, batches = upstream.columns, applied.batches
    out, node = plan_chain(applied.base, chain, kind, step.name, schema, columns, batches)
    node.moving_boundaries, node.moves = upstream.moving_boundaries, upstream.moves
    remember(out, AppliedChain(applied.base, chain, batches, node.function, names_of(schema, columns)))
    # Copies of a branch are not cached: each evaluation makes them again from rows that are cached.
    if kind != "branch" and batches[0].once.must_cache(kind, step.name):
        batches[0].keep_cached(out)
        node.moving_boundaries = False
    return out


def plan_chain(
    base: DataFrame,
    chain: Chain,
    kind: str,
    name: str,
    schema: StructType,
    columns: tuple[str, ...],
    batches: tuple[object, ...],
) -> tuple[DataFrame, lineage.Node]:
    """Return ``base`` with ``chain`` above it, under a function name that the guard recognizes. The frame of a tracked
    chain is planned when it is first needed."""
    node = lineage.register(kind, name, *batches)
    note_store = note_store_of(base.sparkSession.sparkContext)
    note_store.keep_notes(node.tag)
    function = task_function(replace(chain, tag=node.tag, note_writer=note_store.note_writer))
    function.__name__ = node.function
    fields = StructType([*schema.fields, *tracking_fields(columns)] if chain.is_tracked else schema.fields)

    def plan_frame() -> DataFrame:
        return acked.plain(base).mapInArrow(function, fields)

    if not chain.is_tracked:
        return plan_frame(), node
    return acked.frame_of_step(base.sparkSession, acked.Unplanned(node, fields, plan_frame), batches[0]), node


def remember(df: DataFrame, applied: AppliedChain) -> None:
    """Store on a frame how it was made. A frame that the user derives from it does not carry this."""
    setattr(df, acked.CHAIN, applied)


def names_of(schema: StructType, columns: tuple[str, ...]) -> tuple[str, ...]:
    """Return the names of a step's output columns: the user's columns, then the tracking columns."""
    return (*schema.names, *(field.name for field in tracking_fields(columns)))


def applied_to(df: DataFrame) -> AppliedChain | None:
    """Return how ``df`` was made if the next step may join its chain: it is the library's own frame, or the user has
    only picked and renamed its columns, and nothing is cached."""
    if df.is_cached:
        return None
    own: AppliedChain | None = vars(df).get(acked.CHAIN)
    applied = own or _picked(df, vars(df).get(acked.BELOW))
    if applied is None or not acked.is_planned(df):
        return applied
    level = df.storageLevel
    return None if level.useMemory or level.useDisk else applied


def _picked(df: DataFrame, below: AppliedChain | None) -> AppliedChain | None:
    """Return how ``df`` was made, if it only picks and renames columns of the frame that ``below`` describes; None for
    any other frame."""
    positions = None if below is None else catalyst.picked_columns(df, below.function)
    if below is None or positions is None:
        return None
    picks = tuple((below.names[position], name) for position, name in zip(positions, df.columns, strict=True))
    # A chain keeps anchors apart from columns, so a step cannot take them under other names.
    if any(old != new for old, new in picks if old in TRACKING or new in TRACKING):
        return None
    return replace(below, picks=tuple((old, new) for old, new in picks if new not in TRACKING))
