"""SIGKILL, SIGTERM and SIGSTOP under mixed load: no confirmed message or stored end is lost.

``python -m tests.faults.kill --kills 500 --terms 50 --stops 20`` does it more often;
``PHPMQ_SEED=…`` repeats the random choices of a run.
"""

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.faults import kill
from tests.support.seed import SEED

pytestmark = pytest.mark.faults


@pytest.mark.sample("killed-5", "terminated-3")
@pytest.mark.parametrize(
    ("run", "times"),
    [(kill.killed, 5), (kill.killed, 20), (kill.terminated, 3), (kill.held_up, 2)],
)
async def test_broker_loses_nothing_when_it_is(
    tmp_path: Path, run: kill.Run, times: int, figure: Callable[[str], None]
) -> None:
    """docs/operate/reliability.md, Kills, stops and gaps.

    A stopped broker exits with 0 and stores all acknowledgements that were sent.  After a
    suspension no message is redelivered because of it, and deadlines are right.
    """
    lives = await run(tmp_path, SEED, times)
    for line in lives.figures():
        figure(line)
    assert lives.ledger.offences == []
    assert not lives.ledger.unanswered.keys() & lives.ledger.confirmed


@pytest.mark.sample("killed-ForgetsKeys-40", "held_up-CountsGapsTwice-1")
@pytest.mark.parametrize(
    ("run", "mutant", "most"),
    [
        (kill.killed, "ConfirmsBeforeCommit", 40),
        (kill.killed, "ForgetsAcknowledgements", 40),
        (kill.killed, "ForgetsKeys", 40),
        (kill.terminated, "LeavesAtOnce", 20),
        (kill.held_up, "CountsFromTheFirstDispatch", 12),
        (kill.held_up, "CountsGapsTwice", 1),
    ],
)
async def test_ledger_finds_a_broker_that(
    tmp_path: Path, run: kill.Run, mutant: str, most: int, figure: Callable[[str], None]
) -> None:
    lives = await run(tmp_path, SEED, most, mutant)
    rounds = lives.kills.total() + len(lives.ends_s)
    figure(f"mutant {mutant}: found after {rounds} rounds: {lives.ledger.offences[:1]}")
    assert lives.ledger.offences
