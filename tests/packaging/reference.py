"""Reference: the parts of the documents that are generated from the code. ``python -m tests.packaging.reference``.

Fills each place ``<!-- generated: NAME -->`` in docs/. A test compares the documents with the code. In the tables of
source options, the meanings are written by hand and kept.
"""

from __future__ import annotations

import dataclasses
import inspect
import re
import time
from collections.abc import Callable, Iterable, Iterator
from enum import StrEnum
from pathlib import Path
from typing import Any

import yaml

import acker_client.spark
from acker_client import errors, source
from acker_client.source import CommonOptions, Options, Retry
from acker_client.source.engine.prometheus import COUNTERS, GAUGES, PARTITION_GAUGES, TOTALS
from acker_service import config
from acker_service.config import OPTIONS, Config, flag
from acker_service.core.quotas import DEFAULT, Quotas
from acker_service.core.shard import Shard
from acker_service.http.metrics import Metrics
from acker_service.namespaces import Namespaces
from tests.packaging import api

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
PLACE = re.compile(r"(<!-- generated: ([\w ]+) -->\n)(.*?)(<!-- end of generated -->)", re.DOTALL)
MEANING = re.compile(r"^\| `(\w+)` \|.*?\| (.*) \|$", re.MULTILINE)

# Parameters that the tables of options leave out.
INTERNAL = {
    "sources": {"environment"},
    "ZooKeeperGroup": {"session", "clock"},
    "tracked": {"process"},
}
# Defaults that the signature does not show.
SHOWN = {
    ("Kafka", "topics"): "needed",
    ("Kafka", "group_id"): "the source's name",
    ("Kinesis", "region"): "boto3's",
    ("Kinesis", "endpoint_url"): "boto3's",
    ("Kinesis", "session"): "boto3's",
    ("tracked", "storage_level"): "Spark's own",
}
# Labels of metrics that have no series before the first measurement.
LABELS = {
    "acker_call_duration_seconds": "method, code",
    "acker_call_queue_seconds": "pool",
    "acker_queued_calls": "pool",
    "acker_source_pending_roots": "source, namespace",
    "acker_source_watch_age_seconds": "source, namespace",
}


def pages() -> list[Path]:
    """Return the documents with generated places."""
    return [page for page in sorted(DOCS.rglob("*.md")) if PLACE.search(page.read_text())]


def written(text: str) -> str:
    """Return a document with its generated places filled from the code."""
    return PLACE.sub(lambda place: place[1] + _generated(place[2], place[3]) + place[4], text)


def _generated(name: str, old: str) -> str:
    if name.startswith("options of "):
        meanings = dict(MEANING.findall(old))
        shown = options_of(name.removeprefix("options of "))
        return _table("option | default | meaning", ((f"`{one}`", how, meanings.get(one, "")) for one, how in shown))
    return PARTS[name]()


def options_of(name: str) -> list[tuple[str, str]]:
    """Return (option, shown default) pairs of a source, of ``Retry``, or of all sources (name "sources")."""
    given = _common_options() if name == "sources" else _parameters(getattr(source, name))
    hidden = INTERNAL.get(name, set())
    return [(option, SHOWN.get((name, option)) or _shown(value)) for option, value in given if option not in hidden]


def _common_options() -> Iterator[tuple[str, Any]]:
    fields = {option.name: option for option in dataclasses.fields(Options)}
    for name in CommonOptions.__annotations__:
        is_made = fields[name].default_factory is not dataclasses.MISSING
        yield name, None if is_made else fields[name].default


def _parameters(kind: Callable[..., Any]) -> Iterator[tuple[str, Any]]:
    for option in inspect.signature(kind).parameters.values():
        if option.kind is not inspect.Parameter.VAR_KEYWORD:
            yield option.name, option.default


def _shown(value: Any) -> str:
    if value in (inspect.Parameter.empty, dataclasses.MISSING):
        return "needed"
    if isinstance(value, Retry):
        return "`Retry()`"
    if isinstance(value, StrEnum):
        value = value.value
    return "none" if value in (None, ()) else f"`{value!r}`"


def _server_options() -> str:
    rows = ((f"`{flag(option.name)}`", _default(option), option.metadata["help"]) for option in OPTIONS)
    return _table("option | default | meaning", rows)


def _default(option: dataclasses.Field[Any]) -> str:
    return config.shown(option) if option.default in (None, False) else f"`{option.default}`"


def _server_metrics() -> str:
    namespaces = Namespaces({DEFAULT: Shard(incarnation=1, generation=2)}, Config(), time.monotonic)
    namespaces.set_quotas({"etl": Quotas(512 << 20)})
    rows = []
    for metric in Metrics(namespaces).collect():
        if metric.name.startswith("process_"):
            continue
        name = {"counter": f"{metric.name}_total", "info": f"{metric.name}_info"}.get(metric.type, metric.name)
        labels = LABELS.get(metric.name) or ", ".join(metric.samples[0].labels)
        rows.append((f"`{name}`", metric.type, labels, metric.documentation))
    rows.append(
        ("`process_*`", "", "", "What Prometheus' clients report of each process: memory, processor time, descriptors.")
    )
    return _table("metric | type | labels | meaning", rows)


def _source_metrics() -> str:
    rows = [(f"`{name}_total`", "counter", "source", text) for name, text in COUNTERS.values()]
    rows += [(f"`{name}`", "gauge", "source", text) for name, text in [*GAUGES.values(), *TOTALS.items()]]
    labels = "source, topic, partition"
    rows += [(f"`{name}`", "gauge", labels, text) for name, text in PARTITION_GAUGES.values()]
    return _table("metric | type | labels | meaning", rows)


def _alerts() -> str:
    (group,) = yaml.safe_load((ROOT / "deploy/prometheus/alerts.yaml").read_text())["groups"]
    rows = ((f"`{r['alert']}`", r["labels"]["severity"], r["annotations"]["summary"]) for r in group["rules"])
    return _table("alert | severity | meaning", rows)


def _errors() -> str:
    rows = []
    for module in (errors, acker_client.source, acker_client.spark):
        public = acker_client if module is errors else module
        for name, each in sorted(vars(module).items()):
            if isinstance(each, type) and issubclass(each, Exception) and each.__module__.startswith("acker_client"):
                home = public.__name__ if name in public.__all__ else module.__name__
                rows.append((f"`{name}`", f"`{home}`", f"`{each.__bases__[0].__name__}`", api.summary(each)))
    return _table("error | import it from | is a | meaning", rows)


def _table(head: str, rows: Iterable[tuple[str, ...]]) -> str:
    lines = [f"| {head} |", "|---" * (head.count("|") + 1) + "|"]
    return "\n".join([*lines, *(f"| {' | '.join(row)} |" for row in rows)]) + "\n"


PARTS = {
    "server options": _server_options,
    "server metrics": _server_metrics,
    "source metrics": _source_metrics,
    "alerts": _alerts,
    "errors": _errors,
    "api": api.page,
}


if __name__ == "__main__":
    for page in pages():
        page.write_text(written(page.read_text()))
