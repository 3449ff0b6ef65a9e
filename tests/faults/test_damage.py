"""Damaged files: nothing wrong is delivered, nothing is hidden, and the originals stay.

``python -m tests.faults.damage --flips 120 --truncations 10`` damages more, as does
``PHPMQ_FLIPS=120``; ``PHPMQ_SEED=…`` repeats the choices of a run.
"""

import os
import random
from collections.abc import Callable, Iterable
from itertools import islice
from pathlib import Path

import pytest

from phpmq_lite.storage.data_folder import DATABASE
from tests.faults import damage
from tests.faults.damage import WAL, Case, Filled
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


def find(
    filled: Filled, cases: Iterable[Case], tmp_path: Path, mutant: str
) -> tuple[str, list[str]]:
    """Give the first damage that a blind broker hides, and what is wrong then."""
    for case in cases:
        outcome = damage.judge(filled, case, tmp_path / "case", mutant)
        if outcome.wrong:
            return case.name, outcome.wrong
    return "", []


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
    """A fault test that cannot fail is worth nothing."""
    filled: Filled = request.getfixturevalue(end)
    rng = random.Random(SEED)
    cases = islice(damage.flips(filled, file, rng), 40) if file else damage.losses(filled)
    where, wrong = find(filled, cases, tmp_path, mutant)
    figure(f"mutant {mutant}: {where}: {wrong}")
    assert wrong


def test_harness_finds_a_broker_without_a_seal(
    clean: Filled, tmp_path: Path, figure: Callable[[str], None]
) -> None:
    """It would not see what else nobody sees: what is kept about messages."""
    found = []
    for case in islice(damage.flips(clean, DATABASE, random.Random(SEED)), 40):
        outcome = damage.judge(clean, case, tmp_path / "case", "ChecksNoSeal")
        found.append(outcome.by)
        if outcome.by != damage.START:
            break
    figure(f"mutant ChecksNoSeal: found after {len(found)} flips: {found[-1:]}")
    assert found[-1] != damage.START
