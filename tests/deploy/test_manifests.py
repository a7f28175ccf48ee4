"""Manifests agree: one image name, the same ports, and a network policy that admits what the documents say."""

from __future__ import annotations

import json
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from acker_client.spark.driver import embedded, session
from acker_protocol.version import VERSION
from acker_service import config
from acker_service.access import own_access
from acker_service.config import OF_CLIENTS, OPTIONS, Config, flag, variable
from acker_service.process import compiling
from tests.deploy.container import dockerfile, namespace, variables_of_the_image
from tests.deploy.prometheus import ROOT, SHIPPED, tool

CLUSTER = {"app": "acker"}
CLIENT = {"acker-client": "true"}
# What these variables name is written.
WRITTEN = ("ACKER_STATE_DIR", "ACKER_READY_FILE", "ACKER_OWN_ACCESS")


def documents(path: str) -> list[dict[str, Any]]:
    return list(yaml.safe_load_all((ROOT / path).read_text()))


def of_kind(kind: str) -> dict[str, Any]:
    (document,) = [each for each in documents("deploy/k8s/acker.yaml") if each["kind"] == kind]
    return document


CONTAINERS: dict[str, dict[str, Any]] = {
    "acker.yaml": of_kind("StatefulSet")["spec"]["template"]["spec"]["containers"][0],
    "sidecar.yaml": documents("deploy/k8s/sidecar.yaml")[0]["spec"]["initContainers"][0],
}
each_container = pytest.mark.parametrize("name", CONTAINERS)


def test_the_image_has_one_name() -> None:
    image = f"acker:{VERSION}"
    (compose,) = documents("deploy/compose.yaml")
    used = {container["image"] for container in CONTAINERS.values()} | {compose["services"]["acker"]["image"]}
    assert used == {image}
    for path in ("Dockerfile", "docs/operating/deploy.md"):
        text = (ROOT / path).read_text()
        assert set(re.findall(r"docker build -t (\S+)", text)) == {image}
        assert set(re.findall(r"\backer:\d+\.[^`\s\",]+", text)) == {image}


@each_container
def test_a_container_is_told_the_ports_that_it_declares(name: str) -> None:
    container = CONTAINERS[name]
    told = {each["name"]: int(each["value"]) for each in container["env"] if each["name"].endswith("PORT")}
    declared = {each["name"].removeprefix("acker-"): each["containerPort"] for each in container["ports"]}
    assert declared == {"grpc": told["ACKER_PORT"], "http": told["ACKER_HTTP_PORT"]}


@each_container
def test_probes_ask_the_port_of_http_by_its_name(name: str) -> None:
    container = CONTAINERS[name]
    (http,) = [each["name"] for each in container["ports"] if each["name"].endswith("http")]
    probes = {key: probe["httpGet"] for key, probe in container.items() if key.endswith("Probe")}
    assert "startupProbe" in probes
    assert {probe["port"] for probe in probes.values()} == {http}
    assert {probe["path"] for probe in probes.values()} <= {"/livez", "/readyz"}


def test_service_annotation_compose_and_scrape_agree_with_the_ports() -> None:
    ports = {each["name"]: each["containerPort"] for each in CONTAINERS["acker.yaml"]["ports"]}
    service = of_kind("Service")["spec"]
    assert {each["targetPort"]: each["port"] for each in service["ports"]} == ports
    template = of_kind("StatefulSet")["spec"]["template"]["metadata"]
    assert template["annotations"]["prometheus.io/port"] == str(ports["http"])
    assert (service["selector"], template["labels"]) == (CLUSTER, CLUSTER)
    assert ports == {"grpc": Config().port, "http": Config().http_port}
    published = documents("deploy/compose.yaml")[0]["services"]["acker"]["ports"]
    assert published == [f"127.0.0.1:{port}:{port}" for port in ports.values()]
    scrape = documents("deploy/prometheus/prometheus.yml")[0]["scrape_configs"][0]["static_configs"][0]["targets"]
    assert scrape == [f"acker:{ports['http']}"]
    assert f"EXPOSE {ports['grpc']} {ports['http']}\n" in dockerfile()


def test_each_pod_is_a_server_of_its_own_that_clients_reach_also_while_it_drains() -> None:
    template = of_kind("StatefulSet")["spec"]["template"]
    env = {each["name"]: each for each in template["spec"]["containers"][0]["env"]}
    assert env["ACKER_ID"]["valueFrom"]["fieldRef"]["fieldPath"] == "metadata.labels['apps.kubernetes.io/pod-index']"
    service = of_kind("Service")
    assert of_kind("StatefulSet")["spec"]["serviceName"] == service["metadata"]["name"]
    place = env["ACKER_ADVERTISE"]["value"]
    assert place == f"$(POD_NAME).{service['metadata']['name']}.$(POD_NAMESPACE).svc:{env['ACKER_PORT']['value']}"
    # Variables in $(...) have to be set before they are used.
    assert list(env).index("POD_NAME") < list(env).index("ACKER_ADVERTISE") > list(env).index("POD_NAMESPACE")
    assert service["spec"]["publishNotReadyAddresses"]


def test_the_sidecar_is_reached_where_it_listens_with_access_of_its_own_making() -> None:
    pod = documents("deploy/k8s/sidecar.yaml")[0]
    (driver,) = pod["spec"]["containers"]
    env = {each["name"]: each["value"] for each in driver["env"]}
    told = {each["name"]: each.get("value") for each in CONTAINERS["sidecar.yaml"]["env"]}
    assert told["ACKER_ADVERTISE"] == f"$(POD_IP):{told['ACKER_PORT']}"
    assert list(told).index("POD_IP") < list(told).index("ACKER_ADVERTISE")
    assert env == {"ACKER_ACCESS_FILE": f"{told['ACKER_OWN_ACCESS']}/{own_access.ACCESS}"}
    assert set(env) <= OF_CLIENTS
    assert pod["metadata"]["labels"] == CLIENT
    # Both see the same volume at the same place, and the server makes its own private directory there.
    mounts = [
        {each["name"]: each["mountPath"] for each in it["volumeMounts"]} for it in (CONTAINERS["sidecar.yaml"], driver)
    ]
    assert mounts[0]["acker-access"] == mounts[1]["acker-access"] == str(Path(told["ACKER_OWN_ACCESS"] or "").parent)


@each_container
def test_a_container_writes_only_where_it_has_a_volume(name: str) -> None:
    container = CONTAINERS[name]
    assert container["securityContext"]["readOnlyRootFilesystem"]
    told = variables_of_the_image() | {each["name"]: each.get("value", "") for each in container["env"]}
    written = {variable: told[variable] for variable in WRITTEN if variable in told}
    assert len(written) >= 2
    writable = [each["mountPath"] for each in container["volumeMounts"] if not each.get("readOnly")]
    assert [path for path in written.values() if not any(path.startswith(f"{mount}/") for mount in writable)] == []


def test_prometheus_finds_the_ports_that_the_manifests_name() -> None:
    (discovered,) = documents("deploy/prometheus/kubernetes.yml")
    jobs = {job["job_name"]: job["relabel_configs"][0]["regex"] for job in discovered["scrape_configs"]}
    assert jobs == {
        "acker": "acker;http",
        "acker-sidecar": "acker-http;Running",
        "acker-driver": "acker-driver;Running",
    }
    monitors = {each["metadata"]["name"]: each["spec"] for each in documents("deploy/k8s/podmonitor.yaml")}
    endpoints = {
        end["relabelings"][0]["replacement"]: (spec["selector"]["matchLabels"], end["port"])
        for spec in monitors.values()
        for end in spec["podMetricsEndpoints"]
    }
    assert endpoints == {
        "acker": (CLUSTER, "http"),
        "acker-sidecar": (CLIENT, "acker-http"),
        "acker-driver": (CLIENT, "acker-driver"),
    }
    (driver,) = documents("deploy/k8s/sidecar.yaml")[0]["spec"]["containers"]
    named = {port["name"] for container in (*CONTAINERS.values(), driver) for port in container["ports"]}
    assert {port for _, port in endpoints.values()} <= named
    annotations = documents("deploy/k8s/sidecar.yaml")[0]["metadata"]["annotations"]
    ports = {each["name"]: each["containerPort"] for each in CONTAINERS["sidecar.yaml"]["ports"]}
    assert annotations == {"prometheus.io/scrape": "true", "prometheus.io/port": str(ports["acker-http"])}


def test_no_scrape_takes_the_label_namespace_from_the_metrics_that_have_it() -> None:
    """With a target's label ``namespace`` Prometheus would rename that of a metric, which names its callers."""
    (discovered,) = documents("deploy/prometheus/kubernetes.yml")
    for job in discovered["scrape_configs"]:
        targets = [each.get("target_label") for each in job["relabel_configs"]]
        assert "kubernetes_namespace" in targets
        assert "namespace" not in targets
    for monitor in documents("deploy/k8s/podmonitor.yaml"):
        for end in monitor["spec"]["podMetricsEndpoints"]:
            # The operator itself gives each target of a PodMonitor the label, before these steps.
            assert end["relabelings"][1:] == [
                {"sourceLabels": ["namespace"], "targetLabel": "kubernetes_namespace"},
                {"action": "labeldrop", "regex": "namespace"},
            ]


def test_the_rules_of_the_operator_are_those_of_prometheus() -> None:
    (rules,) = documents("deploy/k8s/prometheusrule.yaml")
    assert (rules["apiVersion"], rules["kind"]) == ("monitoring.coreos.com/v1", "PrometheusRule")
    (shipped,) = documents("deploy/prometheus/alerts.yaml")
    assert rules["spec"] == shipped


def test_promtool_takes_the_configuration_for_kubernetes(tmp_path: Path) -> None:
    (tmp_path / "alerts.yaml").write_text((SHIPPED / "alerts.yaml").read_text())
    text = (SHIPPED / "kubernetes.yml").read_text()
    # Debian's Prometheus is built without discovery in Kubernetes. A CA that is named has to exist.
    text = text.replace("kubernetes_sd_configs: [{ role: pod }]", "file_sd_configs: [{ files: [pods.json] }]")
    for name in ("token", "ca.crt"):
        (tmp_path / name).write_text("")
    (tmp_path / "kubernetes.yml").write_text(text.replace("/etc/prometheus/acker", str(tmp_path)))
    done = subprocess.run([tool("promtool"), "check", "config", tmp_path / "kubernetes.yml"], check=False)
    assert done.returncode == 0


def modules_with_kernels() -> set[str]:
    """Return the names of the modules whose functions numba compiles into its cache."""
    found = [path.relative_to(ROOT) for path in (*ROOT.glob("acker_*/**/*.py"), *ROOT.glob("client/**/*.py"))]
    compiled = [path for path in found if "@njit" in (ROOT / path).read_text()]
    return {".".join(path.with_suffix("").parts).removeprefix("client.") for path in compiled}


def test_the_images_hold_every_compiled_kernel_for_the_processor_that_they_name() -> None:
    text = (ROOT / "docs/operating/deploy.md").read_text()
    (image,) = re.findall(r"^```dockerfile\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    of_the_service = {name for name in modules_with_kernels() if name.startswith("acker_service.")}
    for each, modules in ((image, modules_with_kernels()), (dockerfile(), of_the_service)):
        (imported,) = re.findall(r'-P -c "import (.*)"', each)
        assert set(imported.split(", ")) == modules
        assert set(re.findall(r"NUMBA_CPU_NAME=(\S+)", each)) == {"generic"}
        assert each.count("NUMBA_CPU_NAME=") == 2
    (locator,) = re.findall(r"NUMBA_CACHE_LOCATOR_CLASSES=(\S+)", image)
    assert locator == compiling.LOCATORS


def test_the_pod_for_commands_has_what_a_client_of_the_servers_needs() -> None:
    text = (ROOT / "docs/operating/deploy.md").read_text()
    (line,) = re.findall(r"^kubectl run .*?^}'$", text, re.MULTILINE | re.DOTALL)
    words = shlex.split(line)
    assert f"--labels=acker-client={CLIENT['acker-client']}" in words
    (overrides,) = [word.removeprefix("--overrides=") for word in words if word.startswith("--overrides=")]
    spec = json.loads(overrides)["spec"]
    (container,) = spec["containers"]
    assert container["name"] == words[2]
    assert {f"--image={container['image']}", f"--image={CONTAINERS['acker.yaml']['image']}"} <= set(words)
    env = {each["name"]: each["value"] for each in container["env"]}
    assert set(env) == {"ACKER_SERVERS", "ACKER_TOKEN_FILE", "ACKER_CA"}
    assert set(env) <= OF_CLIENTS
    (mount,), (volume,) = container["volumeMounts"], spec["volumes"]
    assert mount["name"] == volume["name"]
    secret = f"kubectl create secret generic {volume['secret']['secretName']} "
    (made,) = [each for each in text.splitlines() if each.startswith(secret)]
    files = {word.removeprefix("--from-file=").partition("=")[0] for word in made.split() if "--from-file" in word}
    assert {f"{mount['mountPath']}/{name}" for name in files} == {env["ACKER_TOKEN_FILE"], env["ACKER_CA"]}


def test_the_settings_of_a_job_in_kubernetes_exist_and_find_the_mounted_secret() -> None:
    text = (ROOT / "docs/operating/deploy.md").read_text()
    (found,) = re.findall(r"^```properties\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    settings = dict(line.split("=", 1) for line in found.splitlines())
    assert {key for key in settings if key.startswith("spark.acker.")} <= set(session.KEYS)
    for who in ("driver", "executor"):
        folder = settings[f"spark.kubernetes.{who}.secrets.acker-orders"]
        assert settings["spark.acker.tokenFile"] == f"{folder}/token"
        assert settings["spark.acker.ca"] == f"{folder}/ca.crt"
        assert settings[f"spark.kubernetes.{who}.label.acker-client"] == CLIENT["acker-client"]
    service = of_kind("Service")
    assert settings["spark.acker.servers"] == f"{service['metadata']['name']}:{service['spec']['ports'][0]['port']}"


def test_a_drained_pod_stays_drained_until_it_is_deleted() -> None:
    env = {each["name"]: each.get("value", "") for each in CONTAINERS["acker.yaml"]["env"]}
    options = config.read(
        [], {name: text for name, text in env.items() if name in ("ACKER_STAY_DRAINED", "ACKER_AWAY_S")}
    )
    assert options.stay_drained
    assert f"`acker.yaml` sets {options.away_s:g} s" in (ROOT / "docs/operating/deploy.md").read_text()


def test_servers_are_spread_over_nodes_and_evicted_one_at_a_time() -> None:
    pod = of_kind("StatefulSet")["spec"]["template"]["spec"]
    (spread,) = pod["topologySpreadConstraints"]
    assert (spread["topologyKey"], spread["whenUnsatisfiable"]) == ("kubernetes.io/hostname", "ScheduleAnyway")
    budget = of_kind("PodDisruptionBudget")["spec"]
    assert budget["maxUnavailable"] == 1
    assert spread["labelSelector"]["matchLabels"] == budget["selector"]["matchLabels"] == CLUSTER


def lets_in(namespace: dict[str, str], pod: dict[str, str], port: str, is_own: bool = False) -> bool:
    """Return whether the policy admits a pod at ``port``, by the rules of Kubernetes."""

    def is_chosen(peer: dict[str, Any]) -> bool:
        of_namespace, of_pod = peer.get("namespaceSelector"), peer.get("podSelector", {})
        within = is_own if of_namespace is None else of_namespace.get("matchLabels", {}).items() <= namespace.items()
        return within and of_pod.get("matchLabels", {}).items() <= pod.items()

    policy = of_kind("NetworkPolicy")["spec"]
    assert policy["podSelector"]["matchLabels"] == CLUSTER
    rules = [rule for rule in policy["ingress"] if port in {each["port"] for each in rule["ports"]}]
    return any("from" not in rule or any(map(is_chosen, rule["from"])) for rule in rules)


def test_the_policy_lets_in_the_pods_and_namespaces_that_the_documents_promise() -> None:
    assert lets_in({}, CLIENT, "grpc", is_own=True)
    assert lets_in(CLIENT, CLIENT, "grpc")
    assert not lets_in({}, {}, "grpc", is_own=True)
    assert not lets_in({}, CLIENT, "grpc")
    assert not lets_in(CLIENT, {}, "grpc")
    assert lets_in({}, {}, "http")
    text = (ROOT / "docs/operating/deploy.md").read_text()
    for label in ('`acker-client: "true"`', "kubectl label namespace jobs acker-client=true"):
        assert label in text
    for who in ("driver", "executor"):
        assert f"spark.kubernetes.{who}.label.acker-client=true" in text


def test_the_image_and_the_containers_set_variables_and_flags_that_exist() -> None:
    known = {variable(option.name) for option in OPTIONS}
    flags = {flag(option.name) for option in OPTIONS}
    assert {name for name in variables_of_the_image() if name.startswith("ACKER_")} <= known
    for container in CONTAINERS.values():
        assert {each["name"] for each in container["env"] if not each["name"].startswith("POD_")} <= known
        assert {word for word in container["args"] if word.startswith("--")} <= flags


@pytest.mark.parametrize(("name", "roots"), [("acker.yaml", 20_000_000), ("sidecar.yaml", 5_000_000)])
def test_the_limit_of_a_container_is_enough_for_the_bounds_that_the_documents_promise(name: str, roots: int) -> None:
    container = CONTAINERS[name]
    limits = container["resources"]["limits"]
    limit_bytes = size_of(limits["memory"])
    assert not any(word.startswith("--max-") for word in container["args"])
    # The server takes three quarters of the limit: `default_memory`.
    bounds = Config(max_memory=limit_bytes * 3 // 4).bounds
    assert bounds.max_pending >= roots
    assert bounds.needed_bytes <= limit_bytes * 3 // 4
    assert size_of(container["resources"]["requests"]["memory"]) <= limit_bytes
    row = f"| `deploy/k8s/{name}` | {limits['memory']} | {bounds.max_pending / 1e6:.1f} million |"
    assert row in (ROOT / "docs/operating/server.md").read_text()


def test_the_documents_say_what_an_embedded_server_takes() -> None:
    bounds = config.read([f"--max-memory={embedded.MEMORY}"], {}).bounds
    row = f"| embedded in a driver (`--max-memory {embedded.MEMORY}`) | | {bounds.max_pending / 1e6:.1f} million |"
    assert row in (ROOT / "docs/operating/server.md").read_text()


def size_of(text: str) -> int:
    """Return a size as Kubernetes writes it, in bytes."""
    return int(text[:-2]) << {"Mi": 20, "Gi": 30}[text[-2:]]


def test_the_health_check_of_the_image_finds_the_server_by_the_ready_file() -> None:
    assert re.search(r'^HEALTHCHECK .* CMD \["acker", "health"\]$', dockerfile(), re.MULTILINE)
    assert re.search(r'^ENTRYPOINT \["acker", "serve"\]$', dockerfile(), re.MULTILINE)
    image = variables_of_the_image()
    (volume,) = re.findall(r"^VOLUME (\S+)$", dockerfile(), re.MULTILINE)
    assert image["ACKER_READY_FILE"].startswith(f"{volume}/")
    assert image["ACKER_STATE_DIR"].startswith(f"{volume}/")
    mounts = [each["mountPath"] for each in CONTAINERS["acker.yaml"]["volumeMounts"]]
    assert volume in mounts  # the root file system is read-only


PROGRAM = """
import pathlib, signal, sys
signal.signal(signal.SIGTERM, lambda *_: (pathlib.Path("stopped").write_text("stopped"), sys.exit(0)))
pathlib.Path("ready").write_text("ready")
while True:
    signal.pause()
"""
# The driver's container: a JVM that has started the program, which has started another interpreter.
DRIVER = """
set -e
cd "$1"
python program.py &
program=$!
echo "$program" > program
wait "$program"
echo "$?" > status
exec sleep 600
"""


def test_the_hook_of_the_driver_stops_the_program_and_waits_for_its_end(tmp_path: Path) -> None:
    pod = documents("deploy/k8s/sidecar.yaml")[0]["spec"]
    (driver,) = pod["containers"]
    assert driver["name"] == "spark-kubernetes-driver"
    hook = driver["lifecycle"]["preStop"]["exec"]["command"]
    (tmp_path / "program.py").write_text(PROGRAM)
    (tmp_path / "driver").write_text(DRIVER)
    # The names of processes are those of their files.
    (tmp_path / "java").symlink_to("/bin/bash")
    (tmp_path / "python").symlink_to(sys.executable)
    script = f"""
    cd {shlex.quote(str(tmp_path))}
    PATH="$PWD:$PATH" ./java driver "$PWD" &
    until [ -e ready ]; do sleep 0.05; done
    {shlex.join(hook)}
    [ -e stopped ] && cat status
    """
    done = subprocess.run(
        [*namespace("--pid", "--fork", "--mount-proc"), script], stdout=subprocess.PIPE, text=True, check=False
    )
    assert (done.returncode, done.stdout) == (0, "0\n")


def test_the_driver_has_more_time_to_stop_than_a_batch_takes() -> None:
    pod = documents("deploy/k8s/sidecar.yaml")[0]["spec"]
    assert pod["terminationGracePeriodSeconds"] >= 600
    text = (ROOT / "docs/operating/deploy.md").read_text()
    assert f"`terminationGracePeriodSeconds` ({pod['terminationGracePeriodSeconds']})" in text
