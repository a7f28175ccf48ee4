"""The generated parts of the documents match the code."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from benchmarks import documents
from tests.packaging import reference


@pytest.mark.parametrize("page", reference.pages(), ids=lambda page: page.stem)
def test_a_page_is_what_the_code_generates(page: Path) -> None:
    text = page.read_text()
    assert reference.written(text) == text, "run: python -m tests.packaging.reference"


def test_every_option_of_a_source_has_a_meaning() -> None:
    text = (reference.DOCS / "reference/source-options.md").read_text()
    rows = re.findall(r"^\| `(\w+)` \| (.*?) \| (.*) \|$", text, re.MULTILINE)
    assert len(rows) > 50
    assert [name for name, _, meaning in rows if not meaning.strip()] == []


def test_every_source_has_a_table_of_options() -> None:
    text = (reference.DOCS / "reference/source-options.md").read_text()
    named = set(re.findall(r"<!-- generated: options of (\w+) -->", text))
    formats = {"Avro", "JsonSchema", "Protobuf"}
    others = {"sources", "Retry", "Files", "Parquet", "tracked", "Kafka", "Kinesis", "PutBack", "ZooKeeperGroup"}
    assert named == formats | others


def test_the_page_of_spark_settings_lists_every_setting_that_the_session_reads() -> None:
    text = (reference.DOCS / "reference/spark-settings.md").read_text()
    code = (reference.ROOT / "client/acker_client/spark/driver/session.py").read_text()
    listed = set(re.findall(r"^\| `(spark\.acker\.\w+)`", text, re.MULTILINE))
    assert listed == set(re.findall(r'"(spark\.acker\.\w+)"', code)) - {"spark.acker.pins"}


def test_the_chart_of_the_benchmarks_shows_the_figures_of_the_table() -> None:
    page = documents.PAGE.read_text()
    # Kafka's four rows are there only if the run included Kafka.
    assert len(documents.ROW.findall(page)) in (11, 15)
    assert documents.CHART.read_text() == documents.chart(page), "run: python -m benchmarks.documents"


def test_a_page_that_was_edited_by_hand_is_found() -> None:
    text = (reference.DOCS / "reference/server-options.md").read_text()
    edited = text.replace("| `7070` |", "| `7000` |")
    assert edited != text
    assert reference.written(edited) == text


def test_no_page_contains_paths_or_object_addresses_of_its_generator() -> None:
    for page in reference.pages():
        text = page.read_text()
        assert not re.search(r"environ\(|ForwardRef| at 0x", text), page
        assert str(reference.ROOT) not in text
        assert str(Path.home()) not in text
