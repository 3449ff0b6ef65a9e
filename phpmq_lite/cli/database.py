"""The ``database`` command group: migrate, verify and scrub the database."""

import sqlite3
import sys
import time
from contextlib import AbstractContextManager, closing
from pathlib import Path
from typing import Final

import click

from phpmq_lite.cli.admin_client import AdminClient, admin_output_options
from phpmq_lite.cli.errors import DAMAGED, NOT_FOUND, REFUSED, CommandError
from phpmq_lite.cli.output import columns, number_columns, output_option, print_message, write_rows
from phpmq_lite.cli.parameters import (
    EXISTING_PATH,
    SettingsArguments,
    data_option,
    flag,
    settings_options,
    startup_override_options,
    store_option,
)
from phpmq_lite.cli.progress import show_progress
from phpmq_lite.installation import migrations_folder
from phpmq_lite.settings import Settings
from phpmq_lite.storage.copying import AnySide, copy_store
from phpmq_lite.storage.copying import release as release_source
from phpmq_lite.storage.data_folder import DATABASE, DataFolder, has_never_had_database
from phpmq_lite.storage.database_check import DatabaseCheck
from phpmq_lite.storage.sqlite import migrate as migrations
from phpmq_lite.storage.sqlite.backups import MANIFEST, read_backup, verify_backup
from phpmq_lite.storage.sqlite.copy_side import open_folder
from phpmq_lite.storage.sqlite.integrity.database_check import verify as verify_files
from phpmq_lite.storage.sqlite.integrity.startup import check_files
from phpmq_lite.storage.sqlite.litestream import is_running

_COLUMNS: Final = columns(check="Check", result="Result", found="Found")


@click.group()
def database() -> None:
    """Upgrade the database and check it for damage."""


@database.command()
@click.argument("path", required=False, type=EXISTING_PATH)
@data_option
@store_option
@output_option
@settings_options
def verify(path: Path | None, output: str | None, settings_args: SettingsArguments) -> None:
    """Check a stopped broker's database or a backup without changing it.

    Checks the write-ahead log, the structure, every body, and whether the tables agree. PATH is a
    backup, a database file or a data folder; the default is the broker's data folder. `database
    scrub` checks a running broker. With --store, checks a PostgreSQL database, whose broker may be
    running.
    Exit codes: 0 no damage, 3 no database ever existed, 65 damage was found.
    """
    if path is None:
        settings = settings_args.load().settings
        if settings.store.url:
            from phpmq_lite.storage.postgres.inspection import verify as verify_server

            _report("the database", verify_server(settings.store.url), output)
            return
        path = settings.data
    if (path / MANIFEST).is_file():
        if (backup := read_backup(path)) is None:
            raise CommandError(
                f"{path / MANIFEST} is unreadable, or the backup's database is missing", DAMAGED
            )
        verify_backup(backup)
        path = backup.database
    if has_never_had_database(path):
        raise CommandError(f"there is no database in {path}", NOT_FOUND)
    _report(str(path), verify_files(path), output)


def _report(name: str, checks: list[DatabaseCheck], output: str | None) -> None:
    print_checks(checks, output)
    if any(check.problems for check in checks):
        raise CommandError(f"{name} is damaged", DAMAGED)


def require_file(settings: Settings, instead: str) -> None:
    """Raise CommandError if the broker stores in PostgreSQL; ``instead`` says what to do there."""
    if settings.store.url:
        raise CommandError(f"store.url is set: the broker stores in PostgreSQL, {instead}", REFUSED)


def print_checks(checks: list[DatabaseCheck], output: str | None) -> None:
    """Write one row for each check and one for each problem found."""
    rows = []
    for check in checks:
        result = "damaged" if check.problems else "ok"
        texts = [check.result] if check.result or not check.problems else []
        texts += check.problems
        rows += [{"check": check.name, "result": result, "found": text} for text in texts]
    write_rows(rows, _COLUMNS, output, "no checks")


@database.command()
@flag("--dry-run", "Print the pending migrations without applying them.")
@data_option
@startup_override_options
@settings_options
def migrate(dry_run: bool, settings_args: SettingsArguments) -> None:
    """Upgrade the database to this version's schema.

    The broker must be stopped. The database is copied first. Prints the name of each applied
    migration or, with --dry-run, of each pending one.
    """
    settings = settings_args.load().settings
    require_file(settings, "where the active broker migrates the schema when it starts")
    if not (settings.data / DATABASE).is_file():
        raise CommandError(
            f"{settings.data} contains no database; `phpmq-lite serve` creates one", NOT_FOUND
        )
    folder = DataFolder.open(settings.data, allow_network_fs=settings.storage.allow_network_fs)
    with closing(folder):
        check_files(folder, accept_loss=settings.storage.accept_loss)
        with closing(sqlite3.connect(folder.database, isolation_level=None)) as connection:
            connection.execute("PRAGMA synchronous=FULL")
            connection.execute("PRAGMA wal_autocheckpoint=0")  # Litestream may be running
            try:
                names = [
                    migration.name
                    for migration in migrations.pending(connection, migrations_folder())
                ]
                if not dry_run:
                    migrations.migrate(
                        connection,
                        migrations_folder(),
                        before=lambda migration: print_message(f"applying {migration.name} …"),
                    )
            finally:
                # This must come first, because closing removes the WAL unless Litestream runs.
                folder.record(is_running=False, leaves_wal=is_running(folder.path))
    for name in names:
        click.echo(name)
    if not names:
        print_message("no migrations are pending")


_POLL_S: Final = 0.5
_SCRUB_COLUMNS: Final = number_columns(
    "bodies",
    "bytes",
    bad_alive="BAD, LIVE",
    bad_settled="BAD, SETTLED",
    structure="STRUCTURE FAULTS",
)


@database.command()
@flag(("--status", "is_status"), "Print the last result without starting a scrub.")
@flag(("--stop", "is_stop"), "Stop the scrub in progress.")
@admin_output_options
def scrub(admin: AdminClient, is_status: bool, is_stop: bool, output: str | None) -> None:
    """Check message bodies and database structure while the broker runs.

    Waits until the scrub ends and prints the result. A damaged ready message is settled as dead
    with the reason crc; nothing is deleted.
    Exit codes: 0 no damage, 65 damage was found.
    """
    if is_stop:
        admin.call("DELETE", "/scrub", {})
        return
    state = admin.get("/scrub") if is_status else admin.post("/scrub")
    before = state["last"]
    while not is_status and (state["is_running"] or state["last"] == before):
        time.sleep(_POLL_S)
        state = admin.get("/scrub")
        if not state["is_running"] and state["now"] is None and state["last"] == before:
            raise CommandError("the scrub was stopped; see the broker's log for the reason")
    last = state["last"] or {}
    row = {
        **{name: last.get(name, 0) for name in ("bodies", "bytes", "bad_alive", "bad_settled")},
        "structure": len(state["structure"]),
        "seqs": last.get("seqs", []),
        "faults": state["structure"],
    }
    write_rows([row], _SCRUB_COLUMNS, output, "")
    if row["bad_alive"] or row["bad_settled"] or row["structure"]:
        raise CommandError("the database is damaged", DAMAGED)


_FIGURES: Final = ("rows", "bytes", "seconds", "replaced", "shortened")
_COPY_COLUMNS: Final = (*columns("table"), *number_columns(*_FIGURES))


@click.group()
def store() -> None:
    """Move everything from SQLite to PostgreSQL, or back."""


@store.command()
@click.argument("source")
@click.argument("target")
@flag("--replace", "Replace the data that TARGET contains.")
@startup_override_options
@output_option
@settings_options
def copy(
    source: str, target: str, replace: bool, output: str | None, settings_args: SettingsArguments
) -> None:
    """Copy everything from SOURCE to TARGET, and verify the copy.

    One is the data folder of a stopped broker, the other a postgresql:// URL that no broker uses.
    Repeat an interrupted command to continue it. No broker starts on SOURCE again until `store
    release`, or on TARGET before the copy is complete. With --replace, the old files of a data
    folder are moved to replaced-<time>/; the rows of a PostgreSQL database are deleted.
    Exit codes: 65 damaged data, or the copy differs; 74 a server or disk failed.
    """
    settings = settings_args.load().settings
    if _is_url(source) == _is_url(target):
        raise click.UsageError("one must be a data folder and the other a postgresql:// URL")
    with (
        _open(source, settings) as ours,
        _open(target, settings, is_target=True) as theirs,
        show_progress(sys.stderr) as progress,
    ):
        report = copy_store(ours, theirs, progress, replace=replace)
    rows = [
        {"table": name} | {key: counts[key] for key in _FIGURES}
        for name, counts in report.tables.items()
    ]
    write_rows(rows, _COPY_COLUMNS, output, "there is no table")
    for row in rows:
        if row["replaced"]:
            print_message(
                f"{row['table']}: U+FFFD replaces {row['replaced']} characters that PostgreSQL "
                "cannot store"
            )
        if row["shortened"]:
            print_message(
                f"{row['table']}: {row['shortened']} texts were too long, and end with … now"
            )
    if theirs.replaced_files is not None:
        print_message(f"the previous files are in {theirs.replaced_files}")
    print_message(f"copied {ours.name} to {theirs.name}; start the broker there")


@store.command()
@click.argument("source")
@startup_override_options
@settings_options
def release(source: str, settings_args: SettingsArguments) -> None:
    """Allow brokers to start on SOURCE again; its copy is not used.

    If the copy was complete, new messages are numbered from 1,000,000 above the last number and the
    history gets a new id, as after a restore: a broker may have continued both in the copy.
    """
    with _open(source, settings_args.load().settings) as side:
        release_source(side)
        print_message(f"{side.name} can be used again")


def _is_url(place: str) -> bool:
    return place.startswith(("postgresql://", "postgres://"))


def _open(
    place: str, settings: Settings, *, is_target: bool = False
) -> AbstractContextManager[AnySide]:
    if _is_url(place):
        from phpmq_lite.storage.postgres.copy_side import open_database

        return open_database(
            place, is_target=is_target, allow_asynchronous=settings.store.allow_asynchronous
        )
    return open_folder(
        Path(place),
        print_message,
        is_target=is_target,
        allow_network_fs=settings.storage.allow_network_fs,
        accept_loss=settings.storage.accept_loss,
    )
