"""``config``: the settings in force with the source of each, and the reference page."""

from typing import Final

import click

from phpmq_lite import settings
from phpmq_lite.cli.given import Given, data_option, settings_options
from phpmq_lite.cli.output import Column, output_option, write

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
def show(output: str | None, given: Given) -> None:
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
    write(rows, COLUMNS, output, "")


@config.command()
def reference() -> None:
    """Write the reference page of all settings, in Markdown."""
    click.echo(reference_page(), nl=False)


def reference_page() -> str:
    """Write the page ``docs/settings.md``; a test compares."""
    lines = [_HEAD]
    for section, group in settings.by_section().items():
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
