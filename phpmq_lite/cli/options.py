"""What several commands share: durations, files, and talking to the person at the terminal."""

import re
import sys
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

import click

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


def admin_url(value: str) -> str:
    """Give an address of an admin that says how to speak to it; a click type."""
    if "://" not in value:
        raise click.BadParameter(
            f"{value!r} has no scheme; write http://{value} for the admin, "
            f"or phpmq://{value} for a PHPMQ listener"
        )
    try:
        parts = urlsplit(value)
        is_right = parts.scheme in ("http", "https") and parts.hostname and parts.port != 0
    except ValueError:  # of a port or an IPv6 address
        is_right = False
    if not is_right:
        raise click.BadParameter(f"{value!r} is no address; write http://HOST:PORT")
    return value


def broker_url(value: str) -> str:
    """Return the address of a broker: of its admin, or of a PHPMQ listener; a click type."""
    if not is_phpmq(value):
        return admin_url(value)
    from phpmq_lite.envelopes.link import client_of

    try:
        client_of(value)
    except ValueError as error:
        raise click.BadParameter(str(error)) from None
    return value


def is_phpmq(url: str) -> bool:
    """Return whether an address names a PHPMQ listener: ``phpmq://``, ``phpmqs://``, ``unix:``."""
    return url.startswith(("phpmq://", "phpmqs://", "unix:"))


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


def message_count(count: int) -> str:
    """Say how many: ``1 message``, ``2,000 messages``."""
    return f"{count:,} message{'' if count == 1 else 's'}"


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
