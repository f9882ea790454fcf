"""The dashboard that is shipped shows only metrics that exist."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import jupyter_gpushare_server
from jupyter_gpushare_server.jobs import NONE
from jupyter_gpushare_server.metrics import SnapshotCollector
from msgspec.structs import replace
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from jupyter_gpushare.wire.jobs import NodeView

FILE = Path(jupyter_gpushare_server.__file__).parent / "grafana" / "gpushare.json"
DASHBOARD: dict[str, Any] = json.loads(FILE.read_text())
PANELS: list[dict[str, Any]] = DASHBOARD["panels"]


def expressions() -> list[str]:
    found = [target["expr"] for panel in PANELS for target in panel["targets"]]
    return found + [one["query"] for one in DASHBOARD["templating"]["list"]]


def labels_of(expression: str) -> set[str]:
    """Return the labels in braces, behind `by`, and in `label_values`, without Prometheus' own
    label `instance`."""
    inside = re.findall(r"[{,]\s*(\w+)\s*=", expression)
    grouped = re.findall(r"by \((.*?)\)", expression)
    asked = re.findall(r"label_values\(\w+, (\w+)\)", expression)
    return {*inside, *asked, *re.findall(r"\w+", " ".join(grouped))} - {"instance"}


CLUSTER = replace(NONE, nodes=[NodeView("n0", 2, 0, 1, 1, True, "")])


async def test_the_dashboard_shows_all_metrics_but_two_and_no_others(
    join: Any, extension: Any
) -> None:
    await join("alice")
    registry = CollectorRegistry()
    collector = SnapshotCollector(lambda: extension.feed.state, lambda: CLUSTER)
    collector.observe(extension._attendance)
    registry.register(collector)
    families = text_string_to_metric_families(generate_latest(registry).decode())
    samples = (sample for family in families for sample in family.samples)
    there = {sample.name: {*sample.labels} for sample in samples}
    for expression in expressions():
        for name in re.findall(r"gpushare_\w+", expression):
            assert name in there, expression
            assert labels_of(expression) <= there[name], expression
    drawn = set(re.findall(r"gpushare_\w+", " ".join(expressions())))
    assert {*there} - drawn == {"gpushare_iterations_total", "gpushare_broker_recovering"}


def test_the_dashboard_has_what_grafana_imports() -> None:
    assert {"title", "uid", "schemaVersion", "panels", "templating", "time"} <= DASHBOARD.keys()
    assert "id" not in DASHBOARD  # Grafana gives one
    assert len({panel["id"] for panel in PANELS}) == len(PANELS)
    for panel in PANELS:
        assert {"type", "title", "gridPos", "targets", "fieldConfig"} <= panel.keys()
        assert panel["datasource"]["uid"] == "${source}"  # chosen by the user that imports it
        refs = [target["refId"] for target in panel["targets"]]
        assert len({*refs}) == len(refs)
