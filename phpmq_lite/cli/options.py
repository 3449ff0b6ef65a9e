"""Options that several commands share, and what they mean: settings, durations, formats."""

import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final, TypeVar

import click

from phpmq_lite import settings

Command = TypeVar("Command", bound=Callable[..., Any])

_UNITS_S: Final = {"": 1, "s": 1, "m": 60, "h": 3_600, "d": 86_400, "w": 604_800}
_DURATION: Final = re.compile(r"([0-9]{1,15}) *([smhdw]?)")


def duration(value: str) -> int:
    """Give the seconds of ``90``, ``90s``, ``15m``, ``1h``, ``7d`` or ``2w``; a click type."""
    found = _DURATION.fullmatch(value.strip())
    if found is None:
        raise click.BadParameter(f"{value!r} is no duration; write 90, 90s, 15m, 1h, 7d or 2w")
    return int(found[1]) * _UNITS_S[found[2]]


def assignment(value: str) -> tuple[str, str]:
    """Give name and value of ``limits.credit=100``; a click type."""
    name, sign, given = value.partition("=")
    if not sign or not name.strip():
        raise click.BadParameter(f"{value!r} is no SECTION.NAME=VALUE")
    return name.strip(), given


def settings_options(command: Command) -> Command:
    """Add ``--config`` and ``--set``, from which ``load_settings`` reads."""
    command = click.option(
        "--set",
        "assignments",
        type=assignment,
        multiple=True,
        metavar="SECTION.NAME=VALUE",
        help="Any setting; `phpmq-lite config show` lists them. Repeatable.",
    )(command)
    return click.option(
        "--config",
        type=click.Path(exists=True, dir_okay=False, path_type=Path),
        help="TOML file with settings.",
    )(command)


def data_option(command: Command) -> Command:
    """Add ``--data``."""
    return click.option(
        "--data",
        type=click.Path(file_okay=False, path_type=Path),
        help="Folder of the database.  [default: ./phpmq-data]",
    )(command)


def listener_options(command: Command) -> Command:
    """Add ``--listen``, ``--legacy-listen`` and ``--admin``: each gives a tuple of addresses."""
    for flag, help_text in (
        ("--admin", "Admin pages, health and metrics.  [default: 127.0.0.1:9101]"),
        (
            "--legacy-listen",
            "PHPMQ for clients of the older revision, without TTL.  [default: 127.0.0.1:9102]",
        ),
        (
            "--listen",
            "PHPMQ with TTL: HOST:PORT, unix:PATH or none; port 0 picks one. Repeatable."
            "  [default: 127.0.0.1:9100]",
        ),
    ):
        command = click.option(flag, multiple=True, metavar="ADDRESS", help=help_text)(command)
    return command


def start_options(command: Command) -> Command:
    """Add the flags by which an operator accepts what would refuse the start."""
    command = click.option(
        "--accept-loss",
        is_flag=True,
        default=None,
        help="Go on although files are damaged, with what is left of them, this once.",
    )(command)
    return click.option(
        "--allow-network-fs",
        is_flag=True,
        default=None,
        help="Start on a network file system, whose locks may lie.",
    )(command)


def load_settings(
    config: Path | None,
    assignments: tuple[tuple[str, str], ...] = (),
    **flags: object,
) -> settings.Effective:
    """Read the settings as ``read_settings`` does; warnings go to standard error."""
    effective = read_settings(config, assignments, **flags)
    for warning in effective.warnings:
        talk(f"warning: {warning}")
    return effective


def read_settings(
    config: Path | None,
    assignments: tuple[tuple[str, str], ...] = (),
    **flags: object,
) -> settings.Effective:
    """Read the settings.

    Args:
        config: the TOML file, or None for the usual places.
        assignments: what ``--set`` gave.
        flags: settings that have a flag of their own, ``tcp__listen`` for ``tcp.listen``; they win
            over ``--set``.  None and empty tuples are flags that were not given.
    """
    given: dict[str, object] = dict(assignments)
    for name, value in flags.items():
        if isinstance(value, tuple):
            value = list(value) or None
        if value is not None:
            given[name.replace("__", ".")] = value
    return settings.load(given, config)


def read_content(path: Path) -> bytes:
    """Read a file whole; ``-`` is standard input.

    Raises:
        UsageError: standard input is a terminal, where nobody would know when to stop.
    """
    if str(path) != "-":
        return path.read_bytes()
    if is_terminal():
        raise click.UsageError("nothing to read: give a file, or pipe into standard input")
    return sys.stdin.buffer.read()


def talk(message: str) -> None:
    """Say something to the person at the terminal: on standard error."""
    click.echo(message, err=True)


def is_terminal() -> bool:
    """Tell whether somebody sits at standard input."""
    return sys.stdin.isatty()


def confirm(question: str, *, is_yes: bool) -> None:
    """Ask before something is destroyed; without a terminal ``--yes`` must have been given."""
    if is_yes:
        return
    if not is_terminal():
        raise click.UsageError("without a terminal this needs --yes")
    click.confirm(question, abort=True, err=True)
