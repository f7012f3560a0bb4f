"""The alert rules and the dashboard in docs/monitoring use metrics and labels that exist."""

import json
import re
from pathlib import Path

import pytest
import yaml
from prometheus_client import CollectorRegistry

from pairbus.syphon.metrics import SyphonMetrics
from pairbus.syphon.policy import Destination
from pairbus.syphon.receipts import Receipt, ReceiptOutcome, RoundEnded
from pairbus.syphon.usage import SyphonUsage
from pairbus.telemetry.prometheus import PrometheusObserver
from tests.telemetry import sample_events as sample

DOCS = Path(__file__).parents[2] / "docs"
PAGE = (DOCS / "metrics.md").read_text("utf-8")
RULES = yaml.safe_load((DOCS / "monitoring" / "pairbus.rules.yml").read_text("utf-8"))
DASHBOARD = json.loads((DOCS / "monitoring" / "pairbus-dashboard.json").read_text("utf-8"))
ALERTS = {rule["alert"]: rule for group in RULES["groups"] for rule in group["rules"]}
EXPRESSIONS = {
    **{name: rule["expr"] for name, rule in ALERTS.items()},
    **{
        f"{panel['title']} {target['refId']}": target["expr"]
        for panel in DASHBOARD["panels"]
        for target in panel["targets"]
    },
    **{each["name"]: each["query"] for each in DASHBOARD["templating"]["list"]},
}
ADDED_BY_PROMETHEUS = {"instance", "job"}


def exported() -> dict[str, set[str]]:
    """The labels of each metric that clients and syphons export."""
    registry = CollectorRegistry()
    for event in sample.HISTORY:
        PrometheusObserver(registry)(event)
    PrometheusObserver(registry).watch_sends("contoso", lambda: {"orders": 1})
    usage = SyphonUsage(since=0.0)
    syphon = SyphonMetrics(registry, primaries=["contoso"], usage=usage)
    syphon.set_backlog({"contoso/x-servicebus-transfer/0": (1, 1)})
    outcome = ReceiptOutcome.BROUGHT_HOME
    receipt = Receipt(
        run="r", round=1, queue="q", path="p", outcome=outcome, at_ms=0, count=1, bytes=1
    )
    syphon(
        RoundEnded(
            round=1,
            seconds=1.0,
            receipts=(receipt,),
            pending=(),
            destinations=(("contoso", Destination("p")),),
            errors=(),
        )
    )
    found = {
        sample.name: {*sample.labels, *ADDED_BY_PROMETHEUS}
        for family in registry.collect()
        for sample in family.samples
    }
    # There are no operations without a namespace; its page lists their labels.
    found["pairbus_syphon_operations_total"] = {"namespace", "entity", "operation"}
    return found


METRICS = exported()


@pytest.mark.parametrize("name", EXPRESSIONS)
def test_an_expression_uses_metrics_and_labels_that_exist(name: str) -> None:
    expression = EXPRESSIONS[name]
    metrics = set(re.findall(r"pairbus_\w+", expression))
    grouped = re.findall(r"\b(?:by|on) \(([^)]*)\)", expression)
    used = {label.strip() for labels in grouped for label in labels.split(",")}
    used |= set(re.findall(r"(\w+)=~?\"", expression))

    assert metrics <= METRICS.keys()
    if metrics:  # a label must be one of every metric, except in a join of two
        common = set.intersection(*(METRICS[metric] for metric in metrics))
        assert used <= (common if len(metrics) == 1 else set.union(*map(METRICS.get, metrics)))
    assert expression.count("(") == expression.count(")")
    assert expression.count("{") == expression.count("}")


@pytest.mark.parametrize("name", ALERTS)
def test_a_summary_uses_labels_that_its_alert_has(name: str) -> None:
    rule = ALERTS[name]
    grouped = re.search(r"\bby \(([^)]*)\)", rule["expr"])
    labels = {label.strip() for label in grouped[1].split(",")}

    assert set(re.findall(r"\$labels\.(\w+)", rule["annotations"]["summary"])) <= labels
    assert rule["labels"]["severity"] in ("warning", "critical")


def test_the_page_lists_the_alerts_of_the_file() -> None:
    section = PAGE.split("## Alerts and a dashboard\n", 1)[1].split("\n## ", 1)[0]

    listed = dict(re.findall(r"^\| `(\w+)` \| (\w+) \|", section, re.MULTILINE))
    assert listed == {name: rule["labels"]["severity"] for name, rule in ALERTS.items()}


def test_the_panels_of_the_dashboard_do_not_overlap() -> None:
    places = set()
    for panel in DASHBOARD["panels"]:
        at = panel["gridPos"]
        own = {(at["x"] + dx, at["y"]) for dx in range(at["w"])}
        assert at["x"] + at["w"] <= 24
        assert not own & places
        places |= own
    assert len({panel["id"] for panel in DASHBOARD["panels"]}) == len(DASHBOARD["panels"])


def test_the_backlog_and_missing_syphons_have_alerts() -> None:
    assert "pairbus_syphon_backlog_messages" in ALERTS["PairbusBacklogNotDrained"]["expr"]
    assert "unless on (namespace) pairbus_syphon_running" in ALERTS["PairbusNoSyphon"]["expr"]
