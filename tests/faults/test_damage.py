"""Damaged files: no wrong content is delivered, damage is detected, and the originals are kept.

``python -m tests.faults.damage --flips 120 --truncations 10`` damages more, as does
``PHPMQ_FLIPS=120``; ``PHPMQ_SEED=…`` repeats the random choices of a run.
"""

import os
import random
from collections.abc import Callable
from itertools import islice
from pathlib import Path

import pytest

from phpmq_lite.storage.data_folder import DATABASE
from tests.faults import damage
from tests.faults.damage import WAL, Filled
from tests.support.seed import SEED

pytestmark = pytest.mark.faults

FLIPS = int(os.environ.get("PHPMQ_FLIPS", "12"))
CUTS = 6


@pytest.mark.slow
def test_damage_is_reported_and_never_delivered(
    tmp_path: Path, figure: Callable[[str], None]
) -> None:
    """docs/operate/reliability.md, Damaged files."""
    outcomes = damage.run(tmp_path, SEED, FLIPS, CUTS)
    for line in damage.figures(outcomes, SEED):
        figure(line)
    assert [text for outcome in outcomes for text in outcome.wrong] == []


@pytest.fixture(scope="module")
def killed(tmp_path_factory: pytest.TempPathFactory) -> Filled:
    folder = tmp_path_factory.mktemp("killed")
    return damage.fill(folder, random.Random(SEED), is_clean=False)


@pytest.fixture(scope="module")
def clean(tmp_path_factory: pytest.TempPathFactory) -> Filled:
    folder = tmp_path_factory.mktemp("clean")
    return damage.fill(folder, random.Random(SEED), is_clean=True)


@pytest.mark.parametrize(
    ("mutant", "end", "file"),
    [
        ("ChecksNoWal", "killed", WAL),
        ("ChecksNoBodies", "killed", DATABASE),
        ("MakesDatabase", "clean", ""),
    ],
)
def test_harness_finds_a_broker_with(
    request: pytest.FixtureRequest,
    tmp_path: Path,
    mutant: str,
    end: str,
    file: str,
    figure: Callable[[str], None],
) -> None:
    filled: Filled = request.getfixturevalue(end)
    rng = random.Random(SEED)
    cases = islice(damage.flips(filled, file, rng), 40) if file else damage.losses(filled)
    outcomes = (damage.judge(filled, case, tmp_path / "case", mutant) for case in cases)
    found = next((outcome for outcome in outcomes if outcome.wrong), None)
    assert found is not None
    figure(f"mutant {mutant}: {found.case.name}: {found.wrong}")


def test_harness_finds_a_broker_without_a_seal(
    clean: Filled, tmp_path: Path, figure: Callable[[str], None]
) -> None:
    """Only the seal detects damaged metadata of messages."""
    cases = islice(damage.flips(clean, DATABASE, random.Random(SEED)), 40)
    detected = (damage.judge(clean, case, tmp_path / "case", "ChecksNoSeal").by for case in cases)
    found = next((by for by in detected if by != damage.START), None)
    figure(f"mutant ChecksNoSeal: found: {found}")
    assert found is not None
