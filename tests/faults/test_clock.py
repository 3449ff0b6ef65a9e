"""The wall clock is set, live and over a restart: deadlines, keys and TTLs are correct."""

import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.faults.clock import HOUR_MS, Trial
from tests.faults.shimmed_broker import NEEDS_SHIM

pytestmark = [pytest.mark.faults, NEEDS_SHIM]


@pytest.mark.slow
def test_no_message_expires_early_or_gets_stuck_when_the_clock_is_set(
    tmp_path: Path, figure: Callable[[str], None]
) -> None:
    """docs/operate/reliability.md, The clock."""
    began = time.monotonic()
    trial = Trial.of(tmp_path)
    trial.run()
    for line in trial.figures(time.monotonic() - began):
        figure(line)
    assert trial.faults == 0


@pytest.mark.sample("LiveWallClock-live")
@pytest.mark.parametrize(
    ("mutant", "way"), [("LiveWallClock", "live"), ("BelievesAtTheStart", "kill")]
)
def test_trial_finds_a_broker_with_a(
    tmp_path: Path, mutant: str, way: str, figure: Callable[[str], None]
) -> None:
    trial = Trial.of(tmp_path, mutant)
    trial.run((HOUR_MS,), (way,))
    figure(f"mutant {mutant}: {trial.early} expired early, {trial.stuck} stuck")
    assert trial.early
