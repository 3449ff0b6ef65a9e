"""``init``: write a file that explains every setting."""

import shlex
from pathlib import Path
from typing import Final

import click

from phpmq_lite import settings
from phpmq_lite.cli.given import Given, gathered, listener_options, setting_option
from phpmq_lite.cli.main import REFUSED, CommandError
from phpmq_lite.cli.options import talk
from phpmq_lite.errors import SettingsError
from phpmq_lite.server.addresses import check_wide_binds, read_endpoints
from phpmq_lite.settings.toml_file import config_file
from phpmq_lite.storage.data_folder import DATABASE
from phpmq_lite.storage.read.accounts import has_admin

NAME: Final = "config.toml"


@click.command()
@click.argument("place", metavar="[FOLDER|FILE.toml|-]", default=".")
@setting_option(
    "--data",
    "data",
    type=click.Path(file_okay=False, path_type=Path),
    help="Folder of the database: this setting counts, as a whole path.",
)
@listener_options
@click.option("--force", is_flag=True, help="Write over a file that is there.")
@gathered
def init(place: str, force: bool, given: Given) -> None:
    """Write a configuration file in which every setting is explained.

    Each setting stands there with its default, as a comment; those that are given as flags count.
    The file is config.toml in FOLDER, by default the current folder, where the broker and all
    commands read it; - is standard output. It names files with passwords and keys and contains none
    of these.
    """
    values = dict(given.values)
    for name, value in values.items():
        if isinstance(value, Path):
            values[name] = value.absolute()
        elif isinstance(value, list):
            read_endpoints(name, value)
    text = config_file(values)
    if place == "-":
        click.echo(text, nl=False)
        return
    path = Path(place) if place.endswith(".toml") else Path(place) / NAME
    _write(path, text, force=force)
    _say_what_next(path)


def _write(path: Path, text: str, *, force: bool) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        with path.open("w" if force else "x", encoding="utf-8") as file:
            file.write(text)
    except FileExistsError:
        raise CommandError(f"{path} is there already; --force writes over it", REFUSED) from None


def _say_what_next(path: Path) -> None:
    is_found = path.absolute() in (settings.FOLDER_FILE.absolute(), settings.SYSTEM_FILE)
    flag = "" if is_found else f" --config {shlex.quote(str(path))}"
    talk(f"wrote {path}; next:")
    talk(f"  phpmq-lite doctor{flag}")
    talk(f"  phpmq-lite serve{flag}")
    told = settings.load(config=path).settings
    try:
        check_wide_binds(told, lambda: has_admin(told.data / DATABASE))
    except SettingsError as error:
        talk(f"Before it starts: {error}")
