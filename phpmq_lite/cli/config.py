"""The ``config`` command group: create a configuration file and show the settings."""

import shlex
from pathlib import Path
from typing import Final

import click

from phpmq_lite import settings
from phpmq_lite.cli.errors import REFUSED, CommandError
from phpmq_lite.cli.output import columns, output_option, print_message, write_rows
from phpmq_lite.cli.parameters import (
    FOLDER,
    SettingsArguments,
    collect_setting_flags,
    data_option,
    flag,
    listener_options,
    setting_option,
    settings_options,
)
from phpmq_lite.errors import SettingsError
from phpmq_lite.server.addresses import check_exposed_listeners, read_endpoints
from phpmq_lite.service.startup_checks import has_admin
from phpmq_lite.settings.reference import config_file

COLUMNS: Final = columns("setting", text="VALUE", source="SOURCE")


@click.group()
def config() -> None:
    """Create a configuration file, or show the effective settings."""


@config.command()
@data_option
@settings_options
@output_option
def show(output: str | None, settings_args: SettingsArguments) -> None:
    """List every setting with its value and the source of that value.

    A flag overrides the environment, which overrides the file. Secrets are masked.
    """
    effective = settings_args.load()
    rows = [
        {
            "setting": name,
            "value": settings.as_json(value),
            "text": settings.as_text(value),
            "source": effective.sources[name],
        }
        for name, value in settings.all_values(effective.settings).items()
    ]
    write_rows(rows, COLUMNS, output, "")


CONFIG_FILE: Final = "config.toml"


@config.command()
@click.argument("target", metavar="[FOLDER|FILE.toml|-]", default=".")
@setting_option("--data", "data", "Database folder, written as an absolute path.", FOLDER)
@listener_options
@flag("--force", "Overwrite an existing file.")
@collect_setting_flags
def init(target: str, force: bool, settings_args: SettingsArguments) -> None:
    """Create a configuration file that explains every setting.

    Settings given as flags are set; all others are comments that show the defaults. The file is
    config.toml in FOLDER, by default the current folder, where the broker and all commands find
    it; - writes to standard output. It contains the paths of password and key files, but no secret.
    """
    values = dict(settings_args.values)
    for name, value in values.items():
        if isinstance(value, Path):
            values[name] = value.absolute()
        elif isinstance(value, list):
            read_endpoints(name, value)
    text = config_file(values)
    if target == "-":
        click.echo(text, nl=False)
        return
    path = Path(target) if target.endswith(".toml") else Path(target) / CONFIG_FILE
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        with path.open("w" if force else "x", encoding="utf-8") as file:
            file.write(text)
    except FileExistsError:
        raise CommandError(f"{path} already exists; use --force to overwrite it", REFUSED) from None
    is_found = path.absolute() in (settings.FOLDER_FILE.absolute(), settings.SYSTEM_FILE)
    flags = "" if is_found else f" --config {shlex.quote(str(path))}"
    print_message(f"wrote {path}; next steps:")
    print_message(f"  phpmq-lite doctor{flags}")
    print_message(f"  phpmq-lite serve{flags}")
    loaded = settings.load(config=path).settings
    try:
        check_exposed_listeners(loaded, lambda: has_admin(loaded))
    except SettingsError as error:
        print_message(f"Before you start the broker: {error}")
