"""The files in ``deploy/`` parse, and their metrics exist."""

import json
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest
import yaml  # type: ignore[import-untyped]

from phpmq_lite.admin.system.metrics import METRICS
from phpmq_lite.checks import CHECKS
from phpmq_lite.testing import running_service

DEPLOY = Path(__file__).parent.parent.parent / "deploy"
DASHBOARD = DEPLOY / "grafana" / "phpmq-lite.json"
ALERTS = DEPLOY / "prometheus-alerts.yml"
CASES = Path(__file__).parent / "alerts.yml"
SCRAPE = DEPLOY / "prometheus.yml"

PROMTOOL = shutil.which("promtool")

SUFFIXES = ("_bucket", "_sum", "_count")  # of a histogram


def names_in(expression: str) -> set[str]:
    return set(re.findall(r"\bphpmq_\w+", expression))


def labels_in(expression: str) -> Iterator[tuple[str, str]]:
    for name, selector in re.findall(r"\b(phpmq_\w+)\{([^}]*)\}", expression):
        for label in re.findall(r"(\w+)\s*(?:=~|!~|!=|=)", selector):
            yield name, label


def dashboard() -> dict[str, Any]:
    made: dict[str, Any] = json.loads(DASHBOARD.read_text(encoding="utf-8"))
    return made


def rules() -> list[dict[str, Any]]:
    told = yaml.safe_load(ALERTS.read_text(encoding="utf-8"))
    return [rule for group in told["groups"] for rule in group["rules"]]


def expressions() -> list[str]:
    panels = [target["expr"] for panel in dashboard()["panels"] for target in
              panel.get("targets", [])]  # fmt: skip
    marks = [mark["expr"] for mark in dashboard()["annotations"]["list"]]
    variables = [each["definition"] for each in dashboard()["templating"]["list"]
                 if each["type"] == "query"]  # fmt: skip
    return [*panels, *marks, *variables, *(rule["expr"] for rule in rules())]


@pytest.fixture
async def families(tmp_path: Path) -> dict[str, str]:
    """Return the type of every metric of a broker with a queue."""
    async with (
        running_service(tmp_path / "data") as running,
        aiohttp.ClientSession(running.admin_url) as session,
    ):
        await session.post("/api/v1/queues/orders/messages", json={"content": "x"})
        async with session.get("/metrics") as response:
            text = await response.text()
    return dict(re.findall(r"^# TYPE (\w+) (\w+)$", text, flags=re.MULTILINE))


async def test_every_metric_used_exists(families: dict[str, str]) -> None:
    known = set(families) | {
        each.full_name
        for definitions in METRICS.values()
        for each in definitions
        if each.name.startswith(("store_", "standby_"))  # only with PostgreSQL, or Litestream
    }
    for name, kind in families.items():
        if kind == "histogram":
            known |= {name + suffix for suffix in SUFFIXES}
    used = set().union(*map(names_in, expressions()))
    assert used - known == set()
    assert len(used) > 30


async def test_counters_are_queried_as_rates(families: dict[str, str]) -> None:
    for expression in expressions():
        for name in names_in(expression):
            if families.get(name) == "counter":
                assert re.search(rf"(rate|increase)\({name}", expression), expression


def test_dashboard_has_one_data_source_variable() -> None:
    told = dashboard()
    kinds = [each["type"] for each in told["templating"]["list"]]
    assert kinds.count("datasource") == 1
    for panel in told["panels"]:
        if panel["type"] != "row":
            assert panel["datasource"]["uid"] == "${datasource}"
            assert panel["targets"]


def test_panels_have_unique_ids_and_do_not_overlap() -> None:
    panels = dashboard()["panels"]
    assert len({panel["id"] for panel in panels}) == len(panels)
    taken: set[tuple[int, int]] = set()
    for panel in panels:
        at = panel["gridPos"]
        cells = {(x, y) for x in range(at["x"], at["x"] + at["w"])
                 for y in range(at["y"], at["y"] + at["h"])}  # fmt: skip
        assert at["x"] + at["w"] <= 24
        assert not cells & taken, panel["title"]
        taken |= cells


def test_alerts_have_a_summary_and_a_severity() -> None:
    names = [rule["alert"] for rule in rules()]
    assert len(set(names)) == len(names) > 12
    for rule in rules():
        assert rule["labels"]["severity"] in {"info", "warning", "critical"}
        assert set(rule["annotations"]) == {"summary", "description"}


def test_alerts_are_those_of_the_table_of_checks() -> None:
    """Only Prometheus notices the first three, so they have no row."""
    only_here = {"PhpmqDown", "PhpmqRestarted", "PhpmqLoginsRefused"}
    bounds = {name: bound for row in CHECKS.values() for name, bound in row.alerts.items()}
    assert {rule["alert"] for rule in rules()} - only_here == bounds.keys()
    for rule in rules():
        if (bound := bounds.get(rule["alert"])) is not None:
            numbers = re.findall(r"[<>=]=? ([\d.]+)(?!\S)", rule["expr"])
            assert bound in map(float, numbers), rule


@pytest.mark.skipif(PROMTOOL is None, reason="promtool (prometheus) is missing")
def test_alerts_fire_as_in_the_rule_tests() -> None:
    assert PROMTOOL is not None
    for line in (["check", "rules", str(ALERTS)], ["test", "rules", str(CASES)]):
        done = subprocess.run([PROMTOOL, *line], capture_output=True, text=True)
        assert done.returncode == 0, done.stdout + done.stderr


def test_alert_on_any_increase_counts_a_series_that_is_new() -> None:
    """Prometheus does not count the first value of a series as an increase."""
    asked = [rule["expr"] for rule in rules() if "increase(" in rule["expr"]]
    found = [
        re.findall(r"increase\((phpmq_messages_\w+(?:\{.*?\})?)\[(\w+)\]", one) for one in asked
    ]
    counted = [pair for pairs in found for pair in pairs]
    assert len(counted) == 3
    for series, span in counted:
        assert any(f"({series} unless {series} offset {span})" in one for one in asked), series


def test_rules_on_waiting_messages_exclude_dead_letter_queues() -> None:
    lying = [rule["expr"] for rule in rules() if ".*[.]dlq" in rule["expr"]]
    assert len(lying) == 3
    for expression in lying:
        assert "unless on (instance, queue) phpmq_queue_for_dead_letters" in expression


LABELS = "instance reader queue state reason outcome dispatched file le route job"


def test_labels_used_are_those_of_the_metrics() -> None:
    known = set(LABELS.split())
    for expression in expressions():
        for name, label in labels_in(expression):
            assert label in known, (name, label)


def test_scrape_example_parses_and_names_the_rules() -> None:
    told = yaml.safe_load(SCRAPE.read_text(encoding="utf-8"))
    assert told["rule_files"] == [ALERTS.name]
    scrape = told["scrape_configs"][0]
    assert scrape["metrics_path"] == "/metrics"
    assert scrape["authorization"]["type"] == "Bearer"  # required once a user exists
    assert "--role metrics" in SCRAPE.read_text(encoding="utf-8")
