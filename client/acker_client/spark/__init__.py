"""Tracked Spark pipelines: operators, sinks and collectors, and the check that refuses plans which lose track of rows.

The public names are here: ``from acker_client.spark import operator, sink, where``.
"""

from __future__ import annotations

from acker_client.extras import missing

try:
    import numba  # noqa: F401
    import pyarrow  # noqa: F401
    import pyspark  # noqa: F401
except ImportError as error:
    raise missing("acker_client.spark", "spark", error) from error

# Must come first: it refuses PySpark versions with which importing the other modules fails.
from acker_client.spark import compat  # noqa: F401  # isort: skip
from acker_client.spark import functions
from acker_client.spark.driver.check import check
from acker_client.spark.operators.branch import branch
from acker_client.spark.operators.cogroup import cogroup
from acker_client.spark.operators.collector import Collector, CollectorError, collector_settings, process_client
from acker_client.spark.operators.explode import explode
from acker_client.spark.operators.group import group
from acker_client.spark.operators.join import join
from acker_client.spark.operators.operator import Operator, arrow_operator, operator, pandas_operator
from acker_client.spark.operators.sink import Sink, sink
from acker_client.spark.operators.udf import acker_udf
from acker_client.spark.operators.where import where
from acker_client.spark.outputs import delta_options, write_parquet
from acker_client.spark.plan_check.refusals import MovingBoundaries, Refused
from acker_client.spark.worker.failed import RecordFailed
from acker_client.spark.worker.returns import OperatorError

__all__ = [
    "operator",
    "pandas_operator",
    "arrow_operator",
    "where",
    "explode",
    "branch",
    "group",
    "cogroup",
    "join",
    "sink",
    "Collector",
    "collector_settings",
    "process_client",
    "acker_udf",
    "write_parquet",
    "delta_options",
    "functions",
    "check",
    "Operator",
    "OperatorError",
    "Sink",
    "CollectorError",
    "MovingBoundaries",
    "RecordFailed",
    "Refused",
]
