"""A real Apache Kafka for tests: one node (KRaft), from Maven Central, in a process of its own.

One listener admits everybody as a super user. The other one needs SASL PLAIN, with the user ``reader`` and the password
``secret``, to whom ACLs apply. Topics that are set up to compact or delete do so at once.
"""

from __future__ import annotations

import base64
import itertools
import os
import random
import shutil
import signal
import socket
import subprocess
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pyspark
import pytest
from confluent_kafka import ConsumerGroupTopicPartitions, IsolationLevel, Producer, TopicPartition
from confluent_kafka import admin as library

from acker_testing import standstill

# The types of the library are too incomplete to be useful.
admin: Any = library

PROJECT = Path(__file__).parent
BUILD = PROJECT.parents[1] / ".build" / "kafka"
START_S = 300.0
# Below the ports that Linux gives to connections, one of which might take a port before the broker listens on it.
PORTS = range(20_000, 32_000)
# The newest Spark Kafka connector on Maven Central, which has none for 4.3.0.
CONNECTOR = "4.2.0"

SETTINGS = """\
process.roles=broker,controller
node.id=1
controller.quorum.bootstrap.servers=127.0.0.1:{controller}
listeners=PLAINTEXT://127.0.0.1:{plain},SASL://127.0.0.1:{sasl},CONTROLLER://127.0.0.1:{controller}
advertised.listeners=PLAINTEXT://127.0.0.1:{plain},SASL://127.0.0.1:{sasl}
listener.security.protocol.map=PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT,SASL:SASL_PLAINTEXT
controller.listener.names=CONTROLLER
inter.broker.listener.name=PLAINTEXT
sasl.enabled.mechanisms=PLAIN
listener.name.sasl.plain.sasl.jaas.config=org.apache.kafka.common.security.plain.PlainLoginModule required \
user_reader="secret";
authorizer.class.name=org.apache.kafka.metadata.authorizer.StandardAuthorizer
super.users=User:ANONYMOUS
allow.everyone.if.no.acl.found=true
log.dirs={folder}/data
offsets.topic.num.partitions=1
offsets.topic.replication.factor=1
transaction.state.log.num.partitions=1
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
group.initial.rebalance.delay.ms=0
auto.create.topics.enable=false
log.cleaner.backoff.ms=100
log.cleaner.dedupe.buffer.size=16777216
"""


def build() -> None:
    """Fetch Kafka if it is not here yet. Fails the test if it cannot be fetched."""
    if problem := _fetch("pom.xml"):
        pytest.fail(f"Maven could not fetch Apache Kafka:\n{problem}")


def connector() -> str:
    """Return Spark's own Kafka connector as a value of ``spark.jars``: for PySpark's version, or else ``CONNECTOR``.

    Fails the test if neither can be fetched."""
    for version in (pyspark.__version__, CONNECTOR):
        if not (problem := _fetch("spark-pom.xml", f"-Dspark.version={version}")):
            return (BUILD / f"spark-{version}").read_text().strip().replace(os.pathsep, ",")
    pytest.fail(f"Maven could not fetch Spark's Kafka connector:\n{problem}")


def _fetch(project: str, *more: str) -> str:
    """Fetch the dependencies of a Maven project. Returns Maven's output if it fails, else ""."""
    if shutil.which("mvn") is None or shutil.which("java") is None:
        pytest.fail("make test-kafka runs a real Apache Kafka from Maven Central: install maven and a JDK")
    command = ["mvn", "--quiet", "--batch-mode", "--file", str(PROJECT / project), *more, "package"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return f"{done.stdout[-2000:]}{done.stderr[-2000:]}" if done.returncode else ""


class RealKafka:
    """A broker. ``servers``: its address for everybody. ``sasl_servers``: its address for ``reader``."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        ports = free_ports(3)
        self.servers, self.sasl_servers = (f"127.0.0.1:{port}" for port in ports[:2])
        self._settings = folder / "server.properties"
        named = dict(zip(("plain", "sasl", "controller"), ports, strict=True))
        self._settings.write_text(SETTINGS.format(folder=folder, **named))
        cluster = base64.urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")
        self._java("kafka.tools.StorageTool", "format", "--standalone", "-t", cluster, "-c", str(self._settings)).wait()
        self.start()
        self.admin = admin.AdminClient({"bootstrap.servers": self.servers, "log_level": 0})
        # Only idempotence keeps the order of records over a retry, which a new topic may need.
        self._producer = Producer({"bootstrap.servers": self.servers, "enable.idempotence": True, "log_level": 0})

    def start(self) -> None:
        """Start the broker, or start it again with its data. Returns when it answers."""
        self.process = self._java("kafka.Kafka", str(self._settings))
        answering = admin.AdminClient({"bootstrap.servers": self.servers, "log_level": 0})
        eventually(lambda: self.process.poll() is not None or _answers(answering))
        if self.process.poll() is not None:
            pytest.fail(f"the broker ended by itself:\n{(self.folder / 'log').read_text()[-4000:]}")

    def kill(self) -> None:
        """Kill the broker, as a crash does."""
        self.process.kill()
        self.process.wait()

    def pause(self) -> None:
        standstill.stop_child(self.process)

    def resume(self) -> None:
        self.process.send_signal(signal.SIGCONT)

    def new_topic(self, partitions: int = 1, config: Mapping[str, str] | None = None) -> str:
        topic = f"topic-{uuid.uuid4().hex[:8]}"
        self.create(topic, partitions, config)
        return topic

    def create(self, topic: str, partitions: int = 1, config: Mapping[str, str] | None = None) -> None:
        self.admin.create_topics([admin.NewTopic(topic, partitions, 1, config=dict(config or {}))])[topic].result(30)
        eventually(lambda: len(self.admin.list_topics(topic, timeout=10).topics[topic].partitions) == partitions)

    def delete(self, topic: str) -> None:
        self.admin.delete_topics([topic])[topic].result(30)
        eventually(lambda: topic not in self.admin.list_topics(timeout=10).topics)

    def add_partitions(self, topic: str, partitions: int) -> None:
        self.admin.create_partitions([admin.NewPartitions(topic, partitions)])[topic].result(30)
        eventually(lambda: len(self._producer.list_topics(topic, timeout=10).topics[topic].partitions) == partitions)

    def delete_below(self, topic: str, partition: int, offset: int) -> None:
        for deleted in self.admin.delete_records([TopicPartition(topic, partition, offset)]).values():
            deleted.result(30)

    def write(self, topic: str, partition: int, values: Sequence[bytes | None], **more: Any) -> None:
        for value in values:
            while True:
                try:
                    self._producer.produce(topic, value, partition=partition, **more)
                    break
                except BufferError:
                    self._producer.poll(0.1)
        assert self._producer.flush(60) == 0

    def end_of(self, topic: str) -> int:
        """Return the end offset of partition 0, as a consumer with read_committed sees it."""
        at = TopicPartition(topic, 0)
        asked = self.admin.list_offsets({at: admin.OffsetSpec.latest()}, isolation_level=IsolationLevel.READ_COMMITTED)
        return int(asked[at].result(30).offset)

    def committed(self, group: str) -> dict[tuple[str, int], int]:
        """Return the committed offsets of ``group`` by (topic, partition), as lag monitors see them."""
        (asked,) = self.admin.list_consumer_group_offsets([ConsumerGroupTopicPartitions(group)]).values()
        return {(each.topic, each.partition): each.offset for each in asked.result(30).topic_partitions}

    def close(self) -> None:
        self.resume()
        self.kill()

    def _java(self, *arguments: str) -> subprocess.Popen[bytes]:
        classpath = (BUILD / "classpath").read_text().strip()
        command = ["java", "-Xmx512m", "-XX:+UseSerialGC", "-cp", classpath, *arguments]
        with open(self.folder / "log", "ab") as log:
            return subprocess.Popen(command, cwd=self.folder, stdout=log, stderr=log, env=dict(os.environ))


def free_ports(count: int) -> list[int]:
    return list(itertools.islice(filter(_is_free, random.sample(PORTS, len(PORTS))), count))


def _is_free(port: int) -> bool:
    with socket.socket() as trial:
        return trial.connect_ex(("127.0.0.1", port)) != 0


def eventually(holds: Callable[[], bool], within_s: float = START_S) -> None:
    """Poll ``holds`` until it is true. Fails after ``within_s``."""
    deadline_s = time.monotonic() + within_s
    while not holds():
        assert time.monotonic() < deadline_s, f"it did not happen within {within_s:g} s"
        time.sleep(0.1)


def _answers(answering: Any) -> bool:
    try:
        return bool(answering.list_topics(timeout=1).brokers)
    except Exception:  # noqa: BLE001  # while it starts, calls fail in many ways
        return False
