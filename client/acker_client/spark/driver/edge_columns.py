"""Edge columns: which edges the columns of a frame hold, and which edges the ``ack()`` functions in its plan consume.

Reads each column's expressions in Spark's analysed plan, down to the step or the function that made the edge. So it
makes no difference under which names the edges pass. A column that is computed from an edge in any other way than by an
``ack()`` function counts as holding the edge, unless an edge does not fit into its type. A column of an unknown kind
counts as holding all edges of the columns below it. Functions of the user's over batches are not followed: their output
holds an edge only in the columns with its name.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from functools import cached_property
from itertools import combinations
from typing import Any, NamedTuple

from pyspark.sql import DataFrame

from acker_client.spark.anchoring.anchors import ANCHORS, EDGE, TRACKING
from acker_client.spark.driver import lineage
from acker_client.spark.driver.catalyst import SparkExpression, Unknown, each, tree_of
from acker_client.spark.driver.lineage import ACK, AGAIN, READS

# py4j gives Java objects no type that a checker could use.
Plan = Any

_STEPS = frozenset({"MapInArrow", "FlatMapGroupsInArrow", "FlatMapCoGroupsInArrow"})
# Types of joins that put out each row of the left side at most once.
_ONE_SIDED = re.compile("LeftSemi|LeftAnti|ExistenceJoin")
# Nodes that run a function over batches, whose output columns say nothing about their origin.
_USER_FUNCTIONS = _STEPS | {"MapInPandas", "FlatMapGroupsInPandas", "FlatMapCoGroupsInPandas"}


class Origin(NamedTuple):
    """The maker of an edge. ``function``: the name of a step or an ``ack()`` function; "" if it may be any. ``column``:
    the step's column. ``position``: the edge's index in the array that the function made; -1 if unknown. ``is_copied``:
    several rows may hold it; False for edges of steps, which the guard of plans checks."""

    function: str
    column: str = ""
    position: int = -1
    is_copied: bool = False

    def may_share_edge(self, other: Origin) -> bool:
        """Whether one edge may have both origins."""
        if not self.function or not other.function:
            return True
        is_same = (self.function, self.column) == (other.function, other.column)
        return is_same and (self.position == other.position or -1 in (self.position, other.position))


Origins = frozenset[Origin]
NONE: Origins = frozenset()
ANY: Origins = frozenset({Origin("")})

# Types too small for an edge (64 bits). A value of such a type may be computed from an edge, but does not hold it. A
# tuple, because Spark gives other types as dicts, which have no hash.
_NARROW = ("boolean", "byte", "short", "integer", "date")


@dataclass(frozen=True, slots=True)
class _Struct:
    """The content of a struct, by the positions of its fields."""

    fields: tuple[_Content, ...]


@dataclass(frozen=True, slots=True)
class _Array:
    """The content of an array. ``element``: that of any element. ``function``: the function that made the array of
    edges; "" for other arrays."""

    element: _Content
    function: str = ""


# The edges in a value: those anywhere in it, or those of its parts.
_Content = Origins | _Struct | _Array


def may_share_edge(some: AbstractSet[Origin], others: AbstractSet[Origin]) -> bool:
    """Whether one edge may be among both."""
    return any(origin.may_share_edge(other) for origin in some for other in others)


@dataclass(frozen=True, slots=True)
class AckCall:
    """A call of an ``ack()`` function. ``consumed``: the edges that it acks. ``text``: the call, without what differs
    when the program makes the same call again."""

    function: str
    consumed: Origins
    text: str

    @property
    def acks_copies(self) -> bool:
        """Whether several rows may hold one of the edges."""
        return any(origin.is_copied for origin in self.consumed)


class EdgeColumns:
    """The edges in the columns of ``df``, and the calls of ``ack()`` functions in its plan. Raises one of
    ``catalyst.UNREADABLE`` if the plan cannot be read."""

    def __init__(self, df: DataFrame) -> None:
        jvm: Any = df.sparkSession._jvm
        self._expressions = jvm.org.apache.spark.sql.catalyst.expressions
        self._contents: dict[int, _Content] = {}
        self._definitions: dict[int, Sequence[int]] = {}
        self._below = NONE
        self.calls: list[AckCall] = []
        plan = df._jdf.queryExecution().analyzed()
        self._read(plan)
        output = self._trees(plan.output())
        self._output = [_id_of(attribute) for attribute in output if attribute.fields["dataType"] not in _NARROW]

    @cached_property
    def held(self) -> Origins:
        """The edges that any column of the frame holds. Columns of types into which no edge fits hold none."""
        return _origins(self._content(number) for number in self._output)

    @cached_property
    def has_fresh(self) -> bool:
        """Whether any column holds an edge that a step has made and no function in the plan has consumed."""
        consumed = frozenset[Origin]().union(*(call.consumed for call in self.calls))
        return any(origin.column and not may_share_edge({origin}, consumed) for origin in self.held)

    @property
    def holds_copies(self) -> bool:
        """Whether any column holds an edge of a function that several rows may hold, and no column holds it once.
        (After an explode each row has one edge of an array, and the whole array beside it, which is no copy.)"""
        copies = {origin for origin in self.held if origin.is_copied}
        return any(not may_share_edge({copy}, self.held - copies) for copy in copies)

    def _content(self, number: int) -> _Content:
        return self._contents.get(number, ANY)

    def _read(self, plan: Plan) -> None:
        """Note the contents of all columns in a plan, and the calls in it."""
        name = plan.getClass().getSimpleName()
        if name in _STEPS and _is_step(plan.functionExpr().name()):
            self._read_step(plan)
            return
        for child in each(plan.children()):
            self._read(child)
        self._read_subqueries(plan)
        self._note_copies(name, plan)
        if name == "Generate":
            self._read_generate(plan)
        elif name == "Union":
            legs = [self._ids(child.output()) for child in each(plan.children())]
            columns = [_origins(map(self._content, numbers)) for numbers in zip(*legs, strict=True)]
            self._contents.update(zip(self._ids(plan.output()), columns, strict=True))
        elif name == "CTERelationDef":
            self._definitions[int(plan.id())] = self._ids(plan.child().output())
        elif name == "CTERelationRef":
            below = self._definitions.get(int(plan.cteId()))
            if below is not None:
                contents = map(self._content, below)
                self._contents.update(zip(self._ids(plan.output()), contents, strict=True))
        else:
            for expression in self._trees(plan.expressions()):
                self._evaluate(expression)
        self._read_other_outputs(name, plan)

    def _read_subqueries(self, plan: Plan) -> None:
        """Note which edges the subqueries in the expressions of a node hold."""
        self._below = NONE
        subqueries = list(each(plan.subqueries()))
        for query in subqueries:
            self._read(query)
        self._below = self._held_by(subqueries)

    def _note_copies(self, name: str, plan: Plan) -> None:
        """Note which edges a join, a union or an unpivot copies into several rows."""
        if name == "Union":
            legs = list(each(plan.children()))
            held = [self._held_by([leg]) for leg in legs]
            for index, leg in enumerate(legs):
                self._mark_copied(leg, _origins(held[:index] + held[index + 1 :]))
        elif name == "Expand" or (name == "Join" and not _ONE_SIDED.match(plan.joinType().toString())):
            for child in each(plan.children()):
                self._mark_copied(child)

    def _mark_copied(self, plan: Plan, those: Origins = ANY) -> None:
        """Note that several rows may hold ``those`` edges in the columns of a plan."""
        for number in self._ids(plan.output()):
            self._contents[number] = _copied(self._content(number), those)

    def _read_other_outputs(self, name: str, plan: Plan) -> None:
        """Note the contents of the outputs that a node makes in another way than by its expressions."""
        unknown = [output for output in self._trees(plan.output()) if _id_of(output) not in self._contents]
        if not unknown or name in ("CTERelationRef", "CTERelationDef"):
            return
        below = self._held_by(each(plan.children()))
        for attribute in unknown:
            # Nothing follows the rows through a function of the user's. It may pass the edge on under its name.
            may_hold = name not in _USER_FUNCTIONS or attribute.fields["name"] in (EDGE, ANCHORS)
            self._contents[_id_of(attribute)] = below if may_hold else NONE

    def _held_by(self, plans: Iterable[Plan]) -> Origins:
        return _origins(self._content(number) for plan in plans for number in self._ids(plan.output()))

    def _read_step(self, plan: Plan) -> None:
        function = str(plan.functionExpr().name())
        for attribute in self._trees(plan.output()):
            column = attribute.fields["name"]
            origins = frozenset({Origin(function, column)}) if column in (EDGE, ANCHORS) else NONE
            self._contents[_id_of(attribute)] = origins

    def _read_generate(self, plan: Plan) -> None:
        """Note the contents of the columns that an explode or another generator makes."""
        generator, made = tree_of(plan.generator()), self._ids(plan.generatorOutput())
        contents = [self._evaluate(child) for child in generator.children]
        if not _makes_one_row(generator):
            # One row gets one element of an array of edges, and everything beside it.
            self._mark_copied(plan.child())
        parts: Sequence[_Content] = ()
        if len(contents) == 1:
            element = contents[0].element if isinstance(contents[0], _Array) else contents[0]
            if generator.name == "Explode":
                parts = (element,)
            elif generator.name == "PosExplode":
                parts = (NONE, element)
            elif generator.name == "Inline" and isinstance(element, _Struct):
                parts = element.fields
        if len(parts) != len(made):
            parts = [_origins(contents)] * len(made)
        self._contents.update(zip(made, parts, strict=True))

    def _evaluate(self, expression: SparkExpression) -> _Content:
        """Return what a value of this expression holds. Notes the calls in it, and the columns that it names."""
        name, fields = expression.name, expression.fields
        if name == "AttributeReference":
            return self._content(_id_of(expression))
        if name.endswith(("Subquery", "ListQuery", "Exists")):
            return self._below
        contents = [self._evaluate(child) for child in expression.children]
        if name == "PythonUDF" and fields["name"].startswith(ACK):
            return self._call(expression, contents)
        # A count is not computed from the values that it counts.
        content = NONE if name == "aggregate.Count" else _content_of(expression, contents)
        if name == "Alias":
            self._contents[_id_of(expression)] = content
        return content

    def _call(self, call: SparkExpression, arguments: Sequence[_Content]) -> _Content:
        """Note the call of an ``ack()`` function, and return what its result holds."""
        fields = call.fields
        # The last argument is the edge or the packed anchors. If a row has both, the edge is the argument before it.
        function, consumed = fields["name"], _origins(arguments[-1:])
        if any(origin.column == ANCHORS or not origin.function for origin in consumed):
            consumed |= _origins(arguments[-2:])
        self.calls.append(AckCall(function, consumed, _text(call)))
        kind, made = fields["dataType"], frozenset({Origin(function)})
        if isinstance(kind, dict) and kind["type"] == "struct":
            return _Struct(tuple(made if field["name"] == EDGE else NONE for field in kind["fields"]))
        return _Array(made, function) if isinstance(kind, dict) and kind["type"] == "array" else NONE

    def _trees(self, expressions: Any) -> tuple[SparkExpression, ...]:
        if not expressions.size():
            return ()
        try:
            # Only a container: one call reads one expression.
            return tree_of(self._expressions.Coalesce(expressions)).children
        except Unknown:
            return tuple(map(_tree, each(expressions)))

    def _ids(self, attributes: Any) -> list[int]:
        return [_id_of(attribute) for attribute in self._trees(attributes)]


def _content_of(expression: SparkExpression, contents: Sequence[_Content]) -> _Content:
    """Return what a value of an expression holds. ``contents``: those of its children."""
    name, fields, first = expression.name, expression.fields, contents[0] if contents else NONE
    if name == "Alias" or (name == "Cast" and len(contents) == 1 and not isinstance(first, _Struct | _Array)):
        return first
    if name == "GetStructField" and isinstance(first, _Struct):
        return first.fields[int(fields["ordinal"])]
    if name == "GetArrayStructFields" and isinstance(first, _Array) and isinstance(first.element, _Struct):
        return _Array(first.element.fields[int(fields["ordinal"])])
    if name in ("GetArrayItem", "ElementAt") and isinstance(first, _Array):
        position = _position(expression.children[1], 0 if name == "GetArrayItem" else 1)
        return _with_position(first.element, position) if first.function else first.element
    if name == "CreateNamedStruct":
        return _Struct(tuple(contents[1::2]))
    if name == "CreateArray":
        element = _origins(contents)
        is_repeated = any(
            may_share_edge(_origins([one]), _origins([other])) for one, other in combinations(contents, 2)
        )
        return _Array(_copied(element) if is_repeated else first if len(contents) == 1 else element)
    if name == "ArrayRepeat":
        return _Array(_copied(first))
    if name == "ArraysZip":
        return _Array(
            _Struct(tuple(content.element if isinstance(content, _Array) else content for content in contents))
        )
    return _origins(contents)


def _position(given: SparkExpression, first: int) -> int:
    """Return a constant position in an array whose first one is ``first``; -1 if it may be any."""
    is_known = given.name == "Literal" and given.fields["dataType"] == "integer" and given.fields["value"] is not None
    return max(int(given.fields["value"]) - first, -1) if is_known else -1


def _origins(contents: Iterable[_Content]) -> Origins:
    """Return the edges anywhere in these values."""
    found = NONE
    for content in contents:
        if isinstance(content, _Struct):
            found |= _origins(content.fields)
        else:
            found |= _origins([content.element]) if isinstance(content, _Array) else content
    return found


def _with_position(element: _Content, position: int) -> Origins:
    """Return the edge at a position of an array that a function made."""
    return frozenset(origin._replace(position=position) for origin in _origins([element]))


def _makes_one_row(generator: SparkExpression) -> bool:
    """Whether a generator makes one row of each row, as that of ``functions.ack`` does."""
    arrays = generator.children
    return generator.name == "Explode" and arrays[0].name == "CreateArray" and len(arrays[0].children) == 1


def _copied(content: _Content, those: Origins = ANY) -> _Content:
    """Return a content with ``those`` of its edges that a function has made noted as copied."""
    if isinstance(content, _Struct):
        return _Struct(tuple(_copied(field, those) for field in content.fields))
    if isinstance(content, _Array):
        return _Array(_copied(content.element, those), content.function)
    return frozenset(_copied_origin(origin) if may_share_edge({origin}, those) else origin for origin in content)


def _copied_origin(origin: Origin) -> Origin:
    return origin if origin.column else origin._replace(is_copied=True)


def _text(expression: SparkExpression) -> str:
    """Return an expression as text, without ids and types, so that two equal calls give the same text."""
    name, fields = expression.name, expression.fields
    if name in ("AttributeReference", "Literal"):
        return str(fields["name" if name == "AttributeReference" else "value"])
    if name == "PythonUDF":
        name = str(fields["name"])
    children = ", ".join(text for text in map(_text, expression.children) if text not in TRACKING)
    return f"{lineage.name_of_column(name) if name.startswith(ACK) else name}({children})"


def _tree(expression: Any) -> SparkExpression:
    """Return the tree of an expression; in place of one that is nested too deep, the columns that it names."""
    try:
        return tree_of(expression)
    except Unknown:
        if ACK in str(expression.toString()):
            raise
    columns = tuple(map(tree_of, each(expression.references().toSeq())))
    tree = SparkExpression("", {}, columns, ())
    if expression.getClass().getSimpleName() != "Alias":
        return tree
    return SparkExpression("Alias", {"exprId": {"id": expression.exprId().id()}}, (tree,), ())


def _id_of(expression: SparkExpression) -> int:
    return int(expression.fields["exprId"]["id"])


def _is_step(function: str) -> bool:
    return lineage.is_ours(function) and not function.startswith((ACK, READS, AGAIN))
