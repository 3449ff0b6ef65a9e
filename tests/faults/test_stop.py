"""SIGTERM and SIGSTOP under mixed load: a clean end, and no storm after a gap.

``python -m tests.faults.kill --terms 50 --stops 20`` does it more often, ``PHPMQ_SEED=…`` repeats
the choices of a run.
"""

import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.faults import kill
from tests.support.seed import SEED

pytestmark = pytest.mark.faults

TERMS = 4
STOPS = 2


async def test_broker_ends_cleanly_when_it_is_told_to(
    tmp_path: Path, figure: Callable[[str], None]
) -> None:
    """All acknowledgements that were sent count, and it exits with 0."""
    began = time.perf_counter()
    lives = await kill.terminated(tmp_path, SEED, TERMS)
    for line in kill.figures_of_terms(lives, SEED, time.perf_counter() - began):
        figure(line)
    assert lives.ledger.offences == []


@pytest.mark.slow
async def test_broker_goes_on_after_it_was_stopped_for_seconds(
    tmp_path: Path, figure: Callable[[str], None]
) -> None:
    """F15: no message comes again because of it, and deadlines are right behind the gap."""
    began = time.perf_counter()
    lives = await kill.held_up(tmp_path, SEED, STOPS)
    for line in kill.figures_of_stops(lives, SEED, time.perf_counter() - began):
        figure(line)
    assert lives.ledger.offences == []


@pytest.mark.sample("CountsGapsTwice-held_up-1")
@pytest.mark.parametrize(
    ("mutant", "run", "most"),
    [
        ("LeavesAtOnce", kill.terminated, 20),
        ("CountsFromTheFirstDispatch", kill.held_up, 12),
        ("CountsGapsTwice", kill.held_up, 1),
    ],
)
async def test_ledger_finds_a_broker_that(
    tmp_path: Path, mutant: str, run: kill.Run, most: int, figure: Callable[[str], None]
) -> None:
    lives = await run(tmp_path, SEED, most, mutant)
    figure(f"mutant {mutant}: found: {lives.ledger.offences[:1]}")
    assert lives.ledger.offences
