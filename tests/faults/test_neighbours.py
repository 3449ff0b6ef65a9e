"""A tenant beside each adversary for two seconds: the results are compared.

``python -m tests.faults.neighbours`` also compares latencies, over a minute and on a quiet machine.
"""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from tests.faults import neighbours
from tests.faults.adversaries import ADVERSARIES
from tests.faults.neighbours import Results, Run, differences, run

pytestmark = [pytest.mark.faults, pytest.mark.timeout(300)]

MESSAGES = 100


@pytest.fixture(scope="module")
def alone() -> Run:
    return run(None, MESSAGES)


def test_tenant_alone_gets_the_expected_results(alone: Run) -> None:
    results = alone.results
    assert results.errors == []
    assert results.receipts == {"": MESSAGES, "repeated": 1}
    assert ["tenant-once", 1] in [list(row) for row in results.alive]
    assert results.order == list(range(MESSAGES))
    assert set(results.found) == {"200: 10, True"}
    assert results.published.total() == MESSAGES / neighbours.RATE
    assert ["tenant.dlq", 2] in [list(row) for row in results.alive]


@pytest.mark.sample("hung_consumers", "searches")
@pytest.mark.parametrize("adversary", ADVERSARIES)
def test_adversary_changes_no_result(
    alone: Run, adversary: str, figure: Callable[[str], None]
) -> None:
    beside = run(adversary, MESSAGES)
    figure(f"{adversary}: p99 {beside.p99_s / alone.p99_s:.2f} times that alone")
    assert differences(alone.results, beside.results) == []


@pytest.mark.parametrize(
    "changed",
    [
        {"order": [1, 0]},
        {"errors": ["publish: ConnectionResetError"]},
        {"outcomes": [("tenant", 4, "expired", 1)]},
        {"alive": []},
    ],
)
def test_difference_is_reported(changed: dict[str, Any]) -> None:
    results = Results(order=[0, 1], alive=[("tenant.dlq", 2)])
    assert differences(results, results) == []
    (difference,) = differences(results, replace(results, **changed))
    assert difference.startswith(f"{next(iter(changed))}: ")
