"""The ``store`` command group: move everything from SQLite to PostgreSQL, or back."""

import sys
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Final

import click

from phpmq_lite.cli.output import Column, number_columns, output_option, print_message, write_rows
from phpmq_lite.cli.parameters import flag
from phpmq_lite.cli.progress import show_progress
from phpmq_lite.cli.settings_options import (
    SettingsArguments,
    settings_options,
    startup_override_options,
)
from phpmq_lite.settings import Settings
from phpmq_lite.storage.copying import AnySide, copy_store
from phpmq_lite.storage.copying import release as release_source
from phpmq_lite.storage.sqlite.copy_side import open_folder

_FIGURES: Final = ("rows", "bytes", "seconds", "replaced", "shortened")
_COLUMNS: Final = (Column("table", "TABLE"), *number_columns(*_FIGURES))


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
    write_rows(rows, _COLUMNS, output, "there is no table")
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
