"""``migrate``: brings the schema up to date while the broker is stopped; ``serve`` does it too."""

import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager

import click

from phpmq_lite.cli.given import Given, data_option, settings_options, start_options
from phpmq_lite.cli.main import NOT_FOUND, CommandError
from phpmq_lite.cli.options import talk
from phpmq_lite.installation import migrations_folder
from phpmq_lite.storage import migrate as migrations
from phpmq_lite.storage.data_folder import DATABASE, DataFolder
from phpmq_lite.storage.integrity.startup import check_files


@click.command()
@click.option("--dry-run", is_flag=True, help="Only name what is pending.")
@data_option
@start_options
@settings_options
def migrate(dry_run: bool, given: Given) -> None:
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
        talk("nothing is pending")


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
        connection, migrations_folder(), before=lambda m: talk(f"applying {m.name} …")
    )
