"""Shape: the text of an execution's plan, normalized so that two executions that do the same have equal texts.

Decides which parts belong to the plan (nodes and arguments, as planned) and which to one execution (ids, adaptive
changes). A plan cannot be compared, and has the shape "", if Spark's text leaves something out.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from acker_client.spark.driver.lineage import ACK, AGAIN, READS

# Signs that the text lacks something: Spark has shortened or hidden a part, or never shows the content of a node
# (rows of the driver, an RDD, a function).
_HIDING = re.compile(r"\.\.\.|redacted|LocalTableScan|LocalRelation|ExistingRDD|LogicalRDD|UDF\(|Subquer(?!yAlias)")
# Nodes with the user's functions. Spark shows only a function's name. The client gives each function that it
# watches a name that no other function has.
_FUNCTIONS = re.compile(r"Python|MapIn|FlatMap|InPandas")
_ADAPTED = re.compile(r"== (?:Final|Current) Plan ==.*?(?=\+- == Initial Plan ==)", re.DOTALL)
_NODE = re.compile(r"^(?P<indent>[\s:+|*-]*)[^\s:+|*-].*\((?P<number>\d+)\)")
# Text that differs from one execution to the next. Matches only at the end of a line, or a whole line, where no literal
# of the user's can stand.
_OF_ONE = re.compile(r" ?\[(?:codegen id|plan_id) ?[:=] ?\d+\]$|^Arguments: isFinalPlan=\w+$")
_CALL = re.compile(rf"^(Arguments: {READS}.*\))#\d+(?=, \[)")
# A list of columns, each with its id at its end. A literal in it may contain ", ", which the number of columns shows.
# Columns that a watched function makes are no expressions, so their list needs no number.
_COLUMNS = re.compile(
    rf"^(?:(?:Input|Output|Results|Aggregate Attributes) \[(\d+)\]: |Arguments: {READS}.*\), )\[(.*?)\](?:, \w+)*$",
    re.MULTILINE,
)
_ID = re.compile(r"#\d+")


def shape_of(plan: str, functions: Sequence[str]) -> str:
    """Return the plan as text, cut off below the nodes that run one of ``functions``. Equal plans give equal texts. The
    text is "" if the plan cannot be compared. ``plan``: Spark's description in its own "formatted" mode."""
    tree, *blocks = re.split(r"\n\n+(?=\(\d+\) )", _ADAPTED.sub("", plan))
    blocks_by_number = {block[1 : block.index(")")]: block for block in blocks}
    kept: list[str] = []
    below: int | None = None
    for line in tree.splitlines():
        node = _NODE.match(line)
        if node is None or node["number"] not in blocks_by_number:
            continue
        indent = len(node["indent"])
        if below is not None and indent > below:
            continue
        block = blocks_by_number[node["number"]]
        is_place = any(function in block for function in functions)
        is_hidden = not is_place and READS not in block and _FUNCTIONS.search(block.partition("\n")[0])
        # The user's own plan is below a checkpoint of the rows, or below an `ack()` column, so this text lacks it.
        if is_hidden or AGAIN in block or ACK in block:
            return ""
        below = indent if is_place else None
        kept.append(f"{indent} {'rows' if is_place else block.partition(') ')[2]}")
    lines = "\n".join(kept).splitlines()
    text = "\n".join(_CALL.sub(r"\1", _OF_ONE.sub("", line)) for line in lines)
    if not blocks or _HIDING.search(text) or "Subqueries" in plan:
        return ""
    return _with_places_of_ids(text)


def _with_places_of_ids(text: str) -> str:
    """Replace the id of each column by the place at which it first occurs. Literals are left as they are: they may look
    like an id, but not like a column of this plan with its own id."""
    names: dict[str, str] = {}
    for count, columns in _COLUMNS.findall(text):
        found = columns.split(", ")
        if count in ("", str(len(found))):
            for column, _, number in (each.rpartition("#") for each in found):
                names[f"#{number.removesuffix('L')}"] = column.rpartition(" AS ")[2]
    places: dict[str, int] = {}

    def place(given: re.Match[str]) -> str:
        name = names.get(given[0])
        if not name or not text.endswith(name, 0, given.start()):
            return given[0]
        # No literal contains the character 0, so no literal looks like a place.
        return f"#\0{places.setdefault(given[0], len(places))}"

    return _ID.sub(place, text)
