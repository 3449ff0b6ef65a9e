"""Backups under load: each opens, is whole, and has all messages confirmed before it began."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.faults import backups
from tests.support.seed import SEED

pytestmark = pytest.mark.faults

BACKUPS = int(os.environ.get("PHPMQ_BACKUPS", "3"))


def test_backups_under_load_have_all_that_was_confirmed(
    tmp_path: Path, figure: Callable[[str], None]
) -> None:
    """docs/operate/reliability.md, Backups."""
    found = backups.run(tmp_path, SEED, BACKUPS)
    for line in backups.figures(found, SEED):
        figure(line)
    assert [one for one in found if not one.is_good] == []
    assert backups.drilled(found[-1]) == []


def test_harness_finds_copies_of_the_database_alone(
    tmp_path: Path, figure: Callable[[str], None]
) -> None:
    found = backups.run(tmp_path, SEED, 2, backups.copied)
    lines = backups.figures(found, SEED)
    figure(f"mutant, the .db file alone: {lines[1:]}")
    assert [one for one in found if not one.is_good]
