"""The commands ``init`` and ``config``: write a configuration file, show the settings."""

import shlex
from pathlib import Path
from typing import Final

import click

from phpmq_lite import settings
from phpmq_lite.cli.errors import REFUSED, CommandError
from phpmq_lite.cli.output import Column, output_option, print_message, write_rows
from phpmq_lite.cli.settings_options import (
    SettingsArguments,
    collect_setting_flags,
    data_option,
    listener_options,
    setting_option,
    settings_options,
)
from phpmq_lite.errors import SettingsError
from phpmq_lite.server.addresses import check_wide_binds, read_endpoints
from phpmq_lite.settings.reference import config_file
from phpmq_lite.storage.data_folder import DATABASE
from phpmq_lite.storage.integrity.stopped_database import has_admin

COLUMNS: Final = (
    Column("setting", "SETTING"),
    Column("text", "VALUE"),
    Column("source", "SOURCE"),
)


@click.group()
def config() -> None:
    """Show the settings in force."""


@config.command()
@data_option
@settings_options
@output_option
def show(output: str | None, given: SettingsArguments) -> None:
    """List every setting with its value and where that comes from.

    The order is: flag, environment, file, default. Secrets are masked.
    """
    effective = given.load()
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


@config.command()
def reference() -> None:
    """Write the reference page of all settings, in Markdown."""
    click.echo(reference_page(), nl=False)


def reference_page() -> str:
    """Write the page ``docs/reference/settings.md``; a test compares."""
    lines = [_HEAD]
    for section, group in settings.settings_by_section().items():
        if section:
            lines += ["", f"## {section}", "", settings.section_help(section)]
        lines += ["", _TABLE]
        for setting in group:
            default = settings.as_text(setting.default)
            shown = f"`{default}`" if default else "–"
            bounds = f" ({setting.bounds})" if setting.bounds else ""
            lines.append(f"| `{setting.name}` | {shown} | {setting.help}{bounds} |")
    return "\n".join(lines) + "\n"


_HEAD: Final = """\
# Settings

A value comes from a flag (`--set SECTION.NAME=VALUE`, or a flag of its own), else from the environment (`PHPMQ_SECTION__NAME`), else from a file that the environment hands over, else from the TOML file (`--config`, else the first of `$CONFIGURATION_DIRECTORY/config.toml`, `./config.toml` and `/etc/phpmq-lite/config.toml`), else it is the default.
Files are handed over by `PHPMQ_SECTION__NAME_FILE`, which names one, and by systemd as a credential `section.name`. What is in it is the value; of a setting that is a path, the file itself.
`phpmq-lite config show` tells what is in force, and why. `phpmq-lite init` writes a TOML file that explains them all.
Sizes take units (`8 MiB`); lists are separated by commas, or TOML arrays.
This page is written by `phpmq-lite config reference`."""  # noqa: E501 - Markdown: a sentence a line

_TABLE: Final = "| setting | default | what |\n|---|---|---|"


CONFIG_FILE: Final = "config.toml"


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
@collect_setting_flags
def init(place: str, force: bool, given: SettingsArguments) -> None:
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
    path = Path(place) if place.endswith(".toml") else Path(place) / CONFIG_FILE
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
    print_message(f"wrote {path}; next:")
    print_message(f"  phpmq-lite doctor{flag}")
    print_message(f"  phpmq-lite serve{flag}")
    told = settings.load(config=path).settings
    try:
        check_wide_binds(told, lambda: has_admin(told.data / DATABASE))
    except SettingsError as error:
        print_message(f"Before it starts: {error}")
