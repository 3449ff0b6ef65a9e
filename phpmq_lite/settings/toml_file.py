"""Writes a TOML file that explains every setting; ``load`` reads it.

A setting stands there with its default behind a ``#`` and no space: without the ``#`` the line
counts.  So a file in which all of them count says what no file says.
"""

import json
import textwrap
from collections.abc import Iterator, Mapping
from typing import Final

from pydantic import ByteSize

from phpmq_lite.settings import Setting, as_text, by_section, section_help

_WIDTH: Final = 80
_HEAD: Final = """\
# Settings of PHPMQ Lite.
#
# A line like "#name = value" is a setting with its default: take the # away and
# change the value. Sizes take units, as "512 MiB". Names tell the unit of a
# time: _s are seconds, _h are hours.
# A flag or a variable (PHPMQ_LIMITS__CREDIT for credit in [limits]) wins over
# this file. `phpmq-lite config show --config FILE` tells what is in force."""


def config_file(given: Mapping[str, object] | None = None) -> str:
    """Write the file; the settings in ``given``, by their names, count with these values."""
    values = given or {}
    lines = [_HEAD]
    for section, group in by_section().items():
        if section:
            lines += ["", "", *_comment(section_help(section)), f"[{section}]"]
        for setting in group:
            lines += ["", *_setting(setting, values)]
    return "\n".join(lines) + "\n"


def _setting(setting: Setting, given: Mapping[str, object]) -> Iterator[str]:
    mark, value = "", given.get(setting.name)
    if setting.name not in given:
        mark, value = "#", setting.default
    bounds = f"  # {setting.bounds}" if setting.bounds else ""
    yield from _comment(setting.help)
    yield f"{mark}{setting.name.rpartition('.')[2]} = {as_toml(value)}{bounds}"


def _comment(text: str) -> list[str]:
    return textwrap.wrap(
        " ".join(text.split()), _WIDTH, initial_indent="# ", subsequent_indent="# ",
        break_on_hyphens=False, break_long_words=False,
    )  # fmt: skip


def as_toml(value: object) -> str:
    """Write a value of a setting as TOML has it; nothing is an empty text."""
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(as_toml, value))}]"
    if isinstance(value, bool | int | float) and not isinstance(value, ByteSize):
        return as_text(value)
    # What JSON escapes TOML reads alike; a delete character only TOML wants escaped.
    return json.dumps(as_text(value), ensure_ascii=False).replace("\x7f", "\\u007f")
