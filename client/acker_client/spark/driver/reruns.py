"""Reruns: whether Spark itself checks that a task that runs again produces the same rows."""

from __future__ import annotations

from pyspark.sql import SparkSession

from acker_client.spark import compat

# Spark's setting for this check. If it is off, batch operators digest values too.
RETRY_ON_MISMATCH = "spark.sql.shuffle.orderIndependentChecksum.enableFullRetryOnMismatch"


def spark_checks_reruns(spark: SparkSession) -> bool:
    """Whether Spark aborts a job in which a task that runs again produces other rows."""
    return compat.CHECKS_RERUNS and str(spark.conf.get(RETRY_ON_MISMATCH, None)).lower() == "true"
