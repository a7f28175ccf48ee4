"""Lineage: which tracked steps the driver has planned, and what consumes the rows of each.

The rows of a step have one consumer. Each edge is consumed once, and a second consumer would claim the same edges in a
different report. The same sink may take the same rows again, because it makes the same report.

Holds batches weakly, so that the memory of a driver that runs for months does not grow. A step is forgotten with the
batches whose rows it takes (several if frames of two sources meet). Never looks at a Spark plan (``plan`` does), and
never talks to a server.
"""

from __future__ import annotations

import re
import secrets
import threading
import weakref
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

# Prefix of the UDFs of `functions.ack` and `fail` in a plan.
ACK = "acker_ack_"
# Prefix of the user's watched functions in a plan.
READS = "acker_reads_"
# Prefix of the function that marks checkpointed rows of a sink in a plan.
AGAIN = "acker_again_"
# Prefix of the function that marks checkpointed rows as a part of the sink's rows.
PART = "acker_part_"
# Prefix of the tag of a followed RDD's jobs. The client observes their end at the calls that begin them.
JOB_TAG = "acker-"

TAG_CHARS = 12
FUNCTION = re.compile(r"^acker_(?P<kind>[a-z]+)_(?P<name>.*)_(?P<tag>[0-9a-f]{12})$", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Consumer:
    """The consumer of a step's rows. ``repeatable``: it is a sink, whose second run makes the same report again."""

    kind: str
    name: str
    repeatable: bool = False

    def __str__(self) -> str:
        return f"{self.kind} {self.name!r}"


@dataclass(eq=False, slots=True)
class Node:
    """One applied tracked step: a source's read, an operator, a built-in operator.

    ``batches``: the batches whose rows it takes, held weakly. ``moving_boundaries``: a second evaluation may split the
    rows that reach this step into tasks differently. ``moves``: the boundaries move because of a node between this step
    and the step before it. ``is_moved``: they move because of a node between this step and a step that takes its rows.
    """

    kind: str
    name: str
    tag: str
    batch_refs: tuple[weakref.ref[object], ...]
    moving_boundaries: bool = False
    moves: bool = False
    is_moved: bool = field(default=False, init=False)
    consumer: Consumer | None = field(default=None, init=False)

    @property
    def batches(self) -> tuple[object, ...]:
        """The batches of the step. Raises ``LookupError`` if one of them is settled and forgotten."""
        batches = tuple(batch for ref in self.batch_refs if (batch := ref()) is not None)
        if len(batches) < len(self.batch_refs) or not batches:
            raise LookupError(f"the batch of {self} is settled and forgotten: take the frame from the batch at hand")
        return batches

    @property
    def batch(self) -> object:
        """The first of :attr:`batches`."""
        return self.batches[0]

    @property
    def function(self) -> str:
        """The name of the step's function. It identifies the step in a plan."""
        return function_name(self.kind, self.name, self.tag)

    def __str__(self) -> str:
        return f"{self.kind} {self.name!r}"


_lock = threading.RLock()
_nodes: dict[str, Node] = {}
_tags_of: dict[int, list[str]] = {}  # by id() of a batch
_joins: set[str] = set()


def new_tag() -> str:
    """Draw the 12 hex digits that name one applied step."""
    return secrets.token_hex(TAG_CHARS // 2)


def function_name(kind: str, name: str, tag: str) -> str:
    """Return the name of a tracked step's function, by which the guard recognizes the step in a plan."""
    return f"acker_{kind}_{name}_{tag}"


def name_of_column(function: str) -> str:
    """Return the user's name of an ``ack()`` column, from that of its function."""
    return function[len(ACK) : -TAG_CHARS - 1]


def register(
    kind: str,
    name: str,
    *batches: object,
    tag: str | None = None,
    moving_boundaries: bool = False,
    moves: bool = False,
) -> Node:
    """Remember a step as long as all ``batches`` (weakly referenced) live, and return its node. Draws a tag unless one
    is given."""
    node = Node(kind, name, tag or new_tag(), tuple(map(weakref.ref, batches)), moving_boundaries, moves)
    with _lock:
        if node.tag in _nodes:
            raise ValueError(f"tag {node.tag} names {_nodes[node.tag]} already: a step is registered once")
        _nodes[node.tag] = node
        for batch in batches:
            _keep_with(batch, node.tag)
    return node


def steps_of(batch: object) -> list[Node]:
    """Return the steps that take rows of ``batch``, in the order in which they were planned."""
    with _lock:
        return [_nodes[tag] for tag in _tags_of.get(id(batch), ()) if tag in _nodes]


def node_of(function: str) -> Node | None:
    """Return the step whose function has this name; None if it is not a tracked step, or was forgotten."""
    match = FUNCTION.match(function)
    return None if match is None else _nodes.get(match["tag"])


def is_ours(function: str) -> bool:
    """Whether a function's name is the name of a tracked step, including steps that are forgotten."""
    return FUNCTION.match(function) is not None


def consume(nodes: Sequence[Node], consumer: Consumer) -> bool:
    """Mark the rows of all ``nodes`` as taken by ``consumer``, and return whether ``consumer`` had taken any of them
    before.

    Raises :class:`Consumed` for the first node whose rows go to another consumer, and then marks no node.
    """
    with _lock:
        taken = [node for node in nodes if node.consumer is not None]
        for node in taken:
            if node.consumer != consumer or not consumer.repeatable:
                raise Consumed(node, consumer)
        for node in nodes:
            node.consumer = consumer
    return bool(taken)


class Consumed(Exception):
    """The rows of ``node`` go to another consumer already."""

    def __init__(self, node: Node, consumer: Consumer) -> None:
        super().__init__(f"the rows of {node} go to {node.consumer} already, not to {consumer}")
        self.node = node


def admit_join(*batches: object) -> str:
    """Return a name for the right side of a built-in join. The guard allows a left outer join with
    ``right.alias(name)``.

    The caller must ensure that the right side has at most one row for each key, so that each left row stays one row.
    """
    name = f"acker_join_{new_tag()}"
    with _lock:
        _joins.add(name)
        for batch in batches:
            _keep_with(batch, name)
    return name


def is_admitted_join(alias: str) -> bool:
    """Whether ``alias`` names the right side of a built-in join."""
    return alias in _joins


def known_steps() -> Iterable[Node]:
    with _lock:
        return tuple(_nodes.values())


def _keep_with(batch: object, tag: str) -> None:
    if id(batch) not in _tags_of:
        weakref.finalize(batch, _drop_nodes_of, id(batch)).atexit = False
    _tags_of.setdefault(id(batch), []).append(tag)


def _drop_nodes_of(batch_id: int) -> None:
    with _lock:
        for tag in _tags_of.pop(batch_id, ()):
            _nodes.pop(tag, None)
            _joins.discard(tag)
