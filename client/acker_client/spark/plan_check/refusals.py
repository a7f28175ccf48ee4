"""Refusals: the errors of the plan guard about frames that it refuses, each with what to use instead.

Decides the texts, and for each kind of plan node the harm it does and the fix. Never looks at a plan.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from acker_client.errors import AckerError
from acker_client.spark import compat
from acker_client.spark.anchoring.anchors import TRACKING, reserved
from acker_client.spark.driver.lineage import Consumer, Node


class Refused(AckerError):
    """The frame cannot be tracked. The message names the node and what to use instead."""

    # A retry cannot help. ``blame`` reads this.
    is_of_the_program = True


class MovingBoundaries(UserWarning):
    """A frame whose task boundaries may move was evaluated a second time. This is safe, but may cost a replay."""


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why a node is refused. ``written``: the calls that plan it; ``harm``: what it does to rows; ``fix``: what to use
    instead."""

    written: str
    harm: str
    fix: str


_DROPS = "drops rows without acking them, so their trees would end unfinished"
_MULTIPLIES = "may drop a row or hand on several copies of one edge"
_COPIES = "makes copies of one edge, or none"
_MERGES = "makes one row of several and loses their anchors"
_UNTRACKED = "runs code that tracks nothing"

_WHERE = "use df.transform(acker_client.spark.where(condition)), which acks what it drops"
_EXPLODE = "use df.transform(acker_client.spark.explode(...)), which gives every child an edge of its own"
_YIELD_NOTHING = "use an @operator that yields nothing for what it drops, or limit the source"
_PART = (
    "use df.transform(acker_client.spark.where(condition)) on a hash of a column, or branch(...) with a where for each"
    " part"
)
_GROUP = "use acker_client.spark.group(...), whose function names the parents of each output"
_COGROUP = "acker_client.spark.cogroup(...), whose function names the parents of each output"
_JOIN = f"use acker_client.spark.join(...) with an untracked table; for two tracked frames use {_COGROUP}"
_YIELD_MANY = "use an @operator that yields the rows, or acker_client.spark.explode(...)"

REFUSALS: dict[str, Refusal] = {
    "Filter": Refusal("filter, where, na.drop, sampleBy, IN (subquery)", _DROPS, _WHERE),
    "Join": Refusal("join, crossJoin, semi and anti join", _MULTIPLIES, _JOIN),
    "LateralJoin": Refusal("lateral subquery", _MULTIPLIES, _JOIN),
    "AsOfJoin": Refusal("as-of join", _MULTIPLIES, _JOIN),
    "Generate": Refusal("explode, inline, posexplode, stack, lateral view", _COPIES, _EXPLODE),
    "GlobalLimit": Refusal("limit", _DROPS, _YIELD_NOTHING),
    "LocalLimit": Refusal("limit", _DROPS, _YIELD_NOTHING),
    "Tail": Refusal("tail", _DROPS, _YIELD_NOTHING),
    "Offset": Refusal("offset", _DROPS, _YIELD_NOTHING),
    "Sample": Refusal("sample, randomSplit, TABLESAMPLE", _DROPS, _PART),
    "Deduplicate": Refusal("distinct, dropDuplicates", _DROPS, _GROUP),
    "DeduplicateWithinWatermark": Refusal("dropDuplicatesWithinWatermark", _DROPS, _GROUP),
    "Distinct": Refusal("SELECT DISTINCT", _DROPS, _GROUP),
    "Aggregate": Refusal("groupBy().agg, count, GROUP BY, pivot", _MERGES, _GROUP),
    "Intersect": Refusal("intersect", _DROPS, _JOIN),
    "Except": Refusal("subtract, exceptAll, EXCEPT", _DROPS, _JOIN),
    "Expand": Refusal("unpivot, cube, rollup, grouping sets", _COPIES, _YIELD_MANY),
    "MapInPandas": Refusal("mapInPandas", _UNTRACKED, "use @pandas_operator, or @operator for rows"),
    "MapInArrow": Refusal("mapInArrow of your own", _UNTRACKED, "use @arrow_operator, or @operator for rows"),
    "FlatMapGroupsInPandas": Refusal("groupBy().applyInPandas", _MERGES, _GROUP),
    "FlatMapGroupsInArrow": Refusal("groupBy().applyInArrow of your own", _MERGES, _GROUP),
    "FlatMapCoGroupsInPandas": Refusal("cogroup().applyInPandas", _MERGES, f"use {_COGROUP}"),
    "FlatMapCoGroupsInArrow": Refusal("cogroup().applyInArrow of your own", _MERGES, f"use {_COGROUP}"),
    "ScriptTransformation": Refusal("TRANSFORM ... USING", _UNTRACKED, "use @operator"),
    "LogicalRDD": Refusal(
        "df.rdd.toDF, createDataFrame, checkpoint, localCheckpoint",
        "hides where its rows come from",
        "use .cache() for a checkpoint, an @operator for df.rdd, and source.batches(spark) for new rows",
    ),
    "LocalRelation": Refusal(
        "createDataFrame, VALUES",
        "makes rows that no source has emitted",
        "start from batch.df of source.batches(spark); a table goes in as one side of acker_client.spark.join(...) or"
        " cogroup(...)",
    ),
}


def unknown_node(consumer: str, node_name: str) -> Refused:
    return _refused(
        consumer,
        f"{node_name} stands between it and the step before, and is not known to keep rows one to one. Do that step in"
        " an @operator, or before the rows reach the source.",
    )


def untracked_leaf(consumer: str, node_name: str) -> Refused:
    return _refused(
        consumer,
        f"its rows come from {node_name}, which no source tracks. Start from batch.df of source.batches(spark); a table"
        " without tracking goes in as one side of acker_client.spark.join(...) or cogroup(...).",
    )


def streaming_frame(consumer: str) -> Refused:
    return _refused(
        consumer,
        "it is a streaming frame (spark.readStream), and streams are not tracked yet. Read with a source of"
        " acker_client.source, and start from batch.df of source.batches(spark).",
    )


def known_node(consumer: str, node_name: str, refusal: Refusal) -> Refused:
    return _refused(
        consumer,
        f"{node_name} ({refusal.written}) stands between it and the step before, and {refusal.harm}."
        f" Instead, {refusal.fix}.",
    )


def settled_batch(consumer: str) -> Refused:
    return _refused(
        consumer,
        "the batch that it belongs to is settled and forgotten. Take the frame from the batch at hand, and apply"
        " operators inside the loop over source.batches(spark).",
    )


def altered_column(consumer: str, column: str, columns: Sequence[str]) -> Refused:
    kept = ", ".join(repr(name) for name in columns)
    return _refused(
        consumer,
        f"its column {column} is not the one that the step before made, so its rows could not be tied to their trees."
        f" Select it unchanged, as df.select(..., {kept}); for na.fill and na.replace name your own columns with"
        " subset=[...].",
    )


def lost_columns(consumer: str) -> Refused:
    return _refused(
        consumer,
        "it has lost its tracking columns (_root and _edge, or _anchors). Keep them, as df.select(..., '_root',"
        " '_edge'); use df.withColumnsRenamed(...) instead of toDF(...); and start from batch.df of"
        " source.batches(spark).",
    )


def respelled(consumer: str, names: Sequence[str]) -> Refused | None:
    """Return the error about a tracking column in another case; None if there is none."""
    found = [name for name in reserved(names) if name not in TRACKING]
    if not found:
        return None
    return _refused(
        consumer,
        f"its column {found[0]!r} is not {found[0].lower()!r}, and Spark takes the two for one name. Select the acker's"
        f" column as {found[0].lower()!r}, and give one of your own another name.",
    )


def doubled_name(consumer: str, name: str) -> Refused:
    return _refused(
        consumer, f"it has the column {name!r} more than once. Select it once, or rename one of them where they meet."
    )


def doubled_columns(consumer: str, columns: Sequence[str]) -> Refused:
    return _refused(
        consumer,
        f"it has {' and '.join(columns)} more than once. Keep those of one side only, and {_JOIN}.",
    )


def rows_twice(consumer: str, node: Node) -> Refused:
    return _refused(
        consumer,
        f"the rows of {node} reach it twice (union(df, df), both sides of a cogroup, a CTE used twice), so each edge"
        " would be consumed twice. Use acker_client.spark.branch(df, 2), which gives every copy an edge of its own.",
    )


def tracked_and_not(nodes: Sequence[Node]) -> Refused:
    return Refused(
        f"the rows of {' and '.join(map(str, nodes))} meet, and tracking is off for some of their sources and on for"
        " others: turn it on or off for all of them"
    )


def connect_frame(consumer: str) -> Refused:
    return _refused(consumer, f"{compat.CONNECT}.")


def second_consumer(taker: Consumer, node: Node) -> Refused:
    """Return the error that another consumer, or the same operator, already takes the rows of ``node``."""
    if node.consumer is not None and (node.consumer.kind, node.consumer.name) == (taker.kind, taker.name):
        return Refused(
            f"{taker} is applied twice to the rows of {node}: keep the frame that it returned and go on from that. If"
            " you need the rows twice, make copies first: first, second = acker_client.spark.branch(df, 2)."
        )
    return Refused(
        f"{taker} cannot take the rows of {node}: they go to {node.consumer} already, and each edge is consumed once."
        " Make a copy for each consumer first: first, second = acker_client.spark.branch(df, 2)."
    )


def other_partitioning(consumer: str) -> Refused:
    return _refused(
        consumer,
        "it has taken the same rows before in other partitions. Each task reports the rows that it has read, so the"
        " reports of the two calls would not match, and every record would be replayed. Repartition inside of the sink,"
        " give both calls one repartitioned frame, or make copies: first, second = acker_client.spark.branch(df, 2).",
    )


def moving_boundaries(taker: Consumer) -> MovingBoundaries:
    return MovingBoundaries(
        f"{taker} takes a frame a second time whose task boundaries may move between evaluations (orderBy,"
        " repartitionByRange, repartition without a number, rebalance): where they do, its records are replayed. Put"
        " .cache() behind that step, or give repartition a number."
    )


def _refused(consumer: str, why: str) -> Refused:
    return Refused(f"{consumer} cannot take this frame: {why}")
