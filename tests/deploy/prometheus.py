"""A real Prometheus on a free loopback port, to test the shipped configuration and rules on a server's metrics."""

from __future__ import annotations

import json
import re
import signal
import socket
import subprocess
import urllib.parse
import urllib.request
from pathlib import Path
from typing import Any

from tests.service.caller import eventually

ROOT = Path(__file__).parents[2]
SHIPPED = ROOT / "deploy/prometheus"


def tool(name: str) -> str:
    """Return the path of ``prometheus`` or ``promtool``."""
    found = subprocess.run([str(ROOT / ".ci/prometheus")], stdout=subprocess.PIPE, text=True, check=True)
    return f"{found.stdout.strip()}/{name}"


class Prometheus:
    """Runs the shipped configuration and rules, but scrapes five times a second, and alerts fire at once."""

    def __init__(self, folder: Path, target: str) -> None:
        self._folder = folder
        rules = (SHIPPED / "alerts.yaml").read_text()
        (folder / "alerts.yaml").write_text(re.sub(r"\bfor: \w+", "for: 0s", rules))
        self.configure(f'["{target}"]')
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
        text = (SHIPPED / "prometheus.yml").read_text()
        text = text.replace("scrape_interval: 15s", "scrape_interval: 200ms\n  evaluation_interval: 200ms")
        (self._folder / "prometheus.yml").write_text(text.replace('["acker:7071"]', targets))

    def reload(self) -> None:
        self._process.send_signal(signal.SIGHUP)

    def query(self, expression: str) -> list[dict[str, str]]:
        """Return the labels of each series that ``expression`` gives now."""
        result = self._ask("query?" + urllib.parse.urlencode({"query": expression}))["result"]
        return [series["metric"] for series in result]

    def firing(self) -> dict[str, dict[str, str]]:
        """Return the labels of the firing alerts, by name."""
        alerts = [alert for alert in self._ask("alerts")["alerts"] if alert["state"] == "firing"]
        return {alert["labels"]["alertname"]: alert["labels"] for alert in alerts}

    def close(self) -> None:
        self._process.kill()
        self._process.wait()

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
