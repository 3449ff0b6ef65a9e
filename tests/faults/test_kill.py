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


@pytest.mark.sample("killed-5-False", "killed-5-True", "terminated-3-False", "terminated-3-True")
@pytest.mark.parametrize(
    ("run", "times", "is_second"),
    [
        (kill.killed, 5, False),
        (kill.killed, 5, True),
        (kill.killed, 20, False),
        (kill.killed, 20, True),
        (kill.terminated, 3, False),
        (kill.terminated, 3, True),
        (kill.held_up, 2, False),
        (kill.held_up, 2, True),
    ],
)
async def test_broker_loses_nothing_when_it_is(
    tmp_path: Path, run: kill.Run, times: int, is_second: bool, figure: Callable[[str], None]
) -> None:
    """docs/operate/reliability.md, Kills, stops and gaps.

    A stopped broker exits with 0 and stores all acknowledgements that were sent.  After a
    suspension no message is redelivered because of it, and deadlines are right.
    """
    lives = await run(tmp_path, SEED, times, is_second=is_second)
    for line in lives.figures():
        figure(line)
    assert lives.ledger.offences == []
    assert not lives.ledger.unanswered.keys() & lives.ledger.confirmed


@pytest.mark.sample(
    "killed-ForgetsKeys-40-False",
    "killed-RepliesBeforeCommit-40-True",
    "held_up-CountsGapsTwice-1-False",
)
@pytest.mark.parametrize(
    ("run", "mutant", "most", "is_second"),
    [
        (kill.killed, "ConfirmsBeforeCommit", 40, False),
        (kill.killed, "ConfirmsBeforeCommit", 40, True),
        (kill.killed, "ForgetsAcknowledgements", 40, False),
        (kill.killed, "ForgetsAcknowledgements", 40, True),
        (kill.killed, "ForgetsKeys", 40, False),
        (kill.killed, "ForgetsKeys", 40, True),
        (kill.killed, "RepliesBeforeCommit", 40, True),
        (kill.terminated, "LeavesAtOnce", 60, False),
        (kill.held_up, "CountsFromTheFirstDispatch", 12, False),
        (kill.held_up, "CountsGapsTwice", 1, False),
    ],
)
async def test_ledger_finds_a_broker_that(
    tmp_path: Path,
    run: kill.Run,
    mutant: str,
    most: int,
    is_second: bool,
    figure: Callable[[str], None],
) -> None:
    lives = await run(tmp_path, SEED, most, mutant, is_second=is_second)
    rounds = lives.kills.total() + len(lives.ends_s)
    which = " with a writer process" if is_second else ""
    figure(f"mutant {mutant}{which}: found after {rounds} rounds: {lives.ledger.offences[:1]}")
    assert lives.ledger.offences
