"""PySpark versions: errors for unsupported ones, and what differs between the supported ones."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from acker_client.spark import compat
from acker_client.spark import functions as AF
from tests.spark.live_batch import ACKED, FAILED, LiveBatch, texts

pytestmark = pytest.mark.matrix

IMPORT = "import pyspark; pyspark.__version__ = {version!r}; import acker_client.spark"


def last_line(program: str) -> str:
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 1
    return done.stderr.splitlines()[-1]


@pytest.mark.parametrize("version", ["4.0.0", "4.0.0.dev1", "4.1.4", "4.2.1+vendor.7", "4.3.99"])
def test_a_pyspark_from_the_oldest_to_the_newest_minor_version_is_no_problem(version: str) -> None:
    assert compat.version_problem(version) == ""


@pytest.mark.parametrize(
    ("version", "why"),
    [
        ("3.5.9", "which lacks functions that the acker needs (applyInArrow over groups, among others)"),
        ("4.4.0", "which this acker was not tested with"),
        ("5.0.0", "which this acker was not tested with"),
    ],
)
def test_a_pyspark_that_is_too_old_or_too_new_is_named_with_what_to_install(version: str, why: str) -> None:
    said = compat.version_problem(version)
    assert said.startswith(f"pyspark {version} is installed, {why}")
    assert said.endswith("it works with 4.0 to 4.3: pip install 'pyspark>=4.0,<4.4'")


@pytest.mark.slow
def test_a_pyspark_that_is_too_old_is_named_when_the_package_is_imported() -> None:
    assert last_line(IMPORT.format(version="3.5.9")) == f"ImportError: {compat.version_problem('3.5.9')}"


@pytest.mark.slow
def test_a_pipeline_says_that_the_pyspark_is_too_old_and_not_that_there_is_none() -> None:
    said = last_line(
        IMPORT.format(version="3.5.9").replace("import acker_client.spark", "import acker_testing as t; t.Pipeline")
    )
    assert said.startswith("ImportError: acker_testing.Pipeline: pyspark 3.5.9 is installed, which lacks")


@pytest.mark.slow
def test_a_pyspark_that_is_only_a_client_of_spark_connect_is_named_when_the_package_is_imported() -> None:
    # The distribution pyspark-client lacks this module.
    assert last_line("import sys; sys.modules['pyspark.core'] = None; import acker_client.spark") == (
        f"ImportError: {compat.CONNECT}"
    )


def beside_rows_without_ids(df: DataFrame) -> DataFrame:
    """Add a row without ids (null in both columns) before each row."""
    rows = df.select("number", F.explode(F.array(F.lit(False), F.lit(True))).alias("is_ours"), "_root", "_edge")
    ours = [F.when(F.col("is_ours"), F.col(name)).alias(name) for name in ("_root", "_edge")]
    return rows.select("number", "is_ours", *ours)


def test_an_ack_column_takes_ids_as_they_are_beside_rows_without_any(
    spark: SparkSession, server: Any, conf: Any
) -> None:
    conf("spark.acker.servers", server.address)
    with LiveBatch(spark, server.address, texts(20)) as live:
        beside_rows_without_ids(live.df).select("number", AF.ack()).collect()
        assert live.settle() == dict.fromkeys(range(20), ACKED)


def test_a_fail_column_takes_ids_as_they_are_beside_rows_without_any(
    spark: SparkSession, server: Any, conf: Any
) -> None:
    conf("spark.acker.servers", server.address)
    with LiveBatch(spark, server.address, texts(20)) as live:
        reason = F.when(F.col("number") == 3, F.lit("bad"))
        beside_rows_without_ids(live.df).select("number", AF.fail(reason)).collect()
        assert live.settle() == {number: FAILED if number == 3 else ACKED for number in range(20)}


def test_mixed_anchors_are_acked_by_an_ack_column(spark: SparkSession, server: Any, conf: Any) -> None:
    conf("spark.acker.servers", server.address)
    with LiveBatch(spark, server.address, texts(20)) as live:
        packed = F.lit(None).cast("binary").alias("_anchors")
        live.df.select("number", "_root", "_edge", packed).select(AF.ack("_root", "_edge", "_anchors")).collect()
        assert live.settle() == dict.fromkeys(range(20), ACKED)


def test_a_number_of_tracking_columns_that_cannot_be_is_refused(spark: SparkSession, conf: Any) -> None:
    conf("spark.acker.servers", "localhost:1")
    with pytest.raises(ValueError, match="4 tracking columns; give _root and _edge, _anchors, or all three"):
        AF.ack("a", "b", "c", "d")


def test_longs_and_texts_and_bytes_come_out_of_pandas_as_they_went_in() -> None:
    for values, kind in (([2**62 + 1, None], pa.int64()), ([None], pa.binary()), (["a", None], pa.string())):
        over_pandas = compat._over_pandas(lambda batches: (batch[0] for batch in batches), [kind])
        column = pa.array(values, kind)
        # Spark passes a long as text.
        given = (column.cast(pa.string()) if kind == pa.int64() else column).to_pandas()
        taken = [compat._from_pandas(given, kind)]
        assert over_pandas.__name__ == "<lambda>"
        assert taken == [column]


def test_on_pyspark_before_4_1_a_setting_that_it_does_not_know_does_not_spare_the_digests(
    spark: SparkSession, conf: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    from acker_client.spark.driver.reruns import RETRY_ON_MISMATCH, spark_checks_reruns

    conf(RETRY_ON_MISMATCH, "true")
    assert spark_checks_reruns(spark) == (compat.SPARK >= (4, 1))
    monkeypatch.setattr(compat, "CHECKS_RERUNS", False)
    assert not spark_checks_reruns(spark)
