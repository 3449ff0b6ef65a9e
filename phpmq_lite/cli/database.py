"""The commands ``migrate``, ``verify`` and ``scrub``: upgrade and check the database."""

import sqlite3
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any, Final

import click

from phpmq_lite.cli.admin_client import AdminClient, admin_client_options
from phpmq_lite.cli.errors import DAMAGED, NOT_FOUND, CommandError
from phpmq_lite.cli.output import Column, output_option, print_message, write_rows
from phpmq_lite.cli.settings_options import (
    SettingsArguments,
    data_option,
    settings_options,
    startup_override_options,
)
from phpmq_lite.installation import migrations_folder
from phpmq_lite.storage import migrate as migrations
from phpmq_lite.storage.backup.backups import MANIFEST, check_copy, read_backup
from phpmq_lite.storage.data_folder import DATABASE, DataFolder, read_meta
from phpmq_lite.storage.integrity.startup import check_files
from phpmq_lite.storage.integrity.verify import Check
from phpmq_lite.storage.integrity.verify import verify as verify_files

_COLUMNS = (Column("check", "Check"), Column("result", "Result"), Column("found", "Found"))


@click.command()
@click.argument("path", required=False, type=click.Path(exists=True, path_type=Path))
@data_option
@output_option
@settings_options
def verify(path: Path | None, output: str | None, given: SettingsArguments) -> None:
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
    print_checks(checks, output)
    if any(check.problems for check in checks):
        raise CommandError(f"{path} is damaged", DAMAGED)


def _never_had_one(path: Path) -> bool:
    """Tell a wrong folder from one whose database is lost, which is damage."""
    if path.is_file() or (path / DATABASE).exists() or (path / f"{DATABASE}-wal").exists():
        return False
    return not read_meta(path).has_messages


def print_checks(checks: list[Check], output: str | None) -> None:
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
    write_rows(rows, _COLUMNS, output, "nothing was checked")


@click.command()
@click.option("--dry-run", is_flag=True, help="Only name what is pending.")
@data_option
@startup_override_options
@settings_options
def migrate(dry_run: bool, given: SettingsArguments) -> None:
    """Bring the database to this version's schema.

    The broker must be stopped. A copy of the database is made first. Prints the name of each
    migration that was applied, or with --dry-run of each that is pending.
    """
    settings = given.load().settings
    if not (settings.data / DATABASE).is_file():
        raise CommandError(f"{settings.data} has no database; serve makes one", NOT_FOUND)
    folder = DataFolder.open(settings.data, allow_network_fs=settings.storage.allow_network_fs)
    with closing(folder):
        check_files(folder, accept_loss=settings.storage.accept_loss)
        with _database(folder) as connection:
            names = _pending(connection) if dry_run else _apply(connection)
    for name in names:
        click.echo(name)
    if not names:
        print_message("nothing is pending")


@contextmanager
def _database(folder: DataFolder) -> Iterator[sqlite3.Connection]:
    """Open the database of a folder that is locked and whose WAL was looked at."""
    connection = sqlite3.connect(folder.database, isolation_level=None)
    try:
        connection.execute("PRAGMA synchronous=FULL")
        yield connection
    finally:
        folder.record(is_running=False)  # ahead of the close, which removes the WAL
        connection.close()


def _pending(connection: sqlite3.Connection) -> list[str]:
    return [m.name for m in migrations.pending(connection, migrations_folder())]


def _apply(connection: sqlite3.Connection) -> list[str]:
    return migrations.migrate(
        connection, migrations_folder(), before=lambda m: print_message(f"applying {m.name} …")
    )


_ASK_EACH_S: Final = 0.5
_SCRUB_COLUMNS: Final = (
    Column("bodies", "BODIES", is_number=True),
    Column("bytes", "BYTES", is_number=True),
    Column("bad_alive", "BAD, ALIVE", is_number=True),
    Column("bad_settled", "BAD, SETTLED", is_number=True),
    Column("structure", "FAULTS OF THE STRUCTURE", is_number=True),
)


@click.command()
@click.option("--status", "is_status", is_flag=True, help="Only tell what the last one found.")
@click.option("--stop", "is_stop", is_flag=True, help="Give up the one under way.")
@admin_client_options
@output_option
def scrub(node: AdminClient, is_status: bool, is_stop: bool, output: str | None) -> None:
    """Have a running broker look at every body and at its database's structure.

    Waits for the end, and prints what was found. A damaged message that is ready is settled as
    dead, reason crc; nothing is deleted.
    Exit codes: 0 all is well, 65 something is damaged.
    """
    if is_stop:
        node.call("DELETE", "/scrub", {})
        return
    told = node.get("/scrub") if is_status else _done(node)
    last = told["last"] or {}
    row = {
        **{name: last.get(name, 0) for name in ("bodies", "bytes", "bad_alive", "bad_settled")},
        "structure": len(told["structure"]),
        "seqs": last.get("seqs", []),
        "faults": told["structure"],
    }
    write_rows([row], _SCRUB_COLUMNS, output, "")
    if row["bad_alive"] or row["bad_settled"] or row["structure"]:
        raise CommandError("the database is damaged", DAMAGED)


def _done(node: AdminClient) -> dict[str, Any]:
    """Begin one, and wait for its end."""
    told: dict[str, Any] = node.post("/scrub")
    before = told["last"]
    while told["is_running"] or told["last"] == before:
        time.sleep(_ASK_EACH_S)
        told = node.get("/scrub")
        if not told["is_running"] and told["now"] is None and told["last"] == before:
            raise CommandError("the scrub was given up; the log says why")
    return told
