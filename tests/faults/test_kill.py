"""``kill -9`` under mixed load: nothing confirmed is lost, nothing done comes again.

``python -m tests.faults.kill --kills 500`` kills more often, ``PHPMQ_SEED=…`` repeats the choices
of a run.
"""

import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.faults import kill
from tests.support.seed import SEED

pytestmark = pytest.mark.faults

KILLS = 5, 20


@pytest.mark.sample("5")
@pytest.mark.parametrize("kills", KILLS)
async def test_broker_loses_nothing_when_it_is_killed(
    tmp_path: Path, kills: int, figure: Callable[[str], None]
) -> None:
    """docs/operate/reliability.md, Kills, stops and gaps."""
    began = time.perf_counter()
    lives = await kill.killed(tmp_path, SEED, kills)
    for line in kill.figures_of_kills(lives, SEED, time.perf_counter() - began):
        figure(line)
    assert lives.ledger.offences == []
    assert not lives.ledger.unanswered.keys() & lives.ledger.confirmed


@pytest.mark.sample("ForgetsKeys")
@pytest.mark.parametrize(
    "mutant", ["ConfirmsBeforeCommit", "ForgetsAcknowledgements", "ForgetsKeys"]
)
async def test_ledger_finds_a_broker_that(
    tmp_path: Path, mutant: str, figure: Callable[[str], None]
) -> None:
    """A fault test that cannot fail is worth nothing."""
    lives = await kill.killed(tmp_path, SEED, 40, mutant)
    found = lives.ledger.offences[:1]
    figure(f"mutant {mutant}: found after {lives.kills.total()} kills: {found}")
    assert found
