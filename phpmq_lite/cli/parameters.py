"""Types of command-line parameters: files, durations, rates, times and URLs."""

import re
import sys
import time
from collections.abc import Callable
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

import click

from phpmq_lite.cli.output import Command, add_options, is_terminal
from phpmq_lite.durations import SHORT_UNITS_S

EXISTING_FILE: Final = click.Path(exists=True, dir_okay=False, path_type=Path)
EXISTING_FOLDER: Final = click.Path(exists=True, file_okay=False, path_type=Path)
EXISTING_PATH: Final = click.Path(exists=True, path_type=Path)
FILE: Final = click.Path(dir_okay=False, path_type=Path)
FOLDER: Final = click.Path(file_okay=False, path_type=Path)
FILE_OR_STDIN: Final = click.Path(
    exists=True, dir_okay=False, allow_dash=True, path_type=Path
)  # for read_input, "-" means standard input
LOG_LEVELS: Final = click.Choice(["debug", "info", "warning", "error"])
LOG_FORMATS: Final = click.Choice(["auto", "json", "console"])
_DURATION: Final = re.compile(rf"([0-9]{{1,15}}) *([{''.join(SHORT_UNITS_S)}]?)")


def option(
    names: str | tuple[str, ...],
    help: str,
    type: Any = None,
    default: Any = None,
    **attributes: Any,
) -> Callable[[Any], Any]:
    """Return an option with one or more names, whose help shows a default that is not empty."""
    if default is not None:
        attributes = {"default": default, "show_default": bool(default), **attributes}
    declarations = (names,) if isinstance(names, str) else names
    return click.option(*declarations, help=help, type=type, **attributes)


flag: Final = partial(option, is_flag=True)
number_option: Final = partial(option, type=click.IntRange(min=1), metavar="N")
_TRUSTED: Final = "PEM file with the CA certificate to trust instead of the system's."
ca_option: Final = option("--tls-ca", _TRUSTED, EXISTING_FILE)


def cert_options(command: Command) -> Command:
    """Add ``--tls-cert`` and ``--tls-key``, for a PHPMQ listener with ``tcp.tls_client_ca``."""
    pem_file = partial(click.option, type=EXISTING_FILE)
    return add_options(
        command,
        pem_file("--tls-key", help="PEM file with the private key for --tls-cert."),
        pem_file("--tls-cert", help="PEM file with the client certificate."),
    )


def duration(value: str) -> int:
    """Parse a duration such as ``90``, ``90s``, ``15m``, ``1h``, ``7d`` or ``2w`` into seconds."""
    match = _DURATION.fullmatch(value.strip())
    if match is None:
        raise click.BadParameter(f"{value!r} is not a duration; use a value such as 90, 15m or 7d")
    return int(match[1]) * SHORT_UNITS_S[match[2] or "s"]


def assignment(value: str) -> tuple[str, str]:
    """Parse an assignment such as ``limits.credit=100`` into a name and a value."""
    name, sign, text = value.partition("=")
    if not sign or not name.strip():
        raise click.BadParameter(f"{value!r} is not a valid assignment; use SECTION.NAME=VALUE")
    return name.strip(), text


def admin_url(value: str) -> str:
    """Return the URL of a broker's admin interface, if it is valid."""
    if "://" not in value:
        raise click.BadParameter(
            f"{value!r} has no scheme; use http://{value} for the admin, "
            f"or phpmq://{value} for a PHPMQ listener"
        )
    try:
        parts = urlsplit(value)
        is_valid = parts.scheme in ("http", "https") and parts.hostname and parts.port != 0
    except ValueError:  # the port or an IPv6 address is invalid
        is_valid = False
    if not is_valid:
        raise click.BadParameter(f"{value!r} is not a valid address; use http://HOST:PORT")
    return value


def broker_url(value: str) -> str:
    """Return the URL of a broker's admin interface or PHPMQ listener, if it is valid."""
    if not is_phpmq_url(value):
        return admin_url(value)
    from phpmq_lite.client.blocking_client import client_from_url

    try:
        client_from_url(value)
    except ValueError as error:
        raise click.BadParameter(str(error)) from None
    return value


def is_phpmq_url(url: str) -> bool:
    """Return whether a URL is for PHPMQ, that is ``phpmq://``, ``phpmqs://`` or ``unix:``."""
    return url.startswith(("phpmq://", "phpmqs://", "unix:"))


def read_input(path: Path) -> bytes:
    """Read a file, or standard input if ``path`` is ``-``.

    Raises:
        UsageError: standard input is a terminal.
    """
    if str(path) != "-":
        return path.read_bytes()
    if is_terminal():
        raise click.UsageError("no input: specify a file, or pipe data to standard input")
    return sys.stdin.buffer.read()


def time_ms(value: str) -> int:
    """Return a time in Unix milliseconds, rounded down to the second.

    The time is ``2026-01-31``, ``2026-01-31T08:00`` or ``…+01:00``, in UTC if it has no offset, or
    a duration before now, such as ``2h``.
    """
    try:
        at = datetime.fromisoformat(value)
    except ValueError:
        try:
            return (int(time.time()) - duration(value)) * 1_000
        except click.BadParameter:
            raise click.BadParameter(
                f"{value!r} is not a time; use a value such as 2026-01-31T08:00+01:00 or 2h (ago)"
            ) from None
    return int((at if at.tzinfo else at.replace(tzinfo=UTC)).timestamp()) * 1_000


def messages_per_second(value: str) -> float:
    """Parse a rate such as ``20/s`` or ``20`` into messages per second."""
    match = re.fullmatch(r"(\d{1,9}(?:\.\d+)?)(?:/s)?", value.strip())
    if match is None or not float(match[1]):
        raise click.BadParameter(f"{value!r} is not a rate; use a number such as 20/s")
    return float(match[1])
