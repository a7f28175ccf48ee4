"""Shape: what Spark writes of an execution's plan, as a text that is equal for two executions that do the same.

Decides what of it is the plan's (nodes and their arguments, as they were planned) and what the one execution's
(numbers, how it was adapted). Says "" where Spark's text leaves something out, so that it cannot be compared.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from acker_client.spark.driver.lineage import READS

# Where Spark has left out or hidden a part, or never says what is in it: rows of the driver's, an RDD, a function.
_HIDING = re.compile(r"\.\.\.|redacted|LocalTableScan|LocalRelation|ExistingRDD|LogicalRDD|UDF\(|Subquer(?!yAlias)")
# The user's functions, of which Spark says the name alone; those that are watched have one that says what they are.
_FUNCTIONS = re.compile(r"Python|MapIn|FlatMap|InPandas")
_ADAPTED = re.compile(r"== (?:Final|Current) Plan ==.*?(?=\+- == Initial Plan ==)", re.DOTALL)
_NODE = re.compile(r"^(?P<indent>[\s:+|*-]*)[^\s:+|*-].*\((?P<number>\d+)\)")
_OF_ONE = re.compile(r" ?\[(?:codegen id|plan_id) ?[:=] ?\d+\]|isFinalPlan=\w+|@[0-9a-f]+\b")
_ID = re.compile(r"#\d+")


def shape_of(plan: str, functions: Sequence[str]) -> str:
    """The plan above, and beside, the nodes that run one of ``functions``, the same text for the same plan; "" where
    it cannot be compared. ``plan``: Spark's description in its own "formatted" mode."""
    tree, *blocks = re.split(r"\n\n+(?=\(\d+\) )", _ADAPTED.sub("", plan))
    said = {block[1 : block.index(")")]: block for block in blocks}
    kept: list[str] = []
    below: int | None = None
    for line in tree.splitlines():
        node = _NODE.match(line)
        if node is None or node["number"] not in said:
            continue
        indent = len(node["indent"])
        if below is not None and indent > below:
            continue
        block = said[node["number"]]
        is_place = any(function in block for function in functions)
        if not is_place and READS not in block and _FUNCTIONS.search(block.partition("\n")[0]):
            return ""
        below = indent if is_place else None
        kept.append(f"{indent} {'rows' if is_place else block.partition(') ')[2]}")
    text = "\n".join(_OF_ONE.sub("", line) for line in "\n".join(kept).splitlines())
    if not blocks or _HIDING.search(text) or "Subqueries" in plan:
        return ""
    ids = {given: f"#{index}" for index, given in enumerate(dict.fromkeys(_ID.findall(text)))}
    return _ID.sub(lambda found: ids[found[0]], text)
