"""The metrics page of a source, read by Prometheus's own parser and by promtool."""

from __future__ import annotations

import subprocess
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from acker_client.source import Batch, Kafka, Retry
from acker_client.source.engine.prometheus import COUNTERS, SourceCollector
from acker_client.source.records.summary import Counts, PartitionState, Summary
from tests.deploy.prometheus import tool
from tests.source.executors import NO_SPARK, Cluster, failing, save_all
from tests.source.kafka_broker import MockKafka
from tests.source.kinesis_twin import TwinKinesis
from tests.source.logs import LogSource, log_of
from tests.source.test_kinesis_source import TwinSource


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
    promtool(page)


def test_every_count_of_a_run_is_a_metric_except_those_of_program_errors() -> None:
    assert {field.name for field in fields(Counts)} - set(COUNTERS) == {"repeated", "foreign"}


def partitions(page: str, name: str) -> dict[tuple[str, str], float]:
    """Return a gauge by topic and partition."""
    families = text_string_to_metric_families(page)
    samples = [sample for family in families for sample in family.samples if sample.name == name]
    return {(each.labels["topic"], each.labels["partition"]): each.value for each in samples}


@pytest.mark.parametrize("checkpoint", ["file", "kafka"])
def test_each_partition_of_kafka_has_gauges_that_agree_with_the_broker(
    kafka: MockKafka, tmp_path: Path, checkpoint: str
) -> None:
    topic = kafka.new_topic(10, 5)
    options: dict[str, Any] = {"bootstrap_servers": kafka.servers, "name": topic, "batch_records": 12}
    options |= {"checkpoint": "kafka" if checkpoint == "kafka" else tmp_path / "a.ckpt"}
    source = Kafka(topic, environment=Cluster(tmp_path).environment(), retry=Retry(initial_s=9e3, cap_s=9e3), **options)
    registry = CollectorRegistry()
    registry.register(source.collector())
    assert figures(generate_latest(registry).decode()).get("acker_source_partitions") is None
    pages: list[str] = []
    bad = {b"0.2", b"0.4", b"1.0"}
    for batch in source.batches(NO_SPARK):
        if batch.number == 2:
            pages.append(generate_latest(registry).decode())
            source.stop()
        failing(lambda row: row.value in bad)(batch)
        batch.done()
    page = pages[0]
    names = [(topic, str(number)) for number in range(4)]
    # The first batch had 7 records of partition 0, and all of partition 1; the second one has the other 3.
    for name, values in {
        "position": [10, 5, 0, 0],
        "committed": [2, 0, 0, 0],
        "end": [10, 5, 0, 0],
        "lag": [8, 5, 0, 0],
        "holes": [2, 1, 0, 0],
    }.items():
        assert partitions(page, f"acker_source_partition_{name}") == dict(zip(names, values, strict=True)), name
    assert figures(page)["acker_source_lag"] == 13
    assert figures(page)["acker_source_partitions"] == 4
    promtool(page)
    # What tools see once the run has ended.
    offsets = {(topic, str(number)): float(offset) for number, (offset, _) in kafka.committed(topic, topic).items()}
    after = generate_latest(registry).decode()
    assert partitions(after, "acker_source_partition_committed") == offsets


def test_the_collectors_of_several_sources_share_a_registry(cluster: Cluster) -> None:
    registry = CollectorRegistry(auto_describe=True)
    for name in ("one", "two"):
        registry.register(LogSource(log_of(a=1), name=name, environment=cluster.environment()).collector())
    for name in ("one", "two"):
        assert registry.get_sample_value("acker_source_open_records", {"source": name}) == 0.0


def test_shards_have_the_gauges_that_fit_them_and_files_have_none(cluster: Cluster) -> None:
    twin = TwinKinesis(cluster.time)
    twin.put(0, "a", "b", "c")
    source = TwinSource(twin, environment=cluster.environment())
    cluster.write("a.txt", "1")
    registry, lines = CollectorRegistry(), cluster.source()
    for each in (source, lines):
        registry.register(each.collector())
        each.run(NO_SPARK, save_all)
        page = generate_latest(registry).decode()
        registry.unregister(next(iter(registry._collector_to_names)))
        if each is lines:
            assert "acker_source_partition" not in page
            continue
        assert partitions(page, "acker_source_partition_position")["orders", "shardId-000000000000"] == 3
        assert partitions(page, "acker_source_partition_end") == {}
        assert "acker_source_lag" not in figures(page)


def test_a_source_of_very_many_partitions_has_gauges_for_the_first_thousand() -> None:
    summary = Summary.of("orders", Counts(), elapsed_s=0.0, checkpoint="")
    states = [PartitionState("clicks", f"{k:05}", 5, 3, 10, 1) for k in range(2_500)]
    registry = CollectorRegistry()
    registry.register(SourceCollector(lambda: summary, lambda: states))
    page = generate_latest(registry).decode()
    lags = partitions(page, "acker_source_partition_lag")
    assert (len(lags), min(lags), max(lags)) == (1_000, ("clicks", "00000"), ("clicks", "00999"))
    found = figures(page)
    assert (found["acker_source_partitions"], found["acker_source_partitions_left_out"]) == (2_500, 1_500)
    assert found["acker_source_lag"] == 7 * 2_500


def promtool(page: str) -> None:
    """Check that promtool finds nothing wrong with a page."""
    checked = subprocess.run(
        [tool("promtool"), "check", "metrics"], input=page, capture_output=True, text=True, check=False
    )
    assert checked.stdout + checked.stderr == ""
