"""Backups: whether there are any, how old the newest is, and whether a disk takes all with it."""

import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from phpmq_lite.admin.base import formats
from phpmq_lite.cli.findings import Finding, ok, warn
from phpmq_lite.settings import Settings
from phpmq_lite.storage.backup.backups import list_backups
from phpmq_lite.storage.data_folder import DATABASE

NAME: Final = "backups"
_HOUR_MS: Final = 3_600_000
OLD_MS: Final = 7 * 24 * _HOUR_MS  # where none are made by the clock


def look(settings: Settings) -> Iterator[Finding]:
    """Look at the backups of a broker that has something to back up."""
    if not (settings.data / DATABASE).is_file():
        return
    folder = settings.backups_folder
    found = list_backups(folder)
    now_ms = time.time_ns() // 1_000_000
    ages = [now_ms - one.manifest.made_at for one in found]
    age_ms = min((age for age in ages if age >= 0), default=None)  # others: the clock was ahead
    yield finding(folder, age_ms, settings.backups.every_h, is_same=_is_same(folder, settings.data))


def _is_same(folder: Path, data: Path) -> bool:
    return folder.is_dir() and os.stat(folder).st_dev == os.stat(data).st_dev


def finding(folder: Path, age_ms: int | None, every_h: float, *, is_same: bool) -> Finding:
    """Judge the newest backup; ``every_h`` is how often one is made, 0: only on demand."""
    if age_ms is None:
        return warn(
            NAME,
            f"none in {folder}",
            "`phpmq-lite backup` makes one, backups.every_h makes them by the clock",
        )
    text = f"the newest is {formats.format_duration(age_ms)} old, in {folder}"
    if every_h and age_ms > 2 * every_h * _HOUR_MS:
        return warn(
            NAME,
            f"{text}; one is to be made every {every_h:g} h",
            "the log and the page Backups say why there is none",
        )
    if not every_h and age_ms > OLD_MS:
        return warn(NAME, text, "backups.every_h makes them by the clock")
    hint = "a disk that dies takes both: set backups.folder, or `phpmq-lite backup --to`"
    return ok(NAME, text, hint if is_same else "")
