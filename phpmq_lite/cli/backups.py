"""The commands ``backup`` and ``restore``."""

import os
import shutil
import time
from contextlib import closing
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final

import click

from phpmq_lite import __version__
from phpmq_lite.cli.admin_client import AdminClient, admin_client_options
from phpmq_lite.cli.database import print_checks
from phpmq_lite.cli.errors import DAMAGED, NOT_FOUND, CommandError
from phpmq_lite.cli.output import Column, confirm, output_option, print_message, write_rows
from phpmq_lite.cli.settings_options import (
    SettingsArguments,
    data_option,
    settings_options,
    startup_override_options,
)
from phpmq_lite.errors import StartRefusedError
from phpmq_lite.installation import migrations_folder
from phpmq_lite.settings import Settings
from phpmq_lite.storage.atomic_files import PRIVATE_FOLDER, create_private, sync_file, sync_folder
from phpmq_lite.storage.backup.backups import (
    Backup,
    BackupMaker,
    check_copy,
    check_space,
    is_id,
    list_backups,
    read_backup,
    remove_old,
)
from phpmq_lite.storage.backup.restore import RestoreResult, WithdrawnAccess, drill
from phpmq_lite.storage.backup.restore import restore as put_back
from phpmq_lite.storage.data_folder import DATABASE, DataFolder, held_still
from phpmq_lite.storage.integrity.wal_check import check_wal

_ASK_EACH_S: Final = 1.0
_COLUMNS: Final = (
    Column("id", "ID"),
    Column("bytes", "BYTES", is_number=True),
    Column("messages", "ALIVE", is_number=True),
    Column("settled", "SETTLED", is_number=True),
    Column("last_offset", "LAST OFFSET", is_number=True),
    Column("path", "FOLDER"),
)

Row = dict[str, Any]


@click.command()
@click.option("--list", "is_list", is_flag=True, help="Only list those that there are.")
@click.option(
    "--to",
    type=click.Path(file_okay=False, path_type=Path),
    help="Put it into this folder on this machine too; nothing is removed there.",
)
@admin_client_options
@output_option
def backup(node: AdminClient, is_list: bool, to: Path | None, output: str | None) -> None:
    """Make a backup: a whole copy of the database at one moment.

    A running broker makes it beside its work; of a stopped one the command makes it. It is checked
    before it has a name; the oldest above backups.keep are removed. Prints what the new one holds.
    """
    if to is not None and node.settings is None:
        raise click.UsageError("--to copies on this machine; it cannot be used with --url")
    is_running = node.settings is None or _is_running(node.settings)
    if is_list:
        rows = _items(node) if is_running else _listed(node.settings)
    else:
        rows = [_asked(node) if is_running else _made(node.settings)]
        if to is not None:
            rows = [_row(_copied(Path(rows[0]["path"]), to))]
    write_rows(rows, _COLUMNS, output, "there is no backup")


def _is_running(settings: Settings) -> bool:
    if not (settings.data / DATABASE).exists():
        raise CommandError(f"there is no broker in {settings.data}", NOT_FOUND)
    try:
        with held_still(settings.data):
            return False
    except StartRefusedError:
        return True


def _items(node: AdminClient) -> list[Row]:
    items: list[Row] = node.get("/backups")["items"]
    return items


def _asked(node: AdminClient) -> Row:
    """Have the broker make one; ask again and again where it takes long."""
    told = node.post("/backups")
    while told["is_running"]:
        print_message("the backup is under way …")
        time.sleep(_ASK_EACH_S)
        told = node.get("/backups")
    if told["error"]:
        raise CommandError(told["error"])
    items: list[Row] = told["items"]
    name = told.get("made")
    # An older broker does not say which; the first may be of a clock that was ahead.
    made = [row for row in items if name is None or row["id"] == name]
    if not made:
        raise CommandError(f"the backup {name or 'that was made'} is gone", NOT_FOUND)
    return made[0]


def _listed(settings: Settings | None) -> list[Row]:
    return [] if settings is None else [_row(one) for one in list_backups(settings.backups_folder)]


def _made(settings: Settings | None) -> Row:
    """Make one of a database that nobody has open."""
    if settings is None:
        raise CommandError("there is no broker on this machine", NOT_FOUND)
    folder = DataFolder.open(settings.data, allow_network_fs=settings.storage.allow_network_fs)
    with closing(folder):
        check_wal(folder)
        making = BackupMaker(
            folder.database,
            settings.backups_folder,
            __version__,
            reserve=settings.storage.free_bytes,
            is_open=False,
        )
        made = making.run()
    remove_old(settings.backups_folder, settings.backups.keep, made.manifest.id)
    return _row(made)


def _copied(source: Path, to: Path) -> Backup:
    """Copy a backup whole, and look at what arrived."""
    made = read_backup(source)
    if made is None:
        raise CommandError(f"{source} is gone", NOT_FOUND)
    to.mkdir(mode=PRIVATE_FOLDER, parents=True, exist_ok=True)
    check_space(to, made.manifest.bytes)
    place, target = to / f".{source.name}.new", to / source.name
    shutil.rmtree(place, ignore_errors=True)
    place.mkdir(mode=PRIVATE_FOLDER)
    try:
        for file in source.iterdir():
            os.close(create_private(place / file.name))
            shutil.copyfile(file, place / file.name)
            sync_file(place / file.name)
        check_copy(Backup(place, made.manifest))
        place.rename(target)
    finally:
        shutil.rmtree(place, ignore_errors=True)
    sync_folder(to)
    return Backup(target, made.manifest)


def _row(made: Backup) -> Row:
    """Give what the API gives: there as here a schema is mostly one of payloads."""
    told = asdict(made.manifest)
    row = {"schema_version" if name == "schema" else name: told[name] for name in told}
    return {**row, "path": str(made.folder)}


@click.command()
@click.argument("backup")
@click.option("--drill", "is_drill", is_flag=True, help="Only try it, in a folder of its own.")
@click.option(
    "--keep-tokens",
    is_flag=True,
    help="Keep users, sessions and API tokens as the backup has them.",
)
@click.option("--yes", is_flag=True, help="Do not ask.")
@data_option
@startup_override_options
@output_option
@settings_options
def restore(
    backup: str,
    is_drill: bool,
    keep_tokens: bool,
    yes: bool,
    output: str | None,
    given: SettingsArguments,
) -> None:
    """Put BACKUP in the place of the database of a stopped broker.

    BACKUP is the id of a backup of this broker, its folder, or a database file, such as the
    before-migration-NNNN.db of an upgrade. What was there is moved to replaced-<time>/ in the data
    folder; nothing is deleted. Sessions end and API tokens are disabled unless the replaced
    database says that they are still valid; --keep-tokens keeps them. With --drill the backup is
    restored into a temporary folder, brought to this version's schema, recovered, checked, and
    removed again.
    """
    settings = given.load().settings
    source = _source(backup, settings)
    if is_drill:
        done = drill(source, migrations_folder(), tell=print_message)
        for name in done.migrated:
            print_message(f"applied {name}")
    else:
        if (settings.data / DATABASE).exists():
            confirm(f"Replace the database in {settings.data}?", is_yes=yes)
        done = put_back(
            source,
            settings.data,
            allow_network_fs=settings.storage.allow_network_fs,
            accept_loss=settings.storage.accept_loss,
            keep_tokens=keep_tokens,
            tell=print_message,
        )
    print_checks(done.checks, output)
    _conclude(done, source, is_drill=is_drill)


def _conclude(done: RestoreResult, source: Path, *, is_drill: bool) -> None:
    if is_drill:
        if done.problems:
            raise CommandError(f"a broker restored from {source} would be damaged", DAMAGED)
        print_message(f"the drill passed: a broker could start on {source}")
        return
    if done.aside is not None:
        print_message(f"what was there is in {done.aside}")
    if done.withdrawn is not None:
        _show_withdrawn(done.withdrawn)
    print_message(f"{done.database} is restored; start the broker")


def _show_withdrawn(withdrawn: WithdrawnAccess) -> None:
    """Name the access that ended, and why."""
    why = "were revoked since" if withdrawn.has_proof else "may have been revoked since"
    if withdrawn.sessions:
        print_message(f"ended {withdrawn.sessions} sessions that {why}")
    if withdrawn.tokens:
        print_message(
            f"disabled {len(withdrawn.tokens)} API tokens that {why}: "
            f"{', '.join(withdrawn.tokens)}; make new ones with `phpmq-lite token add`, or restore "
            "again with --keep-tokens"
        )
    if withdrawn.users:
        print_message(
            "users with the password, role and queues of the replaced database, not of the "
            f"backup: {', '.join(withdrawn.users)}"
        )
    elif not withdrawn.has_proof:
        print_message("users and passwords are those of the backup; change what was changed since")


def _source(backup: str, settings: Settings) -> Path:
    path = Path(backup)
    if not path.exists() and is_id(backup):
        path = settings.backups_folder / backup
    if not path.exists():
        raise click.BadParameter(f"there is no {path}", param_hint="BACKUP")
    return path
