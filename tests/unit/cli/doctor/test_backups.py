"""Backups, judged by made-up facts."""

from pathlib import Path

import pytest

from phpmq_lite.cli.doctor import database
from phpmq_lite.cli.doctor.findings import OK, WARN

HOUR_MS = 3_600_000
FOLDER = Path("/backups")


@pytest.mark.parametrize(
    ("age_ms", "every_h", "state", "words"),
    [
        (None, 0, WARN, "none in /backups"),
        (HOUR_MS, 0, OK, "the newest is 1 h old, in /backups"),
        (8 * 24 * HOUR_MS, 0, WARN, "the newest is 8 d old"),
        (48 * HOUR_MS, 24, OK, "the newest is 2 d old"),
        (49 * HOUR_MS, 24, WARN, "one is scheduled every 24 h"),
    ],
)
def test_newest_backup_is_judged(
    age_ms: int | None, every_h: float, state: str, words: str
) -> None:
    found = database.backup_finding(FOLDER, age_ms, every_h, is_same=False)
    assert (found.state, words in found.found) == (state, True), found
    assert bool(found.hint) == (state == WARN)


def test_backup_on_the_disk_of_the_data_is_told() -> None:
    found = database.backup_finding(FOLDER, HOUR_MS, 0, is_same=True)
    assert (found.state, "share a disk" in found.hint) == (OK, True)
