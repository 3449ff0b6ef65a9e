"""The ``standby`` command group: replicate the database with Litestream, and promote a replica."""

import os
import sys
import tempfile
from contextlib import closing
from dataclasses import asdict
from pathlib import Path
from typing import Final

import click

from phpmq_lite.cli import output as outputs
from phpmq_lite.cli.backups import restore_database
from phpmq_lite.cli.errors import NOT_FOUND, CommandError
from phpmq_lite.cli.output import output_option, print_message, yes_option
from phpmq_lite.cli.parameters import flag
from phpmq_lite.cli.settings_options import (
    SettingsArguments,
    data_option,
    settings_options,
    startup_override_options,
)
from phpmq_lite.errors import StartRefusedError
from phpmq_lite.storage.data_folder import DATABASE, DataFolder
from phpmq_lite.storage.migrations import naming
from phpmq_lite.storage.sqlite import litestream
from phpmq_lite.storage.sqlite.integrity.startup import check_files, open_stopped
from phpmq_lite.storage.sqlite.restore import read_history_id
from phpmq_lite.storage.sqlite.standby_lag import read_standby

_RESTORE_S: Final = 86_400.0  # a large replica, over a slow network
_COLUMNS: Final = (
    *outputs.columns("replica", is_running="RUNNING"),
    *outputs.number_columns("lag_s"),
    *outputs.number_columns("lag_bytes", "lag_messages", "backlog_bytes", fit=outputs.SPARE),
    *outputs.columns("problem"),
)


@click.group()
def standby() -> None:
    """Replicate the database with Litestream, and promote a replica."""


@standby.command()
@click.argument("target")
@data_option
@startup_override_options
@settings_options
def init(target: str, settings_args: SettingsArguments) -> None:
    """Configure Litestream for the data folder of a stopped broker.

    TARGET is a folder, for example on another disk, or a URL such as sftp://user@host/path or
    s3://bucket/path?region=eu-central-1. Credentials must be in the environment of `standby run`,
    not in TARGET. Requires Litestream 0.5.17 or newer, with SQLite 3.51.3 or newer.
    """
    settings = settings_args.load().settings
    litestream.parse_target(target)
    litestream.require_litestream()
    folder = DataFolder.open(settings.data, allow_network_fs=settings.storage.allow_network_fs)
    with closing(folder):
        if litestream.is_running(folder.path):
            raise StartRefusedError(f"Litestream is running for {folder.path}; stop it first")
        check_files(folder, accept_loss=settings.storage.accept_loss)  # this removes the seal
        with open_stopped(folder.database) as connection:
            history_id = read_history_id(connection)
        if history_id is None:
            raise CommandError(f"start a broker in {settings.data} once before this", NOT_FOUND)
        replica = litestream.replica_of(target, history_id)
        litestream.write_config(folder.path, replica, settings.storage.wal_bytes)
    _print_next_steps(settings.data, replica)


def _print_next_steps(data: Path, replica: str) -> None:
    print_message(f"{data / DATABASE} will be replicated to {replica}")
    print_message(f"run Litestream: phpmq-lite standby run --data {data}")
    print_message(f"run the broker: phpmq-lite serve --data {data}")
    print_message(f"after a loss: phpmq-lite standby promote '{replica}' --data FOLDER")


@standby.command()
@data_option
@settings_options
def run(settings_args: SettingsArguments) -> None:
    """Run Litestream until it is stopped, whether the broker runs or not.

    This process becomes Litestream, so a service manager can supervise it.
    """
    data = settings_args.load().settings.data
    _require_replica(data)
    litestream.require_litestream()
    litestream.lock_for_litestream(data)
    command = ["litestream", "replicate", "-config", str(data / litestream.CONFIG)]
    os.execvpe(command[0], command, litestream.environment_of(data))  # noqa: S606 - without a shell


@standby.command()
@data_option
@output_option
@settings_options
def status(output: str | None, settings_args: SettingsArguments) -> None:
    """Show how far the replica is behind the database.

    The lag is the most that a loss of this machine would lose, in seconds, bytes of the write-ahead
    log and published messages.
    Exit codes: 0 Litestream runs and reaches the target, 1 it does not, 3 there is no standby.
    """
    data = settings_args.load().settings.data
    replica = _require_replica(data)
    state = read_standby(data, asks_target=True)
    outputs.write_rows([{"replica": replica, **asdict(state)}], _COLUMNS, output, "")
    if state.problem:
        raise CommandError(state.problem)


def _require_replica(data: Path) -> str:
    replica = litestream.read_replica(data)
    if not replica:
        raise CommandError(f"{data} has no standby; use `phpmq-lite standby init`", NOT_FOUND)
    return replica


@standby.command()
@click.argument("replica")
@flag("--keep-tokens", "Keep users, sessions and API tokens unchanged.")
@flag(("--serve", "is_served"), "Start the broker afterwards.")
@yes_option
@data_option
@startup_override_options
@output_option
@settings_options
def promote(
    replica: str,
    keep_tokens: bool,
    is_served: bool,
    yes: bool,
    output: str | None,
    settings_args: SettingsArguments,
) -> None:
    """Restore REPLICA to the data folder, to replace a lost broker.

    REPLICA is what `standby init` printed, or a target folder with only one replica. The result is
    verified, gets a new history id and message numbers that were never used, and is replicated to a
    new path in the same target. As after `backup restore`, sessions end and API tokens are
    disabled, unless the replaced database shows that they are still valid. The old broker must not
    be running.
    """
    settings = settings_args.load().settings
    litestream.require_litestream()
    source = _find_replica(replica)
    if (settings.data / DATABASE).exists():
        outputs.confirm(f"Replace the database in {settings.data}?", is_yes=yes)
    parent = settings.data.absolute().parent
    parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".promote-", dir=parent) as name:
        place, database = Path(name), Path(name) / DATABASE
        litestream.write_config(place, source, settings.storage.wal_bytes)
        options = "-config", str(place / litestream.CONFIG), "-o", str(database), str(database)
        print_message(f"restoring {source}")
        litestream.run_litestream("restore", *options, data=place, timeout_s=_RESTORE_S)
        with naming(source):
            result = restore_database(database, settings, output, keep_tokens=keep_tokens)
    new = litestream.replica_of(source, result.history_id)
    with closing(DataFolder.open(settings.data, allow_network_fs=True)) as folder:
        litestream.write_config(folder.path, new, settings.storage.wal_bytes)
        folder.seal(None)
    _print_next_steps(settings.data, new)
    if is_served:
        sys.stdout.flush()
        command = [sys.executable, "-m", "phpmq_lite", "serve", "--data", str(settings.data)]
        os.execv(sys.executable, command)  # noqa: S606 - no shell is wanted


def _find_replica(target: str) -> str:
    """Return the replica that a target names, or the only one in a folder."""
    base, history_id = litestream.parse_target(target)
    ids = [path.name for path in Path(base).glob("?" * 32)] if "://" not in base else []
    if not history_id and len(ids) != 1:
        replicas = [f"\n  {litestream.replica_of(base, replica_id)}" for replica_id in sorted(ids)]
        hint = f"name one of the replicas in {base}, with its id{''.join(replicas)}"
        raise CommandError(hint, NOT_FOUND)
    return litestream.replica_of(base, history_id or ids[0])
