"""``verify``: look at everything in a database, and change nothing."""

from pathlib import Path

import click

from phpmq_lite.cli.given import Given, data_option, settings_options
from phpmq_lite.cli.main import NOT_FOUND, CommandError
from phpmq_lite.cli.output import Column, output_option, write
from phpmq_lite.storage.backup.backups import MANIFEST, check_copy, read_backup
from phpmq_lite.storage.data_folder import DATABASE, read_meta
from phpmq_lite.storage.integrity.verify import Check
from phpmq_lite.storage.integrity.verify import verify as verify_files

DAMAGED = 65
_COLUMNS = (Column("check", "Check"), Column("result", "Result"), Column("found", "Found"))


@click.command()
@click.argument("path", required=False, type=click.Path(exists=True, path_type=Path))
@data_option
@output_option
@settings_options
def verify(path: Path | None, output: str | None, given: Given) -> None:
    """Check a database whose broker is stopped, or a backup; change nothing.

    Looks at the write-ahead log, the structure, every body, and whether the tables agree. PATH is
    a backup, a database file or a data folder; without it, the data folder. A running broker is
    checked by `phpmq-lite scrub`.
    Exit codes: 0 all is well, 3 there never was a database, 65 something is damaged.
    """
    if path is None:
        path = given.load().settings.data
    if (path / MANIFEST).is_file():
        backup = read_backup(path)
        if backup is None:
            raise CommandError(f"{path / MANIFEST} cannot be read, or has no database", DAMAGED)
        check_copy(backup)
        path = backup.database
    if _never_had_one(path):
        raise CommandError(f"there is no database in {path}", NOT_FOUND)
    checks = verify_files(path)
    show(checks, output)
    if any(check.problems for check in checks):
        raise CommandError(f"{path} is damaged", DAMAGED)


def _never_had_one(path: Path) -> bool:
    """Tell a wrong folder from one whose database is lost, which is damage."""
    if path.is_file() or (path / DATABASE).exists() or (path / f"{DATABASE}-wal").exists():
        return False
    return not read_meta(path).has_messages


def show(checks: list[Check], output: str | None) -> None:
    """Write a line for each check, and one more for each further problem."""
    rows = []
    for check in checks:
        result = "damaged" if check.problems else "ok"
        if check.found or not check.problems:
            rows.append({"check": check.name, "result": result, "found": check.found})
        rows += [
            {"check": check.name, "result": "damaged", "found": problem}
            for problem in check.problems
        ]
    write(rows, _COLUMNS, output, "nothing was checked")
