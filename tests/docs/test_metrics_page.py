"""The page about metrics lists what ``/metrics`` has: names, labels, and which are histograms."""

import re

import pytest
from prometheus_client.core import HistogramMetricFamily
from prometheus_client.metrics_core import Metric

from phpmq_lite.admin.monitoring import metrics
from phpmq_lite.admin.monitoring.http_counters import HttpCounters
from phpmq_lite.admin.monitoring.metrics import MetricReadings
from tests.docs.pages import text_of
from tests.unit.admin.cases import NOW_MS, broker_status

PAGE = text_of("docs/reference/metrics.md")
SECTIONS = re.findall(r"^## (.*?)\n(.*?)(?=^## |\Z)", PAGE, re.M | re.S)


def described() -> dict[str, tuple[set[str], str]]:
    """Give the labels and the words of each metric on the page."""
    found = {}
    for title, text in SECTIONS:
        always = {"queue"} if "by `queue`" in title else set()
        for names, words in re.findall(r"^\| (`phpmq_.*?) \| (.*) \|$", text, re.M):
            for name, labels in re.findall(r"`(\w+)(?:\{([^}]*)\})?`", names):
                assert name not in found, name
                found[name] = (set(filter(None, labels.split(", "))) | always, words)
    return found


@pytest.fixture(scope="module")
def families() -> dict[str, Metric]:
    """Give all families by the name that a sample of theirs has."""
    readings = MetricReadings(
        broker_status(), HttpCounters(), "0.0.0", NOW_MS, files={"database": 1}, disk_free=1,
        history_rows=1, history_offset=1, removed=1,
    )  # fmt: skip
    endings = {"counter": "_total", "info": "_info"}
    return {
        family.name + endings.get(family.type, ""): family
        for family in metrics.metric_families(readings, ())
    }


def test_page_lists_every_metric_and_no_other(families: dict[str, Metric]) -> None:
    assert described().keys() == families.keys()


def test_page_names_the_labels(families: dict[str, Metric]) -> None:
    for name, (labels, _) in described().items():
        family = families[name]
        own = set(getattr(family, "_labelnames", ()))
        told = {label for sample in family.samples for label in sample.labels} - {"le"}
        assert labels == own | told, name


def test_page_says_which_are_histograms(families: dict[str, Metric]) -> None:
    told = {name for name, (_, words) in described().items() if words.startswith("histogram")}
    assert told == {
        name for name, family in families.items() if isinstance(family, HistogramMetricFamily)
    }
