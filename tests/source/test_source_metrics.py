"""The metrics page of a source, read by Prometheus's own parser and by promtool."""

from __future__ import annotations

import subprocess
from dataclasses import fields

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from acker_client.source import Batch, Retry
from acker_client.source.engine.prometheus import COUNTERS
from acker_client.source.records.summary import Counts
from tests.deploy.prometheus import tool
from tests.source.executors import NO_SPARK, Cluster, failing


def figures(page: str) -> dict[str, float]:
    families = text_string_to_metric_families(page)
    return {sample.name: sample.value for family in families for sample in family.samples}


def test_a_scrape_agrees_with_the_summary_and_promtool_accepts_it(cluster: Cluster) -> None:
    cluster.write("a.txt", *(str(k) for k in range(30)))
    source = cluster.source(retry=Retry(max_retries=1, initial_s=1, cap_s=8), max_dead_share=1.0)
    registry = CollectorRegistry()
    registry.register(source.collector())
    before = figures(generate_latest(registry).decode())
    assert before["acker_source_records_total"] == 0

    def process(batch: Batch) -> None:
        failing(lambda row: row.value == "7")(batch)

    source.run(NO_SPARK, process)
    page = generate_latest(registry).decode()
    after = figures(page)
    assert after["acker_source_records_total"] == 30
    assert after["acker_source_acked_total"] == 29
    assert after["acker_source_failed_total"] == 2
    assert after["acker_source_replayed_total"] == 1
    assert after["acker_source_dead_lettered_total"] == 1
    assert after["acker_source_open_records"] == 0
    assert after["acker_source_votes_differed_total"] == 0
    assert after["acker_source_saved_total"] == 0
    assert after["acker_source_batches_short_of_replicas_total"] == 0
    checked = subprocess.run(
        [tool("promtool"), "check", "metrics"], input=page, capture_output=True, text=True, check=False
    )
    assert checked.stdout + checked.stderr == ""


def test_every_count_of_a_run_is_a_metric_except_those_of_program_errors() -> None:
    assert {field.name for field in fields(Counts)} - set(COUNTERS) == {"repeated", "foreign"}
