"""Alerts: each rule is tested on series that a server writes, and a real Prometheus fires some of them."""

from __future__ import annotations

import re
import subprocess
import urllib.request
from collections.abc import Callable
from contextlib import closing
from functools import partial
from pathlib import Path

import pytest
import yaml

from acker_protocol.messages import Limits, OpenBatch, Status
from acker_service.core.quotas import Quotas
from acker_service.server import Server
from tests.deploy.prometheus import ROOT, SHIPPED, Prometheus, tool
from tests.service.caller import SESSION, Caller, ack_a_tree, eventually, inits, roots_of

CASES = ROOT / "tests/deploy/alerts.yaml"
# Prometheus looks for new targets only every 5 s.
soon = partial(eventually, within_s=60.0)


def promtool(*words: str, input: str = "") -> str:
    done = subprocess.run([tool("promtool"), *words], input=input, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


def page(server: Server) -> str:
    with urllib.request.urlopen(f"http://{server.http_address}/metrics", timeout=10) as reply:
        return str(reply.read().decode())


def rules() -> set[str]:
    (group,) = yaml.safe_load((SHIPPED / "alerts.yaml").read_text())["groups"]
    return {rule["alert"] for rule in group["rules"]}


def test_promtool_takes_the_configuration_and_each_rule_fires_when_it_should_and_only_then() -> None:
    promtool("check", "config", str(SHIPPED / "prometheus.yml"))
    assert "SUCCESS" in promtool("test", "rules", str(CASES))


def test_promtool_has_no_complaint_about_a_page_of_metrics(start_server: Callable[..., Server]) -> None:
    server = start_server(http_port=0)
    with Caller(server.address) as caller:
        ack_a_tree(caller, 1)
        caller.begin(2)
    assert promtool("check", "metrics", input=page(server)) == ""


@pytest.mark.parametrize("rule", sorted(rules()))
def test_each_rule_has_a_case_in_which_it_fires_and_one_in_which_it_does_not(rule: str) -> None:
    cases = [each for case in yaml.safe_load(CASES.read_text())["tests"] for each in case["alert_rule_test"]]
    fires = {bool(each.get("exp_alerts")) for each in cases if each["alertname"] == rule}
    assert fires == {True, False}


def test_the_rules_are_tried_on_series_that_a_server_writes(start_server: Callable[..., Server]) -> None:
    server = start_server(http_port=0)
    server.namespaces.set_quotas({name: Quotas(64 << 20) for name in ("etl", "ads")})
    written = {series(line) for line in page(server).splitlines() if not line.startswith("#")}
    cases = yaml.safe_load(CASES.read_text())["tests"]
    tried = {series(each["series"]) for case in cases for each in case["input_series"]}
    tried = {each for each in tried if each[0] != "up"}
    assert tried
    assert tried <= written
    named = set(re.findall(r"\backer_\w+", (SHIPPED / "alerts.yaml").read_text()))
    assert named <= {name for name, _ in tried}


def series(line: str) -> tuple[str, frozenset[tuple[str, str]]]:
    """Return name and labels of a series, without the labels that a scrape adds."""
    name, _, rest = line.partition("{")
    labels = frozenset(re.findall(r'(\w+)="([^"]*)"', rest))
    return name.split(" ")[0], frozenset(
        label for label in labels if label[0] not in ("job", "instance", "kubernetes_namespace")
    )


@pytest.mark.long
def test_a_real_prometheus_fires_when_a_real_server_refuses_times_out_ends_and_vanishes(
    start_server: Callable[..., Server], tmp_path: Path
) -> None:
    server = start_server(http_port=0, max_pending=1000)
    limits = Limits(message_timeout_ms=50)
    with (
        Caller(server.address) as caller,
        closing(Prometheus(tmp_path, f'["{server.http_address}"]')) as prometheus,
    ):
        ack_a_tree(caller, 1)
        caller.watch(SESSION, limits=limits)
        soon(lambda: len(prometheus.query("rate(acker_outcomes_total[15m])")) == 4)
        soon(lambda: prometheus.firing() == {})
        caller.apply(inits(roots_of(range(5)), 0))
        caller.watch(SESSION, limits=limits, wait_ms=20_000)
        assert caller.open_batch(OpenBatch(SESSION, 1, 100, 1000)).status == Status.OVERLOADED
        soon(lambda: set(prometheus.firing()) == {"AckerManyTimeouts", "AckerRefusesBatches"})
        server.stop(0.0)
        soon(lambda: "instance" in prometheus.firing().get("AckerDown", {}))
        prometheus.configure("[]")
        prometheus.reload()
        soon(lambda: "instance" not in prometheus.firing().get("AckerDown", {"instance": ""}))
