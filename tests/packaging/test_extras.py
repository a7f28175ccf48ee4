"""Importing a module without its extra raises an error that names the extra to install."""

from __future__ import annotations

import subprocess
import sys

import pytest

# An import of a name that is None in sys.modules fails like an import of a missing package.
BLOCKED = """
import sys
sys.modules.update(dict.fromkeys({blocked!r}))
{statement}
"""


def tried(statement: str, *blocked: str) -> subprocess.CompletedProcess[str]:
    program = BLOCKED.format(blocked=blocked, statement=statement)
    return subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False, timeout=120)


@pytest.mark.sampled(3)
@pytest.mark.parametrize(
    ("statement", "blocked", "says"),
    [
        ("import acker_client.source", ["pyarrow"], "acker_client.source needs pyarrow, which is not here"),
        ("from acker_client.source import Files", ["pyarrow", "pyspark"], "acker_client.source needs pyarrow"),
        ("import acker_client.spark", ["pyspark"], "acker_client.spark needs pyspark"),
        ("from acker_testing import new_shard; new_shard()", ["numba"], "acker_testing needs numba"),
        ("from acker_testing import Pipeline", ["pyspark"], "acker_testing.Pipeline needs pyspark"),
        (
            "from acker_client.source import ZooKeeperGroup; ZooKeeperGroup('localhost:2181', 'orders')",
            ["kazoo"],
            "a group of sources, or a checkpoint in ZooKeeper, needs kazoo",
        ),
        (
            "from acker_client.source import Kinesis; Kinesis('orders', name='orders').input()",
            ["boto3"],
            "acker_client.source.Kinesis needs boto3",
        ),
        (
            "from acker_client.source.engine.progress_bar import bar_for; bar_for(True, 'orders')",
            ["tqdm", "tqdm.auto"],
            "progress=True needs tqdm",
        ),
        (
            "from acker_client.source import Files; Files('a', name='a', checkpoint='s3://bucket/orders.ckpt')",
            ["boto3"],
            "a checkpoint in S3 needs boto3",
        ),
    ],
)
def test_what_is_imported_without_its_extra_says_which_one_to_install(
    statement: str, blocked: list[str], says: str
) -> None:
    done = tried(statement, *blocked)
    extra = "service,spark" if "Pipeline" in statement else "service" if "testing" in statement else "spark"
    extra = "zookeeper" if "ZooKeeper" in statement else extra
    extra = "kinesis" if "Kinesis" in statement else "s3" if "s3://" in statement else extra
    extra = "progress" if "progress" in statement else extra
    last = done.stderr.splitlines()[-1]
    assert done.returncode == 1
    assert last.startswith(f"ImportError: {says}")
    assert f"pip install 'acker[{extra}]'" in last


def test_kafka_without_its_extra_is_imported_and_says_which_one_to_install_when_it_is_made() -> None:
    made = "Kafka('orders', bootstrap_servers='x:1', name='orders')"
    done = tried(f"from acker_client.source import Kafka, KafkaTopic; {made}", "confluent_kafka", "pyspark", "grpc")
    last = done.stderr.splitlines()[-1]
    assert last.startswith("ImportError: acker_client.source.Kafka needs confluent_kafka, which is not here")
    assert "pip install 'acker[kafka]'" in last


@pytest.mark.sampled(3)
@pytest.mark.parametrize("blocked", ["fastavro", "httpx2", "confluent_kafka.schema_registry"])
def test_values_of_kafka_without_their_extra_say_which_one_to_install(blocked: str) -> None:
    values = "values=Avro('id bigint', 'http://x')"
    made = f"Kafka('orders', bootstrap_servers='x:1', name='orders', {values})"
    done = tried(f"from acker_client.source import Avro, Kafka; {made}", blocked)
    last = done.stderr.splitlines()[-1]
    assert last.startswith("ImportError: acker_client.source.Kafka with values= needs ")
    assert "pip install 'acker[schema-registry]'" in last


def test_a_source_is_imported_without_spark_and_without_grpc() -> None:
    blocked = ("pyspark", "pandas", "grpc", "numba", "kazoo", "boto3", "confluent_kafka", "tqdm")
    assert tried("import acker_client.source", *blocked).returncode == 0


@pytest.mark.long
def test_what_tests_need_has_a_name_in_the_client_too_which_loads_it_only_when_asked() -> None:
    lazy = "import sys, acker_client.testing as named; assert 'acker_testing' not in sys.modules"
    same = "from acker_client.testing import *; import acker_testing; assert Pipeline is acker_testing.Pipeline"
    done = tried(f"{lazy}; {same}; assert dir(named) == sorted(acker_testing.__all__)")
    assert done.returncode == 0, done.stderr
