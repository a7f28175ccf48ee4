"""The evidence that a batch is done: ``judge`` decides as the table of cases in its docstring says."""

from __future__ import annotations

import inspect
from types import SimpleNamespace
from typing import Any

import pytest
from py4j.protocol import Py4JError

from acker_client.spark.commit_evidence import witness
from acker_client.spark.commit_evidence.acked import ACKS, BodyFrame
from acker_client.spark.commit_evidence.batch import SWALLOWED_MAX, Once
from acker_client.spark.commit_evidence.evidence import NEVER_MS, Action, Target, judge
from acker_client.spark.commit_evidence.executions import Executions, Job
from acker_client.spark.commit_evidence.following import FollowedFrame
from acker_client.spark.commit_evidence.graph import Graph, Places
from acker_client.spark.commit_evidence.shape import shape_of

CASES = [
    tuple(cell.strip() for cell in line.strip().strip("|").split("|"))
    for line in inspect.getdoc(judge).splitlines()  # type: ignore[union-attr]
    if line.strip().startswith("|") and not line.strip().startswith(("| actions", "|--"))
]


def _actions(text: str) -> tuple[list[Action], dict[str, Any]]:
    """Parse the actions of a case. After "+", the next action begins before the one before it has ended."""
    found: list[Action] = []
    said: dict[str, Any] = {}
    at_ms, overlaps = 0.0, False
    for words in [part.strip() for part in text.replace("+", ", +,").split(",")]:
        began_ms = at_ms - 5 if overlaps else at_ms
        overlaps = words == "+"
        if words == "forgotten":
            said["forgotten"] = True
        elif words in ("word", "rerun"):
            said["vouched_ms" if words == "word" else "rerun_ms"] = began_ms
        elif words and not overlaps:
            at_ms += 10
            found.append(_action(words, began_ms, at_ms))
    return found, said


def _action(words: str, began_ms: float, ended_ms: float) -> Action:
    what, _, place = words.removeprefix("failed ").removeprefix("running ").removeprefix("doubtful ").partition(" to ")
    if words == "look that finds no rows":
        return Action("found none", True, True, began_ms, ended_ms)
    did = {"count": "counted them", "take": "read 10", "write": "wrote them", "write of a part": "wrote 10"}[what]
    if words.startswith("doubtful "):
        target = Target(place or "A", what)
        return Action("handed them on", True, False, began_ms, ended_ms, "", target, is_doubtful=True)
    ended_ms = NEVER_MS if words.startswith("running ") else ended_ms
    failure = "Full" if words.startswith("failed ") else ""
    target = Target(place or "A", what)
    return Action(did, "write" in what, what in ("write", "count"), began_ms, ended_ms, failure, target)


def test_the_table_of_cases_is_long_enough_to_be_one() -> None:
    assert len(CASES) >= 30


@pytest.mark.parametrize(("actions", "done", "because"), CASES, ids=[case[0] or "nothing" for case in CASES])
def test_a_batch_is_done_exactly_where_the_table_says_so(actions: str, done: str, because: str) -> None:
    given, said = _actions(actions)
    finding = judge("save()", given, **said)
    assert (finding is None) == (done == "yes")
    if finding is not None:
        assert because in str(finding)
        assert finding.is_transient == (because in ("failed: Full", "still runs"))
        assert "batch.done()" in str(finding) or "forgotten" in said


def test_a_step_without_a_sink_is_told_to_write_its_rows() -> None:
    says = "no write of source 'n''s rows succeeded: it never read them. Write them, or call batch.done()"
    assert str(judge("source 'n'", [], has_sink=False)) == says


def test_what_nobody_can_name_is_made_up_for_by_nothing() -> None:
    failed = Action("ran a job", True, True, 0, 10, "Full", Target.unlike("a job"))
    again = Action("ran a job", True, True, 20, 30, "", Target.unlike("a job"))
    assert judge("save()", [failed, again]) is not None


def test_a_run_remembers_a_bounded_number_of_swallowed_failures(caplog: pytest.LogCaptureFixture) -> None:
    once = Once()
    for number in range(SWALLOWED_MAX + 10):
        failed = Action("tried to write them", True, False, 0, 10, "Full", Target(f"parquet out/batch={number}"))
        once.log_swallowed("save", [failed, failed])
    assert len(once._swallowed) == SWALLOWED_MAX
    assert len(caplog.records) == SWALLOWED_MAX + 10


@pytest.mark.parametrize(
    "name",
    [
        "AppendData", "AppendDataExecV1", "OverwriteByExpressionExecV1", "WriteFiles", "AppendData lake.db.t",
        "InsertOnlyMerge lake.db.t",
    ],
)  # fmt: skip
def test_appends_overwrites_and_merges_of_either_interface_are_writes_that_read_all(name: str) -> None:
    (path,) = _graph(SAVED, (name, " a writer")).paths_from(Places((SAVED[1],)))
    assert path.writes
    assert not path.is_cut(())


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("AppendData", " org.apache.spark.Strategy$$Lambda$22/0x00007ffb@15b1f0ee, stopping"),
        ("AppendData stopping", " stopping"),
        ("AppendData spark_catalog.default.t", " stopping"),
        ("OverwriteByExpression spark_catalog.default.t", " stopping"),
    ],
)
def test_a_python_data_source_is_found_by_its_writer_and_need_not_read_all(name: str, text: str) -> None:
    (path,) = _graph(SAVED, (name, text), python_source="stopping").paths_from(Places((SAVED[1],)))
    assert path.unproven == name + text


@pytest.mark.parametrize(
    ("functions", "is_cut"),
    [
        ("[]", True),
        ("[first(n#1, false)]", True),
        ("[partial_first(n#1, false), partial_first(sum(m)#2, false)]", True),
        ("[... 3 more fields]", True),
        ("[count(1)]", False),
        ("[first(n#1, fal", True),
        ("[first(n#1, false), ... 3 more fields]", True),
        ("[first(n#1, false), sum(m#2)]", False),
        ("[first(coalesce(n#1, m#2[0]), false)], output=[number#2, n#3]", True),
        ("[partial_sum(first#1)]", False),
        ("[pivotfirst(n#1, m#2, 1, 0, 0)]", False),
    ],
)
def test_a_limit_drops_rows_above_an_aggregate_that_hands_them_on_and_groups_above_another(
    functions: str, is_cut: bool
) -> None:
    aggregate, limit = ("HashAggregate", f"(keys=[number#2], functions={functions})"), ("GlobalLimit", " 3, 0")
    places = Places((SAVED[1],))
    (path,) = _graph(SAVED, aggregate, limit).paths_from(places)
    (below_generate,) = _graph(SAVED, aggregate, ("Generate", " replicaterows(sum#3)"), limit).paths_from(places)
    assert bool(path.cut) == is_cut
    assert below_generate.cut


def test_a_frame_that_spark_can_no_longer_plan_is_not_known_to_be_empty() -> None:
    def of_a_table_that_is_gone() -> Any:
        raise Py4JError("the table is gone")

    analyzed = SimpleNamespace(treeString=lambda: "Filter false\n+- GlobalLimit 1\n   +- Relation gone")
    execution = SimpleNamespace(analyzed=lambda: analyzed, optimizedPlan=of_a_table_that_is_gone)
    frame: Any = SimpleNamespace(_jdf=SimpleNamespace(queryExecution=lambda: execution))
    behind_a_limit = witness._is_empty(frame, witness._LIMITS)
    analyzed.treeString = lambda: "Filter false\n+- Relation gone"
    assert (behind_a_limit, witness._is_empty(frame, witness._LIMITS)) == (False, False)


def _graph(*nodes: tuple[str, str], python_source: str = "") -> Graph:
    """Return the graph of a plan with one leg; the lowest node comes first. The number of a node is the accumulator of
    its number of rows. ``python_source``: the name of the only Python data source."""
    metric = "number of output rows"
    all_nodes = [
        {"id": at, "name": name, "desc": f"{name}{text}", "metrics": [{"name": metric, "accumulatorId": at}]}
        for at, (name, text) in enumerate(nodes)
    ]
    edges = [{"fromId": at, "toId": at + 1} for at in range(len(nodes) - 1)]
    return Graph({"allNodes": all_nodes, "edges": edges}, lambda name: name == python_source)


SAVED = ("MapInArrow", " acker_sink_save_0123456789ab(word#1)#2, [word#3], false")


@pytest.mark.parametrize("name", ["f", "f_202401151230", "f_0123456789ab_", "ä_0123456789ab"])
def test_a_function_is_found_in_a_plan_whatever_its_name(name: str) -> None:
    function = f"acker_reads_{name}_ba9876543210"
    (path,) = _graph(SAVED, ("MapInArrow", f" {function}(word#3)#4, [word#5], false")).paths_from(Places((SAVED[1],)))
    assert path.reads == {function}
    assert path.is_cut({function})


def test_an_ack_column_is_found_in_the_text_of_a_column_whatever_its_name() -> None:
    functions = ["acker_ack_x_0123456789ab_ba9876543210", "acker_ack_a name\n_ba9876543210"]
    assert ACKS.findall("Column<'" + ", ".join(f"{each}(_root, _edge)" for each in functions) + "'>") == functions


@pytest.mark.parametrize(
    ("cache", "rows_cached", "has_read_alone", "finds_none"),
    [
        ("", "0", True, True),
        (" [word#3]", "0", True, True),
        (" [word#3]", "0", False, False),
        (" [word#3]", "10", True, False),
        (" [word#3], [(word#3 = a)]", "0", True, False),
    ],
)
def test_rows_behind_a_cache_are_none_only_if_this_execution_has_filled_it_and_nothing_came_out(
    cache: str, rows_cached: str, has_read_alone: bool, finds_none: bool
) -> None:
    graph = _graph(SAVED, ("InMemoryTableScan", cache), ("CollectLimit", " 1"))
    assert graph.found_none(Places((SAVED[1],)), {"0": "0", "1": rows_cached}, has_read_alone) == finds_none


def _plan(condition: str, at: int = 5) -> str:
    """Return a plan as Spark describes it. ``at``: the id of its last column."""
    computed, function = f"(number#4L + 1) AS n#{at}L", "acker_reads_f_0123456789ab"
    return f"""== Physical Plan ==
* Project (4)
+- * Filter (3)
   +- MapInArrow (2)
      +- MapInArrow (1)


(1) MapInArrow
Input [1]: [word#1]
Arguments: acker_sink_save_0123456789ab(word#1)#2, [word#3], false

(2) MapInArrow
Input [1]: [word#3]
Arguments: {function}(word#3)#{at + 1}, [number#4L, word#{at + 2}], false

(3) Filter [codegen id : {at}]
Input [2]: [number#4L, word#{at + 2}]
Condition : (word#{at + 2} = {condition})

(4) Project [codegen id : {at}]
Output [2]: [word#{at + 2}, {computed}]
Input [2]: [number#4L, word#{at + 2}]

"""


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("t#1001", "t#1002"),
        ("t#5", "t#6"),
        ("bob@1", "bob@2"),
        (", t#1001, ", ", t#1002, "),
        ("a [plan_id=1] b", "a [plan_id=2] b"),
        ("isFinalPlan=true", "isFinalPlan=false"),
    ],
)
def test_plans_are_alike_if_they_differ_in_ids_and_not_if_they_differ_in_a_literal(one: str, other: str) -> None:
    functions = ("acker_sink_save_0123456789ab",)
    assert shape_of(_plan(one), functions) == shape_of(_plan(one, 25), functions) != ""
    assert shape_of(_plan(one), functions) != shape_of(_plan(other), functions)


@pytest.mark.parametrize(
    ("tag", "seen"),
    [
        ("acker-0123456789ab", [True]),
        ("tracker-import-7", [False]),
        ("acker-import", [False]),
        ("my-execution-root-id-7", [False]),
        ("execution-root-id-7", []),
        ("spark-session-e8c57384-execution-root-id-7", []),
    ],
)
def test_a_job_with_a_tag_of_the_users_is_taken_for_neither_an_observed_one_nor_one_of_an_execution(
    tag: str, seen: list[bool]
) -> None:
    executions: Any = object.__new__(Executions)
    executions._is_within, executions._stores = False, None
    assert [job.is_seen for job in executions._jobs_of_rdds([{"jobId": 1, "jobTags": ["a", tag]}], [])] == seen


def test_a_job_of_which_spark_has_dropped_a_stage_may_have_computed_anything() -> None:
    dots = {1: "digraph { MapInArrow }", 2: "digraph { Scan }"}
    stores: Any = SimpleNamespace(stage_dot=dots.__getitem__)
    jobs = [Job(stores, {"jobId": 1, "stageIds": stages}, False) for stages in ([1], [2], [2, 3], [3], [])]
    assert [job.computes("MapInArrow") for job in jobs] == [True, False, True, True, False]


def test_rows_leave_a_body_frame_followed_by_every_method_by_which_they_leave_a_sinks_frame() -> None:
    own = {name for name in vars(FollowedFrame) if not name.startswith("_")}
    assert own <= set(vars(BodyFrame))
