"""Write docs/reference/settings.md from the definition of the settings."""

from typing import Final

from phpmq_lite import settings

_HEAD: Final = """\
# Settings

Each value comes from the first of these sources that sets it: a flag (`--set SECTION.NAME=VALUE`, or the setting's own flag), the environment (`PHPMQ_SECTION__NAME`), a file that the environment names, the TOML file (`--config`, or else the first of `$CONFIGURATION_DIRECTORY/config.toml`, `./config.toml` and `/etc/phpmq-lite/config.toml`), or the default.
To read a value from a file, set `PHPMQ_SECTION__NAME_FILE` in the environment to its path, or pass it as the systemd credential `section.name`. The content of the file is the value; if the setting is a path, the value is the path of the file.
`phpmq-lite config show` lists the effective settings and their sources. `phpmq-lite config init` creates a TOML file that explains every setting.
Sizes take units (`8 MiB`); lists are comma-separated, or TOML arrays in the file.
This page is generated from the code."""  # noqa: E501 - Markdown: one sentence per line

_TABLE: Final = "| setting | default | description |\n|---|---|---|"


def page() -> str:
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
