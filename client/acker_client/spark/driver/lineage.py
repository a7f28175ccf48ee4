"""Lineage: which tracked steps the driver has planned, and who consumes the rows of each.

Decides that the rows of a step have one consumer: its edges are consumed once, so a second consumer would make two
different reports claim them. The same sink on the same rows again is the same report, and allowed.
Holds batches weakly: a step is forgotten with the batches whose rows it takes (several, where frames of two sources
meet), so a driver that runs for months does not grow.
Never looks at a Spark plan (``plan`` does) and never talks to a server.
"""

from __future__ import annotations

import re
import secrets
import threading
import weakref
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

# By this the UDFs of `functions.ack` and `fail` are known in a plan.
ACK = "acker_ack_"
# By these the functions of the user's that are watched are known in a plan, and what was checkpointed.
READS = "acker_reads_"
AGAIN = "acker_again_"
# By this the jobs of a followed RDD are known: what becomes of them is seen by who called them.
JOB_TAG = "acker-"

FUNCTION = re.compile(r"^acker_(?P<kind>[a-z]+)_(?P<name>.*)_(?P<tag>[0-9a-f]{12})$", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Consumer:
    """What takes the rows of a step. ``repeatable``: a sink, whose second run gives the same report again."""

    kind: str
    name: str
    repeatable: bool = False

    def __str__(self) -> str:
        return f"{self.kind} {self.name!r}"


@dataclass(eq=False, slots=True)
class Node:
    """One applied tracked step: a source's read, an operator, a stock operator.

    ``batches`` are those whose rows it takes, as the driver knows them, held weakly. ``moving_boundaries``: a
    second evaluation may cut the rows that reach this step into other tasks; ``moves``: not for what stands before the
    step below; ``is_moved``: it is so for a step that takes its rows.
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
        """Its batches. Raises ``LookupError`` when one of them is settled and forgotten."""
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
        """The name of its function, by which plans know it."""
        return function_name(self.kind, self.name, self.tag)

    def __str__(self) -> str:
        return f"{self.kind} {self.name!r}"


_lock = threading.RLock()
_nodes: dict[str, Node] = {}
_tags_of: dict[int, list[str]] = {}  # by id() of a batch
_joins: set[str] = set()


def new_tag() -> str:
    """Draw the 12 hex digits that name one applied step."""
    return secrets.token_hex(6)


def function_name(kind: str, name: str, tag: str) -> str:
    """Name of the function of a tracked step, by which the guard knows it in a plan."""
    return f"acker_{kind}_{name}_{tag}"


def register(
    kind: str,
    name: str,
    *batches: object,
    tag: str | None = None,
    moving_boundaries: bool = False,
    moves: bool = False,
) -> Node:
    """Remember a step as long as all ``batches`` (weakly referenced) live; draws a tag unless given. Returns its
    node."""
    node = Node(kind, name, tag or new_tag(), tuple(map(weakref.ref, batches)), moving_boundaries, moves)
    with _lock:
        if node.tag in _nodes:
            raise ValueError(f"tag {node.tag} names {_nodes[node.tag]} already: a step is registered once")
        _nodes[node.tag] = node
        for batch in batches:
            _keep_with(batch, node.tag)
    return node


def of(batch: object) -> list[Node]:
    """The steps that take rows of ``batch``, in the order in which they were planned."""
    with _lock:
        return [_nodes[tag] for tag in _tags_of.get(id(batch), ()) if tag in _nodes]


def node_of(function: str) -> Node | None:
    """The step whose function has this name; None if it is not ours, or was forgotten."""
    match = FUNCTION.match(function)
    return None if match is None else _nodes.get(match["tag"])


def is_ours(function: str) -> bool:
    """Whether a function's name is that of a tracked step, known or forgotten."""
    return FUNCTION.match(function) is not None


def consume(nodes: Sequence[Node], consumer: Consumer) -> bool:
    """Mark the rows of all ``nodes`` as taken by ``consumer``; returns whether it had taken them before.

    All or none are marked. Raises :class:`Consumed` for the first whose rows go elsewhere already.
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
    """Name for the right side of a join of our own: on ``right.alias(name)`` the guard lets a left outer join pass.

    The caller answers for it that the right side has at most one row a key, so that left rows stay one to one.
    """
    name = f"acker_join_{new_tag()}"
    with _lock:
        _joins.add(name)
        for batch in batches:
            _keep_with(batch, name)
    return name


def is_admitted_join(alias: str) -> bool:
    """Whether ``alias`` names the right side of a join of our own."""
    return alias in _joins


def known() -> Iterable[Node]:
    """The steps that are remembered now."""
    with _lock:
        return tuple(_nodes.values())


def _keep_with(batch: object, tag: str) -> None:
    if id(batch) not in _tags_of:
        weakref.finalize(batch, _drop, id(batch)).atexit = False
    _tags_of.setdefault(id(batch), []).append(tag)


def _drop(batch_id: int) -> None:
    with _lock:
        for tag in _tags_of.pop(batch_id, ()):
            _nodes.pop(tag, None)
            _joins.discard(tag)
