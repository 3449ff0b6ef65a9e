"""``restore``: put a backup in the place of a database, or only try whether it could be."""

from pathlib import Path

import click

from phpmq_lite.cli.given import Given, data_option, settings_options, start_options
from phpmq_lite.cli.main import CommandError
from phpmq_lite.cli.options import confirm, talk
from phpmq_lite.cli.output import output_option
from phpmq_lite.cli.verify import DAMAGED, show
from phpmq_lite.installation import migrations_folder
from phpmq_lite.settings import Settings
from phpmq_lite.storage.backup.backups import is_id
from phpmq_lite.storage.backup.restore import RestoreResult, drill
from phpmq_lite.storage.backup.restore import restore as put_back
from phpmq_lite.storage.data_folder import DATABASE
from phpmq_lite.storage.read.accounts import Withdrawn


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
@start_options
@output_option
@settings_options
def restore(
    backup: str,
    is_drill: bool,
    keep_tokens: bool,
    yes: bool,
    output: str | None,
    given: Given,
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
        done = drill(source, migrations_folder(), tell=talk)
        for name in done.migrated:
            talk(f"applied {name}")
    else:
        if (settings.data / DATABASE).exists():
            confirm(f"Replace the database in {settings.data}?", is_yes=yes)
        done = put_back(
            source,
            settings.data,
            allow_network_fs=settings.storage.allow_network_fs,
            accept_loss=settings.storage.accept_loss,
            keep_tokens=keep_tokens,
            tell=talk,
        )
    show(done.checks, output)
    _conclude(done, source, is_drill=is_drill)


def _conclude(done: RestoreResult, source: Path, *, is_drill: bool) -> None:
    if is_drill:
        if done.problems:
            raise CommandError(f"a broker restored from {source} would be damaged", DAMAGED)
        talk(f"the drill passed: a broker could start on {source}")
        return
    if done.aside is not None:
        talk(f"what was there is in {done.aside}")
    if done.withdrawn is not None:
        _show_withdrawn(done.withdrawn)
    talk(f"{done.database} is restored; start the broker")


def _show_withdrawn(withdrawn: Withdrawn) -> None:
    """Name the access that ended, and why."""
    why = "were revoked since" if withdrawn.has_proof else "may have been revoked since"
    if withdrawn.sessions:
        talk(f"ended {withdrawn.sessions} sessions that {why}")
    if withdrawn.tokens:
        talk(
            f"disabled {len(withdrawn.tokens)} API tokens that {why}: "
            f"{', '.join(withdrawn.tokens)}; make new ones with `phpmq-lite token add`, or restore "
            "again with --keep-tokens"
        )
    if withdrawn.users:
        talk(
            "users with the password, role and queues of the replaced database, not of the "
            f"backup: {', '.join(withdrawn.users)}"
        )
    elif not withdrawn.has_proof:
        talk("users and passwords are those of the backup; change what was changed since")


def _source(backup: str, settings: Settings) -> Path:
    path = Path(backup)
    if not path.exists() and is_id(backup):
        path = settings.backups_folder / backup
    if not path.exists():
        raise click.BadParameter(f"there is no {path}", param_hint="BACKUP")
    return path
