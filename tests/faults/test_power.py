"""A power cut at any moment: confirmed messages are there, and stored ends are not undone.

``PHPMQ_POINTS=1000 python -m pytest tests/faults/test_power.py`` cuts more often, and so does
``python -m tests.faults.power --points 1000``; ``PHPMQ_SEED=…`` repeats the random choices of a
run.
"""

import os
import random
from collections.abc import Callable
from pathlib import Path

import pytest

from phpmq_lite.storage.sqlite.store import SqliteStore
from tests.faults import mutants, power_ledger
from tests.faults.power import POINTS_OF_A_RUN, Tally, cut, processes_of, record
from tests.faults.shimmed_broker import NEEDS_SHIM
from tests.support.seed import SEED

pytestmark = [pytest.mark.faults, NEEDS_SHIM]

POINTS = int(os.environ.get("PHPMQ_POINTS", "60"))
SERVED = 2  # disks of a recording on which the broker itself is started
MUTANT_POINTS = 16
EXPECTED = {  # the promise that each mutant breaks
    "SyncsLess": power_ledger.LOST,
    "ConfirmsBeforeCommit": power_ledger.LOST,
    "DispatchesBeforeCommit": power_ledger.UNSTORED,
    "SettlesLate": power_ledger.UNDONE,
    "StoresNoKeys": power_ledger.FORGOTTEN,
    "KeepsItsSeals": power_ledger.REFUSED,
}
IN_WRITER = {  # in the writer process, too, or only there
    "SyncsLess": power_ledger.LOST,
    "RepliesBeforeCommit": power_ledger.LOST,
    "SettlesLate": power_ledger.UNDONE,
}


@pytest.mark.timeout(120 + POINTS)
@pytest.mark.sample("False-12", "True-12")
@pytest.mark.parametrize("points", sorted({12, POINTS}))
@pytest.mark.parametrize("is_second", [False, True])
async def test_broker_keeps_its_promises_over_a_power_cut(
    tmp_path: Path, points: int, is_second: bool, figure: Callable[[str], None]
) -> None:
    """docs/operate/reliability.md, A power cut."""
    tally, rng = Tally(), random.Random(SEED)
    while tally.points < points:
        folder = tmp_path / str(tally.points)
        logs = await record(folder, rng, is_second=is_second)
        assert not is_second or len(processes_of(logs)) == 6, "two in each of three lives"
        cut(logs, min(POINTS_OF_A_RUN, points - tally.points), rng, tally, served=SERVED)
    figure(f"power: seed {SEED}{', with a writer process' * is_second}")
    for line in tally.lines:
        figure(line)
    assert tally.examples == {}
    assert tally.confirmed
    assert tally.ended


@pytest.mark.sample("ConfirmsBeforeCommit-False", "RepliesBeforeCommit-True")
@pytest.mark.parametrize(
    ("mutant", "is_second"),
    [*((mutant, False) for mutant in EXPECTED), *((mutant, True) for mutant in IN_WRITER)],
)
async def test_power_cut_finds_a_broker_that(
    tmp_path: Path, mutant: str, is_second: bool, figure: Callable[[str], None]
) -> None:
    expected = (EXPECTED | IN_WRITER)[mutant]
    tally, rng = Tally(), random.Random(SEED)
    for number in range(3):  # the first may miss the defect
        logs = await record(tmp_path / str(number), rng, mutant, lives=1, is_second=is_second)
        cut(logs, MUTANT_POINTS, rng, tally)
        if expected in tally.examples:
            break
    found = tally.count(expected)
    disks = sum(tally.disks.values())
    which = " with a writer process" if is_second else ""
    figure(f"mutant {mutant}{which}: {expected} on {found} of {disks} disks")
    assert found


def test_each_mutant_is_tried() -> None:
    folders = (Path(__file__).parent, Path(__file__).parents[1] / "soak")
    tests = [path.read_text("utf-8") for folder in folders for path in folder.glob("test_*.py")]
    untried = [name for name in mutants.MUTANTS if not any(f'"{name}"' in text for text in tests)]
    assert untried == []


@pytest.mark.slow
async def test_power_cut_finds_a_start_that_reuses_numbers(
    tmp_path: Path, figure: Callable[[str], None]
) -> None:
    """The next number is stored, because alive messages do not determine it."""
    kinds: tuple[type[SqliteStore], ...] = (SqliteStore, mutants.NumbersAnewStore)
    logs = await record(tmp_path, random.Random(SEED), lives=1)
    found = []
    for kind in kinds:
        tally = Tally()
        cut(logs, MUTANT_POINTS, random.Random(SEED), tally, store=kind)
        found.append(tally.count(power_ledger.REUSED))
    disks = sum(tally.disks.values())
    figure(f"mutant NumbersAnew: {power_ledger.REUSED} on {found[1]} of {disks} disks")
    assert found[0] == 0
    assert found[1]
