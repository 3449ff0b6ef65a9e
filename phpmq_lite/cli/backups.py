"""The ``backup`` command group: create, list, restore and test backups."""

import os
import shutil
import sys
import tempfile
import time
from contextlib import closing
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final

import click

from phpmq_lite import __version__
from phpmq_lite.cli.admin_client import AdminClient, admin_client_options
from phpmq_lite.cli.database import print_checks, require_file
from phpmq_lite.cli.errors import DAMAGED, NOT_FOUND, CommandError
from phpmq_lite.cli.output import (
    SPARE,
    columns,
    confirm,
    number_columns,
    output_option,
    print_message,
    write_rows,
    yes_option,
)
from phpmq_lite.cli.parameters import (
    FOLDER,
    SettingsArguments,
    data_option,
    flag,
    option,
    set_option,
    settings_options,
    startup_override_options,
)
from phpmq_lite.errors import StartRefusedError
from phpmq_lite.installation import migrations_folder
from phpmq_lite.settings import Settings
from phpmq_lite.storage.atomic_files import PRIVATE_FOLDER, create_private, sync_file, sync_folder
from phpmq_lite.storage.data_folder import DATABASE, DataFolder, prevent_start
from phpmq_lite.storage.migrations import naming
from phpmq_lite.storage.sqlite import backups, litestream
from phpmq_lite.storage.sqlite.integrity.startup import check_files, open_stopped
from phpmq_lite.storage.sqlite.integrity.wal_check import check_wal
from phpmq_lite.storage.sqlite.restore import RestoreResult, drill, read_history_id
from phpmq_lite.storage.sqlite.restore import restore as put_back
from phpmq_lite.storage.sqlite.standby_lag import read_standby

_POLL_S: Final = 1.0
_COLUMNS: Final = (
    *columns("id"),
    *number_columns("bytes", messages="LIVE"),
    *number_columns(settled="SETTLED", last_offset="LAST OFFSET", fit=SPARE),
    *columns(path="FOLDER"),
)

Row = dict[str, Any]
_TOOLS: Final = "whose own tools make backups: pg_dump, pg_basebackup or pgBackRest"


@click.group()
def backup() -> None:
    """Create, list, restore and test backups of the database."""


@backup.command()
@option("--copy-to", "Also copy the backup to this local folder; old copies stay.", FOLDER)
@admin_client_options
@set_option
@output_option
def create(admin: AdminClient, copy_to: Path | None, output: str | None) -> None:
    """Create a backup: the whole database at one point in time.

    A running broker creates it without interruption; if the broker is stopped, this command does.
    The copy is checked before it counts as a backup. Backups in excess of backups.keep are removed,
    oldest first.
    """
    if copy_to is not None and admin.settings is None:
        raise click.UsageError("--copy-to requires the data folder; use --data instead of --url")
    settings = admin.settings
    if settings is None or _is_running(settings):
        row = _request(admin)
    else:
        to, reserve = settings.backups_folder, settings.storage.free_bytes
        is_allowed = settings.storage.allow_network_fs
        with closing(DataFolder.open(settings.data, allow_network_fs=is_allowed)) as folder:
            check_wal(folder)
            maker = backups.BackupMaker(
                folder.database, to, __version__, reserve=reserve, is_open=False
            )
            created = maker.run()
        backups.remove_old(to, settings.backups.keep, created.manifest.id)
        row = _row(created)
    if copy_to is not None:
        row = _row(_copy(Path(row["path"]), copy_to))
    write_rows([row], _COLUMNS, output, "")


@backup.command(name="list")
@admin_client_options
@set_option
@output_option
def list_(admin: AdminClient, output: str | None) -> None:
    """List the backups, newest first."""
    if admin.settings is None or _is_running(admin.settings):
        rows: list[Row] = admin.get("/backups")["items"]
    else:
        rows = list(map(_row, backups.list_backups(admin.settings.backups_folder)))
    write_rows(rows, _COLUMNS, output, "no backups")


def _is_running(settings: Settings) -> bool:
    require_file(settings, _TOOLS)
    if not (settings.data / DATABASE).exists():
        raise CommandError(f"{settings.data} does not contain a broker's database", NOT_FOUND)
    try:
        with prevent_start(settings.data):
            return False
    except StartRefusedError:
        return True


def _request(admin: AdminClient) -> Row:
    state = admin.post("/backups")
    while state["is_running"]:
        print_message("the backup is in progress …")
        time.sleep(_POLL_S)
        state = admin.get("/backups")
    if state["error"]:
        raise CommandError(state["error"])
    items: list[Row] = state["items"]
    for row in items:  # it may not be listed first if a clock was wrong
        if row["id"] == state["made"]:
            return row
    raise CommandError(f"the backup {state['made']} no longer exists", NOT_FOUND)


def _copy(source: Path, to: Path) -> backups.Backup:
    original = backups.read_backup(source)
    if original is None:
        raise CommandError(f"{source} no longer exists", NOT_FOUND)
    to.mkdir(mode=PRIVATE_FOLDER, parents=True, exist_ok=True)
    backups.check_space(to, original.manifest.bytes)
    temporary, target = to / f".{source.name}.new", to / source.name
    shutil.rmtree(temporary, ignore_errors=True)
    temporary.mkdir(mode=PRIVATE_FOLDER)
    try:
        for file in source.iterdir():
            os.close(create_private(temporary / file.name))
            shutil.copyfile(file, temporary / file.name)
            sync_file(temporary / file.name)
        backups.verify_backup(backups.Backup(temporary, original.manifest))
        temporary.rename(target)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)
    sync_folder(to)
    return backups.Backup(target, original.manifest)


def _row(backup: backups.Backup) -> Row:
    """Return a backup as a row with the same fields as in the API."""
    manifest = asdict(backup.manifest)
    row = {"schema_version" if name == "schema" else name: manifest[name] for name in manifest}
    return {**row, "path": str(backup.folder)}


_keep_tokens = flag("--keep-tokens", "Keep users, sessions and API tokens unchanged.")
_backup = click.argument("source", metavar="BACKUP")


@backup.command()
@_backup
@_keep_tokens
@yes_option
@data_option
@startup_override_options
@output_option
@settings_options
def restore(
    source: str, keep_tokens: bool, yes: bool, output: str | None, settings_args: SettingsArguments
) -> None:
    """Replace the database of a stopped broker with BACKUP.

    BACKUP is the id of one of this broker's backups, a backup folder, or a database file; the
    before-migration-NNNN.db from an upgrade is also found in the data folder. The previous files
    are moved to replaced-<time>/ in the data folder; nothing is deleted. Sessions end and API
    tokens are disabled unless the replaced database shows that they are still valid;
    --keep-tokens keeps them.
    """
    settings = settings_args.load().settings
    require_file(settings, _TOOLS)
    path = _find(source, settings)
    if (settings.data / DATABASE).exists():
        confirm(f"Replace the database in {settings.data}?", is_yes=yes)
    result = restore_database(path, settings, output, keep_tokens=keep_tokens)
    print_message(f"restored {result.database}; start the broker")


def restore_database(
    source: Path, settings: Settings, output: str | None, *, keep_tokens: bool
) -> RestoreResult:
    """Restore a backup or a database file, and print what was checked, moved and revoked."""
    result = put_back(
        source,
        settings.data,
        allow_network_fs=settings.storage.allow_network_fs,
        accept_loss=settings.storage.accept_loss,
        keep_tokens=keep_tokens,
        tell=print_message,
    )
    print_checks(result.checks, output)
    if result.replaced_files is not None:
        print_message(f"the previous files are in {result.replaced_files}")
    if (withdrawn := result.withdrawn) is None:
        return result
    reason = "have since been revoked" if withdrawn.has_proof else "may since have been revoked"
    if withdrawn.sessions:
        print_message(f"ended {withdrawn.sessions} sessions that {reason}")
    if withdrawn.tokens:
        print_message(
            f"disabled {len(withdrawn.tokens)} API tokens that {reason}: "
            f"{', '.join(withdrawn.tokens)}; create new ones with `phpmq-lite token create`, or "
            "restore again with --keep-tokens"
        )
    if withdrawn.users:
        print_message(
            "these users keep the password, role and queues that the replaced database had: "
            f"{', '.join(withdrawn.users)}"
        )
    elif not withdrawn.has_proof:
        print_message("users and passwords come from the backup; repeat changes made since")
    return result


@backup.command()
@_backup
@data_option
@output_option
@settings_options
def test(source: str, output: str | None, settings_args: SettingsArguments) -> None:
    """Restore BACKUP to a temporary folder and check the result.

    The copy is upgraded to this version's schema, recovered, checked and removed again.
    Exit codes: 0 the backup can be restored, 65 it is damaged.
    """
    settings = settings_args.load().settings
    require_file(settings, _TOOLS)
    path = _find(source, settings)
    result = drill(path, migrations_folder(), tell=print_message)
    for name in result.migrated:
        print_message(f"applied {name}")
    print_checks(result.checks, output)
    if result.problems:
        raise CommandError(f"a database restored from {path} would be damaged", DAMAGED)
    print_message(f"the test passed: a broker can start from {path}")


def _find(source: str, settings: Settings) -> Path:
    paths = [Path(source)]
    if Path(source).name == source:
        paths += settings.backups_folder / source, settings.data / source
    for path in paths:
        if path.exists():
            return path
    folders = ", ".join(str(path.parent) for path in paths[1:])
    hint = f", nor in {folders}; `phpmq-lite backup list` shows the backups" if folders else ""
    raise click.BadParameter(f"{source} does not exist{hint}", param_hint="BACKUP")


_RESTORE_S: Final = 86_400.0  # a large replica, over a slow network
_STANDBY_COLUMNS: Final = (
    *columns("replica", is_running="RUNNING"),
    *number_columns("lag_s"),
    *number_columns("lag_bytes", "lag_messages", "backlog_bytes", fit=SPARE),
    *columns("problem"),
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
    write_rows([{"replica": replica, **asdict(state)}], _STANDBY_COLUMNS, output, "")
    if state.problem:
        raise CommandError(state.problem)


def _require_replica(data: Path) -> str:
    replica = litestream.read_replica(data)
    if not replica:
        raise CommandError(f"{data} has no standby; use `phpmq-lite standby init`", NOT_FOUND)
    return replica


@standby.command()
@click.argument("replica")
@_keep_tokens
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
    target, history_id = litestream.parse_target(replica)
    ids = [path.name for path in Path(target).glob("?" * 32)] if "://" not in target else []
    if not history_id and len(ids) != 1:
        replicas = [litestream.replica_of(target, replica_id) for replica_id in sorted(ids)]
        hint = f"name one of the replicas in {target}, with its id"
        raise CommandError("\n  ".join([hint, *replicas]), NOT_FOUND)
    source = litestream.replica_of(target, history_id or ids[0])
    if (settings.data / DATABASE).exists():
        confirm(f"Replace the database in {settings.data}?", is_yes=yes)
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
