"""The ``standby`` command group: replicate the database with Litestream, and promote a replica."""

import os
import sys
import tempfile
from contextlib import closing
from dataclasses import asdict
from pathlib import Path
from typing import Final

import click

from phpmq_lite.cli.backups import show_withdrawn
from phpmq_lite.cli.database import print_checks
from phpmq_lite.cli.errors import NOT_FOUND, CommandError
from phpmq_lite.cli.output import (
    Column,
    confirm,
    number_columns,
    output_option,
    print_message,
    write_rows,
    yes_option,
)
from phpmq_lite.cli.settings_options import (
    SettingsArguments,
    data_option,
    settings_options,
    startup_override_options,
)
from phpmq_lite.errors import StartRefusedError
from phpmq_lite.settings import Settings
from phpmq_lite.storage.data_folder import DATABASE, DataFolder
from phpmq_lite.storage.sqlite.backup.restore import restore
from phpmq_lite.storage.sqlite.integrity.startup import check_files
from phpmq_lite.storage.sqlite.integrity.stopped_database import open_stopped
from phpmq_lite.storage.sqlite.standby.lag import read_standby
from phpmq_lite.storage.sqlite.standby.litestream import (
    CONFIG,
    Target,
    configure,
    environment_of,
    is_running,
    lock_for_litestream,
    read_target,
    require_litestream,
    run_litestream,
    write_config,
)
from phpmq_lite.storage.statements import load

_COLUMNS: Final = (
    Column("target", "TARGET"),
    Column("is_running", "RUNNING"),
    *number_columns("lag_s", "lag_bytes", "lag_messages", "backlog_bytes"),
    Column("problem", "PROBLEM"),
)

_RESTORE_S: Final = 86_400.0  # a large replica, over a slow network


@click.group()
def standby() -> None:
    """Replicate the database to another place with Litestream, and promote a replica."""


@standby.command()
@click.argument("target")
@data_option
@startup_override_options
@settings_options
def init(target: str, settings_args: SettingsArguments) -> None:
    """Configure Litestream for the data folder of a stopped broker.

    TARGET is a folder, for example on a mounted disk, or a URL such as sftp://user@host/path or
    s3://bucket/path?region=eu-central-1. Credentials must be in the environment of `standby run`,
    not in TARGET. Requires Litestream 0.5.17 or newer, with SQLite 3.51.3 or newer.
    """
    settings = settings_args.load().settings
    version = require_litestream()
    given = Target.parse(target)
    folder = DataFolder.open(settings.data, allow_network_fs=settings.storage.allow_network_fs)
    with closing(folder):
        if is_running(folder.path):
            raise StartRefusedError(f"Litestream is running for {folder.path}; stop it first")
        check_files(folder, accept_loss=settings.storage.accept_loss)
        replica = given.of_history(_read_history_id(folder.database))
        configure(folder, replica, settings.storage.wal_bytes)
    print_message(f"{version} will replicate {folder.database} to {replica}")
    _print_next_steps(settings.data)
    print_message(f"after a loss, elsewhere: phpmq-lite standby promote '{replica}' --data FOLDER")


def _read_history_id(database: Path) -> str:
    if database.stat().st_size:
        with open_stopped(database) as connection:
            if connection.execute(load("restore")["has_meta"]).fetchone()[0]:
                row = connection.execute(load("standby")["history_id"]).fetchone()
                if row is not None:
                    return str(row[0])
    raise CommandError(f"{database} is new; start and stop the broker once before this", NOT_FOUND)


def _print_next_steps(data: Path) -> None:
    print_message(f"run Litestream: phpmq-lite standby run --data {data}")
    print_message(f"run the broker: phpmq-lite serve --data {data}")


@standby.command()
@data_option
@settings_options
def run(settings_args: SettingsArguments) -> None:
    """Run Litestream until it is stopped; the broker may run or not.

    This process becomes Litestream, so a service manager can supervise it. Litestream logs to
    standard error.
    """
    data = settings_args.load().settings.data
    _require_target(data)
    version = require_litestream()
    environment = os.environ | environment_of(data)
    lock_for_litestream(data)
    command = [version.path, "replicate", "-config", str(data / CONFIG)]
    sys.stdout.flush()
    os.execve(version.path, command, environment)  # noqa: S606 - no shell is wanted


@standby.command()
@data_option
@output_option
@settings_options
def status(output: str | None, settings_args: SettingsArguments) -> None:
    """Show how far the replica is behind the database.

    The lag is the most that a promotion at this moment would lose, in seconds, bytes of the
    write-ahead log and published messages.
    Exit codes: 0 Litestream runs and reaches the target, 1 it does not, 3 no standby is configured.
    """
    data = settings_args.load().settings.data
    target = _require_target(data)
    state = read_standby(data, asks_target=True)
    write_rows([{"target": str(target), **asdict(state)}], _COLUMNS, output, "")
    if state.problem:
        raise CommandError(state.problem)


def _require_target(data: Path) -> Target:
    target = read_target(data)
    if target is None:
        raise CommandError(f"{data} has no standby; see `phpmq-lite standby init`", NOT_FOUND)
    return target


@standby.command()
@click.argument("target")
@click.option("--keep-tokens", is_flag=True, help="Keep users, sessions and API tokens unchanged.")
@click.option("--serve", "is_served", is_flag=True, help="Start the broker afterwards.")
@yes_option
@data_option
@startup_override_options
@output_option
@settings_options
def promote(
    target: str,
    keep_tokens: bool,
    is_served: bool,
    yes: bool,
    output: str | None,
    settings_args: SettingsArguments,
) -> None:
    """Restore the replica in TARGET to the data folder, to take over from a lost broker.

    TARGET is what `standby init` printed. The result is verified, gets a new history id and message
    numbers that were never used, and is replicated to a path of its own in the same place. As after
    `backup restore`, sessions end and API tokens are disabled, unless the replaced database shows
    that they are still valid. The old broker must not be running.
    """
    settings = settings_args.load().settings
    version = require_litestream()
    source = _choose_replica(Target.parse(target))
    if (settings.data / DATABASE).exists():
        confirm(f"Replace the database in {settings.data}?", is_yes=yes)
    settings.data.absolute().parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(
        prefix=".phpmq-promote-", dir=settings.data.absolute().parent
    ) as place:
        print_message(f"restoring {source}")
        database = _fetch(version.path, source, Path(place), settings)
        done = restore(
            database,
            settings.data,
            allow_network_fs=settings.storage.allow_network_fs,
            accept_loss=settings.storage.accept_loss,
            keep_tokens=keep_tokens,
            tell=print_message,
        )
    replica = source.of_history(done.history_id)
    with closing(DataFolder.open(settings.data, allow_network_fs=True)) as folder:
        configure(folder, replica, settings.storage.wal_bytes)
    print_checks(done.checks, output)
    if done.withdrawn is not None:
        show_withdrawn(done.withdrawn)
    print_message(f"promoted {done.database}; its own replica will be {replica}")
    if is_served:
        command = [sys.executable, "-m", "phpmq_lite", "serve", "--data", str(settings.data)]
        sys.stdout.flush()
        os.execv(sys.executable, command)  # noqa: S606 - no shell is wanted
    _print_next_steps(settings.data)


def _choose_replica(target: Target) -> Target:
    """Return the target if it names a history; otherwise, the only one that a folder contains."""
    if target.history_id:
        return target
    found = target.histories()
    if len(found) == 1:
        return target.of_history(found[0])
    listed = "".join(f"\n  {target.of_history(one)}" for one in found)
    raise CommandError(
        f"{target} may contain several replicas; add the history id that `standby init` printed"
        + (f". Newest first:{listed}" if found else ""),
        NOT_FOUND,
    )


def _fetch(litestream: str, source: Target, place: Path, settings: Settings) -> Path:
    """Restore a replica with Litestream and return the path of the database."""
    config = write_config(place, source, settings.storage.wal_bytes)
    variables = environment_of(place)
    database = place / DATABASE
    run_litestream(
        litestream, "restore", "-config", str(config), "-o", str(database),
        next(iter(variables.values())), environment=variables, timeout_s=_RESTORE_S,
    )  # fmt: skip
    return database
