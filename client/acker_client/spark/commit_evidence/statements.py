"""Statements: SQL text that sessions run over views of a sink's rows, while the sink runs (``others``).

Decides which statements are over the rows (they name a view of them, or have a frame of them as an argument), which of
these deliver, and where to. Spark's stores do not show a statement that Spark cannot analyse. All other statements run
unchanged.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Hashable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import wraps
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.classic.dataframe import DataFrame as ClassicFrame

from acker_client.spark.commit_evidence.evidence import Action, Target
from acker_client.spark.commit_evidence.following import FollowedFrame, analyzed
from acker_client.spark.commit_evidence.turns import table_of, turn
from acker_client.spark.commit_evidence.witness import Trail, frame_step, names_step, now_ms
from acker_client.spark.driver.catalyst import each
from acker_client.spark.driver.lineage import new_tag

_DELIVERS = re.compile(r"\b(insert|merge|update|delete|overwrite|(create|replace)\s+table)\b", re.IGNORECASE)
_VIEW = re.compile(
    r"\b(?:view|cache\s+(?:lazy\s+)?table)\s+(?:if\s+not\s+exists\s+)?(?:`([^`]+)`|(\w+))", re.IGNORECASE
)
# The begin of a script, behind comments and a label, and what may keep a script from a write without an error.
_SCRIPT = re.compile(r"(\s|--.*\n|/\*((?!\*/)[\s\S])*\*/)*((\w+|`[^`]+`)\s*:\s*)?begin\b", re.IGNORECASE)
_HIDES = re.compile(r"\bhandler\b|\btable\s+if\s+not\s+exists\b[^;]*\bselect\b", re.IGNORECASE)
# The plan nodes of statements that contain a query.
_HAVE_QUERIES = ("InsertIntoStatement", "CreateTableAsSelect", "ReplaceTableAsSelect")
_MAY_HIDE = "ran a script with a handler, or with CREATE TABLE IF NOT EXISTS, which may have left a write out"
# Messages name a statement by this many characters of its text.
_PLACE_CHARS = 80


def watching(spark: SparkSession, sql: Callable[..., Any], trails: Callable[[], list[Trail]]) -> Callable[..., Any]:
    """Return ``sql``, the method of ``spark``, which watches its statements over the rows of ``trails``."""

    @wraps(sql)
    def run(*args: Any, **kwargs: Any) -> Any:
        text = str(args[0] if args else kwargs["sqlQuery"])
        views = _views(trails(), spark, text)
        uses = [(trail, (*views[trail], *_given(trail, kwargs))) for trail in views]
        over = [(trail, used) for trail, used in uses if used]
        if not over:
            return sql(*args, **kwargs)
        began_ms, delivers, is_script = now_ms(), bool(_DELIVERS.search(text)), bool(_SCRIPT.match(text))
        place = f"SQL {' '.join(text.split())[:_PLACE_CHARS]}"
        given = repr((args, [(key, repr(kwargs[key])) for key in sorted(kwargs)]))
        found = _analysed(spark, text) if delivers else None
        where = None if found is None else (names_step(spark), given, found.key)
        targets = [
            (trail, Target.unlike(place) if where is None else trail.target(place, "sql", where, used))
            for trail, used in over
        ]
        call = ""
        with ExitStack() as stack:
            if delivers:
                stack.enter_context(turn(table_of(text), over[0][0].witness.waits))
            if delivers and not is_script:
                # A statement has one call site, so it can lead to the first sink only. For the other sinks, the plan
                # shows their rows. A script has several targets, so it gets no call site.
                call = stack.enter_context(over[0][0].witness.delivering(spark.sparkContext, targets[0][1]))
            try:
                made = sql(*args, **kwargs)
            except Exception as error:
                if delivers:
                    for trail, target in targets:
                        trail.witness.record_failure("tried to write them", began_ms, error, trail, target)
                raise
        for trail, target in targets:
            if delivers:
                _record_returned(text, call, found, began_ms, target, trail)
            trail.witness.views.update({"".join(name).lower(): new_tag() for name in _VIEW.findall(text)})
        return made

    return run


def _record_returned(
    text: str, call: str, found: _Analysed | None, began_ms: float, target: Target, trail: Trail
) -> None:
    """Record that a statement that writes has returned. ``call``: its call site; "" for a script, which may hide a
    write that failed or was left out. ``found``: None if the statement could not be analysed."""
    if call and (found is None or found.query is not None):
        trail.witness.record_write(call, None if found is None else found.query, began_ms, target, trail)
    if not call and _HIDES.search(text):
        hidden = Target.unlike(target.place)
        trail.witness.record(Action(_MAY_HIDE, True, False, began_ms, now_ms(), "", hidden, is_doubtful=True), trail)


@dataclass(frozen=True, slots=True)
class _Analysed:
    """A statement that Spark has analysed. ``key``: equal for two statements that do the same; ``query``: the rows that
    the statement writes, None if it is no query that is written."""

    key: Hashable
    query: DataFrame | None


def _analysed(spark: SparkSession, text: str) -> _Analysed | None:
    """Analyse the query of a statement (else the statement itself), without running it. Return None if Spark refuses
    the query, or the query has parameters.

    The key leaves out the target, whose table may not exist at first: the caller compares the statement's text.
    """
    # py4j gives Java objects no type that a checker could use.
    state: Any = spark._jsparkSession.sessionState()
    try:
        parsed = state.sqlParser().parsePlan(text)
        if str(parsed.getClass().getSimpleName()) in _HAVE_QUERIES:
            dataset: Any = getattr(spark._jvm, "org.apache.spark.sql.classic.Dataset")
            query = ClassicFrame(dataset.ofRows(spark._jsparkSession, parsed.query()), spark)
            plan = query._jdf.queryExecution().analyzed()
        else:
            query, plan = None, state.executePlan(parsed, getattr(state, "executePlan$default$2")()).analyzed()
    except Exception:  # noqa: BLE001  # the statement itself will raise the same
        return None
    # Spark's hash leaves out the queries of a command that is a leaf.
    queries = [inner.semanticHash() for inner in each(plan.innerChildren())]
    is_leaf = plan.children().isEmpty() and bool(queries)
    return _Analysed(tuple(queries) if is_leaf else (plan.semanticHash(),), query)


def _views(trails: Sequence[Trail], spark: SparkSession, text: str) -> dict[Trail, list[Hashable]]:
    """Return the views of each trail's rows that a statement of ``spark`` uses, each as a key that is equal for equal
    rows."""
    text = text.replace("`", "").lower()
    used = {trail: [name for name in sorted(trail.witness.views) if _names(text, name)] for trail in trails}
    if sum(map(bool, used.values())) > 1:
        # Another session may have a view with the name of a view of this session.
        own = {name for trail, names in used.items() for name in names if _is_in(spark, trail, name)}
        for trail, names in used.items():
            sessions = trail.witness.view_sessions
            used[trail] = [n for n in names if n not in own or n not in sessions or _is_in(spark, trail, n)]
    return {trail: [trail.witness.views[name] for name in names] for trail, names in used.items()}


def _is_in(spark: SparkSession, trail: Trail, view: str) -> bool:
    session = trail.witness.view_sessions.get(view)
    return session is not None and (session is spark or bool(session._jsparkSession == spark._jsparkSession))


def _given(trail: Trail, kwargs: dict[str, Any]) -> list[Hashable]:
    """Return the frames of a trail's rows that a statement has as arguments, as :func:`_views` returns views."""
    return [frame_step(value) for _, value in sorted(kwargs.items()) if _is_over(value, trail)]


def _names(text: str, view: str) -> bool:
    return re.search(rf"(?<!\w){re.escape(view)}(?!\w)", text) is not None


def _is_over(value: object, trail: Trail) -> bool:
    # The plan of a frame that was made from RDDs does not show whose rows these hold.
    if isinstance(value, FollowedFrame) and (value._trail.steps or value._trail.witness is trail.witness):
        return True
    return isinstance(value, ClassicFrame) and trail.witness.places.are_in(analyzed(value))
