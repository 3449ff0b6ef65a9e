"""Disconnected consumers get and charge nothing, and a stop charges nothing."""

import time
from collections.abc import Callable

import pytest

from tests.faults import ghosts

pytestmark = pytest.mark.faults


@pytest.mark.slow
def test_only_deliveries_to_open_sockets_are_charged(figure: Callable[[str], None]) -> None:
    began = time.perf_counter()
    figures = ghosts.run(ghosts.SHORT_ROUNDS, ghosts.SHORT_STOPS, seed=1)
    figure(ghosts.describe(figures, time.perf_counter() - began))
    assert figures.offences == []
