"""Results: what limited them, quantiles, and ratios to the machine's limits."""

import os
from typing import Any

import pytest

from phpmq_lite.bench.machine import Machine
from phpmq_lite.bench.report import (
    BenchReport,
    CpuLoad,
    LatencyResult,
    MachineLimits,
    Quantiles,
    Throughput,
)

LOAD = CpuLoad(0.9, {"producer": 0.1}, 0.0)
MACHINE = Machine("0.1.0", "compiled", "a processor", 2, "Linux 6.1", "3.11.2", "3.40.1", "ext4")


def report(*rates: Throughput, latency: LatencyResult | None = None) -> BenchReport:
    limits = MachineLimits(
        syncs=5_000, rows_1=4_000, rows_1000=400_000, written_bytes=2e8, round_trips=40_000
    )
    return BenchReport(MACHINE, 256, "plain", 100, 5.0, limits, list(rates), latency)


@pytest.mark.parametrize(
    ("broker", "clients", "others", "expected"),
    [
        (0.99, {"producer": 0.2, "consumer": 0.3}, 0.0, "broker"),
        (0.99, {"producer": 0.2, "consumer": 0.9}, 0.0, "broker+consumer"),
        (0.5, {"producer": 0.9, "consumer": 0.3}, 0.0, "producer"),
        (0.5, {"producer": 0.3}, float(os.cpu_count() or 1), "all cores"),
        (0.1, {"producer": 0.1}, 0.0, "waiting"),
        (None, {"producer": 0.1}, None, "unknown"),
        (None, {"producer": 0.9}, None, "producer"),
    ],
)
def test_limit_names_the_saturated_processes(
    broker: float | None, clients: dict[str, float], others: float | None, expected: str
) -> None:
    assert CpuLoad(broker, clients, others).limit == expected


@pytest.mark.parametrize(("others", "expected"), [(0.1, False), (0.3, True), (None, False)])
def test_load_is_noisy_when_others_used_a_quarter(others: float | None, expected: bool) -> None:
    assert CpuLoad(0.5, {"producer": 0.1}, others).is_noisy is expected


def test_quantiles_are_milliseconds_of_values_in_any_order() -> None:
    values = [number / 1_000 for number in range(100, -1, -1)]
    assert Quantiles.of(values) == Quantiles(50.0, 95.0, 99.0)
    assert Quantiles.of([0.002]) == Quantiles(2.0, 2.0, 2.0)


def test_report_relates_throughput_to_rows_and_latency_to_a_commit() -> None:
    rate = Throughput("flow", 256, 100_000, 2.5, LOAD)
    found = report(rate, latency=LatencyResult.of([0.000_275], [0.000_55]))
    assert rate.share_of_sqlite(found.limits) == pytest.approx(0.1)
    assert found.latency_ratio(Quantiles(0.55, 1.0, 1.0)) == pytest.approx(2.0)


def test_large_bodies_are_compared_with_the_bytes_that_sqlite_writes() -> None:
    rate = Throughput("publish", 100_000, 2_500, 2.5, LOAD)
    assert rate.share_of_sqlite(report().limits) == pytest.approx(0.5)


def test_report_is_noisy_when_one_of_its_rates_is() -> None:
    rate = Throughput("flow", 256, 100, 1.0, LOAD)
    noisy = Throughput("flow", 256, 100, 1.0, CpuLoad(0.5, {"producer": 0.1}, 0.6))
    assert not report(rate).is_noisy
    assert report(rate, noisy).is_noisy


def test_document_has_figures_ratios_and_machine() -> None:
    rate = Throughput("flow", 256, 100_000, 2.5, LOAD)
    document: dict[str, Any] = report(rate, latency=LatencyResult.of([0.1], [0.2])).document()
    assert document["rates"][0]["per_second"] == pytest.approx(40_000)
    assert document["rates"][0]["limited_by"] == "broker"
    assert document["rates"][0]["share_of_sqlite"] == pytest.approx(0.1)
    assert document["latency"]["receipt_ms"] == {"p50": 200.0, "p95": 200.0, "p99": 200.0}
    assert document["limits"]["rows_1000"] == 400_000
    assert document["machine"]["file_system"] == "ext4"
    assert report().document()["latency"] is None
