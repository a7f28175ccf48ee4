"""A real Prometheus on a free loopback port, to test the shipped configuration and rules on a server's metrics."""

from __future__ import annotations

import json
import re
import signal
import socket
import subprocess
import urllib.parse
import urllib.request
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tests.service.caller import eventually

ROOT = Path(__file__).parents[2]
SHIPPED = ROOT / "deploy/prometheus"


def tool(name: str) -> str:
    """Return the path of ``prometheus`` or ``promtool``."""
    found = subprocess.run([str(ROOT / ".ci/prometheus")], stdout=subprocess.PIPE, text=True, check=True)
    return f"{found.stdout.strip()}/{name}"


def targets_of(pod: Mapping[str, Any], address: str) -> list[dict[str, Any]]:
    """Return the targets that Prometheus finds for a pod that runs (``role: pod``): one for each port of its
    containers, the init containers among them. They have the labels that Prometheus' documentation names."""
    metadata, spec = pod["metadata"], pod["spec"]
    common = {
        "__meta_kubernetes_namespace": metadata.get("namespace", "jobs"),
        "__meta_kubernetes_pod_name": metadata["name"],
        "__meta_kubernetes_pod_phase": "Running",
        "__meta_kubernetes_pod_ip": address,
    }
    for kind in ("label", "annotation"):
        for name, value in metadata.get(f"{kind}s", {}).items():
            common[f"__meta_kubernetes_pod_{kind}_{re.sub(r'[^a-zA-Z0-9_]', '_', name)}"] = value
    return [
        {
            "targets": [f"{address}:{port['containerPort']}"],
            "labels": {
                **common,
                "__meta_kubernetes_pod_container_name": container["name"],
                "__meta_kubernetes_pod_container_init": str(is_init).lower(),
                "__meta_kubernetes_pod_container_port_name": port.get("name", ""),
                "__meta_kubernetes_pod_container_port_number": str(port["containerPort"]),
            },
        }
        for is_init, containers in ((False, spec["containers"]), (True, spec.get("initContainers", [])))
        for container in containers
        for port in container.get("ports", [])
    ]


class Prometheus:
    """Runs the shipped configuration and rules, but scrapes five times a second, and alerts fire at once."""

    def __init__(self, folder: Path, targets: str, shipped: Path = SHIPPED / "prometheus.yml") -> None:
        """``targets``: a list in YAML, of addresses; for Kubernetes, of files with targets."""
        self._folder, self._shipped = folder, shipped
        rules = (SHIPPED / "alerts.yaml").read_text()
        (folder / "alerts.yaml").write_text(re.sub(r"\bfor: \w+", "for: 0s", rules))
        self.configure(targets)
        with socket.create_server(("127.0.0.1", 0)) as free:
            self._address = f"127.0.0.1:{free.getsockname()[1]}"
        command = [
            tool("prometheus"),
            f"--config.file={folder / 'prometheus.yml'}",
            f"--storage.tsdb.path={folder}/data",
        ]
        with open(folder / "log", "wb") as log:
            self._process = subprocess.Popen([*command, f"--web.listen-address={self._address}"], stderr=log)
        eventually(self._answers, within_s=60.0)

    def configure(self, targets: str) -> None:
        """Write the shipped configuration with other targets."""
        text = self._shipped.read_text()
        text = text.replace("scrape_interval: 15s", "scrape_interval: 200ms\n  evaluation_interval: 200ms")
        text = text.replace('["acker:7071"]', targets)
        # Debian's Prometheus knows nothing of Kubernetes. Files can give the same labels.
        text = text.replace("kubernetes_sd_configs: [{ role: pod }]", f"file_sd_configs: [{{ files: {targets} }}]")
        (self._folder / "prometheus.yml").write_text(text)

    def reload(self) -> None:
        self._process.send_signal(signal.SIGHUP)

    def query(self, expression: str) -> list[dict[str, str]]:
        """Return the labels of each series that ``expression`` gives now."""
        return [series["metric"] for series in self._result(expression)]

    def values(self, expression: str) -> list[float]:
        """Return the value of each series that ``expression`` gives now."""
        return [float(series["value"][1]) for series in self._result(expression)]

    def firing(self) -> dict[str, dict[str, str]]:
        """Return the labels of the firing alerts, by name."""
        alerts = [alert for alert in self._ask("alerts")["alerts"] if alert["state"] == "firing"]
        return {alert["labels"]["alertname"]: alert["labels"] for alert in alerts}

    def close(self) -> None:
        self._process.kill()
        self._process.wait()

    def _result(self, expression: str) -> Any:
        return self._ask("query?" + urllib.parse.urlencode({"query": expression}))["result"]

    def _ask(self, question: str) -> Any:
        with urllib.request.urlopen(f"http://{self._address}/api/v1/{question}", timeout=10) as reply:
            return json.load(reply)["data"]

    def _answers(self) -> bool:
        if self._process.poll() is not None:
            raise AssertionError((self._folder / "log").read_text())
        try:
            self._ask("alerts")
        except OSError:
            return False
        return True
