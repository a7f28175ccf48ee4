"""The sidecar: built by the Dockerfile's commands, run as its manifest says, used by a Spark job, and scraped."""

from __future__ import annotations

import json
import os
import re
import shlex
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from tests.deploy.container import IS_ROOT, Container, build, environment_of
from tests.deploy.prometheus import ROOT, SHIPPED, Prometheus, targets_of
from tests.packaging import programs
from tests.service.caller import eventually
from tests.source.kafka_broker import MockKafka

PORTS = ("7070", "7071", "7072")
RECORDS = 30


def command() -> list[str]:
    """Return the words of the documents' spark-submit."""
    text = (ROOT / "docs/operating/deploy.md").read_text()
    (found,) = re.findall(r"^```sh\n(spark-submit .*?)^```$", text, re.MULTILINE | re.DOTALL)
    return shlex.split(found.replace("\\\n", " "))


@pytest.fixture(scope="module")
def pod() -> dict[str, Any]:
    """The driver's pod as Spark makes it from the documents' command, with free ports."""
    words = command()
    settings = [words[at + 1] for at, word in enumerate(words) if word == "--conf"]
    settings += [
        f"spark.{name}={words[words.index(f'--{flag}') + 1]}"
        for name, flag in (("master", "master"), ("app.name", "name"))
    ]
    done = subprocess.run(
        [sys.executable, "-m", "tests.deploy.driver_pod", *settings, words[-1]],
        cwd=ROOT,
        env=os.environ | {"SPARK_LOCAL_IP": "127.0.0.1"},
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    text = done.stdout
    taken = [socket.create_server(("127.0.0.1", 0)) for _ in PORTS]
    for port, free in zip(PORTS, taken, strict=True):
        text = re.sub(rf"\b{port}\b", str(free.getsockname()[1]), text)
        free.close()
    found: dict[str, Any] = json.loads(text.splitlines()[-1])
    return found


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(tmp_path_factory.mktemp("image"))


@pytest.fixture
def volumes(pod: dict[str, Any], tmp_path: Path) -> dict[str, Path]:
    """A folder for each emptyDir, which any user may write, as Kubernetes makes it."""
    found = {each["name"]: tmp_path / each["name"] for each in pod["spec"]["volumes"] if "emptyDir" in each}
    for folder in found.values():
        folder.mkdir()
        folder.chmod(0o777)
    return found


@pytest.fixture
def sidecar(pod: dict[str, Any], built: Path, volumes: dict[str, Path], tmp_path: Path) -> Iterator[Container]:
    (container,) = pod["spec"]["initContainers"]
    assert container["restartPolicy"] == "Always"
    made = Container(built, container, volumes, {"POD_IP": "127.0.0.1"}, tmp_path / "sidecar.log")
    try:
        eventually(lambda: made.answers("startupProbe"), within_s=60.0)
        yield made
    finally:
        made.kill()


@pytest.fixture
def driver(
    pod: dict[str, Any], sidecar: Container, volumes: dict[str, Path], tmp_path: Path
) -> Iterator[subprocess.Popen[str]]:
    """The documents' program with the environment of the driver's container, while it reads thirty records."""
    (container,) = pod["spec"]["containers"]
    port = next(each["containerPort"] for each in container["ports"] if each["name"] == "acker-driver")
    environment = environment_of({"env": [each for each in container["env"] if each["name"].startswith("ACKER_")]}, {})
    for mount in container["volumeMounts"]:
        if mount["name"] in volumes:
            for name, text in environment.items():
                environment[name] = text.replace(mount["mountPath"], str(volumes[mount["name"]]))
    with MockKafka() as kafka:
        kafka.create("orders")
        kafka.create("orders-dead")
        kafka.write("orders", 1, [f"{number}".encode() for number in range(RECORDS)])
        text = programs.only("start_http_server(7072)").replace("7072", str(port)).replace("kafka:9092", kafka.servers)
        path = tmp_path / "orders.py"
        path.write_text(text)
        with subprocess.Popen(
            [sys.executable, path],
            cwd=tmp_path,
            env=os.environ | {"SPARK_LOCAL_IP": "127.0.0.1"} | environment,
            stdout=subprocess.PIPE,
            text=True,
        ) as process:
            yield process
            process.kill()


@pytest.mark.long
def test_spark_keeps_of_the_template_what_the_sidecar_needs(pod: dict[str, Any]) -> None:
    (sidecar,), (driver,) = pod["spec"]["initContainers"], pod["spec"]["containers"]
    mounts = {each["name"]: each for each in driver["volumeMounts"]}
    assert mounts["acker-access"]["readOnly"]
    assert {each["name"] for each in sidecar["volumeMounts"]} <= {each["name"] for each in pod["spec"]["volumes"]}
    assert "acker-driver" in {each["name"] for each in driver["ports"]}
    assert pod["metadata"]["annotations"]["prometheus.io/scrape"] == "true"
    assert any(each["name"] == "ACKER_ACCESS_FILE" for each in driver["env"])
    assert driver["lifecycle"]["preStop"]["exec"]["command"]
    assert pod["spec"]["terminationGracePeriodSeconds"] == 600


@pytest.mark.long
def test_a_job_uses_the_sidecar_and_prometheus_scrapes_both(
    pod: dict[str, Any], sidecar: Container, driver: subprocess.Popen[str], volumes: dict[str, Path], tmp_path: Path
) -> None:
    if IS_ROOT:
        assert sidecar.user == pod["spec"]["initContainers"][0]["securityContext"]["runAsUser"]
    assert sidecar.answers("livenessProbe")
    assert "kernels_compiling" not in sidecar.log
    access = volumes["acker-access"] / "own"
    assert access.stat().st_mode & 0o777 == 0o700
    (tmp_path / "prometheus").mkdir()
    pods = tmp_path / "prometheus/pods.json"
    pods.write_text(json.dumps(targets_of(pod, "127.0.0.1")))
    with closing(Prometheus(tmp_path / "prometheus", f"[{pods}]", SHIPPED / "kubernetes.yml")) as prometheus:

        def are_acked() -> bool:
            assert driver.poll() is None
            acked = prometheus.values(f'acker_source_acked_total{{job="acker-driver",source="orders"}} == {RECORDS}')
            return len(acked) == 1

        eventually(are_acked, within_s=240.0)
        eventually(lambda: prometheus.values('acker_outcomes_total{verdict="acked"}') == [RECORDS], within_s=60.0)
        found = prometheus.query("up == 1")
        assert {(each["job"], each["pod"], each["kubernetes_namespace"]) for each in found} == {
            ("acker-driver", "orders-driver", "jobs"),
            ("acker-sidecar", "orders-driver", "jobs"),
        }
        assert prometheus.query("up == 0") == []
    driver.send_signal(signal.SIGTERM)
    told, _ = driver.communicate(timeout=120)
    assert driver.returncode == 0
    assert re.search(rf"acked +{RECORDS} ", told)
